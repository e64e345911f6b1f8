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
    """Sample images by affine transforms.

    Parameters
    ----------
    img : device array, shape (N, C, H, W), float16 | bfloat16 | float32 | float64
    theta : device array, shape (N, 2, 3), dtype of img
    scale_width, scale_height : float
        Of the result against the images.

    Returns
    -------
    DeviceArray, shape (N, C, ceil(H * scale_height), ceil(W * scale_width))

    Raises
    ------
    RuntimeError
        ``theta`` is of another shape, or an axis of the images has length 0.
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`cudnn_ct.spatial_transformer`.

    Notes
    -----
    By :func:`cudnn_ct.spatial_transformer`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> img = ct.asarray([[[[1, 3, 5]]]], "float32")
    >>> mirror = ct.asarray([[[-1, 0, 0], [0, 1, 0]]], "float32")
    >>> ct.dnn.dnn_spatialtf(img, mirror).numpy()
    array([[[[5., 3., 1.]]]], dtype=float32)
    """
    img, theta = on_device(img, "img"), on_device(theta, "theta")
    _check_sizes("img", img.shape)
    _check_theta(theta, img.shape[:1])
    return ops().spatial_transformer(img, theta, scale_height=scale_height, scale_width=scale_width)


class GpuDnnTransformerGrid:
    """The grid of affine transforms.

    Notes
    -----
    By :func:`cudnn_ct.affine_grid`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> theta = ct.asarray([[[1, 0, 0], [0, -1, 0]]], "float32")
    >>> ct.dnn.GpuDnnTransformerGrid()(theta, (1, 1, 2, 2)).numpy()[0, 0]
    array([[-1.,  1.], [ 1.,  1.]], dtype=float32)
    """

    def __call__(self, theta: Any, out_dims: Any) -> Any:
        """Compute, for each element of the result, the place in the image to take it from.

        Parameters
        ----------
        theta : device array, shape (N, 2, 3), float16 | bfloat16 | float32 | float64
        out_dims : tuple of int
            (N, C, H, W) of the result.

        Returns
        -------
        DeviceArray, shape (N, H, W, 2)
            First along W, then along H, from -1 to 1.

        Raises
        ------
        RuntimeError
            ``theta`` is of another shape, or one of ``out_dims`` is 0.
        TypeError, ValueError, NotSupportedError, AllocationError
            As in :func:`cudnn_ct.affine_grid`.
        """
        theta, sizes = on_device(theta, "theta"), check_shape(out_dims, "out_dims")
        _check_sizes("out_dims", sizes)
        _check_theta(theta, sizes[:1])
        return ops().affine_grid(theta, sizes)


class GpuDnnTransformerSampler:
    """Images sampled by a grid.

    Notes
    -----
    By :func:`cudnn_ct.grid_sample`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> img = ct.asarray([[[[1, 3, 5]]]], "float32")
    >>> grid = ct.asarray([[[[-1, -1], [0.5, -1], [1, -1]]]], "float32")
    >>> ct.dnn.GpuDnnTransformerSampler()(img, grid).numpy()
    array([[[[1., 4., 5.]]]], dtype=float32)
    """

    def __call__(self, img: Any, grid: Any) -> Any:
        """Sample: bilinear between four elements, 0 outside.

        Parameters
        ----------
        img : device array, shape (N, C, H, W), float16 | bfloat16 | float32 | float64
        grid : device array, shape (N, H_out, W_out, 2), dtype of img

        Returns
        -------
        DeviceArray, shape (N, C, H_out, W_out)

        Raises
        ------
        TypeError, ValueError, NotSupportedError, AllocationError
            As in :func:`cudnn_ct.grid_sample`.
        """
        return ops().grid_sample(img, grid)


class GpuDnnTransformerGradI:
    """The gradients of sampling.

    Notes
    -----
    By :func:`cudnn_ct.grid_sample_backward`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> img = ct.asarray([[[[1, 3, 5]]]], "float32")
    >>> grid, dy = ct.asarray([[[[0.5, -1]]]], "float32"), ct.asarray([[[[8]]]], "float32")
    >>> dimg, dgrid = ct.dnn.GpuDnnTransformerGradI()(img, grid, dy)
    >>> dimg.numpy()
    array([[[[0., 4., 4.]]]], dtype=float32)
    """

    def __call__(self, img: Any, grid: Any, dy: Any) -> list[Any]:
        """Compute the gradients with regard to the images and to the grid.

        Parameters
        ----------
        img, grid : device arrays
            As in :class:`GpuDnnTransformerSampler`.
        dy : device array, shape (N, C, H_out, W_out), dtype of img

        Returns
        -------
        list of DeviceArray
            As img, and as grid.

        Raises
        ------
        TypeError, ValueError, NotSupportedError, AllocationError
            As in :func:`cudnn_ct.grid_sample_backward`.
        """
        return list(ops().grid_sample_backward(img, grid, dy))


class GpuDnnTransformerGradT:
    """The gradient of a grid.

    Notes
    -----
    By :func:`cudnn_ct.affine_grid_backward`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> dgrid = ct.asarray([[[[1, 10]], [[2, 20]]]], "float32")
    >>> ct.dnn.GpuDnnTransformerGradT()(dgrid).numpy()
    array([[[ -3.,   1.,   3.], [-30.,  10.,  30.]]], dtype=float32)
    """

    def __call__(self, dgrid: Any) -> Any:
        """Compute the gradient with regard to the transforms.

        Parameters
        ----------
        dgrid : device array, shape (N, H, W, 2), float16 | bfloat16 | float32 | float64

        Returns
        -------
        DeviceArray, shape (N, 2, 3)

        Raises
        ------
        TypeError, ValueError, NotSupportedError, AllocationError
            As in :func:`cudnn_ct.affine_grid_backward`.
        """
        return ops().affine_grid_backward(dgrid)


def _check_theta(theta: DeviceArray, batch: tuple[int, ...]) -> None:
    if theta.shape != (*batch, 2, 3):
        raise RuntimeError(f"incorrect dimensions for theta, expected {(*batch, 2, 3)}, got {theta.shape}")


def _check_sizes(name: str, sizes: tuple[int, ...]) -> None:
    if 0 in sizes:
        raise RuntimeError(f"{name} has an axis of length 0: {sizes}")
