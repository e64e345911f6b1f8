"""Sequences of different lengths, packed and unpacked."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from ..shapes.sequences import as_integers, check_lengths, packed_places
from ..shapes.specs import check_shape
from ._cast import Array


def pack_sequences(x: ArrayLike, lengths: Iterable[int]) -> Array:
    """Return the steps of (T, B, ...) that exist as (sum of lengths, ...). See :class:`cudnn_ct.RNN`.

    >>> pack_sequences([[1, 10], [2, 20], [3, 30]], [3, 1])
    array([ 1, 10,  2,  3])
    """
    x = np.asarray(x)
    if x.ndim < 2:
        raise ValueError(f"x has shape {x.shape}; expected (T, B, ...)")
    places = packed_places(check_lengths(lengths, *x.shape[:2]))
    steps, sequences = (np.array([place[axis] for place in places], int) for axis in (0, 1))
    return np.asarray(x[steps, sequences])


def unpack_sequences(
    packed: ArrayLike, lengths: Iterable[int], steps: int | None = None, padding: float = 0
) -> Array:
    """Return packed data as (T, B, ...), with ``padding`` past each end. See :class:`cudnn_ct.RNN`.

    >>> unpack_sequences([1, 10, 2, 3], [3, 1], padding=-1)
    array([[ 1, 10],
           [ 2, -1],
           [ 3, -1]])
    """
    packed, given = np.asarray(packed), as_integers(lengths)
    longest = max(0, *given) if steps is None else steps
    steps, batch = check_shape((longest, len(given)), "steps and batch")
    found = check_lengths(given, steps, batch)
    if not packed.ndim:
        raise ValueError("packed has no axes; expected (sum of lengths, ...)")
    if len(packed) != sum(found):
        raise ValueError(f"there are {len(packed)} packed rows; lengths {found} add up to {sum(found)}")
    x = np.full((steps, batch, *packed.shape[1:]), padding, packed.dtype)
    for row, place in zip(packed, packed_places(found), strict=True):
        x[place] = row
    return x
