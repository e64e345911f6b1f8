"""Many threads at once on a GPU, and threads that come and go."""

from __future__ import annotations

import gc
import os
import time

import pytest

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct._config import config
from cudnn_ct.cli.selftest_rows import Case
from cudnn_ct.cuda import memory
from cudnn_ct.cuda import stream as streams
from tests.mixed import MixedCall, in_threads, make_mixed, mixed_calls, own_stream

THREADS, EACH = 16, 2000


def wanted(case: Case) -> bool:
    """Return whether a row is one of the dtypes and layouts with different implementations."""
    plain = (case.dtype, case.layout) in (("float32", "nchw"), ("float16", "nhwc"))
    return plain and case.variant not in ("three axes", "one axis", "IEEE float32", "dilation 2", "algo none")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[MixedCall]:
    monkeypatch.setattr(config, "deterministic", True)
    monkeypatch.setattr(config, "allow_runtime_compilation", False)  # each thread would compile its own
    return mixed_calls(wanted)


def test_threads_compute_on_own_and_shared_streams(calls: list[MixedCall]) -> None:
    shared, own = [0, own_stream(), own_stream()], [own_stream() for _ in range(THREADS)]
    path = os.environ.get("CUDNN_CT_RELIABILITY")
    each = EACH if path else EACH // 40  # all of them take minutes next to other tests
    begin = time.monotonic()
    in_threads(THREADS, lambda number: make_mixed(calls, each, number, (*shared, own[number])))
    seconds = round(time.monotonic() - begin, 1)
    ct.synchronize()
    if path:
        from tools.reliability import put, where

        figures = {"threads": THREADS, "each": each, "calls": len(calls), "different": 0, "seconds": seconds}
        put(path, "threads", figures | {"where": where()})


@pytest.mark.alone  # what others take and give back counts too
def test_ended_threads_leave_no_memory(calls: list[MixedCall]) -> None:
    calls = calls[::5]

    def round_of_threads() -> int:
        in_threads(8, lambda number: make_mixed(calls, 8, number, (0,)))
        gc.collect()
        context.empty_cache()
        free, total = memory.memory_info(streams.current_device())
        return total - free

    for _ in range(2):
        before = round_of_threads()
    after = max(round_of_threads() for _ in range(5))
    assert after - before < 64 * 2**20, f"{after - before:,} bytes more after 40 threads"
