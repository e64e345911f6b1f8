"""Activation problems: modes and their coefficient."""

from __future__ import annotations

from typing import Any

from .checks import Outs, Specs, one_dtype, result_spec, same_shape
from .fused import ACTIVATIONS
from .layer import LayerProblem
from .parse import as_bool, as_choice, as_float
from .specs import ActivationSpec

ACTIVATION_MODES = tuple(name for name in ACTIVATIONS if name != "gelu")  # gelu exists only fused into a conv


def activation_spec(mode: Any, coefficient: Any = 0, propagate_nan: bool = True) -> ActivationSpec:
    """Validate the parameters of an activation, and make the spec of it.

    ``coefficient`` of swish is its beta; 0, the default, stands for 1, as after a convolution. Elu with a
    ``coefficient`` of 0 is relu.
    """
    name, value = as_choice(mode, ACTIVATION_MODES, "mode"), as_float(coefficient, "coefficient")
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
