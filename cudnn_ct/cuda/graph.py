"""CUDA graphs: captures of work on a stream of this package, and launches."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from .._handle import NativeHandle
from ..errors import CudnnError, NotSupportedError
from . import driver as cuda
from . import stream as streams
from .stream import Stream

__all__ = ["Graph", "capture", "launcher"]


class Graph(NativeHandle):
    """An instantiated CUDA graph (``CUgraphExec``) with ``nodes`` nodes, destroyed with its last reference.

    The driver frees a graph whose launch is pending after that launch.
    """

    __slots__ = ("nodes",)

    def __init__(self, handle: int, nodes: int) -> None:
        super().__init__(ctypes.c_void_p(handle), _destroy)
        self.nodes = nodes


def _destroy(handle: ctypes.c_void_p) -> None:
    with suppress(CudnnError), streams.relaxed():  # the context may be lost
        cuda.driver().cuGraphExecDestroy(handle.value)


def capture(device: int, work: Callable[[Stream], object]) -> Graph:
    """Capture the work that a function enqueues on a stream of this package, and instantiate it.

    The capture belongs to this thread: it neither disturbs the captures of other threads nor is disturbed.

    Raises
    ------
    CudnnError
        The work cannot be captured. NotSupportedError: it has a node that is no kernel, copy or fill within
        device memory.
    """
    with _capture_stream(device) as stream, streams.relaxed():
        driver = cuda.driver()
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        cuda.call("beginning a capture", "cuStreamBeginCapture", stream.handle, mode)
        try:
            work(stream)
        except BaseException:
            with suppress(CudnnError):
                _discard(_end(stream))
            raise
        graph = _end(stream)
        try:
            count = _count_nodes(graph)
            handle = cuda.call("instantiating a graph", "cuGraphInstantiate", graph, 0)
        finally:
            _discard(graph)
    return Graph(int(handle), count)


MAX_NODES = 512  # of one graph


def _end(stream: Stream) -> Any:
    return cuda.call("ending a capture", "cuStreamEndCapture", stream.handle)


def _discard(graph: Any) -> None:
    cuda.call("destroying a graph", "cuGraphDestroy", graph)


def _count_nodes(graph: Any) -> int:
    """Count the nodes; raise unless they use device memory only: host memory may be gone at a launch."""
    doing, kinds = "reading a graph", cuda.driver().CUgraphNodeType
    count = int(cuda.call(doing, "cuGraphGetNodes", graph, 0)[1])
    if not 0 < count <= MAX_NODES:
        raise NotSupportedError(f"the graph has {count} nodes, expected 1 to {MAX_NODES}")
    for node in cuda.call(doing, "cuGraphGetNodes", graph, count)[0]:
        kind = cuda.call(doing, "cuGraphNodeGetType", node)
        if kind == kinds.CU_GRAPH_NODE_TYPE_MEMCPY:
            copy = cuda.call(doing, "cuGraphMemcpyNodeGetParams", node)
            supported = _on_device(copy.srcDevice) and _on_device(copy.dstDevice)
        else:
            supported = kind in (kinds.CU_GRAPH_NODE_TYPE_KERNEL, kinds.CU_GRAPH_NODE_TYPE_MEMSET)
        if not supported:
            raise NotSupportedError(f"the graph has a node that cannot be replayed: {kind!r}")
    return count


def _on_device(address: Any) -> bool:
    driver = cuda.driver()
    kind = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    result, found = driver.cuPointerGetAttribute(kind, int(address))
    return not int(result) and int(found) == int(driver.CUmemorytype.CU_MEMORYTYPE_DEVICE)


# --- streams to capture ------------------------------------------------------------------------------------

_idle: dict[int, list[Stream]] = {}  # by device; as many as threads that captured at the same time


@contextmanager
def _capture_stream(device: int) -> Iterator[Stream]:
    """Lend a stream that no other thread uses."""
    idle = _idle.setdefault(device, [])
    try:
        stream = idle.pop()
    except IndexError:
        stream = streams.new_stream(device)
    try:
        yield stream
    finally:
        if not streams.is_capturing(stream):  # else ending the capture has failed
            idle.append(stream)


# --- launches ----------------------------------------------------------------------------------------------


def launcher(graph: Graph, stream: Stream) -> Callable[[], int]:
    """Return a function that launches a graph on a stream; it returns 0, or not 0 if nothing was launched.

    A stream that is being captured does not take a graph: its capture would have a graph as a node.
    """
    launch = partial(cuda.native("cuGraphLaunch"), graph._as_parameter_, ctypes.c_void_p(stream.handle))
    if stream.handle == streams.LEGACY_DEFAULT:  # it cannot be captured
        return launch
    status = ctypes.c_int()
    query = partial(cuda.native("cuStreamIsCapturing"), ctypes.c_void_p(stream.handle), ctypes.byref(status))

    def launch_unless_capturing() -> int:
        return query() or status.value or launch()

    return launch_unless_capturing


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)
