"""Installs the fakes in place of the libraries and the driver, within a block."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import cudnn_ct as ct
from cudnn_ct import testing
from cudnn_ct.certify import certificates
from cudnn_ct.cuda import allocator, interop, lifetime, memory, stream
from tests.unit.cuda_driver import driver_installed, put

from .cudnn import FakeCudnn, FakeLibrary
from .host import Host


@contextmanager
def host_installed() -> Iterator[Host]:
    """Host memory in place of a GPU's."""
    host = Host()
    with driver_installed(host) as stack:
        for name in interop.__all__:
            put(stack, interop, name, getattr(host, name))
        put(stack, stream, "device_name", cache(lambda _: "a device of the tests"))
        put(stack, stream, "device_uuid", cache(lambda _: "the first of its kind"))
        put(stack, memory, "allocate", host.allocate_buffer)
        put(stack, allocator, "MAX_BLOCK", -1)
        put(stack, certificates, "RUNS", 2)  # a fake that varies does so in each run
        put(stack, certificates, "SECONDS", 0)
        yield host


@contextmanager
def cudnn_installed(host: Host, kind: type[FakeCudnn] = FakeCudnn) -> Iterator[FakeCudnn]:
    """Replace the loaded cuDNN by Python functions; check that the block frees memory and native objects."""
    cudnn = kind(host)
    with testing.install(FakeLibrary(cudnn)):
        try:
            yield cudnn
        finally:
            forget()
    assert not host.live, "device memory outlived the test"
    assert not cudnn.objects, "native objects outlived the test"


def lacking(functions: str) -> type[FakeCudnn]:
    """Return a cuDNN that lacks the functions whose names contain a text, as an older version does."""

    class Older(FakeCudnn):
        def lookup(self, name: str) -> Any:
            return None if functions in name else super().lookup(name)

    return Older


def forget() -> None:
    """Reset the package, including handles of contexts that only reference cycles hold."""
    testing.reset()
    gc.collect()
    testing.reset()
    if lifetime._in_flight:  # dropped in a thread without a current context
        ct.synchronize()
