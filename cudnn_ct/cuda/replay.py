"""Replays: calls that are launched as CUDA graphs, and the limit of their number."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from ..errors import NotSupportedError
from . import driver as cuda
from . import graph as graphs
from . import stream as streams
from .graph import Graph
from .stream import Stream

__all__ = ["Replay", "ReplayPool", "ReplayTable", "capture", "count_nodes", "launcher"]

MAX_NODES = 1024  # of all replays of a device in this process; a node takes about 80 kB of device memory


def capture(device: int, work: Callable[[Stream], object]) -> Graph:
    """Capture the work that a function enqueues on a stream of this package, as an executable graph.

    Raises
    ------
    CudnnError
        The work cannot be captured. NotSupportedError: it has too many nodes, or one that is not a kernel, a
        copy or a fill within device memory.
    """
    stream = graphs.acquire_stream(device)
    try:
        with streams.relaxed(), graphs.capturing(stream, accept=_check_nodes) as graph:
            work(stream)
    finally:
        if not streams.is_capturing(stream):  # else ending the capture has failed
            graphs.release_stream(stream)
    return graph


def _check_nodes(graph: object) -> None:
    """Raise unless a graph uses device memory only: host memory may be gone at a launch."""
    doing, kinds = "reading a CUDA graph", cuda.driver().CUgraphNodeType
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


def _on_device(address: Any) -> bool:
    driver = cuda.driver()
    kind = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    result, found = driver.cuPointerGetAttribute(kind, int(address))
    return not int(result) and int(found) == int(driver.CUmemorytype.CU_MEMORYTYPE_DEVICE)


def launcher(graph: Graph, stream: Stream) -> Callable[[], int]:
    """Return a function that launches a graph on a stream; it returns 0, or not 0 if nothing was launched.

    A stream that is being captured does not take a graph: its capture would have a graph as a node.
    """
    launch = graphs.launcher(graph, stream)
    if stream.handle == streams.LEGACY_DEFAULT:  # it cannot be captured
        return launch
    status = ctypes.c_int()
    query = partial(cuda.native("cuStreamIsCapturing"), ctypes.c_void_p(stream.handle), ctypes.byref(status))

    def launch_unless_capturing() -> int:
        return query() or status.value or launch()

    return launch_unless_capturing


class ReplayTable(dict[Any, "Replay"]):
    """The replays of one prepared call, by all that their graphs depend on."""

    __slots__ = ("__weakref__",)


class Replay:
    """The graph of one call, in the table where the call is found.

    ``launch`` puts it on its stream and returns 0, or returns another number if that failed. ``plan`` is the
    plan that was captured, ``uses`` the owner of other memory of the graph. ``recent`` is set by launches,
    and cleared when room is sought.
    """

    __slots__ = ("__weakref__", "_graph", "_key", "_pool", "_table", "launch", "plan", "recent", "uses")

    def __init__(
        self,
        graph: Graph,
        launch: Callable[[], int],
        plan: Any,
        uses: object,
        pool: ReplayPool,
        table: ReplayTable,
        key: Hashable,
    ) -> None:
        self.launch = launch
        self.plan = plan
        self.uses = uses
        self.recent = True
        self._graph, self._pool, self._key = graph, pool, key
        self._table = weakref.ref(table)  # no cycle: the graph is destroyed with its table
        pool.add(self, graph.nodes)
        table[key] = self

    def drop(self) -> None:
        """Remove this from its table; the graph is destroyed with the last reference."""
        table = self._table()
        if table is not None and table.get(self._key) is self:
            del table[self._key]

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            self._pool.remove(self)


class ReplayPool:
    """The replays of one thread on a device."""

    def __init__(self, device: int) -> None:
        self._replays: dict[int, weakref.ref[Replay]] = {}  # in the order of their last examination
        self._device = device
        self._nodes = _nodes.setdefault(device, {})

    def has_room(self, nodes: int) -> bool:
        """Whether a graph of so many nodes may be added; drop replays that were not launched lately.

        Only some replays are examined, so that replays that are launched in turn do not replace one another:
        a recording takes longer than many calls.
        """
        for _ in range(len(self._replays) // 64 + 1):
            if count_nodes(self._device) + nodes <= MAX_NODES:
                break
            try:
                number = next(iter(self._replays))
                reference = self._replays.pop(number)
            except (StopIteration, KeyError, RuntimeError):  # a finalizer has removed it
                break
            replay = reference()
            if replay is not None and replay.recent:
                replay.recent = False
                self._replays[number] = reference
            elif replay is not None:
                replay.drop()
        return count_nodes(self._device) + nodes <= MAX_NODES

    def add(self, replay: Replay, nodes: int) -> None:
        """Count the nodes of a new replay."""
        self._replays[id(replay)] = weakref.ref(replay)
        self._nodes[id(replay)] = nodes

    def remove(self, replay: Replay) -> None:
        """Count the nodes of a replay no longer."""
        self._replays.pop(id(replay), None)
        self._nodes.pop(id(replay), None)

    def clear(self) -> None:
        """Drop all replays."""
        for reference in list(self._replays.values()):
            if (replay := reference()) is not None:
                replay.drop()

    def __len__(self) -> int:
        return len(self._replays)


def count_nodes(device: int | None = None) -> int:
    """Return the number of nodes of all replays of a device, or of all devices."""
    return sum(
        sum(list(nodes.values())) for number, nodes in list(_nodes.items()) if device in (None, number)
    )


_nodes: dict[int, dict[int, int]] = {}  # of the graphs that exist, by device and replay
