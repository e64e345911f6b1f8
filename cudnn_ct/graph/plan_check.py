"""Compare the first result of an imported plan with that of another engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..context import Context
from ..cuda import memory as memories
from ..dtypes import GRAPH_DTYPES
from ..errors import CudnnError, NotInitializedError, NotSupportedError, warn_caller
from ..plans.base import Candidate
from ..plans.comparison import difference, tolerance_of
from .backend import BackendDescriptor, attempt
from .engines import Engine, execution_plan, heuristic_configs
from .native import operation_graph
from .operations import Graph
from .plan import GraphPlan, VariantPack
from .plan_store import plan_store


class CheckedPlan(GraphPlan):
    """A plan that was imported with ``verify=True``.

    Before its first run, it and another engine compute copies of the operands. If the results differ, the
    plan is dropped, and this object becomes the plan of the other engine.
    """

    __slots__ = ("_key",)

    def __init__(self, graph: Graph, native: BackendDescriptor, candidate: Candidate, key: str) -> None:
        super().__init__(graph, native, candidate)
        self._key = key  # of the store; empty after the check

    def _pack(self, context: Context, workspace: int, *pointers: int) -> VariantPack | BackendDescriptor:
        if self._key:  # the first run: each one with new pointers makes a pack
            if context.capturing:
                raise NotInitializedError(
                    "the first result of an imported plan is to be verified in a call that is captured: make "
                    "the same call once before capturing it"
                )
            self._check(context, pointers)
            self._key = ""
        return super()._pack(context, workspace, *pointers)

    def _check(self, context: Context, pointers: Sequence[int]) -> None:
        other = self._other_engine(context)
        if other is None:
            warn_caller(f"an imported plan is used unverified: no other engine than {self.candidate} exists")
            plan_store().checked(self._key)
            return
        mine = GraphPlan(self._graph, self.native, self.candidate)
        specs = [tensor.spec for tensor in self._graph.operands]
        ours, others = (_results(plan, self._graph, context, pointers) for plan in (mine, other))
        wrong = difference(specs, ours, others, tolerance_of(specs))
        if not wrong:
            plan_store().checked(self._key)
            return
        plan_store().discard(
            self._key, f"its result differs from that of {other.candidate.algorithm}: {wrong}"
        )
        if other.workspace > self.workspace:  # a caller has planned its workspace already
            raise NotSupportedError(f"an imported plan computes wrong results, and was dropped: {wrong}")
        super().__init__(self._graph, other.native, other.candidate)

    def _other_engine(self, context: Context) -> GraphPlan | None:
        """Return the plan of the first other engine that supports the graph; None if there is none."""
        native = operation_graph(self._graph, context)
        number = Engine.parse(self.candidate.algorithm).number
        offers = attempt(list, heuristic_configs(native, context))
        if isinstance(offers, CudnnError):
            return None
        others = [offer for offer in offers if str(offer.engine) != self.candidate.algorithm]
        # The same engine with other knobs comes last: it serves if no other engine exists.
        for offer in sorted(others, key=lambda offer: offer.engine.number == number):
            made = attempt(execution_plan, native, offer.engine, context)
            if isinstance(made, CudnnError):
                continue
            row = Candidate("graph", str(offer.engine), "", offer.workspace, True, notes=offer.notes)
            return GraphPlan(self._graph, made, row)
        return None


def _results(
    plan: GraphPlan, graph: Graph, context: Context, pointers: Sequence[int]
) -> list[np.ndarray[Any, Any]]:
    """Run a plan on copies of all operands, and return the bytes of the copies."""
    stream, buffers, starts = context.stream, [], []
    for tensor, pointer in zip(graph.operands, pointers, strict=True):
        low, high = tensor.spec.extent
        nbytes, offset = _bytes(tensor.spec.dtype, high - low), _bytes(tensor.spec.dtype, low)
        buffer = memories.allocate(nbytes, stream, "a copy of an operand")
        memories.copy_device(buffer.handle, pointer + offset, nbytes, stream)
        buffers.append((buffer, nbytes))
        starts.append(buffer.handle - offset)
    room = memories.allocate(plan.workspace, stream, "a workspace") if plan.workspace else None
    plan.run_in(context, room.handle if room else 0, starts)
    found = []
    for buffer, nbytes in buffers:
        content = np.empty(nbytes, np.uint8)
        memories.copy_to_host(content, buffer.handle, stream)
        found.append(content)
    return found


def _bytes(dtype: str, count: int) -> int:
    """Return the bytes of elements; two of 4 bits share a byte."""
    return count * GRAPH_DTYPES[dtype].itemsize or (count + 1) // 2
