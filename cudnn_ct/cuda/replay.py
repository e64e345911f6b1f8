"""Replays: calls that are launched as CUDA graphs, and the limit of their number."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Hashable
from typing import Any

from .graph import Graph

__all__ = ["Replay", "ReplayPool", "ReplayTable", "count_nodes"]

MAX_NODES = 1024  # of all replays of a device in this process; a node takes about 80 kB of device memory


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
        """Whether a graph of so many nodes may be added; drop replays that were not launched recently.

        Replays that are launched in turn do not replace one another: a recording takes longer than many
        calls.
        """
        while count_nodes(self._device) + nodes > MAX_NODES:
            try:
                number = next(iter(self._replays))
                reference = self._replays.pop(number)
            except (StopIteration, KeyError, RuntimeError):  # a finalizer has removed it
                return False
            replay = reference()
            if replay is not None and replay.recent:
                replay.recent = False
                self._replays[number] = reference
                return False
            if replay is not None:
                replay.drop()
        return True

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
