"""Captures of streams as CUDA graphs, the graphs, and their memory."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from .._handle import outlive_cycles
from ..errors import CudnnError
from . import driver as cuda
from . import memory as memories
from . import stream as streams
from .lifetime import ExportedMemory, defer
from .stream import Stream

_idle_streams: dict[int, list[Stream]] = {}  # by device: streams for later captures


def acquire_stream(device: int) -> Stream:
    """Return a stream on which nothing but a capture may work."""
    try:
        return _idle_streams[device].pop()
    except LookupError:
        return streams.new_stream(device)


def release_stream(stream: Stream) -> None:
    """Keep a stream for later captures; no array may belong to it."""
    _idle_streams.setdefault(stream.device, []).append(stream)


@contextmanager
def acquired(device: int) -> Iterator[Stream]:
    """Yield a stream for a capture within a block."""
    stream = acquire_stream(device)
    try:
        yield stream
    finally:
        if not streams.is_capturing(stream):  # else ending the capture has failed
            release_stream(stream)


class Template:
    """A captured graph, destroyed with its last reference; ``handle`` is None until the capture has ended."""

    __slots__ = ("handle",)

    def __init__(self) -> None:
        self.handle: Any = None

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        handle = getattr(self, "handle", None)  # a signal handler may interrupt the constructor
        if handle is not None and int(handle) and not ending():
            with suppress(CudnnError):  # fails after a fork
                cuda.driver().cuGraphDestroy(handle)


class Graph:
    """An executable graph of a device, destroyed with its last reference.

    ``handle`` is 0 until the capture has ended; ``nodes`` is the number of its nodes.
    """

    __slots__ = ("device", "handle", "nodes")

    def __init__(self, device: int) -> None:
        self.device = device
        self.handle = 0
        self.nodes = 0
        outlive_cycles(self)

    def instantiate(self, template: Template) -> None:
        """Create the executable graph of a captured one."""
        captured = template.handle
        self.nodes = int(cuda.call("reading a CUDA graph", "cuGraphGetNodes", captured, 0)[1])
        self.handle = int(cuda.call("instantiating a CUDA graph", "cuGraphInstantiate", captured, 0))

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not getattr(self, "handle", 0) or ending():
            return
        with suppress(CudnnError), streams.on_device(self.device), streams.relaxed():  # fails after a fork
            cuda.driver().cuGraphExecDestroy(self.handle)


class _Pointers:
    """Device memory that is freed on ``stream`` with the last reference to this."""

    __slots__ = ("nbytes", "pointers", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.pointers: list[int] = []
        self.nbytes = 0
        outlive_cycles(self)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        for pointer in self.pointers:
            if not (ending() or memories._freed(pointer, self.stream)):
                defer(partial(memories._freed, pointer, self.stream))


class GraphMemory:
    """The memory of one graph, and the streams that the graph was launched on.

    It is freed after the last launch on each of them. Arrays in this memory reference it. It is allocated and
    freed on a stream of this package that nothing captures.
    """

    __slots__ = ("launched_on", "owned")

    def __init__(self, device: int) -> None:
        self.owned = _Pointers(streams.own_stream(device))
        self.launched_on: dict[Stream, None] = {}
        outlive_cycles(self)

    def allocate(self, nbytes: int, what: str) -> int:
        """Allocate memory, also during a capture, and return its address."""
        owned = self.owned
        pointer = memories._allocated(nbytes, owned.stream, what)
        owned.pointers.append(pointer)
        owned.nbytes += nbytes
        return pointer

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            for stream in self.launched_on:
                ExportedMemory(self.owned, self.owned.stream, stream)


@contextmanager
def captured(stream: Stream) -> Iterator[Template]:
    """Capture the work of a block, on a stream whose device is current; other threads are not disturbed.

    An error in the block ends the capture, and leaves the stream as it was.
    """
    doing, template = "capturing a CUDA graph", Template()
    mode = cuda.driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    try:
        cuda.call(doing, "cuStreamBeginCapture", stream.handle, mode)
        yield template
        template.handle = cuda.call(doing, "cuStreamEndCapture", stream.handle)
    finally:
        # An error, or a signal handler that raised.
        if template.handle is None and streams.is_capturing(stream):
            template.handle = cuda.driver().cuStreamEndCapture(stream.handle)[1]


@contextmanager
def capturing(stream: Stream, accept: Callable[[object], object] | None = None) -> Iterator[Graph]:
    """Capture the work of a block, as :func:`captured`; the graph that it yields is executable after it.

    ``accept`` is called with the captured graph, and raises for one that must not be instantiated.
    """
    graph = Graph(stream.device)
    with captured(stream) as template:
        yield graph
    if accept is not None:
        accept(template.handle)
    graph.instantiate(template)


def nodes_of(graph: object) -> list[tuple[Any, Any]]:
    """Return the nodes of a captured graph, each with its ``CUgraphNodeType``."""
    doing = "reading a CUDA graph"
    count = int(cuda.call(doing, "cuGraphGetNodes", graph, 0)[1])
    nodes = cuda.call(doing, "cuGraphGetNodes", graph, count)[0] if count else []
    return [(node, cuda.call(doing, "cuGraphNodeGetType", node)) for node in nodes]


def uses_host(node: Any, kind: Any) -> bool:
    """Return whether a node copies from or to host memory, which may be gone at a launch."""
    driver = cuda.driver()
    if kind != driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMCPY:
        return False
    copy = cuda.call("reading a CUDA graph", "cuGraphMemcpyNodeGetParams", node)
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    for address in (copy.srcDevice, copy.dstDevice):
        result, found = driver.cuPointerGetAttribute(attribute, int(address))
        if int(result) or int(found) != int(driver.CUmemorytype.CU_MEMORYTYPE_DEVICE):
            return True
    return False


def copier(target: int, nbytes: int, stream: Stream) -> Callable[[int], int]:
    """Return a function that copies from an address to ``target``, and whose status :func:`check` takes."""
    if not nbytes:
        return lambda _: 0
    copy, pointer = cuda.native("cuMemcpyDtoDAsync"), ctypes.c_void_p
    to, size, where = pointer(target), ctypes.c_size_t(nbytes), pointer(stream.handle)
    return lambda source: int(copy(to, pointer(source), size, where))


def launcher(graph: Graph, stream: Stream) -> Callable[[], int]:
    """Return a function that launches a graph on a stream; :func:`check` takes its status."""
    return partial(
        cuda.native("cuGraphLaunch"), ctypes.c_void_p(graph.handle), ctypes.c_void_p(stream.handle)
    )


def check(status: int, doing: str, stream: Stream) -> None:
    """Raise for a status that is not 0 of a function of :func:`cudnn_ct.cuda.driver.native`."""
    cuda.check(cuda.driver().CUresult(status), doing, stream)
