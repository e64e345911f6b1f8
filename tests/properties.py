"""Properties that hold of operations wherever they run: on a GPU, and on the fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import cudnn_ct as ct
from cudnn_ct import context
from tests.strategies import ConvCase

# Largest error of a sum of products of values near 1, over the largest result. The sums have at most a few
# hundred terms; TF32 rounds each factor to 11 bits, and FFT and Winograd add a few bits of their own.
TOLERANCE = {"float16": 2e-2, "bfloat16": 2e-2, "float32": 2e-3, "float64": 1e-12}

Place = Callable[[np.ndarray], Any]
"""Puts a NumPy array into device memory with the strides it has, as another library would."""


def check_conv(case: ConvCase, place: Place, kind: str = "integers") -> None:
    """``ct.conv`` gives what ``ct.reference.conv`` gives: exactly for small integers, else within tolerance.

    Every gap in memory is NaN, and so is ``out`` where beta is 0: reading what is not ours shows, and so does
    an element that nobody wrote.
    """
    x, w, out = case.operands(kind)
    expected = ct.reference.conv(x, w, **case.keywords, out=None if out is None else out.copy())
    placed = None if out is None else place(out)
    y = ct.conv(place(x), place(w), **case.keywords, out=placed)
    assert y is placed or (placed is None and isinstance(y, ct.DeviceArray))
    got = ct.asarray(y).numpy()
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    wide, reference = got.astype(np.float64), expected.astype(np.float64)
    if kind == "integers" and not inexact_by_nature(algorithm_of_last_call()):
        np.testing.assert_array_equal(wide, reference)
    else:
        scale = max(np.abs(reference).max(initial=0), 1)
        np.testing.assert_allclose(wide, reference, rtol=0, atol=TOLERANCE[case.dtype] * scale)


def algorithm_of_last_call() -> str:
    """What the newest of this thread's prepared calls runs; its plan tells."""
    contexts = context._thread.contexts.values()
    return "".join(list(ctx.calls.values())[-1].choice.plan.describe() for ctx in contexts if ctx.calls)


def inexact_by_nature(described: str) -> bool:
    """FFT and Winograd compute sums of integers through fractions."""
    return "fft" in described or "winograd" in described
