"""Backend descriptors, and plans of graphs: execution plans with a variant pack for each set of pointers."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from ctypes import byref, c_int, c_int64, c_void_p
from fractions import Fraction
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

from .. import errors
from .._bindings.types import cudnnBackendDescriptor_t
from .._caches import BoundedDict
from .._handle import NativeHandle, destroy_native
from ..context import Context
from ..dtypes import GRAPH_DTYPES
from ..errors import AllocationError, BadParamError, CudnnError, NotSupportedError
from ..plans.base import Candidate
from ..plans.program import align_after, nbytes_of
from ..shapes.specs import ALIGNMENT, UNALIGNED
from . import attributes
from .attributes import Attribute, Element, kind
from .operations import Graph, Tensor, tensors_of_graph

# --- descriptors -------------------------------------------------------------------------------------------

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
            if isinstance(error, errors.NotInitializedError) and of_kind.name.startswith(_PLANNED):
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
        return errors.without_frames(error)


def _raise_without_implementation(error: errors.NotInitializedError) -> None:
    """Raise NotSupportedError for an operation that cuDNN cannot initialise, although its handle works."""
    if error.status == NOT_INITIALIZED:  # as cuDNN 9.19 returns for it
        raise NotSupportedError(
            f"cuDNN cannot initialise an operation, or its engine: {str(error).splitlines()[0]}",
            status=error.status,
            function=error.function,
            detail=error.detail,
        ) from None


# --- variant pack ------------------------------------------------------------------------------------------

_ONE = c_int64(1)
_ATTRIBUTES = ("unique_ids", "data_pointers", "workspace")


class VariantPack:
    """The pointers that a plan runs on, which pass themselves to C; destroyed with the last reference."""

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


# --- plans -------------------------------------------------------------------------------------------------

MAX_VARIANT_PACKS = 256  # cached for each plan; a pool reuses the same addresses


class GraphPlan:
    """One engine for one graph: a run is one C call.

    A plan and its variant packs belong to the thread whose handle it was made with. The plan owns the host
    memory of tensors that are passed by value.
    """

    __slots__ = (
        "_execute",
        "_graph",
        "_new_packs",
        "_packs",
        "_scratch",
        "_shared",
        "_value_pointers",
        "_values",
        "candidate",
        "native",
        "workspace",
    )

    def __init__(self, graph: Graph, native: BackendDescriptor, candidate: Candidate) -> None:
        self.candidate = candidate
        self.native = native
        self._scratch, self.workspace = place_scratch(graph, native.one("workspace_size"))
        native.about = f"{candidate.algorithm} on {', '.join(str(tensor.spec) for tensor in graph.operands)}"
        self._graph = graph
        self._packs = BoundedDict(MAX_VARIANT_PACKS)
        tensors = tensors_of_graph(graph).values()
        scalars = [tensor for tensor in tensors if tensor.value is not None]
        places = {tensor.uid: place for place, tensor in enumerate(graph.operands)}
        shared = {tensor.uid: places[tensor.same_memory_as] for tensor in tensors if tensor.same_memory_as}
        self._shared = tuple(shared.values())
        uids = [*(tensor.uid for tensor in (*graph.operands, *scalars)), *self._scratch, *shared]
        self._new_packs = VariantPacks(native.library, uids)
        self._values = [host_value(tensor) for tensor in scalars]
        self._value_pointers = tuple(map(ctypes.addressof, self._values))
        self._execute = native.library.cudnnBackendExecute

    def run(self, context: Context, pointers: Sequence[int], alpha: float = 1.0, beta: float = 0.0) -> None:
        """Enqueue the graph; ``pointers`` has those of its operands, the output last."""
        if alpha != 1 or beta != 0:
            raise NotSupportedError(
                f"a graph plan cannot scale: got alpha {alpha}, beta {beta}, expected 1 and 0"
            )
        key = (context.workspace(self.workspace) if self.workspace else 0, *pointers)
        pack = self._packs.get(key)
        if pack is None:
            pack = self._packs[key] = self._pack(context, *key)
        if context.capturing:  # a graph may be replayed after the plan was dropped
            context.pin(self)
            context.pin(pack)
        self._execute(context.handle, self.native, pack)

    def run_in(self, context: Context, workspace: int, pointers: Sequence[int]) -> None:
        """Enqueue the graph with a workspace of the caller."""
        self._execute(context.handle, self.native, self._pack(context, workspace, *pointers))

    def describe(self) -> str:
        return f"chosen: {self.candidate}"

    def _pack(self, context: Context, workspace: int, *pointers: int) -> VariantPack | BackendDescriptor:  # noqa: ARG002
        """Create the variant pack of a set of pointers."""
        if len(pointers) != len(self._graph.operands):
            count = len(self._graph.operands)
            raise ValueError(f"number of pointers is wrong: got {len(pointers)}, expected {count}")
        for tensor, pointer in zip(self._graph.operands, pointers, strict=True):
            if pointer & UNALIGNED:  # a 16-byte load of it would destroy the CUDA context
                expected = f"expected a multiple of {ALIGNMENT}"
                raise BadParamError(f"pointer of {tensor.spec} is misaligned: got {pointer:#x}, {expected}")
        scratch = [workspace + offset for offset in self._scratch.values()]
        shared = [pointers[place] for place in self._shared]
        return self._new_packs.make((*pointers, *self._value_pointers, *scratch, *shared), workspace)


def place_scratch(graph: Graph, nbytes: int) -> tuple[dict[int, int], int]:
    """Return the offsets of scratch tensors by uid, behind ``nbytes`` of workspace, and the whole bytes."""
    offsets = {}
    for tensor in tensors_of_graph(graph).values():
        if tensor.scratch:
            offsets[tensor.uid], nbytes = align_after(nbytes, nbytes_of(tensor.spec))
    return offsets, nbytes


def host_value(tensor: Tensor) -> ctypes.Array[ctypes.c_char]:
    """Return host memory with the value of a tensor that is passed by value, in its dtype."""
    import numpy as np

    number = np.asarray(tensor.value).astype(GRAPH_DTYPES[tensor.spec.dtype].numpy)
    return ctypes.create_string_buffer(number.tobytes(), ALIGNMENT)
