"""Plans of graphs: an execution plan, and a variant pack for each set of pointers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from .._caches import BoundedDict
from ..context import Context
from ..dtypes import GRAPH_DTYPES
from ..errors import BadParamError, NotSupportedError
from ..plans.base import Candidate
from ..plans.workspace import align_after, nbytes_of
from ..shapes.specs import ALIGNMENT, UNALIGNED
from .backend import BackendDescriptor
from .operations import Graph, Tensor, tensors_of_graph
from .variant_pack import VariantPack, VariantPacks

MAX_VARIANT_PACKS = 256  # cached for each plan; a pool reuses the same addresses


class GraphPlan:
    """One engine for one graph: a run is one C call.

    A plan and its variant packs belong to the thread whose handle it was made with. The plan owns the host
    memory of tensors that are passed by value.
    """

    __slots__ = (
        "_execute",
        "_graph",
        "_new_packs",
        "_packs",
        "_scratch",
        "_shared",
        "_value_pointers",
        "_values",
        "candidate",
        "native",
        "workspace",
    )

    def __init__(self, graph: Graph, native: BackendDescriptor, candidate: Candidate) -> None:
        self.candidate = candidate
        self.native = native
        self._scratch, self.workspace = place_scratch(graph, native.one("workspace_size"))
        native.about = f"{candidate.algorithm} on {', '.join(str(tensor.spec) for tensor in graph.operands)}"
        self._graph = graph
        self._packs = BoundedDict(MAX_VARIANT_PACKS)
        tensors = tensors_of_graph(graph).values()
        scalars = [tensor for tensor in tensors if tensor.value is not None]
        places = {tensor.uid: place for place, tensor in enumerate(graph.operands)}
        shared = {tensor.uid: places[tensor.same_memory_as] for tensor in tensors if tensor.same_memory_as}
        self._shared = tuple(shared.values())
        uids = [*(tensor.uid for tensor in (*graph.operands, *scalars)), *self._scratch, *shared]
        self._new_packs = VariantPacks(native.library, uids)
        self._values = [host_value(tensor) for tensor in scalars]
        self._value_pointers = tuple(map(ctypes.addressof, self._values))
        self._execute = native.library.cudnnBackendExecute

    def run(self, context: Context, pointers: Sequence[int], alpha: float = 1.0, beta: float = 0.0) -> None:
        """Enqueue the graph; ``pointers`` has those of its operands, the output last."""
        if alpha != 1 or beta != 0:
            raise NotSupportedError(
                f"a graph plan cannot scale: got alpha {alpha}, beta {beta}, expected 1 and 0"
            )
        key = (context.workspace(self.workspace) if self.workspace else 0, *pointers)
        pack = self._packs.get(key)
        if pack is None:
            pack = self._packs[key] = self._pack(context, *key)
        if context.capturing:  # a graph may be replayed after the plan was dropped
            context.pin(self)
            context.pin(pack)
        self._execute(context.handle, self.native, pack)

    def run_in(self, context: Context, workspace: int, pointers: Sequence[int]) -> None:
        """Enqueue the graph with a workspace of the caller."""
        self._execute(context.handle, self.native, self._pack(context, workspace, *pointers))

    def describe(self) -> str:
        return f"chosen: {self.candidate}"

    def _pack(self, context: Context, workspace: int, *pointers: int) -> VariantPack | BackendDescriptor:  # noqa: ARG002
        """Create the variant pack of a set of pointers."""
        if len(pointers) != len(self._graph.operands):
            count = len(self._graph.operands)
            raise ValueError(f"number of pointers is wrong: got {len(pointers)}, expected {count}")
        for tensor, pointer in zip(self._graph.operands, pointers, strict=True):
            if pointer & UNALIGNED:  # a 16-byte load of it would destroy the CUDA context
                expected = f"expected a multiple of {ALIGNMENT}"
                raise BadParamError(f"pointer of {tensor.spec} is misaligned: got {pointer:#x}, {expected}")
        scratch = [workspace + offset for offset in self._scratch.values()]
        shared = [pointers[place] for place in self._shared]
        return self._new_packs.make((*pointers, *self._value_pointers, *scratch, *shared), workspace)


def place_scratch(graph: Graph, nbytes: int) -> tuple[dict[int, int], int]:
    """Return the offsets of scratch tensors by uid, behind ``nbytes`` of workspace, and the whole bytes."""
    offsets = {}
    for tensor in tensors_of_graph(graph).values():
        if tensor.scratch:
            offsets[tensor.uid], nbytes = align_after(nbytes, nbytes_of(tensor.spec))
    return offsets, nbytes


def host_value(tensor: Tensor) -> ctypes.Array[ctypes.c_char]:
    """Return host memory with the value of a tensor that is passed by value, in its dtype."""
    import numpy as np

    number = np.asarray(tensor.value).astype(GRAPH_DTYPES[tensor.spec.dtype].numpy)
    return ctypes.create_string_buffer(number.tobytes(), ALIGNMENT)
