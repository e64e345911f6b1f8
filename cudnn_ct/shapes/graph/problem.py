"""A graph as an immutable value: tensors, nodes, and the tensors in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from ..specs import TensorSpec

Role = Literal["input", "virtual", "output", "constant"]

CONVOLUTION_KINDS = ("conv_forward", "conv_backward_data", "conv_backward_filter")
PRODUCT_KINDS = ("matmul", *CONVOLUTION_KINDS)


class GraphValue(NamedTuple):
    """A tensor of a graph: an input or an output has memory, a virtual tensor has none."""

    name: str
    spec: TensorSpec
    role: Role
    value: float | int | None = None  # of a constant


class GraphNode(NamedTuple):
    """One operation: its kind, its operands and results as (role, index of a value), and its attributes."""

    kind: str
    operands: tuple[tuple[str, int], ...]
    results: tuple[tuple[str, int], ...]
    attributes: tuple[tuple[str, Any], ...] = ()

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or the default if the node does not set it."""
        return dict(self.attributes).get(name, default)


class _Fields(NamedTuple):
    values: tuple[GraphValue, ...]
    nodes: tuple[GraphNode, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    compute: str = "float32"
    scaled: str = ""
    aligned: bool = True
    tensor_cores: bool = True


class GraphProblem(_Fields):
    """The computation of a graph, as :meth:`cudnn_ct.Graph.define` returns it.

    ``values`` has all tensors, ``nodes`` the operations in the order of their definition, and ``inputs`` and
    ``outputs`` the indices of the tensors in memory. ``compute`` is the accumulation dtype. ``tensor_cores``
    allows products of float32 in TF32. ``scaled`` and ``aligned`` are facts of one call.
    """

    __slots__ = ()
    unproven = True  # users fuse any nodes

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The specs of the outputs."""
        return tuple(self.values[place].spec for place in self.outputs)

    @property
    def result(self) -> TensorSpec:
        """The spec of the last output, whose pointer is the last of a run."""
        return self.values[self.outputs[-1]].spec

    @property
    def random(self) -> bool:
        """Whether engines may compute different numbers, because they draw random ones."""
        return any(node.kind == "rng" for node in self.nodes)

    @property
    def memory(self) -> tuple[GraphValue, ...]:
        """The tensors in memory, in the order of a run's pointers: inputs, then outputs."""
        return tuple(self.values[place] for place in (*self.inputs, *self.outputs))

    @property
    def tensors(self) -> dict[str, TensorSpec]:
        """The specs of the tensors in memory by name, in the order of a run's pointers."""
        return {value.name: value.spec for value in self.memory}

    def _asdict(self) -> dict[str, Any]:
        """Return the tensors in memory by name: `plans.base.tensors_of` reads them here."""
        return dict(self.tensors)

    def operands_of(self, node: GraphNode) -> dict[str, GraphValue]:
        """Return the operands of a node by their roles."""
        return {role: self.values[place] for role, place in node.operands}

    def results_of(self, node: GraphNode) -> dict[str, GraphValue]:
        """Return the results of a node by their roles."""
        return {role: self.values[place] for role, place in node.results}

    def __str__(self) -> str:
        memory = ", ".join(f"{name} {spec}" for name, spec in self.tensors.items())
        return f"graph of {', '.join(_kinds(self.nodes))}: {memory}"


def _kinds(nodes: tuple[GraphNode, ...]) -> Iterator[str]:
    for one in nodes:
        yield str(one.attribute("mode", one.kind)) if one.kind == "pointwise" else one.kind
