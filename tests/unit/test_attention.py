"""Rules of attention: bands, shapes, the reduced problems, and the reference against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError
from cudnn_ct.facts import Target
from cudnn_ct.graph.engines import Engine
from cudnn_ct.legal.rules import engine_rules
from cudnn_ct.ops.attention.core import _needs_lengths as needs_lengths
from cudnn_ct.ops.attention.core import core_of, token_step
from cudnn_ct.shapes.attention import AttentionProblem, Band, attention_band, like_axes
from cudnn_ct.shapes.attention_rules import attention_gradient_problem, attention_problem, longest_sequence
from cudnn_ct.shapes.specs import TensorSpec
from tests.oracle.by_loops import VALUES

NONE = (None,) * 4
LAST = 92800


def specs(
    queries: int = 8, keys: int = 8, head: int = 16, kv_heads: int = 2, **more: TensorSpec
) -> dict[str, TensorSpec]:
    return {
        "q": TensorSpec.packed((2, 4, queries, head), "float16"),
        "k": TensorSpec.packed((2, kv_heads, keys, head), "float16"),
        "v": TensorSpec.packed((2, kv_heads, keys, head), "float16"),
        **more,
    }


def forward(
    given: dict[str, TensorSpec], causal: Any = False, window: Any = None, **more: Any
) -> AttentionProblem:
    named = {"scale": None, "causal": causal, "window": window, "dropout": 0.0, "longest": (0, 0)} | more
    return attention_problem(given, (None, None), True, *named.values())


def backward(
    given: dict[str, TensorSpec], causal: Any = False, window: Any = None, dbias: Any = False
) -> AttentionProblem:
    rows = given["q"].shape[:3]
    y = TensorSpec.packed((*rows, given["v"].shape[3]), "float16")
    given = {"dy": y, **given, "y": y, "stats": TensorSpec.packed(rows)}
    return attention_gradient_problem(given, NONE, dbias, None, causal, window, 0.0, (0, 0))


# --- bands -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("causal", "window", "band"),
    [
        (False, None, Band()),
        (True, None, Band(None, 0, "top_left")),
        ("top_left", (5, -1), Band(5, 0, "top_left")),
        ("BOTTOM_RIGHT", (5, 3), Band(5, 0, "bottom_right")),
        (np.bool_(False), (5, None), Band(5, None)),
        (0, [None, 2], Band(None, 2)),
    ],
)
def test_attention_band_has_the_limits_of_causal_and_window(causal: Any, window: Any, band: Band) -> None:
    assert attention_band(causal, window) == band


@pytest.mark.parametrize(
    ("causal", "window", "message"),
    [
        ("left", None, "causal must be one of top_left, bottom_right: got 'left'"),
        (2, None, "causal must be True or False: got 2"),
        (False, 3, r"window must be None or \(left, right\): got 3"),
        (False, (1, 2, 3), "window must be None or"),
        (False, (-2, 0), "window must have numbers from 0"),
        (False, (1.5, 0), "window must be an int"),
    ],
)
def test_attention_band_rejects_arguments(causal: Any, window: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        attention_band(causal, window)


# --- rules -------------------------------------------------------------------------------------------------

half = TensorSpec.packed
LENGTHS = ("lengths_q", "lengths_kv")
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    (dict.fromkeys("kv", half((2, 3, 8, 16), "float16")), ValueError, "got 3, expected a divisor of 4"),
    ({"k": half((1, 2, 8, 16), "float16")}, ValueError, r"k has the wrong shape: got \(1, 2, 8, 16\)"),
    ({"v": half((2, 2, 9, 16), "float16")}, ValueError, "v has the wrong shape"),
    ({"q": half((2, 4, 8), "float16")}, ValueError, r"q has the wrong number of axes: got shape \(2, 4, 8\)"),
    ({"k": half((2, 2, 8, 16), "bfloat16")}, TypeError, "k has the wrong dtype: got bfloat16"),
    ({"bias": half((2, 3, 8, 8), "float16")}, ValueError, "bias has the wrong shape"),
    ({"bias": half((1, 1, 8, 8), "float64")}, TypeError, "bias has the wrong dtype: got float64"),
    ({"lengths_q": half((2,), "int32")}, ValueError, "belong together: got only lengths_q"),
    (dict.fromkeys(LENGTHS, half((3,), "int32")), ValueError, "lengths_q has the wrong shape"),
    (dict.fromkeys(LENGTHS, half((2,), "int64")), TypeError, "expected int32"),
    ({"page_table": half((2, 3), "int32")}, ValueError, "expected|needs lengths_kv"),
    ({"seed": half((1,), "int64"), "offset": half((1,), "int64")}, ValueError, "need dropout"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "kind", "message"), WRONG)
def test_attention_problem_rejects_operands(changed: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        forward(specs() | changed)


def test_attention_problem_rejects_parameters() -> None:
    with pytest.raises(NotSupportedError, match="not a multiple of 8: got 12"):
        forward(specs(head=12))
    with pytest.raises(NotSupportedError, match="does not support float64"):
        forward({name: spec._replace(dtype="float64") for name, spec in specs().items()})
    with pytest.raises(ValueError, match="dropout must be at least 0 and less than 1: got 1"):
        forward(specs(), dropout=1)
    with pytest.raises(ValueError, match=r"dropout=0\.5 needs seed and offset"):
        forward(specs(), dropout=0.5)
    with pytest.raises(ValueError, match=r"scale must be finite: got inf"):
        forward(specs(), scale=float("inf"))
    with pytest.raises(ValueError, match="dbias=True needs a bias"):
        backward(specs(), dbias=True)


def test_results_have_the_memory_order_of_q() -> None:
    bshd = TensorSpec((2, 4, 8, 16), (512, 16, 64, 1), "float16")
    assert like_axes((2, 4, 8, 32), bshd).strides == (1024, 32, 128, 1)
    assert forward(specs() | {"q": bshd}).results[0].strides == (512, 16, 64, 1)
    assert backward(specs() | {"q": bshd}).results[0].strides == (512, 16, 64, 1)


@pytest.mark.parametrize(
    ("offsets", "longest"), [([0, 5], 128), ([0, 128, 400], 384), ([0, 3000], 3072), ([0, 0], 0)]
)
def test_longest_sequence_is_rounded_up(offsets: list[int], longest: int) -> None:
    assert longest_sequence(np.diff(offsets).tolist()) == longest


# --- reduced problems --------------------------------------------------------------------------------------


def allowed(band: Band, queries: int, keys: int) -> np.ndarray:
    distance = np.arange(keys) - np.arange(queries)[:, None] - band.shift(queries, keys)
    below = distance <= (keys + queries if band.right is None else band.right)
    return below & (distance >= (-keys - queries if band.left is None else -band.left))


@pytest.mark.parametrize("seed", range(300))
def test_core_has_the_same_mask_and_all_queries_have_keys(seed: int) -> None:
    rng = np.random.default_rng(seed)
    queries, keys = (int(n) for n in rng.integers(1, 9, 2))
    window = [None if rng.random() < 0.4 else int(rng.integers(0, 9)) for _ in range(2)]
    causal = [False, True, "bottom_right"][rng.integers(3)]
    problem = forward(specs(queries, keys), causal, tuple(window))
    whole = allowed(problem.band, queries, keys)
    core = core_of(problem, LAST)
    parts = {part.name: part for part in core.parts}
    rows, columns = (parts[name].spec.shape[2] for name in "qk")
    first, left = (parts[name].offset // 2 // 16 for name in "qk")
    inner = whole[first : first + rows, left : left + columns]
    assert core.empty == (0 in inner.shape)
    if not core.empty:
        np.testing.assert_array_equal(allowed(core.problem.band, rows, columns), inner)
    outside = whole.copy()
    outside[first : first + rows, left : left + columns] = False
    assert not outside.any()
    assert inner.any(1).all()
    assert core.cleared or inner.shape == whole.shape


def test_core_copies_operands_that_kernels_cannot_load() -> None:
    odd = TensorSpec((2, 4, 8, 16), (8 * 4 * 19, 8 * 19, 19, 1), "float16")
    turned = TensorSpec((2, 2, 8, 16), (256, 128, 1, 8), "float16")
    core = core_of(forward(specs() | {"q": odd, "k": turned}), LAST)
    copies = {part.name: part.copy for part in core.parts if part.copy}
    assert set(copies) == {"q", "k"}
    assert core.problem.q == copies["q"]
    assert copies["k"] is not None
    assert copies["k"].strides[-1] == 1


def test_bias_of_one_key_is_copied_unless_its_heads_are_adjacent() -> None:
    bias = TensorSpec.packed((1, 4, 1, 48), "float16")
    given = specs(1, 48, kv_heads=4) | {"bias": bias}
    core = core_of(forward(given, causal="top_left"), LAST)  # the query has the first key alone
    parts = {part.name: part for part in core.parts}
    assert parts["bias"].spec.shape == (1, 4, 1, 1)
    assert parts["bias"].spec.strides[1] == 48
    assert core.problem.bias is not None
    assert core.problem.bias.strides[1] == 1
    assert not any(part.copy for part in core_of(forward(given), LAST).parts)


@pytest.mark.parametrize(
    ("queries", "given", "multiplied"), [(1, True, True), (2, True, False), (1, False, False)]
)
def test_lengths_of_one_query_hold_by_those_of_the_keys(queries: int, given: bool, multiplied: bool) -> None:
    lengths = dict.fromkeys(("lengths_q", "lengths_kv"), TensorSpec.packed((2,), "int32")) if given else {}
    assert core_of(forward(specs(queries, 8) | lengths), LAST).one_query == multiplied


@pytest.mark.parametrize("tokens", [1, 5])
def test_packed_statistics_with_gaps_have_the_offsets_of_packed_ones(tokens: int) -> None:
    gaps = TensorSpec((tokens, 3), (6, 2), "float32")
    assert token_step("stats", gaps, 3) == token_step("stats", TensorSpec.packed((tokens, 3), "float32"), 3)


@pytest.mark.parametrize(
    ("head", "value_head", "columns"),
    [(192, 128, 128), (200, 128, 200), (256, 8, 256), (200, 136, 136), (64, 200, 200)],
)
def test_packed_gradient_with_narrow_values_gets_wide_ones(head: int, value_head: int, columns: int) -> None:
    packed = TensorSpec.packed
    offsets = {f"starts_{name}": packed((3,), "int32") for name in ("q", "k", "v", "y", "stats")}
    lengths = dict.fromkeys(LENGTHS, packed((2,), "int32"))
    q, v = packed((9, 2, head), "float16"), packed((9, 2, value_head), "float16")
    given = {"dy": v, "q": q, "k": q, "v": v, "y": v, "stats": packed((9, 2)), **offsets, **lengths}
    problem = attention_gradient_problem(given, NONE, False, None, False, None, 0.0, (128, 128))
    core = core_of(problem, LAST)
    assert core.problem.sizes.value_head == columns
    copied = {part.name for part in core.parts if part.copy}
    assert copied == ({"dy", "v", "saved_y", "dv"} if columns != value_head else set())
    for values in (core.problem.dy, core.problem.v, core.problem.saved_y, core.problem.dv):
        assert values is not None
        assert values.strides[2] == token_step("v", v, columns)
    here = Target(LAST)
    assert not engine_rules(core.problem, here).why_wrong(Engine(6), ())
    wrong = engine_rules(problem, here).why_wrong(Engine(6), ())
    assert bool(wrong) == (columns != value_head)


@pytest.mark.parametrize("dtype", ["float16", "float32", "bool"])
def test_gradient_with_a_shared_bias_gets_one_for_each_query(dtype: str) -> None:
    bias = TensorSpec.packed((2, 1, 1, 8), dtype)
    core = core_of(backward(specs() | {"bias": bias}, dbias=dtype != "bool"), LAST)
    assert core.problem.bias is not None
    assert (core.problem.bias.shape, core.problem.bias.dtype) == ((2, 1, 8, 8), "float16")
    assert core.problem.dbias == (None if dtype == "bool" else core.problem.bias)
    forward_core = core_of(forward(specs() | {"bias": bias}), LAST)
    assert forward_core.problem.bias is not None
    assert forward_core.problem.bias.shape == bias.shape
    assert forward_core.problem.bias.dtype == "float16"


def test_gradients_with_reported_defects_get_lengths() -> None:
    for keys, queries, version, padded in [
        (192, 192, 91900, True), (128, 128, 91900, False), (100, 100, 91900, False), (100, 100, 91500, True),
        (128, 1, 91900, True), (192, 1, 92800, True),
    ]:  # fmt: skip
        problem = backward(specs(queries, keys))
        assert needs_lengths(problem, version) == padded
        core = core_of(problem, version)
        assert core.constants == ({"lengths_q": (queries,) * 2, "lengths_kv": (keys,) * 2} if padded else {})
        assert not core_of(forward(specs(queries, keys)), version).constants


BLACKWELL, HOPPER = (10, 0), (9, 0)
BIAS = {"bias": TensorSpec.packed((2, 4, 1, 8), "float16")}


@pytest.mark.parametrize(
    ("problem", "version", "capability", "message"),
    [
        (forward(specs()), 91001, HOPPER, "before cuDNN 9.10.2"),
        (forward(specs()), 91002, HOPPER, ""),
        (forward(specs(1, 8)), 91900, BLACKWELL, "attention of one query"),
        (forward(specs(1, 8)), 91900, HOPPER, ""),
        (forward(specs(8, 1025), window=(3, None)), 91400, HOPPER, "a window that is not causal"),
        (forward(specs(8, 1025), window=(3, 0)), 91400, HOPPER, ""),
        (forward(specs(8, 1025), window=(3, None)), 91401, HOPPER, ""),
        (backward(specs(8, 1)), 91900, HOPPER, "one key"),
        (backward(specs(1, 8) | BIAS, dbias=True), 91900, HOPPER, "of the bias of one query"),
        (backward(specs(8, 64)), 91900, HOPPER, ""),
    ],
)  # fmt: skip
def test_known_defects_of_versions_are_refused(
    problem: AttentionProblem, version: int, capability: tuple[int, int], message: str
) -> None:
    core = core_of(problem, version).problem
    found = engine_rules(core, Target(version, "full", capability)).refusal(capability)
    assert message in found
    assert bool(found) == bool(message)


# --- the reference -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [{"causal": True, "scale": -0.5}, {"lengths_q": [3, 5], "lengths_kv": [4, 0]}]
)
def test_reference_equals_loops(arguments: dict[str, Any]) -> None:
    """With arguments that tests/oracle does not draw; it compares all others, packed and paged sequences."""
    rng = np.random.default_rng(0)
    operands = {"q": rng.normal(size=(2, 4, 5, 8)), "k": rng.normal(size=(2, 2, 7, 8))}
    operands |= {"v": rng.normal(size=(2, 2, 7, 16)), "bias": rng.normal(size=(1, 4, 1, 7))}
    found = ct.reference.attention(**operands, return_stats=True, **arguments)
    expected = VALUES["attention"](operands, arguments | {"return_stats": True})
    np.testing.assert_allclose(found.y, expected["y"], atol=1e-12)
    np.testing.assert_allclose(found.stats, expected["stats"], rtol=1e-6)


@pytest.mark.parametrize("bias_shape", [(2, 4, 5, 7), (1, 4, 5, 7), (2, 1, 1, 7)])
def test_reference_gradients_are_those_of_finite_differences(bias_shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    shapes = ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 16), bias_shape)
    operands = [rng.normal(size=shape) for shape in shapes]
    dy, kept = rng.normal(size=(2, 4, 5, 16)), (rng.random((2, 4, 5, 7)) < 0.7).astype(float)
    arguments: dict[str, Any] = {"causal": "bottom_right", "dropout": 0.3, "kept": kept, "window": (4, None)}

    def loss(q: Any, k: Any, v: Any, bias: Any) -> float:
        return float((ct.reference.attention(q, k, v, bias=bias, **arguments).y * dy).sum())

    q, k, v, bias = operands
    y, stats = ct.reference.attention(q, k, v, bias=bias, return_stats=True, **arguments)
    gradients = ct.reference.attention_backward(dy, q, k, v, y, stats, bias=bias, dbias=True, **arguments)
    for place, gradient in enumerate(gradients):
        direction = rng.normal(size=shapes[place])
        ends = []
        for step in (1e-5, -1e-5):
            moved = list(operands)
            moved[place] = operands[place] + step * direction
            ends.append(loss(*moved))
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(float((gradient * direction).sum()), rel=1e-4)
