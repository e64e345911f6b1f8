"""Graphs of attention: products, masks and the softmax as single operations, which cuDNN fuses.

cuDNN recognises the pattern of its operations and runs one kernel, whose intermediate matrices never reach
memory. The pattern is that of nvidia-cudnn-frontend, because its order decides which kernels match. The
single operations for attention (``sdpa_forward``) support masks, dropout and gradients of a bias in newer
versions only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...graph.operations import Graph, Node, Tensor, node
from ...shapes.attention import AttentionProblem
from ...shapes.specs import Shape, TensorSpec, packed_strides

MASKED = float("-inf")
SCALAR = (1, 1, 1, 1)


class OperandGraph(NamedTuple):
    """A graph, and the names of its operands: fields of the problem, or memory that a plan adds."""

    graph: Graph
    names: tuple[str, ...]  # "sums" and "dq_sums" are float32 buffers between the kernels of a gradient


def graph_of(problem: AttentionProblem) -> Graph:
    """Return the graph of a problem as `core.core_of` returns it."""
    return named_graph(problem).graph


def named_graph(problem: AttentionProblem) -> OperandGraph:
    """Return the graph of a problem of `core.core_of`, with the names of its operands."""
    nodes = _Nodes(problem)
    (nodes.backward if problem.dy else nodes.forward)()
    return OperandGraph(Graph(tuple(nodes.nodes), tuple(nodes.operands.values())), tuple(nodes.operands))


class NodeBuilder:
    """Makes the tensors and the nodes of one graph, which are numbered in the order of the computation."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._uid = 0

    def _next(self) -> int:
        self._uid += 1
        return self._uid

    def _virtual(self, shape: Shape, dtype: str = "float32", strides: Shape | None = None) -> Tensor:
        return Tensor(self._next(), TensorSpec(shape, strides or packed_strides(shape), dtype), virtual=True)

    def _value(self, value: float, dtype: str = "float32") -> Tensor:
        return Tensor(self._next(), TensorSpec.packed(SCALAR, dtype), value=value)

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
        shape = max(x.spec.shape, b.spec.shape if b else x.spec.shape)
        dtype = compute if compute in ("int32", "bool") else "float32"
        y = y or self._virtual(shape, dtype)
        tensors = {"xdesc": x, "bdesc": b, "tdesc": t, "ydesc": y}
        given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        self.nodes.append(node("pointwise", mode=mode, math_prec=compute, **parameters, **given))
        return y

    def _reduce(self, operator: str, x: Tensor, y: Tensor) -> Tensor:
        self.nodes.append(node("reduction", operator=operator, comp_type="float32", xdesc=x, ydesc=y))
        return y

    def _indices(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        row, column = (self._pointwise("gen_index", scores, compute="int32", axis=axis) for axis in (2, 3))
        return row, column

    def _select(self, scores: Tensor, kept: Tensor) -> Tensor:
        return self._pointwise("binary_select", scores, self._value(MASKED), kept)

    def _within(self, scores: Tensor, lengths_q: Tensor, lengths_kv: Tensor) -> Tensor:
        """Mask keys and queries behind the lengths."""
        row, column = self._indices(scores)
        row = self._pointwise("cmp_lt", row, lengths_q, compute="bool")
        column = self._pointwise("cmp_lt", column, lengths_kv, compute="bool")
        return self._select(scores, self._pointwise("logical_and", row, column, compute="bool"))

    def _exponentials(
        self, scores: Tensor, rows: Shape, stats: Callable[[], Tensor | None]
    ) -> tuple[Tensor, Tensor]:
        """Return the weights before their division, and their sums; write the logarithms to ``stats``."""
        highest = self._reduce("max", scores, self._virtual(rows))
        weights = self._pointwise("exp", self._pointwise("sub", scores, highest))
        total = self._reduce("add", weights, self._virtual(rows))
        # cuDNN has no engine for the pattern without statistics.
        written = stats() or self._virtual(rows)
        self._pointwise("add", highest, self._pointwise("log", total), y=written)
        return weights, total


class _Nodes(NodeBuilder):
    def __init__(self, problem: AttentionProblem) -> None:
        super().__init__()
        self.problem = problem
        self.sizes = sizes = problem.sizes
        self.operands: dict[str, Tensor] = {}
        self.scores = (sizes.batch, sizes.heads, sizes.queries, sizes.keys)
        self.rows = (sizes.batch, sizes.heads, sizes.queries, 1)
        self.dtype = problem.q.dtype
        # The backward pass lists its operands in the order of the problem, too.
        self.lengths = (self._operand("lengths_q"), self._operand("lengths_kv"))

    def _operand(self, name: str, ragged: str = "", spec: TensorSpec | None = None) -> Tensor | None:
        """Return the tensor in memory of a field of the problem, None if the problem lacks it."""
        if name in self.operands:
            return self.operands[name]
        spec = spec or getattr(self.problem, name)
        if spec is None:
            return None
        starts = self._operand(ragged) if ragged else None
        self.operands[name] = tensor = Tensor(self._next(), spec, ragged=starts)
        return tensor

    def _given(self, name: str, ragged: str = "", spec: TensorSpec | None = None) -> Tensor:
        if (tensor := self._operand(name, ragged, spec)) is None:
            raise ValueError(f"the problem lacks {name}")
        return tensor

    def _matmul(
        self, a: Tensor, b: Tensor, c: Tensor, *, overrides: str, padding: float | None = None
    ) -> Tensor:
        """Add ``c = a @ b``; ``overrides`` are the sizes that the lengths of q and of k limit."""
        given: dict[str, Any] = {} if padding is None else {"padding_value": padding}
        for axis, lengths in zip(overrides, self.lengths, strict=True):
            if lengths is not None:
                given[f"gemm_{axis}_override_desc"] = lengths
        self.nodes.append(node("matmul", comp_type="float32", adesc=a, bdesc=b, cdesc=c, **given))
        return c

    def _reshape(self, x: Tensor, y: Tensor) -> Tensor:
        self.nodes.append(node("reshape", xdesc=x, ydesc=y))
        return y

    def _loaded(self, name: str, ragged: str) -> Tensor:
        """Return k or v; of a paged cache, the virtual tensor of its sequences."""
        problem, sizes = self.problem, self.sizes
        tensor = self._given(name, ragged)
        if problem.page_table is None:
            return tensor
        shape = (sizes.batch, sizes.kv_heads, sizes.keys, tensor.spec.shape[3])
        loaded = self._virtual(shape, self.dtype)
        written = transposed(loaded) if name == "k" else loaded
        name = "page_table" if name == "k" else "page_table_v"
        table = self._given(name, spec=problem.page_table_v or problem.page_table)
        places = {"sequence_desc": self.lengths[1], "page_table_desc": table}
        self.nodes.append(node("paged_cache_load", container_desc=tensor, ydesc=written, **places))
        return loaded

    def _scores(self, q: Tensor, k: Tensor, *, padded: bool) -> Tensor:
        """Return ``scale * q @ k.T + bias``."""
        padding = 0.0 if padded and self.lengths[0] is not None else None
        scores = self._virtual(self.scores)
        scores = self._matmul(q, transposed(k), scores, overrides="mn", padding=padding)
        scores = self._pointwise("mul", scores, self._value(self.problem.scale))
        bias = self._operand("bias")
        return self._pointwise("add", scores, bias) if bias else scores

    def _masked(self, scores: Tensor) -> Tensor:
        """Mask keys and queries behind the lengths, and keys outside the band."""
        lengths_q, lengths_kv = self.lengths
        band, sizes = self.problem.band, self.sizes
        if lengths_q is not None:
            scores = self._within(scores, lengths_q, self._given("lengths_kv"))
        shifted = band.corner == "bottom_right"
        if band.right is not None:
            row, column = self._indices(scores)
            if shifted:
                keys = lengths_kv or self._value(sizes.keys, "int32")
                queries = lengths_q or self._value(sizes.queries, "int32")
                row = self._pointwise("add", row, keys, compute="int32", axis=3)
                row = self._pointwise("sub", row, queries, compute="int32", axis=3)
            if band.right:
                row = self._pointwise("add", row, self._value(band.right, "int32"), compute="int32", axis=3)
            scores = self._select(scores, self._pointwise("cmp_ge", row, column, compute="bool"))
        if band.left is not None:
            # cuDNN keeps the columns with column + bound > row: the bound counts the query's own place.
            bound = band.left + 1
            row, column = self._indices(scores)
            if shifted and lengths_q is not None:
                column = self._pointwise("add", column, self._value(bound, "int32"), compute="int32", axis=3)
                column = self._pointwise("sub", column, lengths_kv, compute="int32", axis=3)
                column = self._pointwise("add", column, lengths_q, compute="int32", axis=3)
            else:
                bound -= band.shift(sizes.queries, sizes.keys)
                column = self._pointwise("add", column, self._value(float(bound)), axis=3)
            scores = self._select(scores, self._pointwise("cmp_gt", column, row, compute="bool"))
        return scores

    def _kept(self) -> Tensor | None:
        """Return the random matrix of ones and zeros of dropout; None without dropout."""
        if not (rate := self.problem.dropout):
            return None
        seed, offset = self._given("seed"), self._given("offset")
        kept = self._virtual(self.scores)
        chance = {"distribution": "bernoulli", "bernoulli_dist_probability": 1 - rate}
        self.nodes.append(node("rng", **chance, ydesc=kept, seed=seed, offset_desc=offset))
        return kept

    def forward(self) -> None:
        rate = self.problem.dropout
        k = self._loaded("k", "starts_k")
        q = self._given("q", "starts_q")
        scores = self._masked(self._scores(q, k, padded=True))
        weights, total = self._exponentials(scores, self.rows, lambda: self._operand("stats", "starts_stats"))
        narrow = self._virtual(self.scores, self.dtype)
        weights = self._pointwise("div", weights, total, y=None if rate else narrow)
        if (kept := self._kept()) is not None:
            weights = self._pointwise("mul", weights, kept)
            weights = self._pointwise("mul", weights, self._value(1 / (1 - rate)), y=narrow)
        v = self._loaded("v", "starts_v")
        y = self._given("y", "starts_y")
        self._matmul(weights, v, y, overrides="mk")

    def backward(self) -> None:
        """Add the nodes of the backward pass: the formulas are those of `cudnn_ct.attention_backward`."""
        problem, rate = self.problem, self.problem.dropout
        dy, y = self._given("dy", "starts_y"), self._given("saved_y", "starts_y")
        q, k, v = (self._given(name, f"starts_{name}") for name in "qkv")
        stats = self._given("saved_stats", "starts_stats")
        kept = self._kept()

        total = self._reduce("add", self._pointwise("mul", dy, y), self._virtual(self.rows))
        sums = self._given("sums", spec=TensorSpec.packed(self.rows))
        self._pointwise("mul", total, self._value(1 - rate), y=sums)

        scores = self._pointwise("sub", self._scores(q, k, padded=False), stats)
        weights = self._pointwise("exp", self._masked(scores))
        dropped = weights
        if kept is not None:
            dropped = self._pointwise("mul", weights, kept)
            dropped = self._pointwise("mul", dropped, self._value(1 / (1 - rate)))
        self._sum_of_queries(dropped, dy, "dv", "starts_v")

        gradient = self._matmul(dy, transposed(v), self._virtual(self.scores), overrides="mn")
        if kept is not None:
            gradient = self._pointwise("mul", gradient, kept)
        gradient = self._pointwise("mul", self._pointwise("sub", gradient, sums), weights)
        if kept is not None:
            gradient = self._pointwise("mul", gradient, self._value(1 / (1 - rate)))
        if problem.dbias is not None:
            self._reduce("add", gradient, self._given("dbias"))
        gradient = self._pointwise("mul", gradient, self._value(problem.scale))
        self._sum_of_queries(gradient, q, "dk", "starts_k")

        keys = self._reshape(transposed(k), Tensor(self._next(), k.spec, virtual=True, ragged=k.ragged))
        dq = self._given("dq", "starts_q")
        if problem.deterministic or problem.dbias is not None:
            # All products of a row are in the workspace, so that they are added in one order.
            self._matmul(gradient, keys, dq, overrides="mk")
        else:
            shape = (*self.rows[:3], self.sizes.head)
            partial = self._given("dq_sums", spec=TensorSpec.packed(shape))
            self._matmul(gradient, keys, partial, overrides="mk")
            self._pointwise("identity", partial, y=dq)

    def _sum_of_queries(self, matrix: Tensor, of_queries: Tensor, name: str, ragged: str) -> None:
        """Add ``result = matrix.T @ of_queries``, summed over the query heads of each key head."""
        batch, heads, queries, keys = self.scores
        strides = packed_strides(self.scores)
        turned = self._virtual((batch, heads, keys, queries), self.dtype, (*strides[:2], 1, keys))
        self._reshape(matrix, turned)
        result = self._given(name, ragged)
        if self.sizes.heads == self.sizes.kv_heads:
            self._matmul(turned, of_queries, result, overrides="km")
            return
        all_heads = self._virtual((batch, heads, keys, of_queries.spec.shape[3]), self.dtype)
        self._matmul(turned, of_queries, all_heads, overrides="km")
        self._reduce("add", all_heads, result)


def transposed(tensor: Tensor) -> Tensor:
    """Return a tensor with its last two axes exchanged; it is the same memory."""
    *batch, rows, columns = tensor.spec.shape
    *steps, of_row, of_column = tensor.spec.strides
    spec = TensorSpec((*batch, columns, rows), (*steps, of_column, of_row), tensor.spec.dtype)
    return tensor._replace(spec=spec)
