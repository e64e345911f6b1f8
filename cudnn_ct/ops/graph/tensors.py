"""Tensors of a graph as users have them: shape, dtype, operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, NoReturn

from ...dtypes import as_dtype
from ...errors import NotSupportedError
from ...shapes.checks import as_choice, as_ints
from ...shapes.graph.problem import Result, Role
from ...shapes.specs import LAYOUTS, Shape, TensorSpec, check_shape, packed_strides
from ...typing import DTypeLike, Layout


def _operator(method: str, *, swapped: bool = False) -> Callable[[GraphTensor, Operand], GraphTensor]:
    """Return an operator with another tensor or a number, which calls a method of the graph."""

    def operator(self: GraphTensor, other: Operand) -> GraphTensor:
        return self._made(method, *((other, self) if swapped else (self, other)))

    return operator


class GraphTensor:
    """A tensor of a :class:`~cudnn_ct.Graph`: an input, a constant, or the result of an operation.

    It has no elements. The operators ``+ - * /``, ``-x``, ``abs(x)``, ``@`` and comparisons add operations to
    the graph; a number is passed to the plan by value.
    """

    __slots__ = ("_graph", "_place")
    __array_ufunc__ = None  # operators of NumPy arrays and scalars leave the operation to this class

    def __init__(self, graph: GraphTensors, place: int) -> None:
        self._graph, self._place = graph, place

    @property
    def name(self) -> str:
        """The name in messages, and of an input or output as an argument."""
        return self._graph._states[self._place].name

    @property
    def shape(self) -> Shape:
        """Lengths of the axes."""
        return self._graph._states[self._place].spec.shape

    @property
    def strides(self) -> Shape:
        """Distances of neighbours along each axis, in elements."""
        return self._graph._states[self._place].spec.strides

    @property
    def dtype(self) -> str:
        """Name of the dtype: of an input its own, of a result that between operations."""
        return self._graph._states[self._place].spec.dtype

    def output(
        self,
        *,
        dtype: DTypeLike | None = None,
        strides: Iterable[int] | None = None,
        layout: Layout | None = None,
        name: str | None = None,
    ) -> GraphTensor:
        """Make this tensor an output of the graph, and return it.

        Parameters
        ----------
        dtype : optional
            Dtype in memory, any but bool; by default that of the graph's first floating-point input, or that
            between operations if there is none, and float32 for statistics and sums. Comparisons and logical
            operations store 0 or 1 in this dtype.
        strides : tuple of int, optional
            In elements; by default, contiguous with the axis order of the operands.
        layout : {"nchw", "nhwc"}, optional
            A contiguous layout instead of ``strides``.
        name : str, optional
            Name of the output as an argument and in messages.
        """
        graph, state = self._graph, self._graph._states[self._place]
        if dtype is not None:
            state = state._replace(dtype=dtype_in_memory(as_dtype(dtype).name, f"output {state.name!r}"))
        if strides is not None or layout is not None:
            state = state._replace(strides=strides_of(state.spec.shape, strides, layout))
        if name is not None:
            state = state._replace(name=graph._named(name, ""))
        graph._states[self._place] = state
        graph._marked[self._place] = None
        return self

    def __repr__(self) -> str:
        return f"<GraphTensor {self.name}: {self.dtype}{list(self.shape)}>"

    __add__ = __radd__ = _operator("add")
    __mul__ = __rmul__ = _operator("mul")
    __sub__, __rsub__ = _operator("sub"), _operator("sub", swapped=True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", swapped=True)
    __lt__, __le__ = _operator("less"), _operator("less_equal")
    __gt__, __ge__ = _operator("greater"), _operator("greater_equal")
    __eq__, __ne__ = _operator("equal"), _operator("not_equal")  # type: ignore[assignment]

    def _made(self, method: str, *operands: Operand) -> GraphTensor:
        """Return the result of a method of the graph, which is defined in the module of its family."""
        made: GraphTensor = getattr(self._graph, method)(*operands)
        return made

    def __matmul__(self, other: GraphTensor) -> GraphTensor:
        return self._made("matmul", self, other)

    def __neg__(self) -> GraphTensor:
        return self._made("neg", self)

    def __abs__(self) -> GraphTensor:
        return self._made("abs", self)

    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise TypeError("a GraphTensor has no value: build the graph and call it; use select for conditions")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a GraphTensor cannot be copied or pickled: it belongs to its Graph")


Operand = GraphTensor | float
"""A tensor of the graph, or a number."""

Operands = dict[str, Operand | None]
"""The operands of an operation by role; those that are None do not exist."""


class TensorState(NamedTuple):
    """A tensor while the graph is defined; ``result`` is what the rule of its operation returned."""

    name: str
    spec: TensorSpec
    role: Role
    value: float | int | None = None
    result: Result | None = None
    dtype: str = ""
    strides: Shape | None = None


class GraphTensors:
    """The tensors of a graph while it is defined, in the order of their definition."""

    def __init__(self) -> None:
        self._states: list[TensorState] = []
        self._names: set[str] = set()
        self._marked: dict[int, None] = {}

    def _new(self, state: TensorState) -> GraphTensor:
        self._states.append(state)
        return GraphTensor(self, len(self._states) - 1)

    def _place(self, tensor: GraphTensor, role: str) -> int:
        if not isinstance(tensor, GraphTensor):
            raise TypeError(f"{role} is not a GraphTensor: got {type(tensor).__name__}")
        if tensor._graph is not self:
            raise ValueError(
                f"{role} belongs to another graph: got {tensor!r}, expected a tensor of this one"
            )
        return tensor._place

    def _named(self, name: str | None, default: str) -> str:
        if name is not None and (not isinstance(name, str) or not name):
            raise TypeError(f"name is not a name: got {name!r}, expected a string of at least one character")
        if name is not None and name in self._names:
            raise ValueError(f"name is used twice: got {name!r}, expected a name that no other tensor has")
        found = name if name is not None else default
        while name is None and found in self._names:
            found += "_"
        self._names.add(found)
        return found

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Graph cannot be copied or pickled; pickle the value that define() returns")


def dtype_in_memory(dtype: str, what: str) -> str:
    """Return the dtype of a tensor in memory; raise NotSupportedError if it is bool."""
    if dtype == "bool":
        raise NotSupportedError(
            f"{what} cannot be bool: cuDNN reads and writes packed bits in some graphs and bytes in others; "
            "pass int8, uint8 or a floating-point dtype"
        )
    return dtype


def strides_of(shape: Shape, strides: Iterable[int] | None, layout: Layout | None) -> Shape:
    """Return the strides of a tensor that has memory."""
    if strides is None:
        return packed_strides(shape, "nchw" if layout is None else as_choice(layout, LAYOUTS, "layout"))
    if layout is not None:
        raise ValueError(f"strides and layout are both given: got {strides} and {layout!r}, expected one")
    steps = as_ints(strides, "strides")
    if len(steps) != len(shape):
        raise ValueError(
            f"strides have {len(steps)} numbers: got {steps}, expected {len(shape)} as in {shape}"
        )
    spec = TensorSpec(shape, check_shape(steps, "strides"), "float32")
    if not spec.representable or spec.overlaps_itself:
        raise ValueError(
            f"strides are not supported: got {steps} for shape {shape}, expected positive ones that keep "
            "elements apart"
        )
    return spec.strides
