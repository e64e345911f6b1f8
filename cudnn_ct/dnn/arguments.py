"""Types, checks and conversions of parameters."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..typing import Padding, PerAxis

Sizes: TypeAlias = PerAxis | NDArray[np.integer[Any]]
"""A shape or one integer per axis; Theano's programs also pass NumPy arrays."""

Border: TypeAlias = Padding | NDArray[np.integer[Any]]


def checked_flag(value: object, name: str) -> bool:
    """Return a flag as a bool.

    Numbers are rejected, 0 and 1 too: in the argument order of the older module, an epsilon or a factor
    stands where the later module has a flag.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(
            f"{name} is not a bool: got {value!r}, expected True or False; pass parameters that only the "
            "older module has (epsilon, running_average_factor, workmem) by keyword"
        )
    return bool(value)


def integers(value: Any) -> Any:
    """Return a NumPy array of integers as a list, or as an int if it has no axes; anything else unchanged.

    A list is a snapshot: changing the array later has no effect.
    """
    return value.tolist() if isinstance(value, np.ndarray) and value.dtype.kind in "iu" else value
