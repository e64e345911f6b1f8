"""Operands that rotate through more memory than the cache holds, PyTorch's and ours over the same memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import cudnn_ct as ct

from .results import Record, explain

ROTATED = 120 * 10**6  # bytes of operands and results to walk through: twice the cache
RESERVE = 60 * 2**30  # bytes of free memory below which the allocators' caches are emptied


class Array(NamedTuple):
    """What an operand is; ``dtype`` is its name in PyTorch, ``empty`` says that a result goes there."""

    shape: tuple[int, ...]
    dtype: str
    nhwc: bool = False
    empty: bool = False


class Operands(NamedTuple):
    """``count`` sets of arrays by role, as PyTorch's tensors and, over the same memory, as ours."""

    count: int
    theirs: dict[str, list[Any]]
    ours: dict[str, list[Any]]


def operands_or_reason(
    arrays: Mapping[str, Array], record: Record, most: int | None = None
) -> Operands | None:
    """Make the operands of a row; where memory does not suffice, the record says so."""
    import torch

    free_memory()
    try:
        return rotating(arrays, most=most)
    except (torch.OutOfMemoryError, MemoryError) as error:
        record["skipped"] = f"out of memory: {explain(error)}"
        return None


def rotating(arrays: Mapping[str, Array], count: int | None = None, *, most: int | None = None) -> Operands:
    """Random inputs and empty results, so many sets that one has left the cache when it comes again.

    Or ``count`` sets, where that does not matter; never more than ``most``.
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
    """Cut tensors out of one piece of memory, each aligned as an allocation of its own would be."""
    step = 256 * math.ceil(math.prod(shape) / 256)
    memory = make(count * step, dtype=dtype, device="cuda")
    strides = strides_of(shape, nhwc)
    return [memory.as_strided(shape, strides, i * step) for i in range(count)]


def strides_of(shape: tuple[int, ...], nhwc: bool) -> tuple[int, ...]:
    """Strides in elements of a packed array, with channels last in memory or in C order."""
    order = (0, *range(2, len(shape)), 1) if nhwc else tuple(range(len(shape)))
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def free_memory() -> None:
    """Give back what allocators keep for later, where little is left."""
    import torch

    if torch.cuda.mem_get_info()[0] < RESERVE:
        torch.cuda.empty_cache()
        ct.empty_cache()
