"""Means and variances of batches, and the sizes of their errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import answer as read
from .answer import Arguments, Operands, Table, Values
from .rows import SAFE_CANCELLATION, spread_of

__all__ = ["Statistics", "batch_statistics", "moments", "open_constants"]


def moments(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the variance of each row, by their definitions."""
    count = rows.shape[1]
    mean = rows.sum(1, keepdims=True) / np.float64(count)
    return mean, ((rows - mean) ** 2).sum(1, keepdims=True) / np.float64(count)


class Statistics:
    """Operands of a batch normalisation in the shape of the statistics, and the sizes of their errors.

    ``spread`` is the relative size of the error of a variance, as in `rows`.
    """

    def __init__(self, operands: Operands, arguments: Arguments, mean: Any, invstd: Any) -> None:
        self.x, self.axes = operands["x"], read.norm_axes(np.ndim(operands["x"]), arguments)
        self.shape = read.norm_shape(self.x.shape, arguments)
        self.mean, self.invstd = self.like(mean), self.like(invstd)
        self.scale, self.bias = self.like(operands["scale"]), self.like(operands.get("bias"))
        self.spread = spread_of(self.average(np.abs(self.x)) * self.invstd)
        self.normal = np.abs(self.x - np.asarray(mean).reshape(self.shape)) * self.invstd
        # The size of a normalised element with the error of the mean.
        self.parts = self.normal + np.maximum(np.abs(self.x), self.mean) * self.invstd / 2

    def like(self, array: Any) -> Any:
        return None if array is None else np.abs(np.asarray(array)).reshape(self.shape)

    def average(self, array: np.ndarray) -> np.ndarray:
        return array.mean(self.axes, keepdims=True) if array.size else np.zeros(self.shape)

    def total(self, array: np.ndarray) -> np.ndarray:
        return array.sum(self.axes, keepdims=True)


def batch_statistics(x: np.ndarray, arguments: Arguments) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of a batch and the inverse of its standard deviation, for scales."""
    axes, shape = read.norm_axes(x.ndim, arguments), read.norm_shape(x.shape, arguments)
    if not x.size:
        return np.full(shape, np.nan), np.full(shape, np.nan)
    var = x.var(axes, keepdims=True)
    return x.mean(axes, keepdims=True), 1 / np.sqrt(var + arguments.get("epsilon", 1e-5))


def open_constants(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """Batches of which the mean has too few correct digits in float32, or whose variance is not finite."""
    x = operands["x"]
    if operands.get("invstd") is not None or not x.size:
        return {}
    _, invstd = batch_statistics(x, arguments)
    square = (x**2).mean(read.norm_axes(x.ndim, arguments), keepdims=True)
    mask = ~(square * invstd**2 <= SAFE_CANCELLATION)
    found = {}
    for name, value in values.items():
        if name in ("mean", "dbias", "dz", "running_mean", "running_var"):
            continue
        if value.ndim == mask.ndim:
            found[name] = np.broadcast_to(mask, value.shape)
        else:
            found[name] = mask.reshape(value.shape)
    return found
