"""Installs the fakes in place of the libraries and the CUDA interface layer, within a block."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from cudnn_ct import testing
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
    """Replace the loaded cuDNN by Python functions; check that the block frees memory and native objects."""
    cudnn = FakeCudnn(host)
    with testing.install(FakeLibrary(cudnn)):
        try:
            yield cudnn
        finally:
            forget()
    assert not host.live, "device memory outlived the test"
    assert not cudnn.objects, "native objects outlived the test"


def forget() -> None:
    """Reset the package, including handles of contexts that only reference cycles hold."""
    testing.reset()
    gc.collect()
    testing.reset()


def _put(stack: ExitStack, module: ModuleType, name: str, value: Any) -> None:
    stack.callback(setattr, module, name, getattr(module, name))
    setattr(module, name, value)
