"""Replays: calls that are launched as CUDA graphs, and the limit of their number."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from ..errors import NotSupportedError
from . import driver as cuda
from . import graph as graphs
from . import stream as streams
from .backlog import Backlog
from .memory import share_of

MIN_ROOM = 1024  # nodes of all replays of a device in this process, or more on a device with much memory
SHARE, NODE = 256, 80_000  # of the memory of a device that nodes may take; bytes of a node, about


class NoRoomError(NotSupportedError):
    """Replays that were launched lately have the nodes that a graph needs."""


def capture(device: int, work: Callable[[streams.Stream], object]) -> graphs.Graph:
    """Capture the work that a function enqueues on a stream of this package, as an executable graph.

    Raises
    ------
    CudnnError
        The work cannot be captured. NotSupportedError: it has too many nodes, or one that is not a kernel, a
        copy or a fill within device memory. NoRoomError: there are too many replays.
    """
    accepted = partial(accept, device)
    with graphs.acquired(device) as stream, streams.relaxed(), graphs.capturing(stream, accepted) as graph:
        work(stream)
    return graph


def accept(device: int, graph: object) -> None:
    """Raise unless a captured graph can be replayed, and has room: see :func:`capture`."""
    count = check_nodes(graph)
    most = most_nodes(device)
    if not 0 < count <= most:
        raise NotSupportedError(f"the graph has {count} nodes, expected 1 to {most}")
    if not has_room(device, count):
        raise NoRoomError(f"the graph has {count} nodes; replays have {most} for each device")


def most_nodes(device: int) -> int:
    """Return how many nodes all replays of a device, which is current, may have."""
    return max(MIN_ROOM, share_of(device, SHARE) // NODE)


def check_nodes(graph: object) -> int:
    """Count the nodes of a graph; raise unless they are kernels, copies and fills within device memory."""
    kinds = cuda.driver().CUgraphNodeType
    supported = [getattr(kinds, f"CU_GRAPH_NODE_TYPE_{name}") for name in ("KERNEL", "MEMSET", "MEMCPY")]
    nodes = graphs.nodes_of(graph)
    for node, kind in nodes:
        if kind not in supported or graphs.uses_host(node, kind):
            raise NotSupportedError(f"the graph has a node that cannot be replayed: {kind!r}")
    return len(nodes)


def launcher(graph: graphs.Graph, stream: streams.Stream) -> Callable[[], int]:
    """Return a function that launches a graph on a stream; it returns 0, or not 0 if nothing was launched.

    A stream that is being captured does not take a graph: its capture would have a graph as a node.
    """
    launch = graphs.launcher(graph, stream)
    if stream.handle == streams.LEGACY_DEFAULT:  # it cannot be captured
        return launch
    status = ctypes.c_int()
    query = partial(cuda.native("cuStreamIsCapturing"), ctypes.c_void_p(stream.handle), ctypes.byref(status))
    return lambda: query() or status.value or launch()


class ReplayTable(dict[Any, "Replay"]):
    """The replays of one prepared call, by all that their graphs depend on."""

    __slots__ = ("__weakref__",)


class Replay:
    """The graph of one call, in the table where the call is found.

    ``launch`` puts it on its stream, with the pointers if it takes any, and returns 0, or another number if
    that failed. ``plan`` is the plan that was captured, ``uses`` the owner of other memory of the graph.
    ``recent`` is set by launches, and cleared when room is sought.
    """

    __slots__ = (
        *("__weakref__", "_graph", "_key", "_table", "launch", "nodes", "plan", "pool", "recent"),
        "uses",
    )

    def __init__(
        self,
        graph: graphs.Graph,
        launch: Callable[..., int],
        plan: Any,
        uses: object,
        pool: ReplayPool,
        table: ReplayTable,
        key: Hashable,
    ) -> None:
        self.launch = launch
        self.plan = plan
        self.uses = uses
        self.recent: object = True  # a batch of its thread's backlog
        self._graph, self.nodes, self.pool, self._key = graph, graph.nodes, pool, key
        self._table = weakref.ref(table)  # no cycle: the graph is destroyed with its table
        pool.shared[id(self)] = weakref.ref(self)
        table[key] = self

    def drop(self) -> None:
        """Remove this from its table; the graph is destroyed with the last reference."""
        table = self._table()
        if table is not None and table.get(self._key) is self:
            table.pop(self._key, None)  # another thread may have dropped it

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        pool = getattr(self, "pool", None)  # a signal handler may interrupt the constructor
        if pool is not None and not ending():
            pool.shared.pop(id(self), None)


class ReplayPool:
    """The replays of one thread on a device. All threads share the room for their nodes.

    ``shared`` has the replays of all threads, whose nodes are counted. ``backlog`` is that of the
    launches of this thread.
    """

    def __init__(self, device: int) -> None:
        self.shared = _replays.setdefault(device, {})
        self.backlog = Backlog()

    def clear(self) -> None:
        for replay in _living(self.shared):
            if replay.pool is self:
                replay.drop()

    def __len__(self) -> int:
        return sum(replay.pool is self for replay in _living(self.shared))


# The replays of all threads by device, in the order in which they were examined or added.
_replays: dict[int, dict[int, weakref.ref[Replay]]] = {}


def _living(replays: dict[int, weakref.ref[Replay]]) -> list[Replay]:
    return [replay for reference in list(replays.values()) if (replay := reference()) is not None]


def count_nodes(device: int | None = None) -> int:
    """Return the number of nodes of all replays of a device, or of all devices."""
    tables = [table for number, table in list(_replays.items()) if device in (None, number)]
    return sum(replay.nodes for table in tables for replay in _living(table))


def has_room(device: int, nodes: int) -> bool:
    """Return whether a graph of so many nodes may be added; drop replays that were not launched lately.

    Only some replays are examined, so that replays that are launched in turn do not replace one another: a
    recording takes longer than many calls. To count the nodes takes as long, so that requests after one that
    was refused are refused, too: as many as a fraction of the replays.
    """
    shared = _replays.setdefault(device, {})
    refused = min(_refused[device], len(shared) // 16)  # others may have been dropped since
    if refused > 0:
        _refused[device] = refused - 1
        return False
    room = most_nodes(device) - nodes - count_nodes(device)
    for _ in range(len(shared) // 16 + 1):
        if room >= 0:
            return True
        try:
            number = next(iter(shared))
            reference = shared.pop(number)
        except (StopIteration, KeyError, RuntimeError):  # another thread or a finalizer has removed it
            break
        replay = reference()
        if replay is not None and replay.recent:
            replay.recent = None
            shared[number] = reference
        elif replay is not None:
            room += replay.nodes
            replay.drop()
    if room < 0:
        _refused[device] = len(shared) // 16
    return room >= 0


_refused: Counter[int] = Counter()  # requests for room that are still to be refused, by device
