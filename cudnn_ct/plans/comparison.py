"""Compare results that two implementations computed for the same operands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..dtypes import GRAPH_DTYPES
from ..shapes.specs import TensorSpec

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

# Largest difference of two results, relative to the largest magnitude in the tensor: several roundings of
# each dtype. Float32 may be computed with TF32 tensor cores.
TOLERANCE = {
    "float64": 1e-10, "float32": 2e-3, "float16": 1e-2, "bfloat16": 3e-2, "float8_e4m3": 0.2,
    "float8_e5m2": 0.4,
}  # fmt: skip
ROUNDED = ("int8", "uint8")  # integers that may be rounded up by one implementation, and down by the other


def tolerance_of(specs: Iterable[TensorSpec]) -> float:
    """Return the largest tolerance of the dtypes in a computation: each of them may be an intermediate's."""
    return max((TOLERANCE.get(spec.dtype, 0.0) for spec in specs), default=0.0)


def difference(
    specs: Sequence[TensorSpec], ours: Sequence[Bytes], others: Sequence[Bytes], tolerance: float
) -> str:
    """Return how two sets of tensors differ, given as their bytes; empty if they agree.

    Floating-point numbers may differ by ``tolerance``, relative to the largest magnitude in their tensor.
    """
    for spec, a, b in zip(specs, ours, others, strict=True):
        found = _difference(spec, a, b, tolerance)
        if found:
            return found
    return ""


def _difference(spec: TensorSpec, ours: Bytes, others: Bytes, tolerance: float) -> str:
    if np.array_equal(ours, others):
        return ""
    dtype = spec.dtype
    if dtype not in TOLERANCE and dtype not in ROUNDED:
        return f"{spec} has other elements"
    with np.errstate(all="ignore"):
        x, y = (one.view(GRAPH_DTYPES[dtype].numpy).astype(np.float64) for one in (ours, others))
        finite = np.isfinite(x) & np.isfinite(y)
        if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
            return f"{spec} has NaN or infinity at other places"
        scale = float(np.max(np.abs(y[finite]), initial=0))
        error = float(np.max(np.abs(x[finite] - y[finite]), initial=0))
    if error > (1 if dtype in ROUNDED else tolerance * scale):
        return f"{spec} differs by {error:.3g}, its largest magnitude is {scale:.3g}"
    return ""
