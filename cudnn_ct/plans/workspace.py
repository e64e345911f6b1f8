"""Where things lie in scratch memory, one behind the other."""

from __future__ import annotations

from collections.abc import Iterable

from ..dtypes import DTYPES
from ..shapes.specs import TensorSpec

__all__ = ["behind", "nbytes_of", "placed_after", "room_of"]

GRAIN = 256  # bytes at whose multiples copies begin


def behind(nbytes: int, spec: TensorSpec | None) -> tuple[int, int]:
    """Where a packed tensor goes behind so many bytes of scratch memory, and how many bytes that makes."""
    return (nbytes, nbytes) if spec is None else placed_after(nbytes, spec.size * DTYPES[spec.dtype].itemsize)


def placed_after(nbytes: int, more: int) -> tuple[int, int]:
    """Where so many bytes more begin in scratch memory, and how many bytes that makes."""
    start = -(-nbytes // GRAIN) * GRAIN
    return start, start + more


def nbytes_of(spec: TensorSpec) -> int:
    """Return the bytes that a tensor spans, with the gaps between its elements."""
    low, high = spec.extent
    return (high - low) * DTYPES[spec.dtype].itemsize


def room_of(specs: Iterable[TensorSpec]) -> int:
    """Return an upper bound of the bytes that copies of tensors take behind other workspace."""
    return sum(nbytes_of(spec) + GRAIN for spec in specs)
