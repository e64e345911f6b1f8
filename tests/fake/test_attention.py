"""Attention on the fakes, which compute its graph node by node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.errors import NotSupportedError
from cudnn_ct.ops._state import DeviceNumbers
from tests.attention_cases import (
    CASES,
    NO_GRADIENT,
    case,
    check_backward,
    check_forward,
    operands_of,
    random_case,
)
from tests.built_attention import BUILT, BUILT_GRADIENTS, check_built, check_built_backward
from tests.layers import Place
from tests.nightly import some
from tests.strategies import placing

from .attention_graphs import kept_weights
from .cudnn import FakeCudnn
from .host import ForeignArray, Host

SIDE = 0x5500


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


@pytest.fixture(autouse=True)
def _engines(fake: FakeCudnn) -> None:
    fake.engines = True


@pytest.mark.parametrize("name", CASES)
def test_attention_equals_reference(place: Place, name: str) -> None:
    check_forward(CASES[name], place)
    check_forward(CASES[name], ct.asarray)


@pytest.mark.parametrize("name", some([name for name in CASES if name not in NO_GRADIENT], 2))
def test_attention_backward_equals_reference(place: Place, name: str) -> None:
    check_backward(CASES[name], place)
    check_backward(CASES[name], ct.asarray, deterministic=True)


def test_attention_ignores_a_setting_that_names_an_algorithm_of_convolutions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ct.config, "algo", "winograd")
    q = ct.zeros((1, 1, 2, 8), "float16")
    assert ct.attention(q, q, q).y.shape == q.shape


@pytest.mark.parametrize("seed", range(40))
def test_random_attention_equals_reference(place: Place, seed: int) -> None:
    given = random_case(seed)
    try:
        check_forward(given, place)
        check_backward(given, place)
    except NotSupportedError as error:
        assert "cuDNN" in str(error)


def test_attention_accepts_misaligned_operands(host: Host) -> None:
    place = placing(lambda array: ForeignArray(host, array), 1, 0, 3, 5, 2)
    check_forward(CASES["plain"], place)
    check_backward(CASES["bias"], place)


def test_attention_keeps_the_memory_order_of_q() -> None:
    q, k, v = operands_of(CASES["bshd"]).arrays
    q, k, v = (ct.asarray(x.swapaxes(1, 2).copy()).transpose((0, 2, 1, 3)) for x in (q, k, v))
    y = ct.attention(q, k, v).y
    assert y.spec.strides[1] < y.spec.strides[2]


@pytest.mark.parametrize("view", ["interleaved", "heads first", "sliced"])
def test_packed_attention_of_views_equals_that_of_contiguous_operands(view: str) -> None:
    """Operands, results and their copies share offsets, so their tokens need equal strides."""
    rng, offsets, causal = np.random.default_rng(0), [0, 5, 8, 20], "bottom_right"

    def views() -> list[ct.DeviceArray]:
        whole = rng.standard_normal((20, 3, 2, 16 if view != "sliced" else 19)).astype("float16")
        if view == "heads first":
            return [ct.asarray(whole[:, i].swapaxes(0, 1).copy()).transpose((1, 0, 2)) for i in range(3)]
        array = ct.asarray(whole)
        return [array[:, i] if view == "interleaved" else array[:, i, :, 1:17] for i in range(3)]

    def results(
        given: list[ct.DeviceArray], dy: ct.DeviceArray, outs: list[ct.DeviceArray | None]
    ) -> list[np.ndarray]:
        arguments: dict[str, Any] = {"offsets_q": offsets, "offsets_kv": offsets, "causal": causal}
        y, stats = ct.attention(*given, return_stats=True, out=(outs[0], None), **arguments)
        gradients = ct.attention_backward(dy, *given, y, stats, out=(*outs[1:], None), **arguments)
        return [one.numpy() for one in (y, stats, *gradients[:3])]

    given, (dy, *_) = views(), views()
    plain = [ct.asarray(one.numpy()) for one in (*given, dy)]
    expected = results(plain[:3], plain[3], [None] * 4)
    for outs in ([None] * 4, [*views()[:1], *views()]):
        for found, right in zip(results(given, dy, outs), expected, strict=True):
            np.testing.assert_array_equal(found, right)


def test_attention_writes_into_memory(place: Place) -> None:
    given = CASES["sliced"]
    (q, k, v), _, _ = operands_of(given)
    expected = ct.attention(*map(ct.asarray, (q, k, v)), return_stats=True)
    out = ct.asarray(np.zeros((*q.shape[:3], 67), np.float16))[..., 1:65]
    stats = ct.empty(q.shape[:3])
    found = ct.attention(*map(ct.asarray, (q, k, v)), return_stats=True, out=(out, stats))
    np.testing.assert_array_equal(out.numpy(), expected.y.numpy())
    np.testing.assert_array_equal(stats.numpy(), expected.stats.numpy())
    assert found.y.pointer == out.pointer


def test_attention_drops_weights_by_seed() -> None:
    (q, k, v), _, dy = operands_of(case(queries=8, keys=16, head=16, value_head=16))
    device = [ct.asarray(x) for x in (q, k, v)]
    arguments: dict[str, Any] = {"dropout": 0.25, "seed": 3, "offset": ct.asarray(np.array([5]))}
    y, stats = ct.attention(*device, return_stats=True, **arguments)
    kept = kept_weights((2, 4, 8, 16), 3, 5, 0.75)
    wide = [x.astype(float) for x in (q, k, v)]
    expected = ct.reference.attention(*wide, dropout=0.25, kept=kept, return_stats=True)
    np.testing.assert_allclose(y.numpy(), expected.y, atol=4e-3)
    found = ct.attention_backward(ct.asarray(dy), *device, y, stats, **arguments)
    right = ct.reference.attention_backward(dy.astype(float), *wide, *expected, dropout=0.25, kept=kept)
    for gradient, one in zip(found[:3], right[:3], strict=True):
        np.testing.assert_allclose(gradient.numpy(), one, atol=2e-2)


def test_attention_with_dropout_accepts_misaligned_operands(host: Host) -> None:
    """Each operand may need a copy, which is planned also for the seeds."""
    (q, k, v), _, _ = operands_of(case(queries=8, keys=16, head=16, value_head=16))
    place = placing(lambda array: ForeignArray(host, array), 1, 0, 3)
    arguments: dict[str, Any] = {"dropout": 0.25, "seed": 3, "offset": ct.asarray(np.array([1, 5]))[1:]}
    expected = ct.attention(*map(ct.asarray, (q, k, v)), **arguments | {"offset": 5}).y
    np.testing.assert_array_equal(
        ct.attention(*map(place, (q, k, v)), **arguments).y.numpy(), expected.numpy()
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention_takes_a_mask_that_is_true_where_queries_attend(dtype: str) -> None:
    q, k, v = (ct.asarray(x).astype(dtype) for x in operands_of(case(queries=8, keys=16)).arrays)
    mask = np.random.default_rng(0).random((2, 1, 8, 16)) < 0.5
    mask[0, 0, 3] = False  # a query without keys
    found = ct.attention(q, k, v, bias=ct.asarray(mask), return_stats=True)
    bias = ct.asarray(np.where(mask, 0, -np.inf).astype(np.float32)).astype(dtype)
    expected = ct.attention(q, k, v, bias=bias, return_stats=True)
    np.testing.assert_array_equal(found.y.numpy(), expected.y.numpy())
    np.testing.assert_array_equal(found.stats.numpy(), expected.stats.numpy())
    np.testing.assert_array_equal(found.y.numpy()[0, :, 3], 0)


@pytest.mark.parametrize(
    ("shape", "keys"), [((0, 4, 8, 16), 8), ((2, 4, 0, 16), 8), ((2, 4, 8, 16), 0), ((2, 4, 0, 16), 0)]
)
def test_attention_of_empty_operands_is_filled(shape: tuple[int, ...], keys: int) -> None:
    q, k = ct.zeros(shape, "float16"), ct.zeros((shape[0], 4, keys, 16), "float16")
    y, stats = ct.attention(q, k, k, return_stats=True)
    np.testing.assert_array_equal(y.numpy(), np.zeros(shape))
    np.testing.assert_array_equal(stats.numpy(), np.full(shape[:3], -np.inf))
    dq, dk, dv, _ = ct.attention_backward(y, q, k, k, y, stats)
    for gradient, one in ((dq, q), (dk, k), (dv, k)):
        np.testing.assert_array_equal(gradient.numpy(), np.zeros(one.shape))


def test_attention_is_replayed_with_the_numbers_of_the_call(place: Place) -> None:
    q = ct.asarray(operands_of(CASES["plain"]).arrays[0])
    lengths = ct.asarray(np.array([3, 64], np.int32))
    out = ct.empty(q.shape, "float16")
    for count in range(20):
        lengths = ct.asarray(np.array([count + 1, 64], np.int32)) if count == 10 else lengths
        ct.attention(q, q, q, lengths_q=lengths, lengths_kv=lengths, out=out)
        expected = ct.reference.attention(
            *[q.numpy()] * 3, **dict.fromkeys(("lengths_q", "lengths_kv"), lengths.numpy())
        )
        np.testing.assert_allclose(out.numpy(), expected.y, atol=4e-3)


REJECTED = [
    ("D of 12", {"head": 12, "value_head": 12}, NotSupportedError, "not a multiple of 8: got 12"),
    ("one key", {"keys": 1}, NotSupportedError, "not supported for one key"),
    ("bias of one query", {"bias": "k", "queries": 1}, NotSupportedError, "of the bias of one query"),
]


@pytest.mark.parametrize(
    ("fields", "kind", "message"), [row[1:] for row in REJECTED], ids=[r[0] for r in REJECTED]
)
def test_attention_backward_rejects_what_cudnn_computes_wrong(fields: Any, kind: Any, message: str) -> None:
    (q, k, v), keywords, dy = operands_of(case(**fields))
    y, stats = dy, np.zeros(dy.shape[:3], np.float32)
    arrays = map(ct.asarray, (dy, q, k, v, y, stats))
    with pytest.raises(kind, match=message):
        ct.attention_backward(
            *arrays, dbias="bias" in keywords, **{n: ct.asarray(a) for n, a in keywords.items()}
        )


def test_numbers_of_the_host_in_a_capture_name_arrays_on_the_device(host: Host) -> None:
    q, y = (ct.zeros((1, 2, 8, 64), "float16") for _ in range(2))
    calls = {
        "seed": lambda: ct.attention(q, q, q, dropout=0.5, seed=1, offset=0, out=y, stream=0x77),
        "array": lambda: ct.asarray(np.zeros((2, 3), np.float32), stream=0x77),
    }
    host.capturing.add(0x77)
    for name, call in calls.items():
        with pytest.raises(ct.NotInitializedError) as caught:
            call()
        assert "numbers, such as a seed, may be arrays on the device" in str(caught.value), name


def test_offsets_of_packed_sequences_may_be_arrays() -> None:
    q = ct.full((6, 2, 8), 1, "float16")
    starts = np.array([0, 2, 6])
    y = ct.attention(q, q, q, offsets_q=starts, offsets_kv=starts).y.numpy()
    np.testing.assert_array_equal(y, np.ones((6, 2, 8), np.float16))
    host = np.ones((6, 2, 8), np.float16)
    np.testing.assert_array_equal(
        ct.reference.attention(host, host, host, offsets_q=starts, offsets_kv=starts).y, host
    )


@pytest.mark.parametrize("name", BUILT)
def test_built_graph_of_attention_equals_reference(name: str) -> None:
    check_built(CASES[name])


@pytest.mark.parametrize("name", some(BUILT_GRADIENTS, 2))
def test_built_graph_of_gradients_equals_reference(name: str) -> None:
    check_built_backward(CASES[name])
    check_built_backward(CASES[name], deterministic=True)


def test_built_graph_of_attention_takes_a_page_table_for_each_of_k_and_v() -> None:
    check_built(CASES["paged"], two_tables=True)
    check_built(CASES["paged"], algo="autotune")


@pytest.mark.parametrize("masked", [{"causal": "bottom_right"}, {"causal": "bottom_right", "window": (0, 0)}])
def test_packed_sequences_with_queries_without_keys_are_rejected(masked: Any) -> None:
    q, k = ct.zeros((5, 2, 64), "float16"), ct.zeros((2, 2, 64), "float16")
    with pytest.raises(ValueError, match="sequence 0 has queries without keys: got 5 queries and 2 keys"):
        ct.attention(q, k, k, offsets_q=[0, 5], offsets_kv=[0, 2], **masked)
    assert ct.attention(k, q, q, offsets_q=[0, 2], offsets_kv=[0, 5], **masked).y.shape == (2, 2, 64)


@pytest.mark.parametrize("lengths", [{}, {"lengths_q": [5]}])
def test_pages_with_queries_without_keys_are_rejected(lengths: Any) -> None:
    q, pages = ct.zeros((1, 2, 5, 64), "float16"), ct.zeros((2, 2, 16, 64), "float16")
    table = ct.asarray(np.array([[0, 1]], np.int32))
    with pytest.raises(ValueError, match="sequence 0 has queries without keys: got 5 queries and 2 keys"):
        ct.attention(q, pages, pages, page_table=table, lengths_kv=[2], causal="bottom_right", **lengths)


@pytest.mark.parametrize("lengths", [{}, {"lengths_q": [5]}])
def test_pages_with_queries_that_a_window_leaves_no_keys_have_zeros(lengths: Any) -> None:
    q, pages = ct.full((1, 2, 5, 64), 1, "float16"), ct.full((2, 2, 16, 64), 3, "float16")
    table = ct.asarray(np.array([[0, 1]], np.int32))
    arguments: dict[str, Any] = {"lengths_kv": [2], "window": (1, 0), **lengths}
    y, stats = ct.attention(q, pages, pages, page_table=table, return_stats=True, **arguments)
    np.testing.assert_array_equal(y.numpy()[0, 0, :, 0], [3, 3, 3, 0, 0])
    np.testing.assert_array_equal(np.isneginf(stats.numpy())[0, 0], [False, False, False, True, True])


@pytest.mark.parametrize("on_device", [False, True])
def test_windows_that_leave_queries_without_keys_give_zeros(on_device: bool) -> None:
    given = case(lengths=((64, 40), (20, 40)), window=(5, 3), kv_heads=2)
    (q, k, v), keywords, dy = operands_of(given)
    expected = ct.reference.attention(*[x.astype(float) for x in (q, k, v)], return_stats=True, **keywords)
    assert np.isneginf(expected.stats[0, :, 25:]).all()
    if on_device:
        keywords |= {name: ct.asarray(keywords[name]) for name in ("lengths_q", "lengths_kv")}
    device = [ct.asarray(x) for x in (q, k, v)]
    y, stats = ct.attention(*device, return_stats=True, **keywords)
    np.testing.assert_allclose(y.numpy(), expected.y, atol=4e-3)
    np.testing.assert_array_equal(np.isneginf(stats.numpy()), np.isneginf(expected.stats))
    dq = ct.attention_backward(ct.asarray(dy), *device, y, stats, **keywords).dq
    np.testing.assert_array_equal(dq.numpy()[0, :, 25:], 0)


@pytest.mark.parametrize("on_device", [False, True])
def test_packed_sequences_with_gaps_equal_those_without(on_device: bool) -> None:
    """Rows of the gaps are NaN as operands of queries, and have the results of queries without keys."""
    rng, offsets, lengths = np.random.default_rng(0), [0, 5, 8, 20], [3, 3, 7]
    q, k, v, dy = rng.standard_normal((4, 20, 2, 16)).astype(np.float16)
    inside = np.concatenate([np.arange(a, a + n) for a, n in zip(offsets, lengths, strict=False)])
    gaps = np.setdiff1d(np.arange(20), inside)
    q[gaps] = dy[gaps] = np.nan
    packed = {"offsets_q": [0, 3, 6, 13], "offsets_kv": [0, 3, 6, 13]}
    given: dict[str, Any] = {"offsets_q": offsets, "offsets_kv": offsets}
    numbers = np.array(lengths, np.int32)
    given |= {name: ct.asarray(numbers) if on_device else lengths for name in ("lengths_q", "lengths_kv")}
    dense = [x[inside] for x in (dy, q, k, v)]
    for arguments in ({}, {"causal": "bottom_right"}):
        results = []
        for (one, *qkv), more in (((dy, q, k, v), given), (dense, packed)):
            device = [ct.asarray(x) for x in qkv]
            y, stats = ct.attention(*device, return_stats=True, **more, **arguments)
            found = ct.attention_backward(ct.asarray(one), *device, y, stats, **more, **arguments)
            results.append([x.numpy() for x in (y, stats, *found[:3])])
        for place, (sparse, right) in enumerate(zip(*results, strict=True)):
            np.testing.assert_array_equal(sparse[inside], right)
            np.testing.assert_array_equal(sparse[gaps], -np.inf if place == 1 else 0)
        mine = given | {"lengths_q": lengths, "lengths_kv": lengths} | arguments
        expected = ct.reference.attention(*[x.astype(float) for x in (q, k, v)], return_stats=True, **mine)
        for sparse, right in zip(results[0][:2], expected, strict=True):
            np.testing.assert_allclose(sparse, right, atol=4e-3)


def with_pages() -> None:
    q, pages = ct.full((2, 1, 4, 8), 1, "float16"), ct.full((4, 1, 4, 8), 1, "float16")
    table, lengths = (ct.asarray(np.array(one, np.int32)) for one in ([[0, 1], [2, 3]], [8, 5]))
    ct.attention(q, pages, pages, page_table=table, lengths_kv=lengths, stream=SIDE)


def with_scales() -> None:
    ct.scaled_attention(*[ct.full((1, 1, 16, 16), 1, "float8_e4m3")] * 3, stream=SIDE)


@pytest.mark.parametrize("call", [with_pages, with_scales])
def test_numbers_that_a_plan_adds_stay_until_the_work_is_done(
    call: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths and scales belong to the default stream, which may use their memory when the plan ends."""
    kept: list[int] = []
    monkeypatch.setattr(DeviceNumbers, "keep_until_done", lambda self, stream: kept.append(stream.handle))
    call()
    assert kept == [SIDE]


