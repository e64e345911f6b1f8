"""``ct.raw``: every C function of cuDNN under its own name.

Arguments are checked, because ctypes ignores superfluous ones and truncates integers that do not fit.
"""

from __future__ import annotations

import ctypes
import inspect
from functools import cache
from typing import Any

from . import _lib
from ._handle import NativeHandle
from .errors import NotSupportedError

_INTEGERS = (ctypes.c_int, ctypes.c_int64, ctypes.c_uint, ctypes.c_uint64)  # the others are aliases


class RawFunction:
    """One C function of cuDNN, called by position or by the parameter names of the header.

    A function that returns ``cudnnStatus_t`` raises if the status is not success. ``cudnnDestroy...`` of an
    object of this package closes that object, so that it is not destroyed twice.

    Raises
    ------
    TypeError
        An argument is missing, superfluous or of the wrong type.
    OverflowError
        An integer does not fit its C type.
    VersionMismatchError
        The loaded cuDNN is too old for the function.
    """

    def __init__(self, name: str, function: Any, prototype: Any) -> None:
        self._function = function
        self._prototype = prototype
        self.__name__ = name
        self.__doc__ = f"{prototype_text(name, prototype)}\n\nFrom {prototype.header}."
        self.__signature__ = inspect.Signature(
            [inspect.Parameter(p, inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in prototype.argnames]
        )

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if inspect.isfunction(self._function):  # a placeholder for a symbol that this cuDNN lacks; it raises
            return self._function()
        try:
            bound = self.__signature__.bind(*args, **kwargs).args
        except TypeError as error:
            raise TypeError(f"{self!r}: {error}") from None
        for name, ctype, value in zip(self._prototype.argnames, self._prototype.argtypes, bound, strict=True):
            if isinstance(value, int) and ctype in _INTEGERS:
                count = 256 ** ctypes.sizeof(ctype)
                low = min(ctype(count // 2).value, 0)
                if not low <= value < low + count:
                    holds = f"{type_text(ctype)} holds {low} to {low + count - 1}"
                    raise OverflowError(f"{self!r}: {name} is {value}; {holds}")
        if self.__name__.startswith("cudnnDestroy") and isinstance(bound[0], NativeHandle):
            return bound[0].close()
        try:
            return self._function(*bound)
        except ctypes.ArgumentError as error:
            raise TypeError(f"{self!r}: {self._explain(error, bound)}") from None

    def _explain(self, error: ctypes.ArgumentError, bound: tuple[Any, ...]) -> str:
        """Name the argument that ctypes rejected, and how to create a valid one."""
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
    """Access to cuDNN's C functions, enums and types by name. The first function that is used loads cuDNN.

    Raises
    ------
    AttributeError
        cuDNN does not have this function, enum or type.
    LibraryLoadError
        cuDNN is not installed or cannot be loaded.

    Notes
    -----
    A function is a :class:`RawFunction`, which raises if the status of the C function is not success. An
    enum has its name in C without ``cudnn`` and ``_t``, and its members without the common prefix:
    ``ct.raw.DataType.FLOAT``. Handles, structs and callbacks have their names in C.

    Examples
    --------
    >>> ct.raw.cudnnGetVersion() // 10000
    9
    >>> descriptor = ct.raw.cudnnTensorDescriptor_t()
    >>> int(ct.raw.DataType.FLOAT)
    0
    """

    def __init__(self) -> None:
        self._made: dict[tuple[str, _lib.Library], RawFunction] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy, inspect and pickle look up such names on every object
            raise AttributeError(name)
        if name in (known := _types()):
            return known[name]
        library = _lib.load()
        if (made := self._made.get((name, library))) is None:
            made = RawFunction(name, getattr(library, name), _lib.prototypes()[name])
            self._made[name, library] = made
        return made

    def __dir__(self) -> list[str]:
        return sorted([*_lib.prototypes(), *_types(), "handle"])

    def handle(self) -> NativeHandle:
        """Return cuDNN's handle of this thread and the current device, on the current stream.

        Pass it as a ``cudnnHandle_t``. It belongs to the package: do not destroy it, or set its stream.
        ``ct.use`` selects the device and the stream.

        Raises
        ------
        NotInitializedError
            No GPU can be used.
        NotSupportedError
            This cuDNN has no handles, because it is ``libcudnn_ext`` alone.
        """
        from .context import current
        from .cuda.stream import current_stream

        found = current(current_stream()).handle
        if found is None:
            raise NotSupportedError("this cuDNN has no handles: it is libcudnn_ext alone")
        return found

    def __repr__(self) -> str:
        return "<every C function, enum and type of cuDNN, by name>"


raw = RawLibrary()


@cache
def _types() -> dict[str, Any]:
    """Return the enums, and the handles, structs and callbacks, by name."""
    from ._bindings import enums, types

    made = {
        name: one for name, one in vars(enums).items() if getattr(one, "__module__", "") == enums.__name__
    }
    return made | {name: one for name, one in vars(types).items() if name.startswith("cudnn")}


def prototype_text(name: str, prototype: Any) -> str:
    """Format a prototype: ``cudnnCreate(handle: LP_LP_cudnnContext)``."""
    pairs = zip(prototype.argnames, prototype.argtypes, strict=True)
    return f"{name}({', '.join(f'{argument}: {type_text(ctype)}' for argument, ctype in pairs)})"


def type_text(ctype: Any) -> str:
    """Format a ctypes type: ``POINTER(c_int)``."""
    name = str(ctype.__name__)
    return f"POINTER({type_text(ctype._type_)})" if name.startswith("LP_") else name
