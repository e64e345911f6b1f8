"""Device memory: allocation from the stream-ordered pool, copies and fills."""

from __future__ import annotations

import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from .._handle import outlive_cycles
from ..errors import AllocationError, CudnnError, NotInitializedError
from . import driver as cuda
from . import event as events
from . import recording
from . import stream as streams
from .debug import record_launch
from .lifetime import defer
from .stream import Stream

if TYPE_CHECKING:
    import numpy as np


def allocate(nbytes: int, stream: Stream, what: str = "an array") -> Any:
    """Allocate a :class:`Buffer` from the stream-ordered pool of a device that is current."""
    if stream.handle != streams.LEGACY_DEFAULT and streams.is_capturing(stream):
        raise NotInitializedError(
            f"a captured call on {stream} cannot allocate {nbytes:,} bytes for {what}: pass out=, and make "
            "the same call once on this stream before capturing it"
        )
    pointer = _idle_pointer((stream.handle, stream.device, nbytes))
    return Buffer(_allocated(nbytes, stream, what) if pointer is None else pointer, stream, nbytes)


def _allocated(nbytes: int, stream: Stream, what: str) -> int:
    driver, pool, device = cuda.driver(), _pool(stream.device), stream.device
    before = streams.relax()
    try:
        if _held[device] and _held[device] > share_of(device, IDLE):
            _release(device)
        result, pointer = driver.cuMemAllocFromPoolAsync(max(nbytes, 1), pool, stream.handle)
        if result == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY and _held[device]:
            _release(device)
            result, pointer = driver.cuMemAllocFromPoolAsync(max(nbytes, 1), pool, stream.handle)
    except OverflowError:  # nbytes does not fit a C integer
        result, pointer = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
    finally:
        streams.unrelax(before)
    if result == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        free, total = memory_info(stream.device)
        raise AllocationError(
            f"out of memory on device {stream.device}: {nbytes:,} bytes wanted for {what}, "
            f"{free:,} of {total:,} free"
        )
    if int(result):
        cuda.check(result, f"allocating {nbytes:,} bytes for {what}", stream)
    return int(pointer)


class Buffer:
    """Device memory, freed in stream order after the last reference to it is dropped.

    If its stream lasts, memory becomes idle first: the next allocation of its size on its stream takes it.
    Idle memory is freed where it exceeds a share of the device's memory, or memory runs out. So a loop makes
    no driver calls, gets the same addresses again, and does not disturb a capture.
    """

    __slots__ = ("_dropped", "_stream", "handle", "size")

    def __init__(self, handle: int, stream: Stream, size: int) -> None:
        self.handle = handle
        self.size = size
        self._stream = stream
        self._dropped = _dropped  # globals are cleared when a process ends
        outlive_cycles(self)

    # Without a lock, because it may run in the middle of `allocate`.
    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._stream.lasts:
            self._dropped.append((self.handle, self._stream, self.size))
        elif not (ending() or _freed(self.handle, self._stream)):
            defer(partial(_freed, self.handle, self._stream))


_dropped: deque[tuple[int, Stream, int]] = deque()
_idle: dict[tuple[int, int, int], list[tuple[int, Stream]]] = {}  # by stream, device, size
_held: Counter[int] = Counter()  # bytes in `_idle`, by device
_lock = threading.RLock()  # guards `_idle`
# Whether a call uses `_idle`, which a finalizer or a signal handler of its thread may interrupt.
_busy = False


def _idle_pointer(key: tuple[int, int, int]) -> int | None:
    """Return idle memory for a stream, a device and a size, or None, as for a call that interrupts this."""
    global _busy
    with _lock:
        if _busy:
            return None
        _busy = True
        try:
            _sort_dropped()
            if not (idle := _idle.get(key)):
                return None
            _held[key[1]] -= key[2]
            return idle.pop()[0]
        finally:
            _busy = False


def _sort_dropped() -> None:
    while _dropped:
        pointer, stream, size = _dropped.popleft()
        _idle.setdefault((stream.handle, stream.device, size), []).append((pointer, stream))
        _held[stream.device] += size


IDLE = 32  # a device keeps idle memory of 1/32 of its memory while arrays are made


@cache
def share_of(device: int, part: int) -> int:
    """Return the bytes of a part of the memory of a device, which is current: 1/32 of it for 32."""
    return int(cuda.call(f"reading the size of the memory of device {device}", "cuMemGetInfo")[1]) // part


def _freed(pointer: int, stream: Stream) -> bool:
    """Free memory on its stream; return False, and do nothing, while a capture forbids it."""
    try:
        previous = streams.set_device(stream.device)
    except CudnnError:  # the context is lost, or this is a forked child
        return True
    try:
        if not streams.can_enqueue(stream):
            return False
        before = streams.relax()
        cuda.driver().cuMemFreeAsync(pointer, stream.handle)
        streams.unrelax(before)
        return True
    finally:
        streams.restore_device(previous)


def release(device: int) -> None:
    """Free the idle memory of a device that is current, unless a capture of its stream forbids it."""
    if _dropped or _idle:
        with streams.relaxed():
            _release(device)


def _release(device: int) -> None:
    global _busy
    driver = cuda.driver()
    with _lock:
        if _busy:
            return
        _busy = True
        try:
            _sort_dropped()
            for key in [key for key in _idle if key[1] == device]:
                if not _idle[key]:
                    del _idle[key]
                elif streams.can_enqueue(_idle[key][0][1]):
                    for pointer, stream in _idle.pop(key):
                        driver.cuMemFreeAsync(pointer, stream.handle)
                        _held[device] -= key[2]
        finally:
            _busy = False


