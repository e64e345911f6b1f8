"""Operands of drawn calls: values, memory layout, start address and the library that owns the memory."""

from __future__ import annotations

import random
from math import prod
from typing import NamedTuple

import numpy as np

from cudnn_ct.dtypes import as_dtype

__all__ = ["GUARD", "Tensor", "lay_out", "restrided", "stepped", "values_of"]

GUARD = 64  # bytes around the elements that a call must leave alone


class Tensor(NamedTuple):
    """An array to make.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
    values : str
        The distribution: a key of :data:`VALUES`, or "given" where the call supplies the values.
    order : tuple of int
        The axes from the slowest to the fastest in memory.
    gaps : tuple of int
        By how much each axis steps over the elements of the next one; 1 for contiguous.
    still : tuple of int
        Axes of stride 0. All elements along them are the same.
    flipped : tuple of int
        Axes of negative stride.
    start : int
        Elements between a 16-byte boundary and the first element.
    origin : str
        The library that owns the memory: a key of a device's ``PLACES``.
    seed : int
    """

    shape: tuple[int, ...]
    dtype: str
    values: str = "normal"
    order: tuple[int, ...] = ()
    gaps: tuple[int, ...] = ()
    still: tuple[int, ...] = ()
    flipped: tuple[int, ...] = ()
    start: int = 0
    origin: str = "own"
    seed: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def contiguous(self) -> Tensor:
        """The same tensor as a plain aligned array of our own, in C order."""
        return self._replace(order=(), gaps=(), still=(), flipped=(), start=0, origin="own")


# How the strides of an operand are: kinds, and how often they are drawn.
STRIDES = {
    "positive": 80,
    "some 0": 7,
    "all 0": 2,
    "outer 0": 3,
    "some negative": 5,
    "all negative": 1,
    "both": 2,
}
REVERSING = ("own", "interface", "cupy", "foreign")  # the libraries whose arrays have negative strides
EXPANDING = (*REVERSING, "torch", "negated")  # numba exports strides of 0 as dense, and jax has no strides


def restrided(source: random.Random, tensor: Tensor) -> Tensor:
    """Return a tensor that is only read, in every fifth draw with strides of 0 or negative ones."""
    (kind,), axes = source.choices(list(STRIDES), list(STRIDES.values())), range(len(tensor.shape))
    some = tuple(axis for axis in axes if source.random() < 0.5)
    still = {"some 0": some, "all 0": tuple(axes), "outer 0": tuple(axes)[:1], "both": some}.get(kind, ())
    flipped = {"some negative": some, "all negative": tuple(axes)}.get(kind, ())
    if kind == "both":
        flipped = tuple(axis for axis in axes if axis not in some)
    return tensor._replace(
        still=still if tensor.origin in EXPANDING else (),
        flipped=flipped if tensor.origin in REVERSING else (),
    )


def _special(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    values = rng.standard_normal(shape)
    odd = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-30, 6e4], shape)
    return np.where(rng.random(shape) < 0.2, odd, values)


def _mostly_nan(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.where(rng.random(shape) < 0.8, np.nan, rng.standard_normal(shape))


def _far_places(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    far = rng.choice([np.inf, -np.inf, 5.0, -1e4, 6e4, 1e20, -1e30], shape)
    return np.where(rng.random(shape) < 0.2, far, rng.uniform(-1, 1, shape))


def _certain(rng: np.random.Generator, shape: tuple[int, ...], gaps: list[int]) -> np.ndarray:
    """Draw rows in which one number is above or below the others by one of ``gaps``."""
    values = rng.standard_normal(shape)
    if shape[-1]:
        place = rng.integers(shape[-1], size=(*shape[:-1], 1))
        np.put_along_axis(values, place, rng.choice(gaps, (*shape[:-1], 1)), -1)
    return values


VALUES = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "integers": lambda rng, shape: rng.integers(-4, 5, shape).astype(float),
    "distinct": lambda rng, shape: rng.permutation(prod(shape)).reshape(shape) - prod(shape) // 2.0,
    "positive": lambda rng, shape: rng.uniform(0.5, 2, shape),
    "unit": lambda rng, shape: rng.uniform(-1, 1, shape),
    "large": lambda rng, shape: 100 * rng.standard_normal(shape),
    "tiny": lambda rng, shape: 1e-3 * rng.standard_normal(shape),
    "special": _special,
    "nan": _mostly_nan,
    "places": _far_places,
    "certain": lambda rng, shape: _certain(rng, shape, [-40, -18, 18, 40, 80]),
    "far": lambda rng, shape: _certain(rng, shape, [-300, -110, -90, 0, 18, 110, 300]),
    "squares": lambda rng, shape: rng.uniform(20, 80, shape),
    "mask": lambda rng, shape: (rng.random(shape) < 0.7).astype(float),
    "64": lambda rng, shape: np.full(shape, 64.0),
    "1/64": lambda rng, shape: np.full(shape, 1 / 64),
}


def values_of(tensor: Tensor) -> np.ndarray:
    """Draw the elements of a tensor in float64, rounded to its dtype; equal along axes of stride 0."""
    rng = np.random.default_rng(tensor.seed)
    shape = tuple(1 if axis in tensor.still else n for axis, n in enumerate(tensor.shape))
    values = VALUES[tensor.values](rng, shape)
    return np.broadcast_to(rounded(values, tensor.dtype), tensor.shape)


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round float64 values to a dtype, and return them in float64."""
    with np.errstate(all="ignore"):
        return np.asarray(values, as_dtype(dtype).numpy).astype(np.float64)


class Laid(NamedTuple):
    """Host memory of a tensor: all bytes, where the first element begins, and strides in elements."""

    memory: np.ndarray
    offset: int
    strides: tuple[int, ...]


def lay_out(tensor: Tensor, values: np.ndarray) -> Laid:
    """Write values into memory as the tensor asks for; every other byte is 0xFF, which is NaN in floats."""
    dtype = as_dtype(tensor.dtype).numpy
    rank, itemsize = len(tensor.shape), dtype.itemsize
    order, gaps = tensor.order or tuple(range(rank)), tensor.gaps or (1,) * rank
    strides, step = [0] * rank, 1
    for axis in reversed(order):
        if axis in tensor.still:
            continue
        strides[axis] = step * gaps[axis]
        step = strides[axis] * max(tensor.shape[axis], 1)
    first = sum((tensor.shape[axis] - 1) * strides[axis] for axis in tensor.flipped if tensor.shape[axis])
    for axis in tensor.flipped:
        strides[axis] = -strides[axis]
    begin = GUARD + tensor.start * itemsize
    memory = np.full(begin + max(step, 1) * itemsize + GUARD, 0xFF, np.uint8)
    offset = begin + first * itemsize
    if prod(tensor.shape):
        with np.errstate(all="ignore"):
            stepped(memory, offset, tensor, tuple(strides))[...] = np.asarray(values, dtype)
    return Laid(memory, offset, tuple(strides))


def stepped(memory: np.ndarray, offset: int, tensor: Tensor, strides: tuple[int, ...]) -> np.ndarray:
    """View the elements of a tensor in host memory."""
    dtype = as_dtype(tensor.dtype).numpy
    return np.ndarray(tensor.shape, dtype, memory, offset, tuple(s * dtype.itemsize for s in strides))
