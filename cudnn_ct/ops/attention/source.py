"""Candidates of attention: engines of its graph, plans that add buffers, lengths and copies; padding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

from ... import _lib
from ...algo_cache import CandidateSource
from ...context import Context
from ...errors import NotSupportedError
from ...graph.offline import target_of
from ...graph.operations import Graph
from ...plans.base import Candidate, Plan
from ...plans.elementwise import copy_plan, expand_plan, fill_plan, op_tensor_of
from ...plans.program import ALPHA, BETA, NO_STEP, Program, Step, Steps, chained, nbytes_of, room_of
from ...plans.wrappers import on_copies
from ...shapes.attention import AttentionProblem, like_axes
from ...shapes.attention_rules import PaddingProblem
from ...shapes.specs import ALIGNMENT, TensorSpec, equivalent_strides, results_of
from ...shapes.tensor import ReduceProblem
from .._formulas import (
    Formulas,
    Matrix,
    Term,
    cast_by_graph,
    cast_or_copy,
    elementwise_graph,
    first_plan,
    formula_graph,
    pointwise,
)
from .._graph_source import GraphSource, ReducedSource
from .._state import DeviceNumbers
from ..reduce.plans import reduce_plan
from ..reduce.reduce import reduction_by_formulas
from .core import Core, core_of
from .graph import MASKED, graph_of, named_graph

# --- copies that kernels of attention read or write instead of an operand: other strides, sizes or dtypes --


def copy_into(context: Context, spec: TensorSpec, copy: TensorSpec) -> Plan:
    """Return the plan that writes the copy of an operand.

    Axes of length 1 are repeated, longer ones are filled up with zeros. A mask becomes 0 where it is True and
    -inf elsewhere.
    """
    if spec.dtype == copy.dtype and spec.shape == copy.shape:
        return copy_plan(spec, copy)
    temporaries, steps, source = [], [], 0
    if spec.dtype != copy.dtype:
        converted = TensorSpec.packed(spec.shape, copy.dtype)
        if spec.dtype == "bool":
            # The logarithms of 1 and 0. A bool is a byte, which engines read as int8 only.
            convert: Plan = cast_by_graph(spec._replace(dtype="int8"), converted, context, "log")
        else:
            convert = cast_or_copy(spec, converted, context)
        steps, source = [Step(convert, (0, 2))], 2
        temporaries, spec = [converted], converted
    if grown := _grown(spec, copy):
        steps.append(Step(fill_plan(copy, 0.0), (1,)))
    if any(spec.shape[axis] == 1 for axis in grown):
        if _lib.load().lacks("ops"):
            sizes = [n if one == 1 else one for one, n in zip(spec.shape, copy.shape, strict=True)]
            steps.append(Step(expand_plan(spec, copy._replace(shape=tuple(sizes))), (source, 1)))
        else:
            steps.append(Step(op_tensor_of("add", copy, spec, copy), (1, source, 1)))
    else:
        steps.append(Step(copy_plan(spec, copy._replace(shape=spec.shape)), (source, 1)))
    return chained(temporaries, steps, scaled=NO_STEP)


def copy_out_of(context: Context, copy: TensorSpec, spec: TensorSpec) -> Plan:
    """Return the plan that writes a result from its copy: repeated axes are summed, in float32."""
    grown = _grown(spec, copy)
    if not any(spec.shape[axis] == 1 for axis in grown):
        return cast_or_copy(copy._replace(shape=spec.shape), spec, context)
    terms, sums = TensorSpec.packed(copy.shape), TensorSpec.packed(spec.shape)
    reduction = reduction_by_formulas if _lib.load().lacks("ops") else reduce_plan
    if (add := reduction(ReduceProblem(terms, sums, None, grown, "add", True), context)) is None:
        raise NotSupportedError(f"no graphs sum the gradient of the bias over axes {grown}")
    first, last = cast_or_copy(copy, terms, context), cast_or_copy(sums, spec, context)
    steps = [Step(first, (0, 2)), Step(add, (2, 3)), Step(last, (3, 1))]
    return chained([terms, sums], steps, scaled=NO_STEP)


def room_of_conversion(spec: TensorSpec, copy: TensorSpec) -> int:
    """Return an upper bound of the bytes that these plans need besides the copy."""
    if spec.dtype == copy.dtype and spec.shape == copy.shape:
        return 0
    return 2 * room_of([TensorSpec.packed(one.shape) for one in (spec, copy)])


def _grown(spec: TensorSpec, copy: TensorSpec) -> tuple[int, ...]:
    """Return the axes along which a copy is longer than its operand."""
    return tuple(axis for axis, size in enumerate(spec.shape) if size != copy.shape[axis])


# --- candidates --------------------------------------------------------------------------------------------

ENGINES = GraphSource(graph_of)
_BUFFERS = ("sums", "dq_sums")  # memory between the kernels of a gradient
FILLED = "chosen: no query has a key, the results are filled"

_COPIES = {"copy_into": copy_into, "copy_out_of": copy_out_of}

_cores = lru_cache(256)(core_of)  # a call asks for it several times while its plan is made


def _core(problem: AttentionProblem) -> Core:
    return _cores(problem, target_of(None).version)


def _planned(
    engines: CandidateSource, problem: AttentionProblem, candidate: Candidate, context: Context
) -> Plan:
    core = _core(problem)
    lengths = _new_lengths(core) * 3  # of the keys of one query, which are 0 for a query behind its length
    product = first_plan(elementwise_graph("mul", *lengths), context) if core.one_query else None
    made = _with_buffers(engines.plan(core.problem, candidate, context), core, product)
    moves = [(part.spec, part.copy) for part in core.parts]
    outputs = len(results_of(problem))
    align = not problem.aligned or any(part.offset % ALIGNMENT for part in core.parts)
    inner: Plan = made
    if align or any(part.copy for part in core.parts):
        updated = outputs if core.cleared else 0
        copies = {name: partial(copy, context) for name, copy in _COPIES.items()}
        inner = on_copies(made, moves, outputs, updated, align=align, **copies)
    offsets = tuple(part.offset for part in core.parts)
    fills = _fills(core) if core.cleared else []
    if not fills and not any(offsets):
        return inner
    return Program(Steps((), [*fills, Step(inner, None, ALPHA, BETA, offsets)]), about="{}", main=inner)


def _adapted(row: Candidate, given: AttentionProblem) -> Candidate:
    """Add the workspace of buffers, and what the notes of engines omit: dq is summed in any order."""
    core = _core(given)
    problem = core.problem
    same = problem.dy is None or problem.deterministic or problem.dbias is not None
    misaligned = any(part.offset % ALIGNMENT for part in core.parts)
    graph, names = named_graph(problem)
    buffers = [tensor.spec for name, tensor in zip(names, graph.operands, strict=True) if name in _BUFFERS]
    copies = [part.copy or part.spec for part in core.parts if part.copy or misaligned]
    room = room_of([*buffers, *_new_lengths(core), *copies])
    room += sum(room_of_conversion(part.spec, part.copy) for part in core.parts if part.copy)
    return row._replace(workspace=row.workspace + room, deterministic=row.deterministic and same)


SOURCE = ReducedSource(ENGINES, lambda problem: _core(problem).problem, _planned, _adapted, comparable=False)
"""The engines of the graph that `core.core_of` reduces a problem to."""


def _new_lengths(core: Core) -> list[TensorSpec]:
    """Return the buffer for lengths of the keys that differ from those of the call."""
    return [TensorSpec.packed((1, 1, core.problem.sizes.batch), "int32")] if core.one_query else []


def _with_buffers(inner: Plan, core: Core, product: Plan | None) -> Plan:
    """Return a plan of a graph, with pointers for its buffers in the workspace and for constant lengths.

    ``product`` multiplies the lengths of queries and keys, which replaces the lengths of keys.
    """
    graph, names = named_graph(core.problem)
    order = {part.name: place for place, part in enumerate(core.parts)}
    order.setdefault("page_table_v", order.get("page_table", -1))
    constants = dict(core.constants)
    own = (*_BUFFERS, "lengths_kv") if product else _BUFFERS
    specs = {name: tensor.spec for name, tensor in zip(names, graph.operands, strict=True) if name in own}
    added = {name: len(core.parts) + number for number, name in enumerate((*specs, *constants))}
    places = tuple((order | added)[name] for name in names)
    if places == tuple(range(len(core.parts))):
        return inner
    steps = [Step(inner, places, ALPHA, BETA)]
    if product is not None:
        steps.insert(0, Step(product, (order["lengths_q"], order["lengths_kv"], added["lengths_kv"])))
    room = [*map(nbytes_of, specs.values())]
    numbers = [partial(_numbers, one, "lengths", "int32") for one in constants.values()]
    about = "{}\n  the end of the keys is masked by lengths" if constants else "{}"
    return Program(Steps(room, steps), constants=numbers, about=about, main=inner)


def _numbers(values: Sequence[int], name: str, dtype: str, context: Context) -> DeviceNumbers:
    return DeviceNumbers(context.device, values, name, dtype)


def _fills(core: Core) -> list[Step]:
    return [
        Step(fill_plan(part.whole, MASKED if part.name == "stats" else 0.0), (place,))
        for place, part in enumerate(core.parts)
        if part.written and part.whole.size
    ]


def fills_of(core: Core) -> Program:
    """Return the plan of the results of queries without keys: zeros, and -inf in the statistics."""
    return Program(Steps((), _fills(core)), about=FILLED)


# --- zeros behind the lengths of padded sequences ----------------------------------------------------------


def clearing_plan(problem: PaddingProblem, context: Context, *, by_driver: bool = False) -> Program:
    """Return the plan of a selection of x or 0, by the number of rows that are left in a sequence."""
    # Without legacy calls, the driver repeats the lengths and the places of rows, and a graph subtracts them.
    x, y = problem.x, problem.y
    batch, heads, length, head = x.shape
    dense = like_axes(x.shape, x)
    steps_of_rows = tuple(step // head for step in dense.strides[:3])
    left = TensorSpec((batch, heads, length, 1), (*steps_of_rows, 1), "float32")
    left_of_each = dense._replace(dtype="float32")
    lengths, floats = (TensorSpec.packed((batch, 1, 1, 1), dtype) for dtype in ("int32", "float32"))
    places = TensorSpec.packed((1, 1, length, 1))
    x_in_place, y_in_place = (equivalent_strides(x.shape, one.strides, dense.strides) for one in (x, y))
    # The pointers of a run are x, lengths, y; those of temporaries follow, then the places of rows.
    source, target = (0 if x_in_place else 6), (2 if y_in_place else 7)
    rows = batch * heads * length
    if by_driver:
        repeated = [Step(expand_plan(floats, left), (3, 4)), Step(expand_plan(places, left), (9, 8))]
        one = Formulas(Matrix(1, rows, "columns"), 2, context)
        one.store(one.tensor(0, "float32") - one.tensor(1, "float32"), 0, "float32")
        numbers = [*repeated, Step(one.program(), (4, 8))]
    else:
        numbers = [
            Step(fill_plan(left, 0.0), (4,)),
            Step(op_tensor_of("add", left, floats, left), (4, 3, 4)),
            Step(op_tensor_of("add", left, places, left, alpha2=-1.0), (4, 8, 4)),
        ]
    steps = [
        Step(cast_by_graph(lengths, floats, context), (1, 3)),
        *numbers,
        Step(expand_plan(left, left_of_each), (4, 5)),
        Step(first_plan(selection_graph(rows, head, x.dtype), context), (source, 5, target)),
    ]
    steps[:0] = [] if x_in_place else [Step(copy_plan(x, dense), (0, 6))]
    steps += [] if y_in_place else [Step(copy_plan(dense, y), (7, 2))]
    temporaries = [floats, left, left_of_each, dense, dense, *[left] * by_driver]
    numbers_of_rows = partial(_numbers, range(length), "places of rows", "float32")
    return Program(Steps(temporaries, steps), constants=[numbers_of_rows])


def selection_graph(rows: int, head: int, dtype: str) -> Graph:
    """Return the graph that keeps elements of x for which the number of rows that are left is positive."""

    # Engines do not repeat a column that the graph computes: the numbers are repeated before.
    def kept(x: Term, left: Term) -> Term:
        return pointwise("binary_select", x, 0.0, pointwise("cmp_gt", left, 0.0, dtype="bool"))

    x, left = (TensorSpec.packed((1, rows, head), one) for one in (dtype, "float32"))
    return formula_graph(kept, x, left, x)
