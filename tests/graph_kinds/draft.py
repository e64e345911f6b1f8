"""A graph in the making: the tests put their graphs together with it."""

from __future__ import annotations

from itertools import count
from typing import Any

from cudnn_ct.graph.operations import Graph, Node, Tensor, node
from cudnn_ct.shapes.specs import Shape, TensorSpec, packed_strides

__all__ = ["Draft"]


class Draft:
    """A graph in the making: numbers its tensors, and collects nodes, inputs and results."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: list[Tensor] = []
        self.results: list[Tensor] = []
        self._numbers = count(1)

    def tensor(self, shape: Shape, dtype: str, strides: Shape | None = None, **facts: Any) -> Tensor:
        spec = TensorSpec(shape, strides or packed_strides(shape), dtype)
        return Tensor(next(self._numbers), spec, **facts)

    def input(
        self, shape: Shape, dtype: str = "bfloat16", strides: Shape | None = None, **facts: Any
    ) -> Tensor:
        self.inputs.append(self.tensor(shape, dtype, strides, **facts))
        return self.inputs[-1]

    def result(
        self, shape: Shape, dtype: str = "bfloat16", strides: Shape | None = None, **facts: Any
    ) -> Tensor:
        self.results.append(self.tensor(shape, dtype, strides, **facts))
        return self.results[-1]

    def virtual(self, shape: Shape, dtype: str = "float32", strides: Shape | None = None) -> Tensor:
        return self.tensor(shape, dtype, strides, virtual=True)

    def value(self, number: float, dtype: str = "float32", rank: int = 4) -> Tensor:
        """A tensor that is passed by value."""
        return self.tensor((1,) * rank, dtype, value=number)

    def add(self, row: str, **attributes: Any) -> None:
        self.nodes.append(
            node(row, **{name: value for name, value in attributes.items() if value is not None})
        )

    def pointwise(
        self,
        mode: str,
        x: Tensor,
        b: Tensor | None = None,
        t: Tensor | None = None,
        *,
        y: Tensor | None = None,
        dtype: str = "float32",
        compute: str | None = None,
        **attributes: Any,
    ) -> Tensor:
        """Add an elementwise node; its result is virtual, of the larger shape, unless it is given."""
        if y is None:
            largest = max((one for one in (x, b) if one), key=lambda one: one.spec.size)
            y = self.virtual(largest.spec.shape, dtype, largest.spec.strides)
        self.add(
            "pointwise",
            mode=mode,
            math_prec=compute or "float32",
            xdesc=x,
            bdesc=b,
            tdesc=t,
            ydesc=y,
            **attributes,
        )
        return y

    def pointwise_backward(self, mode: str, dy: Tensor, x: Tensor, dx: Tensor) -> Tensor:
        self.add("pointwise", mode=mode, math_prec="float32", dydesc=dy, xdesc=x, dxdesc=dx)
        return dx

    def reduce(self, operator: str, x: Tensor, shape: Shape, y: Tensor | None = None) -> Tensor:
        y = y or self.virtual(shape)
        self.add("reduction", operator=operator, comp_type="float32", xdesc=x, ydesc=y)
        return y

    def matmul(self, a: Tensor, b: Tensor, c: Tensor, compute: str = "float32", **attributes: Any) -> Tensor:
        self.add("matmul", comp_type=compute, adesc=a, bdesc=b, cdesc=c, **attributes)
        return c

    def inner(self) -> Draft:
        """Return a draft for a sub-graph, whose tensors are numbered with those of this one."""
        draft = Draft()
        draft._numbers = self._numbers
        return draft

    def subgraph(self, first: Tensor, last: Tensor) -> dict[str, Any]:
        """Return this draft as the attributes of a node that has it as its sub-graph."""
        uids = {"subgraph_input_uid": first.uid, "subgraph_output_uid": last.uid}
        return {"subgraph": Graph(tuple(self.nodes), ()), **uids}

    def kept(self, shape: Shape, dropout: float) -> Tensor:
        """Draw which elements a dropout keeps."""
        seed, offset = (self.input((1, 1, 1, 1), "int64") for _ in range(2))
        kept = self.virtual(shape)
        drawn = {"distribution": "bernoulli", "bernoulli_dist_probability": 1 - dropout}
        self.add("rng", **drawn, seed=seed, offset_desc=offset, ydesc=kept)
        return kept

    def graph(self) -> Graph:
        return Graph(tuple(self.nodes), (*self.inputs, *self.results))
