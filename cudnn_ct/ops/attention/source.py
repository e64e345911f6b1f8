"""Candidates of attention: the engines of its graph, and plans that add buffers, lengths and copies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

from ... import _lib
from ...algo_cache import CandidateSource
from ...context import Context
from ...graph.first import first_plan
from ...graph.operations import Graph, Tensor, node
from ...plans.base import Candidate, Plan
from ...plans.elementwise import fill_plan
from ...plans.program import ALPHA, BETA, Program, Step, Steps
from ...plans.workspace import nbytes_of, room_of
from ...plans.wrappers import on_copies
from ...shapes.attention import AttentionProblem
from ...shapes.specs import ALIGNMENT, TensorSpec
from .._graph_source import GraphSource
from .._reduced_source import ReducedSource
from .._sequences import DeviceInts
from .copies import copy_into, copy_out_of, room_of_conversion
from .core import Core, Part, core_of
from .graph import MASKED, graph_of, named_graph

ENGINES = GraphSource(graph_of)
FILLED = "chosen: no query has a key, the results are filled"

_COPIES = {"copy_into": copy_into, "copy_out_of": copy_out_of}

_cores = lru_cache(256)(core_of)  # a call asks for it several times while its plan is made


def _core(problem: AttentionProblem) -> Core:
    return _cores(problem, _lib.load().version)


def _planned(
    engines: CandidateSource, problem: AttentionProblem, candidate: Candidate, context: Context
) -> Plan:
    core = _core(problem)
    product = first_plan(_product_of_lengths(core), context) if core.one_query else None
    made = _with_buffers(engines.plan(core.problem, candidate, context), core, product)
    moves = [(part.spec, part.copy) for part in core.parts]
    outputs = len(problem.results)
    align = not problem.aligned or any(part.offset % ALIGNMENT for part in core.parts)
    inner: Plan = made
    if align or any(part.copy for part in core.parts):
        updated = outputs if core.cleared else 0
        copies = {name: partial(copy, context) for name, copy in _COPIES.items()}
        inner = on_copies(made, moves, outputs, updated, align=align, **copies)
    return _of_parts(inner, core)


SOURCE = ReducedSource(
    ENGINES,
    lambda problem: _core(problem).problem,
    _planned,
    lambda row, problem: _adapted(row, _core(problem)),
    comparable=False,
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


def _with_buffers(inner: Plan, core: Core, product: Plan | None) -> Plan:
    """Return a plan of a graph, with pointers for its buffers in the workspace and for constant lengths.

    ``product`` multiplies the lengths of queries and keys, which replaces the lengths of keys.
    """
    graph, names = named_graph(core.problem)
    order = {part.name: place for place, part in enumerate(core.parts)}
    order.setdefault("page_table_v", order.get("page_table", -1))
    constants = dict(core.constants)
    own = ("sums", "dq_sums", "lengths_kv") if product else ("sums", "dq_sums")
    specs = {name: tensor.spec for name, tensor in zip(names, graph.operands, strict=True) if name in own}
    added = {name: len(core.parts) + number for number, name in enumerate((*specs, *constants))}
    places = tuple((order | added)[name] for name in names)
    if places == tuple(range(len(core.parts))):
        return inner
    steps = [Step(inner, places, ALPHA, BETA)]
    if product is not None:
        steps.insert(0, Step(product, (order["lengths_q"], order["lengths_kv"], added["lengths_kv"])))
    return Program(
        Steps([nbytes_of(spec) for spec in specs.values()], steps),
        constants=[partial(_lengths, value) for value in constants.values()],
        about="{}\n  the end of the keys is masked by lengths" if constants else "{}",
        main=inner,
    )


def _lengths(values: Sequence[int], context: Context) -> DeviceInts:
    return DeviceInts(context.device, values, "lengths")


def _of_parts(inner: Plan, core: Core) -> Plan:
    """Return a plan for parts of the operands; results outside of them are those of queries without keys."""
    offsets = tuple(part.offset for part in core.parts)
    fills = _fills(core) if core.cleared else []
    if not fills and not any(offsets):
        return inner
    return Program(Steps((), [*fills, Step(inner, None, ALPHA, BETA, offsets)]), about="{}", main=inner)


def _fills(core: Core) -> list[Step]:
    return [
        Step(fill_plan(part.whole, MASKED if part.name == "stats" else 0.0), (place,))
        for place, part in enumerate(core.parts)
        if part.written and part.whole.size
    ]


def fills_of(core: Core) -> Program:
    """Return the plan of the results of queries without keys: zeros, and -inf in the statistics."""
    return Program(Steps((), _fills(core)), about=FILLED)
