"""The seam to CUDA: devices, streams and events.

Nothing of CUDA is imported before it is called. Tests without a GPU replace the functions of ``__all__``, and
those of `memory` and `cuda.interop`, with ones on host memory.
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
from typing import Any

from .._handle import outlive_cycles
from ..errors import CudnnError
from . import driver as cuda

__all__ = [
    "cache_size",
    "can_enqueue",
    "compute_capability",
    "current_device",
    "device_count",
    "device_name",
    "driver_version",
    "elapsed",
    "is_capturing",
    "is_done",
    "own_stream",
    "record",
    "relax",
    "restore_device",
    "set_device",
    "synchronize",
    "synchronize_device",
    "unrelax",
    "wait",
    "wait_stream",
]

NO_DEVICE = -1  # what was current in a thread that has not used CUDA; see `set_device`
LEGACY_DEFAULT = 1  # CU_STREAM_LEGACY: the same stream as 0, and what DLPack and cuDNN take for it
PER_THREAD_DEFAULT = 2

_WITHOUT_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING

_thread = threading.local()


class Stream:
    """A CUDA stream of one device: its address, and the object that keeps it alive.

    Two streams are equal when device and address are. ``lasts`` says that nothing destroys the stream while
    its owner is held: the default stream, the package's own and streams of PyTorch and CuPy. Another library
    may close a stream explicitly.
    """

    __slots__ = ("device", "handle", "lasts", "owner")

    def __init__(self, handle: int, device: int, owner: object = None) -> None:
        if handle == PER_THREAD_DEFAULT:
            raise ValueError(
                "the per-thread default stream (2) is another stream in each thread, which nothing here can "
                "keep apart; use a stream of its own"
            )
        self.handle = handle or LEGACY_DEFAULT
        self.device = device
        self.owner = owner
        self.lasts = self.handle == LEGACY_DEFAULT or _library_of(owner) in ("cudnn_ct", "cupy", "torch")

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


def _library_of(owner: object) -> str:
    return type(owner).__module__.partition(".")[0]


# --- which stream ------------------------------------------------------------------------------------------

_current: ContextVar[Stream | None] = ContextVar("cudnn_ct_stream", default=None)


@cache
def default_stream(device: int) -> Stream:
    """The legacy default stream of a device, which torch and cupy use too unless told otherwise.

    Raises :class:`ValueError` for a device that there is not, so that none is remembered.
    """
    _check_device(device)
    return Stream(LEGACY_DEFAULT, device)


MAX_STREAMS = (
    128  # streams of others, kept alive as long as they are remembered; the driver keeps 0.6 MB for each
)
_known: dict[tuple[int, int], Stream] = {}


def intern_stream(handle: int, device: int, owner: object = None) -> Stream:
    """The one :class:`Stream` of an address, so that comparing by identity mostly suffices.

    An address can be used anew by a stream made later, of another owner; that one replaces it.
    """
    key = (handle or LEGACY_DEFAULT, device)
    if key[0] == LEGACY_DEFAULT:
        return default_stream(device)
    stream = _known.get(key)
    if stream is None or (owner is not None and stream.owner is not owner):
        if len(_known) >= MAX_STREAMS:
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
        told = protocol() if callable(protocol) else protocol
        if not isinstance(told, tuple | list) or len(told) != 2:
            raise TypeError(f"__cuda_stream__ tells (version, address); that of {stream!r} tells {told!r}")
        _, handle = told
        return intern_stream(as_address(handle), _device_of(stream, device), _owner(stream))
    for attribute in ("cuda_stream", "ptr"):  # torch and cupy before they had the protocol
        if isinstance(getattr(stream, attribute, None), int):
            address = as_address(getattr(stream, attribute))
            return intern_stream(address, _device_of(stream, device), _owner(stream))
    return intern_stream(as_address(stream), device)


def _owner(stream: object) -> object:
    """Return the object that keeps a stream alive; None for a wrapper around a bare address."""
    return None if type(stream).__name__ == "ExternalStream" else stream


def as_address(handle: Any) -> int:
    """Take the address of a stream: the driver ends the process for a number that is none."""
    try:
        address = operator.index(handle)
    except TypeError:
        raise TypeError(
            f"stream must be an address, or have __cuda_stream__; {type(handle).__name__} is neither"
        ) from None
    if not 0 <= address < 2**64:
        raise ValueError(f"stream must be an address, got {address}")
    return address


def resolve_stream(stream: Any, device: int | None = None) -> Stream:
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
    """Return the number of devices. Raises :class:`NotInitializedError` without a driver."""
    result, count = cuda.driver().cuDeviceGetCount()
    cuda.check(result, "counting the devices")
    return int(count)


@cache
def driver_version() -> int:
    """Return the newest CUDA version that the driver supports: 13000 is 13.0."""
    result, version = cuda.driver().cuDriverGetVersion()
    cuda.check(result, "asking for the driver's version")
    return int(version)


@cache
def device_name(device: int) -> str:
    """Return a name that identifies the kind of a device in the algorithm cache."""
    result, name = cuda.driver().cuDeviceGetName(128, device)
    cuda.check(result, f"asking for the name of device {device}")
    text = bytes(name).partition(b"\0")[0].decode()
    major, minor = compute_capability(device)
    return f"{text}, {_attribute(device, 'MULTIPROCESSOR_COUNT')} SMs, {major}.{minor}"


@cache
def compute_capability(device: int) -> tuple[int, int]:
    """Return the architecture of a device: (9, 0) is Hopper."""
    major, minor = (_attribute(device, f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
    return major, minor


@cache
def cache_size(device: int) -> int:
    """Return the size of a device's L2 cache in bytes."""
    return _attribute(device, "L2_CACHE_SIZE")


