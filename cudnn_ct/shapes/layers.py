"""Problems of activations, softmax, local response normalisation and dropout."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite, prod
from typing import Any, NamedTuple

from ..typing import Activation
from .checks import Outs, Specs, check_images, one_dtype, result_spec, same_shape, some_axes
from .fused import ACTIVATIONS
from .layer import LayerProblem, problem_class
from .parse import as_bool, as_choice, as_float, as_int
from .specs import ActivationSpec, LRNSpec, Shape, TensorSpec, check_shape

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
    axes = sorted(some_axes(axis, len(dims), "axis"))
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
    shape = check_images(same_shape(**{name: spec.shape for name, spec in specs.items()}))
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
