"""The rule of dropout."""

from __future__ import annotations

from typing import Any

from .parse import as_float


def check_probability(probability: Any) -> float:
    """Return the probability that an element is dropped as a float: what is kept is divided by the rest.

    >>> check_probability(0.5)
    0.5
    """
    value = as_float(probability, "probability")
    if not 0 <= value < 1:
        raise ValueError(f"probability must be at least 0 and less than 1, got {probability}")
    return value
