"""algo="online": later calls try other candidates, until the fastest is known; on the fakes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct._config import config
from cudnn_ct.autotune.store import store

from .conftest import forget
from .cudnn import FakeCudnn
from .host import Host
from .test_algorithms import on_disk, operands, ran

__all__ = ["on_disk"]  # a fixture, known here by its import
MANY = 12  # calls, more than there are candidates


def online(fake: FakeCudnn, **keywords: Any) -> str:
    return ran(fake, algo="online", **keywords)


def how() -> str:
    return next(line for line in ct.last_plan().describe().splitlines() if "how: " in line)


@pytest.fixture
def slow(fake: FakeCudnn) -> FakeCudnn:
    """The heuristic choice is the slowest algorithm."""
    fake.costs = {"GEMM": 9.0}
    return fake


def settle(fake: FakeCudnn) -> str:
    """Make calls until nothing is left to try; return the algorithm of the next call."""
    for _ in range(MANY):
        online(fake)
        if "settled" in how():
            return online(fake)
    raise AssertionError(how())


def test_first_call_runs_the_heuristic_choice_alone(slow: FakeCudnn) -> None:
    assert online(slow) == "GEMM"
    assert [name for name in slow.names() if name == "cudnnConvolutionForward"] == ["cudnnConvolutionForward"]
    assert how() == "  how: online"


def test_later_calls_find_the_fastest(slow: FakeCudnn) -> None:
    assert settle(slow) == "IMPLICIT_GEMM"
    slow.calls.clear()
    online(slow)
    assert slow.names().count("cudnnConvolutionForward") == 1  # nothing is timed any more
    assert ct.last_plan().candidate.time_ms is not None  # type: ignore[union-attr]


def test_every_call_has_the_right_result_once(slow: FakeCudnn) -> None:
    x, w = operands()
    out, wanted = ct.full((2, 4, 3, 4), 2.0), ct.reference.conv(x.numpy(), w.numpy())
    for count in range(1, MANY):
        ct.conv(x, w, out=out, beta=1, algo="online")
        np.testing.assert_array_equal(out.numpy(), count * wanted + 2)


def test_nothing_is_tried_in_a_capture(slow: FakeCudnn, host: Host) -> None:
    x, w = operands()
    out = ct.empty((2, 4, 3, 4))
    ct.conv(x, w, out=out, algo="online", stream=0x77)
    host.capturing.add(0x77)
    for _ in range(3):
        ct.conv(x, w, out=out, algo="online", stream=0x77)
    assert how() == "  how: online"


def test_deterministic_calls_stay_with_the_heuristic_choice(slow: FakeCudnn) -> None:
    assert {online(slow, deterministic=True) for _ in range(MANY)} == {"GEMM"}
    assert how() == "  how: heuristic"


def test_threads_share_what_is_settled(slow: FakeCudnn) -> None:
    settle(slow)
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(online(slow)))
    thread.start()
    thread.join()
    assert seen == ["IMPLICIT_GEMM"]


def test_another_process_begins_with_what_was_settled(slow: FakeCudnn, on_disk: Path) -> None:
    settle(slow)
    forget()
    assert online(slow) == "IMPLICIT_GEMM"
    assert "as the cache file has it" in how()
    assert ran(slow, algo="autotune") == "IMPLICIT_GEMM"
    assert "as the cache file has it" in how()


def test_budget_ends_the_trials(slow: FakeCudnn, on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow.engines = True
    monkeypatch.setattr(config, "online_seconds", 0)
    x, w = operands()
    rows = []
    for _ in range(4):
        ct.conv(x, w, algo="online")
        rows.append(ct.last_plan().candidate)
    assert "2 candidates tried, settled" in how()
    assert len({row.algorithm for row in rows[2:] if row}) == 1
    assert not store().export()


def test_lack_of_memory_ends_the_trials(slow: FakeCudnn, host: Host) -> None:
    x, w = operands()
    out = ct.empty((2, 4, 3, 4))
    ct.conv(x, w, out=out, algo="online")
    host.limit = host.used()
    for _ in range(3):
        ct.conv(x, w, out=out, algo="online")
    np.testing.assert_array_equal(out.numpy(), ct.reference.conv(x.numpy(), w.numpy()))
