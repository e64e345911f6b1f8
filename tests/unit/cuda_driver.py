"""A CUDA driver of Python functions on host memory, in place of ``cuda.bindings.driver``.

It keeps the rules of CUDA that matter to a library in the process of another one: which calls need a current
context, which calls invalidate a capture, and that a destroyed stream allows none. Every address is checked;
freed memory is overwritten and never allocated again.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import IntEnum
from functools import cache, partial
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np

LEGACY_DEFAULT = 1
OWN_STREAM = 0xC0  # the address of the first stream that the package creates
NAME = b"a device of the tests"
ALIGNMENT = 256  # bytes of the addresses of allocations
MULTIPROCESSORS, L2_SIZE, MAJOR, MINOR = 16, 38, 75, 76  # attributes of a device


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906


class CUstreamCaptureMode(IntEnum):
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1
    CU_STREAM_CAPTURE_MODE_RELAXED = 2


GLOBAL, THREAD_LOCAL, RELAXED = CUstreamCaptureMode
OK = CUresult.CUDA_SUCCESS

# Calls that fail on request: out of memory, or because an earlier kernel failed.
FALLIBLE = {
    *("cuCtxSetCurrent", "cuEventQuery", "cuEventRecord", "cuStreamSynchronize", "cuStreamWaitEvent"),
    *("cuMemAllocFromPoolAsync", "cuMemGetInfo", "cuMemPoolTrimTo", "cuMemsetD8Async", "cuMemsetD16Async"),
    *("cuMemsetD32Async", "cuMemcpyDtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuGraphLaunch"),
    *("cuMemcpy2DAsync", "cuGraphInstantiate", "cuGraphGetNodes", "cuGraphExecKernelNodeSetParams"),
    *("cuStreamBeginCapture", "cuStreamEndCapture"),
}


class Event(NamedTuple):
    """A record of an event, as the log shows it."""

    handle: int
    number: int
    stream: int
    time: float


class Allocation:
    """Memory of one device; NaN in every float type until it is written."""

    def __init__(self, nbytes: int, device: int, stream: int) -> None:
        self.memory = np.full(nbytes + ALIGNMENT, 0xFF, np.uint8)
        self.handle = -(-self.memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        self.size, self.device, self.stream = nbytes, device, stream


class KernelParams(ctypes.Structure):
    """``CUDA_KERNEL_NODE_PARAMS_v2``."""

    _fields_ = (
        ("func", ctypes.c_void_p),
        ("dims", ctypes.c_uint * 7),
        *[(name, ctypes.c_void_p) for name in ("params", "extra", "kern", "ctx")],
    )


KERNEL, MEMCPY, MEMSET = range(3)  # kinds of nodes


class Node:
    """A node of a graph: a kernel with ``words`` as its parameters, which it gets when it is launched.

    The words of a copy or a fill are its structure, ``CUDA_MEMCPY3D`` or ``CUDA_MEMSET_NODE_PARAMS``. Work
    without parameters has a number of its own as one, as if it had read memory.
    """

    _numbers = itertools.count(1)

    def __init__(
        self, work: Callable[..., object], words: list[int] | None = None, kind: int = KERNEL
    ) -> None:
        self.work, self.words, self.kind = work, words, kind
        self.own = next(self._numbers)
        self.memory: Any = None  # of the parameters

    @property
    def parameters(self) -> list[int]:
        return [self.own] if self.words is None else self.words

    def __call__(self) -> None:
        self.work() if self.words is None else self.work(self.words)


class Capture:
    """A capture of a stream: what its graph does, and whether a call has invalidated it."""

    def __init__(self, mode: CUstreamCaptureMode, *, deferred: bool = False) -> None:
        self.mode = mode
        self.deferred = deferred  # whether the work is done by launches only, as on a GPU
        self.thread = threading.get_ident()
        self.valid = True
        self.joined_to: Capture | None = None  # the capture that must wait for this stream
        self.graph: list[Node] = []

    def add(self, work: Callable[..., object], words: list[int] | None = None, kind: int = KERNEL) -> None:
        """Add a node; ``work`` takes the words if there are any."""
        self.graph.append(Node(work, words, kind))

    def launch(self) -> None:
        assert self.valid, "the capture was invalidated"
        for node in self.graph:
            node()


class Captures(dict[int, Capture]):
    """The captures by their streams."""

    def add(self, stream: int, mode: CUstreamCaptureMode = GLOBAL) -> Capture:
        self[stream] = Capture(mode)
        return self[stream]


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
    that work is put on the stream. A function that returns a `CUresult` fails with it.
    """

    def checked(function: Callable[..., Any], name: str = "") -> Any:
        name = name or function.__name__

        def wrapper(self: Driver, *arguments: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            error = self._requested(name)
            if context and self.current is None:
                error = error or CUresult.CUDA_ERROR_INVALID_CONTEXT
            if stream is not None:
                error = error or self._check_stream(arguments[stream], enqueues)
            if unsafe:
                error = error or self._check_captures()
            result = error or function(self, *arguments)
            if (isinstance(result, CUresult) and result) or error:
                return (result, *[None] * results)
            return (OK, *[result][:results]) if results < 2 else (OK, *result)

        return wrapper

    return checked


class Driver:
    """The driver: its calls in ``calls``, its work in ``log``, and the memory and captures that exist.

    A stream exists unless it is in ``destroyed``. Captured work is done at once too.
    """

    CUresult = CUresult
    CUstreamCaptureMode = CUstreamCaptureMode
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=MULTIPROCESSORS,
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE=L2_SIZE,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=MINOR,
    )
    CUgraphNodeType = SimpleNamespace(
        CU_GRAPH_NODE_TYPE_KERNEL=KERNEL,
        CU_GRAPH_NODE_TYPE_MEMCPY=MEMCPY,
        CU_GRAPH_NODE_TYPE_MEMSET=MEMSET,
    )
    CUmemorytype = SimpleNamespace(CU_MEMORYTYPE_DEVICE=2)
    CUDA_MEMCPY2D = SimpleNamespace
    CUmemPool_attribute = Mock()
    CUpointer_attribute = Mock()
    cuuint64_t = int

    def __init__(self, devices: int = 1) -> None:
        self.devices = devices
        self.capabilities = [(9, 0)] * devices
        self.calls: list[str] = []
        self.log: list[tuple[Any, ...]] = []
        self.fail_at = 0  # the place in `calls` of the call that fails
        self.failed_in: set[str] = set()  # the functions that were running when it failed
        self.failing: dict[str, Any] = {}  # the results of functions that always fail
        self.limit = 2**32  # bytes of each device
        self.live: dict[int, Allocation] = {}  # by address
        self.grave: list[np.ndarray] = []  # freed memory, kept so that its addresses are not used again
        self.freed: list[tuple[int, int, int | None]] = []  # address, stream, current device
        self.pinned = False  # whether memory of the host is
        self.pinned_at: set[int] = set()  # addresses of pinned memory
        self.capturing = Captures()
        self.blocking: set[int] = set()  # streams that wait for the default stream
        self.destroyed: set[int] = set()  # streams that no call may name
        self.events: dict[int, Event] = {}  # the last record of each event
        self.switches: list[int | None] = []  # devices that became current
        self.clock = 0.0  # milliseconds; advanced by each computation
        self._numbers = itertools.count()
        self._events = itertools.count(0x1000, 0x10)
        self._streams = itertools.count(OWN_STREAM, 0x1000000)
        self.launches: list[tuple[int, int]] = []  # executable graphs and streams
        self.graphs: dict[int, list[int]] = {}  # the numbers of their nodes
        self.nodes: dict[int, Node] = {}
        self.executables: dict[int, dict[int, Node]] = {}  # copies of the nodes by their numbers
        self._graphs = itertools.count(0x6000)
        self._kept: list[Any] = []  # C functions
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
        handle = next(self._streams)
        if blocking:
            self.blocking.add(handle)
        return handle

    def fail_always(self, result: CUresult) -> None:
        """Let all functions fail."""
        self._requested = lambda name: result  # type: ignore[method-assign]

    def used(self) -> int:
        return sum(allocation.size for allocation in list(self.live.values()))

    def check(self, address: int, nbytes: int) -> None:
        """Raise unless a range of addresses is alive, on the device that is current."""
        for one in list(self.live.values()):
            if one.handle <= address and address + nbytes <= one.handle + one.size:
                assert one.device == self.current, f"device {one.device} used while {self.current} is current"
                return
        raise AssertionError(f"{nbytes} bytes at {address:#x} are not in memory that is alive")

    def check_stream(self, stream: int) -> None:
        """Raise for a stream that was destroyed, for which the driver would end the process."""
        if stream in self.destroyed:
            self.log.append(("destroyed stream used", stream))
            raise AssertionError(f"stream {stream:#x} was destroyed")

    def allocate(self, nbytes: int, device: int, stream: int) -> Allocation:
        made = Allocation(nbytes, device, stream)
        self.live[made.handle] = made
        self.log.append(("allocate", stream))
        return made

    def free(self, address: int) -> None:
        gone = self.live.pop(address)
        gone.memory[:] = 0xA5
        self.grave.append(gone.memory)
        self.log.append(("free", address))

    # --- rules ---

    def _requested(self, name: str) -> Any:
        if len(self.calls) == self.fail_at and name in FALLIBLE:
            self.failed_in = {frame.name for frame in traceback.extract_stack()}
            out_of_memory = name == "cuMemAllocFromPoolAsync"
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY if out_of_memory else CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
        return self.failing.get(name, OK)

    def _check_stream(self, stream: int, enqueues: bool) -> CUresult:
        self.check_stream(stream)
        blocking = [one for place, one in list(self.capturing.items()) if place in self.blocking]
        if stream == LEGACY_DEFAULT and blocking:
            for capture in blocking:
                capture.valid = capture.valid and not enqueues
            return CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        return OK

    def _check_captures(self) -> CUresult:
        mine = threading.get_ident()
        forbidding = [
            capture
            for capture in list(self.capturing.values())
            if self.mode == GLOBAL
            and (capture.mode == GLOBAL or (capture.thread == mine and capture.mode != RELAXED))
        ]
        for capture in forbidding:
            capture.valid = False
        return CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if forbidding else OK

    def do(self, stream: int, work: Callable[[list[int]], object], words: list[int], kind: int) -> None:
        """Do the work of a stream, or add it to the graph that is captured."""
        capture = self.capturing.get(stream)
        if capture is not None:
            capture.add(work, words, kind)
        if capture is None or not capture.deferred:
            work(words)

    def _enqueue_copy(
        self,
        stream: int,
        target: int,
        source: int,
        nbytes: int,
        pitches: tuple[int, int] = (0, 0),
        rows: int = 1,
    ) -> None:
        """Copy rows; ``pitches`` are the distances between those of the target, and of the source."""
        words, undefined = [0] * 25, next(self._numbers) << 32  # next to the four bytes of a memory type
        for first, address, pitch in ((0, source, pitches[1]), (11, target, pitches[0])):
            words[first + 4] = undefined + int(self.CUmemorytype.CU_MEMORYTYPE_DEVICE)
            words[first + 6], words[first + 9] = address, pitch
        words[22:] = [nbytes, rows, 1]
        self.do(stream, self._copied, words, MEMCPY)

    def _copied(self, words: list[int]) -> None:
        source, source_pitch, target, target_pitch, nbytes, rows, _ = (
            words[place] for place in (6, 9, 17, 20, 22, 23, 24)
        )
        assert target >= source + nbytes or source >= target + nbytes, "the copy overlaps itself"
        self.check(source, source_pitch * (rows - 1) + nbytes)
        self.check(target, target_pitch * (rows - 1) + nbytes)
        for row in range(rows):
            ctypes.memmove(target + row * target_pitch, source + row * source_pitch, nbytes)

    def _filled(self, words: list[int]) -> None:
        target, _, value, count, _ = words
        size = value >> 32
        self.check(target, size * count)
        pattern = (value % 2**32).to_bytes(4, sys.byteorder)[:size] * count
        ctypes.memmove(target, pattern, len(pattern))

    # --- the functions ---

    def _attribute(self, attribute: int, device: int) -> int:
        major, minor = self.capabilities[device]
        return {MULTIPROCESSORS: 16, L2_SIZE: 2**20, MAJOR: major, MINOR: minor}[attribute]

    @call(results=0, context=False)
    def cuCtxSetCurrent(self, context: int) -> None:
        self.current = context - 0xC0 if context else None
        self.switches.append(self.current)

    @call(results=0, unsafe=True)
    def cuCtxSynchronize(self) -> None:
        for capture in self.capturing.values():  # whatever its mode
            capture.valid = False
        self.log.append(("synchronize_device", self.current))

    @call(context=False)
    def cuThreadExchangeStreamCaptureMode(self, mode: CUstreamCaptureMode) -> CUstreamCaptureMode:
        before, self._thread.mode = self.mode, mode
        return before

    @call(results=0, stream=0, unsafe=True)
    def cuStreamSynchronize(self, stream: int) -> None:
        assert stream not in self.capturing
        self.log.append(("synchronize", stream))

    @call(results=0, stream=0)
    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        self.log.append(("wait", stream, self.events[event]))

    @call(results=0, stream=1)
    def cuEventRecord(self, event: int, stream: int) -> None:
        self.events[event] = Event(event, next(self._numbers), stream, self.clock)
        self.log.append(("record", stream, self.events[event]))

    @call(results=0, context=False, unsafe=True)
    def cuMemPoolTrimTo(self, pool: int, kept: int) -> None:
        self.log.append(("trim", pool - 0xB0))

    @call(stream=2, unsafe=True)
    def cuMemAllocFromPoolAsync(self, nbytes: int, pool: int, stream: int) -> int:
        assert pool - 0xB0 == self.current, "allocating on a device that is not current"
        if self.used() + nbytes > self.limit:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY
        return self.allocate(nbytes, pool - 0xB0, stream).handle

    @call(results=0, stream=1, unsafe=True)
    def cuMemFreeAsync(self, address: int, stream: int) -> None:
        if stream in self.capturing:  # memory of a graph alone is freed in it
            self.capturing[stream].valid = False
            return
        self.free(address)
        self.freed.append((address, stream, self.current))

    @call(results=0, stream=3)
    def cuMemcpyHtoDAsync(self, target: int, source: int, nbytes: int, stream: int) -> None:
        assert stream not in self.capturing, "a graph reads host memory when it is launched"
        self.check(target, nbytes)
        ctypes.memmove(target, source, nbytes)

    @call(results=0, stream=3)
    def cuMemcpyDtoHAsync(self, target: int, source: int, nbytes: int, stream: int) -> None:
        assert stream not in self.capturing, "a graph writes host memory when it is launched"
        self.check(source, nbytes)
        ctypes.memmove(target, source, nbytes)

    @call(results=0, stream=3)
    def cuMemcpyDtoDAsync(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._enqueue_copy(stream, target, source, nbytes)

    @call(results=0, stream=1)
    def cuMemcpy2DAsync(self, copy: Any, stream: int) -> None:
        nbytes, rows = copy.WidthInBytes, copy.Height
        assert nbytes <= min(copy.srcPitch, copy.dstPitch) <= max(copy.srcPitch, copy.dstPitch) < 2**31
        assert copy.srcMemoryType == copy.dstMemoryType == self.CUmemorytype.CU_MEMORYTYPE_DEVICE
        pitches = copy.dstPitch, copy.srcPitch
        self._enqueue_copy(stream, copy.dstDevice, copy.srcDevice, nbytes, pitches, rows)

    # --- graphs ---

    @call(results=0, stream=0)
    def cuStreamBeginCapture(self, stream: int, mode: CUstreamCaptureMode) -> Any:
        if stream == LEGACY_DEFAULT or stream in self.capturing:
            return CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        self.capturing[stream] = Capture(mode, deferred=True)
        return None

    @call(stream=0)
    def cuStreamEndCapture(self, stream: int) -> Any:
        capture = self.capturing.pop(stream, None)
        if capture is None or not capture.valid or capture.thread != threading.get_ident():
            return CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        unjoined = [place for place, other in self.capturing.items() if other.joined_to is capture]
        for place in unjoined:
            del self.capturing[place]
        if unjoined:
            return CUresult.CUDA_ERROR_STREAM_CAPTURE_UNJOINED
        nodes = {next(self._graphs): node for node in capture.graph}
        self.nodes |= nodes
        self.graphs[number := next(self._graphs)] = [*nodes]
        return number

    @call(unsafe=True)
    def cuGraphInstantiate(self, graph: int, flags: int) -> int:
        nodes = {number: self.nodes[number] for number in self.graphs[graph]}
        copies = {
            number: Node(node.work, node.words and [*node.words], node.kind) for number, node in nodes.items()
        }
        self.executables[number := next(self._graphs)] = copies
        return number

    @call(results=0)
    def cuGraphDestroy(self, graph: int) -> None:
        for number in self.graphs.pop(graph):
            del self.nodes[number]

    def launch(self, executable: int, stream: int) -> int:
        self.calls.append("cuGraphLaunch")
        self._check_stream(stream, enqueues=True)
        assert stream not in self.capturing, "a graph would become a node of another one"
        if error := self._requested("cuGraphLaunch"):
            return int(error)
        self.launches.append((executable, stream))
        for node in self.executables[executable].values():
            node()
        return 0

    def _node_params(self, number: int, place: int) -> int:
        node = self.nodes[number]
        values = (ctypes.c_uint64 * len(node.parameters))(*node.parameters)
        addresses = [ctypes.addressof(values) + 8 * at for at in range(len(values))]
        node.memory = values, (ctypes.c_void_p * len(values))(*addresses)
        params = KernelParams.from_address(place)
        params.params = ctypes.addressof(node.memory[1])
        params.func = len(values)  # all that `_param_info` has to know
        return 0

    def _param_info(self, function: int, index: int, offset: int, size: int) -> int:
        if index >= function:
            return int(CUresult.CUDA_ERROR_INVALID_VALUE)
        ctypes.c_size_t.from_address(size).value = 8
        return 0

    def _node_to_set(self, kind: str, executable: int, number: int) -> Node | int:
        """Return a node of an executable graph, or the error of the function that sets its parameters."""
        name = f"cuGraphExec{kind}NodeSetParams"
        self.calls.append(name)
        if error := self._requested(name):
            return int(error)
        assert number in self.nodes, "the graph of the node was destroyed"
        return self.executables[executable][number]

    def _set_node_params(self, executable: int, number: int, place: int) -> int:
        if isinstance(node := self._node_to_set("Kernel", executable, number), int):
            return node
        params = KernelParams.from_address(place)
        addresses = (ctypes.c_void_p * params.func).from_address(params.params)
        node.words = [ctypes.c_uint64.from_address(one).value for one in addresses]
        return 0

    def _structure(self, kind: int, number: int, place: int) -> int:
        node = self.nodes[number]
        assert node.kind == kind
        words = node.parameters
        (ctypes.c_uint64 * len(words)).from_address(place)[:] = words
        return 0

    def _set_structure(self, kind: int, executable: int, number: int, place: int, context: int) -> int:
        function = "Memcpy" if kind == MEMCPY else "Memset"
        if isinstance(node := self._node_to_set(function, executable, number), int):
            return node
        assert node.kind == kind
        assert node.words is not None
        assert context == 0xC0 + (self.current or 0), "a context of another device"
        node.words = [*(ctypes.c_uint64 * len(node.words)).from_address(place)]
        return 0

    def _current_context(self, place: int) -> int:
        ctypes.c_void_p.from_address(place).value = None if self.current is None else 0xC0 + self.current
        return 0

    def _copy(self, *arguments: int) -> int:
        return int(self.cuMemcpyDtoDAsync(*arguments)[0])

    def _device(self, place: int) -> int:
        result, device = self.cuCtxGetDevice()
        ctypes.c_int.from_address(place).value = device or 0
        return int(result)

    def _exchange(self, place: int) -> int:
        mode = ctypes.c_int.from_address(place)
        result, before = self.cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode(mode.value))
        mode.value = int(before or 0)
        return int(result)

    def _is_capturing(self, stream: int, status: int) -> int:
        self.check_stream(stream)
        ctypes.c_int.from_address(status).value = int(stream in self.capturing)
        return 0

    def _memory_type(self, _: Any, address: int) -> int:
        if any(0 <= address - one.handle < one.size for one in list(self.live.values())):
            return int(self.CUmemorytype.CU_MEMORYTYPE_DEVICE)
        return 1 if self.pinned else CUresult.CUDA_ERROR_INVALID_VALUE

    def _pointer_attributes(self, count: int, attributes: int, places: int, address: int) -> int:
        """Write the attributes of an address; zeros for one that is in no allocation, as the driver does."""
        count &= 0xFFFFFFFF
        found = next((one for one in self.live.values() if 0 <= address - one.handle < one.size), None)
        values = {2: 1 if address in self.pinned_at else 0}
        if found is not None:
            values = {2: 2, 9: found.device, 11: found.handle, 12: found.size}
        for name, place in zip(
            (ctypes.c_uint * count).from_address(attributes),
            (ctypes.c_size_t * count).from_address(places),
            strict=True,
        ):
            kind = ctypes.c_uint64 if name in (11, 12) else ctypes.c_uint
            kind.from_address(place).value = values.get(name, 0)
        return 0

    def cuGetProcAddress(self, name: bytes, version: int, flags: int) -> tuple[Any, ...]:
        functions: dict[bytes, tuple[Callable[..., int], int]] = {
            b"cuCtxGetDevice": (self._device, 1),
            b"cuGraphLaunch": (self.launch, 2),
            b"cuGraphKernelNodeGetParams": (self._node_params, 2),
            b"cuGraphMemcpyNodeGetParams": (partial(self._structure, MEMCPY), 2),
            b"cuGraphMemsetNodeGetParams": (partial(self._structure, MEMSET), 2),
            b"cuGraphExecMemcpyNodeSetParams": (partial(self._set_structure, MEMCPY), 4),
            b"cuGraphExecMemsetNodeSetParams": (partial(self._set_structure, MEMSET), 4),
            b"cuCtxGetCurrent": (self._current_context, 1),
            b"cuFuncGetParamInfo": (self._param_info, 4),
            b"cuGraphExecKernelNodeSetParams": (self._set_node_params, 3),
            b"cuStreamIsCapturing": (self._is_capturing, 2),
            b"cuMemcpyDtoDAsync": (self._copy, 4),
            b"cuPointerGetAttributes": (self._pointer_attributes, 4),
            b"cuThreadExchangeStreamCaptureMode": (self._exchange, 1),
        }
        function, arguments = functions[name]
        kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_size_t] * arguments)
        self._kept.append(made := kind(function))
        return OK, ctypes.cast(made, ctypes.c_void_p).value, 0

    def _set(self, target: int, value: int, count: int, stream: int, *, size: int) -> None:
        self.do(stream, self._filled, [target, 0, value + (size << 32), count, 1], MEMSET)

    def _elapsed(self, start: int, end: int) -> float:
        return self.events[end].time - self.events[start].time