def _attribute(device: int, name: str) -> int:
    driver = cuda.driver()
    attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    result, value = driver.cuDeviceGetAttribute(attribute, device)
    cuda.check(result, f"asking for {name} of device {device}")
    return int(value)


def current_device() -> int:
    """The device that is current in this thread, 0 where none is yet."""
    return 0 if device_count() == 1 else _current_device() or 0


def _current_device() -> int | None:
    result, device = cuda.driver().cuCtxGetDevice()
    return None if int(result) else int(device)


def as_device(device: Any) -> int:
    """Take ``device=``: the number of a device that there is.

    Raises
    ------
    TypeError, ValueError
        It is no int, or there is no such device.
    """
    try:
        number = operator.index(device)
    except TypeError:
        raise TypeError(f"device must be an int, not {type(device).__name__}") from None
    _check_device(number)
    return number


def set_device(device: int) -> int | None:
    """Make ``device`` current in this thread. Returns the one to :func:`restore_device`, if there was
    another.

    Where none was, device 0 counts as current: that is what everybody begins with. Another one is not left
    current there, nor is a context made on device 0 that nobody asked for.
    """
    if getattr(_thread, "only", None) == device:
        return None
    count = _check_device(device)
    previous = _current_device()
    if previous != device:
        _make_current(device)
    if count == 1:
        _thread.only = device  # nothing can change it any more
    if previous is None:
        return NO_DEVICE if device else None
    return None if previous == device else previous


def _check_device(device: int) -> int:
    """How many devices there are, if this is one of them."""
    count = device_count()
    if not 0 <= device < count:
        raise ValueError(f"there is no device {device}; the driver shows {count}")
    return count


def restore_device(device: int | None) -> None:
    """Make current again what :func:`set_device` returned."""
    if device is None:
        return
    if device == NO_DEVICE:
        cuda.check(cuda.driver().cuCtxSetCurrent(0)[0], "going back to no device")
        return
    _make_current(device)


def _make_current(device: int) -> None:
    """Make the primary context current, which PyTorch and CuPy use too. It is never released."""
    driver, doing = cuda.driver(), f"using device {device}"
    with relaxed():
        result, context = driver.cuDevicePrimaryCtxRetain(device)
        cuda.check(result, doing)
        cuda.check(driver.cuCtxSetCurrent(context)[0], doing)


# --- captures ----------------------------------------------------------------------------------------------


def relax() -> Any:
    """Let this thread make calls that a capture in ``global`` mode forbids, until :func:`unrelax`.

    Allocation, event queries and loading of modules are such calls. Each would invalidate the capture of
    another thread, or of this one, although it never becomes part of a graph.
    """
    driver = cuda.driver()
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    return driver.cuThreadExchangeStreamCaptureMode(mode)[1]


def unrelax(before: Any) -> None:
    """Restore the mode that :func:`relax` returned."""
    if before is not None:  # the call failed: the next call reports why
        cuda.driver().cuThreadExchangeStreamCaptureMode(before)


@contextmanager
def relaxed() -> Iterator[None]:
    """Relax this thread, as :func:`relax` describes, within a block."""
    before = relax()
    try:
        yield
    finally:
        unrelax(before)


def is_capturing(stream: Stream) -> bool:
    """Return whether a CUDA graph is being captured on the stream."""
    if stream.handle == LEGACY_DEFAULT:  # which cannot be captured
        return False
    result, status = cuda.driver().cuStreamIsCapturing(stream.handle)
    return int(result) == 0 and int(status) != 0


