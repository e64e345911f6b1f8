"""The rules of local response normalisation: windows of channels, and factors."""

from __future__ import annotations

import operator
from typing import Any

from .arguments import number

LRN_MOST_CHANNELS = 16  # these three are cuDNN's limits
LRN_LEAST_K = 1e-5
LRN_LEAST_BETA = 0.01


def lrn_window(n: int) -> tuple[int, int]:
    """How many channels before and after its own a window of ``n`` channels takes in.

    >>> lrn_window(5), lrn_window(4)
    ((2, 2), (1, 2))
    """
    try:
        channels = operator.index(n)
    except TypeError:
        raise TypeError(f"n must be an int, not {n!r}") from None
    if not 1 <= channels <= LRN_MOST_CHANNELS:
        raise ValueError(f"n must be between 1 and {LRN_MOST_CHANNELS}, got {n}")
    behind = (channels - 1) // 2
    return behind, channels - behind - 1


def check_lrn_factors(lrn_alpha: Any, lrn_beta: Any, k: Any) -> tuple[float, float, float]:
    """Return the three factors as floats, within cuDNN's limits."""
    factors = number(lrn_alpha, "lrn_alpha"), number(lrn_beta, "lrn_beta"), number(k, "k")
    if factors[1] < LRN_LEAST_BETA:
        raise ValueError(f"lrn_beta must be at least {LRN_LEAST_BETA}, got {lrn_beta}")
    if factors[2] < LRN_LEAST_K:
        raise ValueError(f"k must be at least {LRN_LEAST_K}, got {k}")
    return factors
