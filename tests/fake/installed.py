"""Installs the fakes in place of the libraries and the CUDA interface layer, within a block."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from cudnn_ct import _lib, algo_cache, context, descriptors
from cudnn_ct.cuda import allocator, device, event, interop, memory, stream

from .cudnn import FakeCudnn, FakeLibrary
from .host import Host


@contextmanager
def host_installed() -> Iterator[Host]:
    """Host memory in place of a GPU's."""
    host = Host()
    with ExitStack() as stack:
        for module in (device, stream, event, memory, interop):
            for name in module.__all__:
                _put(stack, module, name, getattr(host, name))
        _put(stack, allocator, "MAX_BLOCK", -1)  # what is freed is then gone, and a test sees it
        yield host


@contextmanager
def cudnn_installed(host: Host) -> Iterator[FakeCudnn]:
    """A cuDNN of Python functions in place of the loaded one; nothing of it outlives this."""
    cudnn = FakeCudnn(host)
    before = _lib._state.library
    forget()
    _lib._install(FakeLibrary(cudnn))
    try:
        yield cudnn
    finally:
        forget()
        _lib._install(before)
    assert not host.live, "device memory outlived the test"
    assert not cudnn.objects, "native objects outlived the test"


def forget() -> None:
    """Drop everything that is remembered of a library: plans, decisions, descriptors, handles."""
    drop()
    gc.collect()
    context._forget()  # handles of contexts that cycles held


def drop() -> None:
    """As :func:`forget`, without looking for cycles, which takes long."""
    algo_cache._decisions.clear()
    algo_cache._once.clear()
    context._forget()
    context._pinned.clear()
    descriptors._cached.cache_clear()


def _put(stack: ExitStack, module: ModuleType, name: str, value: Any) -> None:
    stack.callback(setattr, module, name, getattr(module, name))
    setattr(module, name, value)
