"""Candidates of attention: the engines of its graph, and plans that add buffers, lengths and copies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

from ... import _lib
from ...algo_cache import CandidateSource
from ...context import Context
from ...graph.first import first_plan
from ...graph.operations import Graph, Tensor, node
from ...plans.base import Candidate, Plan
from ...plans.elementwise import constant_plan
from ...plans.workspace import align_after, nbytes_of, room_of
from ...plans.wrappers import on_copies
from ...shapes.attention import AttentionProblem
from ...shapes.specs import ALIGNMENT, TensorSpec
from .._graph_source import GraphSource
from .._reduced_source import ReducedSource
from .._sequences import DeviceInts
from .copies import copy_into, copy_out_of, room_of_conversion
from .core import Core, Part, core_of
from .graph import MASKED, graph_of, named_graph

__all__ = ["SOURCE", "FillsPlan", "fills_of"]

ENGINES = GraphSource(graph_of)

_COPIES = {"copy_into": copy_into, "copy_out_of": copy_out_of}

_cores = lru_cache(256)(core_of)  # a call asks for it several times while its plan is made


def _core(problem: AttentionProblem) -> Core:
    return _cores(problem, _lib.load().version)


def _planned(
    engines: CandidateSource, problem: AttentionProblem, candidate: Candidate, context: Context
) -> Plan:
    core = _core(problem)
    product = first_plan(_product_of_lengths(core), context) if core.one_query else None
    made = _WithBuffers(engines.plan(core.problem, candidate, context), core, product)
    moves = [(part.spec, part.copy) for part in core.parts]
    outputs = len(problem.results)
    align = not problem.aligned or any(part.offset % ALIGNMENT for part in core.parts)
    inner: Plan = made
    if align or any(part.copy for part in core.parts):
        updated = outputs if core.cleared else 0
        copies = {name: partial(copy, context) for name, copy in _COPIES.items()}
        inner = on_copies(made, moves, outputs, updated, align=align, **copies)
    return _PartsPlan(inner, core)


def _adapted_to(row: Candidate, problem: AttentionProblem) -> Candidate:
    return _adapted(row, _core(problem))


SOURCE = ReducedSource(
    ENGINES, lambda problem: _core(problem).problem, _planned, _adapted_to, comparable=False
)
"""The engines of the graph that `core.core_of` reduces a problem to."""


def _adapted(row: Candidate, core: Core) -> Candidate:
    """Add the workspace of buffers, and what the notes of engines omit: dq is summed in any order."""
    problem = core.problem
    same = problem.dy is None or problem.deterministic or problem.dbias is not None
    room = room_of(
        [
            *_buffers(core),
            *_new_lengths(core),
            *(part.copy or part.spec for part in core.parts if _copied(part, core)),
        ]
    )
    room += sum(room_of_conversion(part.spec, part.copy) for part in core.parts if part.copy)
    return row._replace(workspace=row.workspace + room, deterministic=row.deterministic and same)


def _copied(part: Part, core: Core) -> bool:
    return part.copy is not None or any(one.offset % ALIGNMENT for one in core.parts)


def _buffers(core: Core) -> list[TensorSpec]:
    """Return the buffers that the graph names besides the operands."""
    graph, names = named_graph(core.problem)
    tensors = zip(names, graph.operands, strict=True)
    return [tensor.spec for name, tensor in tensors if name in ("sums", "dq_sums")]


def _new_lengths(core: Core) -> list[TensorSpec]:
    """Return the buffer for lengths of the keys that differ from those of the call."""
    return [TensorSpec.packed((1, 1, core.problem.sizes.batch), "int32")] if core.one_query else []


def _product_of_lengths(core: Core) -> Graph:
    """Return the graph of the keys' lengths of one query, which are 0 for a query behind its length."""
    queries, keys, product = (Tensor(uid, _new_lengths(core)[0]) for uid in (1, 2, 3))
    multiply = node("pointwise", mode="mul", math_prec="float32", xdesc=queries, bdesc=keys, ydesc=product)
    return Graph((multiply,), (queries, keys, product))


