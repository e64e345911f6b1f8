"""Graphs of convolutions with parts of a batch normalisation, and their engines."""

from __future__ import annotations

from itertools import count
from typing import Any

from ...graph.operations import Graph, Node, Tensor, node
from ...plans.base import tensors_of
from ...shapes.specs import TensorSpec
from ...shapes.training_fusions import BatchNormFinalize, DataGradient, FilterGradient, StatisticsProblem
from .._graph_source import GraphSource
from .._reduced_source import packed_source
from .graph_nodes import channels_last, conv_node, packed_operands

_FINALIZED = {
    "sums": "y_sum_desc",
    "square_sums": "y_sq_sum_desc",
    "scale": "scale_desc",
    "bias": "bias_desc",
    "running_mean": "prev_running_mean_desc",
    "running_var": "prev_running_var_desc",
    "eq_scale": "eq_scale_desc",
    "eq_bias": "eq_bias_desc",
    "mean": "saved_mean_desc",
    "invstd": "saved_inv_std_desc",
    "next_mean": "updated_running_mean_desc",
    "next_var": "updated_running_var_desc",
}
_WEIGHTS = {
    "x": "x_desc",
    "dz": "dy_desc",
    "mean": "mean_desc",
    "invstd": "invstd_desc",
    "scale": "bn_scale_desc",
    "dscale": "dbn_scale_desc",
    "dbias": "dbn_bias_desc",
    "eq_dz_scale": "eq_dy_scale_desc",
    "eq_x_scale": "eq_x_scale_desc",
    "eq_bias": "eq_bias",
}


class _Builder:
    """Makes the tensors of a problem, and nodes that read the results of others."""

    def __init__(self, problem: Any, rank: int) -> None:
        self._numbers = count(1)
        self._rank = rank
        self.given = {name: self._tensor(spec) for name, spec in tensors_of(problem).items()}
        self.nodes: list[Node] = []

    def pointwise(self, mode: str, x: Tensor, b: Tensor | None = None, dtype: str = "float32") -> Tensor:
        """Add a node whose result has the shape of x; return the result."""
        y = Tensor(next(self._numbers), x.spec._replace(dtype=dtype), virtual=True)
        other = {} if b is None else {"bdesc": b}
        self.nodes.append(node("pointwise", mode=mode, math_prec="float32", xdesc=x, **other, ydesc=y))
        return y

    def scaled_relu(self) -> Tensor:
        """Add ``relu(x * scale + bias)`` in the dtype of x, which the engines match node by node."""
        x = self.given["x"]
        sums = self.pointwise("add", self.pointwise("mul", x, self.given["scale"]), self.given["bias"])
        return self.pointwise("relu_fwd", sums, dtype=x.spec.dtype)

    def virtual(self, like: Tensor) -> Tensor:
        """Return a float32 tensor of the same shape that is not in memory."""
        return Tensor(next(self._numbers), like.spec._replace(dtype="float32"), virtual=True)

    def value(self, number: float, dtype: str = "float32") -> Tensor:
        """Return a number that is passed by value."""
        spec = TensorSpec.packed((1,) * self._rank, dtype)
        return Tensor(next(self._numbers), spec, value=number)

    def graph(self) -> Graph:
        """Return the graph of the nodes, with the operands in the order of a run's pointers."""
        return Graph(tuple(self.nodes), tuple(self.given.values()))

    def _tensor(self, spec: TensorSpec) -> Tensor:
        if len(spec.shape) == 1:  # an element for each channel
            spec = spec._replace(shape=(1, spec.size, *[1] * (self._rank - 2)))
        return Tensor(next(self._numbers), channels_last(spec))


def statistics_graph(problem: StatisticsProblem) -> Graph:
    """Return the graph of a convolution with statistics; its operands have channels last."""
    made = _Builder(problem, len(problem.x.shape))
    data = made.scaled_relu() if problem.scale else made.given["x"]
    y = made.given["y"]
    made.nodes.append(conv_node(problem.core, x=data, w=made.given["w"], y=y))
    made.nodes.append(
        node(
            "gen_stats",
            mode="sum_sqsum",
            math_prec="float32",
            xdesc=y,
            sumdesc=made.given["sums"],
            sqsumdesc=made.given["square_sums"],
        )
    )
    return made.graph()


def finalize_graph(problem: BatchNormFinalize) -> Graph:
    """Return the graph of one node that computes statistics from sums."""
    made = _Builder(problem, 4)
    made.nodes.append(
        node(
            "bn_finalize_statistics",
            stats_mode="training",
            math_prec="float32",
            epsilon_desc=made.value(problem.epsilon),
            exp_averate_factor_desc=made.value(problem.momentum),
            accum_count_desc=made.value(problem.elements, "int64"),
            **{attribute: made.given[name] for name, attribute in _FINALIZED.items()},
        )
    )
    return made.graph()


def data_graph(problem: DataGradient) -> Graph:
    """Return the graph of the gradients of a convolution's data, a relu and a batch normalisation."""
    made = _Builder(problem, len(problem.x.shape))
    given = made.given
    slope = made.virtual(given["dz"])
    made.nodes.append(conv_node(problem.core, y=given["dy"], w=given["w"], x=slope))
    value = made.pointwise("mul", made.pointwise("sub", given["x"], given["mean"]), given["invstd"])
    value = made.pointwise("add", made.pointwise("mul", value, given["scale"]), given["bias"])
    made.nodes.append(
        node("pointwise", mode="relu_bwd", math_prec="float32", dydesc=slope, xdesc=value, dxdesc=given["dz"])
    )
    written = {attribute: given[name] for name, attribute in _WEIGHTS.items()}
    made.nodes.append(node("bn_backward_weights", math_prec="float32", **written))
    return made.graph()


def filter_graph(problem: FilterGradient) -> Graph:
    """Return the graph of the gradient of a filter whose data are scaled, shifted and cut at 0."""
    made = _Builder(problem, len(problem.x.shape))
    data = made.scaled_relu()
    made.nodes.append(conv_node(problem.core, y=made.given["dy"], x=data, w=made.given["dw"]))
    return made.graph()


STATISTICS_SOURCE = packed_source(GraphSource(statistics_graph), packed_operands)
FINALIZE_SOURCE = packed_source(GraphSource(finalize_graph), packed_operands)
DATA_SOURCE = packed_source(GraphSource(data_graph), packed_operands)
FILTER_SOURCE = packed_source(GraphSource(filter_graph), packed_operands)
