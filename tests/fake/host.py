"""The CUDA interface layer on host memory: two devices, every address checked.

Memory that is given back is overwritten and never handed out again, and every access is checked to lie in
memory that is alive and on the device that is current, so that a pointer used too late or too far is an error
here and not a wrong number.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import traceback
import weakref
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from cudnn_ct.cuda.interop import ExternalArray, spec_of
from cudnn_ct.cuda.launch_log import add_launch_history
from cudnn_ct.cuda.stream import NO_DEVICE, Stream
from cudnn_ct.errors import AllocationError, CudnnError, ExecutionFailedError

DEVICES = 2
POISON = 0xA5
OWN_STREAM = 0xC0  # the address of the stream that the package makes for itself


class Buffer:
    """Memory of one device; NaN in every float type until somebody writes it."""

    def __init__(self, host: Host, nbytes: int, stream: Stream) -> None:
        self.memory = np.full(nbytes + 64, 0xFF, np.uint8)
        self.handle = (self.memory.ctypes.data + 63) // 64 * 64
        self.size = nbytes
        self.device = stream.device
        self.stream = stream.handle
        self._host = host
        host.live[self.handle] = self
        host.log.append(("allocate", stream.handle))

    def __del__(self) -> None:
        self._host.give_back(self)


class ForeignArray:
    """An array of another library on a device: a NumPy array over memory of the host."""

    def __init__(self, host: Host, values: np.ndarray, home: Stream | None = None, device: int = 0) -> None:
        self.readonly = False
        base = values if values.base is None else values.base
        self.home = home
        self.buffer = Buffer(host, base.nbytes, home or Stream(1, device))
        offset = values.ctypes.data - base.ctypes.data
        ctypes.memmove(self.buffer.handle, base.ctypes.data, base.nbytes)
        self.pointer = self.buffer.handle + offset
        self.shape, self.byte_strides, self.dtype = values.shape, values.strides, values.dtype

    def numpy(self) -> np.ndarray:
        raw = (ctypes.c_uint8 * self.buffer.size).from_address(self.buffer.handle)
        offset = self.pointer - self.buffer.handle
        return np.ndarray(self.shape, self.dtype, raw, offset, self.byte_strides).copy()


def may_fail(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the CUDA interface layer that counts its calls, and fails on request."""

    @wraps(function)
    def counted(self: Host, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(function.__name__)
        if len(self.calls) == self.fail_at:
            self.failed_in = {frame.name for frame in traceback.extract_stack()}
            raise _failure(function.__name__, args)
        return function(self, *args, **kwargs)

    return counted


def _failure(name: str, args: tuple[Any, ...]) -> CudnnError:
    """Errors of the real CUDA interface layer: out of memory, or failure of an earlier kernel."""
    if name == "allocate":
        nbytes, _, what = (*args, "an array")[:3]
        return AllocationError(f"out of memory: {nbytes:,} bytes wanted for {what}")
    stream = next((one for one in args if isinstance(one, Stream)), None)
    return add_launch_history(ExecutionFailedError(f"{name} failed: CUDA_ERROR_ILLEGAL_ADDRESS"), stream)


class Host:
    """The state of the fake: what is allocated, which device is current, what was asked for, in order."""

    def __init__(self) -> None:
        self.live: weakref.WeakValueDictionary[int, Buffer] = weakref.WeakValueDictionary()
        self.grave: list[np.ndarray] = []
        self.log: list[tuple[Any, ...]] = []
        self.calls: list[str] = []  # of what can fail
        self.fail_at = 0  # which of them does
        self.failed_in: set[str] = set()  # the functions that were running when one did
        self._thread = threading.local()  # in which a device is current
        self.limit = 2**32
        self.capabilities = [(9, 0)] * DEVICES
        self.capturing: set[int] = set()
        self.destroyed: set[int] = set()  # streams that no call may name
        self.unfinished: set[Any] = set()
        self.gone: set[int] = set()  # streams that were destroyed
        self.clock = 0.0  # milliseconds; advanced by each computation
        self._events = itertools.count()

    @property
    def device(self) -> int:
        """The device that is current in this thread; 0 where none is yet."""
        return getattr(self._thread, "device", 0)

    @device.setter
    def device(self, device: int) -> None:
        self._thread.device = device

    # --- what the tests use ---

    def check(self, address: int, nbytes: int, device: int | None = None) -> None:
        """Raise unless a range of addresses is alive, on the device that is current."""
        device = self.device if device is None else device
        for buffer in self.buffers():
            start = buffer.handle
            if start <= address and address + nbytes <= start + buffer.size:
                assert buffer.device == device, f"memory of device {buffer.device} used on device {device}"
                return
        raise AssertionError(f"{nbytes} bytes at {address:#x} are not in memory that is alive")

    def check_stream(self, stream: int) -> None:
        """Raise for a stream that was destroyed, for which the driver would end the process."""
        if stream in self.destroyed:
            self.log.append(("destroyed stream used", stream))
            raise AssertionError(f"stream {stream:#x} was destroyed")

    def buffers(self) -> list[Buffer]:
        """All memory that is alive, in one step: other threads take and give back meanwhile."""
        return [buffer for one in self.live.valuerefs() if (buffer := one()) is not None]

    def used(self) -> int:
        return sum(buffer.size for buffer in self.buffers())

    def forget(self) -> None:
        """Let go of what happened so far, and of memory that was given back: for tests that run long."""
        self.log.clear()
        self.calls.clear()
        self.grave.clear()

    def give_back(self, buffer: Buffer) -> None:
        self.check_stream(buffer.stream)
        buffer.memory[:] = POISON
        self.log.append(("free", buffer.handle))
        self.grave.append(buffer.memory)

    # --- the functions of device, stream, event, memory and interop in cudnn_ct.cuda ---

    def device_count(self) -> int:
        return DEVICES

    def cache_size(self, device: int) -> int:
        return 2**20

    def compute_capability(self, device: int) -> tuple[int, int]:
        return self.capabilities[device]

    def device_name(self, device: int) -> str:
        return "a device of the tests"

    def driver_version(self) -> int:
        return 13000

    def current_device(self) -> int:
        return self.device

    @may_fail
    def set_device(self, device: int) -> int | None:
        if not 0 <= device < DEVICES:
            raise ValueError(f"device {device} does not exist: the driver shows {DEVICES}")
        previous = getattr(self._thread, "device", None)
        self.device = device
        if previous is None:
            return NO_DEVICE if device else None
        return previous if previous != device else None

    def restore_device(self, device: int | None) -> None:
        if device == NO_DEVICE:
            del self._thread.device
        elif device is not None:
            self.device = device

    @may_fail
    def memory_info(self, device: int) -> tuple[int, int]:
        return self.limit - self.used(), self.limit

    @may_fail
    def allocate(self, nbytes: int, stream: Stream, what: str = "an array") -> Buffer:
        assert stream.device == self.device, "allocating on a device that is not current"
        self.check_stream(stream.handle)
        if self.used() + nbytes > self.limit:
            raise AllocationError(f"out of memory: {nbytes:,} bytes wanted for {what}")
        return Buffer(self, nbytes, stream)

    def release(self, device: int) -> None:
        """Nothing is idle here: what is dropped is given back at once."""

    @may_fail
    def trim(self, device: int) -> None:
        self.log.append(("trim", device))

    @may_fail
    def copy_from_host(self, pointer: int, source: np.ndarray, stream: Stream) -> None:
        self.check(pointer, source.nbytes)
        assert source.flags.c_contiguous
        ctypes.memmove(pointer, source.ctypes.data, source.nbytes)

    @may_fail
    def copy_to_host(self, target: np.ndarray, pointer: int, stream: Stream) -> None:
        self.check(pointer, target.nbytes)
        assert target.flags.c_contiguous
        ctypes.memmove(target.ctypes.data, pointer, target.nbytes)

    @may_fail
    def copy_device(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        self.check(target, nbytes)
        self.check(source, nbytes)
        ctypes.memmove(target, source, nbytes)

    @may_fail
    def fill(self, pointer: int, pattern: bytes, count: int, stream: Stream) -> None:
        self.check(pointer, len(pattern) * count)
        ctypes.memmove(pointer, pattern * count, len(pattern) * count)

    @may_fail
    def record(self, stream: Stream) -> tuple[str, int, int]:
        self.check_stream(stream.handle)
        event = ("event", next(self._events), stream.handle)
        self.log.append(("record", stream.handle, event))
        return event

    @may_fail
    def wait(self, stream: Stream, event: Any) -> None:
        if stream.handle in self.gone:
            raise ExecutionFailedError("waiting for an event: CUDA_ERROR_CONTEXT_IS_DESTROYED")
        self.check_stream(stream.handle)
        self.log.append(("wait", stream.handle, event))

    def wait_stream(self, before: Stream, after: Stream) -> None:
        if before != after:
            self.wait(after, self.record(before))

    @may_fail
    def elapsed(self, stream: Stream, work: Any) -> float:
        start = self.clock
        work()
        return self.clock - start

    @may_fail
    def is_done(self, event: Any) -> bool:
        return event not in self.unfinished

    def is_capturing(self, stream: Stream) -> bool:
        return stream.handle in self.capturing

    def can_enqueue(self, stream: Stream) -> bool:
        self.check_stream(stream.handle)
        return stream.handle not in self.capturing

    @property
    def relaxed(self) -> bool:
        """Whether captures leave this thread alone."""
        return getattr(self._thread, "relaxed", False)

    def relax(self) -> bool:
        before, self._thread.relaxed = self.relaxed, True
        return before

    def unrelax(self, before: bool) -> None:
        self._thread.relaxed = before

    def own_stream(self, device: int) -> Stream:
        return Stream(OWN_STREAM, device, owner=self)

    @may_fail
    def synchronize(self, stream: Stream) -> None:
        self.check_stream(stream.handle)
        self.log.append(("synchronize", stream.handle))

    def synchronize_device(self, device: int) -> None:
        self.log.append(("synchronize_device", device))

    def import_array(self, obj: Any, stream: Stream) -> ExternalArray | None:
        if not isinstance(obj, ForeignArray):
            return None
        if obj.home is not None:
            self.wait_stream(obj.home, stream)
        strides = tuple(s // obj.dtype.itemsize for s in obj.byte_strides)
        spec = spec_of(obj, obj.shape, strides, obj.dtype)
        return ExternalArray(obj.pointer, spec, obj.buffer.device, obj.readonly, obj, obj.home)

    def in_host_memory(self, obj: Any) -> bool:
        return not isinstance(obj, ForeignArray)

    def device_of(self, obj: Any) -> int | None:
        return obj.buffer.device if isinstance(obj, ForeignArray) else None

    def export_dlpack(
        self, owner: Any, pointer: int, spec: Any, readonly: bool, max_version: tuple[int, int] | None
    ) -> Any:
        raise NotImplementedError("DLPack is tested on a GPU")


def view(
    host: Host, address: int, shape: Sequence[int], strides: Sequence[int], dtype: np.dtype
) -> np.ndarray:
    """Device memory as a NumPy array, after checking that all of it is alive. Strides are in elements."""
    if 0 in shape:
        return np.empty(shape, dtype)
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    host.check(address, span * dtype.itemsize)
    raw = (ctypes.c_uint8 * (span * dtype.itemsize)).from_address(address)
    return np.ndarray(tuple(shape), dtype, raw, 0, tuple(s * dtype.itemsize for s in strides))
