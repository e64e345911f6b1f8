"""Types, checks and conversions of arguments."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..array import DeviceArray
from ..array_creation import as_operand
from ..ops._operands import stream_of
from ..ops.tensor import transform
from ..typing import ArrayLike, Padding, PerAxis
from .availability import run

Sizes: TypeAlias = PerAxis | NDArray[np.integer[Any]]
"""A shape or one integer per axis; Theano's programs also pass NumPy arrays."""

Border: TypeAlias = Padding | NDArray[np.integer[Any]]
Epsilon: TypeAlias = float
Factor: TypeAlias = float

# Theano's names.
TheanoConvMode: TypeAlias = Literal["conv", "cross"]
DirectionHint: TypeAlias = Literal["bprop weights", "bprop inputs", "forward", "forward!"]
TheanoNormMode: TypeAlias = Literal["per-activation", "spatial"]
RNNInputMode: TypeAlias = Literal["linear", "skip"]
SoftmaxFormat: TypeAlias = Literal["bc01"]
TheanoReduceOp: TypeAlias = Literal["add", "mul", "minimum", "maximum", "absmax", "avg", "norm1", "norm2"]


def integers(value: Any) -> Any:
    """Return a NumPy array of integers as a list, or as an int if it has no axes; anything else unchanged.

    A list is a snapshot: changing the array later has no effect.
    """
    return value.tolist() if isinstance(value, np.ndarray) and value.dtype.kind in "iu" else value


def on_device(array: ArrayLike, name: str) -> DeviceArray:
    """Return an argument as a DeviceArray, without a copy."""
    return as_operand(array, name, stream_of(array, name, None))


def copied(array: ArrayLike, name: str) -> DeviceArray:
    """Return a copy of an array."""
    return run(transform, on_device(array, name))


def overwritten(target: ArrayLike, result: DeviceArray) -> DeviceArray:
    """Copy a result to an operand, for operations that cuDNN does not compute in place."""
    return run(transform, result, out=target)
