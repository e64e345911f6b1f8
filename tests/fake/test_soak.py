"""What is remembered has bounds: `tests.soak` as on a GPU, with fewer operations and lower bounds."""

from __future__ import annotations

import ctypes
import gc
import itertools
import random
from collections import Counter
from pathlib import Path

import pytest

import cudnn_ct as ct
from cudnn_ct import context, dnn, testing
from cudnn_ct._config import config
from cudnn_ct.autotune import store
from cudnn_ct.cuda import stream as streams
from cudnn_ct.dnn import rnn as blocks_of_dnn
from tests import soak
from tests.soak import KINDS, Work, bounded, changed, cycles, growth, lowered, malloc_in_use, mappings

from .cudnn import FakeCudnn
from .host import Host

TELLS = pytest.mark.skipif(not malloc_in_use(), reason="this C library does not tell what malloc handed out")
OPERATIONS = 80  # three times as many are made
MOST = 30_000  # bytes; what is hot differs by chance


def forget(fake: FakeCudnn, host: Host) -> None:
    """Drop what the fakes remember for tests that ask what was called."""
    host.forget()
    fake.calls.clear()
    fake.passes.clear()


def test_nothing_grows(fake: FakeCudnn, host: Host) -> None:
    addresses = itertools.count(0x10000, 16)

    def once() -> None:
        work.once()
        forget(fake, host)

    gc.collect()
    gc.disable()
    try:
        with lowered(8):
            work = Work(0, lambda: next(addresses), per_stream=5, largest=6)
            grown, lines = growth(once, OPERATIONS)
            left = list(bounded())
        assert cycles() == []
    finally:
        gc.enable()
    assert grown < MOST, lines
    assert [(name, have) for name, have, limit in left if have > limit] == []
    full = {name for name, have, limit in left if have == limit}
    assert full >= {"decisions", "descriptors", "calls of a thread", "workspaces of a thread"}


@pytest.mark.nightly
def test_laps_are_compared_place_by_place(
    fake: FakeCudnn, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "WATCHED", 5)
    addresses = itertools.count(0x10000, 16)
    once = Work.once
    monkeypatch.setattr(Work, "once", lambda work: (once(work), forget(fake, host)))
    with soak.lowered(8):
        figures = soak.soak(1000, 100, lambda: next(addresses))
        late = soak.soak(1000, 0, lambda: next(addresses))
    assert len(figures["samples"]) == soak.LAPS * soak.LOOKS
    assert [lap[0] // 250 for lap in figures["laps"]] == [1, 2, 3, 4]
    assert figures["device_growth"] < 2**16
    assert figures["host_malloc_growth"] < 2**16
    assert any(line.startswith("only ") for line in late["wrong"])


@pytest.mark.nightly
@TELLS
@pytest.mark.parametrize("kind", soak.KINDS)
def test_malloc_has_handed_out_as_much_after_as_before(kind: str, fake: FakeCudnn, host: Host) -> None:
    """Between some two of four laps: what a dict takes as it grows is in one, what is lost in all."""
    shapes = [f"{kind} {number}" for number in range(4)]
    counts = []
    with lowered(8):
        work = Work(0, lambda: 0x10000)
        for _ in range(4):
            for _ in range(10):
                for shape in shapes:
                    KINDS[kind](work, random.Random(shape))
                    forget(fake, host)
            gc.collect()
            counts.append(malloc_in_use())
    assert min(after - before for before, after in itertools.pairwise(counts)) < 2**10, counts


def test_what_is_lost_between_laps() -> None:
    first, second = list(range(soak.LOOKS)), [7, *range(1, soak.LOOKS)]
    assert soak.lost([99] * soak.LOOKS + first + second) == 7
    assert soak.lost(first) == 0


def test_what_host_memory_is_mapped_for() -> None:
    smaps = """\
55d0c0000000-55d0c0200000 rw-p 00000000 00:00 0                          [heap]
Size:               2048 kB
Rss:                1024 kB
7f00a0000000-7f00a0021000 rw-p 00000000 00:00 0
Rss:                 132 kB
7f00b0000000-7f00b0100000 r-xp 00000000 08:01 42                         /usr/lib/libc.so.6
Rss:                 512 kB
7f00b0100000-7f00b0200000 r--p 00100000 08:01 42                         /usr/lib/libc.so.6
Rss:                   8 kB
"""
    assert mappings(smaps.splitlines()) == {
        "[heap]": 1024 * 1024,
        "anonymous, 0.1 MiB": 132 * 1024,
        "libc.so.6": 520 * 1024,
    }
    assert mappings().total() > 2**20
    more = Counter({"[heap]": 3 * 2**20, "libc.so.6": 520 * 1024, "new": 4096})
    assert changed(mappings(smaps.splitlines()), more) == [
        "[heap] +2,097,152",
        "anonymous, 0.1 MiB -135,168",
        "new +4,096",
    ]


@TELLS
def test_memory_that_malloc_handed_out_is_counted() -> None:
    before = malloc_in_use()
    held = ctypes.create_string_buffer(2**24)
    assert malloc_in_use() - before > 2**23, len(held)


def test_workspaces_of_streams_that_come_and_go(fake: FakeCudnn, host: Host) -> None:
    fake.workspaces = {"IMPLICIT_GEMM": 1000, "GEMM": 1000}
    x, w = ct.full((1, 2, 5, 5), 1.0), ct.full((1, 2, 3, 3), 1.0)
    most = 0
    for address in range(0x1000, 0x1000 + 16 * 3 * context.WORKSPACES, 16):
        ct.conv(x, w, stream=address)
        most = max(most, host.used())
    here = context.current(streams.default_stream(0))
    assert len(here._workspaces) == context.WORKSPACES
    assert most < 1000 * (context.WORKSPACES + 4)


def test_an_unknown_device_is_not_remembered(host: Host) -> None:
    before = streams.default_stream.cache_info().currsize
    for device in range(100, 200):
        with pytest.raises(ValueError, match=f"device {device} does not exist: the driver shows 2"):
            streams.default_stream(device)
    assert streams.default_stream.cache_info().currsize == before


def test_networks_of_a_block_for_many_sizes(fake: FakeCudnn) -> None:
    block = dnn.RNNBlock("float32", 4, 1, "gru")
    sizes = range(1, 2 * blocks_of_dnn.NETWORKS)
    assert [block.get_param_size((2, size)) for size in sizes] == [
        block.get_param_size((2, size)) for size in sizes
    ]
    assert len(block._networks) == blocks_of_dnn.NETWORKS


def test_stores_of_many_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2 * store.STORES):
        monkeypatch.setattr(config, "algo_cache", str(tmp_path / str(number)))
        assert store.store() is store.store()
    assert testing.cache_sizes()["stores"] == (store.STORES, store.STORES)
