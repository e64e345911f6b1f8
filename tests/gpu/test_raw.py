"""Low-level access: descriptors and ``ct.raw``."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct.cuda.stream import default_stream
from cudnn_ct.errors import BadParamError


def test_raw_calls_softmax_with_descriptors() -> None:
    values = np.random.default_rng(0).standard_normal((4, 7, 1, 1)).astype(np.float32)
    x, y = ct.asarray(values), ct.full(values.shape, np.nan)
    handle = context.current(default_stream(0)).handle
    one, zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
    with ct.TensorDescriptor(x.spec) as descriptor:
        ct.raw.cudnnSoftmaxForward(handle, 1, 1, one, descriptor, x.pointer, zero, descriptor, y.pointer)
    expected = np.exp(values) / np.exp(values).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5)


def test_raw_raises_the_error_of_cudnn_with_its_message() -> None:
    handle = context.current(default_stream(0)).handle
    with pytest.raises(BadParamError, match="cudnnSetTensor returned CUDNN_STATUS_BAD_PARAM") as caught:
        ct.raw.cudnnSetTensor(handle, ct.TensorDescriptor(ct.TensorSpec.packed((1, 1, 1, 1))), None, None)
    assert caught.value.function == "cudnnSetTensor"
    assert caught.value.status // 1000 == 2
