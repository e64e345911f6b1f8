"""Algorithms on a GPU: every candidate is right, names select theirs, plans are captured, errors bounded."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import _lib
from cudnn_ct.errors import CudnnWarning, NotSupportedError
from cudnn_ct.ops.conv.candidates import SOURCE
from tests.conv_cases import OPERATIONS, TOLERANCE, Geometry, inexact_by_nature

from .conftest import captured, own_stream

Keywords = dict[str, Any]
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], str, str, Keywords]] = {
    "half": ((4, 16, 12, 12), (24, 16, 3, 3), "float16", "nhwc", {"padding": 1}),
    "half in NCHW": ((4, 16, 12, 12), (24, 16, 3, 3), "float16", "nchw", {"padding": 1}),
    "bfloat16, one by one": ((4, 32, 7, 7), (16, 32, 1, 1), "bfloat16", "nhwc", {"stride": 2}),
    "TF32": ((4, 16, 12, 12), (24, 16, 3, 3), "float32", "nhwc", {"padding": 1}),
    "strict": ((4, 16, 12, 12), (24, 16, 3, 3), "float32", "nchw", {"padding": 1, "precision": "float32"}),
    "double": ((4, 8, 9, 9), (8, 8, 3, 3), "float64", "nchw", {"padding": 1}),
    "odd channels": ((3, 5, 11, 10), (7, 5, 3, 2), "float16", "nhwc", {"padding": 1}),
    "groups": ((2, 32, 9, 9), (32, 8, 3, 3), "float16", "nhwc", {"padding": 1, "groups": 4}),
    "depthwise": ((2, 32, 9, 9), (32, 1, 3, 3), "float16", "nhwc", {"padding": 1, "groups": 32}),
    "dilation": ((2, 16, 12, 12), (16, 16, 3, 3), "float16", "nhwc", {"padding": 2, "dilation": 2}),
    "uneven": ((2, 16, 9, 9), (8, 16, 3, 3), "float16", "nhwc", {"padding": ((0, 1), (2, 1))}),
    "uneven, one axis": ((2, 4, 23), (4, 1, 3), "float32", "nchw", {"padding": ((1, 0),), "groups": 4}),
    "uneven, depthwise": (
        *((2, 8, 9, 11), (8, 1, 3, 3), "float32", "nchw"),
        {"padding": ((1, 0), (0, 2)), "groups": 8},
    ),
    "flipped": ((2, 16, 9, 9), (8, 16, 3, 3), "float32", "nchw", {"mode": "convolution"}),
    "three axes": ((2, 8, 5, 6, 7), (8, 8, 3, 3, 3), "float16", "nhwc", {"padding": 1}),
    "one pixel": ((2, 64, 1, 1), (32, 64, 1, 1), "float16", "nhwc", {}),
    "products": ((4, 24, 7, 5), (16, 24, 1, 1), "bfloat16", "nhwc", {}),
    "one axis": ((2, 16, 20), (8, 16, 3), "float32", "nchw", {"padding": 1, "stride": 2}),
}
POLICIES = ("heuristic", "autotune")


def sparse(shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.integers(-2, 3, shape) * (rng.random(shape) < 0.3)).astype(np.float64)


def geometry_of(name: str) -> Geometry:
    x, w, _, _, keywords = CASES[name]
    return Geometry(x, w, {key: value for key, value in keywords.items() if key != "precision"})


def operands(name: str, direction: str) -> tuple[list[np.ndarray], list[ct.DeviceArray]]:
    """Return two inputs as NumPy arrays and on the device."""
    _, _, dtype, layout, _ = CASES[name]
    *shapes, _ = geometry_of(name).shapes(direction)
    values = [sparse(shape, seed) for seed, shape in enumerate(shapes)]
    return values, [ct.asarray(v, dtype, layout=layout) for v in values]


def close(got: ct.DeviceArray, wanted: np.ndarray, what: object) -> None:
    """Exact for what computes exactly, else within the tolerance of the dtype."""
    values, dtype = got.numpy().astype(np.float64), got.spec.dtype
    scale = max(np.abs(wanted).max(), 1)
    bound = TOLERANCE[dtype] * scale if inexact_by_nature(str(what)) or scale > 200 else 0
    np.testing.assert_allclose(values, wanted, rtol=0, atol=bound, err_msg=str(what))


@pytest.mark.parametrize("direction", OPERATIONS)
@pytest.mark.parametrize("name", CASES)
def test_each_algorithm_equals_reference(name: str, direction: str) -> None:
    values, (first, second) = operands(name, direction)
    keywords, shape = CASES[name][-1], geometry_of(name).shape_of_gradient(direction)
    table = ct.conv_algorithms(first, second, *shape, direction=direction, **keywords)
    wanted = geometry_of(name).expected(direction, values)
    usable = [row for row in table if not row.rejected]
    if not usable and _lib.load().kind != "full":
        pytest.skip(f"cuDNN {_lib.load().version_text} has no engine for it")
    assert usable, str(table)
    times = [row.time_ms for row in usable]
    assert None not in times
    assert times == sorted(times)
    for row in usable:
        out = ct.full(wanted.shape, np.nan, CASES[name][2], layout=CASES[name][3])
        got = getattr(ct, OPERATIONS[direction])(first, second, *shape, algo=row, out=out, **keywords)
        close(got, wanted, row)


class TooLarge:
    """The plan of a candidate, whose results are too large by a tenth."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.workspace = inner, inner.workspace

    def run(self, where: Any, pointers: Any, alpha: float, beta: float) -> None:
        self._inner.run(where, pointers, 1.1 * alpha, beta)


