"""Pooling against loops over single windows, against torch where it is installed, and its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cudnn_ct import reference
from cudnn_ct._bindings.enums import PoolingMode
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.shapes.checks import FLOATS
from cudnn_ct.shapes.pooling import POOLING_MODES
from tests.gradients import assert_gradient

MAXIMA = ("max", "max_deterministic")


@dataclass(frozen=True)
class PoolCase:
    """One pooling to try; ``pairs`` is what ``padding`` says, written out."""

    shape: tuple[int, ...]
    window: tuple[int, ...]
    stride: Any
    padding: Any
    pairs: tuple[tuple[int, int], ...]
    mode: str
    seed: int

    @property
    def keywords(self) -> dict[str, Any]:
        return {"mode": self.mode, **self.geometry}

    @property
    def geometry(self) -> dict[str, Any]:
        return {"window": self.window, "stride": self.stride, "padding": self.padding}

    def integers(self, shape: tuple[int, ...] | None = None, seed: int = 0) -> np.ndarray:
        rng = np.random.default_rng(self.seed + seed)
        return rng.integers(-4, 5, shape or self.shape).astype(np.float64)


@st.composite
def pool_cases(draw: st.DrawFn, modes: tuple[str, ...] = POOLING_MODES) -> PoolCase:
    rank = draw(st.sampled_from((1, 2, 3)))
    window = draw(st.tuples(*[st.integers(1, 4 if rank < 3 else 3)] * rank))
    named = {"valid": lambda k: 0, "half": lambda k: k // 2, "full": lambda k: k - 1}
    padding: Any = draw(st.sampled_from((None, 0, *named)))
    if padding is None:
        padding = pairs = tuple(draw(st.tuples(st.integers(0, k - 1), st.integers(0, k - 1))) for k in window)
    else:
        pairs = tuple((named[padding or "valid"](k),) * 2 for k in window)
    size = tuple(
        draw(st.integers(max(1, k - sum(pair)), max(1, k - sum(pair)) + 4))
        for k, pair in zip(window, pairs, strict=True)
    )
    return PoolCase(
        shape=(draw(st.sampled_from((1, 2, 0))), draw(st.sampled_from((1, 3))), *size),
        window=window,
        stride=draw(st.none() | st.integers(1, 3) | st.tuples(*[st.integers(1, 3)] * rank)),
        padding=padding,
        pairs=pairs,
        mode=draw(st.sampled_from(modes)),
        seed=draw(st.integers(0, 99)),
    )


@given(case=pool_cases(), dtype=st.sampled_from(FLOATS), scaled=st.booleans())
def test_a_window_at_a_time(case: PoolCase, dtype: str, scaled: bool) -> None:
    numpy_dtype = as_dtype(dtype).numpy
    x, expected = case.integers().astype(numpy_dtype), expected_pool(case, case.integers())
    out, keywords = None, {}
    if scaled:
        out = case.integers(expected.shape, 1).astype(numpy_dtype)
        keywords = {"alpha": 2, "beta": -0.5, "out": out}
        expected = 2 * expected - 0.5 * out.astype(np.float64)
    y = reference.pool(x, **case.keywords, **keywords)
    assert y.dtype == x.dtype
    assert y.shape == reference.pool_output_shape(x.shape, **case.geometry)
    if scaled:
        assert y is out
    # Averages of float64 are quotients of exact sums, so even they agree to the last bit; narrower types
    # round them once, bfloat16 by way of float32 here, so only nearly.
    if dtype == "bfloat16" and case.mode.startswith("average"):
        np.testing.assert_allclose(y.astype(float), expected, rtol=2**-8, atol=2**-8)
    else:
        np.testing.assert_array_equal(y, expected.astype(numpy_dtype))


@given(case=pool_cases(modes=MAXIMA))
def test_int8_has_maxima(case: PoolCase) -> None:
    x = case.integers().astype(np.int8)
    y = reference.pool(x, **case.keywords)
    assert y.dtype == np.int8
    np.testing.assert_array_equal(y, expected_pool(case, case.integers()))


@given(case=pool_cases())
def test_gradient_goes_where_the_output_came_from(case: PoolCase) -> None:
    x = case.integers()
    y = reference.pool(x, **case.keywords)
    dy = case.integers(y.shape, 1)
    dx = reference.pool_backward(dy, x, y, **case.keywords)
    np.testing.assert_allclose(dx, expected_gradient(case, x, dy), rtol=0, atol=1e-13)


@given(case=pool_cases())
def test_gradient_by_differences(case: PoolCase) -> None:
    rng = np.random.default_rng(case.seed)
    x = rng.permutation(np.prod(case.shape, dtype=int)).reshape(case.shape) / 7  # no ties
    y = reference.pool(x, **case.keywords)
    dy = rng.standard_normal(y.shape)
    dx = reference.pool_backward(dy, x, y, **case.keywords)
    assert_gradient(dx, lambda v: reference.pool(v, **case.keywords), x, dy)


@given(case=pool_cases())
def test_against_torch(case: PoolCase) -> None:
    torch = pytest.importorskip("torch")
    assume(torch_has(case))
    rank = len(case.window)
    x = torch.from_numpy(np.random.default_rng(case.seed).standard_normal(case.shape)).requires_grad_()
    where = {"stride": case.stride, "padding": tuple(before for before, _ in case.pairs)}
    if case.mode in MAXIMA:
        y = getattr(torch.nn.functional, f"max_pool{rank}d")(x, case.window, **where)
    else:
        average = getattr(torch.nn.functional, f"avg_pool{rank}d")
        y = average(x, case.window, **where, count_include_pad=case.mode != "average_exc_pad")
        y = y * np.prod(case.window) if case.mode == "sum" else y
    ours = reference.pool(x.detach().numpy(), **case.keywords)
    np.testing.assert_allclose(ours, y.detach().numpy(), rtol=0, atol=1e-12)
    dy = torch.from_numpy(np.random.default_rng(1).standard_normal(y.shape))
    if dy.numel():
        y.backward(dy)
        dx = reference.pool_backward(dy.numpy(), x.detach().numpy(), ours, **case.keywords)
        np.testing.assert_allclose(dx, x.grad.numpy(), rtol=0, atol=1e-12)


def test_gradients_scale_and_add() -> None:
    x = np.array([[[1, 4, 2, 3]]], np.float16)
    for mode, expected in (("max", [0, 6, 0, 2]), ("sum", [6, 6, 2, 2])):
        y = reference.pool(x, window=2, mode=mode)
        out, dy = np.full_like(x, 10), np.array([[[3, 1]]], np.float16)
        dx = reference.pool_backward(dy, x, y, window=2, mode=mode, alpha=2, beta=0.5, out=out)
        assert dx is out
        assert dx.ravel().tolist() == [5 + n for n in expected]


def test_the_padding_is_never_the_largest() -> None:
    x = np.array([[[-3.0, -np.inf, -np.inf, -2.0]]])
    y = reference.pool(x, window=2, stride=1, padding=1)
    assert y.ravel().tolist() == [-3, -3, -np.inf, -2, -2]
    dx = reference.pool_backward(np.array([[[1.0, 2, 4, 8, 16]]]), x, y, window=2, stride=1, padding=1)
    assert dx.ravel().tolist() == [3, 4, 0, 24]


def test_nan_wins_or_loses() -> None:
    x = np.array([[[1.0, np.nan, 5.0, np.nan, np.nan, 2.0]]])
    dy = np.array([[[1.0, 2.0]]])
    won = reference.pool(x, window=3)
    assert np.isnan(won).all()
    assert reference.pool_backward(dy, x, won, window=3).ravel().tolist() == [0, 1, 0, 2, 0, 0]
    lost = reference.pool(x, window=3, propagate_nan=False)
    assert lost.ravel().tolist() == [5, 2]
    dx = reference.pool_backward(dy, x, lost, window=3, propagate_nan=False)
    assert dx.ravel().tolist() == [0, 0, 1, 0, 0, 2]
    alone = reference.pool(x[..., 3:5], window=2, propagate_nan=False)
    assert alone.item() == -np.inf


def test_infinities_of_both_signs_average_to_nan() -> None:
    x = np.array([[[np.inf, -np.inf]]])
    assert np.isnan(reference.pool(x, window=2, mode="average")).all()


def test_equal_elements_share_nothing() -> None:
    x = np.ones((1, 1, 2, 2))
    dx = reference.pool_backward(np.array([[[[7.0]]]]), x, x[:, :, :1, :1], window=2)
    assert dx.tolist() == [[[[7, 0], [0, 0]]]]


def test_global_is_the_whole_image() -> None:
    x = np.arange(24.0).reshape(1, 2, 3, 4)
    y = reference.pool(x, window="global", mode="average")
    np.testing.assert_array_equal(y, x.mean(axis=(2, 3), keepdims=True))


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("average", "average_inc_pad"),
        (PoolingMode.MAX, "max"),
        (PoolingMode.AVERAGE_COUNT_INCLUDE_PADDING, "average_inc_pad"),
        (PoolingMode.AVERAGE_COUNT_EXCLUDE_PADDING, "average_exc_pad"),
    ],
)
def test_modes_have_several_names(name: Any, mode: str) -> None:
    x = np.arange(5.0).reshape(1, 1, 5)
    by_name = reference.pool(x, window=3, padding=1, mode=name)
    np.testing.assert_array_equal(by_name, reference.pool(x, window=3, padding=1, mode=mode))


@pytest.mark.parametrize("mode", POOLING_MODES)
def test_an_empty_batch_gives_an_empty_result(mode: str) -> None:
    x = np.ones((0, 3, 4, 4), np.float32)
    y = reference.pool(x, window=2, mode=mode)
    assert y.shape == (0, 3, 2, 2)
    assert reference.pool_backward(y, x, y, window=2, mode=mode).shape == x.shape


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"window": 9}, ValueError, "window of 9 is larger than spatial axis 0: the input has 5 .* 0 = 5"),
        ({"window": (3, 3, 3)}, ValueError, r"window \(3, 3, 3\) has 3 axes; x of shape .* has 2 spatial"),
        ({"window": 0}, ValueError, "window must be between 1"),
        ({"window": "all"}, ValueError, "or 'global': got 'all'"),
        ({"window": 2.5}, TypeError, "window must be an int"),
        (
            {"padding": 2},
            ValueError,
            r"padding \(2, 2\) of spatial axis 0 must be smaller than the window, 2",
        ),
        ({"padding": ((0, 0), (0, 2))}, ValueError, r"padding \(0, 2\) of spatial axis 1"),
        ({"padding": -1}, ValueError, "padding must be between 0"),
        ({"stride": 0}, ValueError, "stride must be between 1"),
        ({"mode": "median"}, ValueError, "mode must be one of max, max_deterministic, average_inc_pad"),
        ({"propagate_nan": "ignore"}, TypeError, "propagate_nan must be True or False"),
        ({"x": np.ones((5, 5))}, ValueError, r"x has shape \(5, 5\); expected \(N, C"),
        ({"x": np.ones((1, 1, 0, 5))}, ValueError, "each spatial axis needs an element"),
        ({"x": np.ones((1, 1, 5, 5), int)}, TypeError, "pooling with mode='max' takes .* not int64"),
        ({"x": np.ones((1, 1, 5, 5), np.int8), "mode": "sum"}, TypeError, "mode='sum' takes .* not int8"),
        ({"beta": 1}, ValueError, "beta=1 needs out"),
        ({"out": np.ones((1, 1, 2, 3))}, ValueError, r"out has shape \(1, 1, 2, 3\)"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        reference.pool(**({"x": np.ones((1, 1, 5, 5)), "window": 2} | change))


def test_gradients_that_do_not_fit_are_refused() -> None:
    x, y = np.ones((1, 1, 6)), np.ones((1, 1, 3))
    with pytest.raises(
        ValueError, match=r"dy has shape \(1, 1, 6\); pooling x of shape .* gives \(1, 1, 3\)"
    ):
        reference.pool_backward(x, x, y, window=2)
    with pytest.raises(ValueError, match=r"y has shape \(1, 1, 6\)"):
        reference.pool_backward(y, x, x, window=2)
    with pytest.raises(TypeError, match="x is float64 and y is float32"):
        reference.pool_backward(y, x, y.astype(np.float32), window=2)


def torch_has(case: PoolCase) -> bool:
    """Torch pads both sides alike, by half a window at most; a window in a volume fits without padding."""
    return all(
        before == after <= k // 2 and (n >= k or len(case.window) < 3)
        for n, k, (before, after) in zip(case.shape[2:], case.window, case.pairs, strict=True)
    )


# --- the independent implementation ------------------------------------------------------------------------


def expected_pool(case: PoolCase, x: np.ndarray) -> np.ndarray:
    y = np.zeros(expected_shape(case))
    for place, elements in windows(case):
        for plane in np.ndindex(*case.shape[:2]):
            y[(*plane, *place)] = one_window(case, [float(x[(*plane, *e)]) for e in elements])
    return y


def expected_gradient(case: PoolCase, x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    dx = np.zeros(case.shape)
    for place, elements in windows(case):
        for plane in np.ndindex(*case.shape[:2]):
            values, gradient = [float(x[(*plane, *e)]) for e in elements], dy[(*plane, *place)]
            if case.mode in MAXIMA:
                dx[(*plane, *elements[values.index(max(values))])] += gradient
                continue
            for element in elements:
                dx[(*plane, *element)] += gradient * one_window(case, [1.0] * len(values)) / len(values)
    return dx


def one_window(case: PoolCase, values: list[float]) -> float:
    count = {"sum": 1, "average_exc_pad": len(values)}.get(case.mode, int(np.prod(case.window)))
    return max(values) if case.mode in MAXIMA else sum(values) / count


def windows(case: PoolCase) -> Iterator[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
    """Each place of the window, and the elements that it covers, in C order."""
    axes = []
    for n, k, s, (before, _), out in zip(
        case.shape[2:], case.window, strides(case), case.pairs, expected_shape(case)[2:], strict=True
    ):
        starts = [p * s - before for p in range(out)]
        axes.append([[i for i in range(start, start + k) if 0 <= i < n] for start in starts])
    for place in np.ndindex(*expected_shape(case)[2:]):
        yield place, list(product(*(axis[p] for axis, p in zip(axes, place, strict=True))))


def expected_shape(case: PoolCase) -> tuple[int, ...]:
    sizes = zip(case.shape[2:], case.window, strides(case), case.pairs, strict=True)
    lengths = (len(range(-before, n + after - k + 1, s)) for n, k, s, (before, after) in sizes)
    return (*case.shape[:2], *lengths)


def strides(case: PoolCase) -> tuple[int, ...]:
    if isinstance(case.stride, int):
        return (case.stride,) * len(case.window)
    return case.window if case.stride is None else case.stride
