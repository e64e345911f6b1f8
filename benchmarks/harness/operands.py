"""Operands that rotate through more memory than the cache holds. PyTorch's and ours share that memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import cudnn_ct as ct

from .results import Record, explain

ROTATED = 120 * 10**6  # bytes of all operands and results: twice the L2 cache
RESERVE = 60 * 2**30  # bytes of free memory below which the allocators' caches are emptied


class Array(NamedTuple):
    """Shape, dtype and layout of an operand. ``dtype`` is PyTorch's name, and ``empty`` marks a result."""

    shape: tuple[int, ...]
    dtype: str
    nhwc: bool = False
    empty: bool = False


class Operands(NamedTuple):
    """``count`` sets of arrays by role: PyTorch's tensors, and our arrays over the same memory."""

    count: int
    theirs: dict[str, list[Any]]
    ours: dict[str, list[Any]]


def operands_or_reason(
    arrays: Mapping[str, Array], record: Record, most: int | None = None
) -> Operands | None:
    """Allocate the operands of a row. If memory does not suffice, store the reason in the record."""
    import torch

    free_memory()
    try:
        return rotating(arrays, most=most)
    except (torch.OutOfMemoryError, MemoryError) as error:
        record["skipped"] = f"out of memory: {explain(error)}"
        return None


def rotating(arrays: Mapping[str, Array], count: int | None = None, *, most: int | None = None) -> Operands:
    """Allocate enough sets of random inputs and empty results that a set leaves the cache before its reuse.

    There are at most ``most`` sets, or exactly ``count`` if it is given.
    """
    import torch

    dtypes = {role: getattr(torch, array.dtype) for role, array in arrays.items()}
    if count is None:
        size = sum(dtypes[role].itemsize * math.prod(array.shape) for role, array in arrays.items())
        count = min(math.ceil(ROTATED / size), most or ROTATED)
    theirs = {}
    for role, array in arrays.items():
        make = torch.empty if array.empty else torch.randn
        theirs[role] = carve(make, array.shape, dtypes[role], array.nhwc, count)
    return Operands(count, theirs, {role: list(map(ct.asarray, several)) for role, several in theirs.items()})


def carve(make: Callable[..., Any], shape: tuple[int, ...], dtype: Any, nhwc: bool, count: int) -> list[Any]:
    """Return tensors in one allocation, each aligned like a separate allocation."""
    step = 256 * math.ceil(math.prod(shape) / 256)
    memory = make(count * step, dtype=dtype, device="cuda")
    strides = strides_of(shape, nhwc)
    return [memory.as_strided(shape, strides, i * step) for i in range(count)]


def strides_of(shape: tuple[int, ...], nhwc: bool) -> tuple[int, ...]:
    """Return the strides of a packed array in elements, in channels-last or C order."""
    order = (0, *range(2, len(shape)), 1) if nhwc else tuple(range(len(shape)))
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def free_memory() -> None:
    """Empty the caches of both allocators if little device memory is free."""
    import torch

    if torch.cuda.mem_get_info()[0] < RESERVE:
        torch.cuda.empty_cache()
        ct.empty_cache()
