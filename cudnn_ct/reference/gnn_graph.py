"""Graphs in compressed sparse columns, in host memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..shapes.gnn_graph import graph_sizes
from ._cast import Array, packed_spec, required


class Edges(NamedTuple):
    """The edges of a graph.

    ``sources`` are the nodes that they come from, ``destinations`` those that they lead to, and ``rows`` the
    places of their features. ``nodes`` is the number of destinations, ``dtype`` that of the indices.
    """

    offsets: Array
    sources: Array
    destinations: Array
    rows: Array
    nodes: int
    dtype: Any

    def groups(self) -> Iterator[Array]:
        """Yield the numbers of the edges to each destination."""
        for begin, end in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            yield np.arange(begin, end)


def edges_of(offsets: ArrayLike, indices: ArrayLike, order: ArrayLike | None = None) -> Edges:
    """Return the edges of a graph, after a check of its arrays and their contents."""
    given = required(offsets=offsets, indices=indices, **({} if order is None else {"order": order}))
    count, edges, _ = graph_sizes(*map(packed_spec, given.values()))
    starts, sources = given["offsets"], given["indices"]
    lengths = np.diff(starts)
    if starts[0] != 0 or starts[-1] != edges or (lengths < 0).any():
        raise ValueError(f"offsets are out of order: expected increasing numbers from 0 to {edges}")
    rows = given.get("order", np.arange(edges))
    return Edges(starts, sources, np.repeat(np.arange(count), lengths), rows, count, starts.dtype)
