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
from functools import partial
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
    *,
    results: int = 1,
    context: bool = True,
    unsafe: bool = False,
    stream: int | None = None,
    enqueues: bool = True,
) -> Callable[..., Any]:
    """Check the rules of a driver function before each call, and return its status and results as a tuple.

    ``results`` is their number. ``context`` requires a current context. ``unsafe`` calls are forbidden during
    captures. ``stream`` is the place among the arguments of a stream, which must be alive. ``enqueues`` says
    that work is put on the stream.
    """

    def checked(function: Callable[..., Any], name: str = "") -> Any:
        name = name or function.__name__

        def wrapper(self: Driver, *arguments: Any) -> tuple[Any, ...]:
            self.calls.append(Call(name, arguments, self.mode))
            error = self.failing.get(name, OK)
            if self.process not in (None, os.getpid()):
                os.write(2, f"{name} was called in a forked child\n".encode())
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
    """The driver: its calls in ``calls``, and the memory, streams and captures that exist."""

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

    @call(results=0, context=False)
    def cuInit(self, flags: int) -> None:
        self.process = os.getpid()

    @call(results=0, context=False)
    def cuCtxSetCurrent(self, context: int) -> None:
        self.current = context - 0xC0 if context else None

    @call(results=0, unsafe=True)
    def cuCtxSynchronize(self) -> None:
        for capture in self.captures.values():  # whatever its mode
            capture.valid = False

    @call(context=False)
    def cuThreadExchangeStreamCaptureMode(self, mode: CUstreamCaptureMode) -> CUstreamCaptureMode:
        before, self._thread.mode = self.mode, mode
        return before

    @call(stream=0, enqueues=False)
    def cuStreamIsCapturing(self, stream: int) -> int:
        return int(stream in self.captures)

    @call(results=0, stream=0, unsafe=True)
    def cuStreamSynchronize(self, stream: int) -> None:
        assert stream not in self.captures

    @call(context=False, unsafe=True)
    def cuMemPoolGetAttribute(self, pool: int, attribute: str) -> int:
        return self.pool[attribute]

    @call(results=0, context=False, unsafe=True)
    def cuMemPoolSetAttribute(self, pool: int, attribute: str, value: int) -> None:
        self.pool[attribute] = value

    @call(stream=2, unsafe=True)
    def cuMemAllocFromPoolAsync(self, nbytes: int, pool: int, stream: int) -> int:
        assert stream not in self.captures
        memory = ctypes.create_string_buffer(b"\xff" * nbytes, nbytes)
        address = ctypes.addressof(memory)
        self.memory[address] = memory, stream
        return address

    @call(results=0, stream=1, unsafe=True)
    def cuMemFreeAsync(self, address: int, stream: int) -> None:
        if stream in self.captures:  # memory of a graph alone is freed in it
            self.captures[stream].valid = False
            return
        memory, _ = self.memory.pop(address)
        ctypes.memset(memory, 0xA5, len(memory))
        self.freed.append((address, stream, self.current))

    @call(results=0, stream=3)
    def cuMemcpyDtoDAsync(self, target: int, source: int, nbytes: int, stream: int) -> None:
        assert target >= source + nbytes or source >= target + nbytes, "the copy overlaps itself"
        self._enqueue(stream, lambda: ctypes.memmove(target, source, nbytes))

    def _copy_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        assert stream not in self.captures, "a graph reads host memory when it is launched"
        ctypes.memmove(target, source, nbytes)

    def _set(self, target: int, value: int, count: int, stream: int, *, size: int) -> None:
        content = value.to_bytes(size, sys.byteorder) * count
        self._enqueue(stream, lambda: ctypes.memmove(target, content, len(content)))


FREE = {"context": False}
ENQUEUES = {"results": 0, "stream": 3}

# Short functions: their checks, and the result for a driver and arguments.
SHORT: dict[str, tuple[dict[str, Any], Callable[..., Any]]] = {
    "cuDriverGetVersion": (FREE, lambda _: 13000),
    "cuDeviceGetCount": (FREE, lambda driver: driver.devices),
    "cuDeviceGetName": (FREE, lambda _, length, device: b"a device of the tests".ljust(length, b"\0")),
    "cuDeviceGetAttribute": (FREE, lambda _, attribute, device: attribute),
    "cuDevicePrimaryCtxRetain": (FREE, lambda _, device: 0xC0 + device),
    "cuDeviceGetMemPool": (FREE, lambda _, device: 0xB0 + device),
    "cuPointerGetAttribute": (FREE, lambda _, attribute, address: 2),
    "cuCtxGetDevice": ({}, lambda driver: driver.current),
    "cuStreamCreate": ({"unsafe": True}, lambda driver, flags: driver.new_stream(blocking=not flags)),
    "cuStreamWaitEvent": ({"results": 0, "stream": 0}, lambda *_: None),
    "cuEventCreate": ({"unsafe": True}, lambda driver, flags: next(driver._addresses)),
    "cuEventRecord": ({"results": 0, "stream": 1}, lambda *_: None),
    "cuEventQuery": ({"results": 0, "unsafe": True}, lambda *_: None),
    "cuEventDestroy": ({"results": 0, "unsafe": True}, lambda *_: None),
    "cuMemPoolTrimTo": ({"results": 0, "context": False, "unsafe": True}, lambda *_: None),
    "cuMemGetInfo": ({"results": 2}, lambda _: (100, 200)),
    "cuMemcpyHtoDAsync": (ENQUEUES, Driver._copy_host),
    "cuMemcpyDtoHAsync": (ENQUEUES, Driver._copy_host),
    "cuMemsetD8Async": (ENQUEUES, partial(Driver._set, size=1)),
    "cuMemsetD16Async": (ENQUEUES, partial(Driver._set, size=2)),
    "cuMemsetD32Async": (ENQUEUES, partial(Driver._set, size=4)),
}
for _name, (_checks, _function) in SHORT.items():
    setattr(Driver, _name, call(**_checks)(_function, _name))


def install(driver: Driver | None = None) -> Driver:
    """Put a driver in place of ``cuda.bindings.driver``, and nothing in place of ``cuda.core``."""
    made = driver or Driver()
    cuda, bindings = ModuleType("cuda"), ModuleType("cuda.bindings")
    bindings.driver = made  # type: ignore[attr-defined]
    cuda.bindings = bindings  # type: ignore[attr-defined]
    sys.modules |= {"cuda": cuda, "cuda.bindings": bindings, "cuda.core": None}  # type: ignore[dict-item]
    sys.modules["cuda.bindings.driver"] = made  # type: ignore[assignment]
    return made
