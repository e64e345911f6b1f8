"""Convolution and its gradients as functions."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral
from types import FunctionType
from typing import Any, TypeVar, cast

from .._config import config
from ..array import DeviceArray
from ..errors import warn_caller
from ..shapes.conv import conv_output_shape
from ..shapes.parse import as_choice
from ..typing import Algo, ArrayLike, Precision
from .checks import Border, DirectionHint, Sizes, TheanoConvMode, on_device
from .conv_ops import GpuDnnConvDesc, algorithm, compute

HINTS: tuple[DirectionHint, ...] = ("bprop weights", "bprop inputs", "forward", "forward!")

F = TypeVar("F")


def _of_volumes(function: F) -> F:
    """Return a copy of a function whose default strides and dilations have three axes."""
    given = cast(FunctionType, function)
    defaults = tuple((1, 1, 1) if value == (1, 1) else value for value in given.__defaults__ or ())
    copy = FunctionType(given.__code__, given.__globals__, f"{given.__name__}3d", defaults)
    copy.__qualname__ = copy.__name__
    copy.__doc__, copy.__annotations__ = given.__doc__, given.__annotations__
    return cast(F, copy)


def dnn_conv(
    img: ArrayLike,
    kerns: ArrayLike,
    border_mode: Border = "valid",
    subsample: Sizes = (1, 1),
    dilation: Sizes = (1, 1),
    conv_mode: TheanoConvMode = "conv",
    direction_hint: DirectionHint | None = None,
    workmem: str | None = None,
    algo: Algo | None = None,
    precision: Precision | None = None,
    num_groups: int = 1,
) -> DeviceArray:
    """Return ``conv(img, kerns)``, with flipped filters by default. See :func:`cudnn_ct.conv`."""
    algo = algorithm(algo, workmem)
    desc = GpuDnnConvDesc(border_mode, subsample, dilation, conv_mode, _precision(precision), num_groups)
    return _convolve(img, kerns, desc, algo, direction_hint)


def dnn_conv3d(
    img: ArrayLike,
    kerns: ArrayLike,
    border_mode: Border = "valid",
    subsample: Sizes = (1, 1, 1),
    dilation: Sizes = (1, 1, 1),
    conv_mode: TheanoConvMode = "conv",
    direction_hint: DirectionHint | None = None,
    algo: Algo | None = None,
    precision: Precision | None = None,
    num_groups: int = 1,
    *,
    workmem: str | None = None,
) -> DeviceArray:
    """Return ``conv(img, kerns)`` of volumes. See :func:`cudnn_ct.conv`."""
    algo = algorithm(algo, workmem)
    desc = GpuDnnConvDesc(border_mode, subsample, dilation, conv_mode, _precision(precision), num_groups)
    return _convolve(img, kerns, desc, algo, direction_hint)


def dnn_gradweight(
    img: ArrayLike,
    topgrad: ArrayLike,
    kerns_shp: Sizes,
    border_mode: Border = "valid",
    subsample: Sizes = (1, 1),
    dilation: Sizes = (1, 1),
    conv_mode: TheanoConvMode = "conv",
    precision: Precision | None = None,
    algo: Algo | None = None,
    num_groups: int = 1,
) -> DeviceArray:
    """Return the gradient with respect to ``kerns``. See :func:`cudnn_ct.conv_backward_filter`."""
    desc = GpuDnnConvDesc(border_mode, subsample, dilation, conv_mode, _precision(precision), num_groups)
    return compute("backward_filter", topgrad, img, kerns_shp, desc, algo)


dnn_gradweight3d = _of_volumes(dnn_gradweight)


def dnn_gradinput(
    kerns: ArrayLike,
    topgrad: ArrayLike,
    img_shp: Sizes,
    border_mode: Border = "valid",
    subsample: Sizes = (1, 1),
    dilation: Sizes = (1, 1),
    conv_mode: TheanoConvMode = "conv",
    precision: Precision | None = None,
    algo: Algo | None = None,
    num_groups: int = 1,
) -> DeviceArray:
    """Return the gradient with respect to ``img``. See :func:`cudnn_ct.conv_backward_data`."""
    desc = GpuDnnConvDesc(border_mode, subsample, dilation, conv_mode, _precision(precision), num_groups)
    return compute("backward_data", topgrad, kerns, img_shp, desc, algo)


dnn_gradinput3d = _of_volumes(dnn_gradinput)


def _precision(given: Precision | None) -> Precision:
    chosen: Precision = config.dnn.conv.precision if given is None else given
    return chosen


def _convolve(
    img: ArrayLike, kerns: ArrayLike, desc: GpuDnnConvDesc, algo: Algo | None, hint: DirectionHint | None
) -> DeviceArray:
    """Convolve, through a gradient if Theano does so and the caller names no algorithm.

    In mode "conv", the gradient with respect to filters would need flipped copies of the filters, which
    cuDNN cannot make: it is used in mode "cross" only.
    """
    if hint is not None:
        hint = as_choice(hint, HINTS, "direction_hint")
    border = desc.border_mode if isinstance(desc.border_mode, str) else None
    plain = desc.num_groups == 1 and _all_ones(desc.subsample) and algo is None
    undilated = plain and border == "valid" and _all_ones(desc.dilation)
    if undilated and hint == "bprop weights" and desc.conv_mode == "cross":
        img, kerns = on_device(img, "img"), on_device(kerns, "kerns")
        batch, filters, *spatial = conv_output_shape(img.shape, kerns.shape)
        _warn_of_reroute("direction_hint='bprop weights'", "filters")
        shape = (filters, batch, *spatial)
        return _swapped(compute("backward_filter", _swapped(kerns), _swapped(img), shape, desc, None))
    if plain and border == "full" and hint != "forward!":
        img, kerns = on_device(img, "img"), on_device(kerns, "kerns")
        dilation: Any = desc.dilation
        shape = conv_output_shape(img.shape, kerns.shape, padding="full", dilation=dilation)
        _warn_of_reroute("border_mode='full'", "images")
        mode: TheanoConvMode = "cross" if desc.conv_mode == "conv" else "conv"
        valid = replace(desc, border_mode="valid", conv_mode=mode)
        return compute("backward_data", img, _swapped(kerns), shape, valid, None)
    return compute("forward", img, kerns, None, desc, algo)


def _warn_of_reroute(why: str, what: str) -> None:
    warn_caller(
        f"{why}: the convolution is computed as a gradient with respect to {what}, with the algorithm of "
        "that gradient; pass direction_hint='forward!' or an algo to use the forward operation"
    )


def _swapped(array: DeviceArray) -> DeviceArray:
    """Return a view with the first two axes exchanged."""
    return array.transpose(1, 0, *range(2, array.ndim))


def _all_ones(numbers: Any) -> bool:
    given = numbers if isinstance(numbers, list | tuple) else (numbers,)
    return all(isinstance(number, Integral) and number == 1 for number in given)
