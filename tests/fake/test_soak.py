"""The caches have bounds: `tests.soak` as on a GPU, with fewer operations and lower bounds."""

from __future__ import annotations

import itertools

import pytest

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct.cuda import stream as streams
from tests.soak import Work, lowered, soak

from .cudnn import FakeCudnn
from .host import Host


@pytest.mark.nightly
def test_soak_finds_no_growth(fake: FakeCudnn, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = itertools.count(0x10000, 16)
    make_operations = Work.once

    def once(work: Work) -> None:
        make_operations(work)
        host.forget()
        fake.calls.clear()
        fake.passes.clear()

    monkeypatch.setattr(Work, "once", once)
    with lowered(8):
        figures = soak(1200, 200, Work(0, lambda: next(addresses), per_stream=5, largest=6))
    assert figures["wrong"] == []
    full = {name for name, (size, limit) in figures["caches"].items() if size == limit}
    assert full >= {"decisions", "descriptors", "calls of a thread", "workspaces of a thread"}


def test_workspaces_are_bounded_when_streams_come_and_go(fake: FakeCudnn, host: Host) -> None:
    fake.workspaces = {"IMPLICIT_GEMM": 1000, "GEMM": 1000}
    x, w = ct.full((1, 2, 5, 5), 1.0), ct.full((1, 2, 3, 3), 1.0)
    most = 0
    for address in range(0x1000, 0x1000 + 16 * 3 * context.WORKSPACES, 16):
        ct.conv(x, w, stream=address)
        most = max(most, host.used())
    here = context.current(streams.default_stream(0))
    assert len(here._workspaces) == context.WORKSPACES
    assert most < 1000 * (context.WORKSPACES + 4)


def test_default_stream_does_not_cache_unknown_devices(host: Host) -> None:
    before = streams.default_stream.cache_info().currsize
    for device in range(100, 200):
        with pytest.raises(ValueError, match=f"device {device} does not exist: the driver shows 2"):
            streams.default_stream(device)
    assert streams.default_stream.cache_info().currsize == before
