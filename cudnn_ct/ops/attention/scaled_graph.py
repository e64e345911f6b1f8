"""The graph of attention of float8 operands, whose operations are in the order of nvidia-cudnn-frontend.

cuDNN recognises the pattern only if all scales and both largest magnitudes are in it. With lengths, a kernel
leaves out the rows of a tile that are no queries.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from ...graph.operations import Graph, Node, Tensor, node
from ...plans.base import tensors_of
from ...shapes.scaled_attention import ScaledAttentionProblem
from ...shapes.specs import Shape, TensorSpec
from .graph import MASKED, SCALAR


def scaled_attention_graph(problem: ScaledAttentionProblem) -> Graph:
    """Return the graph of a problem that has all scales and amax; it has the operands of the problem."""
    return _Builder(problem).graph()


class _Builder:
    """Makes the nodes one after another; each reads the result of the last."""

    def __init__(self, problem: ScaledAttentionProblem) -> None:
        self._problem = problem
        self._numbers = count(1)
        self._nodes: list[Node] = []
        sizes = problem.sizes
        self._scores: Shape = (sizes.batch, sizes.heads, sizes.queries, sizes.keys)
        self._rows: Shape = (sizes.batch, sizes.heads, sizes.queries, 1)
        self._given = {name: self._operand(name) for name in tensors_of(problem)}

    def graph(self) -> Graph:
        given = self._given
        scores = self._virtual(self._scores)
        self._matmul(given["q"], _transposed(given["k"]), scores)
        scores = self._pointwise("mul", scores, self._value(self._problem.scale))
        for name in ("descale_q", "descale_k"):
            scores = self._pointwise("mul", scores, given[name])
        weights = self._softmax(self._masked(scores))
        # Its memory is not read: it says nothing about scale_s, because kernels scale weights of at most 1.
        self._largest(weights, Tensor(next(self._numbers), TensorSpec.packed(SCALAR), scratch=True))
        rounded = self._virtual(self._scores, self._problem.q.dtype)
        self._pointwise("mul", weights, given["scale_s"], y=rounded)
        result = self._virtual(given["y"].spec.shape)
        self._matmul(rounded, given["v"], result)
        for name in ("descale_s", "descale_v"):
            result = self._pointwise("mul", result, given[name])
        self._pointwise("mul", result, given["scale_o"], y=given["y"])
        self._largest(result, given["amax"])
        return Graph(tuple(self._nodes), tuple(given.values()))

    def _masked(self, scores: Tensor) -> Tensor:
        if self._problem.lengths_q:
            row, column = self._indices(scores)
            row = self._pointwise("cmp_lt", row, self._given["lengths_q"], compute="bool")
            column = self._pointwise("cmp_lt", column, self._given["lengths_kv"], compute="bool")
            scores = self._kept(scores, self._pointwise("logical_and", row, column, compute="bool"))
        if self._problem.causal:
            row, column = self._indices(scores)
            scores = self._kept(scores, self._pointwise("cmp_ge", row, column, compute="bool"))
        return scores

    def _indices(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the places of the queries and of the keys."""
        row, column = (self._pointwise("gen_index", scores, compute="int32", axis=axis) for axis in (2, 3))
        return row, column

    def _kept(self, scores: Tensor, kept: Tensor) -> Tensor:
        return self._pointwise("binary_select", scores, self._value(MASKED), kept)

    def _softmax(self, scores: Tensor) -> Tensor:
        highest = self._reduce("max", scores, self._virtual(self._rows))
        weights = self._pointwise("exp", self._pointwise("sub", scores, highest))
        total = self._reduce("add", weights, self._virtual(self._rows))
        stats = self._given.get("stats") or self._virtual(self._rows)
        self._pointwise("add", highest, self._pointwise("log", total), y=stats)
        return self._pointwise("div", weights, total)

    # --- tensors ---------------------------------------------------------------------------------------

    def _operand(self, name: str) -> Tensor:
        spec: TensorSpec = getattr(self._problem, name)
        if name == "stats":
            spec = TensorSpec.packed((*spec.shape, 1), spec.dtype)
        elif len(spec.shape) < 4:
            spec = TensorSpec.packed((spec.size, 1, 1, 1), spec.dtype)
        return Tensor(next(self._numbers), spec)

    def _virtual(self, shape: Shape, dtype: str = "float32") -> Tensor:
        return Tensor(next(self._numbers), TensorSpec.packed(shape, dtype), virtual=True)

    def _value(self, value: float) -> Tensor:
        return Tensor(next(self._numbers), TensorSpec.packed(SCALAR, "float32"), value=value)

    # --- nodes -----------------------------------------------------------------------------------------

    def _pointwise(
        self,
        mode: str,
        x: Tensor,
        b: Tensor | None = None,
        t: Tensor | None = None,
        y: Tensor | None = None,
        compute: str = "float32",
        **parameters: Any,
    ) -> Tensor:
        y = y or self._virtual(x.spec.shape, compute)
        tensors = {"xdesc": x, "bdesc": b, "tdesc": t, "ydesc": y}
        given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        self._nodes.append(node("pointwise", mode=mode, math_prec=compute, **parameters, **given))
        return y

    def _matmul(self, a: Tensor, b: Tensor, c: Tensor) -> None:
        self._nodes.append(node("matmul", comp_type="float32", adesc=a, bdesc=b, cdesc=c))

    def _reduce(self, operator: str, x: Tensor, y: Tensor) -> Tensor:
        self._nodes.append(node("reduction", operator=operator, comp_type="float32", xdesc=x, ydesc=y))
        return y

    def _largest(self, x: Tensor, y: Tensor) -> None:
        self._reduce("amax", x, y)


def _transposed(tensor: Tensor) -> Tensor:
    """Return a tensor with its last two axes exchanged; it is the same memory."""
    *batch, rows, columns = tensor.spec.shape
    *steps, of_row, of_column = tensor.spec.strides
    spec = TensorSpec((*batch, columns, rows), (*steps, of_column, of_row), tensor.spec.dtype)
    return tensor._replace(spec=spec)
