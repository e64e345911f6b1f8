"""The legacy calls as a backend: their candidates for a problem, and plans of them."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

from ..._bindings import enums
from ...context import Context
from ...descriptors import MATH_NAMES
from ...errors import BadParamError, NotSupportedError, error_from_status
from ...graph.offline import target_of
from ...legal.rules import rejection_of
from ...plans.base import Candidate, Plan
from ...shapes.conv import ConvProblem
from ...shapes.fused import FusedConv
from ...shapes.specs import equivalent_strides
from .graph import Packing, layout_conversions, relaid_out
from .legacy_plans import DIRECTIONS, ConvDescriptors, ConvolutionPlan, FusedPlan, requires_ieee

_IN_ONE_CALL = ("relu", "identity")  # activations of cudnnConvolutionBiasActivationForward


def candidates(
    problem: ConvProblem | FusedConv, context: Context, algorithm: str | None = None
) -> list[Candidate]:
    """Return the legacy algorithms for a problem in cuDNN's order, then the rejected ones with reasons.

    With ``algorithm``, a name in lower case, only that algorithm is returned.
    """
    impossible = _lacks_calls(context) or _why_not(problem)
    if impossible:
        return [_impossible(algorithm, impossible)]
    usable: list[Candidate] = []
    rejected: list[Candidate] = []
    for packing in layout_conversions(problem):
        relaid = relaid_out(problem, packing)
        try:
            rows = _ranked(relaid, packing, context)
        except (NotSupportedError, BadParamError) as error:
            rejected.append(_impossible(algorithm, str(error)))
            continue
        rows = [row for row in rows if algorithm in (None, row.algorithm)]
        rows = [row._replace(rejected=row.rejected or _why_not_row(relaid, row, context)) for row in rows]
        usable += [row for row in rows if not row.rejected]
        rejected += [row for row in rows if row.rejected]
        # Other copies are not tried if a deterministic algorithm needs no further ones.
        if any(row.deterministic for row in usable):
            break
    if not usable and not rejected:
        rejected.append(_impossible(algorithm, "cuDNN's heuristics do not list it for this problem"))
    return usable + rejected


def plan(problem: ConvProblem | FusedConv, candidate: Candidate, context: Context) -> Plan:
    """Return a plan without copies for a candidate; raise NotSupportedError if the problem rejects it."""
    impossible = _lacks_calls(context) or _why_not(problem) or _why_not_row(problem, candidate, context)
    if impossible:
        raise NotSupportedError(f"{candidate} is not for this {problem}: {impossible}")
    native = _native(problem, candidate.math)
    if isinstance(problem, FusedConv):
        return FusedPlan(problem, native, candidate, context)
    return ConvolutionPlan(native, candidate, context)


def _lacks_calls(context: Context) -> str:
    """Return why this cuDNN has no legacy convolutions; empty if it has."""
    lacks = context.library.lacks("cnn")
    return f"a convolution by a legacy call {lacks}" if lacks else ""


def _impossible(algorithm: str | None, reason: str) -> Candidate:
    return Candidate("legacy", algorithm or "all algorithms", "any", 0, True, rejected=reason)


def _native(problem: ConvProblem | FusedConv, math: str | None = None) -> ConvDescriptors:
    """Return the descriptors of a problem; the fused call has one descriptor for residual and result."""
    z, y = problem.z if isinstance(problem, FusedConv) else None, problem.result
    if z and not equivalent_strides(z.shape, z.strides, y.strides):
        raise NotSupportedError(f"z differs in layout from the result: got {z}, expected the layout of {y}")
    return ConvDescriptors(problem.core, math)


def _ranked(problem: ConvProblem | FusedConv, packing: Packing, context: Context) -> list[Candidate]:
    """Query cuDNN's heuristics, which return every algorithm, usable or not."""
    native = _native(problem)
    direction, (first, second, result) = native.direction, native.operands
    count, rows = ctypes.c_int(), (direction.perf * len(direction.algorithms))()
    function = f"cudnnGetConvolution{direction.name}Algorithm_v7"
    rank = getattr(context.library, function)
    rank(context.handle, first, second, native.convolution, result, len(rows), ctypes.byref(count), rows)
    return [_candidate(row, native, packing, function) for row in rows[: count.value]]


def _candidate(row: Any, native: ConvDescriptors, packing: Packing, function: str) -> Candidate:
    rejected = "" if row.status == 0 else str(error_from_status(row.status, function))
    return Candidate(
        backend="legacy",
        algorithm=native.direction.algorithms(row.algo).name.lower(),
        math=native.math if native.math == "fma" else MATH_NAMES.get(row.mathType, "default"),
        workspace=0 if rejected else row.memory,
        deterministic=row.determinism == enums.Determinism.DETERMINISTIC,
        relayout=packing,
        rejected=rejected,
    )


def _why_not_row(problem: ConvProblem | FusedConv, candidate: Candidate, context: Context) -> str:
    """Return why a stored candidate cannot be used for a problem; empty if it can."""
    core = problem.core
    algorithms = DIRECTIONS[core.direction].algorithms
    if candidate.algorithm not in {one.name.lower() for one in algorithms if one.name != "COUNT"}:
        return f"{core.direction} has no legacy algorithm {candidate.algorithm!r}"
    if candidate.math not in MATH_NAMES.values():
        return f"the math type {candidate.math!r} does not exist"
    if candidate.math != "fma" and requires_ieee(core):
        return f"{candidate.math} math is coarser than {core.compute}"
    return rejection_of(problem, candidate.algorithm, target_of(context))


@lru_cache(256)
def _why_not(problem: ConvProblem | FusedConv) -> str:
    """Return why no legacy call can compute a problem; empty if a call may."""
    if isinstance(problem, FusedConv) and problem.activation not in _IN_ONE_CALL:
        return f"the legacy fused call supports {' and '.join(_IN_ONE_CALL)}, not {problem.activation}"
    if isinstance(problem, FusedConv) and problem.bias is None:
        return "the legacy fused call needs a bias"
    core = problem.core
    if core.asymmetric_padding:
        return "the legacy calls pad both sides of an axis alike"
    if problem.result.dtype == "int32":
        return "the legacy calls write sums of int8 as float32, not int32"
    for name in ("x", "w", "y"):
        low, high = getattr(core, name).extent
        if high - low >= 2**31:
            return f"{name} spans {high - low:,} elements; a legacy descriptor holds fewer than 2**31"
    return ""
