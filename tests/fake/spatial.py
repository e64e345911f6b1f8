"""Spatial transformers of the fake cuDNN, by the reference in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

import cudnn_ct as ct

from .host import BY_CODE, view
from .pointwise import descriptor, factors, write


def _is_lost(places: np.ndarray) -> np.ndarray:
    """Return which points are so far away that cuDNN 9.19 multiplies 0 by infinity."""
    return np.asarray((np.abs(places.astype(np.float64)) > 2.0**31).any(axis=-1))


class Spatial:
    """A part of the fake: it reads descriptors and memory through the rest of it."""

    cudnnCreateSpatialTransformerDescriptor, cudnnDestroySpatialTransformerDescriptor = descriptor(
        "transformer"
    )

    def cudnnSetSpatialTransformerNdDescriptor(
        self: Any, transformer: Any, sampler: int, code: int, axes: int, dims: Any
    ) -> int:
        assert axes == 4
        assert dims[0] < 65536
        assert dims[1] <= 1024
        if BY_CODE[code].name == "bfloat16":
            return 2000
        self._get(transformer, "transformer").update(shape=tuple(dims[:4]), dtype=BY_CODE[code])
        return 0

    def _grid(self: Any, transformer: Any, theta: int, grid: int) -> tuple[np.ndarray, np.ndarray]:
        state = self._get(transformer, "transformer")
        n, dtype = state["shape"][0], state["dtype"].numpy
        return view(self.host, theta, (n, 2, 3), (6, 3, 1), dtype), self._places(transformer, grid)

    def cudnnSpatialTfGridGeneratorForward(
        self: Any, handle: Any, transformer: Any, theta: int, grid: int
    ) -> None:
        thetas, places = self._grid(transformer, theta, grid)
        places[...] = ct.reference.affine_grid(thetas.astype(np.float64), places.shape[:3])

    def cudnnSpatialTfGridGeneratorBackward(
        self: Any, handle: Any, transformer: Any, dgrid: int, dtheta: int
    ) -> None:
        thetas, places = self._grid(transformer, dtheta, dgrid)
        thetas[...] = ct.reference.affine_grid_backward(places.astype(np.float64))

    def cudnnSpatialTfSamplerForward(self: Any, handle: Any, transformer: Any, *arguments: Any) -> None:
        alpha, x, read, grid, beta, y, written = arguments
        image, target = self._memory(x, "tensor", read), self._memory(y, "tensor", written)
        assert self._get(transformer, "transformer")["shape"] == target.shape
        places = self._places(transformer, grid)
        wide = (array.astype(np.float64) for array in (image, places))
        values = ct.reference.grid_sample(*wide)
        values[np.broadcast_to(_is_lost(places)[:, None], values.shape)] = np.nan
        write(target, values, alpha, beta)

    def cudnnSpatialTfSamplerBackward(self: Any, handle: Any, transformer: Any, *arguments: Any) -> None:
        alpha, x, read, beta, dx, dx_at, alpha_grid, dy, dy_at, grid, beta_grid, dgrid = arguments
        image, gradient = self._memory(x, "tensor", read), self._memory(dy, "tensor", dy_at)
        target = self._memory(dx, "tensor", dx_at)
        places, slopes = self._places(transformer, grid), self._places(transformer, dgrid)
        one, added = factors(image.dtype, alpha_grid, beta_grid)
        assert one == 1
        assert added in (0, 1)
        wide = (array.astype(np.float64) for array in (gradient, image, places))
        step = ct.reference.grid_sample_backward(*wide)
        write(target, step.dx, alpha, beta)
        dgrid_now = np.where(_is_lost(places)[..., None], np.nan, step.dgrid)
        slopes[...] = dgrid_now + (slopes if added else 0)

    def _places(self: Any, transformer: Any, grid: int) -> np.ndarray:
        state = self._get(transformer, "transformer")
        n, _, height, width = state["shape"]
        strides = (height * width * 2, width * 2, 2, 1)
        return view(self.host, grid, (n, height, width, 2), strides, state["dtype"].numpy)
