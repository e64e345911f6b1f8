"""Selection of an algorithm: policies, limits, names, tables, stored results and plans. On the fakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import facts, testing
from cudnn_ct._algorithm_names import POLICIES, SYNONYMS
from cudnn_ct._config import config
from cudnn_ct.autotune.store import store
from cudnn_ct.errors import CudnnWarning, NotInitializedError, NotSupportedError
from cudnn_ct.ops.conv import graph
from cudnn_ct.ops.conv.candidates import ALGORITHMS
from cudnn_ct.plans.base import Candidate

from .conftest import forget
from .cudnn import FakeCudnn
from .host import Host
from .test_conv import algorithms, images

GUESS, TIME = "heuristic", "autotune"


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


def test_heuristic_takes_the_first_candidate_and_autotune_times_all_once(fake: FakeCudnn) -> None:
    fake.costs = {"GEMM": 9.0, "IMPLICIT_GEMM": 1.0}
    assert ran(fake) == "GEMM"
    assert algorithms(fake) == ["GEMM"]
    assert ran(fake, algo=TIME) == "IMPLICIT_GEMM"
    assert "GEMM" in algorithms(fake)
    assert ran(fake, algo=TIME) == "IMPLICIT_GEMM"
    assert algorithms(fake) == ["IMPLICIT_GEMM"]


def test_settings_are_the_defaults_of_a_call(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.costs = {"GEMM": 9.0}
    assert ran(fake) == "GEMM"
    monkeypatch.setattr(config, "algo", TIME)
    assert ran(fake) == "IMPLICIT_GEMM"
    fake.random = {"GEMM"}
    monkeypatch.setattr(config, "algo", GUESS)
    forget()
    monkeypatch.setattr(config, "deterministic", True)
    assert ran(fake) == "IMPLICIT_GEMM"
    assert ran(fake, deterministic=False) == "GEMM"


def test_convolutions_ignore_the_algorithm_of_networks_in_settings(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "algo", "persist_static")
    assert ran(fake) == "GEMM"


def test_policies_share_no_decisions(fake: FakeCudnn) -> None:
    x, w = operands()
    for policy in POLICIES:
        ran(fake, algo=policy)
    for word, policy in SYNONYMS.items():
        assert f"how: {policy}" in ct.conv_plan(x, w, algo=word).describe()
    assert testing.cache_sizes()["decisions"].entries == len(POLICIES)


def test_autotune_writes_to_scratch_memory_when_beta_is_given(fake: FakeCudnn) -> None:
    fake.costs = {"GEMM": 9.0}
    x, w = operands()
    out = ct.full((2, 4, 3, 4), 2.0)
    ct.conv(x, w, out=out, beta=3, algo=TIME)
    assert len(algorithms(fake)) > 3
    np.testing.assert_array_equal(out.numpy(), ct.reference.conv(x.numpy(), w.numpy()) + 6)


def test_autotune_raises_in_a_capture(fake: FakeCudnn, host: Host) -> None:
    x, w = operands()
    host.capturing.add(0x77)
    with pytest.raises(NotInitializedError, match="make the same call once before capturing it"):
        ct.conv(x, w, algo=TIME, stream=0x77)


# --- what a candidate must keep to ---


def test_deterministic_excludes_other_algorithms(fake: FakeCudnn) -> None:
    fake.random = {"GEMM"}
    for policy in POLICIES:
        timed = policy == TIME
        assert ran(fake, algo=policy) == (algorithms(fake)[-1] if timed else "GEMM")
        assert ran(fake, algo=policy, deterministic=True) == "IMPLICIT_GEMM"
        assert set(algorithms(fake)) == {"IMPLICIT_GEMM"}
    fake.random = {"GEMM", "IMPLICIT_GEMM"}
    forget()
    with pytest.raises(NotSupportedError, match="not deterministic"):
        ran(fake, deterministic=True)


def test_workspace_limit_excludes_algorithms_that_need_more(fake: FakeCudnn) -> None:
    fake.workspaces = {"GEMM": 1000, "IMPLICIT_GEMM": 10}
    for policy in POLICIES:
        assert ran(fake, algo=policy, workspace_limit=999) == "IMPLICIT_GEMM"
    with pytest.raises(NotSupportedError, match=r"needs 1,000 bytes of workspace; the limit is 9"):
        ran(fake, workspace_limit=9)


def test_autotune_stores_nothing_when_memory_was_short(fake: FakeCudnn, host: Host, on_disk: Path) -> None:
    fake.workspaces = {"IMPLICIT_GEMM": 1 << 20}
    fake.costs = {"GEMM": 9.0}
    x, w = operands()
    host.limit = host.used() + 8192
    ct.conv(x, w, algo=TIME)
    assert algorithms(fake)[-1] == "GEMM"
    assert not on_disk.exists(), "a choice for want of memory was kept"
    host.limit = 2**32


def test_candidate_that_failed_is_not_tried_again_and_warns_once(fake: FakeCudnn) -> None:
    assert ran(fake) == "GEMM"
    fake.fail_at = {1: 5000}
    fake.calls.clear()
    x, w = operands()
    with pytest.warns(CudnnWarning, match=r"legacy gemm .* failed: .*; legacy implicit_gemm .* ran instead"):
        ct.conv(x, w)
    fake.fail_at = {}
    assert ran(fake) == "IMPLICIT_GEMM"
    assert "rejected: legacy gemm" in ct.conv_plan(x, w).describe()


# --- names ---


@pytest.mark.parametrize("prefix", ["", "legacy "])
def test_conv_takes_a_legacy_algorithm_by_the_name_that_tables_print(fake: FakeCudnn, prefix: str) -> None:
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
def test_conv_takes_an_engine_by_the_name_that_tables_print(
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


def test_named_algorithm_falls_back_with_one_warning(fake: FakeCudnn) -> None:
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


def test_names_of_algorithms_are_members_of_cudnn() -> None:
    from cudnn_ct.ops.conv.legacy import DIRECTIONS

    for direction, names in ALGORITHMS.items():
        members = {member.name.lower() for member in DIRECTIONS[direction].algorithms}
        assert {row.algorithm for row in names.values()} <= members


# --- tables ---


def test_table_has_all_rows_the_fastest_first(fake: FakeCudnn) -> None:
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
    assert str(ct.conv_algorithms(x, w, alpha=2)).splitlines()[0].endswith(", scaled by alpha")
    assert repr(table).startswith("<2 algorithms, and 2 rejected, for forward convolution")
    assert ran(fake, algo=table[1]) == "GEMM"
    unmeasured = ct.conv_algorithms(x, w, measure=False)
    assert [row.algorithm for row in unmeasured[:2]] == ["gemm", "implicit_gemm"]
    assert unmeasured[0].time_ms is None


def test_row_of_a_table_is_rejected_for_another_problem(fake: FakeCudnn) -> None:
    x, w = operands()
    table = ct.conv_algorithms(x, w)
    with pytest.raises(ValueError, match=r"was made for another problem: .* this is .*padding \(\(1, 1\)"):
        ct.conv(x, w, padding=1, algo=table[0])
    with pytest.raises(ValueError, match="was rejected"):
        ct.conv(x, w, algo=table[-1])
    ct.conv(x, w, algo=table[0], beta=1, out=ct.full((2, 4, 3, 4), 1.0))  # scaling makes no other problem


# --- on disk ---


def test_autotune_stores_its_result_for_later_processes(fake: FakeCudnn, on_disk: Path) -> None:
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


def test_key_of_a_stored_result_has_all_arguments_and_settings(
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
    start = f"cuDNN 91900 facts {facts.digest()} | a device of the tests | ConvProblem("
    assert all(key.startswith(start) for key in keys)


@pytest.mark.parametrize(
    "rows",
    [
        *("text", None),
        *([{name: value}] for name, value in (("backend", "nothing"), ("algorithm", 7), ("algorithm", "no"))),
        *([{"algorithm": "nope", "time_ms": 1e999}], [{"deterministic": False}]),
    ],
    ids=str,
)
def test_autotune_times_again_when_stored_rows_are_wrong(fake: FakeCudnn, on_disk: Path, rows: Any) -> None:
    fake.costs = {"GEMM": 9.0}
    ran(fake, algo=TIME, deterministic=True)
    ((key, entry),) = store().export().items()
    changed = [{**entry["rows"][0], **row} for row in rows] if isinstance(rows, list) else rows
    forget()
    (file,) = on_disk.iterdir()
    file.write_text(json.dumps({"key": key, "entry": {"rows": changed} if rows else {}}))
    assert ran(fake, algo=TIME, deterministic=True) == "IMPLICIT_GEMM"
    assert len(algorithms(fake)) > 2, "not timed"


def test_autotune_stores_that_nothing_is_supported(fake: FakeCudnn, on_disk: Path) -> None:
    fake.fail["cudnnConvolutionForward"] = 3000
    for tried in (["GEMM", "IMPLICIT_GEMM"], []):
        forget()
        with pytest.raises(NotSupportedError, match="rejected: legacy gemm") as caught:
            ran(fake, algo=TIME)
        reasons = [line for line in str(caught.value).splitlines() if "refused" in line]
        assert len(reasons) == len(set(reasons))
        assert sorted(set(algorithms(fake))) == tried


# --- plans ---


def test_plan_runs_on_other_operands_of_its_kind(fake: FakeCudnn) -> None:
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


def test_plan_rejects_operands_of_another_kind(fake: FakeCudnn) -> None:
    x, w = operands()
    plan = ct.conv_plan(x, w)
    whole = ct.zeros((2 * 3 * 5 * 6 + 1,))
    shifted = ct.DeviceArray.over(x.spec, whole.pointer + 4, whole, whole.writer, whole.home)
    both, one = images(1, 1, 3, 3), images(1, 1, 1, 1)
    square, added = ct.conv_plan(both, one), ct.conv_plan(x, w, beta=1)
    calls: list[tuple[Any, type[Exception], str]] = [
        (lambda: plan(images(1, 3, 5, 6), w), ValueError, r"x is float32\[1, .* prepared for float32\[2, 3"),
        (lambda: plan(x, w, out=ct.empty((1,))), ValueError, r"out is float32\[1\] nchw; the plan was"),
        (lambda: plan(x), TypeError, "the plan takes x, w; got 1 operands"),
        (lambda: plan(x, None), TypeError, "w must be an array on the device, not NoneType"),
        (lambda: plan(x, w.numpy()), TypeError, "w must be an array on the device"),
        (lambda: plan(shifted, w), ValueError, "16-byte aligned operands"),
        (lambda: square(both, one, out=both), ValueError, "out overlaps"),
        (lambda: added(x, w), ValueError, "beta=1 needs out"),
    ]
    for call, error, message in calls:
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
def test_plan_equals_reference_in_each_direction(fake: FakeCudnn, direction: str) -> None:
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
