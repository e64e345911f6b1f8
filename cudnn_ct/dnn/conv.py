"""Convolution and its gradients as functions."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral
from typing import Any

from .._config import config
from ..array import DeviceArray
from ..errors import warn_caller
from ..shapes.conv import conv_output_shape
from ..shapes.parse import as_choice
from ..typing import Algo, ArrayLike, Precision
from ._conv import GpuDnnConvDesc, algorithm, compute
from .arguments import Border, Sizes
from .arrays import flipped, on_device, swapped

HINTS = ("bprop weights", "bprop inputs", "forward", "forward!")


def dnn_conv(
    img: ArrayLike,
    kerns: ArrayLike,
    border_mode: Border = "valid",
    subsample: Sizes = (1, 1),
    dilation: Sizes = (1, 1),
    conv_mode: str = "conv",
    direction_hint: str | None = None,
    workmem: str | None = None,
    algo: Algo | None = None,
    precision: Precision | None = None,
    num_groups: int = 1,
) -> DeviceArray:
    """Return ``conv(img, kerns)``, with flipped filters by default. See :func:`cudnn_ct.conv`."""
    algo = algorithm(algo, workmem)
    desc = _describe(border_mode, subsample, dilation, conv_mode, precision, num_groups)
    return _convolve(img, kerns, desc, algo, direction_hint)


def dnn_conv3d(
    img: ArrayLike,
    kerns: ArrayLike,
    border_mode: Border = "valid",
    subsample: Sizes = (1, 1, 1),
    dilation: Sizes = (1, 1, 1),
    conv_mode: str = "conv",
    direction_hint: str | None = None,
    algo: Algo | None = None,
    precision: Precision | None = None,
    num_groups: int = 1,
    *,
    workmem: str | None = None,
) -> DeviceArray:
    """Return ``conv(img, kerns)`` of volumes. See :func:`cudnn_ct.conv`."""
    algo = algorithm(algo, workmem)
    desc = _describe(border_mode, subsample, dilation, conv_mode, precision, num_groups)
    return _convolve(img, kerns, desc, algo, direction_hint)


def dnn_gradweight(
    img: ArrayLike,
    topgrad: ArrayLike,
    kerns_shp: Sizes,
    border_mode: Border = "valid",
    subsample: Sizes = (1, 1),
    dilation: Sizes = (1, 1),
    conv_mode: str = "conv",
    precision: Precision | None = None,
    algo: Algo | None = None,
    num_groups: int = 1,
) -> DeviceArray:
    """Return the gradient with respect to ``kerns``. See :func:`cudnn_ct.conv_backward_filter`."""
    desc = _describe(border_mode, subsample, dilation, conv_mode, precision, num_groups)
    return compute("backward_filter", topgrad, img, kerns_shp, desc, algo)


def dnn_gradweight3d(
    img: ArrayLike,
    topgrad: ArrayLike,
    kerns_shp: Sizes,
    border_mode: Border = "valid",
    subsample: Sizes = (1, 1, 1),
    dilation: Sizes = (1, 1, 1),
    conv_mode: str = "conv",
    precision: Precision | None = None,
    algo: Algo | None = None,
    num_groups: int = 1,
) -> DeviceArray:
    """Return the gradient with respect to ``kerns`` of volumes. See :func:`cudnn_ct.conv_backward_filter`."""
    desc = _describe(border_mode, subsample, dilation, conv_mode, precision, num_groups)
    return compute("backward_filter", topgrad, img, kerns_shp, desc, algo)


def dnn_gradinput(
    kerns: ArrayLike,
    topgrad: ArrayLike,
    img_shp: Sizes,
    border_mode: Border = "valid",
    subsample: Sizes = (1, 1),
    dilation: Sizes = (1, 1),
    conv_mode: str = "conv",
    precision: Precision | None = None,
    algo: Algo | None = None,
    num_groups: int = 1,
) -> DeviceArray:
    """Return the gradient with respect to ``img``. See :func:`cudnn_ct.conv_backward_data`."""
    desc = _describe(border_mode, subsample, dilation, conv_mode, precision, num_groups)
    return compute("backward_data", topgrad, kerns, img_shp, desc, algo)


def dnn_gradinput3d(
    kerns: ArrayLike,
    topgrad: ArrayLike,
    img_shp: Sizes,
    border_mode: Border = "valid",
    subsample: Sizes = (1, 1, 1),
    dilation: Sizes = (1, 1, 1),
    conv_mode: str = "conv",
    precision: Precision | None = None,
    algo: Algo | None = None,
    num_groups: int = 1,
) -> DeviceArray:
    """Return the gradient with respect to ``img`` of volumes. See :func:`cudnn_ct.conv_backward_data`."""
    desc = _describe(border_mode, subsample, dilation, conv_mode, precision, num_groups)
    return compute("backward_data", topgrad, kerns, img_shp, desc, algo)


def _describe(
    border: Border, subsample: Sizes, dilation: Sizes, mode: str, precision: Precision | None, groups: int
) -> GpuDnnConvDesc:
    precision = config.dnn.conv.precision if precision is None else precision
    return GpuDnnConvDesc(border, subsample, dilation, mode, precision, groups)


def _convolve(
    img: ArrayLike, kerns: ArrayLike, desc: GpuDnnConvDesc, algo: Algo | None, hint: str | None
) -> DeviceArray:
    """Convolve, through a gradient if Theano does so and the caller names no algorithm."""
    if hint is not None:
        hint = as_choice(hint, HINTS, "direction_hint")
    border = desc.border_mode if isinstance(desc.border_mode, str) else None
    plain = desc.num_groups == 1 and _all_ones(desc.subsample) and algo is None
    if plain and border == "valid" and _all_ones(desc.dilation) and hint == "bprop weights":
        return _by_filter_gradient(on_device(img, "img"), on_device(kerns, "kerns"), desc)
    if plain and border == "full" and hint != "forward!":
        return _by_data_gradient(on_device(img, "img"), on_device(kerns, "kerns"), desc)
    return compute("forward", img, kerns, None, desc, algo)


def _by_filter_gradient(img: DeviceArray, kerns: DeviceArray, desc: GpuDnnConvDesc) -> DeviceArray:
    batch, filters, *spatial = conv_output_shape(img.shape, kerns.shape)
    _warn_of_reroute("direction_hint='bprop weights'", "filters")
    if desc.conv_mode == "conv":
        kerns = flipped(kerns)
    valid = replace(desc, border_mode="valid", conv_mode="cross")
    shape = (filters, batch, *spatial)
    return swapped(compute("backward_filter", swapped(kerns), swapped(img), shape, valid, None))


def _by_data_gradient(img: DeviceArray, kerns: DeviceArray, desc: GpuDnnConvDesc) -> DeviceArray:
    dilation: Any = desc.dilation
    shape = conv_output_shape(img.shape, kerns.shape, padding="full", dilation=dilation)
    _warn_of_reroute("border_mode='full'", "images")
    mode = "cross" if desc.conv_mode == "conv" else "conv"
    valid = replace(desc, border_mode="valid", conv_mode=mode)
    return compute("backward_data", img, swapped(kerns), shape, valid, None)


def _warn_of_reroute(why: str, what: str) -> None:
    warn_caller(
        f"{why}: the convolution is computed as a gradient with respect to {what}, with the algorithm of "
        "that gradient; pass direction_hint='forward!' or an algo to use the forward operation"
    )


def _all_ones(numbers: Any) -> bool:
    given = numbers if isinstance(numbers, list | tuple) else (numbers,)
    return all(isinstance(number, Integral) and number == 1 for number in given)
