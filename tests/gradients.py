"""Gradients by finite differences, independent of the formulas of operations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def numerical_gradient(
    function: Callable[[np.ndarray], np.ndarray], x: np.ndarray, dy: np.ndarray, step: float = 1e-5
) -> np.ndarray:
    """Return the gradient of ``sum(function(x) * dy)`` by central differences in float64."""
    gradient = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        above, below = x.copy(), x.copy()
        above[index] += step
        below[index] -= step
        gradient[index] = ((function(above) - function(below)) * dy).sum() / (2 * step)
    return gradient


def assert_gradient(
    gradient: np.ndarray,
    function: Callable[[np.ndarray], np.ndarray],
    x: np.ndarray,
    dy: np.ndarray,
    tolerance: float = 1e-7,
) -> None:
    """Assert that ``gradient`` is that of ``sum(function(x) * dy)``, relative to its largest element."""
    expected = numerical_gradient(function, x, dy)
    scale = max(1, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=tolerance * scale)