def can_enqueue(stream: Stream) -> bool:
    """Return whether work on a stream leaves captures alone.

    The default stream is never captured, but work on it invalidates the capture of a blocking stream. The
    driver reports such a capture as an error of this query, and keeps the capture valid.
    """
    result, status = cuda.driver().cuStreamIsCapturing(stream.handle)
    return not int(result) and not int(status)


# --- order -------------------------------------------------------------------------------------------------


class Event:
    """A CUDA event, destroyed with its last reference."""

    __slots__ = ("_process", "handle")

    def __init__(self) -> None:
        result, self.handle = cuda.driver().cuEventCreate(_WITHOUT_TIMING)
        cuda.check(result, "creating an event")
        self._process = os.getpid()
        outlive_cycles(self)

    def __del__(self) -> None:
        if getattr(self, "_process", None) != os.getpid() or sys.is_finalizing():
            return
        try:
            before = relax()
        except CudnnError:  # a finalizer cannot raise
            return
        cuda.driver().cuEventDestroy(self.handle)
        unrelax(before)


def record(stream: Stream) -> Any:
    """Record an event behind the work that is enqueued on a stream."""
    previous = set_device(stream.device)
    try:
        with relaxed():
            event = Event()
            result = cuda.driver().cuEventRecord(event.handle, stream.handle)
            cuda.check(result[0], "recording an event", stream)
            return event
    finally:
        restore_device(previous)


def wait(stream: Stream, event: Any) -> None:
    """Make later work on ``stream`` wait for ``event``. The host does not wait."""
    previous = set_device(stream.device)
    try:
        result = cuda.driver().cuStreamWaitEvent(stream.handle, event.handle, 0)
        cuda.check(result[0], "ordering a stream after an event", stream)
    finally:
        restore_device(previous)


def wait_stream(before: Stream, after: Stream) -> None:
    """Make later work on ``after`` wait for the work on ``before``."""
    if before != after:
        wait(after, record(before))


def is_done(event: Any) -> bool:
    """Return whether the work before an event is complete."""
    driver = cuda.driver()
    with relaxed():
        result = driver.cuEventQuery(event.handle)[0]
    if result == driver.CUresult.CUDA_ERROR_NOT_READY:
        return False
    cuda.check(result, "asking whether an event is over")
    return True


def elapsed(stream: Stream, work: Callable[[], object]) -> float:
    """Return the device time in milliseconds of the work that ``work`` enqueues; wait for it."""
    driver = cuda.driver()
    events = []
    with relaxed():
        try:
            for _ in range(2):
                result, event = driver.cuEventCreate(0)
                cuda.check(result, "creating an event")
                events.append(event)
            cuda.check(driver.cuEventRecord(events[0], stream.handle)[0], "recording an event")
            work()
            cuda.check(driver.cuEventRecord(events[1], stream.handle)[0], "recording an event")
            cuda.check(driver.cuEventSynchronize(events[1])[0], "waiting for an event", stream)
            result, milliseconds = driver.cuEventElapsedTime(*events)
            cuda.check(result, "timing")
            return float(milliseconds)
        finally:
            for event in events:
                driver.cuEventDestroy(event)


def synchronize(stream: Stream) -> None:
    """Wait on the host until everything enqueued on the stream is complete."""
    previous = set_device(stream.device)
    try:
        with relaxed():
            result = cuda.driver().cuStreamSynchronize(stream.handle)[0]
        cuda.check(result, f"synchronizing {stream}", stream)
    finally:
        restore_device(previous)


def synchronize_device(device: int) -> None:
    """Wait on the host until everything enqueued on any stream of a device is complete."""
    previous = set_device(device)
    try:
        with relaxed():
            result = cuda.driver().cuCtxSynchronize()[0]
        cuda.check(result, f"waiting for device {device}")
    finally:
        restore_device(previous)


class _Own:
    """The owner of a stream that is never destroyed."""


@cache
def own_stream(device: int) -> Stream:
    """Return a stream of this package, for memory whose users' streams may be destroyed before it.

    It does not wait for the default stream, is never captured, and lives until the process ends.
    """
    previous = set_device(device)
    try:
        with relaxed():
            result, handle = cuda.driver().cuStreamCreate(_NON_BLOCKING)
        cuda.check(result, "creating a stream")
        return Stream(int(handle), device, owner=_Own())
    finally:
        restore_device(previous)


# --- forks -------------------------------------------------------------------------------------------------


def _after_fork() -> None:
    """Forget the devices and contexts of the parent, which do not work in a forked child."""
    global _thread
    for cached in (cache_size, compute_capability, device_count, device_name, driver_version, own_stream):
        cached.cache_clear()
    _thread = threading.local()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
