"""Dropout, given what stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudnn_ct import reference
from cudnn_ct.reference.dropout import dropout


def test_dropout_scales_kept_elements() -> None:
    kept = np.random.default_rng(0).random((100, 100)) >= 0.25
    y = dropout(np.ones((100, 100), np.float32), kept, 0.25)
    assert y.dtype == np.float32
    assert sorted(set(y.ravel().tolist())) == [0, np.float32(4 / 3)]
    assert abs(y.mean() - 1) < 0.02


def test_dropout_writes_zeros_for_any_dropped_element() -> None:
    assert dropout(np.array([np.nan, np.inf, 1.0]), [False, False, True], 0).tolist() == [0, 0, 1]


def test_dropout_is_not_a_public_reference() -> None:
    assert "dropout" not in reference.__all__


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((np.ones(2), [True], 0.5), ValueError, r"kept has shape \(1,\); x has \(2,\)"),
        ((np.ones(2), [True, False], 1), ValueError, "probability must be at least 0 and less than 1: got 1"),
        ((np.ones(2), [True, False], -0.1), ValueError, "probability must be at least 0"),
        ((np.ones(2, int), [True, False], 0), TypeError, "dropout takes .* not int64"),
    ],
)
def test_dropout_rejects_bad_arguments(arguments: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        dropout(*arguments)