@pytest.mark.parametrize("direction", OPERATIONS)
@pytest.mark.parametrize("name", ["half", "TF32", "strict", "double", "groups", "uneven"])
def test_candidate_with_wrong_results_is_rejected_by_comparison(
    name: str, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no other one is."""
    _, arrays = operands(name, direction)
    shape = geometry_of(name).shape_of_gradient(direction)
    call = partial(ct.conv_algorithms, *arrays, *shape, direction=direction, **CASES[name][-1])
    assert not [row for row in call() if "its result differs" in row.rejected]
    legacy = [row for row in call() if row.backend == "legacy" and not row.rejected]
    if not legacy:  # graph plans cannot be scaled
        pytest.skip("no legacy algorithm")
    wrong, made = legacy[0].key, SOURCE.plan

    def planted(problem: Any, row: Any, where: Any) -> Any:
        plan = made(problem, row, where)
        return TooLarge(plan) if row.key == wrong else plan

    monkeypatch.setattr(SOURCE, "plan", planted)
    assert [row.key for row in call() if "its result differs" in row.rejected] == [wrong]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_conv_with_uneven_padding_is_scaled(dtype: str) -> None:
    (x, w), padding = operands("uneven", "forward")[1], CASES["uneven"][-1]["padding"]
    x, w = (ct.asarray(array.numpy().astype(dtype), layout="nhwc") for array in (x, w))
    wide = [array.numpy().astype(np.float32) for array in (x, w)]
    expected = ct.reference.conv(*wide, padding=padding, alpha=0.5)
    close(ct.conv(x, w, padding=padding, alpha=0.5), expected, "")


@pytest.mark.parametrize("direction", OPERATIONS)
@pytest.mark.parametrize("name", ["half", "TF32", "strict", "groups", "double"])
def test_deterministic_plan_returns_the_same_bits(name: str, direction: str) -> None:
    dtype, layout, keywords = CASES[name][2:]
    rng = np.random.default_rng(3)
    *shapes, _ = geometry_of(name).shapes(direction)
    first, second = (ct.asarray(rng.standard_normal(s), dtype, layout=layout) for s in shapes)
    shape = geometry_of(name).shape_of_gradient(direction)
    options = {"direction": direction, "deterministic": True, **keywords}
    for algo in POLICIES:
        plan = ct.conv_plan(first, second, *shape, algo=algo, **options)
        assert plan.candidate.deterministic
        results = {plan(first, second).numpy().tobytes() for _ in range(20)}
        assert len(results) == 1


@pytest.mark.parametrize("direction", OPERATIONS)
@pytest.mark.parametrize("name", ["half", "strict", "products", "groups"])
def test_online_calls_are_right_until_they_settle_and_after(name: str, direction: str) -> None:
    values, (first, second) = operands(name, direction)
    keywords, shape = CASES[name][-1], geometry_of(name).shape_of_gradient(direction)
    wanted = geometry_of(name).expected(direction, values)
    tried = "winograd or fft"  # the engine of a trial is not known: it may be one of these, which are inexact
    out = ct.full(wanted.shape, np.nan, CASES[name][2], layout=CASES[name][3])
    operation = partial(getattr(ct, OPERATIONS[direction]), first, second, *shape, out=out, **keywords)
    for _ in range(200):
        out.fill(np.nan)
        close(operation(algo="online"), wanted, tried)
        if "settled" in (settled := ct.last_plan().describe()):
            break
    assert "settled" in settled
    for _ in range(3):  # the call that settles runs the fastest one before
        out.fill(np.nan)
        result = operation(algo="online")
        close(result, wanted, ct.last_plan().describe())


def test_algorithm_names_select_their_algorithms() -> None:
    if lacks := _lib.load().lacks("cnn"):
        pytest.skip(f"algorithms with names {lacks}")
    x, w = ct.full((16, 64, 28, 28), 1.0), ct.full((64, 64, 3, 3), 1.0)
    for name, algorithm in (
        ("none", "implicit_gemm"),
        ("small", "implicit_precomp_gemm"),
        ("winograd_non_fused", "winograd_nonfused"),
    ):
        plan = ct.conv_plan(x, w, padding=1, algo=name)
        assert (plan.candidate.backend, plan.candidate.algorithm) == ("legacy", algorithm)
        assert plan.fallback_reason == ""
    engine = next(row for row in ct.conv_algorithms(x, w, padding=1) if row.backend == "graph")
    plan = ct.conv_plan(x, w, padding=1, algo=f"graph {engine.algorithm}", strict=True)
    assert plan.candidate.algorithm == engine.algorithm
    np.testing.assert_array_equal(plan(x, w).numpy(), ct.conv(x, w, padding=1, algo=engine).numpy())
    with pytest.warns(CudnnWarning, match="algo='fft' fell back to legacy implicit_gemm"):
        plan = ct.conv_plan(x, w, stride=2, algo="fft")
    assert "fft needs stride 1" in plan.fallback_reason
    with pytest.raises(NotSupportedError, match="fft needs stride 1"):
        ct.conv_plan(x, w, stride=2, algo="fft", strict=True)


def test_workspace_limit_excludes_algorithms_with_a_workspace() -> None:
    x, w = ct.full((8, 64, 28, 28), 1.0), ct.full((64, 64, 3, 3), 1.0)
    for algo in POLICIES:
        plan = ct.conv_plan(x, w, padding=1, algo=algo, precision="float32", workspace_limit=0)
        assert plan.workspace == 0


@pytest.mark.parametrize("algo", POLICIES)
@pytest.mark.parametrize("name", ["half", "TF32", "strict"])
def test_captured_plan_replays_when_the_workspace_has_grown(name: str, algo: str) -> None:
    stream = own_stream()
    values, _ = operands(name, "forward")
    dtype, layout, keywords = CASES[name][2:]
    x, w = (ct.asarray(v, dtype, layout=layout, stream=stream) for v in values)
    plan = ct.conv_plan(x, w, **keywords, algo=algo, stream=stream)
    y = plan(x, w, stream=stream)
    ct.synchronize(stream)
    graph = captured(stream, partial(plan, x, w, out=y, stream=stream))
    big = ct.full((16, 64, 56, 56), 1.0, dtype, layout=layout, stream=stream)
    bank = ct.full((64, 64, 3, 3), 1.0, dtype, layout=layout, stream=stream)
    for row in ct.conv_algorithms(big, bank, padding=1, measure=False, stream=stream)[:4]:
        if not row.rejected:
            ct.conv(big, bank, padding=1, algo=row, stream=stream)
    ct.empty_cache()
    described = plan.describe()
    del plan
    for factor in (1.0, 2.0):
        scaled = ct.asarray(factor * values[0], dtype, layout=layout, stream=stream)
        ones = ct.full((x.shape[1], 1, 1, 1), 1.0, dtype, stream=stream)
        ct.conv(scaled, ones, groups=x.shape[1], out=x, stream=stream)
        y.fill(np.nan, stream=stream)
        graph.launch(stream)
        ct.synchronize(stream)
        close(y, factor * geometry_of(name).expected("forward", values), described)


# --- accuracy ----------------------------------------------------------------------------------------------

UNITS = {"float16": 2.0**-11, "float32": 2.0**-24, "tf32": 2.0**-11}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("direction", OPERATIONS)
@pytest.mark.parametrize(
    ("dtype", "precision", "layout"),
    [
        ("float32", "float32", "nchw"),
        ("float32", "float32", "nhwc"),
        ("float32", "tf32", "nhwc"),
        ("float16", None, "nchw"),
        ("float16", None, "nhwc"),
    ],
)
@pytest.mark.parametrize(
    ("window", "groups"), [((3, 3), 1), ((5, 5), 1), ((5, 5), 4), ((5,), 1), ((7, 7), 32)]
)
def test_policy_stays_within_the_bound_of_the_precision(
    policy: str,
    direction: str,
    dtype: str,
    precision: str | None,
    layout: str,
    window: tuple[int, ...],
    groups: int,
) -> None:
    """Operands that round, within the bound of docs/algorithms.md."""
    geometry = Geometry((4, 32, *(20 for _ in window)), (32, 32 // groups, *window), {"groups": groups})
    *shapes, _ = geometry.shapes(direction)
    rng = np.random.default_rng(5)
    values = [rng.standard_normal(shape).astype(np.float16).astype(np.float64) for shape in shapes]
    want = geometry.expected(direction, values)
    sums = geometry.expected(direction, [abs(array) for array in values])
    first, second = (ct.asarray(array.astype(dtype), layout=layout) for array in values)
    options = {"direction": direction, "groups": groups, "precision": precision}
    plan = ct.conv_plan(first, second, *geometry.shape_of_gradient(direction), algo=policy, **options)
    got = plan(first, second).numpy().astype(np.float64)
    terms = {
        "forward": math.prod(geometry.w[1:]),
        "backward_data": math.prod(window) * 32 // groups,
        "backward_filter": 4 * math.prod(geometry.y[2:]),
    }[direction]
    unit = UNITS["float32" if precision is None else precision]
    bound = 8 * math.sqrt(terms + 64) * unit * sums.max() + 6 * UNITS[dtype] * abs(want).max()
    assert abs(got - want).max() <= bound, plan.describe()
