"""Softmax against scipy, against torch where it is installed, and its gradient."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from cudnn_ct import reference
from cudnn_ct._bindings.enums import SoftmaxAlgorithm, SoftmaxMode
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.shapes.checks import FLOATS
from cudnn_ct.shapes.softmax import SOFTMAX_ALGOS, softmax_axes, softmax_fold
from tests.gradients import assert_gradient

TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-13}


@st.composite
def shapes_and_axes(draw: st.DrawFn) -> tuple[tuple[int, ...], Any, tuple[int, ...]]:
    """A shape, some adjacent axes as a caller may write them, and as NumPy wants them."""
    rank = draw(st.integers(1, 5))
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 4)), min_size=rank, max_size=rank)))
    first = draw(st.integers(0, rank - 1))
    axes = tuple(range(first, draw(st.integers(first, rank - 1)) + 1))
    written = tuple(axis - rank if draw(st.booleans()) else axis for axis in draw(st.permutations(axes)))
    return shape, written[0] if len(axes) == 1 and draw(st.booleans()) else written, axes


def random(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return 3 * np.random.default_rng(seed).standard_normal(shape)


@given(problem=shapes_and_axes(), algo=st.sampled_from(SOFTMAX_ALGOS), dtype=st.sampled_from(FLOATS))
def test_any_axes_of_any_shape_agree_with_scipy(problem: Any, algo: str, dtype: str) -> None:
    shape, axis, axes = problem
    x = random(shape).astype(as_dtype(dtype).numpy)
    y = reference.softmax(x, algo=algo, axis=axis)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    function = special.log_softmax if algo == "log" else special.softmax
    expected = function(x.astype(np.float64), axis=axes)
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    if dtype != "bfloat16":  # rounded once: NumPy's own conversion from the result in float64
        wide = reference.softmax(x.astype(np.float64), algo=algo, axis=axis)
        np.testing.assert_array_equal(y, wide.astype(x.dtype))


@given(problem=shapes_and_axes(), algo=st.sampled_from(SOFTMAX_ALGOS))
def test_gradient_by_differences(problem: Any, algo: str) -> None:
    shape, axis, _ = problem
    x, dy = random(shape) / 3, random(shape, 1)
    dx = reference.softmax_backward(dy, reference.softmax(x, algo=algo, axis=axis), algo=algo, axis=axis)
    assert_gradient(dx, lambda v: reference.softmax(v, algo=algo, axis=axis), x, dy)


@given(problem=shapes_and_axes())
def test_the_folded_shape_has_the_same_softmax(problem: Any) -> None:
    shape, axis, axes = problem
    x, folded = random(shape), softmax_fold(shape, axis=axis)
    assert len(folded) == 4
    assert prod(folded) == prod(shape)
    assert tuple(softmax_axes(shape, axis=axis)) == axes
    y = reference.softmax(x.reshape(folded), mode="channel").reshape(shape)
    np.testing.assert_array_equal(y, reference.softmax(x, axis=axis))


@pytest.mark.parametrize(("mode", "axes"), [("channel", 1), ("instance", (1, 2, 3))])
def test_modes_name_axes(mode: str, axes: Any) -> None:
    x, dy = random((2, 3, 4, 5)), random((2, 3, 4, 5), 1)
    y = reference.softmax(x, mode=mode)
    np.testing.assert_array_equal(y, reference.softmax(x, axis=axes))
    np.testing.assert_allclose(y.sum(axis=axes), 1, rtol=1e-13)
    dx = reference.softmax_backward(dy, y, mode=mode)
    np.testing.assert_array_equal(dx, reference.softmax_backward(dy, y, axis=axes))
    np.testing.assert_array_equal(y, reference.softmax(x, mode=SoftmaxMode[mode.upper()]))


def test_algorithms_by_enum() -> None:
    x = random((2, 3))
    for algo in SoftmaxAlgorithm:
        expected = reference.softmax(x, algo=algo.name.lower())
        np.testing.assert_array_equal(reference.softmax(x, algo=algo), expected)


@pytest.mark.parametrize("algo", SOFTMAX_ALGOS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_against_torch(algo: str, axis: int) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(random((4, 5, 6))).requires_grad_()
    y = (torch.log_softmax if algo == "log" else torch.softmax)(x, axis)
    ours = reference.softmax(x.detach().numpy(), algo=algo, axis=axis)
    np.testing.assert_allclose(ours, y.detach().numpy(), rtol=0, atol=1e-13)
    dy = torch.from_numpy(random((4, 5, 6), 1))
    y.backward(dy)
    dx = reference.softmax_backward(dy.numpy(), ours, algo=algo, axis=axis)
    np.testing.assert_allclose(dx, x.grad.numpy(), rtol=0, atol=1e-13)


def test_results_scale_and_add() -> None:
    x = random((2, 3))
    out = np.ones((2, 3))
    assert reference.softmax(x, alpha=2, beta=3, out=out) is out
    np.testing.assert_allclose(out, 2 * special.softmax(x, axis=1) + 3, rtol=1e-14)
    y, dy = reference.softmax(x), random((2, 3), 1)
    dx = reference.softmax_backward(dy, y, alpha=-1, beta=1, out=dy)  # in place
    assert dx is dy
    np.testing.assert_allclose(dy, random((2, 3), 1) - reference.softmax_backward(random((2, 3), 1), y))


def test_large_numbers_do_not_overflow() -> None:
    x = np.array([[1e4, 0.0, -1e4]])
    assert reference.softmax(x).tolist() == [[1, 0, 0]]
    assert reference.softmax(x, algo="log").tolist() == [[0, -1e4, -2e4]]


def test_what_is_not_finite_is_told_in_silence() -> None:
    x = np.array([[0.0, 0.0], [-np.inf, 0.0], [np.inf, 0.0], [np.nan, 0.0], [-np.inf, -np.inf]])
    y = reference.softmax(x)
    assert y[:2].tolist() == [[0.5, 0.5], [0, 1]]
    assert np.isnan(y[2]).any()
    assert np.isnan(y[3:]).all()


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (2, 0), (2, 3, 0)])
def test_nothing_in_nothing_out(shape: tuple[int, ...]) -> None:
    x = np.ones(shape, np.float32)
    for mode in ("channel", "instance"):
        assert reference.softmax(x, mode=mode).shape == shape
        assert reference.softmax_backward(x, x, mode=mode).shape == shape


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
def test_what_does_not_fit_is_refused(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        reference.softmax(**({"x": np.ones((2, 3, 4, 4))} | change))


def test_gradients_that_do_not_fit_are_refused() -> None:
    y = np.ones((2, 3))
    with pytest.raises(ValueError, match=r"dy has shape \(3, 2\); y has \(2, 3\)"):
        reference.softmax_backward(y.T, y)
    with pytest.raises(TypeError, match="y is float64 and dy is float32"):
        reference.softmax_backward(y.astype(np.float32), y)
