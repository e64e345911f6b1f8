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


def packed_lengths(lengths: Any, offsets: Sequence[int], name: str) -> tuple[int, ...]:
    """Return the lengths of packed sequences: ints that are at most the distances of the offsets."""
    numbers, room = _ints(lengths, name), [b - a for a, b in itertools.pairwise(offsets)]
    if len(numbers) != len(room) or any(not 0 <= n <= most for n, most in zip(numbers, room, strict=True)):
        raise ValueError(f"{name} must be at most the distances of the offsets, {room}: got {numbers}")
    return numbers


def _ints(values: Any, name: str) -> tuple[int, ...]:
    import numpy as np

    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(f"{name} must be a sequence of ints: got {values!r}")
    return tuple(map(int, array))


def longest_sequence(lengths: Sequence[int]) -> int:
    """Return an upper bound of lengths, rounded up: few plans serve many batches."""
    longest = max(lengths, default=0)
    step = PACKED_STEP if longest <= 8 * PACKED_STEP else 8 * PACKED_STEP
    return -(-longest // step) * step


def queries_with_keys(band: Band, lengths_q: Sequence[int], lengths_kv: Sequence[int]) -> list[int]:
    """Return the lengths of queries without the last ones, if a window leaves no keys to these."""
    if band.left is None or band.corner != "top_left":
        return list(lengths_q)
    left = band.left
    return [min(queries, keys + left) for queries, keys in zip(lengths_q, lengths_kv, strict=True)]


def check_band_of_lengths(band: Band, lengths_q: Sequence[int], lengths_kv: Sequence[int]) -> None:
    """Raise if the first queries of a sequence have no keys because it has more queries than keys."""
    for place, (queries, keys) in enumerate(zip(lengths_q, lengths_kv, strict=True)):
        if band.corner == "bottom_right" and band.right is not None and queries > keys + band.right:
            raise ValueError(
                f"sequence {place} has queries without keys: got {queries} queries and {keys} keys with "
                f"{band}; such sequences are not supported"
            )
