"""A CUDA driver of Python functions on host memory, in place of ``cuda.bindings.driver``.

It keeps the rules of CUDA that matter to a library in the process of another one: which calls need a current
context, which calls invalidate a capture, and that a forked child and a destroyed stream allow none.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from functools import wraps
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

LEGACY_DEFAULT = 1


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_INITIALIZED = 3
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906


class CUstreamCaptureMode(IntEnum):
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1
    CU_STREAM_CAPTURE_MODE_RELAXED = 2


GLOBAL, THREAD_LOCAL, RELAXED = CUstreamCaptureMode
OK = CUresult.CUDA_SUCCESS


class Call(NamedTuple):
    """One call: the function, its arguments, and the capture mode of the thread."""

    name: str
    arguments: tuple[Any, ...]
    mode: CUstreamCaptureMode


class Capture:
    """A capture of a stream: what its graph does, and whether a call has invalidated it."""

    def __init__(self, mode: CUstreamCaptureMode) -> None:
        self.mode = mode
        self.thread = threading.get_ident()
        self.valid = True
        self.graph: list[Callable[[], object]] = []

    def launch(self) -> None:
        assert self.valid, "the capture was invalidated"
        for node in self.graph:
            node()


def call(
    *, context: bool = True, unsafe: bool = False, stream: int | None = None, enqueues: bool = True
) -> Callable[[Callable[..., Any]], Any]:
    """Check what a call needs before it is made.

    ``context``: that one is current. ``unsafe``: that no capture forbids it. ``stream``: the place among the
    arguments of a stream, which must be alive. ``enqueues``: that work is put on the stream.
    """

    def checked(function: Callable[..., Any]) -> Any:
        results = {"None": 0, "tuple[int, int]": 2}.get(function.__annotations__["return"], 1)

        @wraps(function)
        def wrapper(self: Driver, *arguments: Any) -> tuple[Any, ...]:
            self.calls.append(Call(function.__name__, arguments, self.mode))
            error = self.failing.get(function.__name__, OK)
            if self.process not in (None, os.getpid()):
                os.write(2, f"{function.__name__} was called in a forked child\n".encode())
                error = CUresult.CUDA_ERROR_NOT_INITIALIZED
            if context and self.current is None:
                error = CUresult.CUDA_ERROR_INVALID_CONTEXT
            if stream is not None:
                error = error or self._check_stream(arguments[stream], enqueues)
            if unsafe:
                error = error or self._check_captures()
            if error:
                return (error, *[None] * results)
            result = function(self, *arguments)
            return (OK, *[result][:results]) if results < 2 else (OK, *result)

        return wrapper

    return checked


class Driver:
    """The driver: what it was asked, and what there is. ``calls`` has every call."""

    CUresult = CUresult
    CUstreamCaptureMode = CUstreamCaptureMode
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=16,
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE=38,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=75,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=76,
    )
    CUmemPool_attribute = SimpleNamespace(
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD="threshold",
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT="reserved",
        CU_MEMPOOL_ATTR_USED_MEM_CURRENT="used",
    )
    CUpointer_attribute = SimpleNamespace(CU_POINTER_ATTRIBUTE_MEMORY_TYPE=2)
    cuuint64_t = int

    def __init__(self, devices: int = 1) -> None:
        self.process: int | None = None  # that initialized the driver
        self.devices = devices
        self.calls: list[Call] = []
        self.failing: dict[str, CUresult] = {}
        self.memory: dict[int, tuple[Any, int]] = {}
        self.freed: list[tuple[int, int, int | None]] = []  # address, stream, current device
        self.pool = Counter({"threshold": 0, "reserved": 0, "used": 0})
        self.captures: dict[int, Capture] = {}
        self.streams = {LEGACY_DEFAULT: True}  # whether each waits for the default stream
        self._addresses = itertools.count(0x1000, 0x10)
        self._thread = threading.local()

    # --- what tests do as another library, or as the program ---

    @property
    def current(self) -> int | None:
        """The device whose context is current in this thread."""
        return getattr(self._thread, "current", None)

    @current.setter
    def current(self, device: int | None) -> None:
        self._thread.current = device

    @property
    def mode(self) -> CUstreamCaptureMode:
        return getattr(self._thread, "mode", GLOBAL)

    def new_stream(self, *, blocking: bool = False) -> int:
        handle = next(self._addresses)
        self.streams[handle] = blocking
        return handle

    def destroy(self, stream: int) -> None:
        del self.streams[stream]

    def begin_capture(self, stream: int, mode: CUstreamCaptureMode = GLOBAL) -> Capture:
        self.captures[stream] = Capture(mode)
        return self.captures[stream]

    def end_capture(self, stream: int) -> Capture:
        return self.captures.pop(stream)

    def names(self) -> list[str]:
        return [one.name for one in self.calls]

    # --- rules ---

    def _check_stream(self, stream: int, enqueues: bool) -> CUresult:
        if stream not in self.streams:
            os.write(2, f"stream {stream:#x} does not exist\n".encode())
            return CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED
        blocking = [one for place, one in self.captures.items() if self.streams[place]]
        if stream == LEGACY_DEFAULT and blocking:
            for capture in blocking:
                capture.valid = capture.valid and not enqueues
            return CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        return OK

    def _check_captures(self) -> CUresult:
        mine = threading.get_ident()
        forbidding = [
            capture
            for capture in self.captures.values()
            if self.mode == GLOBAL
            and (capture.mode == GLOBAL or (capture.thread == mine and capture.mode != RELAXED))
        ]
        for capture in forbidding:
            capture.valid = False
        return CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if forbidding else OK

    def _enqueue(self, stream: int, work: Callable[[], object]) -> None:
        if stream in self.captures:
            self.captures[stream].graph.append(work)
        else:
            work()

    # --- the functions ---

    @call(context=False)
    def cuInit(self, flags: int) -> None:
        self.process = os.getpid()

    @call(context=False)
    def cuDriverGetVersion(self) -> int:
        return 13000

    @call(context=False)
    def cuDeviceGetCount(self) -> int:
        return self.devices

    @call(context=False)
    def cuDeviceGetName(self, length: int, device: int) -> bytes:
        return b"a device of the tests".ljust(length, b"\0")

    @call(context=False)
    def cuDeviceGetAttribute(self, attribute: int, device: int) -> int:
        return attribute

    @call()
    def cuCtxGetDevice(self) -> int | None:
        return self.current

    @call(context=False)
    def cuDevicePrimaryCtxRetain(self, device: int) -> int:
        return 0xC0 + device

    @call(context=False)
    def cuCtxSetCurrent(self, context: int) -> None:
        self.current = context - 0xC0 if context else None

    @call(unsafe=True)
    def cuCtxSynchronize(self) -> None:
        for capture in self.captures.values():  # whatever its mode
            capture.valid = False

    @call(context=False)
    def cuThreadExchangeStreamCaptureMode(self, mode: CUstreamCaptureMode) -> CUstreamCaptureMode:
        before, self._thread.mode = self.mode, mode
        return before

    @call(unsafe=True)
    def cuStreamCreate(self, flags: int) -> int:
        return self.new_stream(blocking=not flags)

    @call(stream=0, enqueues=False)
    def cuStreamIsCapturing(self, stream: int) -> int:
        return int(stream in self.captures)

    @call(stream=0, unsafe=True)
    def cuStreamSynchronize(self, stream: int) -> None:
        assert stream not in self.captures

    @call(stream=0)
    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        pass

    @call(unsafe=True)
    def cuEventCreate(self, flags: int) -> int:
        return next(self._addresses)

    @call(stream=1)
    def cuEventRecord(self, event: int, stream: int) -> None:
        pass

    @call(unsafe=True)
    def cuEventQuery(self, event: int) -> None:
        pass

    @call(unsafe=True)
    def cuEventDestroy(self, event: int) -> None:
        pass

    @call(context=False)
    def cuDeviceGetMemPool(self, device: int) -> int:
        return 0xB0 + device

    @call(context=False, unsafe=True)
    def cuMemPoolGetAttribute(self, pool: int, attribute: str) -> int:
        return self.pool[attribute]

    @call(context=False, unsafe=True)
    def cuMemPoolSetAttribute(self, pool: int, attribute: str, value: int) -> None:
        self.pool[attribute] = value

    @call(context=False, unsafe=True)
    def cuMemPoolTrimTo(self, pool: int, nbytes: int) -> None:
        pass

    @call()
    def cuMemGetInfo(self) -> tuple[int, int]:
        return 100, 200

    @call(stream=2, unsafe=True)
    def cuMemAllocFromPoolAsync(self, nbytes: int, pool: int, stream: int) -> int:
        assert stream not in self.captures
        memory = ctypes.create_string_buffer(b"\xff" * nbytes, nbytes)
        address = ctypes.addressof(memory)
        self.memory[address] = memory, stream
        return address

    @call(stream=1, unsafe=True)
    def cuMemFreeAsync(self, address: int, stream: int) -> None:
        if stream in self.captures:  # memory of a graph alone is freed in it
            self.captures[stream].valid = False
            return
        memory, _ = self.memory.pop(address)
        ctypes.memset(memory, 0xA5, len(memory))
        self.freed.append((address, stream, self.current))

    @call(stream=3)
    def cuMemcpyHtoDAsync(self, target: int, source: int, nbytes: int, stream: int) -> None:
        assert stream not in self.captures, "a graph reads host memory when it is launched"
        ctypes.memmove(target, source, nbytes)

    @call(stream=3)
    def cuMemcpyDtoHAsync(self, target: int, source: int, nbytes: int, stream: int) -> None:
        assert stream not in self.captures
        ctypes.memmove(target, source, nbytes)

    @call(stream=3)
    def cuMemcpyDtoDAsync(self, target: int, source: int, nbytes: int, stream: int) -> None:
        assert target >= source + nbytes or source >= target + nbytes, "the copy overlaps itself"
        self._enqueue(stream, lambda: ctypes.memmove(target, source, nbytes))

    @call(stream=3)
    def cuMemsetD8Async(self, target: int, value: int, count: int, stream: int) -> None:
        self._set(target, value, 1, count, stream)

    @call(stream=3)
    def cuMemsetD16Async(self, target: int, value: int, count: int, stream: int) -> None:
        self._set(target, value, 2, count, stream)

    @call(stream=3)
    def cuMemsetD32Async(self, target: int, value: int, count: int, stream: int) -> None:
        self._set(target, value, 4, count, stream)

    def _set(self, target: int, value: int, size: int, count: int, stream: int) -> None:
        content = value.to_bytes(size, sys.byteorder) * count
        self._enqueue(stream, lambda: ctypes.memmove(target, content, len(content)))

    @call(context=False)
    def cuPointerGetAttribute(self, attribute: int, address: int) -> int:
        return 2


def install(driver: Driver | None = None) -> Driver:
    """Put a driver in place of ``cuda.bindings.driver``, and nothing in place of ``cuda.core``."""
    made = driver or Driver()
    cuda, bindings = ModuleType("cuda"), ModuleType("cuda.bindings")
    bindings.driver = made  # type: ignore[attr-defined]
    cuda.bindings = bindings  # type: ignore[attr-defined]
    sys.modules |= {"cuda": cuda, "cuda.bindings": bindings, "cuda.core": None}  # type: ignore[dict-item]
    sys.modules["cuda.bindings.driver"] = made  # type: ignore[assignment]
    return made
