"""Workspaces of calls in memory of torch, on the fakes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import cudnn_ct as ct
import cudnn_ct.torch as ctt
from cudnn_ct import context, testing
from cudnn_ct.cuda import stream as streams
from cudnn_ct.ops import _replay
from cudnn_ct.torch import prepared, workspace
from tests.both.replays import configured
from tests.fake.cudnn import FakeCudnn

BYTES = 2 * workspace.SMALL


@pytest.fixture
def lent(door: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The workspaces of calls that ran, each with the bytes that were known before it."""
    door.workspaces = dict.fromkeys(("GEMM", "IMPLICIT_GEMM", "ALGO_0", "ALGO_1"), BYTES)
    made: list[Any] = []

    class Noted(workspace.TorchWorkspace):
        def __init__(self, nbytes: int, device: Any) -> None:
            super().__init__(nbytes, device)
            made.append((nbytes, self))

    monkeypatch.setattr(workspace, "TorchWorkspace", Noted)
    return made


def operands(size: int) -> tuple[Any, Any]:
    """Return operands of a size that no other test has: prepared calls last as long as the process."""
    return torch.randn(2, 3, 5, size), torch.randn(4, 3, 3, 3, requires_grad=True)


def test_a_call_learns_its_workspace_and_has_it_from_torch(lent: list[Any]) -> None:
    x, w = operands(31)
    for _ in range(4):
        ctt.conv(x, w).square().sum().backward()
    assert [nbytes for nbytes, _ in lent] == [0, 0] * 2 + [BYTES, BYTES] * 2  # conv and its gradient
    assert {one.wanted for _, one in lent} == {BYTES}
    here = context.of_device(0)
    assert not here._workspaces
    assert here.lent is None


def test_a_call_that_needs_more_than_before_gets_it(door: FakeCudnn, lent: list[Any]) -> None:
    x, w = operands(32)
    with torch.no_grad():
        for nbytes in (BYTES, BYTES, BYTES, 5 * BYTES, 5 * BYTES, BYTES, BYTES):
            door.workspaces = dict.fromkeys(door.workspaces, nbytes)
            testing.reset()
            ctt.conv(x, w)
    assert [nbytes for nbytes, _ in lent] == [0, 0, BYTES, BYTES, 5 * BYTES, 5 * BYTES, BYTES]


def test_a_call_without_workspace_gets_none(lent: list[Any]) -> None:
    x = torch.randn(3, 33)
    for _ in range(5):
        ctt.softmax(x)
    assert len(lent) == workspace.LEARNED


def test_a_small_workspace_is_that_of_the_package(
    door: FakeCudnn, lent: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    door.workspaces = dict.fromkeys(door.workspaces, workspace.SMALL)
    x, w = operands(38)
    with torch.no_grad():
        for _ in range(4):
            ctt.conv(x, w)
        assert len(lent) == workspace.LEARNED
        monkeypatch.setattr(streams, "is_capturing", lambda _: True)
        ctt.conv(x, w)  # a capture has it from torch's pool
    assert [nbytes for nbytes, _ in lent[workspace.LEARNED :]] == [workspace.SMALL]


def test_a_call_with_a_small_workspace_that_needs_more_has_it_from_torch(
    door: FakeCudnn, lent: list[Any]
) -> None:
    door.workspaces = dict.fromkeys(door.workspaces, workspace.SMALL)
    x, w = operands(39)
    with torch.no_grad():
        for _ in range(3):
            ctt.conv(x, w)
        door.workspaces = dict.fromkeys(door.workspaces, BYTES)
        with configured(deterministic=True):  # other algorithms
            ctt.conv(x, w)
    assert [one.wanted for _, one in lent[workspace.LEARNED :]] == [BYTES]
    assert [one.size for one in context.of_device(0)._workspaces.values()] == [workspace.SMALL]


def test_a_recording_belongs_to_the_memory_of_its_call(
    door: FakeCudnn, lent: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (x, w), y, storage = operands(34), torch.empty(2, 4, 3, 32), torch.UntypedStorage(BYTES)
    monkeypatch.setattr(torch, "empty_strided", lambda *_, **__: y)
    real = torch.UntypedStorage
    monkeypatch.setattr(torch, "UntypedStorage", lambda n, **_: storage if n == BYTES else real(n))
    recorded: list[Any] = []
    monkeypatch.setattr(_replay._Run, "record", lambda _, key, *__: recorded.append(key[-2:]) or 0)
    with torch.no_grad(), testing.replay_after(1):
        for _ in range(5):
            ctt.conv(x, w)
        assert recorded == [(storage.data_ptr(), BYTES)] * (5 - workspace.LEARNED)
        door.workspaces = dict.fromkeys(door.workspaces, 2 * BYTES)
        testing.reset()
        ctt.conv(x, w)  # asks for more than the memory in its key
    assert len(recorded) == 5 - workspace.LEARNED


def test_a_call_on_another_stream_than_torch_has_the_workspace_of_the_package(
    lent: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ct.use(stream=0x77):
        ctt.conv(*operands(36))
    assert not lent
    monkeypatch.setattr(prepared, "recordings", SimpleNamespace(current=object))
    ctt.conv(*operands(37))
    assert not lent


def test_memory_that_torch_does_not_have_is_an_allocation_error(
    lent: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "UntypedStorage", fails)
    with pytest.raises(ct.AllocationError, match="torch has no memory for a workspace of 131,072 bytes"):
        ctt.conv(*operands(35))
    assert context.of_device(0).lent is None