# --- padding -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "sliced"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_clear_padding_equals_reference(place: Place, layout: str, dtype: str) -> None:
    x = operands_of(case(layout=layout, batch=3, queries=17, head=16)).arrays[0].astype(as_dtype(dtype).numpy)
    x[1, :, 3:], x[0, :, 1] = np.nan, np.inf
    for lengths in ([17, 2, 0], [1, 17, 16]):
        expected = ct.reference.clear_padding(x, lengths)
        for given in (lengths, ct.asarray(np.array(lengths, np.int32))):
            np.testing.assert_array_equal(wide(ct.clear_padding(place(x), given).numpy()), wide(expected))
    array = ct.asarray(x)
    assert ct.clear_padding(array, [1, 17, 16], out=array).pointer == array.pointer
    np.testing.assert_array_equal(wide(array.numpy()), wide(expected))


def test_attention_of_cleared_operands_ignores_nan_behind_the_lengths() -> None:
    (q, k, v), keywords, _ = operands_of(CASES["lengths"])
    expected = ct.attention(*map(ct.asarray, (q, k, v)), **keywords).y.numpy()
    v[0, :, 50:] = np.nan
    cleared = ct.clear_padding(ct.asarray(v), keywords["lengths_kv"])
    np.testing.assert_array_equal(
        ct.attention(ct.asarray(q), ct.asarray(k), cleared, **keywords).y.numpy(), expected
    )
