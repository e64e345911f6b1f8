"""The native form of a graph, node by node: cuDNN's attributes, and tensors of one rank.

It is a graph of a user, or that of an operation, with the operations after a product or convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from itertools import count
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from ...errors import NotSupportedError
from ...graph.attributes import AsDouble
from ...graph.operations import Graph, Node, Tensor, node
from ...plans.base import tensors_of
from ...shapes.fused import Float8Conv
from ...shapes.graph.kinds import KINDS
from ...shapes.graph.problem import CONVOLUTION_KINDS, GraphNode, GraphProblem, GraphValue, math_dtype
from ...shapes.matmul import MatmulProblem
from ...shapes.specs import LAYOUTS, Shape, TensorSpec
from ...typing import Layout
from .arithmetic import PointwiseMethods
from .products import NormMethods, ProductMethods
from .tensors import GraphTensor, Operand, TensorState

_OF_WINDOWS = (*CONVOLUTION_KINDS, "resample_forward", "resample_backward")
_OF_MATRICES = ("matmul", "norm_forward", "norm_backward")
_PER_SPATIAL_AXIS = {"pre_paddings": 0, "post_paddings": 0, "filter_strides": 1, "dilations": 1}
_NOT_OF_CUDNN = ("normalized", "max_length")


def native_graph(problem: GraphProblem, added: Mapping[int, int] = MappingProxyType({})) -> Graph:
    """Return the graph of a problem as it is, node by node.

    ``added`` has the place of the input whose memory an added value has.
    """
    rank = _Ranks(problem)
    _check_ranks(problem, rank)
    tensors = _in_common_layout(
        [_tensor(uid, value, rank) for uid, value in enumerate(problem.values, 1)], problem
    )
    for place, original in added.items():
        tensors[place] = tensors[place]._replace(same_memory_as=tensors[original].uid)
    numbers = count(len(tensors) + 1)
    nodes = [_node(one, _Whole(problem, tensors, rank, numbers)) for one in problem.nodes]
    memory = (tensors[place] for place in (*problem.inputs, *problem.outputs))
    return Graph(tuple(nodes), tuple(memory))


class _Ranks:
    """How shapes are extended to the rank that engines support.

    Tensors of a graph get leading axes of length 1, up to the largest rank and at least three. Images of one
    spatial axis get another one before it. In graphs with normalisations, vectors (N, C) become images of one
    pixel.
    """

    def __init__(self, problem: GraphProblem) -> None:
        kinds = {one.kind for one in problem.nodes}
        self.own = max((len(value.spec.shape) for value in problem.values), default=1)
        self.inserted = self.own == 3 and bool(kinds & set(CONVOLUTION_KINDS))
        norms = bool(kinds & {"norm_forward", "norm_backward"})
        samples = any(one.attribute("mode") == "ada_layer_norm" for one in problem.nodes) and self.own == 3
        self.trailing = 4 - self.own if norms and self.own < 4 and not samples else 0
        self.leading = 0 if self.inserted or self.trailing else max(3 - self.own, 0)

    @property
    def rank(self) -> int:
        return self.leading + self.own + self.inserted + self.trailing

    def spec(self, spec: TensorSpec) -> TensorSpec:
        shape, strides = spec.shape, spec.strides
        missing = self.own - len(shape) + self.leading
        reach = max((n * s for n, s in zip(shape, strides, strict=True)), default=1)
        shape, strides = (1,) * missing + shape, (max(reach, 1),) * missing + strides
        if self.inserted:
            step = max(shape[2] * strides[2], 1)
            shape, strides = (*shape[:2], 1, shape[2]), (*strides[:2], step, strides[2])
        if self.trailing:
            shape = (*shape, *(1,) * self.trailing)
            strides = (*strides, *(max(shape[1] * strides[1], 1),) * self.trailing)
        return TensorSpec(shape, strides, spec.dtype)

    def axis(self, axis: int, rank: int) -> int:
        """Return the place of an axis of a tensor that has ``rank`` axes."""
        moved = axis + self.own - rank + self.leading
        return moved + 1 if self.inserted and moved >= 2 else moved

    def spread(self, values: Shape, default: int) -> Shape:
        """Return one number per axis for the rank of the graph; new axes have the default."""
        spread = [default] * self.rank
        for axis, value in enumerate(values):
            spread[self.axis(axis, len(values))] = value
        return tuple(spread)


def _tensor(uid: int, value: GraphValue, rank: _Ranks) -> Tensor:
    if value.role == "constant":
        ones = (1,) * max(rank.rank, 4 if rank.rank < 3 else rank.rank)
        return Tensor(uid, TensorSpec(ones, ones, value.spec.dtype), value=value.value)
    return Tensor(uid, rank.spec(value.spec), virtual=value.role == "virtual")


def _in_common_layout(tensors: list[Tensor], problem: GraphProblem) -> list[Tensor]:
    """Give axes of length 1 the strides of the layout that the tensors of all convolutions have, if any."""
    # Engines compare strides, also those that no element uses, and read images wrong if these differ. Inputs
    # that are broadcast to images of several pixels keep theirs.
    images = [one for one in problem.nodes if one.kind in CONVOLUTION_KINDS]
    places = {place for one in images for _, place in (*one.operands, *one.results)}
    shapes = {tensors[place].spec.shape for place in places}
    results = [tensors[place].spec.shape for one in images for _, place in one.results]
    kept = all(prod(shape[2:]) > 1 for shape in results)
    for layout in reversed(LAYOUTS):  # most engines take channels last
        if places and all(layout in tensors[place].spec.layouts for place in places):
            return [
                tensor
                if kept and value.role == "input" and tensor.spec.shape not in shapes
                else _packed(tensor, layout)
                for tensor, value in zip(tensors, problem.values, strict=True)
            ]
    return tensors


def _packed(tensor: Tensor, layout: Layout) -> Tensor:
    spec = tensor.spec
    if tensor.value is not None or layout not in spec.layouts:
        return tensor
    return tensor._replace(spec=TensorSpec.packed(spec.shape, spec.dtype, layout))


def _check_ranks(problem: GraphProblem, rank: _Ranks) -> None:
    """Raise if nodes of one graph need tensors of different ranks."""
    for one in problem.nodes:
        axes = {len(problem.values[place].spec.shape) for _, place in (*one.operands, *one.results)}
        if one.kind in _OF_WINDOWS and axes != {rank.own}:
            raise NotSupportedError(
                f"{one.kind} has {max(axes)} axes and another node of the graph {rank.own}; compute them in "
                "two graphs"
            )
        if rank.trailing and one.kind == "matmul":
            raise NotSupportedError(
                "matmul cannot be in one graph with a norm, whose rows become images; compute them in two "
                "graphs"
            )
        if rank.inserted and one.kind in _OF_MATRICES:
            raise NotSupportedError(
                f"{one.kind} cannot be in one graph with a convolution of one spatial axis; compute them in "
                "two graphs"
            )


class _Whole(NamedTuple):
    """The graph that a node belongs to, and further numbers for tensors."""

    problem: GraphProblem
    tensors: list[Tensor]
    rank: _Ranks
    numbers: count[int]


def _node(one: GraphNode, whole: _Whole) -> Node:
    kind = KINDS[one.kind]
    attributes: dict[str, Any] = {name: value for name, value in one.attributes if name not in _NOT_OF_CUDNN}
    if kind.compute:
        attributes[kind.compute] = whole.problem.compute
    if "*" in kind.operands:
        attributes[kind.operands["*"]] = tuple(whole.tensors[place] for _, place in one.operands)
    else:
        attributes |= {kind.operands[role]: whole.tensors[place] for role, place in one.operands}
    attributes |= {kind.results[role]: whole.tensors[place] for role, place in one.results}
    special = _SPECIAL.get(one.kind)
    if special is not None:
        special(attributes, one, whole)
    return node(kind.row, **attributes)


def _pointwise(attributes: dict[str, Any], one: GraphNode, whole: _Whole) -> None:
    """Set the place of an axis, and the dtype in which whole numbers are computed."""
    attributes["math_prec"] = math_dtype(one, whole.problem)
    if "axis" in attributes:
        (_, place), *_ = one.operands
        attributes["axis"] = whole.rank.axis(attributes["axis"], len(whole.problem.values[place].spec.shape))


def _convolution(attributes: dict[str, Any], _: GraphNode, whole: _Whole) -> None:
    number = AsDouble if whole.problem.compute == "float64" else float
    attributes |= {"alpha": number(1), "beta": number(0)}
    if whole.rank.inserted:
        attributes["spatial_dims"] = 2
        for name, default in _PER_SPATIAL_AXIS.items():
            attributes[name] = (default, *attributes[name])


def _moving(attributes: dict[str, Any], one: GraphNode, whole: _Whole) -> None:
    """Move the axes of a slice, a transposition or a concatenation to the rank of the graph."""
    (_, place), *_ = one.operands
    shape = whole.problem.values[place].spec.shape
    if "axis" in attributes:
        attributes["axis"] = whole.rank.axis(attributes["axis"], len(shape))
    if "permutation" in attributes:
        moved = {whole.rank.axis(new, len(shape)): old for new, old in enumerate(attributes["permutation"])}
        attributes["permutation"] = tuple(
            whole.rank.axis(moved[axis], len(shape)) if axis in moved else axis
            for axis in range(whole.rank.rank)
        )
    for name, default in (("start_indices", 0), ("limit_indices", 1), ("strides", 1)):
        if name in attributes:
            attributes[name] = whole.rank.spread(attributes[name], default)


_Special = Callable[[dict[str, Any], GraphNode, _Whole], None]

_SPECIAL: dict[str, _Special] = {
    "pointwise": _pointwise,
    **dict.fromkeys(CONVOLUTION_KINDS, _convolution),
    **dict.fromkeys(("slice", "transpose", "concat"), _moving),
}


# --- graphs that operations define by the builder ----------------------------------------------------------


P = TypeVar("P")


def defines(graph_of: Callable[[P], Graph]) -> Callable[[P], Graph]:
    """Decorate a function that returns the native graph of a problem: a first call needs it several times."""
    # 0.0 and -0.0 are equal parameters of different graphs, so the text of the problem is a key, too.
    cached = lru_cache(256)(lambda problem, _: graph_of(problem))
    return wraps(graph_of)(lambda problem: cached(problem, repr(problem)))


class Definition(PointwiseMethods, ProductMethods, NormMethods):
    """The graph of a problem while it is defined; ``given`` has the operands as inputs, by name."""

    def __init__(self, problem: Any, compute: str = "float32") -> None:
        super().__init__(intermediate_dtype=compute, compute_dtype=compute)
        self._specs = tensors_of(problem)
        operands = list(self._specs.items())[: -len(problem.results)]
        # Operands of calls may have larger strides than inputs of users.
        self.given = {name: self._new(TensorState(name, spec, "input")) for name, spec in operands}
        self._converted = set[str]()

    def converted(self, tensor: GraphTensor) -> GraphTensor:
        """Return a tensor in the dtype that its product computes in, in the memory order that it has."""
        made = self.identity(tensor)
        state, strides = self._states[made._place], self._states[tensor._place].spec.strides
        self._states[made._place] = state._replace(spec=state.spec._replace(strides=strides))
        self._converted.add(state.name)
        return made

    def graph(self, **results: GraphTensor) -> Graph:
        """Return the native graph of the results, with the operands in the order of a run's pointers."""
        for name, tensor in results.items():
            _, strides, dtype = self._specs[name]
            state = self._states[tensor._place]
            self._states[tensor._place] = state._replace(dtype=dtype, strides=strides)
        problem, first = self.define(*results.values()), self._specs[next(iter(results))]
        self.given.clear()  # they refer to this
        # Engines compare strides, also those of tensors without memory.
        values = [
            value._replace(spec=value.spec._replace(strides=first.strides))
            if value.role == "virtual"
            and value.spec.shape == first.shape
            and value.name not in self._converted
            else value
            for value in problem.values
        ]
        return native_graph(problem._replace(values=tuple(values)))


