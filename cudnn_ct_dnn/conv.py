"""Convolution and its gradients: operations that are created once and called with arrays, and functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field, replace
from numbers import Integral
from types import FunctionType
from typing import Any, ClassVar, NamedTuple, TypeVar, cast, get_args

from cudnn_ct._config import config
from cudnn_ct.array import DeviceArray
from cudnn_ct.errors import warn_caller
from cudnn_ct.ops.conv.conv import conv, conv_backward_data, conv_backward_filter
from cudnn_ct.shapes.checks import as_choice
from cudnn_ct.shapes.conv import conv_output_shape
from cudnn_ct.shapes.specs import check_shape
from cudnn_ct.typing import Algo, ArrayLike, ConvMode, Precision

from .checks import (
    Border,
    Checked,
    DirectionHint,
    Sizes,
    TheanoConvMode,
    algorithm,
    check_arguments,
    copied,
    integers,
    on_device,
    run,
)

# Theano's names of the modes, and ours.
MODES: dict[TheanoConvMode, ConvMode] = {"conv": "convolution", "cross": "cross_correlation"}


class Direction(NamedTuple):
    """One direction: the operation, Theano's names of its operands in our order, and the algorithm's flag."""

    operation: Callable[..., DeviceArray]
    names: tuple[str, str]
    flag: str


DIRECTIONS = {
    "forward": Direction(conv, ("img", "kerns"), "algo_fwd"),
    "backward_filter": Direction(conv_backward_filter, ("topgrad", "img"), "algo_bwd_filter"),
    "backward_data": Direction(conv_backward_data, ("topgrad", "kerns"), "algo_bwd_data"),
}


@dataclass(eq=False)
class GpuDnnConvDesc(Checked):
    """Geometry, mode, precision and groups of a convolution. See :func:`cudnn_ct.conv`."""

    border_mode: Border
    subsample: Sizes = (1, 1)
    dilation: Sizes = (1, 1)
    conv_mode: TheanoConvMode = "conv"
    precision: Precision = "float32"
    num_groups: int = 1

    def __call__(self, kern_shape: Sizes | None = None) -> GpuDnnConvDesc:  # noqa: ARG002 - as in Theano
        """Return the descriptor itself: the shape of the filters is not needed."""
        return self


class _Operation:
    """The algorithm, ``inplace`` and the number of groups of an operation."""

    direction: ClassVar[str]
    algo: Algo | None
    inplace: bool
    num_groups: int

    def __post_init__(self, workmem: str | None) -> None:
        self.algo = algorithm(self.algo, workmem)
        check_arguments(self)
        self.algo = default_algorithm(self.direction) if self.algo is None else self.algo

    def _run(
        self,
        first: ArrayLike,
        second: ArrayLike,
        output: ArrayLike | Sizes | None,
        desc: GpuDnnConvDesc,
        alpha: float | None,
        beta: float | None,
    ) -> DeviceArray:
        """Return ``alpha * result + beta * output``; ``output`` may be a shape, or None forward."""
        if not isinstance(desc, GpuDnnConvDesc):
            raise TypeError(f"desc is not a GpuDnnConvDesc: got {type(desc).__name__}")
        alpha, beta = 1 if alpha is None else alpha, 0 if beta is None else beta
        shape, out = integers(output), None
        if not (shape is None or isinstance(shape, tuple | list)):  # it is an array
            if self.inplace or beta:
                out = shape if self.inplace else copied(shape, "output")
            shape = on_device(shape, "output").shape
        groups = self.num_groups
        if groups != desc.num_groups and 1 not in (groups, desc.num_groups):
            raise ValueError(f"num_groups does not match desc: got {groups}, expected 1 or {desc.num_groups}")
        desc = desc if groups == 1 else replace(desc, num_groups=groups)
        scaled = {"alpha": alpha, "beta": beta, "out": out}
        return compute(self.direction, first, second, shape, desc, self.algo, **scaled)


@dataclass(eq=False)
class GpuDnnConv(_Operation):
    """Convolution. See :func:`cudnn_ct.conv`."""

    direction = "forward"

    algo: Algo | None = None
    inplace: bool = False
    num_groups: int = 1
    workmem: InitVar[str | None] = field(default=None, kw_only=True)

    def __call__(
        self,
        img: ArrayLike,
        kern: ArrayLike,
        output: ArrayLike | Sizes | None,
        desc: GpuDnnConvDesc,
        alpha: float | None = None,
        beta: float | None = None,
    ) -> DeviceArray:
        """Return ``alpha * conv(img, kern) + beta * output``."""
        return self._run(img, kern, output, desc, alpha, beta)

    @staticmethod
    def get_out_shape(
        ishape: Sizes, kshape: Sizes, border_mode: Border, subsample: Sizes, dilation: Sizes = 1
    ) -> tuple[int, ...]:
        """Return the shape of a convolution. See :func:`cudnn_ct.conv_output_shape`."""
        images, filters = check_shape(integers(ishape), "ishape"), check_shape(integers(kshape), "kshape")
        if len(images) == len(filters) > 1:  # the shapes do not have the number of groups
            images = (images[0], filters[1], *images[2:])
        padding, stride, dilation = map(integers, (border_mode, subsample, dilation))
        return conv_output_shape(images, filters, padding=padding, stride=stride, dilation=dilation)


class GpuDnnConv3d(GpuDnnConv):
    """Convolution of volumes, with the parameters in the older order. See :func:`cudnn_ct.conv`."""

    def __init__(self, workmem: str | None = None, inplace: bool = False, algo: Algo | None = None) -> None:
        super().__init__(algo, inplace, workmem=workmem)


@dataclass(eq=False)
class _Gradient(_Operation):
    inplace: bool = False
    algo: Algo | None = None
    num_groups: int = 1
    workmem: InitVar[str | None] = field(default=None, kw_only=True)


class GpuDnnConvGradW(_Gradient):
    """Gradient of a convolution with respect to the filters. See :func:`cudnn_ct.conv_backward_filter`."""

    direction = "backward_filter"

    def __call__(
        self,
        img: ArrayLike,
        topgrad: ArrayLike,
        output: ArrayLike | Sizes,
        desc: GpuDnnConvDesc,
        alpha: float | None = None,
        beta: float | None = None,
    ) -> DeviceArray:
        """Return ``alpha * gradient + beta * output``."""
        return self._run(topgrad, img, output, desc, alpha, beta)


class GpuDnnConvGradI(_Gradient):
    """Gradient of a convolution with respect to the images. See :func:`cudnn_ct.conv_backward_data`."""

    direction = "backward_data"

    def __call__(
        self,
        kern: ArrayLike,
        topgrad: ArrayLike,
        output: ArrayLike | Sizes,
        desc: GpuDnnConvDesc,
        alpha: float | None = None,
        beta: float | None = None,
    ) -> DeviceArray:
        """Return ``alpha * gradient + beta * output``."""
        return self._run(topgrad, kern, output, desc, alpha, beta)


class _Gradient3d(_Gradient):
    def __init__(self, inplace: bool = False, workmem: str | None = None, algo: Algo | None = None) -> None:
        super().__init__(inplace, algo, workmem=workmem)


class GpuDnnConv3dGradW(_Gradient3d, GpuDnnConvGradW):
    """``GpuDnnConvGradW`` of volumes, in the older order. See :func:`cudnn_ct.conv_backward_filter`."""


class GpuDnnConv3dGradI(_Gradient3d, GpuDnnConvGradI):
    """``GpuDnnConvGradI`` of volumes, in the older order. See :func:`cudnn_ct.conv_backward_data`."""


def compute(
    direction: str,
    first: ArrayLike,
    second: ArrayLike,
    shape: Sizes | None,
    desc: GpuDnnConvDesc,
    algo: Algo | None,
    **scaled: Any,
) -> DeviceArray:
    """Call the function of the package for a direction; ``shape`` is that of the result."""
    row = DIRECTIONS[direction]
    first, second = on_device(first, row.names[0]), on_device(second, row.names[1])
    dtype, gradient = first.spec.dtype, direction != "forward"
    if "float" not in dtype:
        raise TypeError(f"cuDNN convolution only works on real numbers, not {dtype}")
    if gradient and (desc.precision == "float16" or (desc.precision, dtype) == ("as_input", "float16")):
        raise TypeError(
            "Float16 precision is disabled for cuDNN backward convolutions due to computation errors."
        )
    geometry: dict[str, Any] = {
        "padding": desc.border_mode,
        "stride": desc.subsample,
        "dilation": desc.dilation,
        "groups": desc.num_groups,
        "mode": MODES[desc.conv_mode],
    }
    shape = integers(shape)
    if not gradient and shape is not None:
        expected = conv_output_shape(first.shape, second.shape, **geometry)
        if tuple(shape) != expected:  # type: ignore[arg-type]  # an int is not a shape, and raises TypeError
            raise ValueError(f"impossible convolution output dim: expected {expected} but received {shape}")
    shapes = (shape,) if gradient else ()
    algo = default_algorithm(direction) if algo is None else algo
    settings = {"algo": algo, "precision": desc.precision, **scaled}
    return run(row.operation, first, second, *shapes, **geometry, **settings)


def default_algorithm(direction: str) -> Algo:
    """Return the flag for the algorithm of a direction."""
    algo: Algo = getattr(config.dnn.conv, DIRECTIONS[direction].flag)
    return algo


# --- functions ---------------------------------------------------------------------------------------------

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
        hint = as_choice(hint, get_args(DirectionHint), "direction_hint")
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
