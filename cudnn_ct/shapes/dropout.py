"""Rules of dropout, and its problems."""

from __future__ import annotations

from typing import Any, NamedTuple

from .layer import writes
from .parse import as_float
from .specs import TensorSpec


@writes("y", "mask", "states")
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


@writes("dx")
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
