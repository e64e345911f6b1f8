"""The graph of a product of matrices of three axes, with its epilogue as pointwise nodes."""

from __future__ import annotations

from itertools import count

from ...graph.operations import Graph, Node, Tensor, node
from ...plans.base import tensors_of
from ...shapes.matmul import MatmulProblem
from ...shapes.specs import TensorSpec

__all__ = ["MODES", "matmul_graph"]

# The mode of the pointwise node of an activation, and its parameters.
MODES: dict[str, tuple[str, dict[str, float]]] = {
    "relu": ("relu_fwd", {}),
    "gelu": ("gelu_fwd", {}),
    "gelu_tanh": ("gelu_approx_tanh_fwd", {}),
    "silu": ("swish_fwd", {"swish_beta": 1.0}),
    "sigmoid": ("sigmoid_fwd", {}),
    "tanh": ("tanh_fwd", {}),
}


def matmul_graph(problem: MatmulProblem) -> Graph:
    """Return the graph of a problem; its operands have three axes, and the result's strides if its shape."""
    return _Builder(problem).graph()


class _Builder:
    """Makes the nodes one after another; each reads the result of the last."""

    def __init__(self, problem: MatmulProblem) -> None:
        self._problem = problem
        self._numbers = count(1)
        self._given = {name: Tensor(next(self._numbers), spec) for name, spec in tensors_of(problem).items()}
        # Sums of int8 are int32, those of all others float32, which the epilogue computes in.
        self._wide = problem.y._replace(dtype=problem.compute)
        # Whether y is not the value of which amax is computed. If it is, a node that copies it to y must be
        # left out: cuDNN 9.19 does not write the copy.
        self._rounded = "scale" in self._given or problem.y.dtype != "float32"

    def graph(self) -> Graph:
        problem, given = self._problem, self._given
        a, b = given["a"], given["b"]
        nodes: list[Node] = []
        if problem.b_scale:  # each int8 is exact in half precision
            converted = self._virtual(problem.b._replace(dtype=problem.a.dtype))
            nodes.append(node("pointwise", mode="identity", math_prec="float32", xdesc=b, ydesc=converted))
            b = converted
        steps = self._steps()
        last = self._virtual(self._wide) if steps else given["y"]
        nodes.append(node("matmul", comp_type=problem.compute, adesc=a, bdesc=b, cdesc=last))
        for place, step in enumerate(steps):
            read = last
            last = given["y"] if place == len(steps) - 1 else self._virtual(self._wide)
            nodes.append(node("pointwise", math_prec="float32", xdesc=read, ydesc=last, **step))
        if problem.amax:  # of the value before the last node, if that scales or rounds it
            whole = read if self._rounded else last
            nodes.append(
                node("reduction", operator="amax", comp_type="float32", xdesc=whole, ydesc=given["amax"])
            )
        return Graph(tuple(nodes), tuple(given.values()))

    def _steps(self) -> list[dict[str, object]]:
        """Return the attributes of the epilogue's nodes, without their first inputs and results."""
        problem, given = self._problem, self._given
        steps: list[dict[str, object]] = [
            {"mode": "mul", "bdesc": given[name]}
            for name in ("b_scale", "descale_a", "descale_b")
            if name in given
        ]
        if problem.alpha != 1:
            number = TensorSpec.packed((1, 1, 1), "float32")
            steps.append({"mode": "mul", "bdesc": Tensor(next(self._numbers), number, value=problem.alpha)})
        steps += [{"mode": "add", "bdesc": given[name]} for name in ("bias", "residual") if name in given]
        if problem.activation != "identity":
            mode, parameters = MODES[problem.activation]
            steps.append({"mode": mode, **parameters})
        if "scale" in given:
            steps.append({"mode": "mul", "bdesc": given["scale"]})
        elif problem.amax and self._rounded:
            steps.append({"mode": "identity"})
        return steps

    def _virtual(self, spec: TensorSpec) -> Tensor:
        return Tensor(next(self._numbers), spec, virtual=True)
