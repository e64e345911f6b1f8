"""The places of torch's functions: names of modules that are bound to them, and to others within blocks."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

__all__ = ["Replaced", "is_method"]

# Python 3.13 no longer caches attributes of a class that has changed 1,000 times, so methods of tensors stay
# bound to replacements after so many blocks.
MOST_REBOUND = 100


class Replaced:
    """Binds names to other functions while there are blocks, in any thread.

    ``pairs`` are functions of torch and the functions that take their places.
    """

    def __init__(self, pairs: Sequence[tuple[Callable[..., Any], Callable[..., Any]]]) -> None:
        self._pairs = {id(one): pair for pair in pairs for one in pair}
        # A block may end while this thread has the lock, when Python collects the generator that entered it.
        self._lock = threading.RLock()
        self._blocks: set[object] = set()
        self._is_bound = False
        self._places = {
            (owner, pair[0].__name__): pair
            for owner in _INHERITING
            for pair in pairs
            if getattr(owner, pair[0].__name__, None) is pair[0]
        }
        self._seen: set[str] = set()
        self._count = 0  # of modules at the last search
        self._rebound = 0  # times that names were bound to torch's functions again

    def begin(self, block: object) -> None:
        """Bind the names to replacements if this block is the only one."""
        with self._lock:
            self._blocks.add(block)
            try:
                if not self._is_bound:
                    self._bind()
            except BaseException:
                self.end(block)
                raise

    def end(self, block: object) -> None:
        """Bind the names to torch's functions again if this block is the last one."""
        with self._lock:
            self._blocks.discard(block)
            if self._is_bound and not self._blocks:
                self._unbind()

    def _bind(self) -> None:
        from torch import _dynamo  # noqa: F401 - it makes tables of functions by their names

        self._is_bound = True
        self._find()
        for (owner, name), (original, replacement) in self._places.items():
            if getattr(owner, name, None) is original:  # and not to something else meanwhile
                with suppress(AttributeError, TypeError):  # the module is read-only
                    setattr(owner, name, replacement)

    def _unbind(self) -> None:
        self._is_bound = False
        self._rebound += 1
        if len(sys.modules) != self._count:
            self._find()  # modules that were imported in the block have replacements
        for (owner, name), (original, replacement) in self._places.items():
            if vars(owner).get(name) is not replacement:
                continue
            if owner is not Tensor:
                setattr(owner, name, original)
            elif self._rebound <= MOST_REBOUND:
                delattr(owner, name)

    def _find(self) -> None:
        """Find the names of modules that were not seen before; those of a program may change at any time."""
        self._take("__main__", sys.modules.get("__main__"))
        if len(sys.modules) == self._count:
            return
        for name, module in list(sys.modules.items()):
            if name not in self._seen:
                self._seen.add(name)
                self._take(name, module)
        self._count = len(sys.modules)

    def _take(self, name: str, module: Any) -> None:
        """Take the names of a module that are bound to the functions; of torch only modules for models."""
        known = name.startswith(("torch.", "cudnn_ct.")) and name not in _OF_TORCH
        if known or not isinstance(module, types.ModuleType):
            return
        for bound, value in list(vars(module).items()):
            if id(value) in self._pairs:
                self._places[module, bound] = self._pairs[id(value)]


_OF_TORCH = ("torch.nn.functional", "torch.backends.mha")
# A class and a module whose functions are found elsewhere; both may have attributes of their own.
_INHERITING = (Tensor, torch._VF)


def is_method(function: Callable[..., Any]) -> bool:
    """Return whether a function is a method of tensors."""
    return getattr(Tensor, function.__name__, None) is function
