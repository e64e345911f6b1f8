"""The rules of activations: which there are, and what their parameter is."""

from __future__ import annotations

from typing import Any

from .arguments import choice, number
from .fused import ACTIVATIONS
from .specs import ActivationSpec

ACTIVATION_MODES = tuple(name for name in ACTIVATIONS if name != "gelu")  # that only follows a convolution


def activation_spec(mode: Any, coef: Any = 0, propagate_nan: bool = True) -> ActivationSpec:
    """Validate the parameters of an activation, and make the spec of it.

    ``coef`` of swish is its beta; 0, the default, stands for 1, which makes it that of a convolution.

    >>> activation_spec("swish")
    ActivationSpec(mode='swish', coef=1.0, propagate_nan=True)
    """
    name, value = choice(mode, ACTIVATION_MODES, "mode"), number(coef, "coef")
    if name == "swish" and value == 0:
        value = 1.0
    return ActivationSpec(name, value, propagate_nan)
