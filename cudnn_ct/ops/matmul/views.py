"""Products of any rank as products of three axes, (batch, rows, columns), which engines take.

No element moves: batch axes are merged, folded into the rows of a if b is shared, or looped over.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any, NamedTuple

from ...dtypes import DTYPES
from ...errors import NotSupportedError
from ...graph.offline import target_of
from ...legal.conditions import applying
from ...legal.subjects import subjects_of
from ...plans.axes import MAX_CALLS
from ...plans.base import tensors_of
from ...shapes.matmul import MatmulProblem
from ...shapes.specs import UNALIGNED, TensorSpec

READS_BEHIND = "product-shared-element"  # the fact that slices compute around
_BATCHED = ("a", "b", "residual", "y")


class Slices(NamedTuple):
    """A product of three axes, and the offsets in bytes of each operand for each of its runs."""

    core: MatmulProblem
    offsets: tuple[tuple[int, ...], ...]


class _Matrix(NamedTuple):
    """A tensor as matrices: rows, columns, their strides, and a stride for each batch axis of the result."""

    rows: int
    columns: int
    row_step: int
    column_step: int
    steps: tuple[int, ...]


class _Axis(NamedTuple):
    """A batch axis: its length, and the stride of each batched tensor; 0 for those that are shared."""

    length: int
    steps: tuple[int, ...]


def slices_of(problem: MatmulProblem) -> Slices:
    """Return the product of three axes that computes a problem, in one run or one for each slice."""
    tensors = {name: getattr(problem, name) for name in _BATCHED if getattr(problem, name)}
    last = (len(problem.a.shape) > 1) + (len(problem.b.shape) > 1)
    batch = problem.y.shape[: len(problem.y.shape) - last]
    matrices = {name: _matrix(name, spec, problem, len(batch)) for name, spec in tensors.items()}
    steps = zip(*(matrix.steps for matrix in matrices.values()), strict=True)
    axes = _merged(list(map(_Axis, batch, steps)))
    matrices, axes = _folded(matrices, axes)
    places = {name: at for at, name in enumerate(matrices)}
    axes.sort(key=lambda axis: axis.length)
    # Engines of some versions read a number for each matrix where they share one.
    (subject,) = subjects_of(problem)
    separate = any(one.name == READS_BEHIND for one in applying("rewrite", subject, target_of(None)))
    inner = axes.pop() if axes and not separate else _Axis(1, (0,) * len(places))
    if (count := prod(axis.length for axis in axes)) > MAX_CALLS:
        raise NotSupportedError(
            f"the batch axes of a {problem.a} and b {problem.b} would take {count:,} products, at most "
            f"{MAX_CALLS:,} are made; copy the operand that is broadcast"
        )
    cores: dict[str, Any] = {
        name: _core(problem, name, matrix, inner, places[name]) for name, matrix in matrices.items()
    }
    columns = cores["y"].shape[2]
    wide = {name: spec for name, spec in tensors_of(problem).items() if name not in cores}
    cores |= {
        name: TensorSpec.packed((1, 1, columns if spec.shape == (columns,) else 1), spec.dtype)
        for name, spec in wide.items()
    }
    offsets = tuple(
        tuple(_offset(name, spec, places, axes, index) for name, spec in tensors_of(problem).items())
        for index in product(*(range(axis.length) for axis in axes))
    )
    aligned = problem.aligned and not any(offset & UNALIGNED for one in offsets for offset in one)
    return Slices(problem._replace(**cores, aligned=aligned), offsets)


def packed_operands(problem: MatmulProblem) -> MatmulProblem:
    """Return the problem with contiguous copies of operands whose strides engines do not support.

    One of the last two axes must be contiguous. A result has contiguous rows, and a residual its strides.
    """
    packed: dict[str, Any] = {}
    for name, spec in tensors_of(problem).items():
        fits = _is_matrix(name, spec, problem) if name in _BATCHED else "nchw" in spec.layouts
        if not fits:
            packed[name] = TensorSpec.packed(spec.shape, spec.dtype)
    if problem.residual:
        y = packed.get("y", problem.y)
        if packed.get("residual", problem.residual).strides != y.strides:
            for name, spec in (("y", problem.y), ("residual", problem.residual)):
                if "nchw" not in spec.layouts:
                    packed[name] = TensorSpec.packed(spec.shape, spec.dtype)
    return problem._replace(**packed)


def _is_matrix(name: str, spec: TensorSpec, problem: MatmulProblem) -> bool:
    if spec.overlaps_itself or not spec.size:
        return False
    matrix = _matrix(name, spec, problem)
    if name in ("y", "residual"):
        return matrix.column_step == 1 and matrix.row_step >= matrix.columns
    return 1 in (matrix.row_step, matrix.column_step)


def _matrix(name: str, spec: TensorSpec, problem: MatmulProblem, rank: int = 0) -> _Matrix:
    """Return the matrices of a tensor; vectors get an axis of length 1."""
    axes = list(zip(spec.shape, spec.strides, strict=True))
    row = name == "a" or len(problem.a.shape) > 1  # whether the tensor has rows
    if (name == "a" and len(spec.shape) == 1) or (name in ("y", "residual") and not row):
        axes.insert(len(axes) - (name == "a" or len(problem.b.shape) > 1), (1, 0))
    if (name == "b" and len(spec.shape) == 1) or (name in ("y", "residual") and len(problem.b.shape) == 1):
        axes.append((1, 0))
    (rows, row_step), (columns, column_step) = axes[-2:]
    if columns == 1:
        column_step = 1
    if rows == 1:  # a row with a stride is a column of the transposed matrix
        row_step = columns if column_step == 1 else 1
    if columns == 1 and name in ("y", "residual", "a", "b"):
        row_step = max(row_step, 1)
    steps = [0 if length == 1 else step for length, step in axes[:-2]]
    return _Matrix(rows, columns, row_step, column_step, (*[0] * (rank - len(steps)), *steps)[: rank or None])


def _merged(axes: list[_Axis]) -> list[_Axis]:
    """Merge batch axes that every tensor steps through as one."""
    found: list[_Axis] = []
    for axis in axes:
        if axis.length == 1:
            continue
        last = found[-1] if found else None
        if last and all(a == b * axis.length for a, b in zip(last.steps, axis.steps, strict=True)):
            found[-1] = _Axis(last.length * axis.length, axis.steps)
        else:
            found.append(axis)
    return found


def _folded(matrices: dict[str, _Matrix], axes: list[_Axis]) -> tuple[dict[str, _Matrix], list[_Axis]]:
    """Fold the last batch axis into the rows, if all matrices share b and their rows continue along it."""
    shared = list(matrices).index("b")
    if not axes or axes[-1].steps[shared]:
        return matrices, axes
    *rest, last = axes
    tall = {
        name: matrix
        for name, matrix in matrices.items()
        if name != "b" and last.steps[list(matrices).index(name)] == matrix.rows * matrix.row_step
    }
    if len(tall) < len(matrices) - 1 or any(matrix.column_step != 1 for matrix in tall.values()):
        return matrices, axes
    taller = {name: matrix._replace(rows=matrix.rows * last.length) for name, matrix in tall.items()}
    return matrices | taller, rest


def _core(problem: MatmulProblem, name: str, matrix: _Matrix, inner: _Axis, place: int) -> TensorSpec:
    rows, columns, row_step, column_step, _ = matrix
    step = inner.steps[place]
    length = inner.length if step else 1
    whole = max(rows * row_step, columns * column_step)
    strides = (step if length > 1 else whole, row_step, column_step)
    return TensorSpec((length, rows, columns), strides, getattr(problem, name).dtype)


def _offset(
    name: str, spec: TensorSpec, places: dict[str, int], axes: list[_Axis], index: tuple[int, ...]
) -> int:
    if name not in places:
        return 0
    steps = (axis.steps[places[name]] for axis in axes)
    return DTYPES[spec.dtype].itemsize * sum(i * step for i, step in zip(index, steps, strict=True))
