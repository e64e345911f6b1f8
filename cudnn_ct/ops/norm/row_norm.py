"""Normalisations of rows as operations: their graphs, their calls, and the selection of their engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from ...algo_cache import CandidateSource
from ...context import Context
from ...errors import LibraryLoadError, NotSupportedError
from ...graph.offline import target_of
from ...graph.operations import Graph, Node, Tensor, node
from ...legal.conditions import applying
from ...legal.rules import more_engines, more_engines_of, rules_of_subjects
from ...legal.subjects import Subject, node_mode, subjects_of
from ...plans.base import Candidate, Plan, packed_of, tensors_of
from ...plans.elementwise import op_tensor_of
from ...plans.program import Step, chained
from ...plans.wrappers import on_operands_of, zero_results
from ...shapes.layer_norm import LayerNormMode, RowNorm, RowNormGradient, row_norm, row_norm_gradient
from ...shapes.specs import Shape, TensorSpec, results_of
from .._formulas import elementwise_graph, first_plan
from .._graph_source import GraphSource, packed_source, select_engine, without_factors
from .._implementations import Split, along
from .._operation import Operation, Select

_DATA = ("x", "y", "dy", "dx")
_STATISTICS = ("mean", "invstd")

# The parameters, and the mode of the pointwise node that applies each, in this order.
_PARAMETERS = {"scale": "mul", "bias": "add"}

# Attributes of the nodes by the names of a problem's tensors.
_ATTRIBUTES = {
    "x": "xdesc",
    "scale": "scale_desc",
    "bias": "bias_desc",
    "y": "ydesc",
    "mean": "mean_desc",
    "invstd": "inv_variance_desc",
    "dy": "dydesc",
    "dx": "dxdesc",
    "dscale": "dscale_desc",
    "dbias": "dbias_desc",
}


def row_norm_graph(problem: RowNorm | RowNormGradient) -> Graph:
    """Return the graph of a normalisation or its gradient; all operands are contiguous."""
    tensors = _tensors(problem)
    names = {_ATTRIBUTES[name]: tensor for name, tensor in tensors.items()}
    if isinstance(problem, RowNormGradient):
        step = node("norm_backward", mode=node_mode(problem), **names)
    else:
        step = _forward(problem, names, uid=len(tensors) + 1)
    return Graph((step,), tuple(tensors.values()))


def has_wide_parameters(problem: RowNorm | RowNormGradient) -> bool:
    """Return whether `parameters_last_graph` has engines: for half precision with float32 parameters."""
    wide = problem.scale.dtype != problem.x.dtype and problem.shape.columns % 64 == 0
    return wide and isinstance(problem, RowNorm) and node_mode(problem) != "ada_layer_norm"


def parameters_last_graph(problem: RowNorm) -> Graph:
    """Return the graph of a normalisation without parameters, whose float32 result they scale and shift."""
    # If the parameters have another dtype than x, the node of `row_norm_graph` has one engine, which takes
    # four times as long as reading and writing x. A node without parameters has faster ones, which also
    # compute products and sums.
    tensors = _tensors(problem)
    uids = count(len(tensors) + 1)
    given = {name: tensor for name, tensor in tensors.items() if name not in _PARAMETERS}
    wide = tensors["y"].spec._replace(dtype="float32")
    value = Tensor(next(uids), wide, virtual=True)
    names = {_ATTRIBUTES[name]: tensor for name, tensor in (given | {"y": value}).items()}
    nodes = [_forward(problem, names, uid=next(uids))]
    steps = [(mode, tensors[name]) for name, mode in _PARAMETERS.items() if name in tensors]
    for place, (mode, parameter) in enumerate(steps, 1):
        y = tensors["y"] if place == len(steps) else Tensor(next(uids), wide, virtual=True)
        nodes.append(node("pointwise", mode=mode, math_prec="float32", xdesc=value, bdesc=parameter, ydesc=y))
        value = y
    return Graph(tuple(nodes), tuple(tensors.values()))


def shifted_graph(problem: RowNorm) -> Graph:
    """Return the graph of a normalisation of x minus a float32 number for each row, the first operand."""
    tensors = _tensors(problem)
    uids = count(len(tensors) + 1)
    shift = Tensor(next(uids), TensorSpec.packed(_axes("mean", problem), "float32"))
    shifted = Tensor(next(uids), tensors["x"].spec._replace(dtype="float32"), virtual=True)
    names = {_ATTRIBUTES[name]: tensor for name, tensor in (tensors | {"x": shifted}).items()}
    difference = node(
        "pointwise", mode="sub", math_prec="float32", xdesc=tensors["x"], bdesc=shift, ydesc=shifted
    )
    return Graph((difference, _forward(problem, names, uid=next(uids))), (shift, *tensors.values()))


def _tensors(problem: RowNorm | RowNormGradient) -> dict[str, Tensor]:
    """Return the operands of a problem by name, with four axes."""
    return {
        name: Tensor(uid, TensorSpec.packed(_axes(name, problem), spec.dtype))
        for uid, (name, spec) in enumerate(tensors_of(problem).items(), 1)
    }


def _forward(problem: RowNorm, tensors: dict[str, Tensor], uid: int) -> Node:
    epsilon = Tensor(uid, TensorSpec.packed((1, 1, 1, 1), "float32"), value=problem.epsilon)
    phase = "training" if problem.invstd else "inference"
    return node("norm_forward", mode=node_mode(problem), phase=phase, epsilon_desc=epsilon, **tensors)


def _axes(name: str, problem: RowNorm | RowNormGradient) -> Shape:
    """Return the four axes of a tensor: (rows, columns, 1, 1), or (samples, rows, columns, 1)."""
    samples, rows, columns, _ = problem.shape
    kept = rows if name in _DATA or name in _STATISTICS else 1
    length = 1 if name in _STATISTICS else columns
    return (samples, kept, length, 1) if node_mode(problem) == "ada_layer_norm" else (kept, length, 1, 1)


# --- x from which the mean was subtracted ------------------------------------------------------------------
# Engines of some versions compute the variance as the mean of the squares minus the square of the mean,
# which has no digits left if the mean is large next to the deviation. Their mean is right. y and the
# inverse deviation do not depend on a constant that is subtracted from a row, so a normalisation runs
# twice: once for the mean, and then on x without it. The mean of the second run is the rounding error of
# the first one, which float32 does not hold.

LOSES_VARIANCE = "layer-norm-variance"  # the fact that these plans compute around


class _TwoRuns(GraphSource):
    """The engines of the second run, on a float32 copy from which the mean was subtracted."""

    fused = False  # whether an engine subtracts the mean while it reads x

    def only_graphs(self, problem: Any, context: Any) -> bool:  # noqa: ARG002
        """Return False: a call runs the graph of the first run, too."""
        return False

    def before_on_shapes(self, problem: RowNorm) -> bool:
        """Return whether the fused form has engines."""
        return problem.x.dtype == "float32" and problem.shape.columns % 64 == 0

    def _plan(self, problem: RowNorm, candidate: Candidate, context: Context) -> Plan:
        whole = _with_statistics(problem)._replace(aligned=True)
        second, wide = super()._plan(whole, candidate, context), _in_float32(whole).x
        reuses = wide == whole.x and not self.fused
        first = second if reuses else first_plan(row_norm_graph(whole), context)
        shifted = {} if self.fused else {"shifted": wide}
        places, temporaries = _places(problem, whole, **shifted, rest=_statistics(whole))
        again, names = places | {"mean": places["rest"]}, tuple(tensors_of(whole))
        steps = [Step(first, tuple(places[name] for name in names))]
        if not self.fused:
            again["x"] = places["shifted"]
            steps.append(Step(_difference(whole, context), (places["x"], places["mean"], again["x"])))
        operands = tuple(again[name] for name in names)
        steps.append(Step(second, (places["mean"], *operands) if self.fused else operands))
        return on_operands_of(chained(temporaries, steps), problem, problem, align=not problem.aligned)


class _Fused(_TwoRuns):
    """The engine subtracts the mean while it reads x: float32, in rows of 64 elements or a multiple."""

    fused = True


SHIFTED = _TwoRuns(
    lambda problem: row_norm_graph(_in_float32(_with_statistics(problem))),
    handled=(LOSES_VARIANCE,),
    before=_Fused(lambda problem: shifted_graph(_with_statistics(problem)), handled=(LOSES_VARIANCE,)),
)
"""The source of candidates; problems have contiguous operands."""


def _statistics(problem: RowNorm) -> TensorSpec:
    return TensorSpec.packed(problem.shape.statistics, "float32")


def _with_statistics(problem: RowNorm) -> RowNorm:
    return problem._replace(mean=_statistics(problem), invstd=_statistics(problem))


def _in_float32(problem: RowNorm) -> RowNorm:
    """Return the problem of a float32 x: the difference from a mean needs more digits than x."""
    return problem._replace(x=problem.x._replace(dtype="float32"))


def _places(problem: RowNorm, whole: RowNorm, **more: TensorSpec) -> tuple[dict[str, int], list[TensorSpec]]:
    """Return the places of tensors in a chain, and its temporaries: unwanted statistics, then ``more``."""
    wanted = tensors_of(problem)
    temporaries = {name: spec for name, spec in tensors_of(whole).items() if name not in wanted} | more
    return {name: place for place, name in enumerate([*wanted, *temporaries])}, list(temporaries.values())


def _difference(problem: RowNorm, context: Context) -> Plan:
    """Return a plan that subtracts the mean of each row from x; the legacy call needs no compilation."""
    columns = problem.shape.columns
    rows = problem.x.size // columns
    mean, y = (TensorSpec.packed((1, rows, length), "float32") for length in (1, columns))
    x = y._replace(dtype=problem.x.dtype)
    if x == y:
        with suppress(LibraryLoadError, NotSupportedError):  # no legacy calls, or too many elements
            return op_tensor_of("add", x, mean, y, alpha2=-1.0)
    return first_plan(elementwise_graph("sub", x, mean, y), context)


# --- operations --------------------------------------------------------------------------------------------


def _parameters_last(problem: RowNorm) -> Subject:
    """Return the normalisation in `parameters_last_graph`, whose product with the parameters is a node."""
    ((_, norm),) = subjects_of(problem)
    return "norm_of_parameters_last", norm


_packed = partial(packed_of, layout="nchw")  # engines require C order
_SOURCE = packed_source(GraphSource(row_norm_graph), _packed, more_engines_of)
_SHIFTED_SOURCE = packed_source(SHIFTED, _packed)
_LAST = GraphSource(
    parameters_last_graph,
    lambda problem, target: rules_of_subjects((*subjects_of(problem), _parameters_last(problem)), target),
)
_WIDE_SOURCE = packed_source(
    GraphSource(row_norm_graph, before=_LAST),
    _packed,
    lambda problem: more_engines(_parameters_last(problem), target_of(None)),
)


def source_of(problem: RowNorm | RowNormGradient) -> CandidateSource:
    if isinstance(problem, RowNorm):
        (subject,) = subjects_of(problem)
        if any(fact.name == LOSES_VARIANCE for fact in applying("rewrite", subject, target_of(None))):
            return _SHIFTED_SOURCE
    return _WIDE_SOURCE if has_wide_parameters(problem) else _SOURCE


def _select(problem: RowNorm | RowNormGradient, params: tuple[Any, ...]) -> Select:
    empty = None if problem.x.size else zero_results(results_of(problem))
    return select_engine(problem, params, source_of(problem), empty)


_VECTORS = ("scale", "bias", "dscale", "dbias")


def _rows(problem: RowNorm | RowNormGradient) -> Iterator[Split]:
    # The parameters of an adaptive normalisation are those of a sample, the first axis. Other gradients of
    # parameters are sums of all rows, so such a gradient is not split.
    adaptive = problem.mode == "ada_layer_norm"
    normalised = len(problem.scale.shape) - adaptive
    for axis, split in enumerate(along(problem, range(len(problem.x.shape) - normalised))):
        data = {name: axis for name in split if name not in _VECTORS}
        yield data | {name: 0 for name in _VECTORS if adaptive and not axis and hasattr(problem, name)}


def _operations(mode: LayerNormMode, name: str, statistics: tuple[str, ...]) -> tuple[Operation, Operation]:
    def operation(title: str, problem: Any, *further: str) -> Operation:
        parse, written = without_factors(partial(problem, mode)), (f"{result} of out" for result in further)
        return Operation(title, parse, select=_select, independent=_rows, written=("out", *written))

    backward = operation(f"the gradient of {name}", row_norm_gradient, "dscale", "dbias")
    return operation(name, row_norm, *statistics), backward


_MOMENTS = ("mean", "invstd")
LAYER, LAYER_GRADIENT = _operations("layer_norm", "a layer normalisation", _MOMENTS)
RMS, RMS_GRADIENT = _operations("rms_norm", "an RMS normalisation", ("invrms",))
ADAPTIVE, ADAPTIVE_GRADIENT = _operations("ada_layer_norm", "an adaptive layer normalisation", _MOMENTS)