FREE = {"context": False}
ENQUEUES = {"results": 0, "stream": 3}

# Short functions: their checks, and the result for a driver and arguments.
SHORT: dict[str, tuple[dict[str, Any], Callable[..., Any]]] = {
    "cuInit": ({"results": 0, **FREE}, lambda *_: None),
    "cuDriverGetVersion": (FREE, lambda _: 13000),
    "cuDeviceGetCount": (FREE, lambda driver: driver.devices),
    "cuDeviceGetName": (FREE, lambda _, length, device: NAME.ljust(length, b"\0")),
    "cuDeviceGetAttribute": (FREE, Driver._attribute),
    "cuDevicePrimaryCtxRetain": (FREE, lambda _, device: 0xC0 + device),
    "cuDeviceGetMemPool": (FREE, lambda _, device: 0xB0 + device),
    "cuPointerGetAttribute": (FREE, Driver._memory_type),
    "cuCtxGetDevice": ({}, lambda driver: driver.current),
    "cuStreamCreate": ({"unsafe": True}, lambda driver, flags: driver.new_stream(blocking=not flags)),
    "cuStreamIsCapturing": (
        {"stream": 0, "enqueues": False},
        lambda driver, stream: int(stream in driver.capturing),
    ),
    "cuGraphGetNodes": (
        {"results": 2},
        lambda driver, graph, room: (driver.graphs[graph][:room], len(driver.graphs[graph])),
    ),
    "cuGraphNodeGetType": ({}, lambda driver, node: driver.nodes[node].kind),
    "cuGraphMemcpyNodeGetParams": (
        {},
        lambda driver, node: SimpleNamespace(
            srcDevice=driver.nodes[node].words[6], dstDevice=driver.nodes[node].words[17]
        ),
    ),
    "cuGraphExecDestroy": (
        {"results": 0, "unsafe": True, "context": False},
        lambda driver, graph: driver.executables.pop(graph),
    ),
    "cuEventCreate": ({"unsafe": True}, lambda driver, flags: next(driver._events)),
    "cuEventDestroy": ({"results": 0, "unsafe": True}, lambda driver, event: driver.events.pop(event, None)),
    "cuEventSynchronize": ({"results": 0, "unsafe": True}, lambda *_: None),
    "cuEventElapsedTime": ({}, Driver._elapsed),
    "cuMemPoolGetAttribute": ({**FREE, "unsafe": True}, lambda *_: 0),
    "cuMemPoolSetAttribute": ({"results": 0, **FREE, "unsafe": True}, lambda *_: None),
    "cuEventQuery": ({"results": 0, "unsafe": True}, lambda *_: None),
    "cuMemGetInfo": ({"results": 2}, lambda driver: (driver.limit - driver.used(), driver.limit)),
    "cuMemsetD8Async": (ENQUEUES, partial(Driver._set, size=1)),
    "cuMemsetD16Async": (ENQUEUES, partial(Driver._set, size=2)),
    "cuMemsetD32Async": (ENQUEUES, partial(Driver._set, size=4)),
}
for _name, (_checks, _function) in SHORT.items():
    setattr(Driver, _name, call(**_checks)(_function, _name))


