"""Backend descriptors: the objects of cuDNN's graph API."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, ParamSpec, TypeVar

from .._bindings.types import cudnnBackendDescriptor_t
from .._handle import NativeHandle
from ..errors import AllocationError, CudnnError, NotInitializedError, NotSupportedError, without_frames
from . import attributes
from .attributes import Attribute, Element, kind

P = ParamSpec("P")
T = TypeVar("T")

NOT_INITIALIZED = 1001
_PLANNED = ("operation", "execution_plan")  # made after the handle, which needs a usable GPU
_SINGLE, _INTS, _LISTS = {int, float, bool, str}, {int}, {tuple, list}


class BackendDescriptor(NativeHandle):
    """A ``cudnnBackendDescriptor_t``: created, set and finalised; destroyed if that fails.

    ``name`` is the kind of descriptor, such as ``"tensor"`` or ``"execution_plan"``. ``attributes`` have
    their short names in lower case. A value is a number, the name of an enum member or a dtype, a descriptor,
    a sequence of them, or a ctypes array. None is omitted.
    """

    # cuDNN does not document whether it keeps the parts of a descriptor alive.
    __slots__ = ("_depends_on", "about", "kernel_cache", "kind", "library")

    # One function: a graph has some twenty descriptors, which take longer the more calls of Python they are.
    def __init__(self, library: Any, name: str, /, *parents: BackendDescriptor, **attributes: Any) -> None:
        """Make a descriptor; or, with parents, one for cuDNN to fill from an attribute of theirs."""
        self.kind = of_kind = kind(name)
        self.library = library
        self.about = ""  # shown by repr
        self.kernel_cache: Any = None  # of a dynamic graph, a KernelCache
        self._depends_on: list[Any] = list(parents)
        pointer = cudnnBackendDescriptor_t()
        library.cudnnBackendCreateDescriptor(of_kind.code, ctypes.byref(pointer))
        super().__init__(pointer, library.cudnnBackendDestroyDescriptor)
        if parents:
            return
        known = of_kind.attributes
        try:
            for field, value in attributes.items():
                if value is None:
                    continue
                attribute = known[field] if field in known else of_kind.attribute(field)
                element = attribute.type
                if type(value) in _SINGLE:  # most values
                    elements = (element.ctype * 1)(element.encode(value))
                elif type(value) in _LISTS and set(map(type, value)) == _INTS:
                    elements = (element.ctype * len(value))(*map(element.encode, value))
                else:
                    element, elements = self._encoded(element, value)
                try:
                    library.cudnnBackendSetAttribute(
                        self, attribute.code, element.code, len(elements), elements
                    )
                except Exception as error:
                    error.add_note(f"while setting {field} = {value!r} of {self!r}")
                    raise
            library.cudnnBackendFinalize(self)
        except BaseException as error:
            self.close()
            if isinstance(error, NotInitializedError) and of_kind.name.startswith(_PLANNED):
                _raise_without_implementation(error)
            raise

    def _encoded(self, element: Element, value: Any) -> tuple[Element, Any]:
        """Return a value as a C array (of characters for bytes), and the type of its elements."""
        if isinstance(value, ctypes.Array):
            return element, value
        if isinstance(value, bytes):
            return element, ctypes.create_string_buffer(value, len(value))
        values = tuple(value) if isinstance(value, Iterable) else (value,)
        if isinstance(value, BackendDescriptor):  # the seed of random numbers is an int64 or a tensor
            element = attributes.element("BACKEND_DESCRIPTOR")
        elif isinstance(value, attributes.AsDouble | attributes.AsInt32):
            element = attributes.element(value.set_as)
        elif Fraction in set(map(type, values)):
            element = attributes.element("FRACTION")  # strides and paddings of images that become larger
        for one in values:
            if isinstance(one, NativeHandle):
                self._depends_on.append(one)  # a comprehension would be a Python call
        return element, (element.ctype * len(values))(*map(element.encode, values))

    def get(self, name: str) -> Any:
        """Read a list of numbers or names, or a text; :meth:`children` reads descriptors."""
        attribute = self.kind.attribute(name)
        room = self.count(name)
        elements = (attribute.type.ctype * room)()
        written = self._read(attribute, room, elements) if room else 0
        if attribute.type.ctype is ctypes.c_char:
            return bytes(elements[:written]).rstrip(b"\0").decode()
        return [attribute.type.decode(element) for element in elements[:written]]

    def one(self, name: str) -> Any:
        """Read an attribute of one element."""
        attribute = self.kind.attribute(name)
        elements = (attribute.type.ctype * 1)()
        self._read(attribute, 1, elements)
        return attribute.type.decode(elements[0])

    def count(self, name: str) -> int:
        """Return the count of elements that cuDNN reports for an attribute: an upper bound."""
        return self._read(self.kind.attribute(name), 0, None)

    def children(self, name: str, of_kind: str, count: int | None = None) -> list[BackendDescriptor]:
        """Read an attribute of descriptors, at most ``count``, into new descriptors."""
        attribute = self.kind.attribute(name)
        room = self.count(name) if count is None else count
        blanks = [BackendDescriptor(self.library, of_kind, self) for _ in range(room)]
        elements = (attribute.type.ctype * room)(*(blank._as_parameter_ for blank in blanks))
        return blanks[: self._read(attribute, room, elements) if room else 0]

    def child(self, name: str, of_kind: str) -> BackendDescriptor:
        """Read an attribute of one descriptor."""
        return self.children(name, of_kind, 1)[0]

    def _read(self, attribute: Attribute, room: int, elements: Any) -> int:
        count = ctypes.c_int64()
        self.library.cudnnBackendGetAttribute(
            self, attribute.code, attribute.type.code, room, ctypes.byref(count), elements
        )
        return min(count.value, room) if room else count.value

    def __repr__(self) -> str:
        about = f" of {self.about}" if self.about else ""
        return f"<{'closed ' if self.closed else ''}BackendDescriptor {self.kind.name}{about}>"


def attempt(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | CudnnError:
    """Call a function; return the error if cuDNN rejects its work, and raise it if memory ran out."""
    try:
        return work(*args, **kwargs)
    except AllocationError:
        raise
    except CudnnError as error:
        return without_frames(error)


def _raise_without_implementation(error: NotInitializedError) -> None:
    """Raise NotSupportedError for an operation that cuDNN cannot initialise, although its handle works."""
    if error.status == NOT_INITIALIZED:  # as cuDNN 9.19 returns for it
        raise NotSupportedError(
            f"cuDNN cannot initialise an operation, or its engine: {str(error).splitlines()[0]}",
            status=error.status,
            function=error.function,
            detail=error.detail,
        ) from None
