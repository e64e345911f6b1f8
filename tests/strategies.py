"""Layouts and views of operands in memory, which all tiers share."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnn_ct.shapes.specs import packed_strides

VIEWS = ("packed", "every_other_image", "padded_rows", "transposed")
"""Views of an operand: contiguous; every second image of a batch; rows with a gap behind them; the last two
axes exchanged."""

SCALES = (1, 0, -2, 0.5)


def lay_out(values: np.ndarray, layout: str, view: str) -> np.ndarray:
    """Copy ``values`` into fresh memory of :func:`poison` with the strides of a layout and a view.

    That memory, one contiguous axis, is the ``.base`` of the array.
    """
    shape = values.shape
    strides = strides_in(shape, layout, view)
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if values.size else 1
    memory = np.full(span, poison(values.dtype)).astype(values.dtype)
    array: np.ndarray = np.ndarray(
        shape, values.dtype, buffer=memory, strides=tuple(s * values.itemsize for s in strides)
    )
    array[...] = values
    return array


def poison(dtype: np.dtype[Any]) -> float:
    """Return a value that shows in a result that reads it: NaN, or a number for integers."""
    return 77 if dtype.kind in "iu" else np.nan


def strides_in(shape: tuple[int, ...], layout: str, view: str) -> tuple[int, ...]:
    """Return the strides in elements of a ``view`` (of :data:`VIEWS`) of memory packed in ``layout``."""
    if view == "every_other_image":
        packed = packed_strides(shape, layout)
        return (2 * packed[0], *packed[1:])
    if view == "padded_rows":
        return packed_strides((*shape[:-1], shape[-1] + 3), layout)
    if view == "transposed":
        packed = packed_strides((*shape[:-2], shape[-1], shape[-2]), layout)
        return (*packed[:-2], packed[-1], packed[-2])
    return packed_strides(shape, layout)
