"""The legacy calls as a backend: their candidates for a problem, and plans of them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ..._bindings import enums
from ...context import Context
from ...descriptors import MATH_NAMES
from ...errors import BadParamError, NotSupportedError, error_from_status
from ...plans.base import Candidate, Plan
from ...plans.scalars import scalar_type
from ...shapes.conv import ConvProblem
from ...shapes.fused import FusedConv
from .accuracy import inaccuracy
from .fused_legacy import FusedPlan, check_residual, why_not_fused
from .legacy_descriptors import DIRECTIONS, ConvDescriptors, layout_conversions, requires_ieee
from .relayout import Packing, relaid_out

__all__ = ["ConvolutionPlan", "candidates", "plan"]


def candidates(
    problem: ConvProblem | FusedConv, context: Context, algorithm: str | None = None
) -> list[Candidate]:
    """What the legacy calls can try for a problem, in cuDNN's order; rejected rows say why.

    The operands keep their layouts if cuDNN has a deterministic algorithm for these, except for a residual,
    which gets the layout of the result. Otherwise candidates that copy operands follow; they name the copies.
    With ``algorithm``, a name in lower case, only that algorithm is returned.
    """
    impossible = why_not_fused(problem) if isinstance(problem, FusedConv) else ""
    impossible = impossible or _limits(problem.core)
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
        rows = [row._replace(rejected=row.rejected or _impossible_row(relaid, row)) for row in rows]
        usable += [row for row in rows if not row.rejected]
        rejected += [row for row in rows if row.rejected]
        if any(row.deterministic for row in usable):
            break
    if not usable and not rejected:
        rejected.append(_impossible(algorithm, "cuDNN's heuristics do not know it for this problem"))
    return usable + rejected


def plan(problem: ConvProblem | FusedConv, candidate: Candidate, context: Context) -> Plan:
    """Return a plan for a candidate on the operands of the problem; it makes no copies.

    Raises
    ------
    NotSupportedError
        cuDNN rejects the algorithm for this problem, although its heuristics returned it.
    """
    impossible = _limits(problem.core) or _impossible_row(problem, candidate)
    impossible = impossible or (why_not_fused(problem) if isinstance(problem, FusedConv) else "")
    if impossible:
        raise NotSupportedError(f"{candidate} is not for this {problem}: {impossible}")
    native = ConvDescriptors(problem.core, candidate.math)
    if isinstance(problem, FusedConv):
        return FusedPlan(problem, native, candidate, context)
    return ConvolutionPlan(native, candidate, context)


def _impossible(algorithm: str | None, reason: str) -> Candidate:
    return Candidate("legacy", algorithm or "all algorithms", "any", 0, True, rejected=reason)


def _ranked(problem: ConvProblem | FusedConv, packing: Packing, context: Context) -> list[Candidate]:
    """Query cuDNN's heuristics, which return every algorithm, usable or not."""
    native = ConvDescriptors(problem.core)
    if isinstance(problem, FusedConv):
        check_residual(problem)
    direction, (first, second, result) = native.direction, native.operands
    count, rows = ctypes.c_int(), (direction.perf * len(direction.algorithms))()
    rank = getattr(context.library, direction.rank)
    rank(context.handle, first, second, native.convolution, result, len(rows), ctypes.byref(count), rows)
    return [_candidate(row, native, packing) for row in rows[: count.value]]


def _candidate(row: Any, native: ConvDescriptors, packing: Packing) -> Candidate:
    direction = native.direction
    rejected = "" if row.status == 0 else str(error_from_status(row.status, direction.rank))
    return Candidate(
        backend="legacy",
        algorithm=direction.algorithms(row.algo).name.lower(),
        math=native.math if native.math == "fma" else MATH_NAMES.get(row.mathType, "default"),
        workspace=0 if rejected else row.memory,
        deterministic=row.determinism == enums.Determinism.DETERMINISTIC,
        relayout=packing,
        rejected=rejected,
    )


def _impossible_row(problem: ConvProblem | FusedConv, candidate: Candidate) -> str:
    """Return why a stored candidate cannot be used for a problem; empty if it can."""
    algorithms = DIRECTIONS[problem.core.direction].algorithms
    if candidate.algorithm not in {one.name.lower() for one in algorithms if one.name != "COUNT"}:
        return f"{problem.core.direction} has no legacy algorithm {candidate.algorithm!r}"
    if candidate.math not in MATH_NAMES.values():
        return f"the math type {candidate.math!r} does not exist"
    if candidate.math != "fma" and requires_ieee(problem.core):
        return f"{candidate.math} math is coarser than {problem.core.compute}"
    return inaccuracy(problem, "legacy", candidate.algorithm)


def _limits(problem: ConvProblem) -> str:
    """Return why no legacy descriptor can hold a problem; empty if descriptors can."""
    if problem.asymmetric_padding:
        return "the legacy calls pad both sides of an axis alike"
    if problem.result.dtype == "int32":
        return "the legacy calls write sums of int8 as float32, not int32"
    for name in ("x", "w", "y"):
        low, high = getattr(problem, name).extent
        if high - low >= 2**31:
            return f"{name} spans {high - low:,} elements; a legacy descriptor holds fewer than 2**31"
    return ""


class ConvolutionPlan:
    """One legacy algorithm with its descriptors: a run is one C call."""

    __slots__ = ("_algorithm", "_call", "_native", "_scalar", "candidate", "workspace")

    def __init__(self, native: ConvDescriptors, candidate: Candidate, context: Context) -> None:
        direction = native.direction
        self.candidate = candidate
        self._native = native
        self._algorithm = int(direction.algorithms[candidate.algorithm.upper()])
        self._call = getattr(context.library, direction.run)
        self._scalar = scalar_type(native.compute)
        self.workspace: int = native.workspace(self._algorithm, context)

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Enqueue ``result = alpha * (...) + beta * result``; ``pointers`` are in the order of
        `shapes.conv.ROLES`."""
        n, workspace = self._native, context.workspace(self.workspace)
        (first, second, result), (a, b, c) = n.operands, n.in_c_order(pointers)
        scalar = self._scalar
        self._call(
            context.handle,
            scalar(alpha),
            first,
            a,
            second,
            b,
            n.convolution,
            self._algorithm,
            workspace,
            self.workspace,
            scalar(beta),
            result,
            c,
        )

    def describe(self) -> str:
        """Describe the implementation."""
        return f"chosen: {self.candidate}"
