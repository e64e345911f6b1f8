"""Shapes and strides of views and of packed copies; `tests.both.views` compares elements with NumPy's."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from cudnn_ct.dtypes import DTYPES
from cudnn_ct.plans.strided_copy import Move, moves
from cudnn_ct.shapes.specs import TensorSpec, nearest_layout
from cudnn_ct.shapes.views import flat_index, index_view, reshape_view, resolve_shape, transpose_view

arrays = st.builds(
    lambda shape, order, steps: (
        np.arange(prod(shape))
        .reshape(shape)
        .transpose(order)[tuple(slice(None, None, step) for step in steps)]
    ),
    shape=st.just((4, 3, 2)),
    order=st.permutations(range(3)),
    steps=st.tuples(*[st.sampled_from([1, 2, -1, -2])] * 3),
) | st.builds(lambda shape: np.arange(prod(shape)).reshape(shape), array_shapes(min_dims=0, min_side=0))


def spec_of(array: np.ndarray) -> TensorSpec:
    return TensorSpec(array.shape, tuple(s // array.itemsize for s in array.strides), "int64")


@given(array=arrays, data=st.data())
def test_reshape_view_is_a_view_exactly_if_that_of_numpy_is(array: np.ndarray, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(factorizations(array.size)))
    spec = reshape_view(spec_of(array), shape)
    expected = array.reshape(shape)
    if array.size:
        assert (spec is not None) == np.shares_memory(expected, array)
    if spec is not None and array.size:  # the strides of axes of length 1 are arbitrary
        pairs = zip(spec_of(expected).strides, spec.strides, strict=True)
        assert spec.shape == expected.shape
        assert all(one == two for n, (one, two) in zip(spec.shape, pairs, strict=True) if n > 1)


def factorizations(size: int) -> list[tuple[int, ...]]:
    """Return shapes of a number of elements, with axes of length 1."""
    if not size:
        return [(0,), (3, 0, 2)]
    pairs = [(n, size // n) for n in range(1, size + 1) if size % n == 0]
    triples = [(a, b, rest // b) for a, rest in pairs for b in range(1, rest + 1) if rest % b == 0]
    return [(size,), *pairs, *triples, *((a, 1, b) for a, b in pairs)]


SPEC = TensorSpec.packed((2, 3, 4))


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ((0, 0, 0, 0), IndexError, "too many indices: got 4, expected at most 3"),
        ((..., ...), IndexError, "has 2 ellipses, expected at most one"),
        (2, IndexError, "index 2 is out of range for axis 0 of length 2"),
        ((slice(None), -4), IndexError, "index -4 is out of range for axis 1 of length 3"),
        (True, TypeError, "index is not supported: got bool, expected ints, slices"),
        ([0, 1], TypeError, "got list"),
        (np.array([0, 1]), TypeError, "got ndarray"),
        (1.0, TypeError, "got float"),
        (slice(None, None, 0), ValueError, "slice step cannot be zero"),
    ],
)
def test_index_view_rejects_an_index_that_is_not_basic(key: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        index_view(SPEC, flat_index(key))


@pytest.mark.parametrize(
    ("shape", "error"),
    [((5, -1), ValueError), ((-1, -1), ValueError), ((24, -2), ValueError), ((25,), ValueError),
     ((2.0, 12), TypeError), ((0, -1), ValueError)],
)  # fmt: skip
def test_resolve_shape_rejects_a_shape_of_another_size(shape: tuple[Any, ...], error: type) -> None:
    with pytest.raises(error, match="shape"):
        resolve_shape(24, shape)


def test_resolve_shape_replaces_minus_one() -> None:
    assert resolve_shape(24, (2, -1, 3)) == (2, 4, 3)
    assert resolve_shape(0, (2, -1)) == (2, 0)
    assert resolve_shape(1, ()) == ()


@pytest.mark.parametrize("axes", [(0, 1), (0, 1, 1), (0, 1, 3)])
def test_transpose_view_rejects_axes_that_do_not_name_each_axis_once(axes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="axes do not name each of the 3 axes once"):
        transpose_view(SPEC, axes)


def test_index_view_states_the_layout_when_a_channel_axis_is_added() -> None:
    images = TensorSpec.packed((8, 28, 28))
    view, _ = index_view(images, flat_index((slice(None), None)))
    assert view == TensorSpec.packed((8, 1, 28, 28))


# --- the moves of packed copies, done by NumPy -------------------------------------------------------------


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
