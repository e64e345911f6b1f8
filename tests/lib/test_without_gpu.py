"""What a person sees where there is a cuDNN and no GPU: one line that says why, from every door."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct._bindings import types

pytestmark = pytest.mark.usefixtures("cudnn")


@pytest.fixture(autouse=True)
def _no_gpu() -> None:
    if ct.available():
        pytest.skip("there is a GPU here")


def test_available_says_why_not_and_reference_works() -> None:
    available = ct.available()
    assert not available
    assert "driver" in available.reason or "device" in available.reason
    assert "\n" not in available.reason
    assert available.reason in repr(available)
    ops = ct if ct.available() else ct.reference
    assert ops.conv(np.ones((1, 1, 3, 3)), np.ones((1, 1, 3, 3))) == 9


@pytest.mark.parametrize(
    "call",
    [
        lambda: ct.empty((2, 3)),
        lambda: ct.zeros((2, 3)),
        lambda: ct.asarray([1.0]),
        lambda: ct.synchronize(),
        lambda: ct.use(device=0).__enter__(),
        lambda: ct.raw.cudnnCreate(ctypes.pointer(types.cudnnHandle_t())),
    ],
    ids=["empty", "zeros", "asarray", "synchronize", "use", "cudnnCreate"],
)
def test_every_door_says_that_there_is_no_gpu(call) -> None:
    with pytest.raises(ct.CudnnError) as caught:
        call()
    assert isinstance(caught.value, ct.NotInitializedError)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ct.conv(np.ones((1, 1, 3, 3)), None), TypeError, r"not numpy\.ndarray; ct\.asarray\(x\)"),
        (lambda: ct.conv(None, None), TypeError, "not NoneType"),
        (lambda: ct.asarray("hello"), TypeError, "no dtype str"),
        (lambda: ct.asarray([1j]), TypeError, "no dtype complex128"),
        (lambda: ct.asarray([1.0], layout="nhwc"), ValueError, "layout 'nhwc' needs"),
        (lambda: ct.zeros((2, -3)), ValueError, "each length must be between 0"),
        (lambda: ct.full((2, 3), 1, "float12"), TypeError, "no dtype float12"),
    ],
)
def test_what_python_can_know_is_refused_before_a_gpu_is_needed(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()
