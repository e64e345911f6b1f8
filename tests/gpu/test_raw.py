"""The door to every function: descriptors that a person makes, and ``ct.raw``."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct.cuda.stream import default_stream
from cudnn_ct.errors import BadParamError


def test_softmax_through_raw() -> None:
    values = np.random.default_rng(0).standard_normal((4, 7, 1, 1)).astype(np.float32)
    x, y = ct.asarray(values), ct.full(values.shape, np.nan)
    handle = context.current(default_stream(0)).handle
    one, zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
    with ct.TensorDescriptor(x.spec) as descriptor:
        ct.raw.cudnnSoftmaxForward(handle, 1, 1, one, descriptor, x.pointer, zero, descriptor, y.pointer)
    expected = np.exp(values) / np.exp(values).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5)


def test_raw_rejects_a_descriptor_of_another_kind() -> None:
    handle = context.current(default_stream(0)).handle
    filters = ct.FilterDescriptor(ct.FilterSpec((4, 3, 3, 3), "float32"))
    with pytest.raises(TypeError, match="yDesc must be"):
        ct.raw.cudnnSetTensor(handle, filters, 0, None)


def test_cudnns_own_refusal_carries_its_words() -> None:
    handle = context.current(default_stream(0)).handle
    with pytest.raises(BadParamError, match="cudnnSetTensor returned CUDNN_STATUS_BAD_PARAM") as caught:
        ct.raw.cudnnSetTensor(handle, ct.TensorDescriptor(ct.TensorSpec.packed((1, 1, 1, 1))), None, None)
    assert caught.value.function == "cudnnSetTensor"
    assert caught.value.status // 1000 == 2
