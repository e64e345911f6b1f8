"""The seam to CUDA: devices, streams, events and memory.

Only this module and `exchange` import ``cuda.core`` or ``cuda.bindings``, and neither does before it is
called. Tests without a GPU replace the functions of ``__all__`` of both with ones on host memory.
"""

from __future__ import annotations

import operator
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any

from .errors import AllocationError, CudnnError, ExecutionFailedError, NotInitializedError

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "activate",
    "allocate",
    "copy_device",
    "copy_from_host",
    "copy_to_host",
    "current_device",
    "device_count",
    "device_name",
    "driver_version",
    "elapsed",
    "fill",
    "is_capturing",
    "is_done",
    "memory_info",
    "order",
    "record",
    "restore",
    "synchronize",
    "trim",
    "wait",
]

LEGACY_DEFAULT = 1  # CU_STREAM_LEGACY: the same stream as 0, and what DLPack and cuDNN take for it
PER_THREAD_DEFAULT = 2

_thread = threading.local()
_process = {"forked": False}


class Stream:
    """A CUDA stream of one device: an address, and whatever object keeps it alive.

    Two streams are equal when device and address are.
    """

    __slots__ = ("_core", "device", "handle", "owner")

    def __init__(self, handle: int, device: int, owner: object = None) -> None:
        if handle == PER_THREAD_DEFAULT:
            raise ValueError(
                "the per-thread default stream (2) is another stream in each thread, which nothing here can "
                "keep apart; use a stream of its own"
            )
        self.handle = handle or LEGACY_DEFAULT
        self.device = device
        self.owner = owner
        self._core: Any = None

    @property
    def core(self) -> Any:
        """The ``cuda.core.Stream`` for this address."""
        if self._core is None and self.owner is None:
            self._core = _cuda().Stream.from_handle(self.handle)
        elif self._core is None:  # memory that is freed on the stream then keeps its owner alive
            self._core = _cuda().Device(self.device).create_stream(_Owned(self.handle, self.owner))
        return self._core

    def __cuda_stream__(self) -> tuple[int, int]:
        """Say which stream this is, in the protocol that cuda.core, torch and cupy understand."""
        return 0, self.handle

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.handle, self.device) == (other.handle, other.device)

    def __hash__(self) -> int:
        return hash((self.handle, self.device))

    def __repr__(self) -> str:
        name = "legacy default" if self.handle == LEGACY_DEFAULT else f"{self.handle:#x}"
        return f"Stream({name}, device={self.device})"


class _Owned:
    """A stream's address and its owner, for cuda.core to hold."""

    def __init__(self, handle: int, owner: object) -> None:
        self.handle = handle
        self.owner = owner

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


# --- which stream ------------------------------------------------------------------------------------------

_current: ContextVar[Stream | None] = ContextVar("cudnn_ct_stream", default=None)


@cache
def default_stream(device: int) -> Stream:
    """The legacy default stream of a device, which torch and cupy use too unless told otherwise."""
    return Stream(LEGACY_DEFAULT, device)


_known: dict[tuple[int, int], Stream] = {}


def known_stream(handle: int, device: int, owner: object = None) -> Stream:
    """The one :class:`Stream` of an address, so that comparing by identity mostly suffices.

    An address can be used anew by a stream made later, of another owner; that one replaces it.
    """
    key = (handle or LEGACY_DEFAULT, device)
    if key[0] == LEGACY_DEFAULT:
        return default_stream(device)
    stream = _known.get(key)
    if stream is None or (owner is not None and stream.owner is not owner):
        if len(_known) >= 1024:
            _known.clear()
        stream = _known[key] = Stream(handle, device, owner)
    return stream


def current_stream(device: int | None = None) -> Stream:
    """The stream that ``ct.use`` set, or the default stream of ``device`` or of this thread's device."""
    return _current.get() or default_stream(current_device() if device is None else device)


def as_stream(stream: Any, device: int) -> Stream:
    """Turn ``stream=`` into a :class:`Stream`: an address, or anything with ``__cuda_stream__``."""
    if isinstance(stream, Stream):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        _, handle = protocol() if callable(protocol) else protocol
        return known_stream(handle, _device_of(stream, device), stream)
    for attribute in ("cuda_stream", "ptr"):  # torch and cupy before they had the protocol
        if isinstance(getattr(stream, attribute, None), int):
            return known_stream(getattr(stream, attribute), _device_of(stream, device), stream)
    try:
        handle = operator.index(stream)
    except TypeError:
        raise TypeError(
            f"stream must be an address, or have __cuda_stream__; {type(stream).__name__} is neither"
        ) from None
    if handle < 0:
        raise ValueError(f"stream must be an address, got {handle}")
    return known_stream(handle, device)


def stream_for(stream: Any, device: int | None = None) -> Stream:
    """The stream to work on: the one given, else the one in use, else the default one of ``device``."""
    if stream is not None:
        return as_stream(stream, current_stream().device if device is None else device)
    current = current_stream(device)
    return current if device in (None, current.device) else default_stream(device)


