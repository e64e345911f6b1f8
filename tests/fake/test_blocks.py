"""Small blocks of device memory are kept for the next array of their size."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import cudnn_ct as ct
from cudnn_ct import testing
from cudnn_ct.cuda import allocator, recording
from cudnn_ct.cuda.array_key import array_key
from cudnn_ct.cuda.stream import default_stream
from cudnn_ct.shapes.specs import TensorSpec
from tests.mixed import in_threads

from .host import Host


@pytest.fixture(autouse=True)
def _kept(monkeypatch: pytest.MonkeyPatch, host: Host) -> Iterator[None]:
    monkeypatch.setattr(allocator, "MAX_BLOCK", 2**20)
    testing.reset()
    yield
    gc.collect()
    for device in (0, 1):
        allocator.release(device)
    assert not host.live


def test_block_is_reused_on_the_default_stream_only(host: Host) -> None:
    first = ct.empty((100,))
    address = first.pointer
    del first
    assert host.used() == 512, "given back to the pool"
    again = ct.empty((128,))  # 512 bytes too
    assert again.pointer == address
    assert ct.empty((128,)).pointer != address
    assert ct.empty((129,)).pointer != address
    del again
    assert ct.empty((128,), stream=0x77).pointer != address
    with ct.use(device=1):
        assert ct.empty((128,)).pointer != address


def test_blocks_are_freed_when_large_or_too_many(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    ct.empty((2**20,))
    assert host.used() == 0
    monkeypatch.setattr(allocator, "MAX_CACHED", 1024)
    arrays = [ct.empty((128,)) for _ in range(5)]
    arrays.clear()
    assert host.used() == 512


def test_free_list_corrects_its_count_of_bytes(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "MAX_CACHED", 4096)
    ct.empty((128,))
    allocator._free_lists[0].nbytes = 10**6
    address = ct.empty((256,)).pointer
    assert ct.empty((256,)).pointer == address
    assert allocator._free_lists[0].nbytes == 1024


def test_small_results_of_one_call_share_a_block(host: Host) -> None:
    spec, large = TensorSpec.packed((10,)), TensorSpec.packed((1000,))
    stream, key = default_stream(0), array_key(spec, 0, True, False)
    given = ct.empty((10,))
    host.log.clear()
    small, apart = (40, key), (4000, array_key(large, 0, True, False))
    first, apart, own, last = ct.DeviceArray.allocate_many(
        (small, apart, small, small), (None, None, given, None), stream, ""
    )
    assert own is given
    assert [entry[0] for entry in host.log] == ["allocate"] * 2
    assert last.pointer == first.pointer + recording.GRANULARITY
    address = first.pointer
    last.close()
    del last
    other = ct.zeros((1,), stream=0x77).home
    first.record_use(other)
    host.log.clear()
    del apart
    assert not any(entry[0] == "wait" for entry in host.log)
    del first
    assert [entry[:2] for entry in host.log if entry[0] == "wait"] == [("wait", 1)], "the last gives it back"
    assert allocator.allocate_block(4 * recording.GRANULARITY, stream, "").handle == address


def test_idle_blocks_are_freed_when_memory_is_short(host: Host) -> None:
    del (kept := [ct.empty((128,)) for _ in range(4)])[:]
    assert not kept
    assert host.used() == 2048
    host.limit = 3000
    assert ct.empty((640,)).nbytes == 2560
    for release in (ct.empty_cache, testing.reset):
        ct.empty((100,))
        release()
        assert host.used() == 0
    with pytest.raises(ct.AllocationError):
        ct.empty((1000,))


def test_threads_get_different_blocks(host: Host) -> None:
    def work() -> None:
        for i in range(300):
            arrays = [ct.empty((128 + i % 3,)) for _ in range(5)]
            pointers = {array.pointer for array in arrays}
            assert len(pointers) == 5

    in_threads(6, lambda _: work())
    idle = [len(set(map(id, block))) == len(block) for block in allocator._free_lists[0].idle.values()]
    assert all(idle)
