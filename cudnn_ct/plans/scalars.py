"""Scalars in host memory: alpha, beta and the value of a fill."""

from __future__ import annotations

import ctypes
from functools import cache
from math import copysign, isnan
from typing import Any

from ..dtypes import DTYPES


@cache
def scalar_type(compute: str) -> Any:
    """Return the function that makes a pointer to alpha or beta: a double for float64, else a float."""
    kind = ctypes.c_double if compute == "float64" else ctypes.c_float
    common: dict[float, Any] = {value: ctypes.byref(kind(value)) for value in (0, 1)}

    def scalar(value: float) -> Any:
        if value == 0 and copysign(1, value) < 0:  # -0.0 equals the key 0
            return ctypes.byref(kind(value))
        return common.get(value) or ctypes.byref(kind(value))

    return scalar


def scalar_bytes(dtype: str, value: float = 0.0) -> Any:
    """Return a pointer to the value that ``cudnnSetTensor`` sets elements of a dtype to.

    For half precision it is a float32, in contrast to the manual: cuDNN 9.19 reads four bytes and rounds.
    """
    row = DTYPES[dtype]
    if value == 0 and copysign(1, value) > 0:
        return ctypes.byref((ctypes.c_char * 8)())
    import numpy as np

    with np.errstate(all="ignore"):
        half = dtype in ("float16", "bfloat16")
        held = _round_to_odd(value) if half else np.asarray(value).astype(row.numpy)
    return ctypes.byref(ctypes.create_string_buffer(held.tobytes(), held.nbytes))


def element_bytes(dtype: str, value: float) -> bytes:
    """Return a value as an element of a dtype, rounded once: ml_dtypes rounds to float32 before."""
    import numpy as np

    with np.errstate(all="ignore"):
        narrow = DTYPES[dtype].itemsize < 4 and DTYPES[dtype].numpy.kind in "fV"
        held = _round_to_odd(value) if narrow else np.asarray(value)
        return held.astype(DTYPES[dtype].numpy).tobytes()


def _round_to_odd(value: float) -> Any:
    """Round to a float32 with an odd last bit if inexact, so that cuDNN's rounding is the only one."""
    import numpy as np

    single = np.array(value).astype(np.float32)
    nearest = float(single)
    if nearest != value and not isnan(value):
        bits = single.view(np.uint32)
        bits -= np.uint32(abs(nearest) > abs(value))
        bits |= np.uint32(1)
    return single
