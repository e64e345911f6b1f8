"""Problems of activations, softmax, local response normalisation, dropout and pooling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite, prod
from typing import Any, NamedTuple, Never

from .._hints import UNSET, corrected, known_keywords
from ..typing import Activation, Padding, PerAxis
from . import checks
from .checks import as_bool, as_choice, as_float, as_int, one_dtype, result_spec, same_shape
from .conv import Pairs, pad_pairs
from .fused import ACTIVATIONS
from .specs import (
    ActivationSpec,
    LayerProblem,
    LRNSpec,
    Outs,
    Shape,
    Specs,
    TensorSpec,
    check_shape,
    problem_class,
)

# --- activations -------------------------------------------------------------------------------------------

# gelu exists only fused into a conv.
ACTIVATION_MODES: tuple[Activation, ...] = tuple(name for name in ACTIVATIONS if name != "gelu")


def activation_spec(mode: Any, coefficient: Any = 0, propagate_nan: bool = True) -> ActivationSpec:
    """Validate the parameters of an activation, and make the spec of it.

    ``coefficient`` of swish is its beta; 0, the default, stands for 1, as after a convolution. Elu with a
    ``coefficient`` of 0 is relu.
    """
    name: Activation = as_choice(mode, (*ACTIVATION_MODES, "silu"), "mode")
    value = as_float(coefficient, "coefficient")
    name = "swish" if name == "silu" else name
    if name == "swish" and value == 0:
        value = 1.0
    if name == "elu" and value == 0:
        # cuDNN takes the slope of elu from y: 1 where y >= 0, which is everywhere if the coefficient is 0.
        name, value, propagate_nan = "relu", 0.0, True
    return ActivationSpec(name, value, propagate_nan)


def activation_problem(
    specs: Specs, outs: Outs, mode: Any, coefficient: Any, propagate_nan: Any
) -> LayerProblem[ActivationSpec]:
    """Validate the arguments of an activation of x, or of the gradient with x, y and dy."""
    one_dtype("an activation", **{name: spec.dtype for name, spec in specs.items()})
    shape = same_shape(**{name: spec.shape for name, spec in specs.items()})
    activation = activation_spec(mode, coefficient, as_bool(propagate_nan, "propagate_nan"))
    if "dy" in specs and activation.mode == "elu" and activation.coefficient < 0:
        raise ValueError(
            f"coefficient is negative for the gradient of elu: got {activation.coefficient}, expected at "
            "least 0; cuDNN takes the slope from y, which is then positive on both sides of 0"
        )
    result = result_spec(shape, *specs.values(), out=outs[0])
    return LayerProblem.of(activation.mode, activation, specs, result)


# --- softmax -----------------------------------------------------------------------------------------------

SOFTMAX_ALGOS = ("fast", "accurate", "log")
SOFTMAX_MODES = ("instance", "channel")


class SoftmaxParams(NamedTuple):
    """Algorithm of a softmax over adjacent axes."""

    axes: range
    algo: str


def softmax_problem(specs: Specs, outs: Outs, algo: Any, mode: Any, axis: Any) -> LayerProblem[SoftmaxParams]:
    """Validate the arguments of a softmax of x, or of the gradient with y and dy."""
    one_dtype("softmax", **{name: spec.dtype for name, spec in specs.items()})
    shape = same_shape(**{name: spec.shape for name, spec in specs.items()})
    params = SoftmaxParams(softmax_axes(shape, mode, axis), as_choice(algo, SOFTMAX_ALGOS, "algo"))
    result = result_spec(shape, *specs.values(), out=outs[0])
    return LayerProblem.of(f"softmax over axes {list(params.axes)}", params, specs, result)


def softmax_axes(shape: Iterable[int], mode: Any = "channel", axis: Any = None) -> range:
    """Return the adjacent axes that sum to one: ``axis`` if given, otherwise the axes of ``mode``."""
    dims = check_shape(shape, "x_shape")
    mode = as_choice(mode, SOFTMAX_MODES, "mode")
    if axis is None:
        if len(dims) < 2:
            raise ValueError(f"x has shape {dims}; mode={mode!r} needs (N, C, ...), other shapes an axis")
        return range(1, 2 if mode == "channel" else len(dims))
    axes = sorted(checks.some_axes(axis, len(dims), "axis"))
    if not axes:
        raise ValueError("axis must name at least one axis: got ()")
    if axes[-1] - axes[0] >= len(axes):
        raise ValueError(f"axis must name adjacent axes: got {axis!r}; transpose x first")
    return range(axes[0], axes[-1] + 1)


def softmax_fold(shape: Iterable[int], mode: Any = "channel", axis: Any = None) -> Shape:
    """Return the shape (outer, reduced, inner, 1) for which the same softmax runs over the channel axis."""
    dims = check_shape(shape, "x_shape")
    axes = softmax_axes(dims, mode, axis)
    return prod(dims[: axes.start]), prod(dims[axes.start : axes.stop]), prod(dims[axes.stop :]), 1


# --- local response normalisation --------------------------------------------------------------------------

LRN_MAX_CHANNELS = 16  # CUDNN_LRN_MAX_N; the next two are CUDNN_LRN_MIN_K and CUDNN_LRN_MIN_BETA
LRN_MIN_K = 1e-5
LRN_MIN_BETA = 0.01


def lrn_window(n: int) -> tuple[int, int]:
    """Return how many channels a window of ``n`` channels covers before and after its own."""
    channels = as_int(n, "n")
    if not 1 <= channels <= LRN_MAX_CHANNELS:
        raise ValueError(f"n must be between 1 and {LRN_MAX_CHANNELS}: got {n}")
    before = (channels - 1) // 2
    return before, channels - before - 1


def check_lrn_factors(lrn_alpha: Any, lrn_beta: Any, k: Any) -> tuple[float, float, float]:
    """Return lrn_alpha, lrn_beta and k as floats, within cuDNN's limits."""
    factors = as_float(lrn_alpha, "lrn_alpha"), as_float(lrn_beta, "lrn_beta"), as_float(k, "k")
    if not all(map(isfinite, factors)):
        raise ValueError(f"lrn_alpha, lrn_beta and k must be finite: got {factors}")
    if factors[1] < LRN_MIN_BETA:
        raise ValueError(f"lrn_beta must be at least {LRN_MIN_BETA}: got {lrn_beta}")
    if factors[2] < LRN_MIN_K:
        raise ValueError(f"k must be at least {LRN_MIN_K}: got {k}")
    return factors


