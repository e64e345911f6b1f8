"""Operations of the reference on whole tensors: results in place, integers and strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cudnn_ct import reference
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.shapes.specs import TensorSpec
from cudnn_ct.shapes.tensor import transformed_spec


def integers(shape: tuple[int, ...], seed: int = 0, dtype: str = "float64") -> np.ndarray:
    values = np.random.default_rng(seed).integers(-3, 4, shape)
    return np.asarray(values).astype(as_dtype(dtype).numpy)


def test_scale_and_fill_work_in_place() -> None:
    x = np.array([1.0, 2.0, 3.0])
    assert reference.op_tensor(x, x, op="mul", out=x) is x
    assert reference.scale(x, alpha=0.5) is x
    assert x.tolist() == [0.5, 2, 4.5]
    half = np.zeros(2, as_dtype("bfloat16").numpy)
    assert reference.fill(half, 1 + 2**-8 + 2**-30) is half
    assert half.astype(float).tolist() == [1 + 2**-7] * 2


def test_transform_keeps_integers() -> None:
    x = integers((1, 3, 2, 2)).astype(np.int8)
    y = reference.transform(x, layout="nhwc")
    assert y.dtype == np.int8
    np.testing.assert_array_equal(y, x)
    large = reference.transform(x, alpha=100)
    np.testing.assert_array_equal(large, np.clip(100.0 * x, -128, 127))


def test_transform_keeps_the_strides_of_out() -> None:
    x, out = integers((1, 3, 2, 2)), np.ones((1, 2, 2, 3)).transpose(0, 3, 1, 2)
    assert reference.transform(x, alpha=2, beta=1, out=out) is out
    np.testing.assert_array_equal(out, 2 * x + 1)
    assert reference.transform(x, layout="nhwc", out=out) is out
    with pytest.raises(ValueError, match=r"out has the wrong strides: got \(12, 1, 6, 3\), expected \(12, 4"):
        reference.transform(x, layout="nchw", out=out)
    empty = out[:0]
    assert reference.transform(x[:0], layout="nchw", out=empty) is empty  # whose strides reach nothing


def test_transformed_spec_accepts_strides_that_exceed_a_c_int() -> None:
    x = TensorSpec((2, 3), (4, 1), "int8")
    assert transformed_spec(x, strides=(2**31, 1)) == TensorSpec((2, 3), (2**31, 1), "int8")


@pytest.mark.parametrize("call", [lambda x: reference.fill(x, 2), lambda x: reference.scale(x, alpha=2)])
def test_read_only_array_is_rejected_in_place(call: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match="x is read-only"):
        call(np.broadcast_to(np.float32(1), (3, 3)))


def test_read_only_out_is_rejected() -> None:
    out = np.broadcast_to(np.float32(1), (2, 3))
    with pytest.raises(ValueError, match="out is read-only"):
        reference.add(np.ones((2, 3), "float32"), np.ones((2, 3), "float32"), out=out)


def test_array_of_objects_is_rejected() -> None:
    with pytest.raises(TypeError, match="a is not an array of numbers"):
        reference.add(np.array([NotImplemented], object), np.ones(1, "float32"))
