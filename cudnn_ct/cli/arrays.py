"""Arrays to compute something on, where only their shape counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..array import DeviceArray

__all__ = ["some"]

BLOCK = 1 << 20  # so many numbers are drawn, and then repeated


def some(shape: Sequence[int], dtype: str, layout: str = "nchw", seed: int = 0) -> DeviceArray:
    """An array on the device with random numbers in it: constants would draw less power, and run quicker."""
    import numpy as np

    from ..creation import asarray
    from ..dtypes import as_dtype

    rng = np.random.default_rng(seed)
    values = rng.integers(-8, 8, BLOCK) if dtype == "int8" else rng.standard_normal(BLOCK, np.float32)
    block = values.astype(as_dtype(dtype).numpy)
    own = layout if 3 <= len(shape) <= 5 else None
    return asarray(np.resize(block, tuple(shape)), layout=own)
