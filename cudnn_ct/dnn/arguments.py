"""Checks and conversions of parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["checked_flag", "integers"]


def checked_flag(value: Any, name: str) -> bool:
    """Return a flag as a bool.

    Numbers are rejected, 0 and 1 too: in the argument order of the older module, an epsilon or a factor
    stands where the later module has a flag.

    Raises
    ------
    TypeError
        ``value`` is not a bool of Python or NumPy.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(
            f"{name} is not a bool: got {value!r}, expected True or False; pass parameters that only the "
            "older module has (epsilon, running_average_factor, workmem) by keyword"
        )
    return bool(value)


def integers(value: Any) -> Any:
    """Return a NumPy array of integers as a list, or as an int if it has no axes; anything else unchanged.

    Theano takes arrays for sizes and shapes. A list is a snapshot: changing the array later has no effect.
    """
    return value.tolist() if isinstance(value, np.ndarray) and value.dtype.kind in "iu" else value
