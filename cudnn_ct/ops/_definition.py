"""Operations that are defined by the builder of `ct.Graph`, and their native graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

from ..graph.operations import Graph
from ..plans.base import tensors_of
from .graph.activations import ActivationMethods
from .graph.arithmetic import ArithmeticMethods
from .graph.builder import TensorState
from .graph.native import native_graph
from .graph.norms import NormMethods
from .graph.products import ProductMethods
from .graph.tensors import GraphTensor

P = TypeVar("P")


def defines(graph_of: Callable[[P], Graph]) -> Callable[[P], Graph]:
    """Decorate a function that returns the native graph of a problem: a first call needs it several times."""
    # 0.0 and -0.0 are equal parameters of different graphs, so the text of the problem is a key, too.
    cached = lru_cache(256)(lambda problem, _: graph_of(problem))
    return wraps(graph_of)(lambda problem: cached(problem, repr(problem)))


class Definition(ArithmeticMethods, ActivationMethods, ProductMethods, NormMethods):
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
