"""Whether the installed cuDNN supports a GPU, with devices that a fake driver shows, and without a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct._bindings import types
from tests.fake.host import Host
from tests.fake.installed import host_installed


@pytest.fixture
def host(cudnn: int) -> Iterator[Host]:
    with host_installed() as host:
        yield host


DROPPED = "-m pip install 'nvidia-cudnn-cu12<9.11'"  # by cuDNN 9.11


@pytest.mark.parametrize(
    ("capability", "advice"),
    [
        *(((major, minor), "") for major, minor in ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0))),
        *(((3, minor), "no GPU of compute capability below 5.0") for minor in (5, 7)),
        *(((major, minor), DROPPED) for major, minor in ((5, 2), (6, 1), (7, 0))),
        ((19, 0), ""),  # the driver compiles PTX for any newer GPU
    ],
)
def test_available_depends_on_the_compute_capability(
    host: Host, cudnn: int, capability: tuple[int, int], advice: str
) -> None:
    if capability == (19, 0) and cudnn < 90700:
        pytest.skip("no PTX to compile for newer GPUs is promised for this cuDNN")
    host.capabilities[0] = capability
    available = ct.available()
    if not advice or (advice == DROPPED and cudnn < 91100):
        assert available.reason == ""
    else:
        assert not available
        assert available.reason.startswith("device 0 is not supported: cuDNN 9.")
        assert f"has no code for compute capability {capability[0]}.{capability[1]}; " in available.reason
        assert advice in available.reason
        assert "\n" not in available.reason


def test_available_looks_at_the_device_in_use(host: Host) -> None:
    host.capabilities[0] = (3, 5)
    with ct.use(device=1):
        assert ct.available()
    assert not ct.available()


# --- errors of a machine without a GPU ---------------------------------------------------------------------


without_gpu = pytest.mark.usefixtures("no_gpu")


@without_gpu
def test_available_returns_a_reason_and_reference_works() -> None:
    available = ct.available()
    assert not available
    assert "driver" in available.reason or "device" in available.reason
    assert "\n" not in available.reason
    assert available.reason in repr(available)
    ops = ct if ct.available() else ct.reference
    assert ops.conv(np.ones((1, 1, 3, 3)), np.ones((1, 1, 3, 3))) == 9


@without_gpu
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


@without_gpu
def test_conv_rejects_numpy_arrays_before_a_gpu_is_needed() -> None:
    with pytest.raises(TypeError, match=r"not numpy\.ndarray on the CPU; ct\.asarray\(x\)"):
        ct.conv(np.ones((1, 1, 3, 3)), None)
