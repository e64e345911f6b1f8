"""Shapes and strides of views; `tests.both.views` compares their elements with NumPy's."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from cudnn_ct.shapes.specs import TensorSpec
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
