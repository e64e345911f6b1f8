"""Convolutions with windows of one pixel as products of matrices, for which cuDNN has other engines.

An image with channels last is a matrix with a row for each pixel. An image that one window covers is one
pixel with more channels.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import prod
from typing import Any

from ...context import Context
from ...errors import NotSupportedError
from ...graph.offline import Planner
from ...graph.plan import GraphPlan
from ...plans.base import AlgoRequest, Candidate, Plan
from ...shapes.arithmetic import HALF
from ...shapes.conv import ROLES, ConvProblem
from ...shapes.matmul import MatmulProblem
from ...shapes.specs import TensorSpec

_TRANSPOSED = {"forward": "w", "backward_data": "", "backward_filter": "y"}
_NO_PRODUCT = (
    "only convolutions of half precision with windows and strides of one and channels last, or with one "
    "window that covers the image, without groups, padding and fused operations, are products"
)


@lru_cache(256)
def product_of(problem: Any) -> MatmulProblem | None:
    """Return the product of half precision that computes a convolution on its operands; None without one."""
    if not isinstance(problem, ConvProblem) or problem.x.dtype not in HALF or problem.compute != "float32":
        return None
    problem = _of_one_pixel(problem)
    if not (problem.aligned and problem.tensor_cores and "nhwc" in problem.common_layouts):
        return None
    if {*problem.w.shape[2:], *problem.stride, problem.groups} != {1} or any(map(any, problem.padding)):
        return None
    roles = ROLES[problem.direction].operands
    if not all(getattr(problem, role).size for role in roles):
        return None
    a, b, y = (_matrix(getattr(problem, role), role in _TRANSPOSED[problem.direction]) for role in roles)
    return MatmulProblem(a, b, None, None, None, None, None, None, y, None)


def _of_one_pixel(problem: ConvProblem) -> ConvProblem:
    """Return the problem of an image that one window covers, its elements as channels; others as they are."""
    window = problem.w.shape[2:]
    covers = window == problem.x.shape[2:] and problem.groups == 1 and not any(map(any, problem.padding))
    if not (covers and problem.mode == "cross_correlation" and problem.common_layouts):
        return problem
    ones = (1,) * len(window)
    x, w = (
        TensorSpec.packed((one.shape[0], prod(one.shape[1:]), *ones), one.dtype)
        for one in (problem.x, problem.w)
    )
    return problem._replace(x=x, w=w, stride=ones)


def _matrix(spec: TensorSpec, transposed: bool) -> TensorSpec:
    """Return the matrix of the pixels and channels of a tensor, as the only one of a batch."""
    channels, size = spec.shape[1], spec.size
    if transposed:
        return TensorSpec((1, channels, size // channels), (size, 1, channels), spec.dtype)
    return TensorSpec((1, size // channels, channels), (size, channels, 1), spec.dtype)


def _engines() -> Any:
    from ..matmul.source import (
        TENSOR_CORES,
    )  # which few convolutions need: its import takes tens of milliseconds

    return TENSOR_CORES


def all_candidates(problem: Any, context: Context) -> list[Candidate]:
    """Return the engines of the product that the heuristics list, rejected ones with reasons."""
    product = product_of(problem)
    stages = _engines().heuristics(product) if product else ()
    rows = {row.key: row for find in stages for row in find(context)}
    return _own(rows.values())


def first_candidates(problem: Any, context: Context | Planner) -> list[Candidate]:
    """Return the usable engines of the product from the first heuristic that has any."""
    product = product_of(problem)
    stages = _engines().heuristics(product) if product else ()
    found = ([row for row in find(context) if not row.rejected] for find in stages)
    return _own(next(filter(None, found), []))


def autotune_candidates(request: AlgoRequest, problem: Any, context: Context) -> list[Candidate]:
    """Return the engines of the product to time: none for windows of one pixel forward, which gain little."""
    product = product_of(problem)
    if product is None or (problem.direction == "forward" and prod(problem.w.shape[2:]) == 1):
        return []
    return _own(_engines().autotune_candidates(product, context, request))


def by_name(name: str, problem: Any, context: Context) -> list[Candidate]:
    """Return the engine of a name as a candidate; it is rejected if the problem is not a product."""
    if (product := product_of(problem)) is None:
        return [Candidate("product", name, "any", 0, True, rejected=_NO_PRODUCT)]
    stages, _ = _engines().by_name(product, name)
    return _own([row for find in stages for row in find(context)])


def plan(problem: Any, candidate: Candidate, context: Context) -> Plan:
    """Make a candidate ready to run; raise NotSupportedError if the problem is not a product."""
    if (product := product_of(problem)) is None:
        raise NotSupportedError(_NO_PRODUCT)
    made: Plan = _engines().plan(product, candidate._replace(backend="graph"), context)
    if isinstance(made, GraphPlan):  # described by the name that selects it
        made.candidate = candidate._replace(workspace=made.workspace)
    return made


def _own(rows: Iterable[Candidate]) -> list[Candidate]:
    return [row._replace(backend="product") for row in rows]
