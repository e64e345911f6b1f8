"""The moves of packed copies of tensors with strides of 0 and negative ones, done by NumPy."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_ct.dtypes import DTYPES
from cudnn_ct.plans.strided_copy import Move, moves
from cudnn_ct.shapes.specs import TensorSpec, nearest_layout


@st.composite
def specs(draw: st.DrawFn) -> TensorSpec:
    """Draw a tensor, with axes in any order, some of them expanded or reversed."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=5)))
    strides, step = [0] * len(shape), 1
    for axis in draw(st.permutations(range(len(shape)))):
        kind = draw(st.sampled_from(["0", "-", "+"]))
        if kind != "0":
            strides[axis] = step * draw(st.integers(1, 2)) * (-1 if kind == "-" else 1)
            step = abs(strides[axis]) * shape[axis]
    dtype = draw(st.sampled_from(["int8", "float16", "float32", "float64"]))
    return TensorSpec(shape, tuple(strides), dtype)


def done(move: Move, memories: list[np.ndarray], starts: list[int]) -> None:
    """Do a move between memories of bytes, whose pointers are at some places in them."""

    def view(memory: int, offset: int, strides: tuple[int, ...]) -> np.ndarray:
        shape = tuple(axis.length for axis in move.axes)
        return np.ndarray(shape, np.uint8, memories[memory], starts[memory] + offset, strides)

    source = view(move.source, move.source_offset, tuple(axis.source for axis in move.axes))
    target = view(move.target, move.target_offset, tuple(axis.target for axis in move.axes))
    assert not np.shares_memory(source, target)
    assert all(axis.source > 0 and axis.target > 0 for axis in move.axes)
    target[...] = source


def packed_bytes(source: TensorSpec, target: TensorSpec) -> tuple[np.ndarray, np.ndarray]:
    """Return the elements of random memory through ``source``, and those of the copy, as bytes."""
    (low, high), itemsize = source.extent, DTYPES[source.dtype].itemsize
    found, sizes = moves(source, target)
    nbytes = ((high - low) * itemsize, target.size * itemsize, *sizes)
    memories = [np.random.default_rng(0).integers(0, 256, n, np.uint8) for n in nbytes]
    starts = [-low * itemsize, 0, 0, 0]
    for move in found:
        done(move, memories, starts)

    def elements(spec: TensorSpec, memory: int) -> np.ndarray:
        strides = tuple(step * itemsize for step in spec.strides)
        shape = (*spec.shape, itemsize)
        return np.ndarray(shape, np.uint8, memories[memory], starts[memory], (*strides, 1))

    return elements(source, 0), elements(target, 1)


@given(spec=specs(), data=st.data())
def test_moves_copy_every_byte_in_any_layout(spec: TensorSpec, data: st.DataObject) -> None:
    layouts = ["nchw"] if not 3 <= len(spec.shape) <= 5 else ["nchw", "nhwc"]
    target = TensorSpec.packed(spec.shape, spec.dtype, data.draw(st.sampled_from(layouts)))
    expected, copied = packed_bytes(spec, target)
    np.testing.assert_array_equal(copied, expected)


@pytest.mark.parametrize("length", [1, 2, 3, 64, 1000, 2**20])
@pytest.mark.parametrize("step", [0, -1])
def test_moves_are_few_when_axes_are_long(length: int, step: int) -> None:
    found, sizes = moves(TensorSpec((length,), (step,), "float16"), TensorSpec.packed((length,), "float16"))
    bits = (length - 1).bit_length()
    assert len(found) <= 2 + 2 * bits
    assert max(sizes) <= 2 * 2 * length


def test_moves_read_the_elements_of_an_expanded_tensor_once() -> None:
    spec = TensorSpec((8, 1, 512, 1024), (1024, 0, 0, 1), "float16")
    found, _ = moves(spec, TensorSpec.packed(spec.shape, "float16", nearest_layout(spec)))
    read = [move for move in found if move.source == 0]
    assert sum(prod(axis.length for axis in move.axes) for move in read) == 8 * 1024 * 2
    assert len(found) == 1 + 9
