"""Views, copies and conversions of device arrays, compared with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices

import cudnn_ct as ct
from cudnn_ct.dtypes import DTYPES
from cudnn_ct.shapes.specs import LAYOUTS, TensorSpec
from tests.layers import Place
from tests.op_cases import ON_IMAGES, simple_call

SHAPE = (2, 4, 3, 5)
keys = basic_indices(SHAPE, allow_newaxis=True, allow_ellipsis=True)


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


@given(key=keys, layout=st.sampled_from(LAYOUTS), dtype=st.sampled_from(list(DTYPES)))
def test_copy_of_a_view_has_its_elements(place: Place, key: Any, layout: str, dtype: str) -> None:
    copied = ct.asarray(numbers(dtype), layout=layout)[key].copy()
    equal(copied, np.asarray(numbers(dtype)[key]))
    assert copied.spec.is_dense


@given(
    key=keys,
    layout=st.sampled_from(LAYOUTS),
    dtypes=st.tuples(*[st.sampled_from([name for name in DTYPES if name != "bool"])] * 2),
)
def test_astype_converts_as_numpy_does(place: Place, key: Any, layout: str, dtypes: tuple[str, str]) -> None:
    before, after = dtypes
    x = ct.asarray(numbers(before), layout=layout)[key]
    equal(x.astype(after), np.asarray(numbers(before)[key]).astype(DTYPES[after].numpy))


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


def expanded(place: Place, dtype: str) -> tuple[ct.DeviceArray, np.ndarray]:
    """Return an array of random bytes with strides of 0, negative ones and gaps, and its bytes in NumPy."""
    kind = DTYPES[dtype]
    raw = np.random.default_rng(0).integers(0, 256, (3, 70 * kind.itemsize), np.uint8)
    x = ct.asarray(np.ascontiguousarray(raw).view(f"uint{8 * kind.itemsize}").view(kind.numpy))
    shape, strides, offset = (4, 3, 2, 33), (0, 70, 0, -2), 66
    view = x.view_as(TensorSpec(shape, strides, dtype), offset)
    steps = tuple(step * kind.itemsize for step in strides)
    elements = np.ndarray((*shape, kind.itemsize), np.uint8, raw, offset * kind.itemsize, (*steps, 1))
    return view, elements


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bool"])
def test_copy_has_the_bits_of_every_element_when_strides_are_0_or_negative(place: Place, dtype: str) -> None:
    view, elements = expanded(place, dtype)
    for copied in (view.copy(), ct.asarray(view, layout="nhwc"), view.reshape(12, 66)):
        assert copied.spec.is_dense
        same = copied.numpy().reshape(view.shape)
        np.testing.assert_array_equal(
            np.ascontiguousarray(same).view(np.uint8).reshape(elements.shape), elements
        )


@pytest.mark.parametrize("length", [1, 2, 3, 64, 1000, 4097])
def test_reversed_and_expanded_vectors_are_copied(place: Place, length: int) -> None:
    values = np.random.default_rng(0).standard_normal(length).astype(np.float32)
    x = ct.asarray(values)
    np.testing.assert_array_equal(x[::-1].copy().numpy(), values[::-1])
    row = x.view_as(TensorSpec((5, length), (0, -1), "float32"), length - 1)
    np.testing.assert_array_equal(row.copy().numpy(), np.stack([values[::-1]] * 5))
    column = x.view_as(TensorSpec((length, 5), (1, 0), "float32"))
    np.testing.assert_array_equal(column.copy().numpy(), np.stack([values] * 5, 1))


@pytest.mark.parametrize("operation", ON_IMAGES)
@pytest.mark.parametrize("key", [np.s_[:, :, ::-1], np.s_[::-1, :, :, ::-1], "expanded"], ids=str)
def test_operations_compute_the_same_when_strides_are_0_or_negative(
    place: Place, operation: str, key: Any
) -> None:
    values = np.random.default_rng(0).integers(1, 5, (2, 4, 6, 5)).astype(np.float32)
    x = ct.asarray(values)
    if key == "expanded":
        view = x.view_as(TensorSpec((2, 4, 6, 5), (120, 30, 0, 1), "float32"))
        values = np.broadcast_to(values[:, :, :1], values.shape)
    else:
        view, values = x[key], values[key]
    expected = simple_call(operation, ct.asarray(np.ascontiguousarray(values)))
    np.testing.assert_allclose(simple_call(operation, view).numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_second_operand_with_a_stride_of_0_is_broadcast(place: Place) -> None:
    x, values = ct.asarray(numbers()), numbers()
    for shape, strides in (((1, 1, 1, 1), (0,) * 4), ((1, 4, 1, 5), (0, 5, 0, 1))):
        b = values.ravel()[: np.prod(shape)].reshape(shape)
        view = ct.asarray(b).view_as(TensorSpec(SHAPE, strides, "float32"))
        equal(ct.add(x, view), values + b)
        equal(ct.op_tensor(view, x, op="mul"), values * b)
        assert "copied" not in (ct.add(x, view), ct.last_plan().describe())[1]  # type: ignore[union-attr]


def test_out_may_be_the_memory_of_an_operand_that_is_copied(place: Place) -> None:
    x = ct.asarray(numbers())
    ct.add(x, x[::-1], out=x)
    equal(x, numbers() + numbers()[::-1])


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
