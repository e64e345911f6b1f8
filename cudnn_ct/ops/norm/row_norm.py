"""Normalisations of rows as operations: their calls, and the selection of their engines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ...algo_cache import CandidateSource
from ...graph.offline import target_of
from ...legal.rules import applying, more_engines, more_engines_of, rules_of_subjects
from ...legal.subjects import Subject, subjects_of
from ...plans.base import packed_of
from ...plans.wrappers import zero_results
from ...shapes.layer import results_of
from ...shapes.layer_norm import (
    LayerNormMode,
    RowNorm,
    RowNormGradient,
    row_norm,
    row_norm_gradient,
)
from .._algo_arguments import select_engine, without_factors
from .._graph_source import GraphSource
from .._operation import Operation, Select
from .._pieces import Split, along
from .._reduced_source import packed_source
from .row_graphs import has_wide_parameters, parameters_last_graph, row_norm_graph
from .shifted import LOSES_VARIANCE, SHIFTED


def _packed(problem: RowNorm | RowNormGradient) -> RowNorm | RowNormGradient:
    """Return the problem with all operands in C order, which engines require."""
    packed: RowNorm | RowNormGradient = packed_of(problem, "nchw")
    return packed


def _parameters_last(problem: RowNorm) -> Subject:
    """Return the normalisation in `parameters_last_graph`, whose product with the parameters is a node."""
    ((_, norm),) = subjects_of(problem)
    return "norm_of_parameters_last", norm


_SOURCE = packed_source(GraphSource(row_norm_graph), _packed, more_engines_of)
_SHIFTED_SOURCE = packed_source(SHIFTED, _packed)
_LAST = GraphSource(
    parameters_last_graph, lambda problem, target: rules_of_subjects((_parameters_last(problem),), target)
)
_WIDE_SOURCE = packed_source(
    GraphSource(row_norm_graph, before=_LAST),
    _packed,
    lambda problem: more_engines(_parameters_last(problem), target_of(None)),
)


def source_of(problem: RowNorm | RowNormGradient) -> CandidateSource:
    """Return the source of the candidates of a problem."""
    if isinstance(problem, RowNorm):
        (subject,) = subjects_of(problem)
        if any(fact.name == LOSES_VARIANCE for fact in applying("rewrite", subject, target_of(None))):
            return _SHIFTED_SOURCE
    return _WIDE_SOURCE if has_wide_parameters(problem) else _SOURCE


def _select(problem: RowNorm | RowNormGradient, params: tuple[Any, ...]) -> Select:
    empty = None if problem.x.size else zero_results(results_of(problem))
    return select_engine(problem, params, source_of(problem), empty)


_PARAMETERS = ("scale", "bias", "dscale", "dbias")


def _rows(problem: RowNorm | RowNormGradient) -> Iterator[Split]:
    """Return the splits along the axes that are not normalised.

    The parameters of an adaptive normalisation are those of a sample, the first axis. Other gradients of
    parameters are sums of all rows, so such a gradient is not split.
    """
    adaptive = problem.mode == "ada_layer_norm"
    normalised = len(problem.scale.shape) - adaptive
    for axis, split in enumerate(along(problem, range(len(problem.x.shape) - normalised))):
        data = {name: axis for name in split if name not in _PARAMETERS}
        yield data | {name: 0 for name in _PARAMETERS if adaptive and not axis and hasattr(problem, name)}


def _operations(mode: LayerNormMode, name: str, statistics: tuple[str, ...]) -> tuple[Operation, Operation]:
    """Return a normalisation and its gradient."""
    rows = (
        (name, row_norm, statistics),
        (f"the gradient of {name}", row_norm_gradient, ("dscale", "dbias")),
    )
    forward, backward = (
        Operation(
            title, without_factors(partial(problem, mode)), select=_select, independent=_rows,
            written=("out", *(f"{result} of out" for result in further)),
        )
        for title, problem, further in rows
    )  # fmt: skip
    return forward, backward


_MOMENTS = ("mean", "invstd")
LAYER, LAYER_GRADIENT = _operations("layer_norm", "a layer normalisation", _MOMENTS)
RMS, RMS_GRADIENT = _operations("rms_norm", "an RMS normalisation", ("invrms",))
ADAPTIVE, ADAPTIVE_GRADIENT = _operations("ada_layer_norm", "an adaptive layer normalisation", _MOMENTS)
