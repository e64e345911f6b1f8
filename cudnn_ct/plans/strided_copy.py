"""Packed copies, on the device, of tensors whose strides no descriptor holds: 0 or negative ones.

The bytes are copied, so the copies are exact for every dtype. An axis with a stride of 0 is copied once and
then doubled. An axis with a negative stride is reversed by exchanging blocks of 1, 2, 4 ... of its elements,
because reversing an index of m bits inverts each bit. So the number of copies grows with the logarithm of the
lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple

from ..context import Context
from ..cuda import memory as memories
from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..shapes.specs import INT_MAX, TensorSpec
from .axes import MAX_CALLS, coalesce, tile
from .base import Plan
from .program import CallPlan, align_after, run_all

SOURCE, TARGET, FIRST, SECOND = range(4)  # the memory that a move reads or writes: the last two are temporary
WIDE_ROW = 64  # bytes; the driver copies shorter rows one by one
MAX_ROW_CALLS = 16  # copies of rows that replace one call of cuDNN


class Axis(NamedTuple):
    """An axis that a move copies: its length, and its strides in bytes in the memory read and written."""

    length: int
    source: int
    target: int


class Move(NamedTuple):
    """A copy between two memories, which start at an offset in bytes, along axes with positive strides."""

    source: int
    source_offset: int
    target: int
    target_offset: int
    axes: tuple[Axis, ...]


class StridedCopy:
    """A copy to a tensor of the same shape and dtype, whose strides are positive."""

    __slots__ = ("_moves", "_offsets", "workspace")

    def __init__(self, source: TensorSpec, target: TensorSpec) -> None:
        found, sizes = moves(source, target)
        self._moves = [(move, _enqueue(move.axes)) for move in found]
        first, nbytes = align_after(0, sizes[0])
        second, self.workspace = align_after(nbytes, sizes[1])
        self._offsets = first, second

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Enqueue the copies, with temporary memory in the workspace; reject other factors than 1 and 0."""
        if alpha != 1 or beta != 0:
            raise NotSupportedError(f"cudnnTransformTensor {context.library.lacks('ops')}")
        source, target = pointers
        self.copy(context, source, target, context.workspace(self.workspace))

    def copy(self, context: Context, source: int, target: int, temporary: int) -> None:
        """Enqueue the copies; ``temporary`` is the address of ``workspace`` bytes."""
        starts = (source, target, *(temporary + offset for offset in self._offsets))

        def enqueue(move: Move, run: Callable[[Context, int, int], None]) -> None:
            run(context, starts[move.source] + move.source_offset, starts[move.target] + move.target_offset)

        run_all(partial(enqueue, *pair) for pair in self._moves)

    def describe(self) -> str:
        return f"chosen: {len(self._moves)} copies on the device"


# --- which bytes go where ----------------------------------------------------------------------------------


def moves(source: TensorSpec, target: TensorSpec) -> tuple[list[Move], tuple[int, int]]:
    """Return the moves of a copy, in order, and the bytes of its two temporary memories."""
    itemsize = DTYPES[source.dtype].itemsize
    axes = [  # in the order of the target's memory
        Axis(axis.lengths[0], axis.strides[1] * itemsize, axis.strides[0] * itemsize)
        for axis in coalesce([target, source])
    ]
    axes.append(Axis(itemsize, 1, 1))
    distinct = [axis for axis in axes if axis.source]
    found: list[Move] = []
    place, distinct, sizes = _reversed(distinct, found)
    found.append(Move(*place, TARGET, 0, tuple(distinct)))
    # The innermost axis first: then the elements of the inner axes are complete, and the outer ones few.
    for axis in reversed([axis for axis in axes if not axis.source]):
        found += _doubled(axis, distinct)
        distinct.append(axis)
    return found, sizes