def lrn_problem(
    specs: Specs, outs: Outs, n: Any, lrn_alpha: Any, lrn_beta: Any, k: Any
) -> LayerProblem[LRNSpec]:
    """Validate the arguments of normalising x, or of the gradient with x, y and dy."""
    what = "the gradient of lrn" if "dy" in specs else "lrn"
    one_dtype(what, **{name: spec.dtype for name, spec in specs.items()})
    shape = checks.check_images(same_shape(**{name: spec.shape for name, spec in specs.items()}))
    before, after = lrn_window(n)
    lrn = LRNSpec(before + 1 + after, *check_lrn_factors(lrn_alpha, lrn_beta, k))
    result = result_spec(shape, *specs.values(), out=outs[0])
    return LayerProblem.of("local response normalisation", lrn, specs, result)


# --- dropout -----------------------------------------------------------------------------------------------


@problem_class("", "y mask states")
class DropoutProblem(NamedTuple):
    """Dropout with a native descriptor; the bits of the mask follow the elements in ``layout``."""

    x: TensorSpec
    y: TensorSpec
    mask: TensorSpec
    states: TensorSpec
    layout: str
    descriptor: Any

    def __str__(self) -> str:
        return f"dropout of {self.x}"


@problem_class("", "dx")
class DropoutGradientProblem(NamedTuple):
    """The gradient of dropout, with the fields of :class:`DropoutProblem`."""

    dy: TensorSpec
    mask: TensorSpec
    dx: TensorSpec
    layout: str
    descriptor: Any

    def __str__(self) -> str:
        return f"the gradient of dropout of {self.dy}"


def check_probability(probability: Any) -> float:
    """Return the probability of dropping an element as a float, or raise.

    >>> check_probability(0.5)
    0.5
    """
    value = as_float(probability, "probability")
    if not 0 <= value < 1:
        raise ValueError(f"probability must be at least 0 and less than 1: got {probability}")
    return value


# --- pooling -----------------------------------------------------------------------------------------------

POOLING_MODES = ("max", "max_deterministic", "average_inc_pad", "average_exc_pad", "sum")

# Accepted aliases: the short name, and cuDNN's names.
_SYNONYMS = {
    "average": "average_inc_pad",
    "average_count_include_padding": "average_inc_pad",
    "average_count_exclude_padding": "average_exc_pad",
}


class PoolGeometry(NamedTuple):
    """Window, padding and stride, per spatial axis; padding is a pair (before, after)."""

    window: Shape
    padding: Pairs
    stride: Shape


class PoolParams(NamedTuple):
    """Parameters of a pooling; ``mode`` is one of :data:`POOLING_MODES`."""

    geometry: PoolGeometry
    mode: str
    propagate_nan: bool


