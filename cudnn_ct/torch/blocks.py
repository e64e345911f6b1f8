"""Blocks of ``enable()``: which of them applies to a thread, and how they end."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .faster import SLOWER, Resting
from .replaced import Replaced
from .reports import Report
from .rules import RULES

__all__ = ["GROUPS", "Block", "Blocks", "Mode", "block_of_backward", "groups_of", "thread"]

GROUPS = frozenset(group for group, _ in RULES.values())
LONG = 1000  # calls of other groups in a block before it binds the names of resting groups


def groups_of(skip: Any) -> frozenset[str]:
    """Return ``skip`` as a set of groups; raise for other names and types."""
    expected = f"expected of {', '.join(sorted(GROUPS))}"
    if not isinstance(skip, str | Iterable) or isinstance(skip, bytes):
        raise TypeError(f"skip must be the name of a group, or a sequence of names: got {skip!r}, {expected}")
    groups = (skip,) if isinstance(skip, str) else tuple(skip)
    for group in groups:
        if not isinstance(group, str):
            raise TypeError(f"skip must have names of groups: got {group!r}, {expected}")
        if group not in GROUPS:
            raise ValueError(f"skip has an unknown group: got {group!r}, {expected}")
    return frozenset(groups)


class Block:
    """A block: the groups that it skips, its report, the calls that cuDNN has rejected, and resting groups.

    It is a mode of torch, or it needs names that are bound to other functions.
    """

    def __init__(
        self,
        skip: frozenset[str],
        report: Report,
        rejected: dict[Any, str],
        resting: Resting,
        made: type[Mode] | Replaced,
    ) -> None:
        self.skip, self.report, self.rejected, self.resting = skip, report, rejected, resting
        self.names = made if isinstance(made, Replaced) else None
        self.mode = None if isinstance(made, Replaced) else made(self)
        self.blocks = thread.blocks  # of the thread that enters it
        self.records = torch.is_grad_enabled()
        self._unbound = 0  # calls until the names of resting groups are bound

    def begin(self) -> None:
        """Make this block the innermost one of its thread."""
        if self.blocks.has_ended_modes:
            self.blocks.drop_ended_modes()
        if self.names is not None:
            asleep = self.resting.asleep(self.report.served, self.records)
            self._unbound = LONG if asleep else 0
            self.names.begin(self, GROUPS - self.skip - asleep)
            self.blocks.pass_on()
        if self.mode is not None:
            self.mode.__enter__()
        thread.last = self.report
        self.blocks.add(self)

    def rests(self, group: str) -> bool:
        """Return whether a call of a group is left to torch without a look at it."""
        if self._unbound:
            self._unbound -= 1
            if not self._unbound and self.names is not None:
                self.names.bind(self, GROUPS - self.skip)
        if not self.resting.has(group):
            return False
        self.report.left[group, SLOWER] += 1
        return True

    def end(self) -> None:
        """End this block, which need not be the innermost one of its thread, in any thread."""
        self.skip = GROUPS  # for calls that are under way, and a mode that only its thread can drop
        self.blocks.remove(self)
        if self.names is not None:
            self.names.end(self)
        if self.mode is not None and self.blocks is thread.blocks:
            self.blocks.drop(self.mode)
        elif self.mode is not None:
            self.blocks.has_ended_modes = True


class Mode(TorchFunctionMode):  # type: ignore[misc]
    """The mode of a block."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block


class Blocks:
    """The open blocks of a thread, and the innermost one if it needs bound names.

    Backward passes that the thread calls have the same object.
    """

    def __init__(self) -> None:
        self.innermost: Block | None = None
        self.open: list[Block] = []
        self.has_ended_modes = False  # of blocks that another thread has ended
        self._is_passed_on = False

    def add(self, block: Block) -> None:
        """Add the innermost block."""
        self.open.append(block)
        self.innermost = block if block.mode is None else None

    def remove(self, block: Block) -> None:
        """Remove any block."""
        self.open.remove(block)
        last = self.open[-1] if self.open else None
        self.innermost = last if last is not None and last.mode is None else None

    def drop(self, mode: Mode) -> None:
        """Drop the mode of a block that has ended from the stack of this thread."""
        if not self.has_ended_modes and _height() and _mode_at(_height() - 1) is mode:
            _pop()
        elif not self.drop_ended_modes() and _height():
            _pop()  # a mode of torch that ended out of order has dropped this one in the place of its own

    def drop_ended_modes(self) -> bool:
        """Drop the modes of blocks that have ended from the stack of this thread; return whether any was."""
        self.has_ended_modes = False
        modes = [_pop() for _ in range(_height())]
        kept = [one for one in modes if not isinstance(one, Mode) or one.block in self.open]
        for mode in reversed(kept):
            torch._C._push_on_torch_function_stack(mode)
        return len(kept) < len(modes)

    def pass_on(self) -> None:
        """Have torch pass on this object to the threads of backward passes."""
        if self._is_passed_on:
            return
        self._is_passed_on, count = True, sys.getrefcount(self)
        torch._C._stash_obj_in_tls(_IN_BACKWARD, self)
        if sys.getrefcount(self) == count:  # some versions of torch drop a reference that they did not count
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))


_height = torch._C._len_torch_function_stack
_mode_at = torch._C._get_function_stack_at
_pop = torch._C._pop_torch_function_stack
_IN_BACKWARD = "cudnn_ct.torch.enable"  # torch passes objects of such keys on to threads of backward passes


class _Thread(threading.local):
    """The blocks of a thread, and the last report."""

    def __init__(self) -> None:
        self.blocks = Blocks()
        self.inside = False  # whether a replacement runs
        self.last: Report | None = None
        self._end = _End(self.blocks)


class _End:
    """Ends the blocks of a thread that has ended."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            for block in list(self._blocks.open):
                block.end()


thread = _Thread()


def block_of_backward() -> Block | None:
    """Return the block in which the backward pass was called that runs in this thread."""
    if thread.blocks.open or not torch._C._is_key_in_tls(_IN_BACKWARD):
        return None
    blocks: Blocks = torch._C._get_obj_in_tls(_IN_BACKWARD)
    return blocks.innermost
