"""NumPy reference of dropout for a given mask; the mask is drawn on the device.

No reference of the operation, since it has no mask to hand over: tests read the mask off its result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..shapes.checks import one_dtype, same_shape
from ..shapes.dropout import check_probability
from ._cast import Array, deliver, wide

__all__ = ["dropout"]


def dropout(x: npt.ArrayLike, kept: npt.ArrayLike, probability: Any) -> Array:
    """Compute ``x / (1 - probability)`` where an element is kept and 0 elsewhere, rounded once at the end.

    The gradient is the same of ``dy``.

    Parameters
    ----------
    x : array, any shape, float16 | bfloat16 | float32 | float64
    kept : array of bool, shape of ``x``
    probability : float, at least 0 and less than 1
        That an element is dropped.

    Returns
    -------
    array, shape and dtype of ``x``

    Raises
    ------
    TypeError, ValueError
        Dtype, shapes or probability do not fit.

    Examples
    --------
    >>> dropout(np.array([1.0, 2.0, 3.0]), [True, False, True], 0.5)
    array([2., 0., 6.])
    """
    x, kept, scale = np.asarray(x), np.asarray(kept, bool), 1 / (1 - check_probability(probability))
    one_dtype("dropout", x=x.dtype)
    same_shape(x=x.shape, kept=kept.shape)
    return deliver(np.where(kept, wide(x), 0), x.dtype, scale, 0, None)
