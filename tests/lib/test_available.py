"""Whether the installed cuDNN supports a GPU: the real library, with devices that a fake driver shows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import cudnn_ct as ct
from tests.fake.host import Host
from tests.fake.installed import host_installed


@pytest.fixture
def host(cudnn: int) -> Iterator[Host]:
    with host_installed() as host:
        yield host


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0)])
def test_available_is_true_on_a_gpu_that_every_cudnn_9_supports(
    host: Host, capability: tuple[int, int]
) -> None:
    host.capabilities[0] = capability
    assert ct.available().reason == ""


@pytest.mark.parametrize("capability", [(3, 5), (3, 7)])
def test_available_is_false_on_a_gpu_that_no_cudnn_9_supports(
    host: Host, cudnn: int, capability: tuple[int, int]
) -> None:
    host.capabilities[0] = capability
    available = ct.available()
    assert not available
    assert available.reason.startswith("device 0 is not supported: cuDNN 9.")
    assert (
        f"has no code for compute capability {capability[0]}.{capability[1]}; python -m pip"
        in available.reason
    )
    assert "\n" not in available.reason


@pytest.mark.parametrize("capability", [(5, 2), (6, 1), (7, 0)])
def test_available_is_false_on_a_gpu_that_cudnn_9_11_dropped(
    host: Host, cudnn: int, capability: tuple[int, int]
) -> None:
    host.capabilities[0] = capability
    assert bool(ct.available()) == (cudnn < 91100)
    if cudnn >= 91100:
        assert "'nvidia-cudnn-cu12<9.11'" in ct.available().reason


def test_available_looks_at_the_device_in_use(host: Host) -> None:
    host.capabilities[0] = (3, 5)
    with ct.use(device=1):
        assert ct.available()
    assert not ct.available()


def test_available_is_true_on_a_newer_gpu_when_cudnn_has_ptx(host: Host, cudnn: int) -> None:
    """The driver compiles PTX for any newer GPU."""
    host.capabilities[0] = (19, 0)
    if cudnn < 90700:
        pytest.skip("no PTX to compile for newer GPUs is promised for this cuDNN")
    assert ct.available()
