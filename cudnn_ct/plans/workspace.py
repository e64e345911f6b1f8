"""Where things lie in scratch memory, one behind the other."""

from __future__ import annotations

from collections.abc import Iterable

from ..dtypes import DTYPES
from ..shapes.specs import TensorSpec

__all__ = ["align_after", "append", "nbytes_of", "room_of"]

GRANULARITY = 256  # bytes at whose multiples copies begin


def append(nbytes: int, spec: TensorSpec | None) -> tuple[int, int]:
    """Where a packed tensor goes behind so many bytes of scratch memory, and how many bytes that makes."""
    return (nbytes, nbytes) if spec is None else align_after(nbytes, spec.size * DTYPES[spec.dtype].itemsize)


def align_after(nbytes: int, more: int) -> tuple[int, int]:
    """Where so many bytes more begin in scratch memory, and how many bytes that makes."""
    start = -(-nbytes // GRANULARITY) * GRANULARITY
    return start, start + more


def nbytes_of(spec: TensorSpec) -> int:
    """Return the bytes that a tensor spans, with the gaps between its elements."""
    low, high = spec.extent
    return (high - low) * DTYPES[spec.dtype].itemsize


def room_of(specs: Iterable[TensorSpec]) -> int:
    """Return an upper bound of the bytes that copies of tensors take behind other workspace."""
    return sum(nbytes_of(spec) + GRANULARITY for spec in specs)
