"""Compare the first result of an engine with a second opinion, and find the right one if they differ.

The second opinion is another engine of the same graph; the same graph node by node decides, or is the second
opinion of a graph that one engine alone supports. All of them write to temporary memory: the caller's arrays
see the one run that follows. The host reads their results, so a first call waits for its stream, as it waits
for the compilation of the other engine: the alternative is to return a result that is known to be wrong a
call later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._algorithm_names import is_engine
from .._config import config
from ..autotune.benchmark import ScratchResults, comparable
from ..context import Context
from ..cuda import memory as memories
from ..dtypes import GRAPH_DTYPES
from ..errors import AllocationError, CudnnError, NotSupportedError, warn_caller
from ..graph.attributes import graph_to_json
from ..graph.candidates import first_engine
from ..graph.engines import Engine
from ..graph.operations import Graph, Node, Tensor, mapped_graph, tensors_of_graph
from ..graph.plan import GraphPlan, attempt
from ..graph.plan_store import timing
from ..graph.recording import PlanRequest
from ..plans.base import NODE_BY_NODE, TOLERANCE, Bytes, Candidate, Plan, difference
from ..plans.elementwise import cast_plan
from ..plans.program import ALPHA, BETA, Program, Step, Steps, nbytes_of
from ..shapes.specs import TensorSpec
from .certificates import Certificate, certificate_key, find, keep, structure_of

# --- when two implementations of a graph agree: tolerances, and nodes that magnify roundings ---------------

# Pointwise modes that are not continuous, or have poles: a rounding of an operand may change a few results by
# any amount.
ROUGH = {
    *("ceil", "floor", "round", "mod", "div", "reciprocal", "rsqrt", "log", "tan", "exp", "pow"),
    *("binary_select", "relu_bwd", "gen_index", "logical_and", "logical_or", "logical_not", "atan2"),
}
PREFIX_OF_COMPARISONS = "cmp_"
FEW, SHARE = 2, 0.02  # elements, and part of the elements of a result, that rough nodes may change


def difference_of_graphs(
    graph: Graph,
    specs: Sequence[TensorSpec],
    ours: Sequence[Bytes],
    others: Sequence[Bytes],
    tolerance: float,
) -> str:
    """Return how two results of a graph differ; empty if they agree.

    Elements agree within ``tolerance``, relative to the largest magnitude, and NaN and infinity by their
    class and place. Behind a rough node, a small share of the elements may differ.
    """
    wrong = difference(specs, ours, others, tolerance)
    if not wrong or not _is_rough(graph):
        return wrong
    few = all(_few(spec, a, b, tolerance) for spec, a, b in zip(specs, ours, others, strict=True))
    return "" if few else wrong


def _is_rough(graph: Graph) -> bool:
    modes = [str(node.attributes.get("mode", "")) for node in graph.nodes]
    indexed = any("idxdesc" in node.attributes for node in graph.nodes)
    return indexed or any(mode in ROUGH or mode.startswith(PREFIX_OF_COMPARISONS) for mode in modes)


def _few(spec: TensorSpec, ours: Bytes, others: Bytes, tolerance: float) -> bool:
    """Return whether no more elements differ than a rough node may change."""
    if spec.dtype not in TOLERANCE:
        same = ours == others
    else:
        with np.errstate(all="ignore"):
            x, y = (one.view(GRAPH_DTYPES[spec.dtype].numpy).astype(np.float64) for one in (ours, others))
            scale = np.max(np.abs(y[np.isfinite(y)]), initial=0)
            same = (x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= tolerance * scale)
    return bool(np.sum(~same) <= max(FEW, SHARE * same.size))


# --- opinions ----------------------------------------------------------------------------------------------

SAMPLES = 64  # parts of a large result that are compared, of 64 KiB each
FREE = 2  # temporary memory is taken from the free memory up to this part of it

# Threads with the same new structure: one compares, the others find its certificate.
_certifying = threading.RLock()


class Outcome(NamedTuple):
    """How a comparison ended: a line for ``describe()``, and the plan that replaces the losing one, if
    any."""

    note: str
    winner: tuple[Candidate, Plan] | None = None


class Opinions(NamedTuple):
    """The call that a comparison belongs to."""

    problem: Any
    graph: Graph  # the native graph of the problem
    plan_of: Callable[[Candidate], Plan]
    others: Callable[[], Any]  # yields the candidates that may run
    reject: Callable[[Candidate, str], object]  # rejects one for all threads, with a reason

    def key(self, row: Candidate, context: Context) -> str:
        """Return the key of the certificate for a candidate."""
        return certificate_key(context, row.algorithm, structure_of(self.graph))

    def compare(self, row: Candidate, plan: Plan, context: Context, pointers: Sequence[int]) -> Outcome:
        """Compare the result of a candidate for operands with a second opinion, unless it has a
        certificate."""
        if reason := _why_not(self.problem, self.graph, context):
            return Outcome(f"not certified: {reason}")
        key = self.key(row, context)
        with _certifying:
            known = find(key)
            if known is not None and known.verdict == "right":
                return Outcome(f"certified: {known.finding}")
            try:
                return _Comparison(self, row, plan, context, pointers).outcome(key)
            except AllocationError as error:
                return Outcome(f"not certified: {error}")
            finally:
                context.drop_workspace()  # the largest of all would stay


def known_wrong(graph: Graph, row: Candidate, context: Context) -> str:
    """Return why a candidate is known to be wrong for the structure of a graph; empty if it is not."""
    known = find(certificate_key(context, row.algorithm, structure_of(graph)))
    return known.finding if known is not None and known.verdict == "wrong" else ""


class _Comparison:
    """One comparison, with its temporary memory and its time limit."""

    def __init__(
        self, given: Opinions, row: Candidate, plan: Plan, context: Context, pointers: Sequence[int]
    ) -> None:
        self._given, self._row, self._plan, self._context = given, row, plan, context
        self._deadline = time.monotonic() + config.certify_seconds
        self._check_memory(plan)
        self._scratch = ScratchResults(given.problem, pointers, context.stream, samples=SAMPLES)

    def outcome(self, key: str) -> Outcome:
        """Compare, keep certificates, and return the outcome."""
        ours = attempt(self._results, self._plan)
        if isinstance(ours, CudnnError):  # the run that follows fails likewise, and takes another candidate
            return Outcome("")
        for other, plan, theirs in self._others():
            if not (wrong := self._difference(ours, theirs)):
                return self._certified(key, ours, other.algorithm)
            return self._decided(key, ours, other, plan, theirs, wrong)
        if self._late():
            return Outcome(f"not certified: no second opinion within {config.certify_seconds:g} s")
        return self._alone(key, ours)

    def _alone(self, key: str, ours: list[Bytes]) -> Outcome:
        """Compare with the nodes one by one, because no other engine supports the graph."""
        found = attempt(self._node_by_node)
        if isinstance(found, CudnnError):
            return Outcome(f"not certified: no other engine supports the graph, nor its nodes: {found}")
        plan, right = found
        if not (wrong := self._difference(ours, right)):
            return self._certified(key, ours, NODE_BY_NODE)
        self._lost(self._row, wrong, NODE_BY_NODE)
        return Outcome(f"computed node by node: {wrong}", (nodewise_candidate(), plan))

    def _decided(
        self, key: str, ours: list[Bytes], other: Candidate, plan: Plan, theirs: list[Bytes], wrong: str
    ) -> Outcome:
        """Return the outcome of a difference, after the nodes one by one have decided."""
        try:
            third, right = self._node_by_node()
        except CudnnError as error:
            warn_caller(
                f"{self._row.algorithm} and {other.algorithm} of cuDNN compute different results for a "
                f"{self._given.problem}: {wrong}; a third opinion is not available ({error})"
            )
            return Outcome(f"not certified: its result differs from that of {other.algorithm}: {wrong}")
        own, others = self._difference(ours, right), self._difference(theirs, right)
        if not own and others:
            self._lost(other, others, NODE_BY_NODE)
            return self._certified(key, ours, NODE_BY_NODE)
        if own and not others:
            self._lost(self._row, own, f"{other.algorithm} and {NODE_BY_NODE}")
            found = Certificate("right", f"agrees with {NODE_BY_NODE}")
            keep(self._given.key(other, self._context), found)
            return Outcome(f"certified: {found.finding}", (other, plan))
        if own and others:
            self._lost(self._row, own, NODE_BY_NODE)
            self._lost(other, others, NODE_BY_NODE)
            return Outcome(f"computed node by node: {own}", (nodewise_candidate(), third))
        return Outcome(f"not certified: its result differs from that of {other.algorithm}: {wrong}")

    def _certified(self, key: str, results: list[Bytes], by: str) -> Outcome:
        if not _says_something(self._scratch.specs, results):
            return Outcome(f"not certified: its result agrees with {by}, but has one value alone")
        found = Certificate("right", f"agrees with {by}")
        keep(key, found)
        return Outcome(f"certified: {found.finding}")

    def _lost(self, row: Candidate, wrong: str, by: str) -> None:
        """Reject a candidate for the structure, in this process and in later ones, with one warning."""
        finding = f"its result differs from that of {by}: {wrong}"
        key = self._given.key(row, self._context)
        keep(key, Certificate("wrong", finding), graph=graph_to_json(self._given.graph))
        self._given.reject(row, finding)
        warn_caller(
            f"{row.algorithm} of cuDNN computes a wrong result for a {self._given.problem} and is not used "
            f"for such graphs: {finding}. `cudnn-ct report` writes a file that describes it"
        )

    def _others(self) -> Iterator[tuple[Candidate, Plan, list[Bytes]]]:
        """Yield candidates with another engine that run in time, with their plans and results."""
        # The same engine with other knobs would make the same errors.
        own = Engine.parse(self._row.algorithm).number
        for row in self._given.others():
            if not is_engine(row.algorithm) or Engine.parse(row.algorithm).number == own:
                continue
            if self._late():
                return
            try:
                with timing():  # its plan is not stored: it may never run again
                    plan = self._given.plan_of(row)
                self._check_memory(plan)
                results = self._results(plan)
            except AllocationError:
                raise
            except CudnnError:  # engines that are offered may fail to compile or to launch
                continue
            yield row, plan, results

    def _node_by_node(self) -> tuple[Plan, list[Bytes]]:
        plan = self._given.plan_of(nodewise_candidate())
        return plan, self._results(plan)

    def _results(self, plan: Plan) -> list[Bytes]:
        run = plan.run
        return self._scratch.computed_by(lambda: run(self._context, self._scratch.pointers, 1.0, 0.0))

    def _difference(self, ours: list[Bytes], theirs: list[Bytes]) -> str:
        scratch = self._scratch
        return difference_of_graphs(self._given.graph, scratch.specs, ours, theirs, scratch.tolerance)

    def _late(self) -> bool:
        return time.monotonic() > self._deadline

    def _check_memory(self, plan: Plan) -> None:
        """Raise AllocationError if results and a workspace do not fit in a part of the free memory."""
        needed = plan.workspace + sum(spec.size * 8 for spec in self._given.problem.results)
        free, _ = memories.memory_info(self._context.device)
        if needed > free // FREE:
            raise AllocationError(f"a comparison needs {needed:,} bytes, and {free:,} are free")


def _why_not(problem: Any, graph: Graph, context: Context) -> str:
    """Return why results are not compared; empty if they may be."""
    if context.capturing:
        return "the first call was captured"
    if not comparable(problem):
        return "its results are random"
    if len(graph.nodes) < 2 and config.certify != "all":
        return "the graph has one node"
    return ""


def _says_something(specs: Sequence[Any], results: list[Bytes]) -> bool:
    """Return whether a comparison can find an error: whether some result has two elements that differ."""
    for spec, content in zip(specs, results, strict=True):
        size = max(len(content) // max(spec.size, 1), 1) if spec.size else 1
        rows = content[: len(content) // size * size].reshape(-1, size)
        if spec.size == 1 or not np.array_equal(rows[0], rows[-1]) or bool((rows != rows[0]).any()):
            return True
    return False


# --- a graph node by node: slow, and independent of engines that fuse nodes --------------------------------

HALF = ("float16", "bfloat16")


def nodewise_candidate() -> Candidate:
    """Return the candidate whose plan is a :func:`nodewise_plan`."""
    return Candidate("graph", NODE_BY_NODE, "fma", 0, True)


def nodewise_plan(graph: Graph, results: int, context: Context) -> Program:
    """Return a program that computes each node of a graph by a plan of its own.

    Tensors in half precision are float32 in the workspace: operands are converted first, results last.
    Virtual tensors are in the workspace too.
    """
    operands = [tensor.uid for tensor in graph.operands]
    tensors = tensors_of_graph(graph)
    _check(graph, tensors)
    wide = {uid: _widened(tensor) for uid, tensor in tensors.items()}
    buffers = [
        uid
        for uid, tensor in tensors.items()
        if (tensor.virtual or tensor.scratch or wide[uid].spec != tensor.spec)
        and tensor.value is None
        and not tensor.same_memory_as
    ]
    given = {uid: place for place, uid in enumerate(operands)}
    places = given | {uid: len(operands) + number for number, uid in enumerate(buffers)}
    read, written = operands[:-results], operands[-results:]
    casts = {uid: (tensors[uid].spec, wide[uid].spec) for uid in operands if uid in buffers}
    before = [Step(cast_plan(*casts[uid]), (given[uid], places[uid])) for uid in read if uid in casts]
    after = [
        Step(cast_plan(*reversed(casts[uid])), (places[uid], given[uid])) for uid in written if uid in casts
    ]
    widened = mapped_graph(graph, lambda one: wide.get(one.uid, one))  # no node has some operands
    nodes = [_of_node(node, tensors, context) for node in widened.nodes]
    steps = [Step(plan, tuple(places[uid] for uid in uids)) for plan, uids in nodes]
    steps[0] = steps[0]._replace(alpha=ALPHA, beta=BETA)  # a graph rejects other factors than 1 and 0
    return Program(
        Steps([nbytes_of(wide[uid].spec) for uid in buffers], [*before, *steps, *after]),
        about=f"chosen: {len(nodes)} graphs of one node each, with float32 between them",
    )


def _of_node(
    node: Node, tensors: Mapping[int, Tensor], context: Context
) -> tuple[GraphPlan, tuple[int, ...]]:
    """Return the plan of a node, and the uids of the memory that it takes."""
    own = tensors_of_graph(Graph((node,), ())).values()
    in_memory = tuple(tensor for tensor in own if tensor.value is None)
    graph = Graph((node,), in_memory)
    uids = tuple(tensors[tensor.uid].same_memory_as or tensor.uid for tensor in in_memory)
    return GraphPlan(graph, *first_engine(PlanRequest(graph), context)), uids


def _check(graph: Graph, tensors: Mapping[int, Tensor]) -> None:
    if graph.dynamic or any(one.ragged is not None or one.reordering for one in tensors.values()):
        raise NotSupportedError("graphs with ragged, reordered or dynamic tensors are not split into nodes")
    if any(isinstance(value, Node | Graph) for node in graph.nodes for value in node.attributes.values()):
        raise NotSupportedError("graphs with sub-graphs are not split into nodes")


def _widened(tensor: Tensor) -> Tensor:
    """Return a tensor in memory, float32 instead of half precision."""
    spec = tensor.spec._replace(dtype="float32") if tensor.spec.dtype in HALF else tensor.spec
    return tensor._replace(spec=spec, virtual=False, scratch=False, same_memory_as=None)
