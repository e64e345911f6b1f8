"""The real cuDNN, without a GPU."""

from __future__ import annotations

import pytest

import cudnn_ct as ct


@pytest.fixture(scope="session")
def cudnn() -> int:
    """The version of the installed cuDNN; tests that ask for it skip where there is none."""
    version = ct.version(raises=False)
    if version < 0:
        pytest.skip("no cuDNN is installed here")
    return version


@pytest.fixture
def can_plan(cudnn: int) -> None:
    if cudnn < 90800:
        pytest.skip("cuDNN plans for a described device from 9.8 on")


@pytest.fixture
def no_gpu(cudnn: int) -> str:
    """The reason why operations cannot run here."""
    available = ct.available()
    if available:
        pytest.skip("there is a GPU here")
    return available.reason
