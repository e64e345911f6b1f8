"""Distributions whose mean is many times their deviation, as activations of trained networks have it.

A variance that is the difference of two means of squares has lost its digits at a ratio of some hundred in
float32; the mean of squared differences has them up to a ratio of some ten thousand.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .operands import VALUES

__all__ = ["OFFSETS"]

OFFSETS = tuple(f"offset {ratio}" for ratio in (3, 10, 100, 1000, 10_000))


def _around(ratio: float) -> Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]:
    return lambda rng, shape: rng.choice([-1, 1]) * ratio + rng.standard_normal(shape)


VALUES |= {name: _around(float(name.split()[1])) for name in OFFSETS}
