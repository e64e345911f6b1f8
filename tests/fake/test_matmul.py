"""Products of matrices on the fakes: views of any strides, and what is rejected."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError
from tests.layers import LayerCase, check_layer
from tests.matmul_cases import matmul_cases
from tests.row_norm_cases import row_norm_cases
from tests.strategies import own, placing

from .cudnn import FakeCudnn
from .host import ForeignArray, Host

OFFSETS = st.just((0,)) | st.tuples(*[st.integers(0, 7)] * 5)


@pytest.mark.parametrize("workspace", [0, 100])
@settings(max_examples=150)
@given(case=matmul_cases() | row_norm_cases(), offsets=OFFSETS)
def test_graph_operation_equals_reference(
    fake: FakeCudnn, host: Host, case: LayerCase, offsets: tuple[int, ...], workspace: int
) -> None:
    fake.engine_workspace = workspace
    for place in (own, lambda array: ForeignArray(host, array)):
        check_layer(case, placing(place, *offsets))


@pytest.mark.parametrize("fewer", ["a", "b"])
def test_matmul_of_transposed_operand_copies_nothing(fake: FakeCudnn, fewer: str) -> None:
    arrays = {"a": np.ones((2, 3, 8), np.float32), "b": np.ones((2, 8, 5), np.float32)}
    placed = {
        name: ct.asarray(array.transpose(0, 2, 1)).transpose(0, 2, 1) if name == fewer else ct.asarray(array)
        for name, array in arrays.items()
    }
    np.testing.assert_array_equal(ct.matmul(**placed).numpy(), 8)
    assert "copied" not in ct.last_plan().plan
    assert "calls" not in ct.last_plan().plan


def test_matmul_copies_an_operand_without_contiguous_axis(fake: FakeCudnn) -> None:
    a, b = ct.zeros((6, 16), "float16")[::2, ::2], ct.zeros((8, 5), "float16")
    np.testing.assert_array_equal(ct.matmul(a, b).numpy(), 0)
    assert "1 operands copied into a packed layout" in ct.last_plan().plan


def test_matmul_folds_the_batch_into_rows_if_b_is_shared(fake: FakeCudnn) -> None:
    a, b = ct.zeros((4, 3, 8), "float16"), ct.zeros((8, 5), "float16")
    ct.matmul(a, b)
    shapes = [
        tuple(fake._attributes(tensor)["TENSOR_DIMENSIONS"])
        for tensor, state in list(fake.objects.items())
        if state.get("name") == "TENSOR_DESCRIPTOR"
    ]
    assert (1, 12, 8) in shapes


def test_matmul_makes_a_call_for_each_slice_of_batch_axes_that_do_not_merge(fake: FakeCudnn) -> None:
    a = np.arange(4 * 2 * 3, dtype=np.float32).reshape(4, 1, 2, 3)
    b = np.arange(5 * 3 * 2, dtype=np.float32).reshape(5, 3, 2)
    np.testing.assert_array_equal(ct.matmul(ct.asarray(a), ct.asarray(b)).numpy(), a @ b)
    assert "4 calls, one for each slice" in ct.last_plan().plan


def test_matmul_in_float64_is_a_convolution(fake: FakeCudnn) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 5, 2))
    got = ct.matmul(ct.asarray(a), ct.asarray(b), bias=ct.asarray(np.ones(2)), activation="tanh", alpha=2)
    np.testing.assert_allclose(got.numpy(), np.tanh(2 * a @ b + 1), rtol=1e-12)
    assert "legacy" in ct.last_plan().plan


def test_matmul_of_no_terms_is_zero(fake: FakeCudnn) -> None:
    a, b = ct.empty((3, 0), "float16"), ct.empty((0, 2), "float16")
    np.testing.assert_array_equal(ct.matmul(a, b).numpy(), np.zeros((3, 2)))
    with pytest.raises(NotSupportedError, match="have no terms"):
        ct.matmul(a, b, activation="sigmoid")


@pytest.mark.parametrize(("columns", "terms"), [(4, 0), (0, 4)])
def test_gradient_of_a_shared_b_may_be_empty(fake: FakeCudnn, columns: int, terms: int) -> None:
    dy, a, b = ct.zeros((2, 3, columns)), ct.zeros((2, 3, terms)), ct.zeros((terms, columns))
    da, db, *_ = ct.matmul_backward(dy, a, b)
    assert (da.shape, db.shape) == (a.shape, b.shape)


def test_matmul_of_int8_is_int32(fake: FakeCudnn) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((16, 32), (32, 16)))
    got = ct.matmul(ct.asarray(a), ct.asarray(b)).numpy()
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize(("columns", "converted"), [(3, True), (1, True), (4, False)])
def test_matmul_dequantises_int8_weights(fake: FakeCudnn, columns: int, converted: bool) -> None:
    fake.engines = True  # for the conversion
    rng = np.random.default_rng(0)
    a, b = (
        rng.standard_normal((4, 8)).astype(np.float16),
        rng.integers(-128, 128, (8, columns)).astype(np.int8),
    )
    scale = np.arange(1, columns + 1, dtype=np.float32)
    got = ct.matmul(ct.asarray(a), ct.asarray(b), b_scale=ct.asarray(scale)).numpy()
    assert ("; then" in ct.last_plan().plan) == converted
    np.testing.assert_allclose(got, ct.reference.matmul(a, b, b_scale=scale), rtol=2e-3)
    np.testing.assert_allclose(got, (a.astype(float) @ b) * scale, rtol=2e-3, atol=0.1)


def test_layer_norm_backward_of_no_rows_has_zero_gradients(fake: FakeCudnn) -> None:
    x, scale, none = ct.empty((0, 4)), ct.zeros(4), ct.empty((0, 1))
    result = ct.layer_norm_backward(x, x, scale, none, none)
    for gradient in (result.dscale, result.dbias):
        np.testing.assert_array_equal(gradient.numpy(), np.zeros(4))