def _device_of(stream: Any, device: int) -> int:
    """The device that a stream object names, else ``device``."""
    named = getattr(stream, "device", None)
    for owner, attribute in ((named, "device_id"), (named, "index"), (named, "id"), (stream, "device_id")):
        number = getattr(owner, attribute, None)
        if isinstance(number, int) and number >= 0:
            return number
    return named if isinstance(named, int) else device


# --- devices -----------------------------------------------------------------------------------------------


@cache
def device_count() -> int:
    """How many devices the driver shows. Raises :class:`NotInitializedError` where there is no driver."""
    try:
        return len(_cuda().Device.get_all_devices())
    except CudnnError:
        raise
    except Exception as error:
        raise _translate(error, "counting the devices") from error


@cache
def driver_version() -> int:
    """The newest CUDA that the driver supports: 13000 is 13.0."""
    result, version = _driver().cuDriverGetVersion()
    _check(result, "asking for the driver's version")
    return int(version)


@cache
def device_name(device: int) -> str:
    """What tells a kind of device apart from others, for what is remembered of it."""
    chip = _cuda().Device(device)
    major, minor = chip.compute_capability
    return f"{chip.name}, {chip.properties.multiprocessor_count} SMs, {major}.{minor}"


def current_device() -> int:
    """The device that is current in this thread, 0 where none is yet."""
    return 0 if device_count() == 1 else _current_device() or 0


def _current_device() -> int | None:
    result, device = _driver().cuCtxGetDevice()
    return None if int(result) else int(device)


def activate(device: int) -> int | None:
    """Make ``device`` current in this thread. Returns the one to :func:`restore`, if there was another."""
    if getattr(_thread, "only", None) == device:
        return None
    count = device_count()
    if not 0 <= device < count:
        raise ValueError(f"there is no device {device}; the driver shows {count}")
    try:
        previous = _current_device()
        if previous != device:
            _cuda().Device(device).set_current()
    except CudnnError:
        raise
    except Exception as error:
        raise _translate(error, f"using device {device}") from error
    if count == 1:
        _thread.only = device  # nothing can change it any more
    return None if previous == device else previous


def restore(device: int | None) -> None:
    """Make current again what :func:`activate` returned."""
    if device is not None:
        _cuda().Device(device).set_current()


def memory_info(device: int) -> tuple[int, int]:
    """Bytes of device memory that can be had, idle memory of the pool included, and bytes in all."""
    previous = activate(device)
    try:
        result, free, total = _driver().cuMemGetInfo()
        pool = _pool(device).attributes
        idle = pool.reserved_mem_current - pool.used_mem_current
    finally:
        restore(previous)
    _check(result, "asking for free memory")
    return int(free) + int(idle), int(total)


# --- memory ------------------------------------------------------------------------------------------------


def allocate(nbytes: int, stream: Stream, what: str = "an array") -> Any:
    """Take ``nbytes`` from the device's stream-ordered pool: a buffer with ``.handle``, freed with it.

    Raises
    ------
    AllocationError
        Device memory ran out; the message says how much was wanted, for what, and what is free.
    """
    try:
        return _pool(stream.device).allocate(nbytes, stream=stream.core)
    except CudnnError:
        raise
    except Exception as error:
        if "OUT_OF_MEMORY" in str(error) or isinstance(error, OverflowError):
            free, total = memory_info(stream.device)
            raise AllocationError(
                f"out of memory on device {stream.device}: {nbytes:,} bytes wanted for {what}, "
                f"{free:,} of {total:,} free"
            ) from error
        raise _translate(error, f"allocating {nbytes:,} bytes for {what}") from error


def trim(device: int) -> None:
    """Give memory that the pool holds and nothing uses back to the driver."""
    driver = _driver()
    result, pool = driver.cuDeviceGetMemPool(device)
    _check(result, "asking for the memory pool")
    _check(driver.cuMemPoolTrimTo(pool, 0)[0], "trimming the memory pool")


@cache
def _pool(device: int) -> Any:
    return _cuda().Device(device).memory_resource


def copy_from_host(pointer: int, source: np.ndarray[Any, Any], stream: Stream) -> None:
    """Copy a C-contiguous NumPy array to the device. ``source`` may change as soon as this returns."""
    driver = _driver()
    result = driver.cuMemcpyHtoDAsync(pointer, source.ctypes.data, source.nbytes, stream.handle)
    _check(result[0], f"copying {source.nbytes:,} bytes to the device")
    kind = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    if int(driver.cuPointerGetAttribute(kind, source.ctypes.data)[0]) == 0:
        synchronize(stream)  # the driver knows it: pinned memory, which it reads while we go on


def copy_to_host(target: np.ndarray[Any, Any], pointer: int, stream: Stream) -> None:
    """Fill a C-contiguous NumPy array from the device, and wait until it is there."""
    result = _driver().cuMemcpyDtoHAsync(target.ctypes.data, pointer, target.nbytes, stream.handle)
    _check(result[0], f"copying {target.nbytes:,} bytes to the host")
    synchronize(stream)


def copy_device(target: int, source: int, nbytes: int, stream: Stream) -> None:
    """Copy within the device."""
    _check(_driver().cuMemcpyDtoDAsync(target, source, nbytes, stream.handle)[0], f"copying {nbytes:,} bytes")


