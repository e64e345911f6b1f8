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
