"""Offsets in a workspace, for copies that are placed one behind another."""

from __future__ import annotations

from collections.abc import Iterable

from ..dtypes import DTYPES
from ..shapes.specs import TensorSpec

COPY_ALIGNMENT = 256  # bytes


def append(nbytes: int, spec: TensorSpec | None) -> tuple[int, int]:
    """Return the offset of a packed tensor behind ``nbytes`` of workspace, and the bytes with it."""
    return (nbytes, nbytes) if spec is None else align_after(nbytes, spec.size * DTYPES[spec.dtype].itemsize)


def align_after(nbytes: int, more: int) -> tuple[int, int]:
    """Return the offset of ``more`` bytes behind ``nbytes`` of workspace, and the bytes with them."""
    start = -(-nbytes // COPY_ALIGNMENT) * COPY_ALIGNMENT
    return start, start + more


def nbytes_of(spec: TensorSpec) -> int:
    """Return the bytes that a tensor spans, with the gaps between its elements."""
    low, high = spec.extent
    return (high - low) * DTYPES[spec.dtype].itemsize


def room_of(specs: Iterable[TensorSpec]) -> int:
    """Return an upper bound of the bytes that copies of tensors take behind other workspace."""
    return sum(nbytes_of(spec) + COPY_ALIGNMENT for spec in specs)
