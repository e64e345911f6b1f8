"""How an algorithm is chosen, named, timed, limited and remembered: on the fakes."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import testing
from cudnn_ct._config import config
from cudnn_ct.autotune.request import POLICIES, SYNONYMS
from cudnn_ct.autotune.store import TABLE, store
from cudnn_ct.errors import AllocationError, CudnnWarning, NotInitializedError, NotSupportedError
from cudnn_ct.ops.conv import graph
from cudnn_ct.ops.conv.algorithm_names import ALGORITHMS
from cudnn_ct.plans.base import Candidate

from .conftest import forget
from .cudnn import FakeCudnn
from .host import Host
from .test_conv import algorithms, images

GUESS, TIME = "heuristic", "autotune"


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "algo_cache.sqlite"
    monkeypatch.setattr(config, "algo_cache", str(path))
    return path


def operands() -> tuple[ct.DeviceArray, ct.DeviceArray]:
    return images(2, 3, 5, 6), images(4, 3, 3, 3)


def ran(fake: FakeCudnn, **keywords: Any) -> str:
    """The algorithm that the last of the convolutions of one call ran."""
    fake.calls.clear()
    x, w = operands()
    y = ct.conv(x, w, **keywords)
    np.testing.assert_array_equal(y.numpy(), ct.reference.conv(x.numpy(), w.numpy()))
    return algorithms(fake)[-1]


# --- policies ---


def test_a_guess_takes_what_is_ranked_first_and_times_nothing(fake: FakeCudnn, host: Host) -> None:
    fake.costs = {"GEMM": 9.0, "IMPLICIT_GEMM": 1.0}
    assert ran(fake) == "GEMM"
    assert algorithms(fake) == ["GEMM"]


def test_timing_takes_the_quickest_and_times_once(fake: FakeCudnn) -> None:
    fake.costs = {"GEMM": 9.0, "IMPLICIT_GEMM": 1.0}
    assert ran(fake, algo=TIME) == "IMPLICIT_GEMM"
    assert "GEMM" in algorithms(fake)
    assert ran(fake, algo=TIME) == "IMPLICIT_GEMM"
    assert algorithms(fake) == ["IMPLICIT_GEMM"]


def test_settings_say_what_a_call_does_not(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.costs = {"GEMM": 9.0}
    assert ran(fake) == "GEMM"
    monkeypatch.setattr(config, "algo", TIME)
    assert ran(fake) == "IMPLICIT_GEMM"
    monkeypatch.setattr(config, "algo", "large")
    fake.random = {"GEMM"}
    monkeypatch.setattr(config, "algo", GUESS)
    forget()
    monkeypatch.setattr(config, "deterministic", True)
    assert ran(fake) == "IMPLICIT_GEMM"
    assert ran(fake, deterministic=False) == "GEMM"


@pytest.mark.parametrize("family", ["guess", "time"])
def test_once_keeps_the_first_choice_for_its_kind(fake: FakeCudnn, family: str) -> None:
    once, each = f"{family}_once", f"{family}_on_shape_change"
    fake.costs = {"GEMM": 9.0, "IMPLICIT_GEMM": 1.0}
    first = ran(fake, algo=once)
    fake.refused = {"GEMM"} if first == "GEMM" else set()
    fake.costs = {"GEMM": 1.0, "IMPLICIT_GEMM": 9.0}
    fake.calls.clear()
    x, w = images(1, 3, 7, 7), images(2, 3, 2, 2)
    plan = ct.conv_plan(x, w, algo=once)
    assert plan.candidate.algorithm.upper() == first
    assert "kept from the first problem of its kind" in plan.describe()
    assert not any("Algorithm_v7" in name for name in fake.names()), "the heuristics were asked again"
    assert ct.conv_plan(x, w, algo=each).candidate.algorithm.upper() != first
    other = ct.conv_plan(images(1, 3, 7), images(2, 3, 2), algo=once)  # another kind: one axis
    assert "kept" not in other.describe()


def test_once_chooses_anew_where_the_first_choice_is_not_valid(fake: FakeCudnn) -> None:
    assert ran(fake, algo="guess_once") == "GEMM"
    fake.workspaces = {"GEMM": 100}
    x, w = images(1, 3, 7, 7), images(2, 3, 2, 2)
    fake.fail["cudnnGetConvolutionForwardWorkspaceSize"] = 3000
    with pytest.raises(NotSupportedError, match="cuDNN has no way to compute this"):
        ct.conv_plan(x, w, algo="guess_once")
    fake.fail.clear()
    forget()
    ran(fake, algo="guess_once")
    fake.refused = {"GEMM"}
    fake.fail_at = {}
    plan = ct.conv_plan(x, w, algo="guess_once", workspace_limit=10)
    assert plan.candidate.algorithm == "implicit_gemm"


def test_each_policy_has_decisions_of_its_own_under_all_of_its_names(fake: FakeCudnn) -> None:
    x, w = operands()
    for policy in POLICIES:
        ran(fake, algo=policy)
    for word, policy in SYNONYMS.items():
        assert f"how: {policy}" in ct.conv_plan(x, w, algo=word).describe()
    assert testing.cache_sizes()["decisions"].entries == len(POLICIES)


def test_beta_is_timed_on_scratch_memory(fake: FakeCudnn) -> None:
    fake.costs = {"GEMM": 9.0}
    x, w = operands()
    out = ct.full((2, 4, 3, 4), 2.0)
    ct.conv(x, w, out=out, beta=3, algo=TIME)
    assert len(algorithms(fake)) > 3
    np.testing.assert_array_equal(out.numpy(), ct.reference.conv(x.numpy(), w.numpy()) + 6)


def test_a_call_that_is_to_be_timed_is_not_captured(fake: FakeCudnn, host: Host) -> None:
    x, w = operands()
    host.capturing.add(0x77)
    with pytest.raises(NotInitializedError, match="make the same call once before capturing it"):
        ct.conv(x, w, algo=TIME, stream=0x77)


# --- what a candidate must keep to ---


def test_deterministic(fake: FakeCudnn) -> None:
    fake.random = {"GEMM"}
    for policy in POLICIES:
        timed = policy in ("autotune", "time_once")
        assert ran(fake, algo=policy) == (algorithms(fake)[-1] if timed else "GEMM")
        assert ran(fake, algo=policy, deterministic=True) == "IMPLICIT_GEMM"
        assert set(algorithms(fake)) == {"IMPLICIT_GEMM"}
    fake.random = {"GEMM", "IMPLICIT_GEMM"}
    forget()
    with pytest.raises(NotSupportedError, match="not deterministic"):
        ran(fake, deterministic=True)


def test_workspace_limit(fake: FakeCudnn) -> None:
    fake.workspaces = {"GEMM": 1000, "IMPLICIT_GEMM": 10}
    for policy in POLICIES:
        assert ran(fake, algo=policy, workspace_limit=999) == "IMPLICIT_GEMM"
    with pytest.raises(NotSupportedError, match=r"needs 1,000 bytes of workspace; the limit is 9"):
        ran(fake, workspace_limit=9)


def test_too_little_memory_to_time_a_candidate(fake: FakeCudnn, host: Host, on_disk: Path) -> None:
    fake.workspaces = {"IMPLICIT_GEMM": 1 << 20}
    fake.costs = {"GEMM": 9.0}
    x, w = operands()
    host.limit = host.used() + 8192
    ct.conv(x, w, algo=TIME)
    assert algorithms(fake)[-1] == "GEMM"
    assert not on_disk.exists(), "a choice for want of memory was kept"
    host.limit = 2**32


def test_a_candidate_that_fails_is_remembered_once_and_visibly(fake: FakeCudnn) -> None:
    assert ran(fake) == "GEMM"
    fake.fail_at = {1: 5000}
    fake.calls.clear()
    x, w = operands()
    with pytest.warns(CudnnWarning, match=r"legacy gemm .* failed: .*; legacy implicit_gemm .* ran instead"):
        ct.conv(x, w)
    fake.fail_at = {}
    assert ran(fake) == "IMPLICIT_GEMM"
    assert "refused: legacy gemm" in ct.conv_plan(x, w).describe()


def test_where_all_fail_the_first_error_is_told_and_nothing_is_remembered(fake: FakeCudnn) -> None:
    assert ran(fake) == "GEMM"
    fake.fail["cudnnConvolutionForward"] = 4003
    with pytest.raises(AllocationError):
        ran(fake)
    fake.fail.clear()
    assert ran(fake) == "GEMM"


# --- names ---


@pytest.mark.parametrize("prefix", ["", "legacy "])
def test_a_legacy_algorithm_is_taken_by_the_name_that_tables_print(fake: FakeCudnn, prefix: str) -> None:
    x, w = operands()
    rows = [row for row in ct.conv_algorithms(x, w) if not row.rejected]
    assert {row.algorithm for row in rows} == {"implicit_gemm", "gemm"}
    assert f"{rows[0].backend} {rows[0].algorithm}" in str(ct.conv_algorithms(x, w))
    for row in rows:
        plan = ct.conv_plan(x, w, algo=prefix + row.algorithm, strict=True)
        assert plan.candidate.algorithm == row.algorithm
    with pytest.raises(ValueError, match=r"algo is unknown: got 'algo_0', .* implicit_gemm, .*'engine 38"):
        ct.conv(x, w, algo="algo_0")  # of gradients


@pytest.mark.parametrize("prefix", ["", "graph "])
def test_an_engine_is_taken_by_the_name_that_tables_print(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    asked = []

    def by_name(problem: Any, name: str, context: Any) -> Candidate:
        asked.append(name)
        return Candidate("graph", name, "fma", 0, True, rejected="not here")

    x, w = operands()
    with monkeypatch.context() as patched:
        patched.setattr(graph, "by_name", by_name)
        with pytest.warns(CudnnWarning, match="algo='engine 62 knobs 2=5,3=0' fell back.*not here"):
            ct.conv(x, w, algo=f"{prefix}engine 62 knobs 2=5,3=0")
        with pytest.raises(NotSupportedError, match="not here"):
            ct.conv(x, w, algo=f"{prefix}engine 62 knobs 2=5,3=0", strict=True)
    assert asked == ["engine 62 knobs 2=5,3=0"] * 2
    with pytest.raises(NotSupportedError, match="graph engine 4"):  # the fake has no graphs
        ct.conv(x, w, algo=f"{prefix}engine 4", strict=True)
    for name in ("engine", "engine 04", "engine 4 knobs", "graph gemm", "legacy engine 4"):
        with pytest.raises(ValueError, match="got"):
            ct.conv(x, w, algo=name)


def test_a_name_that_cannot_be_had_falls_back_with_one_warning(fake: FakeCudnn) -> None:
    with pytest.warns(CudnnWarning, match=r"algo='small' fell back to legacy implicit_gemm"):
        assert ran(fake, algo="small") == "IMPLICIT_GEMM"
    assert ran(fake, algo="small") == "IMPLICIT_GEMM"  # warnings are errors: a second one would fail
    x, w = operands()
    with pytest.warns(CudnnWarning, match="fft needs stride 1"):
        plan = ct.conv_plan(x, w, stride=2, algo="fft")
    assert "fft needs stride 1" in plan.fallback_reason
    assert "fallback: fft needs stride 1" in plan.describe()
    with pytest.raises(NotSupportedError, match="fft needs stride 1"):
        ct.conv_plan(x, w, stride=2, algo="fft", strict=True)


FLAT = ("float32", 2)
BAD_ALGO: list[tuple[dict[str, Any], tuple[str, int], type[Exception], str]] = [
    ({"algo": "fastest"}, FLAT, ValueError, "algo is unknown: got 'fastest', expected one of .* names none,"),
    (
        {"algo": "deterministic"},
        FLAT,
        ValueError,
        "for forward of float32 with 2 spatial axes; none, small",
    ),
    ({"algo": "winograd"}, ("float32", 3), ValueError, "with 3 spatial axes; none, small, fft_tiling are"),
    (
        {"algo": "fft"},
        ("float64", 2),
        ValueError,
        "forward of float64 .*; none, small, large, fft_tiling",
    ),
    ({"algo": 3}, FLAT, TypeError, "algo must be a name or a Candidate, not 3"),
    ({"workspace_limit": -1}, FLAT, ValueError, "workspace_limit must be at least 0 bytes, got -1"),
    ({"workspace_limit": "1G"}, FLAT, TypeError, "workspace_limit must be a number of bytes"),
]


@pytest.mark.parametrize(
    ("keywords", "kind", "error", "message"), BAD_ALGO, ids=lambda value: str(value)[:30]
)
def test_conv_rejects_a_bad_request(
    fake: FakeCudnn, keywords: dict[str, Any], kind: tuple[str, int], error: type[Exception], message: str
) -> None:
    dtype, axes = kind
    x, w = images(1, 1, *[4] * axes, dtype=dtype), images(1, 1, *[2] * axes, dtype=dtype)
    with pytest.raises(error, match=message):
        ct.conv(x, w, **keywords)


def test_names_are_those_of_cudnns_enums() -> None:
    from cudnn_ct.ops.conv.legacy_descriptors import DIRECTIONS

    for direction, names in ALGORITHMS.items():
        members = {member.name.lower() for member in DIRECTIONS[direction].algorithms}
        assert {row.algorithm for row in names.values()} <= members


# --- tables ---


def test_a_table_has_all_rows_the_quickest_first(fake: FakeCudnn) -> None:
    fake.costs = {"GEMM": 9.0, "IMPLICIT_GEMM": 1.0}
    x, w = operands()
    table = ct.conv_algorithms(x, w)
    assert [(row.algorithm, row.time_ms) for row in table if not row.rejected] == [
        ("implicit_gemm", 1.0),
        ("gemm", 9.0),
    ]
    refused = [row for row in table if row.rejected]
    assert {row.backend for row in refused} == {"graph", "legacy"}
    assert "1000.0" in str(table)
    assert "legacy gemm (default)" in str(table)
    assert repr(table).startswith("<2 algorithms, and 2 rejected, for forward convolution")
    assert ran(fake, algo=table[1]) == "GEMM"
    unmeasured = ct.conv_algorithms(x, w, measure=False)
    assert [row.algorithm for row in unmeasured[:2]] == ["gemm", "implicit_gemm"]
    assert unmeasured[0].time_ms is None


def test_a_row_is_for_its_problem(fake: FakeCudnn) -> None:
    x, w = operands()
    table = ct.conv_algorithms(x, w)
    with pytest.raises(ValueError, match=r"was made for another problem: .* this is .*padding \(\(1, 1\)"):
        ct.conv(x, w, padding=1, algo=table[0])
    with pytest.raises(ValueError, match="was refused"):
        ct.conv(x, w, algo=table[-1])
    ct.conv(x, w, algo=table[0], beta=1, out=ct.full((2, 4, 3, 4), 1.0))  # scaling makes no other problem


# --- on disk ---


def test_timed_choices_are_kept_on_disk(fake: FakeCudnn, on_disk: Path) -> None:
    fake.costs = {"GEMM": 9.0, "IMPLICIT_GEMM": 1.0}
    assert ran(fake, algo=TIME) == "IMPLICIT_GEMM"
    forget()
    fake.costs = {"GEMM": 1.0, "IMPLICIT_GEMM": 9.0}
    assert ran(fake, algo=TIME) == "IMPLICIT_GEMM"
    assert algorithms(fake) == ["IMPLICIT_GEMM"], "timed although it was known"
    assert not any("Algorithm_v7" in name for name in fake.names())
    x, w = operands()
    assert "as the cache file has it, 1000.0 us a call" in ct.conv_plan(x, w, algo=TIME).describe()
    ran(fake)  # a guess is not kept
    assert len(store().export()) == 1


def test_what_a_choice_depends_on_is_in_its_key(
    fake: FakeCudnn, on_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = operands()
    out = ct.full((2, 4, 3, 4), 1.0)
    calls: list[dict[str, Any]] = [
        {},
        {"padding": 1},
        {"stride": 2},
        {"dilation": 2},
        {"mode": "convolution"},
        {"precision": "float32"},
        {"deterministic": True},
        {"workspace_limit": 5},
        {"beta": 1, "out": out},
    ]
    for keywords in calls:
        ct.conv(x, w, algo=TIME, **keywords)
    monkeypatch.setattr(config, "autotune_max_engines", 3)
    ct.conv(x, w, algo=TIME)
    monkeypatch.setattr(config, "allow_runtime_compilation", False)
    ct.conv(x, w, algo=TIME)
    ct.conv_backward_data(out, w, x.shape, algo=TIME)
    keys = store().export()
    assert len(keys) == len(calls) + 3
    assert all(key.startswith("cuDNN 91900 | a device of the tests | ConvProblem(") for key in keys)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": [{"backend": "nothing"}]},
        {"rows": [{"algorithm": 7}]},
        {"rows": "text"},
        {},
        {"rows": [{"algorithm": "no such"}]},
        {"rows": [{"algorithm": "nope", "time_ms": 1e999}]},
        {"rows": [{"deterministic": False}]},
    ],
    ids=str,
)
def test_stored_rows_that_are_wrong_are_timed_again(fake: FakeCudnn, on_disk: Path, wrong: Any) -> None:
    fake.costs = {"GEMM": 9.0}
    ran(fake, algo=TIME, deterministic=True)
    ((key, entry),) = store().export().items()
    rows = wrong.get("rows")
    changed = [{**entry["rows"][0], **row} for row in rows] if isinstance(rows, list) else rows
    forget()
    text = json.dumps({"rows": changed} if rows else {})
    with contextlib.closing(sqlite3.connect(on_disk)) as database, database:
        database.execute(f"UPDATE {TABLE} SET entry = ? WHERE key = ?", (text, key))
    assert ran(fake, algo=TIME, deterministic=True) == "IMPLICIT_GEMM"
    assert len(algorithms(fake)) > 2, "not timed"


def test_that_nothing_works_is_remembered_too(fake: FakeCudnn, on_disk: Path) -> None:
    fake.fail["cudnnConvolutionForward"] = 3000
    for tried in (["GEMM", "IMPLICIT_GEMM"], []):
        forget()
        with pytest.raises(NotSupportedError, match="refused: legacy gemm") as caught:
            ran(fake, algo=TIME)
        reasons = [line for line in str(caught.value).splitlines() if "refused" in line]
        assert len(reasons) == len(set(reasons))
        assert sorted(set(algorithms(fake))) == tried


def test_choices_travel_as_json(
    fake: FakeCudnn, on_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.costs = {"GEMM": 9.0}
    ran(fake, algo=TIME)
    assert ct.export_algo_cache(tmp_path / "fleet.json") == 1
    assert json.loads((tmp_path / "fleet.json").read_text())["entries"]
    monkeypatch.setattr(config, "algo_cache", str(tmp_path / "other.sqlite"))
    forget()
    assert ct.import_algo_cache(tmp_path / "fleet.json") == 1
    assert ran(fake, algo=TIME) == "IMPLICIT_GEMM"
    assert algorithms(fake) == ["IMPLICIT_GEMM"]


# --- plans ---


def test_a_plan_runs_on_other_operands_of_its_kind(fake: FakeCudnn) -> None:
    x, w = operands()
    plan = ct.conv_plan(x, w, padding=1)
    fake.calls.clear()
    other = ct.full(x.shape, 2.0)
    y = ct.full((2, 4, 5, 6), np.nan)
    assert plan(other, w, out=y) is y
    assert fake.names() == ["cudnnConvolutionForward"]
    np.testing.assert_array_equal(y.numpy(), ct.reference.conv(other.numpy(), w.numpy(), padding=1))
    assert plan.workspace == 0
    assert "forward convolution: x float32[2, 3, 5, 6]" in plan.describe()


def test_a_plan_rejects_operands_of_another_kind(fake: FakeCudnn) -> None:
    x, w = operands()
    plan = ct.conv_plan(x, w)
    whole = ct.zeros((2 * 3 * 5 * 6 + 1,))
    shifted = ct.DeviceArray(x.spec, whole.pointer + 4, whole, whole.writer, whole.home)
    both, one = images(1, 1, 3, 3), images(1, 1, 1, 1)
    square, added = ct.conv_plan(both, one), ct.conv_plan(x, w, beta=1)
    calls: list[tuple[Any, type[Exception], str]] = [
        (
            lambda: plan(images(1, 3, 5, 6), w),
            ValueError,
            r"x is float32\[1, .* prepared for float32\[2, 3",
        ),
        (
            lambda: plan(x, w, out=ct.empty((1,))),
            ValueError,
            r"out is float32\[1\] nchw; the plan was",
        ),
        (lambda: plan(x), TypeError, "the plan takes x, w; got 1 operands"),
        (lambda: plan(x, w.numpy()), TypeError, "w must be an array on the device"),
        (lambda: plan(shifted, w), ValueError, "16-byte aligned operands"),
        (lambda: square(both, one, out=both), ValueError, "out overlaps"),
        (lambda: added(x, w), ValueError, "beta=1 needs out"),
    ]
    for call, error, message in calls:
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
def test_plans_of_all_directions(fake: FakeCudnn, direction: str) -> None:
    fake.costs = {"GEMM": 9.0, "ALGO_1": 9.0}
    x, w = operands()
    dy = images(2, 4, 3, 4)
    first, second, shape = {
        "forward": (x, w, ()),
        "backward_data": (dy, w, (x.shape,)),
        "backward_filter": (dy, x, (w.shape,)),
    }[direction]
    name = "conv" if direction == "forward" else f"conv_{direction}"
    plan = ct.conv_plan(first, second, *shape, direction=direction, algo=TIME, alpha=2)
    expected = getattr(ct.reference, name)(first.numpy(), second.numpy(), *shape, alpha=2)
    np.testing.assert_array_equal(plan(first, second).numpy(), expected)
    assert plan.candidate.algorithm in ("implicit_gemm", "algo_0")
    with pytest.raises(ValueError, match="direction must be one of forward, backward_data, backward_filter"):
        ct.conv_plan(first, second, direction="sideways")


@pytest.mark.parametrize(
    ("factors", "scaled"),
    [({}, ""), ({"alpha": 2}, ", scaled by alpha"), ({"beta": 0.5}, ", scaled by beta")],
)
def test_table_is_of_a_call_with_its_factors(fake: FakeCudnn, factors: dict[str, float], scaled: str) -> None:
    x, w, out = ct.zeros((1, 2, 5, 5)), ct.zeros((3, 2, 3, 3)), ct.zeros((1, 3, 3, 3))
    title = str(ct.conv_algorithms(x, w, **factors, out=out)).splitlines()[0]
    assert title.partition("on tensor cores")[2] == scaled
