"""Arrays of torch, cupy, numba and jax in, ours out, without a copy; the oracle compares their results."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct

from .conftest import library
from .libraries import LIBRARIES, WRITABLE

SHAPE = (2, 3, 8, 9)
W = np.ones((4, 3, 3, 3), np.float32)


@pytest.fixture
def values() -> np.ndarray:
    return np.random.default_rng(0).integers(-3, 4, SHAPE).astype(np.float32)


def pointer(array: Any) -> int:
    if hasattr(array, "data_ptr"):
        return array.data_ptr()
    if hasattr(array, "unsafe_buffer_pointer"):
        return array.unsafe_buffer_pointer()
    return array.__cuda_array_interface__["data"][0]


@pytest.mark.parametrize("name", [*WRITABLE, "jax"])
def test_asarray_shares_the_memory_of_another_library(name: str, values: np.ndarray) -> None:
    theirs = LIBRARIES[name](False).make(values)
    ours = ct.asarray(theirs)
    assert ours.pointer == pointer(theirs)
    np.testing.assert_array_equal(ours.numpy(), values)
    if name == "jax":
        with pytest.raises(ValueError, match="out is read-only"):
            ct.activation(ct.zeros(SHAPE), out=theirs)
    else:
        assert ct.activation(ct.zeros(SHAPE), out=theirs).pointer == ours.pointer


@pytest.mark.parametrize("name", LIBRARIES)
def test_another_library_shares_the_memory_of_a_result_and_keeps_it(name: str, values: np.ndarray) -> None:
    one, y = LIBRARIES[name](False), ct.conv(ct.asarray(values), ct.asarray(W))
    theirs = one.take(y)
    assert pointer(theirs) == y.pointer
    del y
    gc.collect()
    others = [ct.full((2, 4, 6, 7), np.nan) for _ in range(8)]
    np.testing.assert_array_equal(one.read(theirs), ct.reference.conv(values, W))
    del others


DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int64", "bool")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*(("torch", dtype) for dtype in DTYPES), ("cupy", "float32"), ("cupy by interface", "float32")],
)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_another_library_has_the_dtype_and_strides_of_an_array(
    name: str, dtype: str, layout: str, values: np.ndarray
) -> None:
    one, ours = LIBRARIES[name](False), ct.asarray(values, dtype, layout=layout)
    theirs = one.take(ours)
    assert str(theirs.dtype).removeprefix("torch.") == dtype
    strides = theirs.stride() if name == "torch" else tuple(s // ours.itemsize for s in theirs.strides)
    assert strides == ours.spec.strides
    wide = theirs.double() if name == "torch" else theirs
    np.testing.assert_array_equal(one.read(wide).astype(float), ours.numpy().astype(float))


def test_tensor_that_requires_grad_is_rejected_when_torch_records(values: np.ndarray) -> None:
    torch = library("torch")
    x = torch.tensor(values, device="cuda", requires_grad=True)
    w = torch.nn.Parameter(torch.tensor(W, device="cuda"))
    out = torch.empty((2, 4, 6, 7), device="cuda", requires_grad=True)
    for first, second, to in ((x, w.detach(), None), (x.detach(), w, None), (x.detach(), w.detach(), out)):
        with pytest.raises(TypeError, match=r"pass tensor\.detach\(\), or call under torch\.no_grad\(\)"):
            ct.conv(first, second, out=to)
    expected = ct.reference.conv(values, W)
    with torch.no_grad():
        assert ct.asarray(x).pointer == x.data_ptr()
        assert ct.conv(x, w, out=out).pointer == out.data_ptr()
        np.testing.assert_array_equal(out.cpu().numpy(), expected)
    with torch.inference_mode():
        np.testing.assert_array_equal(ct.conv(torch.tensor(values, device="cuda"), w).numpy(), expected)


def test_negative_bit_of_torch_is_applied_to_inputs_and_rejected_in_outputs(values: np.ndarray) -> None:
    """``z.conj().imag`` shares the memory of ``z.imag``, and differs by a bit that no protocol exports."""
    torch = library("torch")
    z = torch.complex(torch.zeros(SHAPE), torch.tensor(values)).cuda().conj()
    x = z.imag
    assert x.is_neg()
    for array in (ct.asarray(x), ct.asarray(x.cpu()), ct.activation(x, mode="identity")):
        np.testing.assert_array_equal(array.numpy(), -values)
    with pytest.raises(ValueError, match=r"out cannot be written: .*; pass tensor\.resolve_neg\(\)"):
        ct.activation(ct.asarray(values), out=x)
    with pytest.raises(TypeError):
        ct.activation(z)
    np.testing.assert_array_equal(ct.asarray(z.real).numpy(), np.zeros(SHAPE))


def test_host_array_is_rejected_with_advice(values: np.ndarray) -> None:
    torch = library("torch")
    for host in (values, torch.tensor(values), values.tolist()):
        with pytest.raises(TypeError, match=r"ct\.asarray\(x\) makes one"):
            ct.conv(host, ct.zeros((1, 3, 1, 1)))
    np.testing.assert_array_equal(ct.asarray(torch.tensor(values)).numpy(), values)
