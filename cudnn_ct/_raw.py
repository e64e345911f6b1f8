"""``ct.raw``: every function of cuDNN under its own name, with its arguments checked before they reach C.

ctypes passes more arguments than a prototype has, and cuts integers that do not fit. Operations know what
they pass; a person at a prompt does not always, so this door checks.
"""

from __future__ import annotations

import ctypes
import inspect
from typing import Any

from . import _lib
from ._handle import NativeHandle

__all__ = ["RawFunction", "raw"]

_RANGES = {
    ctype: (-(2 ** (8 * ctypes.sizeof(ctype) - 1)), 2 ** (8 * ctypes.sizeof(ctype) - 1) - 1)
    for ctype in (ctypes.c_int, ctypes.c_int32, ctypes.c_int64)
} | {
    ctype: (0, 2 ** (8 * ctypes.sizeof(ctype)) - 1)
    for ctype in (ctypes.c_uint, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_ulonglong)
}


class RawFunction:
    """One C function of cuDNN, called by position or by the header's parameter names.

    A function that returns ``cudnnStatus_t`` raises where it fails. ``cudnnDestroy...`` of one of this
    package's objects closes that object, so that nothing is destroyed twice.

    Raises
    ------
    TypeError
        Too few or too many arguments, or one of the wrong type.
    OverflowError
        An integer that its C type does not hold.
    VersionMismatchError
        The cuDNN that is loaded is too old for the function.
    """

    def __init__(self, name: str, function: Any, prototype: Any) -> None:
        self._function = function
        self._prototype = prototype
        self.__name__ = name
        self.__doc__ = f"{prototype_text(name, prototype)}\n\nFrom {prototype.header}."
        self.__signature__ = inspect.Signature(
            [inspect.Parameter(p, inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in prototype.argnames]
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if inspect.isfunction(
            self._function
        ):  # what stands in for a symbol that this cuDNN lacks, and says so
            return self._function()
        try:
            bound = self.__signature__.bind(*args, **kwargs).args
        except TypeError as error:
            raise TypeError(f"{self!r}: {error}") from None
        for name, ctype, value in zip(self._prototype.argnames, self._prototype.argtypes, bound, strict=True):
            low, high = _RANGES.get(ctype, (None, None))
            if low is not None and high is not None and isinstance(value, int) and not low <= value <= high:
                raise OverflowError(f"{self!r}: {name} is {value}; {type_text(ctype)} holds {low} to {high}")
        if self.__name__.startswith("cudnnDestroy") and isinstance(bound[0], NativeHandle):
            return bound[0].close()
        try:
            return self._function(*bound)
        except ctypes.ArgumentError as error:
            raise TypeError(f"{self!r}: {self._explained(error, bound)}") from None

    def _explained(self, error: ctypes.ArgumentError, bound: tuple[Any, ...]) -> str:
        """Which argument ctypes refused, and how to make one that it takes."""
        number = int(str(error).split(":")[0].removeprefix("argument ")) - 1
        name, ctype, value = self._prototype.argnames[number], self._prototype.argtypes[number], bound[number]
        if isinstance(value, NativeHandle) and value.closed:
            return f"{name}: this {type(value).__name__} is closed"
        text = f"{name} must be {type_text(ctype)}, not {type(value).__name__}"
        if isinstance(value, list | tuple) and isinstance(getattr(ctype, "_type_", ""), type):  # a pointer
            text += f"; ({type_text(ctype._type_)} * {len(value)})(*values) makes one"
        return text

    def __repr__(self) -> str:
        return prototype_text(self.__name__, self._prototype)


class RawLibrary:
    """cuDNN's C functions under their own names, with arguments checked. Loads cuDNN at the first of them.

    Raises
    ------
    AttributeError
        cuDNN has no such function.
    LibraryLoadError
        There is no cuDNN, or it cannot be loaded.

    Notes
    -----
    Each is a :class:`RawFunction`, which raises where the status of the C function is not success.

    Examples
    --------
    >>> ct.raw.cudnnGetVersion() // 10000
    9
    """

    def __init__(self) -> None:
        self._made: dict[tuple[str, _lib.Library], RawFunction] = {}

    def __getattr__(self, name: str) -> RawFunction:
        if name.startswith("_"):  # what copy, inspect and pickle ask every object for
            raise AttributeError(name)
        library = _lib.load()
        made = self._made.get((name, library))
        if made is None:
            made = RawFunction(name, getattr(library, name), _lib.prototypes()[name])
            self._made[name, library] = made
        return made

    def __dir__(self) -> list[str]:
        return sorted(_lib.prototypes())

    def __repr__(self) -> str:
        return "<every C function of cuDNN, by name>"


raw = RawLibrary()


def prototype_text(name: str, prototype: Any) -> str:
    """Write a prototype: ``cudnnCreate(handle: LP_LP_cudnnContext)``."""
    pairs = zip(prototype.argnames, prototype.argtypes, strict=True)
    return f"{name}({', '.join(f'{argument}: {type_text(ctype)}' for argument, ctype in pairs)})"


def type_text(ctype: Any) -> str:
    """Name a ctypes type as one would write it: ``POINTER(c_int)``."""
    name = str(ctype.__name__)
    return f"POINTER({type_text(ctype._type_)})" if name.startswith("LP_") else name
