"""Convolution and its gradients as functions."""

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
    """Return ``conv(img, kerns)``, with flipped filters by default. See :func:`cudnn_ct.conv`."""
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
    """Return ``conv(img, kerns)`` of volumes. See :func:`cudnn_ct.conv`."""
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
    """Return the gradient with respect to ``kerns``. See :func:`cudnn_ct.conv_backward_filter`."""
    desc = GpuDnnConvDesc(border_mode, subsample, dilation, conv_mode, _precision(precision), num_groups)
    return compute("backward_filter", topgrad, img, kerns_shp, desc, algo)


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
    """Return the gradient with respect to ``kerns`` of volumes. See :func:`cudnn_ct.conv_backward_filter`."""
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
    """Return the gradient with respect to ``img``. See :func:`cudnn_ct.conv_backward_data`."""
    desc = GpuDnnConvDesc(border_mode, subsample, dilation, conv_mode, _precision(precision), num_groups)
    return compute("backward_data", topgrad, kerns, img_shp, desc, algo)


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
    """Return the gradient with respect to ``img`` of volumes. See :func:`cudnn_ct.conv_backward_data`."""
    return dnn_gradinput(
        kerns, topgrad, img_shp, border_mode, subsample, dilation, conv_mode, precision, algo, num_groups
    )


# --- choice of the operation ---


def _convolve(img: Any, kerns: Any, desc: GpuDnnConvDesc, algo: Any, hint: str | None) -> Any:
    """Convolve, through a gradient if Theano does so and the caller names no algorithm."""
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
    result: DeviceArray = compute("backward_filter", swapped(kerns), swapped(img), shape, valid, None)
    return swapped(result)


def _by_data_gradient(img: Any, kerns: Any, desc: GpuDnnConvDesc) -> Any:
    img, kerns = on_device(img, "img"), on_device(kerns, "kerns")
    shape = conv_output_shape(img.shape, kerns.shape, padding="full", dilation=desc.dilation)
    _warn_of_reroute("border_mode='full'", "images")
    mode = "cross" if desc.conv_mode == "conv" else "conv"
    valid = GpuDnnConvDesc("valid", desc.subsample, desc.dilation, mode, desc.precision)
    return compute("backward_data", img, swapped(kerns), shape, valid, None)


def _warn_of_reroute(why: str, what: str) -> None:
    text = (
        f"{why}: the convolution is computed as a gradient with respect to {what}, with the algorithm of "
        "that gradient; pass direction_hint='forward!' or an algo to use the forward operation"
    )
    warn_caller(text)


def _precision(precision: str | None) -> str:
    named: str = config.dnn.conv.precision if precision is None else precision
    return named


def _all_ones(numbers: Any) -> bool:
    given = numbers if isinstance(numbers, list | tuple) else (numbers,)
    return all(isinstance(number, Integral) and number == 1 for number in given)
