"""A graph node by node, with float32 between the nodes: slow, and independent of engines that fuse nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..context import Context
from ..errors import NotSupportedError
from ..graph.first import first_engine
from ..graph.operations import Graph, Node, Tensor, tensors_of_graph
from ..graph.plan import GraphPlan
from ..plans.base import Candidate
from ..plans.elementwise import cast_plan
from ..plans.workspace import align_after, nbytes_of

__all__ = ["NODE_BY_NODE", "NodewisePlan", "nodewise_candidate"]

NODE_BY_NODE = "node by node"
HALF = ("float16", "bfloat16")


def nodewise_candidate() -> Candidate:
    """Return the candidate whose plan is a :class:`NodewisePlan`."""
    return Candidate("graph", NODE_BY_NODE, "fma", 0, True)


class NodewisePlan:
    """Computes each node of a graph by a plan of its own.

    Tensors in half precision are float32 in the workspace: operands are converted first, results last.
    Virtual tensors are in the workspace too.
    """

    __slots__ = ("_after", "_before", "_buffers", "_nodes", "_operands", "_own", "candidate", "workspace")

    def __init__(self, graph: Graph, results: int, context: Context) -> None:
        self.candidate = nodewise_candidate()
        self._operands = [tensor.uid for tensor in graph.operands]
        tensors = tensors_of_graph(graph)
        _check(graph, tensors)
        wide = {uid: _widened(tensor) for uid, tensor in tensors.items()}
        self._buffers: dict[int, int] = {}  # offsets in the workspace by uid
        nbytes = 0
        for uid, tensor in tensors.items():
            placed = tensor.virtual or tensor.scratch or wide[uid].spec != tensor.spec
            if placed and tensor.value is None and not tensor.same_memory_as:
                self._buffers[uid], nbytes = align_after(nbytes, nbytes_of(wide[uid].spec))
        read, written = self._operands[:-results], self._operands[-results:]
        casts = {uid: (tensors[uid].spec, wide[uid].spec) for uid in self._operands if uid in self._buffers}
        self._before = [(uid, cast_plan(*casts[uid])) for uid in read if uid in casts]
        self._after = [(uid, cast_plan(*reversed(casts[uid]))) for uid in written if uid in casts]
        self._nodes = [_of_node(_rewritten(node, wide), tensors, context) for node in graph.nodes]
        most = max(plan.workspace for plan, _ in self._nodes)
        self._own, self.workspace = align_after(nbytes, most)

    def run(self, context: Context, pointers: Sequence[int], alpha: float = 1.0, beta: float = 0.0) -> None:
        """Enqueue the nodes in their order."""
        if alpha != 1 or beta != 0:
            raise NotSupportedError(f"a graph cannot scale: got alpha {alpha}, beta {beta}, expected 1 and 0")
        base = context.workspace(self.workspace)
        if context.capturing:  # a graph may be replayed after the plan was dropped
            context.pin(self)
        given = dict(zip(self._operands, pointers, strict=True))
        places = given | {uid: base + offset for uid, offset in self._buffers.items()}
        for uid, cast in self._before:
            cast.run(context, (given[uid], places[uid]), 1.0, 0.0)
        for plan, uids in self._nodes:
            plan.run_in(context, base + self._own, [places[uid] for uid in uids])
        for uid, cast in self._after:
            cast.run(context, (places[uid], given[uid]), 1.0, 0.0)

    def describe(self) -> str:
        """Return what runs."""
        return f"chosen: {len(self._nodes)} graphs of one node each, with float32 between them"


def _of_node(
    node: Node, tensors: Mapping[int, Tensor], context: Context
) -> tuple[GraphPlan, tuple[int, ...]]:
    """Return the plan of a node, and the uids of the memory that it takes."""
    in_memory = tuple(tensor for tensor in dict.fromkeys(_tensors(node)) if tensor.value is None)
    graph = Graph((node,), in_memory)
    uids = tuple(tensors[tensor.uid].same_memory_as or tensor.uid for tensor in in_memory)
    return GraphPlan(graph, *first_engine(graph, context)), uids


def _check(graph: Graph, tensors: Mapping[int, Tensor]) -> None:
    if graph.dynamic or any(one.ragged is not None or one.reordering for one in tensors.values()):
        raise NotSupportedError("graphs with ragged, reordered or dynamic tensors are not split into nodes")
    if any(isinstance(value, Node | Graph) for node in graph.nodes for value in node.attributes.values()):
        raise NotSupportedError("graphs with sub-graphs are not split into nodes")


def _widened(tensor: Tensor) -> Tensor:
    """Return a tensor in memory, float32 instead of half precision."""
    spec = tensor.spec._replace(dtype="float32") if tensor.spec.dtype in HALF else tensor.spec
    return tensor._replace(spec=spec, virtual=False, scratch=False, same_memory_as=None)


def _rewritten(node: Node, wide: Mapping[int, Tensor]) -> Node:
    return Node(node.row, {name: _replaced(value, wide) for name, value in node.attributes.items()})


def _replaced(value: object, wide: Mapping[int, Tensor]) -> object:
    if isinstance(value, Tensor):
        return wide[value.uid]
    if isinstance(value, tuple) and any(isinstance(one, Tensor) for one in value):
        return tuple(_replaced(one, wide) for one in value)
    return value


def _tensors(node: Node) -> Iterator[Tensor]:
    for value in node.attributes.values():
        for one in value if isinstance(value, tuple) and not isinstance(value, Tensor) else (value,):
            if isinstance(one, Tensor):
                yield one
