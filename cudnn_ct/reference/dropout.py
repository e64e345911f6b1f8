"""Dropout with a given mask; tests read the mask of the device off its result."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..shapes.checks import same_shape
from ..shapes.layers import check_probability
from ._definition import Array, deliver, operands


def dropout(x: ArrayLike, kept: ArrayLike, probability: float) -> Array:
    """Compute ``x / (1 - probability)`` of kept elements, otherwise 0. See :func:`cudnn_ct.dropout`."""
    scale = 1 / (1 - check_probability(probability))
    dtype, (x,) = operands("dropout", x=x)
    kept = np.asarray(kept, bool)
    same_shape(x=x.shape, kept=kept.shape)
    return deliver(np.where(kept, x, 0), dtype, scale, 0, None)
