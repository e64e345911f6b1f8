"""What all native descriptors have in common: built from a spec, read back as one, closed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self, cast

from .. import _lib
from .._handle import NativeHandle
from ..dtypes import DTYPES

__all__ = ["DTYPE_NAMES", "MAX_AXES", "Descriptor", "DescriptorType", "int_array", "ints", "same_length"]

MAX_AXES = 8  # CUDNN_DIM_MAX
_INT_MAX = 2**31 - 1

DTYPE_NAMES = {row.code: row.name for row in DTYPES.values()}


class DescriptorType(NamedTuple):
    """One kind of descriptor: its spec, its C names, and the functions between spec and native object."""

    spec: type
    pointer: Any
    create: str
    destroy: str
    write: Callable[[Any, Any, Any], None]
    read: Callable[[Any, Any], Any] | None = None


class Descriptor(NativeHandle):
    """A native cuDNN descriptor of a spec.

    Make one, print it, ``read()`` it back from cuDNN, pass it to any function of ``ct.raw``, and ``close()``
    it or leave that to its last reference. A descriptor is never changed once made, so threads may share it.

    Parameters
    ----------
    spec
        The value to describe, of the class that belongs to this one: a :class:`TensorSpec` for a
        ``TensorDescriptor``.

    Raises
    ------
    BadParamError
        cuDNN refused the values.
    TypeError
        The spec is of another kind, or names a dtype that cuDNN does not have.
    ValueError
        A number does not fit the C int that cuDNN takes, or the parts of the spec do not fit each other.

    Examples
    --------
    >>> with ct.TensorDescriptor(ct.TensorSpec.packed((8, 64, 28, 28), "float16", "nhwc")) as descriptor:
    ...     read = descriptor.read()
    >>> read.strides
    (50176, 1, 1792, 64)
    """

    __slots__ = ("spec",)

    kind: ClassVar[DescriptorType]

    def __init__(self, spec: Any) -> None:
        if not isinstance(spec, self.kind.spec):
            name = self.kind.spec.__name__
            raise TypeError(f"{type(self).__name__} describes a {name}, not {spec!r}; see ct.{name}")
        library = _lib.load()
        pointer = self.kind.pointer()
        getattr(library, self.kind.create)(ctypes.byref(pointer))
        super().__init__(pointer, getattr(library, self.kind.destroy))
        self.spec = spec
        try:
            self.kind.write(library, self, spec)
        except BaseException:
            self.close()
            raise

    @classmethod
    def cached(cls, spec: Any) -> Self:
        """The shared descriptor of a spec. Close only descriptors that you made yourself."""
        return cast(Self, _cached(cast(Any, cls), spec, _lib.load()))

    def read(self) -> Any:
        """Read the spec back from cuDNN."""
        _ = self._as_parameter_  # which says that it is closed, where it is
        if self.kind.read is None:
            raise TypeError(f"cuDNN has no function that reads a {type(self).__name__} back")
        return self.kind.read(_lib.load(), self)

    def __repr__(self) -> str:
        return f"<{'closed ' if self.closed else ''}{type(self).__name__} {self.spec}>"


@lru_cache(maxsize=4096)
def _cached(cls: Any, spec: Any, library: Any) -> Any:  # noqa: ARG001 - part of the key
    return cls(spec)


def ints(values: Sequence[int], name: str) -> Any:
    """A C array of ints. ctypes would cut a number that is too large; this raises."""
    for value in values:
        if not -_INT_MAX <= value <= _INT_MAX:
            raise ValueError(f"{name} {tuple(values)}: cuDNN's descriptors hold 32-bit numbers, got {value}")
    return (ctypes.c_int * len(values))(*values)


def same_length(**parts: Sequence[int]) -> int:
    """The number of axes that all parts of a spec agree on: C would read past the end of a shorter one."""
    for name, part in parts.items():
        if not isinstance(part, Sequence):
            raise TypeError(f"{name} of a spec is a tuple of ints, not {part!r}")
    lengths = {name: len(part) for name, part in parts.items()}
    if len(set(lengths.values())) != 1:
        text = ", ".join(f"{name} has {n}" for name, n in lengths.items())
        raise ValueError(f"a spec needs one number per axis in each part; {text}")
    if lengths[next(iter(lengths))] > MAX_AXES:
        raise ValueError(f"cuDNN's descriptors have at most {MAX_AXES} axes; {lengths}")
    return lengths[next(iter(lengths))]


def int_array(length: int) -> Any:
    return (ctypes.c_int * length)()
