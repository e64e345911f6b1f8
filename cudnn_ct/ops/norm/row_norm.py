"""Normalisations of rows as operations: their calls, and the selection of their engines."""

from __future__ import annotations

from functools import partial
from typing import Any

from ... import algo_cache
from ...plans.base import SelectedPlan, packed_of
from ...plans.wrappers import ZeroResults
from ...shapes.checks import result_slots
from ...shapes.layer_norm import (
    WITHOUT_DBIAS,
    WITHOUT_STATISTICS,
    LayerNormMode,
    RowNorm,
    RowNormGradient,
    row_norm,
    row_norm_gradient,
)
from ...shapes.parse import as_bool
from ...shapes.specs import TensorSpec
from .._algo_arguments import AlgoArguments
from .._call import execute
from .._graph_source import GraphSource
from .._operation import Operation, Select
from .._packed_source import PackedSource
from .row_graphs import row_norm_graph

__all__ = [
    "ADAPTIVE",
    "ADAPTIVE_GRADIENT",
    "LAYER",
    "LAYER_GRADIENT",
    "RMS",
    "RMS_GRADIENT",
    "SOURCE",
    "row_norm_backward",
    "row_norm_forward",
]


def row_norm_forward(
    op: Operation,
    x: Any,
    scale: Any,
    bias: Any,
    epsilon: Any,
    training: Any,
    choice: tuple[Any, ...],
    out: Any,
    stream: Any,
) -> list[Any]:
    """Call a forward operation; without statistics, they are None."""
    statistics = op.written[1:]
    trains = as_bool(training, "training")
    names = ("y", *(name.removesuffix(" of out") for name in statistics))
    outs = result_slots(out, names, absent="" if trains else WITHOUT_STATISTICS, count=len(names) - 1)
    given = {"x": x, "scale": scale} | ({} if bias is None else {"bias": bias})
    params = (epsilon, *choice)
    results = execute(op, tuple(given), tuple(given.values()), params, outs=outs, stream=stream)
    return [*results, *[None] * (len(names) - len(results))]


def row_norm_backward(
    op: Operation,
    operands: dict[str, Any],
    with_bias: bool,
    choice: tuple[Any, ...],
    out: Any,
    stream: Any,
) -> list[Any]:
    """Call a gradient; without a bias, its gradient is None."""
    absent = "" if with_bias else WITHOUT_DBIAS
    outs = result_slots(out, ("dx", "dscale", "dbias"), absent=absent)
    results = execute(op, tuple(operands), tuple(operands.values()), choice, outs=outs, stream=stream)
    return [*results, *[None] * (3 - len(results))]


# --- operations --------------------------------------------------------------------------------------------


def _packed(problem: RowNorm | RowNormGradient) -> RowNorm | RowNormGradient:
    """Return the problem with all operands in C order, which engines require."""
    packed: RowNorm | RowNormGradient = packed_of(problem, "nchw")
    return packed


SOURCE = PackedSource(GraphSource(row_norm_graph), _packed)


def _problem(
    mode: LayerNormMode,
    specs: dict[str, TensorSpec],
    outs: Any,
    epsilon: Any,
    *_choice: Any,
    scaled: str,  # noqa: ARG001 - these operations have no alpha and beta
    aligned: bool,
) -> RowNorm:
    return row_norm(mode, specs, outs, epsilon, aligned=aligned)


def _gradient(
    mode: LayerNormMode,
    specs: dict[str, TensorSpec],
    outs: Any,
    *_choice: Any,
    scaled: str,  # noqa: ARG001
    aligned: bool,
) -> RowNormGradient:
    return row_norm_gradient(mode, specs, outs, aligned=aligned)


def _select(problem: RowNorm | RowNormGradient, params: tuple[Any, ...]) -> Select:
    wanted = AlgoArguments(*params[-3:]).request(problem)
    if not problem.x.size:
        return lambda _: SelectedPlan(ZeroResults(problem.results))
    return lambda ctx: algo_cache.select(problem, SOURCE, ctx, wanted)


def _operations(mode: LayerNormMode, name: str, statistics: tuple[str, ...]) -> tuple[Operation, Operation]:
    """Return a normalisation and its gradient."""
    written = ("out", *(f"{statistic} of out" for statistic in statistics))
    gradients = ("out", "dscale of out", "dbias of out")
    return (
        Operation(name, partial(_problem, mode), select=_select, written=written),
        Operation(f"the gradient of {name}", partial(_gradient, mode), select=_select, written=gradients),
    )


_MOMENTS = ("mean", "invstd")
LAYER, LAYER_GRADIENT = _operations("layer_norm", "a layer normalisation", _MOMENTS)
RMS, RMS_GRADIENT = _operations("rms_norm", "an RMS normalisation", ("invrms",))
ADAPTIVE, ADAPTIVE_GRADIENT = _operations("ada_layer_norm", "an adaptive layer normalisation", _MOMENTS)
