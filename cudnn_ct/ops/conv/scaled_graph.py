"""The graph of a convolution with scale and bias, and its engines."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import count
from typing import Any

from ...graph.candidates import EngineRules
from ...graph.engines import HEURISTICS, Engine
from ...graph.operations import Graph, Tensor, node
from ...plans.base import packed_of, tensors_of
from ...shapes.scaled_conv import ScaledConv
from ...shapes.specs import TensorSpec, packed_strides
from .._graph_source import GraphSource
from .._packed_source import PackedSource
from .accuracy import inaccuracy
from .errata import erratum
from .graph_nodes import activation_step, conv_node, two_axes
from .known import DEFECTS

__all__ = ["channels_last", "packed_operands", "scaled_conv_graph", "source_of"]


def scaled_conv_graph(problem: ScaledConv) -> Graph:
    """Return the graph of a problem whose operands are contiguous with channels last."""
    numbers = count(1)

    def tensor(spec: TensorSpec, virtual: bool = False) -> Tensor:
        return Tensor(next(numbers), channels_last(spec), virtual)

    tensors = {name: tensor(spec) for name, spec in tensors_of(problem).items()}
    wide = problem.y._replace(dtype="float32")
    steps: list[dict[str, Any]] = [
        {"mode": "mul", "bdesc": tensors["scale"]},
        *({"mode": "add", "bdesc": tensors[name]} for name in ("bias", "z") if name in tensors),
    ]
    if problem.activation != "identity":
        steps.append(activation_step(problem.activation, problem.coefficient))
    between = [tensor(wide, virtual=True) for _ in steps]
    outputs = [*between, tensors["y"]]
    nodes = [conv_node(problem.core, x=tensors["x"], w=tensors["w"], y=outputs[0])]
    for step, read, written in zip(steps, outputs, outputs[1:], strict=False):
        nodes.append(node("pointwise", math_prec="float32", **step, xdesc=read, ydesc=written))
    return Graph(tuple(nodes), tuple(tensors[name] for name in tensors_of(problem)))


def channels_last(spec: TensorSpec) -> TensorSpec:
    """Return a contiguous tensor with two or three spatial axes and the strides of channels last."""
    # Engines are selected by the strides of axes of length 1 too.
    return two_axes(spec._replace(strides=packed_strides(spec.shape, "nhwc")))


def packed_operands(problem: Any) -> Any:
    """Return the problem with contiguous copies of operands that do not have channels last."""
    # Runtime-compiled engines give wrong sums unless x, w and y have one layout, and read a residual with the
    # strides of the result.
    return packed_of(problem, "nhwc")


@lru_cache(maxsize=32)
def source_of(
    version: int, capability: tuple[int, int], graph_of: Callable[[Any], Graph] = scaled_conv_graph
) -> PackedSource:
    """Return the engines of a graph with channels last, for a version of cuDNN and a GPU."""
    rules = partial(_rules, version=version, capability=capability)
    return PackedSource(GraphSource(graph_of, rules, _modes), packed_operands)


def _modes(problem: Any) -> tuple[str, ...]:
    """Return the heuristic modes; mode "b" of cuDNN 9.19 kills the process if padding is uneven."""
    return tuple(mode for mode in HEURISTICS if mode != "b" or not problem.core.asymmetric_padding)


def _rules(problem: Any, *, version: int, capability: tuple[int, int]) -> EngineRules:
    core = problem.core

    def why_wrong(engine: Engine, notes: tuple[str, ...]) -> str:
        return (
            erratum(engine.number, problem)
            or DEFECTS.wrong_engine(engine.number, problem, version, capability)
            or inaccuracy(problem, "graph", str(engine), notes)
            or _ignored_beta(problem, notes)
        )

    excluded = frozenset() if core.tensor_cores else frozenset({"tensor_core", "down_convert_inputs"})
    return EngineRules(excluded, core.compute, why_wrong)


def _ignored_beta(problem: Any, notes: tuple[str, ...]) -> str:
    """Return why an engine must not compute a swish with another beta than 1; empty if it may.

    On an H200, the engine that cuDNN 9.19 offers first for float16 computed swish with beta 1; that for
    bfloat16, which is compiled at run time, is right.
    """
    swish = getattr(problem, "activation", "") == "swish" and problem.coefficient not in (0, 1)
    if swish and "runtime_compilation" not in notes:
        return "engines that are not compiled at run time ignore the beta of swish"
    return ""
