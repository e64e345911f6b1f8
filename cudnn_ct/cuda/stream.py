"""Devices, streams, the current device of a thread, and captures. The first call imports CUDA."""

from __future__ import annotations

import ctypes
import operator
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from .._handle import in_forked_child
from . import driver as cuda

# --- devices -----------------------------------------------------------------------------------------------


@cache
def device_count() -> int:
    """Return the number of devices. Raises :class:`NotInitializedError` without a driver."""
    return int(cuda.call("counting the devices", "cuDeviceGetCount"))


@cache
def driver_version() -> int:
    """Return the newest CUDA version that the driver supports: 13000 is 13.0."""
    return int(cuda.call("reading the driver's version", "cuDriverGetVersion"))


@cache
def device_name(device: int) -> str:
    """Return a name that identifies the kind of a device in the algorithm cache."""
    name = cuda.call(f"reading the name of device {device}", "cuDeviceGetName", 128, device)
    text = bytes(name).partition(b"\0")[0].decode()
    major, minor = compute_capability(device)
    return f"{text}, {_attribute(device, 'MULTIPROCESSOR_COUNT')} SMs, {major}.{minor}"


@cache
def device_uuid(device: int) -> str:
    """Return the identifier of one device, as hexadecimal digits."""
    return bytes(cuda.call(f"reading the UUID of device {device}", "cuDeviceGetUuid", device).bytes).hex()


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
    attribute = getattr(cuda.driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(cuda.call(f"reading {name} of device {device}", "cuDeviceGetAttribute", attribute, device))


def as_device(device: Any) -> int:
    """Return ``device=`` as the number of an existing device."""
    try:
        number = operator.index(device)
    except TypeError:
        raise TypeError(f"device must be an int: got {type(device).__name__}") from None
    if not cuda.on_shapes.get():
        check_device(number)
    elif number < 0:  # there may be no driver that knows which exist
        raise ValueError(f"device {number} does not exist")
    return number


def check_device(device: int) -> int:
    """Return the number of devices. Raises ValueError if ``device`` does not exist."""
    count = device_count()
    if not 0 <= device < count:
        raise ValueError(f"device {device} does not exist: the driver shows {count}")
    return count


@in_forked_child
def _forget_properties() -> None:
    """Discard the properties that the parent read: a forked child cannot use CUDA."""
    for cached in (cache_size, compute_capability, device_count, device_name, device_uuid, driver_version):
        cached.cache_clear()


# --- streams -----------------------------------------------------------------------------------------------

NO_DEVICE = -1  # returned by `set_device` in a thread that has not used CUDA
LEGACY_DEFAULT = 1  # CU_STREAM_LEGACY: the same stream as 0
PER_THREAD_DEFAULT = 2

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class _Thread(threading.local):
    """The only device of the system, if it is current in this thread."""

    only: int | None = None


thread = _Thread()


class Stream:
    """A CUDA stream of one device: its address, and the object that keeps it alive.

    :func:`use` yields one; users do not construct it. ``lasts`` is true if the stream exists as long as its
    owner is referenced: the default stream, and streams of packages in `LASTING`. Another library may close
    a stream explicitly.
    """

    __slots__ = ("device", "handle", "lasts", "owner")

    def __init__(self, handle: int, device: int, owner: object = None) -> None:
        if handle == PER_THREAD_DEFAULT:
            raise ValueError(
                "the per-thread default stream (2) is not supported, because it refers to a different stream "
                "in each thread; pass an explicit stream"
            )
        self.handle = handle or LEGACY_DEFAULT
        self.device = device
        self.owner = owner
        self.lasts = self.handle == LEGACY_DEFAULT or _library_of(owner) in LASTING

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return (version, address): the stream protocol of cuda.core, torch and cupy."""
        return 0, self.handle

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.handle, self.device) == (other.handle, other.device)

    def __hash__(self) -> int:
        return hash((self.handle, self.device))

    def __repr__(self) -> str:
        name = "legacy default" if self.handle == LEGACY_DEFAULT else f"{self.handle:#x}"
        return f"Stream({name}, device={self.device})"


# Packages whose streams exist as long as they are referenced; `foreign` adds those of other libraries.
LASTING = {"cudnn_ct"}


def _library_of(owner: object) -> str:
    return type(owner).__module__.partition(".")[0]


# --- which stream ------------------------------------------------------------------------------------------

in_use: ContextVar[Stream | None] = ContextVar("cudnn_ct_stream", default=None)  # set by `ct.use`


@cache
def default_stream(device: int) -> Stream:
    """Return the legacy default stream of a device, which torch and cupy use by default too."""
    check_device(device)  # so that the cache stays bounded
    return Stream(LEGACY_DEFAULT, device)


MAX_STREAMS = 128  # kept alive by `_known`; the driver uses 0.6 MB for each
_known: dict[tuple[int, int], Stream] = {}


def intern_stream(handle: int, device: int, owner: object = None) -> Stream:
    """Return the one :class:`Stream` of an address, so that most comparisons by identity succeed.

    A stream of another owner replaces it: it has the address of a stream that was destroyed.
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


def known_stream(handle: int, device: int, library: str) -> Stream | None:
    """Return the :class:`Stream` of an address if it has one, and a stream of ``library`` keeps it alive."""
    if handle in (0, LEGACY_DEFAULT):
        return default_stream(device)
    stream = _known.get((handle, device))
    return stream if stream is not None and _library_of(stream.owner) == library else None


def current_stream(device: int | None = None) -> Stream:
    """Return the stream that ``ct.use`` set, or the default stream of ``device`` or the current device."""
    return in_use.get() or default_stream(current_device() if device is None else device)


def as_stream(stream: Any, device: int) -> Stream:
    """Turn ``stream=`` into a :class:`Stream`: an address, or anything with ``__cuda_stream__``."""
    if isinstance(stream, Stream):
        return stream
    handle, owner = _handle_of(stream)
    return intern_stream(handle, _device_of(stream, device), owner)


def check_stream(stream: Any) -> None:
    """Raise as :func:`as_stream` does, without a device: calls on shapes have none."""
    if stream is not None and not isinstance(stream, Stream):
        Stream(_handle_of(stream)[0], 0)


def _handle_of(stream: Any) -> tuple[int, object]:
    """Return the address of a stream, and the object that keeps it alive or None."""
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        answer = protocol() if callable(protocol) else protocol
        if not isinstance(answer, tuple | list) or len(answer) != 2:
            raise TypeError(
                f"__cuda_stream__ of {stream!r} is malformed: got {answer!r}, expected (version, address)"
            )
        handle = answer[1]
    else:  # versions of torch and cupy without the protocol
        handles = (getattr(stream, name, None) for name in ("cuda_stream", "ptr"))
        handle = next((handle for handle in handles if isinstance(handle, int)), None)
        if handle is None:
            return as_address(stream), None
    wraps_address = type(stream).__name__ == "ExternalStream"  # which does not keep the stream alive
    return as_address(handle), None if wraps_address else stream


def as_address(handle: Any) -> int:
    """Return the address of a stream as an int. The driver ends the process for an invalid address."""
    try:
        address = operator.index(handle)
    except TypeError:
        raise TypeError(
            f"stream must be an address or have __cuda_stream__: got {type(handle).__name__}"
        ) from None
    if not 0 <= address < 2**64:
        raise ValueError(f"stream must be an address: got {address}, expected 0 to 2**64 - 1")
    return address


def resolve_stream(stream: Any, device: int | None = None) -> Stream:
    """Return the stream to work on: ``stream``, the one in use, or the default stream of ``device``."""
    if stream is not None:
        return as_stream(stream, current_stream().device if device is None else device)
    current = current_stream(device)
    return current if device in (None, current.device) else default_stream(device)


def _device_of(stream: Any, device: int) -> int:
    """Return the device that a stream object names, or ``device``."""
    named = getattr(stream, "device", None)
    for owner, attribute in ((named, "device_id"), (named, "index"), (named, "id"), (stream, "device_id")):
        number = getattr(owner, attribute, None)
        if isinstance(number, int) and number >= 0:
            return number
    return named if isinstance(named, int) else device


# --- the current device ------------------------------------------------------------------------------------


def current_device() -> int:
    """Return the device that is current in this thread, or 0 if none is."""
    return 0 if device_count() == 1 else _current_device() or 0


def _current_device() -> int | None:
    device = ctypes.c_int()
    return None if cuda.native("cuCtxGetDevice")(ctypes.byref(device)) else device.value


def set_device(device: int) -> int | None:
    """Make ``device`` current in this thread; return the previous one for :func:`restore_device`, or None.

    In a thread without a current device, only device 0 stays current afterwards, as after CUDA's own calls.
    """
    if thread.only == device:
        return None
    count = check_device(device)
    previous = _current_device()
    if previous != device:
        _make_current(device)
    cuda.finish_imports()
    if count == 1:
        thread.only = device  # later calls return at once
    if previous is None:
        return NO_DEVICE if device else None
    return None if previous == device else previous


def restore_device(device: int | None) -> None:
    """Make the device current that :func:`set_device` returned."""
    if device is None:
        return
    if device == NO_DEVICE:
        cuda.call("leaving the device", "cuCtxSetCurrent", 0)
        return
    _make_current(device)


@contextmanager
def on_device(device: int) -> Iterator[None]:
    """Make a device current in this thread within a block."""
    previous = set_device(device)
    try:
        yield
    finally:
        restore_device(previous)


def _make_current(device: int) -> None:
    """Make the primary context current, which PyTorch and CuPy use too. It is never released."""
    doing = f"using device {device}"
    with relaxed():
        cuda.call(doing, "cuCtxSetCurrent", cuda.call(doing, "cuDevicePrimaryCtxRetain", device))


# --- captures ----------------------------------------------------------------------------------------------


def relax(mode: int = _RELAXED) -> int | None:
    """Let this thread allocate, query events and load modules until :func:`unrelax`.

    Each of these calls would invalidate a capture in ``global`` mode, although it never becomes part of it.
    """
    held = ctypes.c_int(mode)
    failed = cuda.native("cuThreadExchangeStreamCaptureMode")(ctypes.byref(held))
    return None if failed else held.value


def unrelax(before: int | None) -> None:
    """Restore the mode that :func:`relax` returned."""
    if before is not None:  # the call failed: the next call reports why
        relax(before)


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
    if stream.handle == LEGACY_DEFAULT:  # it cannot be captured
        return False
    result, status = cuda.driver().cuStreamIsCapturing(stream.handle)
    return int(result) == 0 and int(status) != 0


def can_enqueue(stream: Stream) -> bool:
    """Return whether work on a stream leaves captures alone: its own, and of blocking streams if it is 0."""
    # The driver reports the capture of a blocking stream as an error, and keeps the capture valid.
    result, status = cuda.driver().cuStreamIsCapturing(stream.handle)
    return not int(result) and not int(status)


def wait(stream: Stream) -> None:
    """Wait on the host until everything enqueued on the stream is complete, also during a recording."""
    with on_device(stream.device), relaxed():
        cuda.call(f"synchronizing {stream}", "cuStreamSynchronize", stream.handle, stream=stream)


class _Own:
    """Owner of the package's own streams, which are never destroyed."""


def new_stream(device: int) -> Stream:
    """Create a stream of this package, which does not wait for the default stream."""
    with on_device(device), relaxed():
        handle = cuda.call("creating a stream", "cuStreamCreate", _NON_BLOCKING)
    return Stream(int(handle), device, owner=_Own())


own_stream = cache(new_stream)  # for memory whose users' streams may be destroyed before it


# --- forks -------------------------------------------------------------------------------------------------


@in_forked_child
def _after_fork() -> None:
    """Discard the contexts of the parent: a forked child cannot use them."""
    global thread
    own_stream.cache_clear()
    thread = _Thread()
