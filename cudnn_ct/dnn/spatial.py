"""Spatial transformers."""

from __future__ import annotations

from typing import Any

from ..array import DeviceArray
from ..shapes.specs import check_shape
from .arrays import on_device
from .availability import ops

__all__ = [
    "GpuDnnTransformerGradI",
    "GpuDnnTransformerGradT",
    "GpuDnnTransformerGrid",
    "GpuDnnTransformerSampler",
    "dnn_spatialtf",
]


def dnn_spatialtf(img: Any, theta: Any, scale_width: float = 1, scale_height: float = 1) -> Any:
    """Return the images sampled at affine grids. See :func:`cudnn_ct.spatial_transformer`."""
    img, theta = on_device(img, "img"), on_device(theta, "theta")
    _check_sizes("img", img.shape)
    _check_theta(theta, img.shape[:1])
    return ops().spatial_transformer(img, theta, scale_height=scale_height, scale_width=scale_width)


class GpuDnnTransformerGrid:
    """Sampling grids of affine transforms. See :func:`cudnn_ct.affine_grid`."""

    def __call__(self, theta: Any, out_dims: Any) -> Any:
        """Return the position in the image, from -1 to 1, for each element of the output."""
        theta, sizes = on_device(theta, "theta"), check_shape(out_dims, "out_dims")
        _check_sizes("out_dims", sizes)
        _check_theta(theta, sizes[:1])
        return ops().affine_grid(theta, sizes)


class GpuDnnTransformerSampler:
    """Bilinear sampling of images at a grid. See :func:`cudnn_ct.grid_sample`."""

    def __call__(self, img: Any, grid: Any) -> Any:
        """Return the sampled images; positions outside of an image are 0."""
        return ops().grid_sample(img, grid)


class GpuDnnTransformerGradI:
    """Gradients of the sampler. See :func:`cudnn_ct.grid_sample_backward`."""

    def __call__(self, img: Any, grid: Any, dy: Any) -> list[Any]:
        """Return a list of the gradients with respect to ``img`` and ``grid``."""
        return list(ops().grid_sample_backward(dy, img, grid))


class GpuDnnTransformerGradT:
    """Gradient of the grid. See :func:`cudnn_ct.affine_grid_backward`."""

    def __call__(self, dgrid: Any) -> Any:
        """Return the gradient with respect to the transforms ``theta``."""
        return ops().affine_grid_backward(dgrid)


def _check_theta(theta: DeviceArray, batch: tuple[int, ...]) -> None:
    if theta.shape != (*batch, 2, 3):
        raise RuntimeError(f"incorrect dimensions for theta, expected {(*batch, 2, 3)}, got {theta.shape}")


def _check_sizes(name: str, sizes: tuple[int, ...]) -> None:
    if 0 in sizes:
        raise RuntimeError(f"{name} has an axis of length 0: got {sizes}, expected lengths of at least 1")
