"""Errors of a machine with a cuDNN and without a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct._bindings import types

pytestmark = pytest.mark.usefixtures("no_gpu")


def test_available_returns_a_reason_and_reference_works() -> None:
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
def test_every_call_raises_not_initialized_error(call: Callable[[], object]) -> None:
    with pytest.raises(ct.NotInitializedError):
        call()


def test_conv_rejects_numpy_arrays_before_a_gpu_is_needed() -> None:
    with pytest.raises(TypeError, match=r"not numpy\.ndarray on the CPU; ct\.asarray\(x\)"):
        ct.conv(np.ones((1, 1, 3, 3)), None)
