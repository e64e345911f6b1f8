"""Candidates with large workspaces in a benchmark, on fakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct._bindings import enums
from cudnn_ct.autotune import benchmark, measurement
from cudnn_ct.autotune.store import store
from cudnn_ct.ops.conv.candidates import SOURCE
from tests.both.replays import configured

from .cudnn import FakeCudnn
from .host import Host
from .test_conv import images

LARGE, SMALL = "GEMM", "IMPLICIT_GEMM"
MANY = 2**22  # bytes that count as a large workspace here


@pytest.fixture(autouse=True)
def _cheap(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workspaces of 4 MiB be large, and the memory write that much in a millisecond."""
    monkeypatch.setattr(measurement, "LARGE_WORKSPACE", MANY - 1)
    monkeypatch.setattr(measurement, "FASTEST_MEMORY", MANY)
    fake.costs = {LARGE: 1.5, SMALL: 2.0}
    fake.workspaces = {LARGE: MANY}


def tuned() -> tuple[str, str]:
    """Return the algorithm that a benchmark selects, and its description."""
    x, w = images(1, 3, 5, 6), images(4, 3, 3, 3)
    y = ct.conv(x, w, algo="autotune")
    np.testing.assert_allclose(y.numpy(), ct.reference.conv(x.numpy(), w.numpy()), rtol=1e-5)
    plan = ct.last_plan()
    return plan.candidate.algorithm, plan.describe()


def test_large_workspace_is_timed_when_it_may_pay(fake: FakeCudnn, host: Host) -> None:
    assert tuned()[0] == LARGE.lower()


def test_candidate_is_rejected_when_its_workspace_takes_longer_than_the_fastest(
    fake: FakeCudnn, host: Host, on_disk: Any
) -> None:
    fake.workspaces = {LARGE: 4 * MANY}
    chosen, description = tuned()
    assert chosen != LARGE.lower()
    assert "needs 16,777,216 bytes of workspace, which take longer to write than the fastest" in description
    assert host.used() < MANY
    assert len(store().export()) == 1
    rows = ct.conv_algorithms(images(1, 3, 5, 6), images(4, 3, 3, 3))
    (row,) = [row for row in rows if row.algorithm == LARGE.lower()]
    assert row.time_ms is not None, "a table times everything"


@pytest.mark.parametrize(
    ("nbytes", "setting", "graphs"),
    [(16, {}, True), (MANY, {}, False), (16, {"replay": False}, False), (16, {"debug_sync": True}, False)],
)
def test_short_runs_are_timed_as_graphs_unless_these_would_keep_much_memory(
    fake: FakeCudnn,
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
    nbytes: int,
    setting: dict[str, bool],
    graphs: bool,
) -> None:
    monkeypatch.setattr(benchmark, "SHORT_MS", 2)
    fake.costs = dict.fromkeys((one.name for one in enums.ConvolutionFwdAlgo), 9.0) | {LARGE: 0.5}
    fake.workspaces = {LARGE: nbytes}
    with configured(**setting):
        assert tuned()[0] == LARGE.lower()
    assert bool(host.launches) == graphs


@pytest.mark.parametrize(("free", "total"), [(MANY // 2, 2**40), (MANY // 2, MANY // 2)])
def test_candidate_is_rejected_without_an_allocation_when_memory_does_not_suffice(
    fake: FakeCudnn, host: Host, on_disk: Any, monkeypatch: pytest.MonkeyPatch, free: int, total: int
) -> None:
    monkeypatch.setattr(measurement, "memory_info", lambda _: (free, total))
    allocated = []
    monkeypatch.setattr(host, "allocate", _noting(host, allocated))
    chosen, description = tuned()
    assert chosen != LARGE.lower()
    assert "needs 4,194,304 bytes of workspace; " in description
    assert max(allocated) < MANY
    assert len(store().export()) == (free == total), "memory may be free another time"


def _noting(host: Host, allocated: list[int]) -> Any:
    allocate = host.allocate

    def noting(nbytes: int, device: int, stream: int) -> Any:
        allocated.append(nbytes)
        return allocate(nbytes, device, stream)

    return noting


def test_workspace_of_the_plan_is_bounded_when_the_row_has_none(
    fake: FakeCudnn, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = SOURCE.plan

    def roomy(problem: Any, row: ct.Candidate, *arguments: Any) -> Any:
        made = plan(problem, row, *arguments)
        made.workspace = 4 * MANY if row.algorithm == LARGE.lower() else made.workspace
        return made

    fake.workspaces = {}
    monkeypatch.setattr(SOURCE, "plan", roomy)
    monkeypatch.setattr(measurement, "memory_info", lambda _: (MANY, 2**40))
    chosen, description = tuned()
    assert chosen != LARGE.lower()
    assert "needs 16,777,216 bytes of workspace; 4,194,304 are free" in description
