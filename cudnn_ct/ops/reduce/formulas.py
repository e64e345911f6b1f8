"""Reductions by graphs alone, for a cuDNN that has no legacy calls."""

from __future__ import annotations

from ...certify.determinism import why_varying
from ...context import Context
from ...errors import NotSupportedError
from ...plans.axes import coalesce
from ...plans.base import Plan
from ...plans.program import Step, chained
from ...shapes.reduction import ReduceProblem
from ...shapes.specs import INT_MAX, TensorSpec
from ...typing import ReduceOp
from .._formulas import DTYPES_OF_ENGINES, Formulas, Matrix, Term, in_slices, matrix_of, pointwise, total

MAX_POSITIONS = 2**24  # float32 has all whole numbers below
_SUMS = ("add", "avg", "norm1", "norm2")  # engines have no products
_EXTREMES = ("max", "min", "amax")

# The reductions of the inner axes and of the outer ones, if they differ from that of all.
_PASSES: dict[str, tuple[ReduceOp, ReduceOp]] = {"norm1": ("norm1", "add"), "amax": ("amax", "max")}


def reduction_by_formulas(problem: ReduceProblem, context: Context) -> Plan | None:
    """Return a plan for contiguous arrays whose reduced axes are rows or columns of matrices, or both."""
    x, y, indices = problem.x, problem.kept, problem.indices
    if not 2 <= problem.terms <= (MAX_POSITIONS if indices else INT_MAX) or problem.op not in (
        *_SUMS,
        *_EXTREMES,
    ):
        return None
    if problem.op in _EXTREMES and not (problem.propagate_nan and _in_c_order(problem)):
        return None  # if all elements are NaN, engines return the value that their search begins with
    positions = (
        [] if indices is None else [indices._replace(shape=y.shape, strides=y.strides, dtype="float32")]
    )
    if indices is not None and indices.strides != problem.y.strides:
        return None
    matrix = matrix_of([x], [y])
    if matrix is None:
        return None if positions else _in_two_passes(problem, context)
    one = Formulas(matrix, 2 + len(positions), context)
    given = one.tensor(0, x.dtype)
    one.store(_reduced(given, problem.op, problem.terms), 1, y.dtype)
    if positions:
        one.store(_position(given, problem.op, matrix), 2, "int32")
    of_run = [(x.dtype, False), (y.dtype, True), ("int32", True)]
    plan = in_slices(matrix, one.program(), of_run[: 2 + len(positions)])
    varying = why_varying(problem, "graphs", plan, context) if problem.deterministic else ""
    if varying:
        raise NotSupportedError(varying)
    return plan


def _in_c_order(problem: ReduceProblem) -> bool:
    """Return whether positions along the reduced axes are those in memory, or are not wanted."""
    steps = [problem.x.strides[axis] for axis in problem.axes if problem.x.shape[axis] > 1]
    return problem.indices is None or steps == sorted(steps, reverse=True)


def _reduced(x: Term, op: ReduceOp, terms: int) -> Term:
    if op in _EXTREMES:
        # They skip NaN. The sum of magnitudes is NaN only if an element is, and its tanh is finite.
        return total(x, op) + pointwise("tanh_fwd", total(pointwise("abs", x))) * 0.0
    if op == "norm2":
        return pointwise("sqrt", total(x * x))
    sums = total(pointwise("abs", x) if op == "norm1" else x)
    return sums * (1 / terms) if op == "avg" else sums


def _position(x: Term, op: ReduceOp, matrix: Matrix) -> Term:
    """Return the first position of an extreme, or of a NaN if there are any."""
    row, column = (pointwise("gen_index", x, axis=axis) for axis in (0, 1))
    place = {"rows": column, "columns": row}.get(matrix.kept, row * float(matrix.columns) + column)
    unequal = pointwise("cmp_neq", x, x)
    only_numbers = pointwise("cmp_eq", total(unequal), 0.0)
    found = pointwise("cmp_eq", x, total(x, op)) * only_numbers + unequal
    first = total(place - found * float(MAX_POSITIONS), "min")
    return pointwise("identity", first + float(MAX_POSITIONS))


def _in_two_passes(problem: ReduceProblem, context: Context) -> Plan | None:
    """Return a plan for axes that are reduced on both sides of those that are kept: the inner ones first."""
    axes = coalesce([problem.x, problem.kept])
    if [axis.lengths[1] > 1 for axis in axes] != [
        False,
        True,
        False,
    ] or problem.x.dtype not in DTYPES_OF_ENGINES:
        return None
    lengths, strides = zip(*((axis.lengths[0], axis.strides[0]) for axis in axes), strict=True)
    parts = TensorSpec.packed((*lengths[:2], 1))
    sums = TensorSpec((1, lengths[1], 1), (lengths[1], axes[1].strides[1], 1), problem.y.dtype)
    first, again = _PASSES.get(problem.op, (problem.op, problem.op))
    whole = TensorSpec(lengths, strides, problem.x.dtype)
    inner = reduction_by_formulas(problem._replace(x=whole, y=parts, axes=(2,), op=first), context)
    outer = reduction_by_formulas(problem._replace(x=parts, y=sums, axes=(0,), op=again), context)
    if inner is None or outer is None:
        return None
    return chained([parts], [Step(inner, (0, 2)), Step(outer, (2, 1))])
