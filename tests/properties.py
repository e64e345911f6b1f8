"""Facts about results that tests of several tiers share."""

from __future__ import annotations

from typing import Any

import cudnn_ct as ct

# Largest error of a sum of products of values near 1, over the largest result. The sums have at most a few
# hundred terms; TF32 rounds each factor to 11 bits, and FFT and Winograd add a few bits of their own.
TOLERANCE = {"float16": 2e-2, "bfloat16": 2e-2, "float32": 2e-3, "float64": 1e-12}


def in_memory_of(result: Any, given: Any) -> bool:
    """Return whether a result is a DeviceArray of the memory of an array of any library."""
    return type(result) is ct.DeviceArray and result.pointer == ct.asarray(given).pointer


def inexact_by_nature(described: str) -> bool:
    """FFT and Winograd compute sums of integers through fractions; engines 17 and 18 do so without a note."""
    return any(word in described for word in ("fft", "winograd", "engine 17 ", "engine 18 "))
