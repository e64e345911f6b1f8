"""Spatial transformers."""

from __future__ import annotations

from ..array import DeviceArray
from ..ops.spatial import spatial
from ..shapes.specs import check_shape
from ..typing import ArrayLike
from .arguments import Sizes, integers, on_device
from .availability import run


def dnn_spatialtf(
    img: ArrayLike, theta: ArrayLike, scale_width: float = 1, scale_height: float = 1
) -> DeviceArray:
    """Return the images sampled at affine grids. See :func:`cudnn_ct.spatial_transformer`."""
    img, theta = on_device(img, "img"), on_device(theta, "theta")
    _check_sizes("img", img.shape, theta)
    return run(spatial.spatial_transformer, img, theta, scale_height=scale_height, scale_width=scale_width)


class GpuDnnTransformerGrid:
    """Sampling grids of affine transforms. See :func:`cudnn_ct.affine_grid`."""

    def __call__(self, theta: ArrayLike, out_dims: Sizes) -> DeviceArray:
        """Return the position in the image, from -1 to 1, for each element of the output."""
        theta, sizes = on_device(theta, "theta"), check_shape(integers(out_dims), "out_dims")
        _check_sizes("out_dims", sizes, theta)
        return run(spatial.affine_grid, theta, sizes)


class GpuDnnTransformerSampler:
    """Bilinear sampling of images at a grid. See :func:`cudnn_ct.grid_sample`."""

    def __call__(self, img: ArrayLike, grid: ArrayLike) -> DeviceArray:
        """Return the sampled images; positions outside of an image are 0."""
        return run(spatial.grid_sample, img, grid)


class GpuDnnTransformerGradI:
    """Gradients of the sampler. See :func:`cudnn_ct.grid_sample_backward`."""

    def __call__(self, img: ArrayLike, grid: ArrayLike, dy: ArrayLike) -> list[DeviceArray]:
        """Return a list of the gradients with respect to ``img`` and ``grid``."""
        return list(run(spatial.grid_sample_backward, dy, img, grid))


class GpuDnnTransformerGradT:
    """Gradient of the grid. See :func:`cudnn_ct.affine_grid_backward`."""

    def __call__(self, dgrid: ArrayLike) -> DeviceArray:
        """Return the gradient with respect to the transforms ``theta``."""
        return run(spatial.affine_grid_backward, dgrid)


def _check_sizes(name: str, sizes: tuple[int, ...], theta: DeviceArray) -> None:
    if 0 in sizes:
        raise RuntimeError(f"{name} has an axis of length 0: got {sizes}, expected lengths of at least 1")
    expected = (*sizes[:1], 2, 3)
    if theta.shape != expected:
        raise RuntimeError(f"incorrect dimensions for theta, expected {expected}, got {theta.shape}")
