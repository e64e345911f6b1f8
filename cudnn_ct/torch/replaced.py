"""The places of torch's functions: names of modules that are bound to them, and to others within blocks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
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
        self._pairs = {id(pair[0]): pair for pair in pairs}
        self._lock, self._blocks = threading.Lock(), 0
        self._places = {
            (owner, pair[0].__name__): pair
            for owner in _INHERITING
            for pair in pairs
            if getattr(owner, pair[0].__name__, None) is pair[0]
        }
        self._seen: set[str] = set()
        self._count = 0  # of modules at the last search
        self._rebound = 0  # times that names were bound to torch's functions again

    def begin(self) -> None:
        """Bind the names to replacements if this block is the only one."""
        with self._lock:
            if not self._blocks:
                self._find()
                for (owner, name), (_, replacement) in self._places.items():
                    if owner is not Tensor or name not in vars(Tensor):
                        setattr(owner, name, replacement)
            self._blocks += 1

    def end(self) -> None:
        """Bind the names to torch's functions again if this block is the last one."""
        with self._lock:
            self._blocks -= 1
            if self._blocks:
                return
            for (owner, name), (original, replacement) in self._places.items():
                if vars(owner).get(name) is not replacement:
                    continue  # somebody else has bound it meanwhile
                if owner is not Tensor:
                    setattr(owner, name, original)
                elif self._rebound < MOST_REBOUND:
                    delattr(owner, name)
            self._rebound += 1

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
        inner = name.startswith(("torch.", "cudnn_ct.")) and name not in _OF_TORCH
        names = getattr(module, "__dict__", None)
        if names and not inner and getattr(module, "__name__", "") == name:
            for bound, value in list(names.items()):
                if id(value) in self._pairs:
                    self._places[module, bound] = self._pairs[id(value)]


_OF_TORCH = ("torch.nn.functional", "torch.backends.mha")
# A class and a module whose functions are found elsewhere; both may have attributes of their own.
_INHERITING = (Tensor, torch._VF)


def is_method(function: Callable[..., Any]) -> bool:
    """Return whether a function is a method of tensors."""
    return getattr(Tensor, function.__name__, None) is function
