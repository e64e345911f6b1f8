"""Random arrays for benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..array import DeviceArray
from ..array_creation import asarray
from ..dtypes import as_dtype
from ..errors import AllocationError
from ..typing import Layout

BLOCK = 1 << 20  # numbers that are drawn, and then repeated


def some(shape: Sequence[int], dtype: str, layout: Layout = "nchw", seed: int = 0) -> DeviceArray:
    """Allocate a device array of random numbers. Constants would use less power and run faster.

    Raises AllocationError if it exceeds the memory of the device or of the host.
    """
    rng = np.random.default_rng(seed)
    block = rng.integers(-128, 128, BLOCK) if dtype == "int8" else rng.standard_normal(BLOCK, np.float32)
    block = block.astype(as_dtype(dtype).numpy)
    own = layout if 3 <= len(shape) <= 5 else None
    try:
        host = np.resize(block, tuple(shape))  # repeats the block
    except (MemoryError, ValueError, OverflowError) as error:  # the latter two for sizes beyond any memory
        raise AllocationError(f"an array of shape {tuple(shape)} in {dtype}: {error}") from None
    return asarray(host, layout=own)
