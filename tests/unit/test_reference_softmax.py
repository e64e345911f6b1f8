"""Softmax of the reference: modes, extremes and errors; loops are in tests/oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudnn_ct import reference
from cudnn_ct._bindings.enums import SoftmaxAlgorithm, SoftmaxMode


def random(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return 3 * np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize(("mode", "axes"), [("channel", 1), ("instance", (1, 2, 3))])
def test_softmax_modes_equal_their_axes(mode: str, axes: Any) -> None:
    x, dy = random((2, 3, 4, 5)), random((2, 3, 4, 5), 1)
    y = reference.softmax(x, mode=mode)
    np.testing.assert_array_equal(y, reference.softmax(x, axis=axes))
    np.testing.assert_allclose(y.sum(axis=axes), 1, rtol=1e-13)
    dx = reference.softmax_backward(dy, y, mode=mode)
    np.testing.assert_array_equal(dx, reference.softmax_backward(dy, y, axis=axes))
    np.testing.assert_array_equal(y, reference.softmax(x, mode=SoftmaxMode[mode.upper()]))


def test_softmax_accepts_enums() -> None:
    x = random((2, 3))
    for algo in SoftmaxAlgorithm:
        expected = reference.softmax(x, algo=algo.name.lower())
        np.testing.assert_array_equal(reference.softmax(x, algo=algo), expected)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"algo": "exact"}, ValueError, "algo must be one of fast, accurate, log: got 'exact'"),
        ({"mode": "row"}, ValueError, "mode must be one of instance, channel"),
        ({"axis": 4}, ValueError, "axis is out of range: got 4, expected -4 to 3"),
        ({"axis": (1, -3)}, ValueError, r"axis contains an axis twice: got \(1, -3\)"),
        ({"axis": (0, 2)}, ValueError, r"axis must name adjacent axes: got \(0, 2\)"),
        ({"axis": ()}, ValueError, "at least one axis"),
        ({"axis": 1.5}, TypeError, "axis must be an int or a tuple of ints: got 1.5"),
        ({"x": np.ones(3)}, ValueError, r"x has shape \(3,\); mode='channel' needs \(N, C"),
        ({"x": np.ones((2, 3), np.int32)}, TypeError, "softmax takes .* not int32"),
        ({"beta": 1}, ValueError, "beta=1 needs out"),
    ],
)
def test_softmax_rejects_bad_arguments(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        reference.softmax(**({"x": np.ones((2, 3, 4, 4))} | change))


def test_softmax_backward_rejects_bad_arguments() -> None:
    y = np.ones((2, 3))
    with pytest.raises(ValueError, match=r"dy has shape \(3, 2\); y has \(2, 3\)"):
        reference.softmax_backward(y.T, y)
    with pytest.raises(TypeError, match="y is float64 and dy is float32"):
        reference.softmax_backward(y.astype(np.float32), y)
