"""Operations on whole tensors and reductions on a GPU against the reference."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import cudnn_ct as ct
from cudnn_ct.errors import CudnnWarning, NotSupportedError
from tests.layers import FLOATS, LayerCase, Tensor, compare
from tests.strategies import lay_out
from tests.tensor_cases import (
    CONVERSIONS,
    check_in_place,
    check_over_operand,
    in_place_cases,
    over_operand_cases,
)

from .conftest import library, place

EXAMPLES = max(300, settings.default.max_examples)
NAN = float("nan")
OPS = ("add", "mul", "min", "max", "amax", "avg", "norm1", "norm2", "mul_no_zeros")


@pytest.fixture(autouse=True)
def _leave_memory_to_others() -> Iterator[None]:
    yield
    gc.collect()
    ct.empty_cache()


def integers(shape: tuple[int, ...], dtype: str = "float32", most: int = 3) -> np.ndarray:
    return Tensor(shape, dtype, np.random.default_rng(0).integers(-most, most + 1, shape)).array()


# --- the same properties as on the fakes -------------------------------------------------------------------


@settings(max_examples=EXAMPLES)
@given(case=in_place_cases())
def test_in_place(case: tuple[str, Tensor, float]) -> None:
    check_in_place(case, place)


@settings(max_examples=EXAMPLES)
@given(case=over_operand_cases())
def test_over_an_operand(case: tuple[LayerCase, str]) -> None:
    check_over_operand(case, place)


# --- NaN, signs and ranges ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("propagate", [True, False])
def test_nan(propagate: bool, dtype: str) -> None:
    a = Tensor((2, 3), dtype, np.array([[NAN, 1, 2], [3, NAN, NAN]])).array()
    b = Tensor((2, 3), dtype, np.array([[0, NAN, 5], [NAN, NAN, 1]])).array()
    x, y = place(a), place(b)
    for op in ("min", "max"):
        expected = ct.reference.op_tensor(a, b, op=op, propagate_nan=propagate)
        compare(ct.op_tensor(x, y, op=op, propagate_nan=propagate), expected, exact=True)
    for op in ("min", "max", "amax"):
        for axes in (0, 1, (), None):
            expected = ct.reference.reduce(a, op=op, axis=axes, propagate_nan=propagate)
            compare(ct.reduce(x, op=op, axis=axes, propagate_nan=propagate), expected, exact=True)
    for op in ("add", "mul", "avg", "norm1", "norm2"):  # these propagate it always
        compare(
            ct.reduce(x, op=op, axis=1, propagate_nan=propagate),
            ct.reference.reduce(a, op=op, axis=1),
            exact=True,
        )
    for op in ("add", "mul"):
        compare(
            ct.op_tensor(x, y, op=op, propagate_nan=propagate),
            ct.reference.op_tensor(a, b, op=op),
            exact=True,
        )


def test_what_out_held_does_not_show_where_beta_is_zero() -> None:
    a, b = integers((2, 3, 4, 5)), integers((1, 3, 1, 1))
    out = place(np.full(a.shape, np.nan, np.float32))
    compare(ct.add(place(a), place(b), out=out), a + b, exact=True)
    row = place(np.full((3,), np.nan, np.float32))
    compare(ct.reduce(place(a), axis=(0, 2, 3), out=row), a.sum(axis=(0, 2, 3)), exact=True)
    moved = place(np.full(a.shape, np.nan, np.float32))
    compare(ct.transform(place(a), out=moved), a, exact=True)


@pytest.mark.parametrize("op", ["sqrt", "not"])
def test_of_one_operand(op: str) -> None:
    a = np.array([0.0, 4.0, 9.0, np.inf], np.float32)
    for alpha1 in (1, 4):
        got = ct.op_tensor(place(a), op=op, alpha1=alpha1)
        compare(got, ct.reference.op_tensor(a, op=op, alpha1=alpha1))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_summed_in_float32(dtype: str) -> None:
    ones = ct.full((8, 4096), 1.0, dtype)
    compare(ct.reduce(ones, axis=1), np.full(8, 4096, ones.dtype), exact=True)
    large = ct.full((4, 256), 2.0**8, dtype)  # whose squares float16 does not hold
    compare(ct.reduce(large, op="norm2", axis=1), np.full(4, 4096, large.dtype), exact=True)


@pytest.mark.parametrize("value", [1 / 3, 1 + 2**-8 + 2**-40, -65504.0, 1e-7, float("inf"), NAN])
@pytest.mark.parametrize("dtype", FLOATS)
def test_fill_rounds_once(dtype: str, value: float) -> None:
    x = ct.empty((3, 5), dtype)
    expected = np.zeros((3, 5), x.dtype)
    compare(ct.fill(x, value), ct.reference.fill(expected, value), exact=True)


# --- shapes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_nothing_to_reduce(op: str, dtype: str) -> None:
    x, out = integers((2, 1, 5), dtype), integers((2, 5), dtype)
    keywords: dict[str, Any] = {"op": op, "axis": 1, "alpha": -2, "beta": 3}
    expected = ct.reference.reduce(x, **keywords, out=out.copy())
    compare(ct.reduce(place(x), **keywords, out=place(out)), expected, exact=True)


@pytest.mark.parametrize("shape", [(65536, 3), (65537, 40), (3, 65537), (70000, 2, 70), (1, 300_000)])
@pytest.mark.parametrize("axes", [0, 1, None])
def test_many_rows(shape: tuple[int, ...], axes: int | None) -> None:
    x = integers(shape, most=1)
    for op in ("add", "max", "norm1"):
        compare(ct.reduce(place(x), op=op, axis=axes), ct.reference.reduce(x, op=op, axis=axes), exact=True)
    b = integers((1, *shape[1:]))
    compare(ct.add(place(x), place(b)), x + b, exact=True)
    column = integers((shape[0], *(1 for _ in shape[1:])))
    compare(ct.op_tensor(place(x), place(column), op="mul"), x * column, exact=True)


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("shape", [(5, 7), (3, 4, 5, 6), (65537, 3), (2, 100_000)])
def test_indices(op: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).permutation(int(np.prod(shape))).reshape(shape).astype(np.float32)
    for layout in ("nchw", "nhwc") if len(shape) == 4 else ("nchw",):
        lying = place(lay_out(x, layout, "packed"))
        for axes in (0, 1, tuple(range(1, len(shape)))):
            got = ct.reduce_with_indices(lying, op=op, axis=axes)
            expected = ct.reference.reduce_with_indices(x, op=op, axis=axes)
            compare(got.y, expected.y, exact=True)
            compare(got.indices, expected.indices)


def test_eight_axes() -> None:
    a, b = integers((2, 3) * 4), integers((2, 1) * 4)
    compare(ct.add(place(a), place(b)), a + b, exact=True)
    for axes in ((0, 2, 4, 6), (1, 3, 5, 7), (0, 1, 2), None):
        compare(ct.reduce(place(a), axis=axes), ct.reference.reduce(a, axis=axes), exact=True)
    x = place(a)
    order = (5, 2, 7, 0, 3, 6, 1, 4)
    shuffled = ct.DeviceArray(
        ct.TensorSpec(
            tuple(a.shape[i] for i in order), tuple(x.spec.strides[i] for i in order), x.spec.dtype
        ),
        x.pointer,
        x,
        x.writer,
    )
    seen = a.transpose(order)
    compare(ct.transform(shuffled), seen, exact=True)
    compare(ct.reduce(shuffled, axis=(0, 3, 4)), seen.sum(axis=(0, 3, 4)), exact=True)
    compare(ct.add(shuffled, place(np.ascontiguousarray(seen))), 2 * seen, exact=True)
    compare(ct.scale(shuffled, alpha=3), 3 * seen, exact=True)


def test_negative_strides() -> None:
    x = integers((4, 3, 5))
    turned = x[::-1, :, ::-1]
    with pytest.warns(CudnnWarning, match="copied through host memory"):
        compare(ct.reduce(place(turned), axis=(0, 2)), turned.sum(axis=(0, 2)), exact=True)
    with pytest.warns(CudnnWarning, match="copied through host memory"):
        compare(ct.transform(place(turned), alpha=2), 2 * turned, exact=True)


# --- dtypes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target"), [(a, b) for a in CONVERSIONS for b in CONVERSIONS[a] if a != b]
)
def test_conversions_round_once(source: str, target: str) -> None:
    x = Tensor((3, 5, 7, 11), source, "floats").array()
    expected = ct.reference.transform(x, dtype=target)
    compare(ct.transform(place(x), dtype=target), expected, exact=True)
    compare(ct.transform(place(x), dtype=target, layout="nhwc"), expected, exact=True)
    tiny = ct.reference.transform(x, dtype=target, alpha=1e-3)
    compare(ct.transform(place(x), dtype=target, alpha=1e-3), tiny)


@pytest.mark.parametrize("target", ["float16", "bfloat16", "float32"])
def test_float64_is_converted_or_refused(target: str) -> None:
    x = integers((3, 5), "float64")
    try:
        y = ct.transform(place(x), dtype=target)
    except NotSupportedError as error:
        assert f"cudnnOpTensor cannot convert float64 to {target}" in str(error)
    else:
        compare(y, ct.reference.transform(x, dtype=target), exact=True)


def test_result_has_the_memory_of_the_tensor_that_it_is_written_to() -> None:
    torch = library("torch")
    x = torch.ones((2, 3), device="cuda")
    assert ct.scale(x, alpha=3).pointer == x.data_ptr()
    assert x.sum().item() == 18
    assert ct.fill(x, 2).pointer == x.data_ptr()
    assert ct.add(x, x, out=x).pointer == x.data_ptr()
    assert x.sum().item() == 24
