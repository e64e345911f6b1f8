"""Device memory: taken from the stream-ordered pool, copied, filled."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from . import _cuda as cuda
from . import stream as streams
from .errors import AllocationError, CudnnError
from .stream import Stream
from .watch import issued

if TYPE_CHECKING:
    import numpy as np

__all__ = ["allocate", "copy_device", "copy_from_host", "copy_to_host", "fill", "memory_info", "trim"]


def allocate(nbytes: int, stream: Stream, what: str = "an array") -> Any:
    """Take ``nbytes`` from the device's stream-ordered pool: a buffer with ``.handle``, freed with it.

    Raises
    ------
    AllocationError
        Device memory ran out; the message says how much was wanted, for what, and what is free.
    """
    try:
        buffer = _pool(stream.device).allocate(nbytes, stream=stream.core)
        return buffer if streams.device_count() == 1 else _OfOneDevice(buffer, stream.device)
    except CudnnError:
        raise
    except Exception as error:
        if "OUT_OF_MEMORY" in str(error) or isinstance(error, OverflowError):
            free, total = memory_info(stream.device)
            raise AllocationError(
                f"out of memory on device {stream.device}: {nbytes:,} bytes wanted for {what}, "
                f"{free:,} of {total:,} free"
            ) from error
        raise cuda.translated(error, f"allocating {nbytes:,} bytes for {what}", stream) from error


class _OfOneDevice:
    """Memory where there are several devices: it goes back while its own is current.

    It is freed in the order of its stream, and the default stream is that of whichever device is current: in
    the order of another's, the pool could hand it out while work of its own device still uses it.
    """

    __slots__ = ("_buffer", "_device", "_process", "handle", "size")

    def __init__(self, buffer: Any, device: int) -> None:
        self._buffer = buffer
        self._device = device
        self._process = os.getpid()
        self.handle = buffer.handle
        self.size = buffer.size

    def __del__(self) -> None:
        if os.getpid() != self._process:  # in a forked child there is no driver to talk to
            return
        try:
            previous = streams.activate(self._device)
        except Exception:  # the context is lost, and its memory with it
            return
        try:
            self._buffer.close()
        finally:
            streams.restore(previous)


def trim(device: int) -> None:
    """Give memory that the pool holds and nothing uses back to the driver."""
    driver = cuda.driver()
    result, pool = driver.cuDeviceGetMemPool(device)
    cuda.check(result, "asking for the memory pool")
    cuda.check(driver.cuMemPoolTrimTo(pool, 0)[0], "trimming the memory pool")


@cache
def _pool(device: int) -> Any:
    return cuda.core().Device(device).memory_resource


def copy_from_host(pointer: int, source: np.ndarray[Any, Any], stream: Stream) -> None:
    """Copy a C-contiguous NumPy array to the device. ``source`` may change as soon as this returns."""
    driver, doing = cuda.driver(), f"copying {source.nbytes:,} bytes to the device at {pointer:#x}"
    result = driver.cuMemcpyHtoDAsync(pointer, source.ctypes.data, source.nbytes, stream.handle)
    cuda.check(result[0], doing, stream)
    issued(doing, stream)
    kind = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    if int(driver.cuPointerGetAttribute(kind, source.ctypes.data)[0]) == 0:
        streams.synchronize(stream)  # the driver knows it: pinned memory, which it reads while we go on


def copy_to_host(target: np.ndarray[Any, Any], pointer: int, stream: Stream) -> None:
    """Fill a C-contiguous NumPy array from the device, and wait until it is there."""
    doing = f"copying {target.nbytes:,} bytes to the host from {pointer:#x}"
    result = cuda.driver().cuMemcpyDtoHAsync(target.ctypes.data, pointer, target.nbytes, stream.handle)
    cuda.check(result[0], doing, stream)
    issued(doing, stream)
    streams.synchronize(stream)


def copy_device(target: int, source: int, nbytes: int, stream: Stream) -> None:
    """Copy within the device."""
    doing = f"copying {nbytes:,} bytes from {source:#x} to {target:#x}"
    cuda.check(cuda.driver().cuMemcpyDtoDAsync(target, source, nbytes, stream.handle)[0], doing, stream)
    issued(doing, stream)


def fill(pointer: int, pattern: bytes, count: int, stream: Stream) -> None:
    """Write a pattern of 1, 2 or 4 bytes ``count`` times."""
    driver = cuda.driver()
    memset = {1: driver.cuMemsetD8Async, 2: driver.cuMemsetD16Async, 4: driver.cuMemsetD32Async}[len(pattern)]
    result = memset(pointer, int.from_bytes(pattern, sys.byteorder), count, stream.handle)
    doing = f"filling {count * len(pattern):,} bytes at {pointer:#x}"
    cuda.check(result[0], doing, stream)
    issued(doing, stream)


def memory_info(device: int) -> tuple[int, int]:
    """Bytes of device memory that can be had, idle memory of the pool included, and bytes in all."""
    previous = streams.activate(device)
    try:
        result, free, total = cuda.driver().cuMemGetInfo()
        cuda.check(result, "asking for free memory")
        pool = _pool(device).attributes
        idle = pool.reserved_mem_current - pool.used_mem_current
    finally:
        streams.restore(previous)
    return int(free) + int(idle), int(total)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
