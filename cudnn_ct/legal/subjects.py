"""The subjects of facts: the convolutions, products, normalisations and attention of a problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from ..graph.operations import Graph
from ..shapes.conv import ROLES, ConvProblem

Subject = tuple[str, Any]
"""The name of an operation in facts.json, and the value that its conditions read."""

OPERATIONS = {direction: "conv" if direction == "forward" else f"conv_{direction}" for direction in ROLES}
DIRECTIONS = {f"conv_{direction}": direction for direction in OPERATIONS}


class Convolution(NamedTuple):
    """A convolution, the kinds and modes of the other nodes of its graph, and whether swish has a beta."""

    core: ConvProblem
    nodes: frozenset[str] = frozenset()
    beta: bool = False
    fused: bool = False


class Norm(NamedTuple):
    """A normalisation of rows: the elements of a row, and whether it has statistics."""

    columns: int = 1
    statistics: bool = True


class Product(NamedTuple):
    """A product of matrices: the dtype and the columns of a, the elements of the result, and other nodes."""

    dtype: str
    terms: int
    sums: int
    nodes: frozenset[str] = frozenset()
    shares_one: bool = False  # whether several matrices of one column share an operand of one element


class Pooling(NamedTuple):
    """A pooling: the dtype of what it reads, and its mode."""

    dtype: str
    mode: str


def subjects_of(problem: Any) -> tuple[Subject, ...]:
    """Return the subjects of a problem: operations by name, or what only facts about all of them hold for."""
    return _named(problem) if type(problem).__name__ in _BY_TYPE else tuple(_other(problem))


@lru_cache(maxsize=256)  # others may have native objects, which a cache would keep alive
def _named(problem: Any) -> tuple[Subject, ...]:
    return tuple(_BY_TYPE[type(problem).__name__](problem))


def convolutions_of(problem: Any) -> list[ConvProblem]:
    """Return the convolutions of a graph."""
    return [_convolution_of(problem, one) for one in problem.nodes if one.kind in DIRECTIONS]


# --- named operations --------------------------------------------------------------------------------------


def _fused(problem: Any) -> Iterator[Subject]:
    beta = problem.activation == "swish" and getattr(problem, "coefficient", 0) not in (0, 1)
    nodes = frozenset({"pointwise", f"{problem.activation}_fwd"})
    separate = type(problem).__name__ == "FusedConv"
    yield OPERATIONS[problem.core.direction], Convolution(problem.core, nodes, beta, fused=separate)


def _convolution(*nodes: str) -> Callable[[Any], Iterable[Subject]]:
    """Return the function of a problem that is one convolution, with other nodes of its graph."""

    def subjects(problem: Any) -> list[Subject]:
        core = problem.core
        return [(OPERATIONS[core.direction], Convolution(core, frozenset(nodes)))]

    return subjects


def _product(problem: Any) -> Iterator[Subject]:
    nodes, sums = frozenset({f"{problem.activation}_fwd"}), math.prod(problem.y.shape)
    one_column = problem.b.shape[1:][-1:] in ((), (1,))
    several = sums > math.prod(problem.a.shape[-2:-1])
    ones = [one for one in (problem.bias, problem.b_scale, problem.descale_a, problem.descale_b) if one]
    shares_one = one_column and several and any(one.size == 1 for one in ones)
    yield "matmul", Product(problem.a.dtype, problem.terms, sums, nodes, shares_one)


def _attention(problem: Any) -> Iterator[Subject]:
    gradient = getattr(problem, "dy", None) is not None
    yield "attention_backward" if gradient else "attention", problem


def _row_norm(problem: Any) -> Iterator[Subject]:
    if hasattr(problem, "dy"):
        yield f"{node_mode(problem)}_backward", Norm(problem.shape.columns)
    else:
        yield node_mode(problem), Norm(problem.shape.columns, problem.invstd is not None)


def node_mode(problem: Any) -> str:
    """Return the mode of the node; with one sample, layer normalisation has more engines."""
    adaptive = problem.mode == "ada_layer_norm" and problem.shape.samples > 1
    return problem.mode if adaptive or problem.mode == "rms_norm" else "layer_norm"


def _batch_norm(problem: Any) -> Iterator[Subject]:
    name = "instance_norm" if "instance" in problem.mode else "batch_norm"
    yield f"{name}_backward" if hasattr(problem, "dy") else name, Norm()


def _other(problem: Any) -> Iterator[Subject]:
    if type(getattr(problem, "params", None)).__name__ == "PoolParams":
        yield "resample", Pooling(problem.x.dtype, problem.params.mode)
    else:
        yield "all", None


# --- graphs ------------------------------------------------------------------------------------------------


def _graph(problem: Any) -> Iterator[Subject]:
    yield "graph", problem
    names = [str(one.attribute("mode")) if one.kind == "pointwise" else one.kind for one in problem.nodes]
    beta = any(one.attribute("swish_beta", 1.0) != 1 for one in problem.nodes)
    for place, one in enumerate(problem.nodes):
        others = frozenset((*names[:place], *names[place + 1 :]))
        if one.kind in DIRECTIONS:
            yield OPERATIONS[DIRECTIONS[one.kind]], Convolution(_convolution_of(problem, one), others, beta)
        elif one.kind == "matmul":
            a, sums = problem.operands_of(one)["a"].spec, problem.results_of(one)["c"].spec
            alone = all(other is one or other.kind == "pointwise" for other in problem.nodes)
            nodes = others if alone else frozenset[str]()
            yield "matmul", Product(a.dtype, a.shape[-1], math.prod(sums.shape), nodes)
        elif one.kind in _NORMS:
            yield f"{one.attribute('mode')}{_NORMS[one.kind]}", Norm()
        elif one.kind == "resample_forward":
            yield "resample", Pooling(problem.operands_of(one)["x"].spec.dtype, one.attribute("mode"))
        elif one.kind == "moe_grouped_matmul":
            yield one.kind, problem


def subjects_of_native(graph: Graph) -> Iterator[Subject]:
    """Yield the norms and poolings of a native graph, which operations without candidates are planned as."""
    for row, given in graph.nodes:
        if row in _NORMS:
            yield f"{given['mode']}{_NORMS[row]}", Norm()
        elif row == "resample_forward":
            x: Any = given["xdesc"]
            yield "resample", Pooling(x.spec.dtype, str(given["mode"]))


_NORMS = {"norm_forward": "", "norm_backward": "_backward"}


def _convolution_of(problem: Any, one: Any) -> ConvProblem:
    direction = DIRECTIONS[one.kind]
    values = problem.operands_of(one) | problem.results_of(one)
    specs = {role: values[name].spec for role, name in zip(*ROLES[direction], strict=True)}
    x, w, y = (specs[role] for role in "xwy")
    before, after = one.attribute("pre_paddings"), one.attribute("post_paddings")
    return ConvProblem(
        direction,
        x,
        w,
        y,
        padding=tuple(zip(before, after, strict=True)),
        stride=one.attribute("filter_strides"),
        dilation=one.attribute("dilations"),
        groups=x.shape[1] // w.shape[1],
        mode=one.attribute("conv_mode"),
        compute=problem.compute,
        tensor_cores=problem.tensor_cores if x.dtype == "float32" else x.dtype != "float64",
    )


# By name, so that a convolution does not import the problems of attention.
_BY_TYPE: dict[str, Callable[[Any], Iterable[Subject]]] = {
    "ConvProblem": _convolution(),
    "FusedConv": _fused,
    "ScaledConv": _fused,
    "Float8Conv": _fused,
    "StatisticsProblem": _convolution("pointwise", "gen_stats"),
    "DataGradient": _convolution("pointwise", "bn_backward_weights"),
    "FilterGradient": _convolution("pointwise"),
    "MatmulProblem": _product,
    "AttentionProblem": _attention,
    "ScaledAttentionProblem": _attention,
    **dict.fromkeys(("NormTraining", "NormInference", "NormGradient"), _batch_norm),
    "RowNorm": _row_norm,
    "RowNormGradient": _row_norm,
    "GraphProblem": _graph,
    "RNNProblem": lambda problem: [("rnn", problem)],
}
