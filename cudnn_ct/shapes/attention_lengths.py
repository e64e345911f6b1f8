"""Lengths of padded sequences and offsets of packed ones, in host memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from .attention import Band

PACKED_STEP = 128  # the longest packed sequence is rounded up, so that few plans serve many batches


def sequence_offsets(offsets: Any, tokens: int, name: str) -> tuple[int, ...]:
    """Return the offsets of packed sequences: ascending ints from 0 to the number of tokens."""
    numbers = _ints(offsets, name)
    if len(numbers) < 2 or numbers[0] != 0 or numbers[-1] != tokens:
        raise ValueError(f"{name} must start at 0 and end at {tokens}, the number of tokens: got {numbers}")
    if any(a > b for a, b in itertools.pairwise(numbers)):
        raise ValueError(f"{name} must be in ascending order: got {numbers}")
    return numbers


def sequence_lengths(lengths: Any, longest: int, name: str) -> tuple[int, ...]:
    """Return the lengths of padded sequences as ints from 0 to ``longest``."""
    numbers = _ints(lengths, name)
    for number in numbers:
        if not 0 <= number <= longest:
            raise ValueError(f"{name} must be from 0 to {longest}: got {number}")
    return numbers


def _ints(values: Any, name: str) -> tuple[int, ...]:
    import numpy as np

    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(f"{name} must be a sequence of ints: got {values!r}")
    return tuple(map(int, array))


def longest_sequence(offsets: Sequence[int]) -> int:
    """Return an upper bound of the lengths between offsets, rounded up: few plans serve many batches."""
    longest = max((b - a for a, b in itertools.pairwise(offsets)), default=0)
    step = PACKED_STEP if longest <= 8 * PACKED_STEP else 8 * PACKED_STEP
    return -(-longest // step) * step


def check_band_of_lengths(band: Band, lengths_q: Sequence[int], lengths_kv: Sequence[int]) -> None:
    """Raise if a query has no key because its sequence has more queries than keys."""
    for place, (queries, keys) in enumerate(zip(lengths_q, lengths_kv, strict=True)):
        last_without = (
            band.corner == "bottom_right" and band.right is not None and queries > keys + band.right
        )
        if last_without or (
            band.left is not None and queries > keys + band.left and band.corner == "top_left"
        ):
            raise ValueError(
                f"sequence {place} has queries without keys: got {queries} queries and {keys} keys with "
                f"{band}; such sequences are not supported"
            )
