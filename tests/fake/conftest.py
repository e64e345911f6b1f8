"""The package on a fake cuDNN and on host memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .cudnn import FakeCudnn
from .host import Host
from .installed import cudnn_installed, forget, host_installed

__all__ = ["fake", "forget", "host"]


@pytest.fixture
def host() -> Iterator[Host]:
    with host_installed() as host:
        yield host


@pytest.fixture
def fake(host: Host) -> Iterator[FakeCudnn]:
    with cudnn_installed(host) as cudnn:
        yield cudnn