class _WithBuffers:
    """A plan of a graph, with pointers for its buffers in the workspace and for constant lengths.

    ``product`` multiplies the lengths of queries and keys, which replaces the lengths of keys.
    """

    __slots__ = ("_constants", "_inner", "_lengths", "_offsets", "_places", "_product", "workspace")

    def __init__(self, inner: Plan, core: Core, product: Plan | None) -> None:
        self._inner, self._product = inner, product
        graph, names = named_graph(core.problem)
        order = {part.name: place for place, part in enumerate(core.parts)}
        order.setdefault("page_table_v", order.get("page_table", -1))
        self._constants: dict[str, Any] = dict(core.constants)
        self._places: list[int | str] = []
        self._offsets: dict[str, int] = {}
        self._lengths = (order.get("lengths_q", -1), order.get("lengths_kv", -1))
        self.workspace = max(inner.workspace, product.workspace if product else 0)
        own = ("sums", "dq_sums", "lengths_kv") if product else ("sums", "dq_sums")
        for name, tensor in zip(names, graph.operands, strict=True):
            added = name in self._constants or name in own
            self._places.append(name if added else order.get(name, name))
            if name in own:
                offset, self.workspace = align_after(self.workspace, nbytes_of(tensor.spec))
                self._offsets[name] = offset

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        base = context.workspace(self.workspace) if self._offsets else 0
        added = {name: base + offset for name, offset in self._offsets.items()}
        for name, value in self._constants.items():
            if not isinstance(value, DeviceInts):
                value = self._constants[name] = DeviceInts(context.device, value, "lengths")
            added[name] = value.on(context, self).pointer
        if self._product is not None:
            lengths = [pointers[place] for place in self._lengths]
            self._product.run(context, (*lengths, added["lengths_kv"]), 1.0, 0.0)
        given = [added[place] if isinstance(place, str) else pointers[place] for place in self._places]
        self._inner.run(context, given, alpha, beta)
        for value in self._constants.values():
            value.keep_until_done(context.stream)

    def describe(self) -> str:
        lines = [self._inner.describe()]
        lines += ["  the end of the keys is masked by lengths"] if self._constants else []
        return "\n".join(lines)


class _PartsPlan:
    """A plan for parts of the operands; results outside the parts are those of queries without keys."""

    __slots__ = ("_fills", "_inner", "_offsets", "workspace")

    def __init__(self, inner: Plan, core: Core) -> None:
        self._inner = inner
        self._offsets = tuple(part.offset for part in core.parts)
        self._fills = fills_of(core) if core.cleared else None
        self.workspace = inner.workspace

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        if self._fills is not None:
            self._fills.run(context, pointers, 1.0, 0.0)
        parts = [pointer + offset for pointer, offset in zip(pointers, self._offsets, strict=True)]
        self._inner.run(context, parts, alpha, beta)

    def describe(self) -> str:
        return self._inner.describe()


def fills_of(core: Core) -> FillsPlan:
    """Return the plan of the results of queries without keys: zeros, and -inf in the statistics."""
    return FillsPlan(
        (place, constant_plan(part.whole, MASKED if part.name == "stats" else 0.0))
        for place, part in enumerate(core.parts)
        if part.written and part.whole.size
    )


class FillsPlan:
    """Writes the results of queries without keys, by plans and the places of what they fill."""

    __slots__ = ("_fills",)
    workspace = 0

    def __init__(self, fills: Iterable[tuple[int, Plan]]) -> None:
        self._fills = tuple(fills)

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:  # noqa: ARG002
        for place, fill in self._fills:
            fill.run(context, (pointers[place],), 1.0, 0.0)

    def describe(self) -> str:
        return "chosen: no query has a key, the results are filled"
