"""Reductions of large arrays as graphs: matrices without gaps, whose rows or columns become one number each.

Engines for these are compiled when their plan is made, which takes 0.15 to 0.5 s. The legacy call takes ten
times as long as they do for rows, and 200 times for columns.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from ..._config import config
from ...context import Context
from ...dtypes import DTYPES
from ...graph.operations import Graph, Tensor, node
from ...graph.pixels import pixels
from ...graph.plan import first_plan
from ...plans.base import Plan
from ...plans.chain import ChainPlan, Step
from ...plans.elementwise import OpTensorPlan
from ...plans.tiling import coalesce, is_contiguous, tile
from ...plans.wrappers import ScaleResult
from ...shapes.reduction import ReduceProblem
from ...shapes.specs import INT_MAX, OpTensorSpec, TensorSpec, equivalent_strides, packed_strides
from .legacy import NAN_GUARDS, ReducePlan, nan_propagating

__all__ = ["MatrixView", "reduction", "reduction_graph"]

MIN_ELEMENTS = 2**20  # elements; with fewer, the legacy call takes some tens of microseconds
FEW = 128  # rows, which are too few to keep a GPU busy with one thread block each
PIECES, PIECE = 1024, 256  # the most pieces that such a row is taken apart in, and the least elements of one


class GraphReduction(NamedTuple):
    """An operation as graphs have it: the operator, and what is done to each element before it.

    ``again`` joins the results of parts, and ``root`` is taken of the last. ``only`` is what of a matrix can
    be kept; None stands for all.
    """

    operator: str
    before: str = ""
    again: str = "add"
    root: bool = False
    only: str | None = None


# The extremes pass over NaN, so they are guarded. Of columns, maxima begin with the most negative number.
WAYS = {
    "add": GraphReduction("add"),
    "avg": GraphReduction("add"),
    "norm1": GraphReduction("add", "abs"),
    "norm2": GraphReduction("add", "mul", root=True),
    "amax": GraphReduction("amax", again="max"),
    "max": GraphReduction("max", again="max", only="rows"),
    "min": GraphReduction("min", again="min", only="rows"),
}


class MatrixView(NamedTuple):
    """A matrix without gaps, what is ``kept`` of it - "rows", "columns" or nothing -, and what comes after.

    ``again`` is the shape of the results where they are the parts of others, and the axis to join them over.
    """

    rows: int
    columns: int
    kept: str
    again: tuple[tuple[int, int], int] | None = None


# Which of the heuristics' answers come first; the others take up to four times as long.
ORDER = {"rows": (0, 1, 2), "columns": (2, 1, 0), "": (1, 2, 0)}


def reduction(problem: ReduceProblem, context: Context) -> Plan | None:
    """A plan for a large array without gaps that is a :class:`MatrixView` for this reduction; otherwise
    none."""
    x, y, way = problem.x, problem.kept, WAYS.get(problem.op)
    if way is None or problem.indices or DTYPES[x.dtype].accumulate != "float32":
        return None
    if x.size < MIN_ELEMENTS or x.size > INT_MAX or not config.allow_runtime_compilation:
        return None
    ordered = _in_order_of(x, y)
    matrix = _matrix(x, ordered)
    if matrix is None or way.only not in (None, matrix.kept):
        return None
    if config.deterministic and matrix.kept != "rows":  # whose sums are put together in any order
        return None
    if problem.op not in NAN_GUARDS:
        return _plan(problem, matrix, ordered, context)
    if not problem.propagate_nan:
        return None
    return nan_propagating(
        problem, ordered, lambda one, context: _plan(one, matrix, ordered, context), context
    )


def _plan(problem: ReduceProblem, matrix: MatrixView, ordered: TensorSpec, context: Context) -> Plan:
    """One reduction of a matrix, and what there is to do with its results."""
    x, y, way = problem.x, problem.kept, WAYS[problem.op]
    plan = _of_matrix(way, x.dtype, matrix, context)
    factor = 1 / problem.terms if problem.op == "avg" else 1.0
    if not way.root and y.dtype == "float32" and equivalent_strides(y.shape, y.strides, ordered.strides):
        return ScaleResult(plan, TensorSpec.packed((y.size,), "float32"), factor)
    steps = [Step(plan, (0, 2))]
    if way.root:
        steps.append(Step(_each("sqrt", 1.0, ordered, ordered), (2, 2)))
    steps.append(Step(_each("max", factor, ordered, y), (2, 1)))
    return ChainPlan([ordered], steps)


def _of_matrix(way: GraphReduction, dtype: str, matrix: MatrixView, context: Context) -> Plan:
    """A plan that writes float32 results without gaps; where they are parts of others, joined."""
    plan = first_plan(reduction_graph(way, dtype, matrix), context, ORDER[matrix.kept])
    if matrix.again is None:
        return plan
    shape, axis = matrix.again
    parts = TensorSpec.packed(shape, "float32")
    whole = TensorSpec.packed(tuple(1 if i == axis else n for i, n in enumerate(shape)), "float32")
    join = ReduceProblem(parts, whole, None, (axis,), way.again, True)
    return ChainPlan([parts], [Step(plan, (0, 2)), Step(ReducePlan(join, context), (2, 1))])


def reduction_graph(way: GraphReduction, dtype: str, matrix: MatrixView) -> Graph:
    """Make the graph that reduces rows or columns of a matrix, or all of it, to float32."""
    rows, columns, kept, _ = matrix
    x = Tensor(1, pixels(rows, columns, dtype))
    y = Tensor(2, pixels(rows if kept == "rows" else 1, columns if kept == "columns" else 1, "float32"))
    if not way.before:
        return Graph(
            (node("reduction", operator=way.operator, comp_type="float32", xdesc=x, ydesc=y),), (x, y)
        )
    each = Tensor(3, pixels(rows, columns, "float32"), virtual=True)
    second = {"bdesc": x} if way.before == "mul" else {}
    return Graph(
        (
            node("pointwise", mode=way.before, math_prec="float32", xdesc=x, ydesc=each, **second),
            node("reduction", operator=way.operator, comp_type="float32", xdesc=each, ydesc=y),
        ),
        (x, y),
    )


def _in_order_of(x: TensorSpec, y: TensorSpec) -> TensorSpec:
    """A float32 tensor like y, which has the axes of x, without gaps in the order that x has in memory."""
    places = sorted(range(len(x.shape)), key=lambda axis: -x.strides[axis])
    steps = packed_strides(tuple(y.shape[axis] for axis in places), "nchw")
    strides = dict(zip(places, steps, strict=True))
    return TensorSpec(y.shape, tuple(strides[axis] for axis in range(len(y.shape))), "float32")


def _matrix(x: TensorSpec, y: TensorSpec) -> MatrixView | None:
    """The matrix that x is, where its axes are those of y or are reduced, one after the other."""
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
    """The matrix whose rows are kept; in pieces where they are few and long, which some engines fail at."""
    if rows >= FEW:
        return MatrixView(rows, columns, "rows")
    pieces = gcd(columns, PIECES)
    while pieces > 1 and columns // pieces < PIECE:
        pieces //= 2
    if rows * pieces < FEW:
        return None
    return MatrixView(rows * pieces, columns // pieces, "rows", ((rows, pieces), 1))


def _each(op: str, factor: float, x: TensorSpec, y: TensorSpec) -> Plan:
    """``cudnnOpTensor`` of each element: the root, or the larger of it and itself, in the dtype of y."""
    return tile(lambda a, b: OpTensorPlan(OpTensorSpec(op), factor, factor, a, b), x, y)
