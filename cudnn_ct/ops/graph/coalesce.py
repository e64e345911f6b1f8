"""Fewer axes for graphs of pointwise operations, reductions and matrix products.

Engines take tensors of three axes, and reductions of images with channels last. Adjacent axes are merged if
every tensor of the graph has both, or neither, in contiguous memory: the elements and their order in memory
stay the same.
"""

from __future__ import annotations

from math import gcd, prod

from ...shapes.graph.problem import GraphNode, GraphProblem, GraphValue
from ...shapes.specs import Shape, TensorSpec

CHANNELS = 1024  # elements of a pixel, if a whole tensor is reduced

_NORMS = {"norm_forward", "norm_backward"}
_OF_ROWS = {"layer_norm", "rms_norm"}

Axes = list[tuple[int, int]]  # the length and the stride of each axis


def coalesced(problem: GraphProblem, *, index: bool = True) -> GraphProblem:
    """Return the graph with merged axes, or itself if an operation depends on the axes that it was given.

    With ``index``, that of rows is computed along the first of two axes.
    """
    kinds = {one.kind for one in problem.nodes}
    if not kinds <= {"pointwise", "pointwise_backward", "reduction", "matmul", *_NORMS}:
        return problem
    if any(one.attribute("mode") == "gen_index" for one in problem.nodes):
        return _with_index_of_rows(problem) if index else problem
    rank = max(len(value.spec.shape) for value in problem.values)
    last = rank - 2 if "matmul" in kinds else rank  # the axes before this one may be merged
    if kinds & _NORMS:
        if not all(_normalises_rows(one, rank) for one in problem.nodes if one.kind in _NORMS):
            return problem
        last = min(last, rank - 1)
    axes = [_axes(value.spec, rank) for value in problem.values]
    if kinds <= {"pointwise", "pointwise_backward"}:
        axes = _in_memory_order(axes)
    if rank > 2 or kinds & {"reduction", *_NORMS}:
        place = 0
        while place + 1 < last:
            if _mergeable(axes, place):
                axes = [_merged(one, place) for one in axes]
                last -= 1
            else:
                place += 1
    if "reduction" in kinds and not kinds & {"matmul", *_NORMS} and len(axes[0]) <= 4:
        axes = [_image(one) for one in _split(axes)]
    values = tuple(_with_axes(value, own) for value, own in zip(problem.values, axes, strict=True))
    return problem._replace(values=values)


def _with_index_of_rows(problem: GraphProblem) -> GraphProblem:
    """Merge the last two axes if cuDNN would compute an index along the first of three axes wrong."""
    indices = [one for one in problem.nodes if one.attribute("mode") == "gen_index"]
    of_rows = all(
        one.attribute("axis") == 0 and len(problem.operands_of(one)["x"].spec.shape) == 3 for one in indices
    )
    axes = [_axes(value.spec, 3) for value in problem.values if len(value.spec.shape) <= 3]
    elementwise = all(one.kind in ("pointwise", "pointwise_backward") for one in problem.nodes)
    if not (of_rows and elementwise and len(axes) == len(problem.values) and _mergeable(axes, 1)):
        return problem
    merged = (_with_axes(value, _merged(own, 1)) for value, own in zip(problem.values, axes, strict=True))
    return problem._replace(values=tuple(merged))


def _normalises_rows(one: GraphNode, rank: int) -> bool:
    """Whether a norm treats all axes before the last one alike; others tell samples and channels apart."""
    return one.attribute("mode") in _OF_ROWS and one.attribute("normalized", (rank - 1,)) == (rank - 1,)


def _axes(spec: TensorSpec, rank: int) -> Axes:
    return [(1, 1)] * (rank - len(spec.shape)) + list(zip(spec.shape, spec.strides, strict=True))


def _mergeable(axes: list[Axes], place: int) -> bool:
    """Whether each tensor has both axes in contiguous memory, or is broadcast along both."""
    outer, inner = (max(one[at][0] for one in axes) for at in (place, place + 1))
    for one in axes:
        (p, step), (q, next_step) = one[place], one[place + 1]
        whole = (p, q) == (outer, inner) and (1 in (p, q) or step == q * next_step)
        if not whole and (p, q) != (1, 1):
            return False
    return True


def _merged(axes: Axes, place: int) -> Axes:
    (p, step), (q, next_step) = axes[place : place + 2]
    return [*axes[:place], (p * q, next_step if q > 1 else step), *axes[place + 2 :]]


def _split(axes: list[Axes]) -> list[Axes]:
    """Split one axis, all of whose elements are reduced, into pixels."""
    if len(axes[0]) > 1:
        return axes
    length = max(one[0][0] for one in axes)
    channels = gcd(length, CHANNELS)
    return [
        [(n // channels, step * channels), (channels, step)] if n > 1 else [(1, 1), (1, 1)]
        for ((n, step),) in axes
    ]


def _image(axes: Axes) -> Axes:
    """Return axes as (N, C, H, W): the last one as channels."""
    first, *middle, last = axes
    reach = max(last[0] * last[1], 1)
    return [first, last, *middle, *[(1, reach)] * (2 - len(middle))]


def _in_memory_order(axes: list[Axes]) -> list[Axes]:
    """Return the axes of all tensors in the order that those of the largest tensor have in memory."""
    largest = max(axes, key=lambda one: prod(n for n, _ in one))
    order = sorted(range(len(largest)), key=lambda place: -largest[place][1])
    return [[one[place] for place in order] for one in axes]


def _with_axes(value: GraphValue, axes: Axes) -> GraphValue:
    if value.role == "constant":
        return value
    shape: Shape = tuple(n for n, _ in axes)
    return value._replace(spec=TensorSpec(shape, tuple(step for _, step in axes), value.spec.dtype))
