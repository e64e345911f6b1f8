"""Operations that are defined by the builder of `ct.Graph`, and their native graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

from ..graph.operations import Graph
from ..plans.base import tensors_of
from ..shapes.fused import Float8Conv
from ..shapes.matmul import MatmulProblem
from .graph.arithmetic import PointwiseMethods
from .graph.native import native_graph
from .graph.products import NormMethods, ProductMethods
from .graph.tensors import GraphTensor, Operand, TensorState

P = TypeVar("P")


def defines(graph_of: Callable[[P], Graph]) -> Callable[[P], Graph]:
    """Decorate a function that returns the native graph of a problem: a first call needs it several times."""
    # 0.0 and -0.0 are equal parameters of different graphs, so the text of the problem is a key, too.
    cached = lru_cache(256)(lambda problem, _: graph_of(problem))
    return wraps(graph_of)(lambda problem: cached(problem, repr(problem)))


class Definition(PointwiseMethods, ProductMethods, NormMethods):
    """The graph of a problem while it is defined; ``given`` has the operands as inputs, by name."""

    def __init__(self, problem: Any, compute: str = "float32") -> None:
        super().__init__(intermediate_dtype=compute, compute_dtype=compute)
        self._specs = tensors_of(problem)
        operands = list(self._specs.items())[: -len(problem.results)]
        # Operands of calls may have larger strides than inputs of users.
        self.given = {name: self._new(TensorState(name, spec, "input")) for name, spec in operands}
        self._converted = set[str]()

    def converted(self, tensor: GraphTensor) -> GraphTensor:
        """Return a tensor in the dtype that its product computes in, in the memory order that it has."""
        made = self.identity(tensor)
        state, strides = self._states[made._place], self._states[tensor._place].spec.strides
        self._states[made._place] = state._replace(spec=state.spec._replace(strides=strides))
        self._converted.add(state.name)
        return made

    def graph(self, **results: GraphTensor) -> Graph:
        """Return the native graph of the results, with the operands in the order of a run's pointers."""
        for name, tensor in results.items():
            _, strides, dtype = self._specs[name]
            state = self._states[tensor._place]
            self._states[tensor._place] = state._replace(dtype=dtype, strides=strides)
        problem, first = self.define(*results.values()), self._specs[next(iter(results))]
        self.given.clear()  # they refer to this
        # Engines compare strides, also those of tensors without memory.
        values = [
            value._replace(spec=value.spec._replace(strides=first.strides))
            if value.role == "virtual"
            and value.spec.shape == first.shape
            and value.name not in self._converted
            else value
            for value in problem.values
        ]
        return native_graph(problem._replace(values=tuple(values)))


# --- the operations after a product or convolution ---------------------------------------------------------

_FACTORS = ("b_scale", "descale_a", "descale_b", "descale_x", "descale_w")
_ADDED = ("bias", "residual")

# The methods of activations with other names, and their parameters.
_METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "gelu_tanh": ("gelu", {"approximate": True}),
    "silu": ("swish", {}),
}


def graph_with_epilogue(
    g: Definition, problem: MatmulProblem | Float8Conv, y: GraphTensor, alpha: float = 1.0
) -> Graph:
    """Return the graph of ``scale * act(factors * alpha * y + added)``, and of amax before ``scale``."""
    given = g.given
    factors: list[Operand] = [given[name] for name in _FACTORS if name in given]
    for factor in [*factors, alpha] if alpha != 1 else factors:
        y = y * factor
    for name in _ADDED:
        y = y + given[name] if name in given else y
    if problem.activation != "identity":
        method, parameters = _METHODS.get(problem.activation, (problem.activation, {}))
        y = getattr(g, method)(y, **parameters)
    written = y
    if "scale" in given:
        written = y * given["scale"]
    elif problem.amax and problem.y.dtype != "float32":
        # amax is that of the value before it is rounded. cuDNN 9.19 does not write exact copies.
        written = g.identity(y)
    return g.graph(y=written, **({"amax": g.reduce(y, "amax")} if problem.amax else {}))
