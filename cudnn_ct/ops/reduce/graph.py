"""Reductions of large contiguous arrays by graphs, as reductions of rows or columns of a matrix.

The engines are compiled when a plan is built, which takes 0.15 to 0.5 s. The legacy call takes ten times as
long for rows, and 200 times as long for columns.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from ..._config import config
from ..._lib import load
from ...certify.certificates import why_varying
from ...context import Context
from ...dtypes import DTYPES
from ...errors import NotSupportedError
from ...graph.operations import Graph, Tensor, node
from ...graph.pixels import pixels
from ...plans.axes import coalesce, is_contiguous
from ...plans.base import Plan
from ...plans.elementwise import op_tensor_of
from ...plans.program import ALPHA, BETA, Program, Step, Steps, Variants, chained
from ...plans.wrappers import scaled_after
from ...shapes.specs import INT_MAX, TensorSpec, equivalent_strides, strides_in_order
from ...shapes.tensor import ReduceProblem
from ...typing import ReduceOp
from .._fallback import IGNORES_NAN
from .._formulas import (
    DTYPES_OF_ENGINES,
    Formulas,
    Matrix,
    Term,
    first_plan,
    in_slices,
    matrix_of,
    pointwise,
    total,
)
from .legacy import NAN_GUARDS, nan_ignoring, nan_propagating, reduce_plan

# --- reductions by graphs alone, for a cuDNN that has no legacy calls --------------------------------------

MAX_POSITIONS = 2**24  # float32 has all whole numbers below
_SUMS = ("add", "avg", "norm1", "norm2")  # engines have no products
_EXTREMES = ("max", "min", "amax")

# The reductions of the inner axes and of the outer ones, if they differ from that of all.
_PASSES: dict[str, tuple[ReduceOp, ReduceOp]] = {"norm1": ("norm1", "add"), "amax": ("amax", "max")}


def reduction_by_formulas(problem: ReduceProblem, context: Context) -> Plan | None:
    """Return a plan for contiguous arrays whose reduced axes are rows or columns of matrices, or both."""
    x, y, indices = problem.x, problem.kept, problem.indices
    most = MAX_POSITIONS if indices else INT_MAX
    if not 1 <= problem.terms <= most or problem.op not in (*_SUMS, *_EXTREMES):
        return None
    if problem.op in _EXTREMES and not problem.propagate_nan:
        # If all elements are NaN, engines return the value that their search begins with.
        raise NotSupportedError(IGNORES_NAN)
    steps = [x.strides[axis] for axis in problem.axes if x.shape[axis] > 1]
    if indices is not None and steps != sorted(steps, reverse=True):
        return None  # positions along the reduced axes are not those in memory
    positions = (
        [] if indices is None else [indices._replace(shape=y.shape, strides=y.strides, dtype="float32")]
    )
    if indices is not None and not equivalent_strides(problem.y.shape, indices.strides, problem.y.strides):
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


# --- one graph ---------------------------------------------------------------------------------------------

MIN_ELEMENTS = 2**20  # with fewer elements, the legacy call takes only tens of microseconds
FEW = 128  # rows; with fewer, one thread block per row does not fill a GPU
PIECES, PIECE = 1024, 256  # max number of pieces per row, and min elements per piece


class GraphReduction(NamedTuple):
    """Graph form of a reduction: the operator, and a pointwise operation ``before`` it."""

    operator: str
    before: str = ""
    again: ReduceOp = "add"  # combines partial results
    root: bool = False  # whether a square root follows
    only: str | None = None  # the one axis of a matrix that may be kept; None allows all


# The extremes skip NaN, so NaN is propagated separately. Maxima over columns start from the lowest number.
FORMS = {
    "add": GraphReduction("add"),
    "avg": GraphReduction("add"),
    "norm1": GraphReduction("add", "abs"),
    "norm2": GraphReduction("add", "mul", root=True),
    "amax": GraphReduction("amax", again="max"),
    "max": GraphReduction("max", again="max", only="rows"),
    "min": GraphReduction("min", again="min", only="rows"),
}


class MatrixView(NamedTuple):
    """A contiguous matrix, its axis "rows", "columns" or "", and shape and axis of a second pass, if any."""

    rows: int
    columns: int
    kept: str
    again: tuple[tuple[int, int], int] | None = None


# Indices of the heuristics' configurations in the order to try; a bad order costs up to a factor of four.
ORDER = {"rows": (0, 1, 2), "columns": (2, 1, 0), "": (1, 2, 0)}


def reduction(problem: ReduceProblem, context: Context) -> Plan | None:
    """Return a plan for a large contiguous array that is a :class:`MatrixView`, or None."""
    # Without C functions, which apply factors, roots and conversions, formulas take its place.
    x, y, form = problem.x, problem.kept, FORMS.get(problem.op)
    if load().lacks("ops") or form is None or problem.indices or DTYPES[x.dtype].accumulate != "float32":
        return None
    if x.size < MIN_ELEMENTS or x.size > INT_MAX or not config.allow_runtime_compilation:
        return None
    places = sorted(range(len(x.shape)), key=lambda axis: -x.strides[axis])
    ordered = TensorSpec(y.shape, strides_in_order(y.shape, places), "float32")  # in the memory order of x
    matrix = _matrix(x, ordered)
    if matrix is None or form.only not in (None, matrix.kept):
        return None
    joined = nan_propagating if problem.propagate_nan else nan_ignoring  # of the maximum and the minimum
    if joined is nan_ignoring and problem.op in NAN_GUARDS and matrix.kept != FORMS["max"].only:
        return None

    def made(one: ReduceProblem) -> Plan:
        return _plan(one, matrix, ordered, context)

    if problem.deterministic:
        # Sums are compared before the roots, roundings and further sums that hide most differences: of four
        # norms of 2**18 elements, one in a hundred had other bits.
        graph = reduction_graph(form, x.dtype, matrix)
        terms, found = (tensor.spec for tensor in graph.operands)
        sums = ReduceProblem(terms, found, None, (), problem.op, True)
        plan = first_plan(graph, context, ORDER[matrix.kept])
        varying = why_varying(sums, "a graph of sums", plan, context)
        if varying:
            raise NotSupportedError(varying)
    if problem.op in NAN_GUARDS:
        return joined(problem, ordered, lambda one, _: made(one), context)
    return made(problem)


def _plan(problem: ReduceProblem, matrix: MatrixView, ordered: TensorSpec, context: Context) -> Plan:
    """Return a plan for one reduction of a matrix and for the scaling of its results."""
    x, y, form = problem.x, problem.kept, FORMS[problem.op]
    plan = _of_matrix(form, x.dtype, matrix, context)
    factor = 1 / problem.terms if problem.op == "avg" else 1.0
    if not form.root and y.dtype == "float32" and equivalent_strides(y.shape, y.strides, ordered.strides):
        return scaled_after(plan, 1, TensorSpec.packed((y.size,), "float32"), factor)
    # The maximum of x and x scales and converts.
    after = _root(ordered, y) if form.root else op_tensor_of("max", ordered, y, alpha1=factor, alpha2=factor)
    return chained([ordered], [Step(plan, (0, 2)), Step(after, (2, 1))])


def _root(x: TensorSpec, y: TensorSpec) -> Program:
    """Return a plan of square roots, converted to the dtype of y: one call unless alpha multiplies them."""
    direct = op_tensor_of("sqrt", x, y)
    # Alpha would be below the root.
    steps = [
        Step(op_tensor_of("sqrt", x, x), (0, 0)),
        Step(op_tensor_of("max", x, y), (0, 1), ALPHA, BETA),
    ]
    variants = Variants(lambda _, alpha, beta: alpha != 1, lambda _: Steps((), steps))  # noqa: ARG005
    return Program(Steps((), [Step(direct, None, beta=BETA)]), variants=variants, about="{}", main=direct)


def _of_matrix(form: GraphReduction, dtype: str, matrix: MatrixView, context: Context) -> Plan:
    """Return a plan that writes contiguous float32 results, with a second pass if the view needs one."""
    plan = first_plan(reduction_graph(form, dtype, matrix), context, ORDER[matrix.kept])
    if matrix.again is None:
        return plan
    shape, axis = matrix.again
    parts = TensorSpec.packed(shape, "float32")
    whole = TensorSpec.packed(tuple(1 if i == axis else n for i, n in enumerate(shape)), "float32")
    join = ReduceProblem(parts, whole, None, (axis,), form.again, True)
    return chained([parts], [Step(plan, (0, 2)), Step(reduce_plan(join, context), (2, 1))])


def reduction_graph(form: GraphReduction, dtype: str, matrix: MatrixView) -> Graph:
    """Return the graph that reduces rows, columns or all elements of a matrix to float32."""
    rows, columns, kept, _ = matrix
    x = Tensor(1, pixels(rows, columns, dtype))
    y = Tensor(2, pixels(rows if kept == "rows" else 1, columns if kept == "columns" else 1, "float32"))
    each = Tensor(3, pixels(rows, columns, "float32"), virtual=True) if form.before else x
    nodes = [node("reduction", operator=form.operator, comp_type="float32", xdesc=each, ydesc=y)]
    if form.before:
        second = {"bdesc": x} if form.before == "mul" else {}
        before = node("pointwise", mode=form.before, math_prec="float32", xdesc=x, ydesc=each, **second)
        nodes.insert(0, before)
    return Graph(tuple(nodes), (x, y))


def _matrix(x: TensorSpec, y: TensorSpec) -> MatrixView | None:
    """Return the matrix view of x, if its axes are kept or reduced in an order that has one."""
    axes = coalesce([x, y])
    if not is_contiguous(axes, 0):
        return None
    lengths = [axis.lengths[0] for axis in axes]
    kept = tuple(axis.lengths[1] > 1 for axis in axes)
    if kept == (False,):
        columns = gcd(x.size, PIECE * 16)
        return MatrixView(x.size // columns, columns, "") if columns >= PIECE else None
    if kept == (True, False):
        return _rows(*lengths)
    if kept == (False, True):
        return MatrixView(lengths[0], lengths[1], "columns")
    if kept == (False, True, False):
        parts, rows, columns = lengths
        return MatrixView(parts * rows, columns, "rows", ((parts, rows), 0))
    return None


def _rows(rows: int, columns: int) -> MatrixView | None:
    """Return the view that keeps rows; few long rows are split, because some engines fail with them."""
    if rows >= FEW:
        return MatrixView(rows, columns, "rows")
    pieces = gcd(columns, PIECES)
    while pieces > 1 and columns // pieces < PIECE:
        pieces //= 2
    if rows * pieces < FEW:
        return None
    return MatrixView(rows * pieces, columns // pieces, "rows", ((rows, pieces), 1))
