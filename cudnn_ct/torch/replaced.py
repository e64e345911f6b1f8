"""The places of torch's functions: names of modules that are bound to them, and to others within blocks."""

from __future__ import annotations

import sys
import threading
import types
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

__all__ = ["Replaced", "is_method"]

_Names = dict[str, Any] | None

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
        self._places: dict[tuple[Any, str], tuple[_Names, Any, Any]] = {}
        for owner in _INHERITING:
            for original, replacement in pairs:
                if getattr(owner, original.__name__, None) is original:
                    if owner is torch._VF:  # which has a name once it is bound
                        setattr(owner, original.__name__, original)
                    self._places[owner, original.__name__] = _names(owner), original, replacement
        self._seen: dict[str, weakref.ref[types.ModuleType]] = {}
        self._searched = (0, 0)  # at the last search
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
        for (owner, name), (names, original, replacement) in self._places.items():
            if names is not None:
                if names.get(name) is original:  # and not bound to something else meanwhile
                    names[name] = replacement
            elif getattr(owner, name, None) is original:
                with suppress(AttributeError, TypeError):  # the module is read-only
                    setattr(owner, name, replacement)

    def _unbind(self) -> None:
        self._is_bound = False
        self._rebound += 1
        if _modules() != self._searched:
            self._find()  # modules that were imported in the block have replacements
        for (owner, name), (names, original, replacement) in self._places.items():
            if names is not None:
                if names.get(name) is replacement:
                    names[name] = original
            elif vars(owner).get(name) is not replacement:
                continue
            elif owner is not Tensor:
                setattr(owner, name, original)
            elif self._rebound <= MOST_REBOUND:
                delattr(owner, name)

    def _find(self) -> None:
        """Find the names of modules that were not seen before; those of a program may change at any time."""
        self._take("__main__", sys.modules.get("__main__"))
        searched = _modules()
        if searched == self._searched:
            return
        for name, module in list(sys.modules.items()):
            seen = self._seen.get(name)
            if isinstance(module, types.ModuleType) and (seen is None or seen() is not module):
                self._seen[name] = weakref.ref(module)
                self._take(name, module)
        self._searched = searched

    def _take(self, name: str, module: Any) -> None:
        """Take the names of a module that are bound to the functions; of torch only modules for models."""
        known = name.startswith(("torch.", "cudnn_ct.")) and name not in _OF_TORCH
        if known or not isinstance(module, types.ModuleType):
            return
        for bound, value in list(vars(module).items()):
            if id(value) in self._pairs:
                self._places[module, bound] = _names(module), *self._pairs[id(value)]


def _modules() -> tuple[int, int]:
    """Return what a new module changes: their number, and the identity of the last one."""
    return len(sys.modules), id(next(reversed(sys.modules.values())))


def _names(owner: Any) -> _Names:
    """Return the dict of a module's names: to change it takes a tenth of the time of `setattr`.

    None for a class, and for a module whose class sets attributes in its own way.
    """
    plain = getattr(type(owner), "__setattr__", None) is types.ModuleType.__setattr__
    return vars(owner) if plain and isinstance(owner, types.ModuleType) else None


_OF_TORCH = ("torch.nn.functional", "torch.backends.mha")
# A class and a module whose functions are found elsewhere; both may have attributes of their own.
_INHERITING = (Tensor, torch._VF)


def is_method(function: Callable[..., Any]) -> bool:
    """Return whether a function is a method of tensors."""
    return getattr(Tensor, function.__name__, None) is function
