"""What of the fake cuDNN transforms images: plain loops over single pixels."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnn_ct.dtypes import DTYPES

from .host import view
from .pointwise import factors

_BY_CODE = {row.code: row for row in DTYPES.values()}


def _coordinate(i: int, length: int) -> float:
    return -1 + 2 * i / (length - 1) if length > 1 else -1.0


def _neighbours(place: np.ndarray, height: int, width: int) -> Any:
    """The pixels around a place that are in the image: where, their weight, its slopes along x and y."""
    x, y = (place[0] + 1) * (width - 1) / 2, (place[1] + 1) * (height - 1) / 2
    left, top = int(np.floor(x)), int(np.floor(y))
    for i, j in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        across, down = 1 - abs(x - j), 1 - abs(y - i)
        if 0 <= i < height and 0 <= j < width:
            slope_x = (1 if j > left else -1) * down * (width - 1) / 2
            slope_y = (1 if i > top else -1) * across * (height - 1) / 2
            yield (i, j), across * down, (slope_x, slope_y)


class Spatial:
    """A part of the fake: it reads descriptors and memory through the rest of it."""

    def cudnnCreateSpatialTransformerDescriptor(self: Any, out: Any) -> None:
        self._create(out, "transformer")

    def cudnnDestroySpatialTransformerDescriptor(self: Any, pointer: Any) -> None:
        self._destroy(pointer)

    def cudnnSetSpatialTransformerNdDescriptor(
        self: Any, transformer: Any, sampler: int, code: int, axes: int, dims: Any
    ) -> int:
        assert axes == 4
        assert dims[0] < 65536
        assert dims[1] <= 1024
        if _BY_CODE[code].name == "bfloat16":
            return 2000
        self._get(transformer, "transformer").update(shape=tuple(dims[:4]), dtype=_BY_CODE[code])
        return 0

    def _grid(self: Any, transformer: Any, theta: int, grid: int) -> tuple[np.ndarray, np.ndarray]:
        state = self._get(transformer, "transformer")
        n, _, height, width = state["shape"]
        dtype = state["dtype"].numpy
        return (
            view(self.host, theta, (n, 2, 3), (6, 3, 1), dtype),
            view(self.host, grid, (n, height, width, 2), (height * width * 2, width * 2, 2, 1), dtype),
        )

    def cudnnSpatialTfGridGeneratorForward(
        self: Any, handle: Any, transformer: Any, theta: int, grid: int
    ) -> None:
        thetas, places = self._grid(transformer, theta, grid)
        for n, i, j in np.ndindex(*places.shape[:3]):
            pixel = np.array([_coordinate(j, places.shape[2]), _coordinate(i, places.shape[1]), 1])
            places[n, i, j] = (thetas[n].astype(np.float64) @ pixel).astype(places.dtype)

    def cudnnSpatialTfGridGeneratorBackward(
        self: Any, handle: Any, transformer: Any, dgrid: int, dtheta: int
    ) -> None:
        thetas, places = self._grid(transformer, dtheta, dgrid)
        sums = np.zeros(thetas.shape)
        for n, i, j in np.ndindex(*places.shape[:3]):
            pixel = np.array([_coordinate(j, places.shape[2]), _coordinate(i, places.shape[1]), 1])
            sums[n] += np.outer(places[n, i, j].astype(np.float64), pixel)
        thetas[...] = sums.astype(thetas.dtype)

    def cudnnSpatialTfSamplerForward(
        self: Any,
        handle: Any,
        transformer: Any,
        alpha: int,
        x: Any,
        read: int,
        grid: int,
        beta: int,
        y: Any,
        written: int,
    ) -> None:
        image, target = self._memory(x, "tensor", read), self._memory(y, "tensor", written)
        places = self._places(transformer, grid, target)
        a, b = factors(image.dtype, alpha, beta)
        for n, i, j in np.ndindex(*places.shape[:3]):
            total = np.zeros(image.shape[1])
            for at, weight, _ in _neighbours(places[n, i, j].astype(np.float64), *image.shape[2:]):
                total += weight * image[(n, slice(None), *at)].astype(np.float64)
            before = b * target[n, :, i, j].astype(np.float64) if b else 0
            target[n, :, i, j] = (a * total + before).astype(target.dtype)

    def cudnnSpatialTfSamplerBackward(self: Any, handle: Any, transformer: Any, *arguments: Any) -> None:
        alpha, x, read, beta, dx, dx_at, alpha_grid, dy, dy_at, grid, beta_grid, dgrid = arguments
        image, gradient = self._memory(x, "tensor", read), self._memory(dy, "tensor", dy_at)
        target = self._memory(dx, "tensor", dx_at)
        places, slopes = self._places(transformer, grid, gradient), self._places(transformer, dgrid, gradient)
        a, b, a_grid, b_grid = factors(image.dtype, alpha, beta, alpha_grid, beta_grid)
        sums, along = np.zeros(image.shape), np.zeros(places.shape)
        for n, i, j in np.ndindex(*places.shape[:3]):
            incoming = gradient[n, :, i, j].astype(np.float64)
            for at, weight, slope in _neighbours(places[n, i, j].astype(np.float64), *image.shape[2:]):
                sums[(n, slice(None), *at)] += weight * incoming
                along[n, i, j] += np.array(slope) * (image[(n, slice(None), *at)] * incoming).sum()
        target[...] = (a * sums + (b * target.astype(np.float64) if b else 0)).astype(target.dtype)
        before = b_grid * slopes.astype(np.float64) if b_grid else 0
        slopes[...] = (a_grid * along + before).astype(slopes.dtype)

    def _places(self: Any, transformer: Any, grid: int, like: np.ndarray) -> np.ndarray:
        state = self._get(transformer, "transformer")
        assert state["shape"] == like.shape
        n, _, height, width = like.shape
        strides = (height * width * 2, width * 2, 2, 1)
        return view(self.host, grid, (n, height, width, 2), strides, like.dtype)
