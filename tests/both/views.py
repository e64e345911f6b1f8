"""Views, copies and conversions of device arrays, compared with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices

import cudnn_ct as ct
from cudnn_ct.dtypes import DTYPES
from cudnn_ct.shapes.specs import LAYOUTS
from tests.layers import Place

SHAPE = (2, 4, 3, 5)
keys = basic_indices(SHAPE, allow_newaxis=True, allow_ellipsis=True)
negative_strides = pytest.mark.filterwarnings(
    "ignore:.* was copied through host memory:cudnn_ct.CudnnWarning"
)


def numbers(dtype: str = "float32") -> np.ndarray:
    """Return 120 numbers that every dtype but bool holds."""
    return (np.arange(np.prod(SHAPE)).reshape(SHAPE) % 13).astype(DTYPES[dtype].numpy)


def equal(array: ct.DeviceArray, expected: np.ndarray) -> None:
    assert array.shape == expected.shape
    assert array.dtype == expected.dtype
    np.testing.assert_array_equal(array.numpy().astype(float), expected.astype(float))


@given(first=keys, data=st.data(), layout=st.sampled_from(LAYOUTS), dtype=st.sampled_from(list(DTYPES)))
def test_getitem_of_an_array_or_view_returns_a_view_of_the_elements(
    place: Place, first: Any, data: st.DataObject, layout: str, dtype: str
) -> None:
    x, values = ct.asarray(numbers(dtype), layout=layout), np.asarray(numbers(dtype)[first])
    second = data.draw(basic_indices(values.shape))
    equal(x[first], values)
    equal(x[first][second], np.asarray(values[second]))
    assert x[first][second].memory is x.memory


@negative_strides
@given(key=keys, layout=st.sampled_from(LAYOUTS), dtype=st.sampled_from(list(DTYPES)))
def test_copy_of_a_view_has_its_elements(place: Place, key: Any, layout: str, dtype: str) -> None:
    copied = ct.asarray(numbers(dtype), layout=layout)[key].copy()
    equal(copied, np.asarray(numbers(dtype)[key]))
    assert copied.spec.is_dense


@negative_strides
@given(
    key=keys,
    layout=st.sampled_from(LAYOUTS),
    dtypes=st.tuples(*[st.sampled_from([name for name in DTYPES if name != "bool"])] * 2),
)
def test_astype_converts_as_numpy_does(place: Place, key: Any, layout: str, dtypes: tuple[str, str]) -> None:
    before, after = dtypes
    x = ct.asarray(numbers(before), layout=layout)[key]
    equal(x.astype(after), np.asarray(numbers(before)[key]).astype(DTYPES[after].numpy))


@negative_strides
@given(
    key=keys,
    shape=st.sampled_from([(-1,), (2, -1), (-1, 5), (4, 1, -1), (1, -1, 1)]),
    layout=st.sampled_from(LAYOUTS),
)
def test_reshape_reads_the_elements_in_c_order(
    place: Place, key: Any, shape: tuple[int, ...], layout: str
) -> None:
    values = np.asarray(numbers()[key])
    try:
        expected = values.reshape(shape)
    except ValueError:
        with pytest.raises(ValueError, match="shape does not fit"):
            ct.asarray(numbers(), layout=layout)[key].reshape(shape)
        return
    equal(ct.asarray(numbers(), layout=layout)[key].reshape(shape), expected)


@given(axes=st.permutations(range(4)))
def test_transpose_returns_a_view_with_the_axes_in_another_order(place: Place, axes: list[int]) -> None:
    x = ct.asarray(numbers())
    equal(x.transpose(axes), numbers().transpose(axes))
    equal(x.transpose(*axes), numbers().transpose(axes))
    equal(x.T, numbers().T)


def test_astype_returns_the_array_itself_when_no_copy_is_needed(place: Place) -> None:
    x = ct.asarray(numbers())
    assert x.astype("float32", copy=False) is x
    assert x.astype("float32").pointer != x.pointer


def test_reshape_returns_a_view_when_strides_describe_it(place: Place) -> None:
    x = ct.asarray(numbers())
    assert x.reshape(8, 15).pointer == x.pointer
    assert x[:, 1:3].reshape(2, 30).spec.strides == (60, 1)
    assert ct.asarray(numbers(), layout="nhwc").reshape(8, 15).memory is not x.memory


@pytest.mark.parametrize("copy", [lambda x: x.copy(), lambda x: x.reshape(-1)])
def test_copies_of_negative_strides_warn_that_they_go_through_the_host(
    place: Place, copy: Callable[[Any], Any]
) -> None:
    view = ct.asarray(numbers())[:, ::-1]
    with pytest.warns(ct.CudnnWarning, match="copied through host memory"):
        copied = copy(view)
    np.testing.assert_array_equal(copied.numpy().ravel(), numbers()[:, ::-1].ravel())


def test_iteration_yields_a_view_for_each_element_of_the_first_axis(place: Place) -> None:
    x = ct.asarray(numbers())
    assert [view.numpy().tolist() for view in x] == numbers().tolist()
    with pytest.raises(TypeError, match="without axes"):
        iter(ct.asarray(1.0))
    with pytest.raises(TypeError):
        _ = 3 in x


def test_out_may_be_a_view_that_shares_no_element_with_the_operands(place: Place) -> None:
    both = ct.asarray(numbers())
    ct.activation(both[:, :2], mode="identity", out=both[:, 2:])
    np.testing.assert_array_equal(both.numpy()[:, 2:], numbers()[:, :2])
    with pytest.raises(ValueError, match="out overlaps"):
        ct.activation(both[:, :2], mode="identity", out=both[:, 1:3])