def _reversed(axes: list[Axis], found: list[Move]) -> tuple[tuple[int, int], list[Axis], tuple[int, int]]:
    """Append the moves that reverse the axes with negative strides.

    Returns the memory with all axes in order and its offset, the axes with their strides in it, and the bytes
    of the temporary memories.
    """
    offset = sum((axis.length - 1) * axis.source for axis in axes if axis.source < 0)
    turned = [place for place, axis in enumerate(axes) if axis.source < 0]
    axes = [axis._replace(source=abs(axis.source)) for axis in axes]
    memory, other, nbytes = SOURCE, FIRST, 0
    for place in turned:
        length = axes[place].length
        bits = (length - 1).bit_length()
        rest = [at for at in range(len(axes)) if at != place]
        strides, row = [0] * len(axes), 1  # of the memory written: the reversed axis is the outermost
        for at in reversed(rest):
            strides[at], row = row, row * axes[at].length
        strides[place] = row
        nbytes = max(nbytes, row << bits)
        placed = tuple(axis._replace(target=step) for axis, step in zip(axes, strides, strict=True))
        found.append(Move(memory, offset, other, 0, placed))
        memory, other = other, (SECOND if other == FIRST else FIRST)
        for bit in range(bits):
            block = row << bit
            pairs = (Axis(1 << (bits - bit - 1), 2 * block, 2 * block), Axis(block, 1, 1))
            found += [Move(memory, start, other, block - start, pairs) for start in (0, block)]
            memory, other = other, memory
        offset = ((1 << bits) - length) * row  # the last element of the padded axis is the first one
        axes = [axis._replace(source=step) for axis, step in zip(axes, strides, strict=True)]
    return (memory, offset), axes, (nbytes, nbytes)


def _doubled(axis: Axis, others: Sequence[Axis]) -> Iterator[Move]:
    """Yield the moves that repeat the first element of an axis of the target along the axis."""
    done = 1
    inside = [Axis(one.length, one.target, one.target) for one in others]
    while done < axis.length:
        more = min(done, axis.length - done)
        repeated = Axis(more, axis.target, axis.target)
        yield Move(TARGET, 0, TARGET, done * axis.target, (*inside, repeated))
        done += more


# --- how a move is enqueued --------------------------------------------------------------------------------


def _enqueue(axes: Sequence[Axis]) -> Callable[[Context, int, int], None]:
    """Return a function that copies along some axes from one address to another."""
    outer, row = _merged(axes)
    if not outer:
        return lambda context, source, target: memories.copy_device(target, source, row, context.stream)
    if row >= WIDE_ROW and prod(axis.length for axis in outer[:-1]) <= MAX_ROW_CALLS:
        return _by_rows(outer, row)
    try:
        return _by_cudnn(outer, row)
    except NotSupportedError:
        return _by_rows(outer, row)  # of a cuDNN without its legacy functions


def _merged(axes: Sequence[Axis]) -> tuple[list[Axis], int]:
    """Return the axes around the longest row of adjacent bytes, the outermost first, and its bytes."""
    row, outer = 1, list[Axis]()
    for axis in sorted((axis for axis in axes if axis.length > 1), key=lambda axis: axis.target):
        if axis.source == axis.target == row and not outer:
            row *= axis.length
        elif outer and all(
            step == outer[-1].length * inner for step, inner in zip(axis[1:], outer[-1][1:], strict=True)
        ):
            outer[-1] = outer[-1]._replace(length=outer[-1].length * axis.length)
        else:
            outer.append(axis)
    return outer[::-1], row


def _by_rows(outer: Sequence[Axis], row: int) -> Callable[[Context, int, int], None]:
    """Return a function that copies the rows along the longest axis by one call of the driver."""
    pitched = [axis for axis in outer if row <= min(axis[1:]) and max(axis[1:]) <= INT_MAX]  # as it demands
    inner = max(pitched, key=lambda axis: axis.length, default=Axis(1, row, row))
    around = [axis for axis in outer if axis is not inner]
    if prod(axis.length for axis in around) > MAX_CALLS:
        raise NotSupportedError(f"a copy takes more than {MAX_CALLS:,} driver calls; pass contiguous arrays")
    offsets = [
        (
            sum(i * axis.source for i, axis in zip(index, around, strict=True)),
            sum(i * axis.target for i, axis in zip(index, around, strict=True)),
        )
        for index in product(*(range(axis.length) for axis in around))
    ]

    def run(context: Context, source: int, target: int) -> None:
        for start, end in offsets:
            memories.copy_rows(
                target + end, inner.target, source + start, inner.source, row, inner.length, context.stream
            )

    return run


def _by_cudnn(outer: Sequence[Axis], row: int) -> Callable[[Context, int, int], None]:
    """Return a function that copies bytes by ``cudnnTransformTensor``."""
    shape = (*(axis.length for axis in outer), row)
    source = TensorSpec(shape, (*(axis.source for axis in outer), 1), "int8")
    target = TensorSpec(shape, (*(axis.target for axis in outer), 1), "int8")
    plan: Plan = tile(lambda a, b: CallPlan("cudnnTransformTensor", (), [(0, a)], b), source, target)
    return lambda context, start, end: plan.run(context, (start, end), 1.0, 0.0)