@contextmanager
def driver_installed(made: Driver) -> Iterator[ExitStack]:
    """Replace the driver in this process within a block; the yielded stack undoes further replacements."""
    from cudnn_ct.cuda import driver, graph, memory, stream

    def forget() -> None:
        stream._forget_properties()
        stream._after_fork()
        stream.default_stream.cache_clear()
        memory.share_of.cache_clear()
        memory._pool.cache_clear()
        driver.native.cache_clear()
        graph._idle_streams.clear()

    @cache
    def installed() -> Driver:
        with driver._importing("the fake driver"):
            return made

    with ExitStack() as stack:
        put(stack, driver, "driver", installed)
        put(stack, driver._start, "used", True)
        forget()
        stack.callback(forget)
        yield stack


def put(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Replace an attribute until the stack is closed."""
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def install() -> Driver:
    """Put a driver in place of ``cuda.bindings.driver`` for the rest of a process, and no ``cuda.core``."""
    made = Driver()
    cuda, bindings = ModuleType("cuda"), ModuleType("cuda.bindings")
    bindings.driver = made  # type: ignore[attr-defined]
    cuda.bindings = bindings  # type: ignore[attr-defined]
    sys.modules |= {"cuda": cuda, "cuda.bindings": bindings, "cuda.core": None}  # type: ignore[dict-item]
    sys.modules["cuda.bindings.driver"] = made  # type: ignore[assignment]
    return made
