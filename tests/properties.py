"""Properties that hold of operations wherever they run: on a GPU, and on the fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import cudnn_ct as ct
from tests.strategies import ConvCase, lay_out

# Largest error of a sum of products of values near 1, over the largest result. The sums have at most a few
# hundred terms; TF32 rounds each factor to 11 bits, and FFT and Winograd add a few bits of their own.
TOLERANCE = {"float16": 2e-2, "bfloat16": 2e-2, "float32": 2e-3, "float64": 1e-12}

Place = Callable[[np.ndarray], Any]
"""Puts a NumPy array into device memory with the strides it has, as another library would."""


def in_memory_of(result: Any, given: Any) -> bool:
    """Whether a result is a DeviceArray of the memory of an array, which may be of another library."""
    return type(result) is ct.DeviceArray and result.pointer == ct.asarray(given).pointer


class Direction(NamedTuple):
    """How one direction is called: the operation, and how its result lies in memory, by the case's words."""

    operation: str
    layout: str
    view: str


DIRECTIONS = {
    "forward": Direction("conv", "out_layout", "out_view"),
    "backward_data": Direction("conv_backward_data", "x_layout", "x_view"),
    "backward_filter": Direction("conv_backward_filter", "w_layout", "w_view"),
}


def check_conv(case: ConvCase, place: Place, kind: str = "integers", direction: str = "forward") -> None:
    """An operation of ``ct`` gives what ``ct.reference`` gives: nearly for floats, exactly for integers.

    Every gap in memory is NaN, and so is ``out`` where beta is 0: reading what is not ours shows, and so does
    an element that nobody wrote.
    """
    operation = DIRECTIONS[direction].operation
    inputs, shape, out = operands(case, kind, direction)
    expected = getattr(ct.reference, operation)(
        *inputs, *shape, **case.keywords, out=None if out is None else out.copy()
    )
    placed = None if out is None else place(out)
    result = getattr(ct, operation)(*map(place, inputs), *shape, **case.keywords, out=placed)
    chosen = str(plan.candidate or plan.plan) if (plan := ct.last_plan()) else ""
    assert placed is None or in_memory_of(result, placed)
    got = ct.asarray(result).numpy()
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    wide, reference = got.astype(np.float64), expected.astype(np.float64)
    if kind != "floats" and not inexact_by_nature(chosen):
        np.testing.assert_array_equal(wide, reference)
    else:
        scale = max(np.abs(reference).max(initial=0), 1)
        np.testing.assert_allclose(wide, reference, rtol=0, atol=TOLERANCE[case.dtype] * scale)


def operands(
    case: ConvCase, kind: str, direction: str
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[tuple[int, ...], ...], np.ndarray | None]:
    """The two inputs of a direction, the shape it is told, and its ``out``."""
    x, w, out = case.operands(kind)
    if direction == "forward":
        return (x, w), (), out
    dy = lay_out(gradient(case, kind).astype(x.dtype), case.out_layout, case.out_view)
    shape = case.x_shape if direction == "backward_data" else case.w_shape
    if case.with_out:
        row = DIRECTIONS[direction]
        values = np.full(shape, np.nan)
        if case.beta:  # even, so that half of it is an integer too
            values = 2.0 * np.random.default_rng(case.seed).integers(-2, 3, shape)
        out = lay_out(values.astype(x.dtype), getattr(case, row.layout), getattr(case, row.view))
    return ((dy, w) if direction == "backward_data" else (dy, x)), (shape,), out


def gradient(case: ConvCase, kind: str) -> np.ndarray:
    """A gradient of the output. As integers it is sparse, so that no dtype rounds sums over all pixels."""
    rng = np.random.default_rng(case.seed + 1)
    if kind == "floats":
        return rng.standard_normal(case.y_shape)
    by_channel = np.zeros((case.y_shape[1], case.y_shape[0] * int(np.prod(case.y_shape[2:]))))
    for channel in by_channel:
        some = rng.permutation(channel.size)[:24]
        channel[some] = rng.choice((-1, 1), some.size)
    batch, channels, *spatial = case.y_shape
    return np.moveaxis(by_channel.reshape(channels, batch, *spatial), 0, 1)


def inexact_by_nature(described: str) -> bool:
    """FFT and Winograd compute sums of integers through fractions; engines 17 and 18 do so without a note."""
    return any(word in described for word in ("fft", "winograd", "engine 17 ", "engine 18 "))
