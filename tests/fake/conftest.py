"""The package on a fake cuDNN and on host memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from cudnn_ct import _lib, algo_cache, blocks, context, descriptors, exchange, memory
from cudnn_ct import stream as streams

from .cudnn import FakeCudnn, FakeLibrary
from .host import Host


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    fake = Host()
    for module in (streams, memory, exchange):
        for name in module.__all__:
            monkeypatch.setattr(module, name, getattr(fake, name))
    monkeypatch.setattr(blocks, "LARGEST", -1)  # what is freed is then gone, and a test sees it
    return fake


@pytest.fixture
def fake(host: Host) -> Iterator[FakeCudnn]:
    cudnn = FakeCudnn(host)
    before = _lib._state.library
    forget()
    _lib._install(FakeLibrary(cudnn))
    yield cudnn
    forget()
    _lib._install(before)
    assert not host.live, "device memory outlived the test"
    assert not cudnn.objects, "native objects outlived the test"


def forget() -> None:
    """Drop everything that is remembered of a library: plans, decisions, descriptors, handles."""
    algo_cache._decisions.clear()
    algo_cache._firsts.clear()
    context._forget()
    context._pinned.clear()
    descriptors.base._cached.cache_clear()
    gc.collect()
