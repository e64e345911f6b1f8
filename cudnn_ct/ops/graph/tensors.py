"""Tensors of a graph as users have them: shape, dtype, operators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

from ...shapes.specs import Shape
from ...typing import DTypeLike, Layout

if TYPE_CHECKING:
    from .graph import Graph


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

    def __add__(self, other: Operand) -> GraphTensor:
        return self._graph.add(self, other)

    def __radd__(self, other: Operand) -> GraphTensor:
        return self._graph.add(self, other)

    def __sub__(self, other: Operand) -> GraphTensor:
        return self._graph.sub(self, other)

    def __rsub__(self, other: Operand) -> GraphTensor:
        return self._graph.sub(other, self)

    def __mul__(self, other: Operand) -> GraphTensor:
        return self._graph.mul(self, other)

    def __rmul__(self, other: Operand) -> GraphTensor:
        return self._graph.mul(self, other)

    def __truediv__(self, other: Operand) -> GraphTensor:
        return self._graph.div(self, other)

    def __rtruediv__(self, other: Operand) -> GraphTensor:
        return self._graph.div(other, self)

    def __matmul__(self, other: GraphTensor) -> GraphTensor:
        return self._graph.matmul(self, other)

    def __neg__(self) -> GraphTensor:
        return self._graph.neg(self)

    def __abs__(self) -> GraphTensor:
        return self._graph.abs(self)

    def __lt__(self, other: Operand) -> GraphTensor:
        return self._graph.less(self, other)

    def __le__(self, other: Operand) -> GraphTensor:
        return self._graph.less_equal(self, other)

    def __gt__(self, other: Operand) -> GraphTensor:
        return self._graph.greater(self, other)

    def __ge__(self, other: Operand) -> GraphTensor:
        return self._graph.greater_equal(self, other)

    def __eq__(self, other: object) -> GraphTensor:  # type: ignore[override]
        return self._graph.equal(self, other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> GraphTensor:  # type: ignore[override]
        return self._graph.not_equal(self, other)  # type: ignore[arg-type]

    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise TypeError("a GraphTensor has no value: build the graph and call it; use select for conditions")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a GraphTensor cannot be copied or pickled: it belongs to its Graph")


Operand = GraphTensor | float
"""A tensor of the graph, or a number."""
