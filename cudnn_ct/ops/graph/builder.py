"""The state of a graph while it is defined: operations and outputs; and its checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from ..._config import config
from ...dtypes import DTYPES, as_dtype
from ...shapes.arithmetic import HALF
from ...shapes.checks import FLOATS, as_float
from ...shapes.graph.kinds import KINDS
from ...shapes.graph.problem import PRODUCT_KINDS, GraphNode, GraphProblem, GraphValue
from ...shapes.specs import TensorSpec, check_shape
from ...typing import DTypeLike, Layout
from .tensors import GraphTensor, GraphTensors, Operand, TensorState, dtype_in_memory, strides_of


class GraphBuilder(GraphTensors):
    """Tensors and operations in the order of their definition."""

    def __init__(
        self, *, intermediate_dtype: DTypeLike = "float32", compute_dtype: DTypeLike = "float32"
    ) -> None:
        super().__init__()
        self._intermediate = as_dtype(intermediate_dtype).name
        self._compute = as_dtype(compute_dtype).name
        self._nodes: list[GraphNode] = []

    def input(
        self,
        shape: Iterable[int],
        dtype: DTypeLike = "float32",
        *,
        strides: Iterable[int] | None = None,
        layout: Layout | None = None,
        name: str | None = None,
    ) -> GraphTensor:
        """Return an input of the graph: an array that each call passes.

        Parameters
        ----------
        shape : tuple of int
            Without axes of length 0.
        dtype : optional
            Any but bool.
        strides : tuple of int, optional
            In elements; contiguous by default. Arrays of a call must have these strides.
        layout : {"nchw", "nhwc"}, optional
            A contiguous layout instead of ``strides``.
        name : str, optional
            Name of the argument; ``input_0``, ``input_1`` and so on by default.
        """
        dims = check_shape(shape)
        if not dims or 0 in dims:
            raise ValueError(
                f"shape is empty: got {dims}, expected at least one axis and lengths of at least 1"
            )
        if name in ("out", "stream"):
            raise ValueError(f"name is an argument of calls: got {name!r}, expected another one")
        count = sum(state.role == "input" for state in self._states)
        stored = dtype_in_memory(as_dtype(dtype).name, "input")
        spec = TensorSpec(dims, strides_of(dims, strides, layout), stored)
        return self._new(TensorState(self._named(name, f"input_{count}"), spec, "input"))

    def constant(
        self, value: float, dtype: DTypeLike | None = None, *, name: str | None = None
    ) -> GraphTensor:
        """Return a number as a tensor that the plan passes by value; its dtype is the compute dtype.

        Raises ValueError if the number is not one of an integer ``dtype``.
        """
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"value is not a number: got {value!r}, expected an int or a float")
        value = int(value) if isinstance(value, Integral) else float(value)
        own = as_dtype(dtype).name if dtype is not None else self._compute
        spec = TensorSpec((), (), own)
        if "int" in own and value != value // 1:
            raise ValueError(f"value is not a whole number: got {value!r}, expected one for {own}")
        if "int" in own and own in DTYPES:
            import numpy as np

            limits = np.iinfo(DTYPES[own].numpy)
            if not limits.min <= value <= limits.max:
                raise ValueError(f"value is out of range: got {value!r}, expected {own}")
        number = int(value) if "int" in own else as_float(value, "value")
        return self._new(
            TensorState(self._named(name, f"constant_{len(self._states)}"), spec, "constant", number)
        )

    def define(self, *outputs: GraphTensor) -> GraphProblem:
        """Check the graph and return it as a value, without a device.

        Parameters
        ----------
        *outputs : GraphTensor
            The results, before the tensors that :meth:`GraphTensor.output` made outputs.

        Raises
        ------
        ValueError
            The graph has no inputs or no outputs, an input is unused, an output is passed twice, or is an
            input or a constant.
        """
        given = [self._place(one, "output") for one in outputs]
        twice = [self._states[place].name for place in given if given.count(place) > 1]
        if twice:
            raise ValueError(f"output {twice[0]!r} is passed twice, expected different tensors")
        places = dict.fromkeys([*given, *self._marked])
        if not places:
            raise ValueError("graph has no outputs: pass tensors to build, or call their method output()")
        for place in places:
            state = self._states[place]
            if state.role != "virtual":
                raise ValueError(
                    f"output {state.name!r} has no producer: got the {state.role}, expected the result "
                    "of an operation; use identity() to copy"
                )
        nodes, used = self._reachable(places)
        inputs = [place for place, state in enumerate(self._states) if state.role == "input"]
        unused = [self._states[place].name for place in inputs if place not in used]
        if unused:
            raise ValueError(f"inputs are unused: got {', '.join(unused)}, expected operands of the outputs")
        if not inputs:
            raise ValueError("graph has no inputs: got constants only, expected at least one input()")
        return self._problem(nodes, inputs, list(places), used)

    # --- for the methods of families ---

    def _apply(
        self, kind: str, operands: Mapping[str, Operand | None], name: str | None = None, **attributes: Any
    ) -> dict[str, GraphTensor]:
        """Add an operation, and return its results by their roles; None stands for an absent operand."""
        row = KINDS[kind]
        absent = [role for role, one in operands.items() if one is None]
        if absent and kind.startswith("pointwise"):
            raise TypeError(f"{absent[0]} of {attributes['mode']} must be given: got None")
        given = {role: self._operand(one, role) for role, one in operands.items() if one is not None}
        if not given:
            raise TypeError(f"{next(iter(operands))} is not a GraphTensor: got None")
        specs = {role: self._states[place].spec for role, place in given.items()}
        label = attributes.get("mode", kind) if kind.startswith("pointwise") else kind
        params = {key: value for key, value in attributes.items() if value is not None}
        try:
            results = row.infer(specs, params)
        except KeyError as error:
            missing = error.args[0]
            if missing not in {*operands, *attributes} - {*given, *params}:
                raise
            raise TypeError(f"{missing} of {label} must be given: got None") from None
        except (TypeError, ValueError) as error:
            shapes = ", ".join(f"{role} {self._states[place].name}" for role, place in given.items())
            error.add_note(f"in {label} of {shapes}")
            raise
        prefix = self._named(name, f"{label}_{len(self._nodes)}")
        made = {}
        for number, (role, result) in enumerate(results.items()):
            own = prefix if number == 0 else self._named(None, f"{prefix}.{role}")
            made[role] = self._new(
                TensorState(own, result.spec(self._intermediate), "virtual", result=result)
            )
        places = tuple((role, tensor._place) for role, tensor in made.items())
        frozen = tuple((key, _frozen(value)) for key, value in params.items())
        self._nodes.append(GraphNode(kind, tuple(given.items()), places, frozen))
        return made

    def _operand(self, one: Operand, role: str) -> int:
        if isinstance(one, GraphTensor):
            return self._place(one, role)
        if isinstance(one, Real) and not isinstance(one, bool):
            return self.constant(one)._place
        raise TypeError(
            f"{role} is not a tensor of this graph: got {type(one).__name__}, expected a GraphTensor or a "
            "number; arrays are passed to the built graph"
        )

    # --- the value of the graph ---

    def _reachable(self, outputs: Iterable[int]) -> tuple[list[GraphNode], set[int]]:
        """Return the nodes that outputs depend on, and their tensors; unread results are left out."""
        used, nodes = set(outputs), []
        for node in reversed(self._nodes):
            results = tuple(pair for pair in node.results if pair[1] in used)
            if results:
                nodes.append(node._replace(results=results))
                used |= {place for _, place in node.operands}
        return nodes[::-1], used

    def _problem(
        self, nodes: list[GraphNode], inputs: list[int], outputs: list[int], used: set[int]
    ) -> GraphProblem:
        kept = sorted(used)
        new = {place: number for number, place in enumerate(kept)}
        dtypes = [self._states[place].spec.dtype for place in inputs]
        floats = [dtype for dtype in dtypes if dtype in FLOATS] + [
            d for d in dtypes if d.startswith("float8")
        ]
        first = (floats or [self._intermediate])[0]
        read = self._read_by_products(nodes, first)
        values = [
            self._value(self._states[place], place in outputs, first, read.get(place, "")) for place in kept
        ]

        def renumbered(pairs: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
            return tuple((role, new[place]) for role, place in pairs)

        return GraphProblem(
            tuple(values),
            tuple(
                node._replace(operands=renumbered(node.operands), results=renumbered(node.results))
                for node in nodes
            ),
            tuple(new[place] for place in inputs),
            tuple(new[place] for place in outputs),
            self._compute,
            tensor_cores=config.allow_tf32,
        )

    def _read_by_products(self, nodes: list[GraphNode], first: str) -> dict[int, str]:
        """Return the dtypes of intermediate operands of products: tensor cores take half precision."""
        found = {}
        for node in nodes:
            if node.kind in PRODUCT_KINDS:
                states = {place: self._states[place] for _, place in node.operands}
                given = [state.spec.dtype for state in states.values() if state.role == "input"]
                dtype = (given or [first])[0]
                for place, state in states.items():
                    computed = state.role == "virtual" and state.spec.dtype == self._intermediate
                    if computed and dtype in HALF:
                        found[place] = dtype
        return found

    def _value(self, state: TensorState, is_output: bool, first: str, read_as: str) -> GraphValue:
        if not is_output:
            spec = state.spec._replace(dtype=read_as or state.spec.dtype)
            return GraphValue(state.name, spec, state.role, state.value)
        assert state.result is not None
        own = state.result.dtype
        computed = own in ("", "bool", self._intermediate)
        dtype = state.dtype or state.result.stored or (first if computed else own)
        dtype = dtype_in_memory(dtype, f"output {state.name!r}")
        strides = state.spec.strides if state.strides is None else state.strides
        return GraphValue(state.name, TensorSpec(state.spec.shape, strides, dtype), "output")


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
