"""Tensors of a graph as users have them: shape, dtype, operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NoReturn

from ...shapes.specs import Shape
from ...typing import DTypeLike, Layout

if TYPE_CHECKING:
    from .graph import Graph


def _operator(method: str, *, swapped: bool = False) -> Callable[[GraphTensor, Operand], GraphTensor]:
    """Return an operator with another tensor or a number, which calls a method of the graph."""

    def operator(self: GraphTensor, other: Operand) -> GraphTensor:
        operands = (other, self) if swapped else (self, other)
        made: GraphTensor = getattr(self._graph, method)(*operands)
        return made

    return operator


class GraphTensor:
    """A tensor of a :class:`~cudnn_ct.Graph`: an input, a constant, or the result of an operation.

    It has no elements. The operators ``+ - * /``, ``-x``, ``abs(x)``, ``@`` and comparisons add operations to
    the graph; a number is passed to the plan by value.
    """

    __slots__ = ("_graph", "_place")
    __array_ufunc__ = None  # operators of NumPy arrays and scalars leave the operation to this class

    def __init__(self, graph: Graph, place: int) -> None:
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
        self._graph._mark_output(self, dtype, strides, layout, name)
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

    def __matmul__(self, other: GraphTensor) -> GraphTensor:
        return self._graph.matmul(self, other)

    def __neg__(self) -> GraphTensor:
        return self._graph.neg(self)

    def __abs__(self) -> GraphTensor:
        return self._graph.abs(self)

    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise TypeError("a GraphTensor has no value: build the graph and call it; use select for conditions")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a GraphTensor cannot be copied or pickled: it belongs to its Graph")


Operand = GraphTensor | float
"""A tensor of the graph, or a number."""

Operands = dict[str, Operand | None]
"""The operands of an operation by role; those that are None do not exist."""
