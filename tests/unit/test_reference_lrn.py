"""Local response normalisation against loops, against torch where it is installed, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_ct import reference
from cudnn_ct._bindings import constants
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.shapes.checks import FLOATS
from cudnn_ct.shapes.lrn import LRN_MAX_CHANNELS, check_lrn_factors, lrn_window
from tests.gradients import assert_gradient

TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-13}

shapes = st.lists(st.integers(1, 3), min_size=1, max_size=3).flatmap(
    lambda size: st.tuples(st.integers(1, 2), st.integers(1, 7), *map(st.just, size))
)
factors = st.fixed_dictionaries(
    {
        "n": st.integers(1, 9),
        "lrn_alpha": st.sampled_from((1.0, 0.5, 1e-4)),
        "lrn_beta": st.sampled_from((0.75, 1, 2.5, 0.01)),
        "k": st.sampled_from((2, 0.5)),
    }
)


def random(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return 2 * np.random.default_rng(seed).standard_normal(shape)


@given(shape=shapes, factors=factors, dtype=st.sampled_from(FLOATS))
def test_an_element_at_a_time(shape: tuple[int, ...], factors: dict[str, Any], dtype: str) -> None:
    x = random(shape).astype(as_dtype(dtype).numpy)
    y = reference.lrn(x, **factors)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    n = factors["n"]
    for index in np.ndindex(*shape):
        first = index[1] - (n - 1) // 2
        channels = [c for c in range(first, first + n) if 0 <= c < shape[1]]
        squares = sum(float(x[(index[0], c, *index[2:])]) ** 2 for c in channels)
        expected = (
            float(x[index]) / (factors["k"] + factors["lrn_alpha"] / n * squares) ** factors["lrn_beta"]
        )
        np.testing.assert_allclose(float(y[index]), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@given(shape=shapes, factors=factors)
def test_gradient_by_differences(shape: tuple[int, ...], factors: dict[str, Any]) -> None:
    x, dy = random(shape), random(shape, 1)
    dx = reference.lrn_backward(dy, x, reference.lrn(x, **factors), **factors)
    assert_gradient(dx, lambda v: reference.lrn(v, **factors), x, dy)


@pytest.mark.parametrize("n", [1, 3, 5])
def test_against_torch(n: int) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(random((2, 6, 3, 4))).requires_grad_()
    y = torch.nn.functional.local_response_norm(x, n, alpha=0.5, beta=0.75, k=2)
    ours = reference.lrn(x.detach().numpy(), n=n, lrn_alpha=0.5)
    np.testing.assert_allclose(ours, y.detach().numpy(), rtol=1e-13, atol=1e-14)
    dy = torch.from_numpy(random((2, 6, 3, 4), 1))
    y.backward(dy)
    dx = reference.lrn_backward(dy.numpy(), x.detach().numpy(), ours, n=n, lrn_alpha=0.5)
    np.testing.assert_allclose(dx, x.grad.numpy(), rtol=1e-12, atol=1e-13)


def test_an_even_window_reaches_further_ahead() -> None:
    x = np.array([[[0.0], [1.0], [0.0]]])
    y = reference.lrn(x + 0.5, n=2, lrn_alpha=2, lrn_beta=1, k=1)
    assert y.ravel().tolist() == [0.5 / (1 + 0.25 + 2.25), 1.5 / (1 + 2.25 + 0.25), 0.5 / (1 + 0.25)]
    assert lrn_window(16) == (7, 8)


def test_results_scale_and_add() -> None:
    x, dy = random((1, 3, 2)), random((1, 3, 2), 1)
    out = np.ones_like(x)
    y = reference.lrn(x)
    assert reference.lrn(x, alpha=2, beta=3, out=out) is out
    np.testing.assert_allclose(out, 2 * y + 3, rtol=1e-14)
    expected = dy - 2 * reference.lrn_backward(dy, x, y)
    assert reference.lrn_backward(dy, x, y, alpha=-2, beta=1, out=dy) is dy
    np.testing.assert_allclose(dy, expected, rtol=1e-13)


def test_nothing_in_nothing_out() -> None:
    for shape in ((0, 3, 4), (2, 0, 4)):
        x = np.ones(shape, np.float16)
        assert reference.lrn(x).shape == reference.lrn_backward(x, x, x).shape == shape


def test_what_is_not_finite_is_told_in_silence() -> None:
    y = reference.lrn(np.array([[[np.inf], [1.0], [np.nan]]]), n=3)
    assert np.isnan(y).ravel().tolist() == [True, True, True]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"n": 0}, ValueError, "n must be between 1 and 16: got 0"),
        ({"n": 17}, ValueError, "n must be between 1 and 16: got 17"),
        ({"n": 2.0}, TypeError, "n must be an int: got 2.0"),
        ({"k": 0}, ValueError, "k must be at least 1e-05: got 0"),
        ({"lrn_beta": 0}, ValueError, "lrn_beta must be at least 0.01: got 0"),
        ({"lrn_alpha": "1"}, TypeError, "lrn_alpha must be a number"),
        ({"x": np.ones((2, 3))}, ValueError, r"x has shape \(2, 3\); expected \(N, C"),
        ({"x": np.ones((2, 3, 4), int)}, TypeError, "lrn takes .* not int64"),
        ({"beta": 1}, ValueError, "beta=1 needs out"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        reference.lrn(**({"x": np.ones((2, 3, 4))} | change))


def test_gradients_that_do_not_fit_are_refused() -> None:
    x = np.ones((1, 2, 3))
    with pytest.raises(ValueError, match=r"dy has shape \(1, 2, 1\); x has \(1, 2, 3\)"):
        reference.lrn_backward(x[..., :1], x, x)
    with pytest.raises(TypeError, match="x is float64 and y is float32"):
        reference.lrn_backward(x, x, x.astype(np.float32))


def test_the_limits_are_those_of_cudnn() -> None:
    assert LRN_MAX_CHANNELS == constants.CUDNN_LRN_MAX_N
    least = (0, constants.CUDNN_LRN_MIN_BETA, constants.CUDNN_LRN_MIN_K)
    assert check_lrn_factors(*least) == least
