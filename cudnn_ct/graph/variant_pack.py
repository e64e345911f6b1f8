"""Variant packs: the pointers that an execution plan runs on."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from ctypes import byref, c_int, c_int64, c_void_p
from functools import lru_cache
from typing import Any

from .._bindings.types import cudnnBackendDescriptor_t
from .._handle import destroy_native
from .attributes import kind
from .backend import BackendDescriptor

_ONE = c_int64(1)
_ATTRIBUTES = ("unique_ids", "data_pointers", "workspace")


class VariantPack:
    """A finalised variant pack, which passes itself to C. It is destroyed with its last reference."""

    __slots__ = ("_as_parameter_", "_destroy", "_process")

    def __init__(self, pointer: Any, destroy: Callable[..., object]) -> None:
        self._as_parameter_ = pointer
        self._destroy = destroy
        self._process = os.getpid()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            destroy_native(self._destroy, self._as_parameter_, "VariantPack", self._process)


class VariantPacks:
    """Makes the variant packs of one plan: ``uids`` are those of its tensors, in the order of the pointers.

    Operands at new addresses need a new pack, because cuDNN rejects changes of a finalised one. So its calls
    go to C without the conversions and checks of :class:`BackendDescriptor`, which take three quarters of the
    time. If one fails, that class repeats them and raises the error.
    """

    __slots__ = ("_calls", "_codes", "_count", "_library", "_pointers", "_uids", "_workspace")

    def __init__(self, library: Any, uids: Sequence[int]) -> None:
        self._library = library
        self._calls, self._codes = _calls(library)
        self._count = c_int64(len(uids))
        self._uids = (c_int64 * len(uids))(*uids)
        self._pointers = (c_void_p * len(uids))()
        self._workspace = (c_void_p * 1)()

    def make(self, pointers: Iterable[int], workspace: int) -> VariantPack | BackendDescriptor:
        """Return a pack; its plan's thread alone may ask for one, because the arrays are used again."""
        create, write, finalize = self._calls
        of_kind, uids, data, room = self._codes
        self._pointers[:] = [*pointers]
        self._workspace[0] = workspace
        pack = cudnnBackendDescriptor_t()
        if create(of_kind, byref(pack)):
            return self._checked()
        made = VariantPack(pack, self._library.cudnnBackendDestroyDescriptor)
        failed = (
            write(pack, *uids, self._count, self._uids)
            or write(pack, *data, self._count, self._pointers)
            or write(pack, *room, _ONE, self._workspace)
            or finalize(pack)
        )
        return self._checked() if failed else made

    def _checked(self) -> BackendDescriptor:
        values = self._uids, self._pointers, self._workspace
        return BackendDescriptor(self._library, "variant_pack", **dict(zip(_ATTRIBUTES, values, strict=True)))


@lru_cache(4)
def _calls(library: Any) -> tuple[tuple[Callable[..., int], ...], tuple[Any, ...]]:
    """Return functions that take instances of C types and return a status, and the codes that they take."""
    names = "CreateDescriptor", "SetAttribute", "Finalize"
    places = [ctypes.cast(getattr(library, f"cudnnBackend{name}"), c_void_p) for name in names]
    functions = tuple(ctypes.CFUNCTYPE(c_int)(place.value or 0) for place in places)
    of_kind = kind("variant_pack")
    known = map(of_kind.attribute, _ATTRIBUTES)
    return functions, (c_int(of_kind.code), *((c_int(one.code), c_int(one.type.code)) for one in known))
