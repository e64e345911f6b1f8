"""Lengths of padded sequences and offsets of packed ones in host memory, and the clearing of padding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import NotSupportedError
from .attention import HEAD_MULTIPLE, Band
from .attention_rules import like_axes
from .checks import Outs, Specs, expect_dtype, expect_shape, result_spec
from .layer import titled, writes
from .specs import TensorSpec

# --- the problem of clearing rows behind the lengths of padded sequences -----------------------------------

DTYPES = ("float16", "bfloat16", "float32")
LONGEST = 2**24  # places are compared in float32


@titled("clearing of padding")
@writes("y")
class PaddingProblem(NamedTuple):
    """y is x with zeros behind the lengths."""

    x: TensorSpec
    lengths: TensorSpec
    y: TensorSpec


def padding_problem(specs: Specs, outs: Outs) -> PaddingProblem:
    """Return the problem of operands that were checked against each other."""
    x, lengths = specs["x"], specs["lengths"]
    if len(x.shape) != 4:
        raise ValueError(f"x has the wrong number of axes: got shape {x.shape}, expected (B, H, S, D)")
    expect_dtype(x, "x", *DTYPES)
    if x.shape[3] % HEAD_MULTIPLE or x.shape[2] > LONGEST:
        raise NotSupportedError(
            f"x must have a last axis that is a multiple of {HEAD_MULTIPLE}, and at most {LONGEST} rows a "
            f"sequence: got {x.shape}"
        )
    expect_shape(lengths, "lengths", x.shape[:1])
    expect_dtype(lengths, "lengths", "int32")
    return PaddingProblem(x, lengths, result_spec(x.shape, like_axes(x.shape, x), out=outs[0]))


# --- lengths -----------------------------------------------------------------------------------------------

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
