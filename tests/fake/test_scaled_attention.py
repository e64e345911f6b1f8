"""Attention of float8 on the fakes, which compute its graph node by node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context as contexts
from cudnn_ct._lib import load
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import NotInitializedError, NotSupportedError
from cudnn_ct.ops.attention import scaled
from cudnn_ct.shapes.attention import scaled_attention_problem
from cudnn_ct.shapes.specs import TensorSpec
from tests.layers import Place
from tests.scaled_attention_cases import CASES, check, operands_of
from tests.strategies import placing

from .cudnn import FakeCudnn
from .host import ForeignArray, Host


def exact(q: Any, k: Any, v: Any, **keywords: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the result of attention in float64, and its statistics."""
    return ct.reference.attention(q, k, v, return_stats=True, **keywords)


@pytest.mark.parametrize("name", CASES)
def test_scaled_attention_equals_float64(fake: FakeCudnn, place: Place, name: str) -> None:
    check(CASES[name], place, exact)
    check(CASES[name], ct.asarray, exact)


@pytest.mark.parametrize("name", CASES)
def test_reference_of_scaled_attention_equals_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ct, "scaled_attention", ct.reference.scaled_attention)
    monkeypatch.setattr(ct, "asarray", lambda array: np.asarray(array).view(Numbers))
    check(CASES[name], np.asarray, exact)


class Numbers(np.ndarray):
    """A NumPy array with the method of an array on a device."""

    def numpy(self) -> np.ndarray:
        return np.asarray(self)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_scaled_attention_writes_half_precision(fake: FakeCudnn, dtype: str) -> None:
    arrays, _, _ = operands_of(CASES["plain"])
    given = [np.ascontiguousarray(one) for one in arrays]
    y, rounded = (
        ct.scaled_attention(*map(ct.asarray, given), out_dtype=each).y for each in (dtype, "float8_e4m3")
    )
    assert y.dtype.name == dtype
    values, expected = (one.numpy().astype(np.float32) for one in (y, rounded))
    np.testing.assert_allclose(values, expected, rtol=1 / 14, atol=2.0**-9)  # of float8
    empty = [one[:, :, :0] for one in given[1:]]
    nothing = ct.scaled_attention(ct.asarray(given[0]), *map(ct.asarray, empty), out_dtype=dtype).y
    assert not nothing.numpy().astype(np.float32).any()


def test_scaled_attention_accepts_misaligned_operands(fake: FakeCudnn, host: Host) -> None:
    place = placing(lambda array: ForeignArray(host, array), 1, 0, 3, 5, 2)
    for name in ("plain", "causal, bshd"):
        check(CASES[name], place, exact)


def test_scaled_attention_returns_only_what_is_requested(fake: FakeCudnn) -> None:
    arrays, _, keywords = operands_of(CASES["plain"])
    device = [ct.asarray(one) for one in arrays]
    keywords = {name: ct.asarray(one) for name, one in keywords.items() if name != "causal"}
    every = ct.scaled_attention(*device, return_stats=True, amax=True, **keywords)
    for wanted in ((False, False), (True, False), (False, True)):
        found = ct.scaled_attention(*device, return_stats=wanted[0], amax=wanted[1], **keywords)
        np.testing.assert_array_equal(found.y.numpy(), every.y.numpy())
        for one, whole, given in zip(found[1:], every[1:], wanted, strict=True):
            assert (one is not None) == given
            if one is not None and whole is not None:
                np.testing.assert_array_equal(one.numpy(), whole.numpy())


def test_scaled_attention_writes_into_memory(fake: FakeCudnn) -> None:
    arrays, _, _ = operands_of(CASES["sliced"])
    device = [ct.asarray(np.ascontiguousarray(one)) for one in arrays]
    expected = ct.scaled_attention(*device, return_stats=True, amax=True)
    out = ct.asarray(np.zeros((*arrays[0].shape[:3], 67), arrays[0].dtype))[..., 1:65]
    stats, amax = ct.zeros(arrays[0].shape[:3]), ct.full((1,), 1e6)
    for outs, requested in (
        ((out, stats, amax), (True, True)),
        ((out, None, amax), (False, True)),
        ((out, stats), (True, False)),
        (out, (False, False)),
    ):
        found = ct.scaled_attention(*device, return_stats=requested[0], amax=requested[1], out=outs)
        np.testing.assert_array_equal(out.numpy(), expected.y.numpy())
        assert found.y.pointer == out.pointer
    np.testing.assert_array_equal(stats.numpy(), expected.stats.numpy())
    np.testing.assert_array_equal(amax.numpy(), expected.amax.numpy())