def pool_problem(
    specs: Specs, outs: Outs, window: Any, stride: Any, padding: Any, mode: Any, propagate_nan: Any
) -> LayerProblem[PoolParams]:
    """Validate the arguments of pooling x, or of the gradient with x, y and dy."""
    name = as_choice(mode, (*POOLING_MODES, *_SYNONYMS), "mode")
    x, mode, gradient = specs["x"], _SYNONYMS.get(name, name), "dy" in specs
    what = "the gradient of pooling" if gradient else f"pooling with mode={mode!r}"
    # Averages of int8 would need rounding.
    allowed = checks.FLOATS if gradient or not mode.startswith("max") else (*checks.FLOATS, "int8")
    one_dtype(what, allowed, **{name: spec.dtype for name, spec in specs.items()})
    geometry = pool_geometry(x.shape, window, stride, padding)
    y_shape = pool_output_shape(x.shape, window=window, stride=stride, padding=padding)
    for name in ("y", "dy") if gradient else ():
        if specs[name].shape != y_shape:
            raise ValueError(
                f"{name} has shape {specs[name].shape}; pooling x of shape {x.shape} with window "
                f"{geometry.window}, stride {geometry.stride} and padding {geometry.padding} gives {y_shape}"
            )
    result = result_spec(x.shape if gradient else y_shape, *specs.values(), out=outs[0])
    params = PoolParams(geometry, mode, as_bool(propagate_nan, "propagate_nan"))
    return LayerProblem.of("pooling", params, specs, result)


@known_keywords
def pool_output_shape(
    x_shape: Iterable[int],
    *more: Never,
    window: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    **unknown: Never,
) -> Shape:
    """Return the shape of ``pool(x)``, without a device.

    Parameters
    ----------
    x_shape : (N, C, *spatial), with 1 to 3 spatial axes
    window, stride, padding
        As in :func:`cudnn_ct.pool`.

    Returns
    -------
    tuple of int
        (N, C, *out), where each ``out = (n + before + after - window) // stride + 1``.

    Raises
    ------
    TypeError, ValueError
        The window does not fit the image, or the padding does not fit the window.

    Examples
    --------
    >>> pool_output_shape((8, 64, 112, 112), window=3, stride=2, padding=1)
    (8, 64, 56, 56)
    >>> pool_output_shape((8, 2048, 7, 7), window="global")
    (8, 2048, 1, 1)
    """
    if more or unknown or x_shape is UNSET or window is UNSET:
        return corrected(pool_output_shape, locals())
    windows, pairs, strides = pool_geometry(x_shape, window, stride, padding)
    x = checks.check_images(x_shape)
    axes = zip(x[2:], pairs, windows, strides, strict=True)
    return (*x[:2], *((n + sum(pair) - k) // s + 1 for n, pair, k, s in axes))


def pool_geometry(x_shape: Iterable[int], window: Any, stride: Any, padding: Any) -> PoolGeometry:
    """Parse window, stride and padding; raise unless every window overlaps the image."""
    x = checks.check_images(x_shape)
    if 0 in x[2:]:
        raise ValueError(f"x has shape {x}; each spatial axis needs an element")
    windows = _window(window, x)
    axes = len(windows)
    strides = windows if stride is None else checks.per_axis(stride, axes, "stride", 1)
    pairs = pad_pairs(padding, windows, (1,) * axes)
    for axis, (n, k, pair) in enumerate(zip(x[2:], windows, pairs, strict=True)):
        if max(pair) >= k:  # otherwise a window could contain nothing but padding
            raise ValueError(f"padding {pair} of spatial axis {axis} must be smaller than the window, {k}")
        if n + sum(pair) < k:
            raise ValueError(
                f"the window of {k} is larger than spatial axis {axis}: the input has {n} + padding "
                f"{sum(pair)} = {n + sum(pair)}"
            )
    return PoolGeometry(windows, pairs, strides)


def _window(window: Any, x: Shape) -> Shape:
    if isinstance(window, str):
        if window.lower() != "global":
            raise ValueError(f"window must be an int, one int per spatial axis or 'global': got {window!r}")
        return x[2:]
    window = checks.as_list(window)
    if isinstance(window, Sequence) and len(window) != len(x) - 2:
        raise ValueError(
            f"window {window!r} has {len(window)} axes; x of shape {x} has {len(x) - 2} spatial axes"
            f"{checks.batch_hint('x', x, len(window) + 2)}"
        )
    return checks.per_axis(window, len(x) - 2, "window", 1)
