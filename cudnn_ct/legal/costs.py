"""Estimates of the time that engines take for a convolution, by facts of the kind ``cost``."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from ..dtypes import GRAPH_DTYPES
from ..shapes.conv import ConvProblem

Costs = Mapping[str, Mapping[str, float]]
"""The microseconds of terms of `terms_of`, by the name of an engine, with or without its knobs."""

TERMS = ("call", "x", "w", "y", "multiplications", "terms", "waves", "tiles", "groups", "window")
RESULTS = 132 * 1024  # of a wave: the multiprocessors of the GPU that was measured, by their threads
GAIN = (
    1.2  # estimates err: another engine is preferred if the one at hand should take this many times as long
)


def terms_of(problem: ConvProblem) -> dict[str, float]:
    """Return what the time of an engine consists of: a product of matrices for each group."""
    (filters, thick, *window), groups = problem.w.shape, problem.groups
    taps, filters = prod(window), filters // groups
    inputs, outputs = (shape[0] * prod(shape[2:]) for shape in (problem.x.shape, problem.y.shape))  # pixels
    rows, columns, terms = {
        "forward": (outputs, filters, thick * taps),
        "backward_data": (inputs, thick, filters * taps),
        "backward_filter": (thick * taps, filters, outputs),
    }[problem.direction]
    megabyte = 1e6 / GRAPH_DTYPES[problem.x.dtype].itemsize
    waves = ceil(rows * columns * groups / RESULTS) * terms
    tiles = ceil(rows / 128) * ceil(columns / 64) * ceil(terms / 32) * 128 * 64 * 32
    return {
        "call": 1,
        "x": prod(problem.x.shape) / megabyte,
        "w": prod(problem.w.shape) / megabyte,
        "y": prod(problem.y.shape) / megabyte,
        "multiplications": outputs * filters * groups * thick * taps / 1e9,
        "terms": terms / 1000,  # of the sum of a result
        "waves": waves / 1000,  # the same, once for each wave of results
        "tiles": tiles * groups / 1e9,  # multiplications of whole tiles
        "groups": groups,
        "window": taps,
    }


def faster_engines(problem: ConvProblem, costs: Costs, order: list[str], algorithm: str) -> list[str]:
    """Return those engines of an order that should take less time than an algorithm, the fastest first."""
    terms, times = terms_of(problem), {}
    for name in (algorithm, *order):
        times[name] = 0.0
        for term, microseconds in (costs.get(name) or costs.get(name.partition(" knobs")[0], {})).items():
            times[name] += microseconds * terms[term]
    limit = times[algorithm] / GAIN
    return sorted([name for name in order if times[name] < limit], key=times.__getitem__)


def why_not_costs(costs: Costs, order: list[str]) -> str:
    """Return what a row of a user with costs lacks; empty for nothing."""
    if unknown := [term for known in costs.values() for term in known if term not in TERMS]:
        return f"costs have an unknown term: got {unknown[0]!r}, expected some of {', '.join(TERMS)}"
    missing = [name for name in order if costs and name not in costs]
    return f"costs lack {missing[0]!r}, which order names" if missing else ""
