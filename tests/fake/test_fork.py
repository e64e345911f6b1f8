"""A forked child leaves the native objects of its parent alone: the driver does not survive a fork."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

import cudnn_ct as ct

from .cudnn import FakeCudnn

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork"),  # that threads may hold locks is known
]


def in_child(work: Callable[[], bool]) -> bool:
    """The answer of some work in a forked child."""
    child = os.fork()
    if not child:
        answer = False
        try:
            answer = work()
        finally:
            os._exit(0 if answer else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def destroyed(fake: FakeCudnn) -> list[str]:
    return [name for name in fake.names() if "Destroy" in name]


def test_fork_child_destroys_no_descriptor_of_its_parent(fake: FakeCudnn) -> None:
    descriptor = ct.TensorDescriptor(ct.TensorSpec.packed((2, 3, 4, 5), "float32"))

    def close() -> bool:
        descriptor.close()
        return not destroyed(fake)

    assert in_child(close)
    assert not descriptor.closed
    descriptor.close()
    assert destroyed(fake) == ["cudnnDestroyTensorDescriptor"]
