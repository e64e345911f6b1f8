"""A graph as an immutable value; what rules of shapes share, and the rules of pointwise operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from typing import Any, Literal, NamedTuple

from ..specs import Shape, TensorSpec, packed_strides, strides_in_order

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


# --- what rules share: results, broadcasting and strides ---------------------------------------------------

Specs = Mapping[str, TensorSpec]


class Result(NamedTuple):
    """A result: its shape, and what the operation determines besides."""

    shape: Shape
    dtype: str = ""  # if the operation determines it
    like: TensorSpec | None = None  # whose axis order the result takes
    stored: str = ""  # its dtype as an output, if not that of the graph's first input

    def spec(self, dtype: str) -> TensorSpec:
        """Return the spec of the result, with ``dtype`` unless the operation determines it."""
        return TensorSpec(self.shape, ordered(self.shape, self.like), self.dtype or dtype)


Infer = Callable[[Specs, dict[str, Any]], dict[str, Result]]
"""A rule: the results of an operation from its operands and its attributes, which it may complete."""


class Kind(NamedTuple):
    """A kind of operation: a row of kinds.json, with the attributes of cuDNN by role, and its rule."""

    infer: Infer
    row: str  # in ``graph.operations.OPERATIONS``; empty for several operations of cuDNN
    operands: dict[str, str]
    results: dict[str, str]
    compute: str = ""  # the attribute for the accumulation dtype, if it has one
    since: str = "9.0"  # the version of cuDNN that introduced it


def broadcast(**shapes: Shape) -> Shape:
    """Return the common shape of tensors, aligned at the last axis as in NumPy.

    >>> broadcast(x=(8, 1, 5), b=(7, 5))
    (8, 7, 5)
    """
    rank = max(map(len, shapes.values()))
    common = [1] * rank
    for name, shape in shapes.items():
        for axis, length in enumerate(shape, rank - len(shape)):
            if length != 1 and common[axis] not in (1, length):
                listed = ", ".join(f"{other} {dims}" for other, dims in shapes.items())
                raise ValueError(
                    f"{name} does not broadcast: got length {length} at axis {axis - rank}, expected 1 or "
                    f"{common[axis]} ({listed})"
                )
            if length != 1:
                common[axis] = length
    return tuple(common)


def ordered(shape: Shape, like: TensorSpec | None) -> Shape:
    """Return the strides of a contiguous tensor whose axes have the order of another one's.

    >>> ordered((2, 3, 4, 4), TensorSpec.packed((1, 8, 6, 6), "float16", "nhwc"))
    (48, 1, 12, 3)
    """
    if like is None or len(like.shape) != len(shape):
        return packed_strides(shape)
    if like.layout is not None:
        return packed_strides(shape, like.layout)
    # Axes of length 1 in the other tensor have arbitrary strides: keep them where C order has them.
    order = sorted(range(len(shape)), key=lambda axis: (-abs(like.strides[axis]), axis))
    return strides_in_order(shape, order)


def largest(specs: Iterable[TensorSpec]) -> TensorSpec:
    """Return the spec with the most axes and elements, the first of several."""
    return max(specs, key=lambda spec: (len(spec.shape), prod(spec.shape)))


# --- pointwise operations: all modes of `PointwiseMode` ----------------------------------------------------

COMPARISONS = ["cmp_eq", "cmp_neq", "cmp_gt", "cmp_ge", "cmp_lt", "cmp_le"]
LOGICAL = ["logical_and", "logical_or", "logical_not"]
# Modes whose result of whole numbers is whole.
WHOLE = ("abs", "add", "identity", "max", "min", "mul", "neg", "sub")


def _pointwise(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    mode = attributes["mode"]
    shape = broadcast(**{name: spec.shape for name, spec in specs.items()})
    like = largest(specs.values())
    if mode in LOGICAL or mode in COMPARISONS:
        return {"y": Result(shape, "bool", like)}
    if mode == "gen_index":
        axis = attributes["axis"]
        if not -len(shape) <= axis < len(shape):
            raise ValueError(f"axis is out of range: got {axis}, expected {-len(shape)} to {len(shape) - 1}")
        attributes["axis"] = axis % len(shape)
        return {"y": Result(shape, "int32", like, "int32")}
    if all(spec.dtype == "int32" for spec in specs.values()) and mode in WHOLE:
        return {"y": Result(shape, "int32", like, "int32")}
    return {"y": Result(shape, like=like)}


def _pointwise_backward(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:  # noqa: ARG001
    shape = broadcast(**{name: spec.shape for name, spec in specs.items()})
    return {"dx": Result(shape, like=largest(specs.values()))}


def math_dtype(one: GraphNode, problem: GraphProblem) -> str:
    """Return the dtype to which an elementwise operation converts its operands.

    It is int32 if all operands and the result are, and the compute dtype otherwise, also for comparisons.
    """
    values = (*problem.operands_of(one).values(), *problem.results_of(one).values())
    whole = all(value.spec.dtype == "int32" for value in values)
    if whole and one.attribute("mode") not in ("gen_index", *COMPARISONS):
        return "int32"
    return problem.compute