def fill(pointer: int, pattern: bytes, count: int, stream: Stream) -> None:
    """Write a pattern of 1, 2 or 4 bytes ``count`` times."""
    driver = _driver()
    memset = {1: driver.cuMemsetD8Async, 2: driver.cuMemsetD16Async, 4: driver.cuMemsetD32Async}[len(pattern)]
    result = memset(pointer, int.from_bytes(pattern, sys.byteorder), count, stream.handle)
    _check(result[0], f"filling {count * len(pattern):,} bytes")


# --- order -------------------------------------------------------------------------------------------------


def record(stream: Stream) -> Any:
    """Mark the work enqueued on a stream so far: an event."""
    with _on(stream, f"recording an event on {stream}"):
        return stream.core.record()


def wait(stream: Stream, event: Any) -> None:
    """Let what is enqueued on ``stream`` from now on start after ``event``. The host does not wait."""
    with _on(stream, f"ordering {stream} after an event"):
        stream.core.wait(event)


def order(before: Stream, after: Stream) -> None:
    """Let what is enqueued on ``after`` from now on start after the work on ``before``."""
    if before != after:
        wait(after, record(before))


def is_done(event: Any) -> bool:
    """Whether the work before an event is over."""
    return bool(event.is_done)


def elapsed(stream: Stream, work: Callable[[], object]) -> float:
    """Milliseconds from before to after what ``work`` enqueues, as the device sees it; waits for it."""
    driver = _driver()
    events = []
    try:
        for _ in range(2):
            result, event = driver.cuEventCreate(0)
            _check(result, "creating an event")
            events.append(event)
        _check(driver.cuEventRecord(events[0], stream.handle)[0], "recording an event")
        work()
        _check(driver.cuEventRecord(events[1], stream.handle)[0], "recording an event")
        _check(driver.cuEventSynchronize(events[1])[0], "waiting for an event")
        result, milliseconds = driver.cuEventElapsedTime(*events)
        _check(result, "timing")
        return float(milliseconds)
    finally:
        for event in events:
            driver.cuEventDestroy(event)


def is_capturing(stream: Stream) -> bool:
    """Whether a CUDA graph is being captured on the stream."""
    if stream.handle == LEGACY_DEFAULT:  # which cannot be captured
        return False
    result, status = _driver().cuStreamIsCapturing(stream.handle)
    return int(result) == 0 and int(status) != 0


def synchronize(stream: Stream) -> None:
    """Wait on the host until everything enqueued on the stream is over."""
    with _on(stream, f"synchronizing {stream}"):
        stream.core.sync()


@contextmanager
def _on(stream: Stream, doing: str) -> Iterator[None]:
    """Do something with a stream while its device is current: the default stream is that of whichever is."""
    previous = activate(stream.device)
    try:
        yield
    except CudnnError:
        raise
    except Exception as error:
        raise _translate(error, doing) from error
    finally:
        restore(previous)


# --- cuda.core itself --------------------------------------------------------------------------------------


@cache
def _cuda() -> Any:
    if _process["forked"]:
        raise NotInitializedError(
            "CUDA does not survive a fork, and this process used it before: start processes that use it with "
            "multiprocessing's 'spawn' method, or use CUDA first in the child"
        )
    try:
        import cuda.core
    except Exception as error:
        raise _translate(error, "importing cuda.core") from error
    return cuda.core


@cache
def _driver() -> Any:
    _cuda()
    try:
        from cuda.bindings import driver
    except Exception as error:
        raise _translate(error, "importing cuda.bindings") from error
    return driver


def _after_fork() -> None:
    """In a forked child nothing of CUDA works once the parent has used it: say so, and touch nothing."""
    global _thread
    used = bool(device_count.cache_info().currsize or _pool.cache_info().currsize)
    _process["forked"] |= used
    for cached in (_cuda, _driver, _pool, device_count, device_name, driver_version):
        cached.cache_clear()
    _thread = threading.local()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _check(result: Any, doing: str) -> None:
    """Raise for a driver call's result other than 0."""
    if int(result):
        raise ExecutionFailedError(f"{doing} failed: {getattr(result, 'name', result)}")


def _translate(error: Exception, doing: str) -> CudnnError:
    """Say in this package's words what cuda.core, its bindings or its path finder said."""
    text = " ".join(str(error).split())
    if type(error).__name__ == "DynamicLibNotFoundError" and "cuda" in text:
        return NotInitializedError(
            "no CUDA driver: libcuda.so.1 was not found. Install the NVIDIA driver, or start the "
            "container with access to the GPU"
        )
    if "NO_DEVICE" in text:
        return NotInitializedError("the CUDA driver is there and shows no device (CUDA_VISIBLE_DEVICES?)")
    if "INSUFFICIENT_DRIVER" in text or "SYSTEM_DRIVER_MISMATCH" in text:
        return NotInitializedError(f"the CUDA driver is too old for the installed cuda-python: {text}")
    kind = ExecutionFailedError if "CUDA_ERROR" in text else NotInitializedError
    return kind(f"{doing} failed: {text}")
