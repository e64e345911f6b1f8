"""Attention on a GPU against the reference and PyTorch, and the defects that were reported for cuDNN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.errors import NotSupportedError
from tests.attention_cases import (
    CASES,
    NO_GRADIENT,
    case,
    check_backward,
    check_forward,
    operands_of,
    random_case,
)

from .conftest import library, place

# PyTorch's threads for gradients may be the first to use cuBLAS.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
    pytest.mark.skipif(not ct.config.replay, reason="first calls run without replays here, too"),
]

GRADIENTS = [name for name in CASES if name not in NO_GRADIENT]


@pytest.mark.parametrize("name", CASES)
def test_attention_equals_reference(name: str) -> None:
    check_forward(CASES[name], place)
    print(ct.last_plan())


@pytest.mark.parametrize("name", GRADIENTS)
def test_attention_backward_equals_reference(name: str) -> None:
    check_backward(CASES[name], place)
    print(ct.last_plan())


@pytest.mark.parametrize("name", GRADIENTS)
def test_deterministic_attention_backward_equals_reference(name: str) -> None:
    check_backward(CASES[name], place, deterministic=True)


@pytest.mark.parametrize(
    "name", ["plain", "causal", "bias", "lengths", "grouped heads", "large heads", "one query"]
)
def test_autotuned_attention_equals_reference(name: str) -> None:
    check_forward(CASES[name], place, algo="autotune")
    check_backward(CASES[name], place, algo="autotune")


@pytest.mark.parametrize("seed", range(60))
def test_random_attention_equals_reference(seed: int) -> None:
    """A failing case is printed; `random_case(seed)` repeats it."""
    given = random_case(seed)
    print(given)
    try:
        check_forward(given, place)
        check_backward(given, place)
    except NotSupportedError as error:
        pytest.skip(str(error).splitlines()[0])


@pytest.mark.parametrize("seed", range(100, 130))
def test_random_attention_of_float32_equals_reference(seed: int) -> None:
    given = random_case(seed)
    given = given._replace(dtype="float32", head=min(given.head, 128), value_head=min(given.value_head, 128))
    print(given)
    try:
        check_forward(given, place)
    except NotSupportedError as error:
        pytest.skip(str(error).splitlines()[0])


def test_deterministic_gradients_are_the_same_bits() -> None:
    (q, k, v), _, dy = operands_of(case(queries=512, keys=512, causal=True))
    device = [place(x) for x in (q, k, v)]
    y, stats = ct.attention(*device, causal=True, return_stats=True)
    runs = [
        ct.attention_backward(place(dy), *device, y, stats, causal=True, deterministic=True) for _ in range(5)
    ]
    for run in runs[1:]:
        for one, first in zip(run[:3], runs[0][:3], strict=True):
            np.testing.assert_array_equal(one.numpy(), first.numpy())


def test_every_engine_equals_reference() -> None:
    """All engines that cuDNN has for some cases, forward and backward."""
    for name in ("causal", "grouped heads", "lengths", "bias of heads", "one query"):
        given = CASES[name]
        for number in range(20):
            for check in (check_forward, check_backward):
                try:
                    check(given, place, algo=f"engine {number}", strict=True)
                    print(name, check.__name__, number)
                except NotSupportedError:
                    continue


def test_attention_accepts_misaligned_operands() -> None:
    for name in ("plain", "bias", "lengths"):
        (q, k, v), keywords, _ = operands_of(CASES[name])
        expected = ct.attention(*map(place, (q, k, v)), return_stats=True, **_placed(keywords))

        def shifted(array: np.ndarray) -> Any:
            padded = np.zeros(array.size + 3, array.dtype)
            padded[3:] = array.ravel()
            return place(padded)[3:].reshape(array.shape)

        found = ct.attention(*map(shifted, (q, k, v)), return_stats=True, **_placed(keywords))
        np.testing.assert_array_equal(found.y.numpy(), expected.y.numpy())


def _placed(keywords: dict[str, Any]) -> dict[str, Any]:
    return {name: place(one) if isinstance(one, np.ndarray) else one for name, one in keywords.items()}


# --- defects reported for cuDNN ----------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [64, 128, 192, 320, 704, 1000])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("bias", ["", "qk"])
def test_gradients_of_low_scores_are_finite(keys: int, dtype: str, bias: str) -> None:
    """cudnn-frontend pull request 628, PyTorch issue 196678."""
    check_backward(case(queries=keys, keys=keys, dtype=dtype, level=-120.0, bias=bias), place)


@pytest.mark.parametrize("keys", [64, 97, 128, 192, 2048])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_gradients_of_one_query_are_finite(keys: int, kv_heads: int) -> None:
    """cudnn-frontend issue 1072."""
    for level in (0.0, -120.0):
        check_backward(case(queries=1, keys=keys, kv_heads=kv_heads, level=level), place)


@pytest.mark.parametrize("queries", [1, 2, 5, 100])
def test_gradients_of_few_tokens_are_right(queries: int) -> None:
    """cudnn-frontend issue 160."""
    check_backward(case(queries=queries, keys=max(queries, 2)), place)


@pytest.mark.parametrize("window", [None, (40, 0)])
def test_decoding_with_grouped_heads_and_a_causal_mask_is_right(window: Any) -> None:
    """Known issue of the release notes: one query, a causal mask, fewer heads of keys."""
    for lengths in (None, ((1, 1), (700, 33))):
        given = case(
            queries=1, keys=700, heads=8, kv_heads=2, lengths=lengths, causal="bottom_right", window=window
        )
        check_forward(given, place)


def test_queries_without_keys_have_zeros_and_minus_infinity() -> None:
    for given in (
        case(causal="bottom_right", queries=200, keys=72),
        case(lengths=((64, 20), (0, 64))),
        case(lengths=((64, 64), (0, 0))),
        case(lengths=((0, 0), (64, 64))),
        case(lengths=((64, 30), (30, 10)), causal="bottom_right"),
        case(queries=1, lengths=((1, 0), (64, 64))),
        case(queries=1, kv_heads=1, lengths=((0, 1), (30, 64))),
        case(queries=1, lengths=((0, 1), (64, 5)), causal="top_left"),
    ):
        (q, k, v), keywords, dy = operands_of(given)
        # Lengths on the device are not checked.
        y, stats = ct.attention(*map(place, (q, k, v)), return_stats=True, **_placed_torch(keywords))
        expected = ct.reference.attention(
            *[x.astype(float) for x in (q, k, v)], return_stats=True, **keywords
        )
        rows = np.isneginf(expected.stats)
        assert rows.any()
        np.testing.assert_array_equal(y.numpy()[rows], 0)
        np.testing.assert_array_equal(stats.numpy()[rows], -np.inf)
        found = ct.attention_backward(place(dy), *map(place, (q, k, v)), y, stats, **_placed_torch(keywords))
        for gradient in found[:3]:
            assert np.isfinite(gradient.numpy().astype(float)).all()
        np.testing.assert_array_equal(found.dq.numpy()[rows], 0)


def _placed_torch(keywords: dict[str, Any]) -> dict[str, Any]:
    return {n: ct.asarray(one) if isinstance(one, np.ndarray) else one for n, one in keywords.items()}


def test_dropout_drops_the_same_weights_forward_and_backward() -> None:
    """The mask is read with the identity as values; its share of zeros and both passes agree with it."""
    size, rate = 64, 0.3
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((2, 3, size, size)).astype(np.float16) for _ in range(2))
    identity = np.broadcast_to(np.eye(size, dtype=np.float16), (2, 3, size, size)).copy()
    arguments: dict[str, Any] = {"dropout": rate, "seed": 1234, "offset": 7}
    weights = ct.attention(*map(place, (q, k, identity)), **arguments).y.numpy()
    kept = (weights != 0).astype(float)
    assert abs(kept.mean() - (1 - rate)) < 0.01
    again = ct.attention(*map(place, (q, k, identity)), **arguments).y.numpy()
    np.testing.assert_array_equal(weights, again)
    other = ct.attention(*map(place, (q, k, identity)), **arguments | {"seed": 1235}).y.numpy()
    assert (weights != other).mean() > 0.2
    v, dy = (rng.standard_normal((2, 3, size, size)).astype(np.float16) for _ in range(2))
    y, stats = ct.attention(*map(place, (q, k, v)), return_stats=True, **arguments)
    wide = [x.astype(float) for x in (q, k, v)]
    expected = ct.reference.attention(*wide, dropout=rate, kept=kept, return_stats=True)
    np.testing.assert_allclose(y.numpy(), expected.y, atol=8e-3)
    found = ct.attention_backward(place(dy), *map(place, (q, k, v)), y, stats, **arguments)
    right = ct.reference.attention_backward(dy.astype(float), *wide, *expected, dropout=rate, kept=kept)
    for gradient, one in zip(found[:3], right[:3], strict=True):
        np.testing.assert_allclose(gradient.numpy(), one, atol=2e-2 * max(1, np.abs(one).max()))


# --- PyTorch -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shape", [(2, 8, 8, 256, 256, 64), (1, 8, 2, 1000, 1000, 128), (4, 4, 4, 197, 197, 64)]
)
def test_attention_is_as_accurate_as_torch(dtype: str, causal: bool, shape: tuple[int, ...]) -> None:
    """Errors against float64 are at most 1.1 times those of PyTorch, plus a rounding."""
    torch = library("torch")
    batch, heads, kv_heads, queries, keys, head = shape
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    q = torch.randn(batch, heads, queries, head, device="cuda", dtype=kind)
    k, v = (torch.randn(batch, kv_heads, keys, head, device="cuda", dtype=kind) for _ in range(2))
    dy = torch.randn_like(q)

    def run(cast: Any) -> list[Any]:
        leaves = [x.detach().to(cast).requires_grad_() for x in (q, k, v)]
        attend = torch.nn.functional.scaled_dot_product_attention
        y = attend(*leaves, is_causal=causal, enable_gqa=heads != kv_heads)
        y.backward(dy.to(cast))
        return [y.detach(), *(leaf.grad for leaf in leaves)]

    exact, theirs = run(torch.float64), run(kind)
    result = ct.attention(q, k, v, causal=causal, return_stats=True)
    gradients = ct.attention_backward(dy, q, k, v, *result, causal=causal)
    for ours, them, right in zip((result.y, *gradients[:3]), theirs, exact, strict=True):
        error = (torch.from_dlpack(ours).double() - right).abs()
        their_error = (them.double() - right).abs()
        assert error.mean() <= 1.1 * their_error.mean() + 1e-7
        assert error.max() <= 2 * their_error.max() + 1e-6


def test_attention_takes_bshd_memory_of_torch() -> None:
    torch = library("torch")
    qkv = torch.randn(2, 100, 3, 4, 64, device="cuda", dtype=torch.float16)
    q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.float(), k.float(), v.float(), is_causal=True
    )
    y = torch.from_dlpack(ct.attention(q, k, v, causal=True).y)
    assert y.stride() == (100 * 4 * 64, 64, 4 * 64, 1)
    torch.testing.assert_close(y.float(), expected, atol=4e-3, rtol=4e-3)


def test_packed_attention_takes_interleaved_memory_of_torch() -> None:
    """q, k and v of (tokens, 3, H, D) memory have other strides than their gradients."""
    torch = library("torch")
    qkv, dys = (torch.randn(100, n, 4, 64, device="cuda", dtype=torch.float16) for n in (3, 2))
    arguments: dict[str, Any] = {
        "offsets_q": [0, 40, 41, 100],
        "offsets_kv": [0, 40, 41, 100],
        "causal": True,
    }

    def results(q: Any, k: Any, v: Any, dy: Any, out: Any = None) -> list[Any]:
        y, stats = ct.attention(q, k, v, return_stats=True, **arguments)
        gradients = ct.attention_backward(dy, q, k, v, y, stats, out=out, deterministic=True, **arguments)
        return [torch.from_dlpack(one).clone() for one in (y, stats, *gradients[:3])]

    views = [*(qkv[:, i] for i in range(3)), dys[:, 0]]
    expected = results(*(one.contiguous() for one in views))
    for wide in (torch.zeros_like(qkv), None):
        out = None if wide is None else (*(wide[:, i] for i in range(3)), None)
        for found, right in zip(results(*views, out=out), expected, strict=True):
            torch.testing.assert_close(found, right, atol=2e-3, rtol=2e-3)


# --- operands that are converted, repeated, widened or cleared for kernels ----------------------------------


@pytest.mark.parametrize(
    ("head", "value_head"),
    [(192, 128), (200, 112), (248, 112), (256, 8), (256, 128), (256, 136), (200, 200), (256, 256), (64, 256)],
)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.filterwarnings(
    "ignore:cuDNN .* has a known defect"
)  # of two large heads, without a stated effect
def test_gradients_of_two_head_sizes_equal_reference(
    head: int, value_head: int, packed: bool, deterministic: bool
) -> None:
    for lengths in (((1, 1), (32, 42)), ((64, 17), (50, 64))):
        given = case(
            head=head, value_head=value_head, lengths=lengths, packed=packed, kv_heads=1, heads=2, seed=head
        )
        check_backward(given, place, deterministic=deterministic)


def test_queries_that_a_mask_leaves_no_keys_have_zeros() -> None:
    arrays = operands_of(case(queries=40, keys=72)).arrays
    mask = np.random.default_rng(0).random((2, 1, 40, 72)) < 0.5
    mask[0, 0, 3], mask[1, 0, 39] = False, False
    y, stats = ct.attention(*map(place, arrays), bias=place(mask), return_stats=True)
    wide = [x.astype(float) for x in arrays]
    expected = ct.reference.attention(*wide, bias=mask, return_stats=True)
    np.testing.assert_allclose(y.numpy(), expected.y, atol=4e-3)
    np.testing.assert_array_equal(np.isneginf(stats.numpy()), np.isneginf(expected.stats))


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("page", [0, 16])
def test_windows_that_leave_queries_without_keys_give_zeros(on_device: bool, page: int) -> None:
    given = case(lengths=((64, 40), (20, 40)), window=(5, 3), kv_heads=2, page=page)
    (q, k, v), keywords, dy = operands_of(given)
    expected = ct.reference.attention(*[x.astype(float) for x in (q, k, v)], return_stats=True, **keywords)
    keywords = _placed({"page_table": keywords["page_table"]} if page else {}) | {
        name: place(keywords[name]) if on_device else keywords[name].tolist()
        for name in ("lengths_q", "lengths_kv")
    }
    arguments: dict[str, Any] = {**keywords, "window": (5, 3)}
    device = [place(x) for x in (q, k, v)]
    y, stats = ct.attention(*device, return_stats=True, **arguments)
    np.testing.assert_allclose(y.numpy(), expected.y, atol=4e-3)
    np.testing.assert_array_equal(np.isneginf(stats.numpy()), np.isneginf(expected.stats))
    if not page:
        dq = ct.attention_backward(place(dy), *device, y, stats, **arguments).dq.numpy()
        assert np.isfinite(dq).all()
        np.testing.assert_array_equal(dq[0, :, 25:], 0)


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("causal", [False, True, "bottom_right"])
@pytest.mark.parametrize(("head", "value_head"), [(64, 64), (128, 128), (256, 64)])
def test_packed_sequences_with_gaps_equal_those_without(
    on_device: bool, causal: Any, head: int, value_head: int
) -> None:
    rng, offsets, lengths = np.random.default_rng(0), [0, 150, 153, 400], [130, 3, 100]
    q, k = rng.standard_normal((2, 400, 2, head)).astype(np.float16)
    v, dy = rng.standard_normal((2, 400, 2, value_head)).astype(np.float16)
    inside = np.concatenate([np.arange(a, a + n) for a, n in zip(offsets, lengths, strict=False)])
    gaps = np.setdiff1d(np.arange(400), inside)
    numbers = np.array(lengths, np.int32)
    given: dict[str, Any] = {"offsets_q": offsets, "offsets_kv": offsets, "causal": causal}
    given |= {name: place(numbers) if on_device else lengths for name in ("lengths_q", "lengths_kv")}
    wide = [x.astype(float) for x in (q, k, v)]
    host = given | {"lengths_q": lengths, "lengths_kv": lengths}
    expected = ct.reference.attention(*wide, return_stats=True, **host)
    right = ct.reference.attention_backward(dy.astype(float), *wide, *expected, **host)
    y, stats = ct.attention(*map(place, (q, k, v)), return_stats=True, **given)
    found = ct.attention_backward(place(dy), *map(place, (q, k, v)), y, stats, **given)
    for one, wanted in zip((y, *found[:3]), (expected.y, *right[:3]), strict=True):
        values = one.numpy().astype(float)
        np.testing.assert_allclose(values, wanted, atol=8e-3 * max(1, np.abs(wanted).max()))
        np.testing.assert_array_equal(values[gaps], 0)
    np.testing.assert_array_equal(stats.numpy()[gaps], -np.inf)


def test_dropout_of_misaligned_operands_equals_that_of_aligned_ones() -> None:
    (q, k, v), _, dy = operands_of(case(queries=17, keys=40, head=40, value_head=40))
    arguments: dict[str, Any] = {"dropout": 0.5, "seed": 1}

    def shifted(array: np.ndarray) -> Any:
        padded = np.zeros(array.size + 3, array.dtype)
        padded[3:] = array.ravel()
        return place(padded)[3:].reshape(array.shape)

    results = []
    for put, offset in ((place, 2), (shifted, place(np.array([0, 2]))[1:])):
        device = [put(x) for x in (q, k, v)]
        y, stats = ct.attention(*device, return_stats=True, offset=offset, **arguments)
        found = ct.attention_backward(
            put(dy), *device, y, stats, offset=offset, deterministic=True, **arguments
        )
        results.append([one.numpy() for one in (y, stats, *found[:3])])
    for aligned, misaligned in zip(*results, strict=True):
        np.testing.assert_array_equal(aligned, misaligned)


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "sliced"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_clear_padding_equals_reference(layout: str, dtype: str) -> None:
    for batch, queries, head in ((3, 17, 16), (1, 1, 8), (2, 130, 128), (1, 5, 200)):
        arrays = operands_of(case(layout=layout, batch=batch, queries=queries, head=head)).arrays
        x = arrays[0].astype(as_dtype(dtype).numpy)
        x[:, :, queries // 2 :], x[:, :, :1, 0] = np.nan, np.inf
        lengths = [queries, 0, max(queries - 3, 0)][:batch]
        expected = ct.reference.clear_padding(x, lengths).astype(float)
        for given in (lengths, place(np.array(lengths, np.int32))):
            found = ct.clear_padding(place(x), given).numpy().astype(float)
            np.testing.assert_array_equal(found, expected)


def test_captured_clear_padding_reads_the_lengths_of_each_launch() -> None:
    x, lengths = ct.full((2, 3, 40, 64), 1, "float16"), place(np.array([40, 3], np.int32))
    captured = ct.capture(ct.clear_padding)
    for numbers in ([40, 3], [0, 39], [7, 7]):
        lengths = place(np.array(numbers, np.int32))
        for _ in range(3):
            y = captured(x, lengths).numpy()
        np.testing.assert_array_equal(y, ct.reference.clear_padding(x.numpy(), numbers))


def test_cleared_operands_do_not_spoil_attention_and_its_gradient() -> None:
    (q, k, v), keywords, dy = operands_of(CASES["lengths"])
    wide = [x.astype(float) for x in (q, k, v)]
    expected = ct.reference.attention(*wide, return_stats=True, **keywords)
    right = ct.reference.attention_backward(dy.astype(float), *wide, *expected, **keywords)
    lengths = {name: keywords[name] for name in ("lengths_q", "lengths_kv")}
    dirty = {"q": q, "k": k, "v": v, "dy": dy}
    cleared = {}
    for name, array in dirty.items():
        numbers = lengths["lengths_kv" if name in "kv" else "lengths_q"]
        for row, length in enumerate(numbers):
            array[row, :, length:] = np.nan
        cleared[name] = ct.clear_padding(place(array), place(numbers))
    device, placed = [cleared[name] for name in "qkv"], _placed(keywords)
    y, stats = ct.attention(*device, return_stats=True, **placed)
    np.testing.assert_allclose(y.numpy(), expected.y, atol=4e-3)
    found = ct.attention_backward(cleared["dy"], *device, y, stats, **placed)
    for gradient, one in zip(found[:3], right[:3], strict=True):
        np.testing.assert_allclose(gradient.numpy(), one, atol=8e-3 * max(1, np.abs(one).max()))
