"""Execution plans from the store: how they are found, checked, read back by cuDNN, and stored."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from .. import errors
from .._bindings.enums import DataType
from ..context import Context
from ..cuda import memory as memories
from ..dtypes import GRAPH_DTYPES
from ..errors import AllocationError, CudnnError, ExecutionFailedError, NotInitializedError, NotSupportedError
from ..facts import digest
from ..plans.base import Candidate, difference, tolerance_of
from . import plan_store as stores
from .attributes import graph_text
from .engines import Engine, execution_plan, heuristic_configs, plan_to_json
from .native import operation_graph
from .offline import Planner, ShapesOnly, gpu_name, name_of_description, target
from .operations import Graph, tensors_of_graph
from .plan import BackendDescriptor, GraphPlan, VariantPack, attempt
from .plan_store import PlanStore, StoredPlan
from .recording import PlanRequest, active, record

CompiledPlan = tuple[BackendDescriptor, Candidate]
"""A native execution plan, and its engine."""


def plan_key(request: PlanRequest, context: Context | Planner) -> str:
    """Return all that a plan depends on, as text: that of a graph has all strides and attributes."""
    if request.order is not None:
        how = f"first of {request.order} by facts {digest()}"
    else:
        how = f"{request.engine} without {sorted(request.rules.excluded)}"
    return f"plan | {context.library.build} | {gpu_name(context)} | {how} | {graph_text(request.graph)}"


def graph_plan(
    request: PlanRequest,
    context: Context | Planner | ShapesOnly,
    make: Callable[[], CompiledPlan],
    *,
    compiled: bool,
    select: Callable[[CompiledPlan], CompiledPlan] | None = None,
) -> GraphPlan:
    """Return a plan from the store, or make it and store it if its engine is ``compiled`` at run time.

    If the request names no engine, the engine of a plan that was compiled for a described device may not be
    the one that this device selects. ``select`` takes such a plan, and returns it or that of another engine.

    While plans are recorded, those of all engines are recorded. Without ``config.plan_cache``, imported plans
    and a recording, the plan is made as if no store existed.
    """
    if isinstance(context, ShapesOnly):
        record(request)
        return cast(GraphPlan, NoPlan())
    if isinstance(context, Planner) or not (stores.uses_plans(compiled) or active()):
        return GraphPlan(request.graph, *make())
    store = stores.plan_store()

    def made() -> CompiledPlan:
        plan = make()
        if not stores.is_timing():
            _save(store, request, *plan, context)
        return plan

    if request.graph.dynamic:  # its plan cannot be stored, but its kernels
        return GraphPlan(request.graph, *made())
    key = plan_key(request, context)
    used = stores.key_here(store, key, context)
    found = _load(store, used, request, context, select)
    if found is None and compiled and not stores.is_timing():
        with store.lock(key) as waited:
            used = stores.key_here(store, key, context)
            found = _load(store, used, request, context, select) if waited else made()
    found = found or made()  # not in turns if another GPU of the kind has compiled kernels of its own
    if store.needs_check(used):
        return CheckedPlan(request.graph, *found, used)
    return GraphPlan(request.graph, *found)


class NoPlan:
    """Replaces a plan where no GPU is: it cannot run."""

    workspace = 0

    def describe(self) -> str:
        return "not planned: only shapes are recorded"


def choice_key(context: Context | Planner, problem: str, limits: Mapping[str, Any]) -> str:
    """Return all that the heuristic choice of an engine for a problem depends on, as text."""
    text = json.dumps(dict(limits), sort_keys=True)
    package = sys.modules[__name__.partition(".")[0]]  # its next version may order engines in another way
    made_by = f"cudnn_ct {package.__version__} facts {digest()} | {context.library.build}"
    return f"choice | {made_by} | {gpu_name(context)} | {problem} | {text}"


def choice_entry(
    context: Context | Planner, problem: str, limits: Mapping[str, Any], row: Candidate
) -> StoredPlan:
    """Return the choice of an engine for the store."""
    return StoredPlan(choice_key(context, problem, limits), _facts(row, context))


def _facts(candidate: Candidate, context: Context | Planner, call: str = "") -> dict[str, Any]:
    row = candidate._replace(problem=None, time_ms=None)._asdict()
    origin = stores.DESCRIPTION if isinstance(context, Planner) else stores.DEVICE
    return {"candidate": row, "origin": origin, **({"call": call} if call else {})}


def to_store(
    request: PlanRequest, native: BackendDescriptor, candidate: Candidate, context: Context | Planner
) -> StoredPlan | str:
    """Return a plan for the store; the reason if it cannot be stored."""
    # cuDNN 9.28 omits the tensors of sub-graphs and ragged offsets from the JSON of a plan. A plan of a
    # dynamic graph shares compiled kernels with other plans, which are stored in its place.
    facts = _facts(candidate, context, request.call or str(errors.caller()))
    if request.graph.dynamic:
        cache = operation_graph(request.graph, context).kernel_cache
        if isinstance(context, Planner):
            cache.stored = 0  # each request that is compiled for a file has an entry
        kernels = cache.entry(facts)
        return (
            kernels and stores.marked(kernels, context)
        ) or f"the kernels of {candidate} are not stored: there are no new ones, or cuDNN is too old"
    try:
        text = plan_to_json(native)
        wrong = _difference(json.loads(text), request, candidate, context)
    except (CudnnError, ValueError, KeyError, TypeError) as error:  # cuDNN < 9.8, and some engines
        return f"cuDNN cannot write the plan of {candidate}: {type(error).__name__} {error}"
    if wrong:
        return f"cuDNN's JSON of the plan of {candidate} is incomplete: {wrong}"
    return stores.marked(StoredPlan(plan_key(request, context), facts, text.encode()), context)


def candidate_from_json(row: dict[str, Any]) -> Candidate:
    """Return a candidate that was stored without its problem; raise TypeError or ValueError if malformed."""
    made = Candidate(**row)
    for value, kind in zip(made[:5], (str, str, str, int, bool), strict=True):
        if not isinstance(value, kind):
            raise TypeError(f"got {value!r}, expected {kind.__name__}")
    return made._replace(
        relayout=tuple((str(operand), str(layout)) for operand, layout in made.relayout),  # type: ignore[misc]  # `plan` checks the layouts
        notes=tuple(map(str, made.notes)),
        rejected=str(made.rejected),
        problem=None,
    )


def read_back(entry: StoredPlan, request: PlanRequest, context: Context | Planner) -> CompiledPlan | str:
    """Return the native plan of an entry; the reason if it must not be used for a graph."""
    try:
        candidate = candidate_from_json(entry.facts["candidate"])
        wrong = _difference(json.loads(entry.text), request, candidate, context)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        wrong = f"it is malformed: {type(error).__name__} {error}"
    if wrong := wrong or stores.why_elsewhere(entry.text, entry.facts, context):
        return wrong
    device = target(context, "execution_plan")
    try:
        native = BackendDescriptor(
            context.library, "execution_plan", **device, json_representation=entry.text
        )
    except (AllocationError, ExecutionFailedError):
        raise
    except CudnnError as error:
        return f"cuDNN cannot load it: {error}"
    return native, candidate


def _load(
    store: PlanStore,
    key: str,
    request: PlanRequest,
    context: Context,
    select: Callable[[CompiledPlan], CompiledPlan] | None,
) -> CompiledPlan | None:
    """Return the plan for a key, or the one that this device selects instead; None if none may be used."""
    entry = store.get(key)
    if entry is None:
        return None
    found = read_back(entry, request, context)
    if isinstance(found, str):
        store.discard(key, found)
        return None
    if select is not None and not entry.from_device:
        found, entry = _selected(store, entry, found, request, context, select)
    record(request._replace(engine=found[1].algorithm), *filter(None, [entry]))
    return found


def _selected(
    store: PlanStore,
    entry: StoredPlan,
    stored: CompiledPlan,
    request: PlanRequest,
    context: Context,
    select: Callable[[CompiledPlan], CompiledPlan],
) -> tuple[CompiledPlan, StoredPlan | None]:
    """Return the plan of the engine that this device selects, and store it in place of an entry."""
    made = select(stored)
    if made is stored:
        mine: StoredPlan | str = entry._replace(facts={**entry.facts, "origin": stores.DEVICE})
    else:
        mine = to_store(request, *made, context)
    if isinstance(mine, str):
        return made, None
    if not stores.is_timing():
        store.replace(entry.key, mine, verify=made is stored and store.needs_check(entry.key))
    return made, mine


def _save(
    store: PlanStore, request: PlanRequest, native: BackendDescriptor, candidate: Candidate, context: Context
) -> None:
    """Store a plan that was made, if its engine took long to compile."""
    recorded = active()
    if not (recorded or (candidate.compiled and store.path is not None)):
        return
    entry = to_store(request, native, candidate, context)
    if candidate.compiled and isinstance(entry, StoredPlan) and store.path is not None:
        store.put(entry)
    if recorded:
        plans = [entry] if isinstance(entry, StoredPlan) else []
        record(request._replace(engine=candidate.algorithm), *plans)


def _difference(
    written: dict[str, Any], request: PlanRequest, candidate: Candidate, context: Context | Planner
) -> str:
    """Return in which point cuDNN's JSON of a plan is not for this call; empty if it is."""
    if request.engine not in ("", candidate.algorithm):
        return f"it has {candidate.algorithm}, expected {request.engine}"
    version = written["cudnnVersion"]
    if version != context.library.version:
        have = errors.format_version(context.library.version)
        return f"it was compiled by cuDNN {errors.format_version(version)}, this is {have}"
    device = written.get("GPUProfile")
    if device is not None and name_of_description(device) != gpu_name(context):
        return f"it was compiled for {name_of_description(device)}, this is {gpu_name(context)}"
    number = Engine.parse(candidate.algorithm).number
    if written["engine"]["engineId"] != number:
        return f"it has engine {written['engine']['engineId']}, expected {number}"
    tensors = {str(tensor["name"]): tensor for tensor in written["operationGraph"]["tensors"]}
    for uid, tensor in tensors_of_graph(request.graph).items():
        found, spec = tensors.get(str(uid)), tensor.spec
        if found is None:
            if tensor.virtual:
                continue
            return f"it has no tensor {uid}, expected {spec}"
        dtype = int(DataType[found["dataType"].removeprefix("CUDNN_DATA_")])
        given = (tuple(found["dim"]), tuple(found["stride"]), dtype, bool(found["isVirtual"]))
        if given != (spec.shape, spec.strides, GRAPH_DTYPES[spec.dtype].code, tensor.virtual):
            return f"its tensor {uid} has shape {given[0]} and strides {given[1]}, expected {spec}"
    return ""


# --- the first result of an imported plan, compared with that of another engine -----------------------------


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
            errors.warn_caller(
                f"an imported plan is used unverified: no other engine than {self.candidate} exists"
            )
            stores.plan_store().checked(self._key)
            return
        mine = GraphPlan(self._graph, self.native, self.candidate)
        specs = [tensor.spec for tensor in self._graph.operands]
        ours, others = (_results(plan, self._graph, context, pointers) for plan in (mine, other))
        wrong = difference(specs, ours, others, tolerance_of(specs))
        if not wrong:
            stores.plan_store().checked(self._key)
            return
        stores.plan_store().discard(
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
