"""The graph of a convolution of float8 with scales."""

from __future__ import annotations

from functools import partial
from itertools import count

from ...graph.operations import Graph, Tensor
from ...plans.base import tensors_of
from ...shapes.float8_conv import Float8Conv
from ...shapes.specs import TensorSpec
from .._epilogue import nodes_with_epilogue
from .._graph_source import GraphSource
from .._reduced_source import packed_source
from .graph_nodes import conv_node
from .scaled_graph import channels_last, packed_operands


def float8_conv_graph(problem: Float8Conv) -> Graph:
    """Return the graph of a problem whose operands are contiguous with channels last."""
    numbers, rank = count(1), len(problem.x.shape)

    def tensor(spec: TensorSpec, virtual: bool = False) -> Tensor:
        whole = spec if len(spec.shape) == rank else spec._replace(shape=(1,) * rank)  # a scale, or amax
        return Tensor(next(numbers), channels_last(whole), virtual)

    given = {name: tensor(spec) for name, spec in tensors_of(problem).items()}
    nodes = nodes_with_epilogue(
        lambda y: conv_node(problem.core, x=given["x"], w=given["w"], y=y),
        given,
        partial(tensor, problem.y._replace(dtype="float32"), virtual=True),
        factors=[given[name] for name in ("descale_x", "descale_w") if name in given],
        added=[given["bias"]] if problem.bias else [],
        activation=problem.activation,
    )
    return Graph(tuple(nodes), tuple(given.values()))


SOURCE = packed_source(GraphSource(float8_conv_graph), packed_operands)
