"""Ownership of native pointers."""

from __future__ import annotations

import ctypes
import os
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Self

from .errors import CudnnError, CudnnWarning

# Takes an object out of the garbage collector, so that its `__del__` runs only after its last reference goes.
# The collector calls `__del__` of all objects in a cycle, in any order, before it clears any of them: memory
# would be freed before the `__del__` of an object that orders work on it. The object must be in no cycle.
outlive_cycles = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyObject_GC_UnTrack", ctypes.pythonapi))


def in_forked_child(function: Callable[[], object]) -> Callable[[], object]:
    """Let a function run in each forked child of this process."""
    if hasattr(os, "register_at_fork"):  # missing on Windows, which `_lib.load` rejects
        os.register_at_fork(after_in_child=function)
    return function


class NativeHandle:
    """Holds a native pointer, passes itself to C, and destroys the pointer once.

    The object is destroyed by ``close()``, at the end of a ``with`` block, or when the last reference is
    dropped. At interpreter exit nothing is destroyed: the driver may be unloaded by then, and the operating
    system reclaims everything.
    ``destroy`` is not a bound method of this object, which would keep it alive.
    """

    # A slot, not a property: ctypes reads it for each argument of each call. `close()` empties the slot, so
    # that later reads reach `__getattr__`, which names the closed object.
    __slots__ = ("__weakref__", "_as_parameter_", "_finalizer")

    _as_parameter_: Any

    def __init__(self, pointer: object, destroy: Callable[..., object]) -> None:
        self._as_parameter_ = pointer
        self._finalizer = weakref.finalize(
            self, destroy_native, destroy, pointer, type(self).__name__, os.getpid()
        )
        self._finalizer.atexit = False

    if not TYPE_CHECKING:  # type checkers would accept any attribute

        def __getattr__(self, name: str) -> object:
            if name == "_as_parameter_":
                raise ValueError(f"this {type(self).__name__} is closed")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def closed(self) -> bool:
        """Whether the native object was destroyed."""
        return not self._finalizer.alive

    def close(self) -> None:
        """Destroy the native object now. Closing twice is harmless."""
        if self._finalizer.alive:
            del self._as_parameter_
            self._finalizer()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"{type(self).__name__} owns a native object and cannot be copied or pickled")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def destroy_native(destroy: Callable[[Any], object], pointer: Any, owner: str, process: int) -> None:
    """Destroy, and warn about an error; a forked child destroys nothing: its parent owns the object."""
    if os.getpid() != process:
        return
    try:
        destroy(pointer)
    except CudnnError as error:
        warnings.warn(f"{owner} could not be destroyed: {error}", CudnnWarning, stacklevel=2)
