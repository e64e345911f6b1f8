"""The graph of attention of float8 operands, whose operations are in the order of nvidia-cudnn-frontend.

cuDNN recognises the pattern only if all scales and both largest magnitudes are in it. With lengths, a kernel
leaves out the rows of a tile that are no queries.
"""

from __future__ import annotations

from ...graph.operations import Graph, Tensor, node
from ...plans.base import tensors_of
from ...shapes.scaled_attention import ScaledAttentionProblem
from ...shapes.specs import Shape, TensorSpec
from .graph import MASKED, SCALAR, NodeBuilder, transposed


def scaled_attention_graph(problem: ScaledAttentionProblem) -> Graph:
    """Return the graph of a problem that has all scales and amax; it has the operands of the problem."""
    return _Builder(problem).graph()


class _Builder(NodeBuilder):
    """Makes the nodes one after another; each reads the result of the last."""

    def __init__(self, problem: ScaledAttentionProblem) -> None:
        super().__init__()
        self._problem = problem
        sizes = problem.sizes
        self._scores: Shape = (sizes.batch, sizes.heads, sizes.queries, sizes.keys)
        self._rows: Shape = (sizes.batch, sizes.heads, sizes.queries, 1)
        self._given = {name: self._operand(name) for name in tensors_of(problem)}

    def graph(self) -> Graph:
        given = self._given
        scores = self._virtual(self._scores)
        self._matmul(given["q"], transposed(given["k"]), scores)
        scores = self._pointwise("mul", scores, self._value(self._problem.scale))
        for name in ("descale_q", "descale_k"):
            scores = self._pointwise("mul", scores, given[name])
        weights = self._softmax(self._masked(scores))
        # Its memory is not read: it says nothing about scale_s, because kernels scale weights of at most 1.
        self._largest(weights, Tensor(self._next(), TensorSpec.packed(SCALAR), scratch=True))
        rounded = self._virtual(self._scores, self._problem.q.dtype)
        self._pointwise("mul", weights, given["scale_s"], y=rounded)
        result = self._virtual(given["y"].spec.shape)
        self._matmul(rounded, given["v"], result)
        for name in ("descale_s", "descale_v"):
            result = self._pointwise("mul", result, given[name])
        self._pointwise("mul", result, given["scale_o"], y=given["y"])
        self._largest(result, given["amax"])
        return Graph(tuple(self.nodes), tuple(given.values()))

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
        return Tensor(self._next(), spec)

    def _matmul(self, a: Tensor, b: Tensor, c: Tensor) -> None:
        self.nodes.append(node("matmul", comp_type="float32", adesc=a, bdesc=b, cdesc=c))

    def _largest(self, x: Tensor, y: Tensor) -> None:
        self._reduce("amax", x, y)
