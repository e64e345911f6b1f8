"""Plans of calls that read a graph in compressed sparse columns, whose description is in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from typing import Any

from ..._bindings.types import cudnnGnnCscGraph_t
from ...dtypes import DTYPES
from ...plans.program import ArgumentTemplate, PointerSlot
from ...plans.stream_call import StreamCall
from ...shapes.specs import TensorSpec


class GraphCall(StreamCall):
    """The call ``f(stream, graph, *arguments)``; ``sources`` is the number of nodes that edges begin at."""

    __slots__ = ("_graph",)

    def __init__(
        self, function: str, problem: Any, sources: int, arguments: Sequence[Any], names: Sequence[str]
    ) -> None:
        super().__init__(function, [None, *arguments], names)
        destinations, edges = problem.offsets.shape[0] - 1, problem.indices.shape[0]
        arrays = [PointerSlot(name) for name in ("offsets", "indices", "order")]
        code = DTYPES[problem.offsets.dtype].code
        self._graph = ArgumentTemplate([*arrays, None, sources, destinations, edges, code, None], names)

    def _filled(self, pointers: Sequence[int]) -> list[Any]:
        arguments = super()._filled(pointers)
        arguments[0] = byref(cudnnGnnCscGraph_t(*self._graph.filled(pointers)))
        return arguments


def slots(tensors: dict[str, TensorSpec], *names: str) -> list[PointerSlot | None]:
    """Return the arguments for tensors by name: null for those without elements, and for absent ones."""
    return [PointerSlot(name) if name in tensors and tensors[name].size else None for name in names]