def test_scaled_attention_is_replayed_with_amax_of_the_last_call(fake: FakeCudnn) -> None:
    arrays, _, _ = operands_of(CASES["plain"])
    q, k, v = (ct.asarray(one) for one in arrays)
    half, amax, y = ct.asarray(np.ones(1, np.float32)), ct.empty((1,)), ct.empty(q.shape, "float8_e4m3")
    first = ct.scaled_attention(q, k, v, amax=True).amax
    for count in range(20):
        ct.fill(half, 2.0**-count)
        ct.scaled_attention(q, k, v, descale_v=half, amax=True, out=(y, None, amax))
        np.testing.assert_allclose(amax.numpy(), first.numpy() * 2.0**-count)


@pytest.mark.parametrize(
    ("shape", "keys"), [((0, 4, 8, 16), 8), ((2, 4, 0, 16), 8), ((2, 4, 8, 16), 0), ((2, 0, 8, 16), 4)]
)
def test_scaled_attention_of_empty_operands_is_filled(
    fake: FakeCudnn, shape: tuple[int, ...], keys: int
) -> None:
    q, k = (ct.zeros(one, "float8_e4m3") for one in (shape, (*shape[:2], keys, 16)))
    amax = ct.full((1,), 5)
    y, stats, _ = ct.scaled_attention(q, k, k, return_stats=True, amax=True, out=(None, None, amax))
    np.testing.assert_array_equal(y.numpy().astype(np.float32), np.zeros(shape))
    np.testing.assert_array_equal(stats.numpy(), np.full(shape[:3], -np.inf))
    np.testing.assert_array_equal(amax.numpy(), [0])
    expected = ct.reference.scaled_attention(q.numpy(), k.numpy(), k.numpy(), return_stats=True, amax=True)
    np.testing.assert_array_equal(expected.stats, stats.numpy())
    np.testing.assert_array_equal(expected.amax, [0])


def test_scaled_attention_is_recorded_on_shapes(fake: FakeCudnn) -> None:
    with ct.record_plans(shapes_only=True) as recorded:
        y, stats, amax = ct.scaled_attention(*[heads()] * 3, return_stats=True, amax=True)
        assert (y.shape, stats.shape, amax.shape) == ((1, 2, 4, 16), (1, 2, 4), (1,))
    assert (len(recorded), recorded.skipped) == (1, {})


def test_captured_scaled_attention_needs_an_earlier_call(fake: FakeCudnn) -> None:
    context = contexts.current(streams.resolve_stream(None))
    with pytest.raises(NotInitializedError, match="scales were not seen before on this stream"):
        scaled._defaults_of(Capturing(context))


class Capturing:
    """A context whose stream is captured."""

    capturing = True

    def __init__(self, context: Any) -> None:
        self.plans = context.plans


def heads(*shape: int, dtype: str = "float8_e4m3") -> Any:
    return ct.zeros(shape or (1, 2, 4, 16), dtype)


def test_scaled_attention_needs_a_tested_version(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load(), "version", 91301)
    with pytest.raises(NotSupportedError, match=r"from cuDNN 9\.14\.0 on"):
        ct.scaled_attention(*[heads()] * 3)


@pytest.mark.parametrize(
    ("queries", "amax", "masked"),
    [(2, True, True), (130, True, True), (256, True, False), (130, False, False)],
)
def test_rows_that_are_no_queries_are_masked_where_amax_counts_them(
    queries: int, amax: bool, masked: bool
) -> None:
    x = TensorSpec.packed((2, 1, queries, 16), "float8_e4m3")
    outs = (None,) * (1 + amax)
    problem = scaled_attention_problem(dict.fromkeys("qkv", x), outs, False, amax, None, False, None)
    core = scaled.completed(problem)
    assert (problem.lengths_q, problem.lengths_kv) == (None, None)
    assert {core.lengths_q, core.lengths_kv} == {TensorSpec.packed((2,), "int32") if masked else None}
