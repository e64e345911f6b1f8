"""The graph of a product of matrices of three axes, with its epilogue as pointwise nodes."""

from __future__ import annotations

from functools import partial
from itertools import count

from ...graph.operations import Graph, Node, Tensor, node
from ...plans.base import tensors_of
from ...shapes.matmul import MatmulProblem
from ...shapes.specs import TensorSpec
from .._epilogue import nodes_with_epilogue


def matmul_graph(problem: MatmulProblem) -> Graph:
    """Return the graph of a problem; its operands have three axes, and the result's strides if its shape."""
    numbers = count(1)
    given = {name: Tensor(next(numbers), spec) for name, spec in tensors_of(problem).items()}

    def virtual(spec: TensorSpec) -> Tensor:
        return Tensor(next(numbers), spec, virtual=True)

    b, nodes = given["b"], list[Node]()
    if problem.b.dtype == "int8" != problem.a.dtype:  # each int8 is exact in half precision
        b = virtual(problem.b._replace(dtype=problem.a.dtype))
        nodes.append(node("pointwise", mode="identity", math_prec="float32", xdesc=given["b"], ydesc=b))
    factors = [given[name] for name in ("b_scale", "descale_a", "descale_b") if name in given]
    if problem.alpha != 1:
        factors.append(Tensor(next(numbers), TensorSpec.packed((1, 1, 1), "float32"), value=problem.alpha))
    # Sums of int8 are int32, those of all others float32, which the epilogue computes in.
    wide = problem.y._replace(dtype=problem.compute)
    nodes += nodes_with_epilogue(
        lambda y: node("matmul", comp_type=problem.compute, adesc=given["a"], bdesc=b, cdesc=y),
        given,
        partial(virtual, wide),
        factors=factors,
        added=[given[name] for name in ("bias", "residual") if name in given],
        activation=problem.activation,
    )
    return Graph(tuple(nodes), tuple(given.values()))
