"""The parts that rules of shapes share: results, broadcasting, strides, checks of ranks and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

from ..specs import Shape, TensorSpec, packed_strides, strides_in_order

Specs = Mapping[str, TensorSpec]


class Result(NamedTuple):
    """A result: its shape, and what the operation determines besides."""

    shape: Shape
    dtype: str = ""  # if the operation determines it
    like: TensorSpec | None = None  # whose axis order the result takes
    stored: str = ""  # its dtype as an output, if not that of the graph's first input

    def spec(self, dtype: str) -> TensorSpec:
        """Return the spec of the result, with ``dtype`` unless the operation determines it."""
        return TensorSpec(self.shape, ordered(self.shape, self.like), self.dtype or dtype)


Infer = Callable[[Specs, dict[str, Any]], dict[str, Result]]
"""A rule: the results of an operation from its operands and its attributes, which it may complete."""


class Kind(NamedTuple):
    """A kind of operation: a row of kinds.json, with the attributes of cuDNN by role, and its rule."""

    infer: Infer
    row: str  # in ``graph.operations.OPERATIONS``; empty for several operations of cuDNN
    operands: dict[str, str]
    results: dict[str, str]
    compute: str = ""  # the attribute for the accumulation dtype, if it has one
    since: str = "9.0"  # the version of cuDNN that introduced it


def broadcast(**shapes: Shape) -> Shape:
    """Return the common shape of tensors, aligned at the last axis as in NumPy.

    >>> broadcast(x=(8, 1, 5), b=(7, 5))
    (8, 7, 5)
    """
    rank = max(map(len, shapes.values()))
    common = [1] * rank
    for name, shape in shapes.items():
        for axis, length in enumerate(shape, rank - len(shape)):
            if length != 1 and common[axis] not in (1, length):
                listed = ", ".join(f"{other} {dims}" for other, dims in shapes.items())
                raise ValueError(
                    f"{name} does not broadcast: got length {length} at axis {axis - rank}, expected 1 or "
                    f"{common[axis]} ({listed})"
                )
            if length != 1:
                common[axis] = length
    return tuple(common)


def ordered(shape: Shape, like: TensorSpec | None) -> Shape:
    """Return the strides of a contiguous tensor whose axes have the order of another one's.

    >>> ordered((2, 3, 4, 4), TensorSpec.packed((1, 8, 6, 6), "float16", "nhwc"))
    (48, 1, 12, 3)
    """
    if like is None or len(like.shape) != len(shape):
        return packed_strides(shape)
    if like.layout is not None:
        return packed_strides(shape, like.layout)
    # Axes of length 1 in the other tensor have arbitrary strides: keep them where C order has them.
    order = sorted(range(len(shape)), key=lambda axis: (-abs(like.strides[axis]), axis))
    return strides_in_order(shape, order)


def largest(specs: Iterable[TensorSpec]) -> TensorSpec:
    """Return the spec with the most axes and elements, the first of several."""
    return max(specs, key=lambda spec: (len(spec.shape), prod(spec.shape)))
