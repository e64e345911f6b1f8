"""A graph node by node, with float32 between the nodes: slow, and independent of engines that fuse nodes."""

from __future__ import annotations

from collections.abc import Mapping

from ..context import Context
from ..errors import NotSupportedError
from ..graph.candidates import first_engine
from ..graph.operations import Graph, Node, Tensor, mapped_graph, tensors_of_graph
from ..graph.plan import GraphPlan
from ..graph.recording import PlanRequest
from ..plans.base import Candidate
from ..plans.elementwise import cast_plan
from ..plans.program import ALPHA, BETA, Program, Step, Steps
from ..plans.workspace import nbytes_of

NODE_BY_NODE = "node by node"
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