def trim(device: int) -> None:
    """Return memory that the pool holds and nothing uses to the driver."""
    with streams.relaxed():
        cuda.call("trimming the memory pool", "cuMemPoolTrimTo", _pool(device), 0)


@cache
def _pool(device: int) -> Any:
    """Return the pool of a device; it keeps freed memory, which it would return at each synchronization."""
    driver, doing = cuda.driver(), "setting up the memory pool"
    threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    with streams.relaxed():
        pool = cuda.call(doing, "cuDeviceGetMemPool", device)
        if not _pool_attribute(pool, "RELEASE_THRESHOLD"):
            unlimited = driver.cuuint64_t(2**64 - 1)
            cuda.call(doing, "cuMemPoolSetAttribute", pool, threshold, unlimited)
    return pool


def _pool_attribute(pool: Any, name: str) -> int:
    attribute = getattr(cuda.driver().CUmemPool_attribute, f"CU_MEMPOOL_ATTR_{name}")
    return int(cuda.call(f"reading {name} of the memory pool", "cuMemPoolGetAttribute", pool, attribute))


def refuse_captured(direction: str, stream: Stream) -> None:
    """Raise in a capture, of which a copy to or from the host cannot be a part."""
    recording.refuse(f"a copy {direction} the host")
    if streams.is_capturing(stream):
        advice = "make it before or after the capture; numbers, such as a seed, may be arrays on the device"
        raise NotInitializedError(f"a copy {direction} the host cannot be captured on {stream}: {advice}")


def copy_from_host(pointer: int, source: np.ndarray[Any, Any], stream: Stream) -> None:
    """Copy a C-contiguous NumPy array to the device. ``source`` may change as soon as this returns."""
    recording.refuse("a copy from the host")  # the graph would read memory that may be gone
    driver, address = cuda.driver(), source.ctypes.data
    doing = f"copying {source.nbytes:,} bytes to the device at {pointer:#x}"
    _enqueue(doing, "cuMemcpyHtoDAsync", pointer, address, source.nbytes, stream=stream)
    kind = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    if int(driver.cuPointerGetAttribute(kind, address)[0]) == 0:
        events.synchronize(stream)  # pinned memory is read asynchronously


def copy_to_host(target: np.ndarray[Any, Any], pointer: int, stream: Stream) -> None:
    """Copy from the device into a C-contiguous NumPy array, and wait for the copy."""
    refuse_captured("to", stream)  # the wait for it would end the capture
    doing = f"copying {target.nbytes:,} bytes to the host from {pointer:#x}"
    _enqueue(doing, "cuMemcpyDtoHAsync", target.ctypes.data, pointer, target.nbytes, stream=stream)
    events.synchronize(stream)


def copy_device(target: int, source: int, nbytes: int, stream: Stream) -> None:
    doing = f"copying {nbytes:,} bytes from {source:#x} to {target:#x}"
    _enqueue(doing, "cuMemcpyDtoDAsync", target, source, nbytes, stream=stream)


def copy_rows(
    target: int, target_pitch: int, source: int, source_pitch: int, nbytes: int, rows: int, stream: Stream
) -> None:
    """Copy rows of ``nbytes`` within the device; a pitch is the distance between the starts of two rows."""
    if rows == 1:
        copy_device(target, source, nbytes, stream)
        return
    driver = cuda.driver()
    copy = driver.CUDA_MEMCPY2D()
    copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.srcDevice, copy.srcPitch = source, source_pitch
    copy.dstDevice, copy.dstPitch = target, target_pitch
    copy.WidthInBytes, copy.Height = nbytes, rows
    doing = f"copying {rows:,} rows of {nbytes:,} bytes from {source:#x} to {target:#x}"
    _enqueue(doing, "cuMemcpy2DAsync", copy, stream=stream)


def fill(pointer: int, pattern: bytes, count: int, stream: Stream) -> None:
    """Write a pattern of 1, 2, 4 or 8 bytes ``count`` times, by calls that a graph may replay."""
    if len(pattern) == 8 and pattern[:4] == pattern[4:]:
        pattern, count = pattern[:4], 2 * count
    if len(pattern) == 8:  # the driver has no memset for it: write one, and double it by copies
        fill(pointer, pattern[:4], 1, stream)
        fill(pointer + 4, pattern[4:], 1, stream)
        nbytes, done = 8 * count, 8
        while done < nbytes:
            copied = min(done, nbytes - done)
            copy_device(pointer + done, pointer, copied, stream)
            done += copied
        return
    doing = f"filling {count * len(pattern):,} bytes at {pointer:#x}"
    value = int.from_bytes(pattern, sys.byteorder)
    _enqueue(doing, f"cuMemsetD{8 * len(pattern)}Async", pointer, value, count, stream=stream)


def _enqueue(doing: str, function: str, *arguments: Any, stream: Stream) -> None:
    """Call a function of the driver that enqueues work on a stream, its last argument."""
    recording.refuse_unrecorded(stream)
    cuda.call(doing, function, *arguments, stream.handle, stream=stream)
    record_launch(doing, stream)


def memory_info(device: int) -> tuple[int, int]:
    """Return the bytes of device memory that are available, with idle memory of the pool, and all bytes."""
    with streams.on_device(device):
        release(device)
        with streams.relaxed():
            free, total = cuda.call("reading the free memory", "cuMemGetInfo")
            pool = _pool(device)
            idle = _pool_attribute(pool, "RESERVED_MEM_CURRENT") - _pool_attribute(pool, "USED_MEM_CURRENT")
    return int(free) + idle, int(total)
