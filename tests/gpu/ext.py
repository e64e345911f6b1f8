"""Answers in float64, and the comparison with them, for the operations of libcudnn_ext.

A folder with libcudnn.so.9 and libcudnn_ext.so.9 alone will do, named by CUDNN_CT_LIBRARY.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import _lib
from cudnn_ct.dtypes import as_dtype
from tests.causal_cases import unavailable

__all__ = ["agree", "answer", "require"]

LEAST = {"float16": 2.0**-24}  # the smallest numbers of dtypes whose results may be subnormal
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


def require(operation: str) -> None:
    """Load this cuDNN before PyTorch loads its own, and skip the test if it lacks an operation."""
    library = _lib.load()
    if missing := unavailable(operation):
        pytest.skip(f"cuDNN {library.version_text}: {missing}")
    print(f"cuDNN {library.version_text} ({library.kind}) at {library.path}, NVRTC {library.nvrtc}")


@cache
def solvers() -> Any:
    """Return independent answers: those of PyTorch, or of NumPy.

    PyTorch asks cuDNN for its version before a convolution, which ends the process without libcudnn_graph.
    """
    if not _lib.load().lacks("graph"):
        with suppress(ImportError, OSError):
            return importlib.import_module("tests.oracle.by_torch").ANSWERS
    return importlib.import_module("tests.oracle.by_loops").ANSWERS


def answer(name: str, arrays: dict[str, np.ndarray], **arguments: Any) -> dict[str, Any]:
    """Return the answers for operands by name, which become float64 if they are floats."""
    wide = {
        key: array if array.dtype.kind == "i" else array.astype(np.float64) for key, array in arrays.items()
    }
    found: dict[str, Any] = solvers()[name](wide, arguments)
    return found


def agree(what: str, got: Any, wanted: Any, dtype: str) -> None:
    """Compare with an answer: the error of sums in float32 (or float64), and of three roundings."""
    values = got.numpy()
    ours, unit = values.astype(np.float64), UNIT[as_dtype(values.dtype).name]
    sums = UNIT["float64" if dtype == "float64" else "float32"]
    limit = (256 * sums + 3 * unit) * wanted.scale + LEAST.get(values.dtype.name, 1e-30)
    if dtype in ("float16", "bfloat16") and values.dtype == np.float32:  # gradients of parameters
        limit = limit + 3 * UNIT[dtype] * wanted.scale
    error = np.abs(ours - wanted.value)
    bad = ~(error <= limit)
    if bad.any():
        at = tuple(int(i) for i in np.unravel_index(np.argmax(np.where(bad, error, -1)), error.shape))
        kind = f"{values.dtype}{list(values.shape)}"
        lines = [
            f"{what}: {bad.sum()} of {bad.size} elements of {kind} are wrong; the worst is at {at}:",
            f"got {ours[at]!r}, wanted {wanted.value[at]!r}, limit {limit[at]:.3g}; the first elements:",
            f"{ours.reshape(-1)[:8]}, wanted {wanted.value.reshape(-1)[:8]}; plan {ct.last_plan()}",
        ]
        pytest.fail("\n".join(lines))