# --- the operations after a product or convolution ---------------------------------------------------------

_FACTORS = ("b_scale", "descale_a", "descale_b", "descale_x", "descale_w")
_ADDED = ("bias", "residual")

# The methods of activations with other names, and their parameters.
_METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "gelu_tanh": ("gelu", {"approximate": True}),
    "silu": ("swish", {}),
}


def graph_with_epilogue(
    g: Definition, problem: MatmulProblem | Float8Conv, y: GraphTensor, alpha: float = 1.0
) -> Graph:
    """Return the graph of ``scale * act(factors * alpha * y + added)``, and of amax before ``scale``."""
    given = g.given
    factors: list[Operand] = [given[name] for name in _FACTORS if name in given]
    for factor in [*factors, alpha] if alpha != 1 else factors:
        y = y * factor
    for name in _ADDED:
        y = y + given[name] if name in given else y
    if problem.activation != "identity":
        method, parameters = _METHODS.get(problem.activation, (problem.activation, {}))
        y = getattr(g, method)(y, **parameters)
    written = y
    if "scale" in given:
        written = y * given["scale"]
    elif problem.amax and problem.y.dtype != "float32":
        # amax is that of the value before it is rounded. cuDNN 9.19 does not write exact copies.
        written = g.identity(y)
    return g.graph(y=written, **({"amax": g.reduce(y, "amax")} if problem.amax else {}))
