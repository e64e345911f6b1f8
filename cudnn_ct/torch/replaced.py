"""The places of torch's functions: names of modules that are bound to them, and to others within blocks."""

from __future__ import annotations

import sys
import threading
import types
import weakref
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Pair", "Replaced", "is_method"]

# Python 3.13 no longer caches attributes of a class that has changed 1,000 times, so methods of tensors stay
# bound to replacements after so many blocks.
MOST_REBOUND = 100


class Pair(NamedTuple):
    """A function of torch, the function that takes its place, and the group to which its calls belong."""

    original: Callable[..., Any]
    replacement: Callable[..., Any]
    group: str


class _Owner:
    """A module or a class, without keeping it alive, and its names that are bound to the functions."""

    __slots__ = ("bound", "is_plain", "ref", "size")

    def __init__(self, owner: Any) -> None:
        self.ref = weakref.ref(owner)
        self.size = -1  # number of its names at the last search
        self.bound: dict[str, Pair] = {}
        # Whether the class sets attributes as others do: to change the dict is faster than `setattr`.
        own = getattr(type(owner), "__setattr__", None)
        self.is_plain = isinstance(owner, types.ModuleType) and own is types.ModuleType.__setattr__


class Replaced:
    """Binds names to other functions while there are blocks, in any thread."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = {id(one): pair for pair in pairs for one in (pair.original, pair.replacement)}
        # A block may end while this thread has the lock, when Python collects the generator that entered it.
        self._lock = threading.RLock()
        self._blocks: set[object] = set()
        self._bound: Set[str] = frozenset()  # groups
        self._owners: dict[int, _Owner] = {}  # of all modules
        self._named: list[_Owner] = []  # with names that are bound to the functions
        for owner in _INHERITING:
            found = self._owners[id(owner)] = _Owner(owner)
            self._named.append(found)
            for pair in pairs:
                original, name = pair[0], pair[0].__name__
                if getattr(owner, name, None) is original:
                    if owner is torch._VF:  # which has a name once it is bound
                        setattr(owner, name, original)
                    found.bound[name] = pair
        self._searched: tuple[int, Callable[[], Any]] = 0, lambda: None  # at the last search
        self._rebound = 0  # times that names were bound to torch's functions again

    def begin(self, block: object, groups: Set[str]) -> None:
        """Bind the names of groups to replacements, unless another block has."""
        with self._lock:
            self._blocks.add(block)
            try:
                if not groups <= self._bound:
                    self._bind(groups)
            except BaseException:
                self.end(block)
                raise

    def bind(self, block: object, groups: Set[str]) -> None:
        """Bind the names of groups for a block that has begun; do nothing if it has ended."""
        with self._lock:
            if block in self._blocks and not groups <= self._bound:
                self._bind(groups)

    def end(self, block: object) -> None:
        """Bind the names to torch's functions again if this block is the last one."""
        with self._lock:
            self._blocks.discard(block)
            if self._bound and not self._blocks:
                self._unbind()

    def _bind(self, groups: Set[str]) -> None:
        from torch import _dynamo  # noqa: F401 - it makes tables of functions by their names

        self._bound |= groups
        self._find()
        for found in self._named:
            owner = found.ref()
            names = _names(owner) if found.is_plain else None
            for name, (original, replacement, group) in found.bound.items():
                if group not in groups:
                    continue
                if names is not None:
                    if names.get(name) is original:  # and not bound to something else meanwhile
                        names[name] = replacement
                    continue
                with suppress(Exception):  # the module is read-only
                    if getattr(owner, name, None) is original:
                        setattr(owner, name, replacement)

    def _unbind(self) -> None:
        groups, self._bound = self._bound, frozenset()
        self._rebound += 1
        self._find()  # modules that were imported in the block have replacements
        for found in self._named:
            owner = found.ref()
            names, plain = _names(owner), found.is_plain
            for name, (original, replacement, group) in found.bound.items():
                if group not in groups or names.get(name) is not replacement:
                    continue
                if plain:
                    names[name] = original
                elif owner is not Tensor:
                    with suppress(Exception):
                        setattr(owner, name, original)
                elif self._rebound <= MOST_REBOUND:
                    delattr(owner, name)

    def _find(self) -> None:
        """Find the names of new modules, and the new names of known ones; those of a program always."""
        self._take("__main__", sys.modules.get("__main__"))
        number, last = self._searched
        latest = _latest()
        if len(sys.modules) == number and latest is not None and latest is last():
            for found in self._named:  # one that is reloaded has other names
                module = found.ref()
                if found.size >= 0 and module is not None and len(_dict_of(module)) != found.size:
                    self._take("", module)
            return
        self._searched = len(sys.modules), _reference(latest)
        for name, module in list(sys.modules.items()):
            self._take(name, module)
        self._owners = {key: one for key, one in self._owners.items() if one.ref() is not None}
        self._named = [one for one in self._owners.values() if one.bound]

    def _take(self, name: str, module: Any) -> None:
        """Take the names of a module that are bound to the functions; of torch only modules for models."""
        if not isinstance(module, types.ModuleType):
            return
        found = self._owners.get(id(module))
        if found is None or found.ref() is not module:
            found = self._owners[id(module)] = _Owner(module)
        names = _dict_of(module)
        if found.size == len(names) and name != "__main__":
            return
        found.size = len(names)
        if name.startswith(("torch.", "cudnn_ct.")) and name not in _OF_TORCH:
            return
        if self._pairs.keys().isdisjoint(map(id, list(names.values()))):  # as of most modules
            return
        for bound, value in list(names.items()):
            if id(value) in self._pairs:
                found.bound[bound] = self._pairs[id(value)]
        if found.bound and found not in self._named:
            self._named.append(found)


def _latest() -> Any:
    """Return the last of the loaded modules; None if another thread loads one."""
    try:
        return next(reversed(sys.modules.values()))
    except RuntimeError:
        return None


def _reference(value: Any) -> Callable[[], Any]:
    """Return a function that returns a value, without keeping a module alive."""
    return weakref.ref(value) if isinstance(value, types.ModuleType) else lambda: value


def _names(owner: Any) -> Any:
    """Return the dict of a module or a class."""
    return vars(owner) if owner is Tensor else {} if owner is None else _dict_of(owner)


# A class may load its module when an attribute is read, even ``__dict__``.
_dict_of = vars(types.ModuleType)["__dict__"].__get__
_OF_TORCH = ("torch.nn.functional", "torch.backends.mha")
# A class and a module whose functions are found elsewhere; both may have attributes of their own.
_INHERITING = (Tensor, torch._VF)


def is_method(function: Callable[..., Any]) -> bool:
    """Return whether a function is a method of tensors."""
    return getattr(Tensor, function.__name__, None) is function
