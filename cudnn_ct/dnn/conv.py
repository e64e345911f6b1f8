"""Convolution and its gradients, as functions."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from .._config import config
from ..array import DeviceArray
from ..errors import warn_caller
from ..shapes.conv import conv_output_shape
from ..shapes.parse import as_choice
from ._conv import GpuDnnConvDesc, algorithm, compute
from .arrays import flipped, on_device, swapped

__all__ = [
    "dnn_conv",
    "dnn_conv3d",
    "dnn_gradinput",
    "dnn_gradinput3d",
    "dnn_gradweight",
    "dnn_gradweight3d",
]

HINTS = ("bprop weights", "bprop inputs", "forward", "forward!")


def dnn_conv(
    img: Any,
    kerns: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    dilation: Any = (1, 1),
    conv_mode: str = "conv",
    direction_hint: str | None = None,
    workmem: str | None = None,
    algo: Any = None,
    precision: str | None = None,
    num_groups: int = 1,
) -> Any:
    """Convolve images with filters.

    Parameters
    ----------
    img : device array, shape (N, C, H, W), float16 | bfloat16 | float32 | float64
    kerns : device array, shape (K, C / num_groups, h, w), dtype of img
    border_mode : "valid", "full", "half", int or tuple of int
        Zeros around the images.
    subsample : tuple of int
        Steps of the filters over the images.
    dilation : tuple of int
        Steps between the elements of a filter.
    conv_mode : {"conv", "cross"}
        ``"conv"`` flips the filters.
    direction_hint : {"bprop weights", "bprop inputs", "forward", "forward!"}, optional
        Which operation to compute it by, where neither strides nor groups nor ``algo`` stand against it.
        With ``border_mode="full"`` it is the gradient by the images, unless the hint is ``"forward!"``; with
        ``"valid"`` and ``"bprop weights"``, and without dilation, the gradient by the filters. A warning
        says so.
    workmem : str, optional
        Deprecated; use ``algo``.
    algo : str, optional
        Name of an algorithm or a policy, as in :func:`cudnn_ct.conv`. The default is the flag
        ``dnn.conv.algo_fwd``; those of the two gradients are ``dnn.conv.algo_bwd_data`` and ``_filter``.
    precision : {"as_input_f32", "as_input", "float16", "float32", "float64"}, optional
        What is computed in. The default is the flag ``dnn.conv.precision``.
    num_groups : int

    Returns
    -------
    DeviceArray, shape (N, K, *out)

    Raises
    ------
    TypeError
        An operand is not on the device, is not of floats, or of another dtype; or a gradient is computed
        instead, and would be in float16.
    ValueError
        Shapes, names or numbers do not fit.
    NotSupportedError, AllocationError
        As in :func:`cudnn_ct.conv`.

    Notes
    -----
    By :func:`cudnn_ct.conv`, :func:`cudnn_ct.conv_backward_data` or :func:`cudnn_ct.conv_backward_filter`,
    whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> img = ct.asarray([[[[1, 2, 4, 8]]]], "float32")
    >>> kerns = ct.asarray([[[[1, -1]]]], "float32")
    >>> ct.dnn.dnn_conv(img, kerns, conv_mode="cross").numpy()
    array([[[[-1., -2., -4.]]]], dtype=float32)
    """
    algo = algorithm(algo, workmem)
    desc = GpuDnnConvDesc(border_mode, subsample, dilation, conv_mode, _precision(precision), num_groups)
    return _convolve(img, kerns, desc, algo, direction_hint)


def dnn_conv3d(
    img: Any,
    kerns: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    dilation: Any = (1, 1, 1),
    conv_mode: str = "conv",
    direction_hint: str | None = None,
    algo: Any = None,
    precision: str | None = None,
    num_groups: int = 1,
    *,
    workmem: str | None = None,
) -> Any:
    """Convolve volumes with filters: :func:`dnn_conv` with three spatial axes.

    Parameters
    ----------
    img : device array, shape (N, C, D, H, W), float16 | bfloat16 | float32 | float64
    kerns : device array, shape (K, C / num_groups, d, h, w), dtype of img
    border_mode, subsample, dilation, conv_mode, direction_hint, algo, precision, num_groups, workmem
        As in :func:`dnn_conv`.

    Returns
    -------
    DeviceArray, shape (N, K, *out)

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`dnn_conv`; ValueError also for an algorithm that volumes cannot use.

    Notes
    -----
    By :func:`cudnn_ct.conv`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> img = ct.asarray([[[[[1, 2, 4, 8]]]]], "float32")
    >>> kerns = ct.asarray([[[[[1, -1]]]]], "float32")
    >>> ct.dnn.dnn_conv3d(img, kerns, conv_mode="cross").numpy().ravel()
    array([-1., -2., -4.], dtype=float32)
    """
    algo = algorithm(algo, workmem)
    desc = GpuDnnConvDesc(border_mode, subsample, dilation, conv_mode, _precision(precision), num_groups)
    return _convolve(img, kerns, desc, algo, direction_hint)


def dnn_gradweight(
    img: Any,
    topgrad: Any,
    kerns_shp: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    dilation: Any = (1, 1),
    conv_mode: str = "conv",
    precision: str | None = None,
    algo: Any = None,
    num_groups: int = 1,
) -> Any:
    """Differentiate :func:`dnn_conv` by its filters.

    Parameters
    ----------
    img : device array, shape (N, C, H, W), float16 | bfloat16 | float32 | float64
    topgrad : device array, shape (N, K, *out), dtype of img
        The gradient with regard to the output.
    kerns_shp : tuple of int
        (K, C / num_groups, h, w).
    border_mode, subsample, dilation, conv_mode, num_groups
        Those of the convolution.
    precision, algo
        As in :func:`dnn_conv`; the flag is ``dnn.conv.algo_bwd_filter``.

    Returns
    -------
    DeviceArray, shape ``kerns_shp``

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`dnn_conv`; TypeError also for a gradient computed in float16.

    Notes
    -----
    By :func:`cudnn_ct.conv_backward_filter`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> img, topgrad = ct.asarray([[[[1, 2, 4, 8]]]], "float32"), ct.asarray([[[[1, 0, 1]]]], "float32")
    >>> ct.dnn.dnn_gradweight(img, topgrad, (1, 1, 1, 2), conv_mode="cross").numpy()
    array([[[[ 5., 10.]]]], dtype=float32)
    """
    desc = GpuDnnConvDesc(border_mode, subsample, dilation, conv_mode, _precision(precision), num_groups)
    return compute("backward_filter", img, topgrad, kerns_shp, desc, algo)


def dnn_gradweight3d(
    img: Any,
    topgrad: Any,
    kerns_shp: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    dilation: Any = (1, 1, 1),
    conv_mode: str = "conv",
    precision: str | None = None,
    algo: Any = None,
    num_groups: int = 1,
) -> Any:
    """Differentiate :func:`dnn_conv3d` by its filters: :func:`dnn_gradweight` with three spatial axes.

    Parameters
    ----------
    img, topgrad, kerns_shp
        As in :func:`dnn_gradweight`, with one more axis.
    border_mode, subsample, dilation, conv_mode, precision, algo, num_groups
        As there.

    Returns
    -------
    DeviceArray, shape ``kerns_shp``

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`dnn_gradweight`; ValueError also for an algorithm that volumes cannot use.

    Notes
    -----
    By :func:`cudnn_ct.conv_backward_filter`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> img, topgrad = ct.asarray([[[[[1, 2, 4, 8]]]]], "float32"), ct.asarray([[[[[1, 0, 1]]]]], "float32")
    >>> ct.dnn.dnn_gradweight3d(img, topgrad, (1, 1, 1, 1, 2), conv_mode="cross").numpy().ravel()
    array([ 5., 10.], dtype=float32)
    """
    return dnn_gradweight(
        img, topgrad, kerns_shp, border_mode, subsample, dilation, conv_mode, precision, algo, num_groups
    )


def dnn_gradinput(
    kerns: Any,
    topgrad: Any,
    img_shp: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    dilation: Any = (1, 1),
    conv_mode: str = "conv",
    precision: str | None = None,
    algo: Any = None,
    num_groups: int = 1,
) -> Any:
    """Differentiate :func:`dnn_conv` by its images.

    Parameters
    ----------
    kerns : device array, shape (K, C / num_groups, h, w), float16 | bfloat16 | float32 | float64
    topgrad : device array, shape (N, K, *out), dtype of kerns
        The gradient with regard to the output.
    img_shp : tuple of int
        (N, C, H, W).
    border_mode, subsample, dilation, conv_mode, num_groups
        Those of the convolution.
    precision, algo
        As in :func:`dnn_conv`; the flag is ``dnn.conv.algo_bwd_data``.

    Returns
    -------
    DeviceArray, shape ``img_shp``

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`dnn_conv`; TypeError also for a gradient computed in float16.

    Notes
    -----
    By :func:`cudnn_ct.conv_backward_data`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> kerns, topgrad = ct.asarray([[[[1, -1]]]], "float32"), ct.asarray([[[[1, 2, 4]]]], "float32")
    >>> ct.dnn.dnn_gradinput(kerns, topgrad, (1, 1, 1, 4), conv_mode="cross").numpy()
    array([[[[ 1.,  1.,  2., -4.]]]], dtype=float32)
    """
    desc = GpuDnnConvDesc(border_mode, subsample, dilation, conv_mode, _precision(precision), num_groups)
    return compute("backward_data", kerns, topgrad, img_shp, desc, algo)


def dnn_gradinput3d(
    kerns: Any,
    topgrad: Any,
    img_shp: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    dilation: Any = (1, 1, 1),
    conv_mode: str = "conv",
    precision: str | None = None,
    algo: Any = None,
    num_groups: int = 1,
) -> Any:
    """Differentiate :func:`dnn_conv3d` by its images: :func:`dnn_gradinput` with three spatial axes.

    Parameters
    ----------
    kerns, topgrad, img_shp
        As in :func:`dnn_gradinput`, with one more axis.
    border_mode, subsample, dilation, conv_mode, precision, algo, num_groups
        As there.

    Returns
    -------
    DeviceArray, shape ``img_shp``

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`dnn_gradinput`; ValueError also for an algorithm that volumes cannot use.

    Notes
    -----
    By :func:`cudnn_ct.conv_backward_data`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> kerns, topgrad = ct.asarray([[[[[1, -1]]]]], "float32"), ct.asarray([[[[[1, 2, 4]]]]], "float32")
    >>> ct.dnn.dnn_gradinput3d(kerns, topgrad, (1, 1, 1, 1, 4), conv_mode="cross").numpy().ravel()
    array([ 1.,  1.,  2., -4.], dtype=float32)
    """
    return dnn_gradinput(
        kerns, topgrad, img_shp, border_mode, subsample, dilation, conv_mode, precision, algo, num_groups
    )


# --- by which operation ---


def _convolve(img: Any, kerns: Any, desc: GpuDnnConvDesc, algo: Any, hint: str | None) -> Any:
    """Convolve, by a gradient where Theano does that; an algorithm that was named is kept to."""
    if hint is not None:
        hint = as_choice(hint, HINTS, "direction_hint")
    border = desc.border_mode if isinstance(desc.border_mode, str) else None
    plain = desc.num_groups == 1 and _all_ones(desc.subsample) and algo is None
    if plain and border == "valid" and _all_ones(desc.dilation) and hint == "bprop weights":
        return _by_filter_gradient(img, kerns, desc)
    if plain and border == "full" and hint != "forward!":
        return _by_data_gradient(img, kerns, desc)
    return compute("forward", img, kerns, None, desc, algo)


def _by_filter_gradient(img: Any, kerns: Any, desc: GpuDnnConvDesc) -> DeviceArray:
    img, kerns = on_device(img, "img"), on_device(kerns, "kerns")
    y_shape = conv_output_shape(img.shape, kerns.shape)
    _warn_of_reroute("direction_hint='bprop weights'", "filters")
    if desc.conv_mode == "conv":
        kerns = flipped(kerns)
    valid = GpuDnnConvDesc("valid", desc.subsample, desc.dilation, "cross", desc.precision)
    shape = (y_shape[1], y_shape[0], *y_shape[2:])
    result: DeviceArray = compute("backward_filter", swapped(img), swapped(kerns), shape, valid, None)
    return swapped(result)


def _by_data_gradient(img: Any, kerns: Any, desc: GpuDnnConvDesc) -> Any:
    img, kerns = on_device(img, "img"), on_device(kerns, "kerns")
    shape = conv_output_shape(img.shape, kerns.shape, padding="full", dilation=desc.dilation)
    _warn_of_reroute("border_mode='full'", "images")
    mode = "cross" if desc.conv_mode == "conv" else "conv"
    valid = GpuDnnConvDesc("valid", desc.subsample, desc.dilation, mode, desc.precision)
    return compute("backward_data", swapped(kerns), img, shape, valid, None)


def _warn_of_reroute(why: str, what: str) -> None:
    text = (
        f"{why}: the convolution is computed as a gradient by its {what}, by the algorithm of that; "
        "direction_hint='forward!', or an algo that is named, computes it forward"
    )
    warn_caller(text)


def _precision(precision: str | None) -> str:
    named: str = config.dnn.conv.precision if precision is None else precision
    return named


def _all_ones(numbers: Any) -> bool:
    given = numbers if isinstance(numbers, list | tuple) else (numbers,)
    return all(isinstance(number, Integral) and number == 1 for number in given)
