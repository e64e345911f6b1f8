"""Native descriptors, which a table of setters creates from specs and reads back.

A setter of cuDNN and its getter take the same arguments in the same order, so a row describes both.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import lru_cache, partial
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, cast, get_args

from . import _lib
from ._bindings import enums, types
from ._handle import NativeHandle
from .dtypes import DTYPES, as_dtype
from .shapes import specs
from .shapes.checks import as_choice
from .shapes.conv import MODES
from .shapes.specs import INT_MAX, MAX_AXES

S = TypeVar("S")  # the spec of a kind of descriptor

_DTYPE_NAMES = {row.code: row.name for row in DTYPES.values()}
_INT_ARRAY = ctypes.c_int * MAX_AXES


class Argument(NamedTuple):
    """One argument of a setter, with its conversions; ``field`` is empty if the spec does not hold it."""

    field: str
    ctype: Any = ctypes.c_int
    encode: Callable[[Any], Any] = lambda value: value
    decode: Callable[[Any], Any] = lambda value: value


AXES = Argument("")  # the length of the arrays that follow it


def integer(field: str, ctype: type[ctypes.c_int] | type[ctypes.c_uint] = ctypes.c_int) -> Argument:
    """Return an argument for a number that must fit a C int."""
    return Argument(field, ctype, lambda value: ints((value,), field)[0])


def real(field: str) -> Argument:
    """Return an argument for a double."""
    return Argument(field, ctypes.c_double)


def arrays(*fields: str) -> list[Argument]:
    """Return arguments for the number of axes, then for arrays of one C int per axis."""
    return [AXES, *(Argument(f, _INT_ARRAY, partial(ints, name=f), tuple) for f in fields)]


def dtype(field: str) -> Argument:
    """Return an argument for a dtype, as ``cudnnDataType_t``."""
    return Argument(field, encode=lambda value: as_dtype(value).code, decode=_DTYPE_NAMES.__getitem__)


def flag(field: str, enum: Callable[[int], int]) -> Argument:
    """Return an argument for a bool, which cuDNN represents by an enum of two members."""
    return Argument(field, encode=lambda value: enum(int(value)), decode=bool)


def choice(field: str, codes: dict[str, int], name: str = "") -> Argument:
    """Return an argument for a name with a code; error messages use ``name`` if it differs from the field."""
    allowed, names = tuple(codes), {code: text for text, code in codes.items()}

    def encode(value: Any) -> int:
        return codes[as_choice(value, allowed, name or field)]

    return Argument(field, encode=encode, decode=names.__getitem__)


def members(enum: type[IntEnum], *names: str, without: str = "") -> dict[str, int]:
    """Return the members of an enum by name, lowercase: all, or only ``names``."""
    codes = {member.name.lower().replace(without, ""): member for member in enum}
    return {name: codes[name] for name in names or codes}


def ints(values: Sequence[int], name: str) -> ctypes.Array[ctypes.c_int]:
    """Return a C array of ints; raise for numbers that ctypes would truncate."""
    for value in values:
        if not -INT_MAX <= value <= INT_MAX:
            raise ValueError(f"{name} {tuple(values)}: cuDNN's descriptors hold 32-bit numbers, got {value}")
    return (ctypes.c_int * len(values))(*values)


def _same_length(parts: dict[str, Sequence[int]]) -> int:
    """Return the common length of all parts of a spec; C would read past the end of a shorter one."""
    for name, part in parts.items():
        if not isinstance(part, Sequence):
            raise TypeError(f"{name} of a spec must be a tuple of ints: got {part!r}")
    lengths = set(map(len, parts.values()))
    if len(lengths) == 1 and max(lengths) <= MAX_AXES:
        return max(lengths)
    text = ", ".join(f"{name} has {len(part)}" for name, part in parts.items())
    if len(lengths) > 1:
        raise ValueError(f"a spec needs one number per axis in each part; {text}")
    raise ValueError(f"cuDNN's descriptors have at most {MAX_AXES} axes; {text}")


class Setter(Generic[S]):
    """A setter of cuDNN with its arguments, and its getter, whose name has "Get" for "Set".

    ``capacity`` is the first argument of some getters: the most axes that they may write. ``when`` returns
    whether the setter applies to a spec.
    """

    def __init__(
        self, name: str, *arguments: Argument, capacity: int = 0, when: Callable[[S], bool] | None = None
    ) -> None:
        self.name = name
        self.arguments = arguments
        self.parts = [a.field for a in arguments if a.ctype is _INT_ARRAY]
        self.capacity = (capacity,) if capacity else ()
        self.when: Callable[[S], bool] = when or (lambda _: True)

    def set(self, library: _lib.Library, descriptor: Descriptor[S], *further: object) -> None:
        """Call the setter with the values of the descriptor's spec, then with ``further`` arguments."""
        spec = descriptor.spec
        axes = _same_length({field: getattr(spec, field) for field in self.parts}) if self.parts else None
        values = [a.encode(getattr(spec, a.field) if a.field else axes) for a in self.arguments]
        getattr(library, self.name)(descriptor, *values, *further)

    def get(self, library: _lib.Library, descriptor: Descriptor[S], *further: object) -> dict[str, object]:
        """Call the getter and return the fields of the spec."""
        results = [a.ctype() for a in self.arguments]
        pointers = [r if isinstance(r, ctypes.Array) else ctypes.byref(r) for r in results]
        getter = getattr(library, self.name.replace("Set", "Get"))
        getter(descriptor, *self.capacity, *pointers, *further)
        fields, axes = {}, 0
        for argument, result in zip(self.arguments, results, strict=True):
            if argument is AXES:
                axes = result.value
            elif argument.field:
                value = result[:axes] if isinstance(result, ctypes.Array) else result.value
                fields[argument.field] = argument.decode(value)
        return fields


class Descriptor(NativeHandle, Generic[S]):
    """A native cuDNN descriptor of a spec.

    A descriptor can be printed, read back from cuDNN with ``read()`` and passed to any function of
    ``ct.raw``. It is destroyed by ``close()`` or when the last reference is dropped. Descriptors are
    immutable, so threads may share them.

    Parameters
    ----------
    spec
        The value to describe, of the class that belongs to this one: a :class:`TensorSpec` for a
        ``TensorDescriptor``.

    Raises
    ------
    BadParamError
        cuDNN rejects the values.
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

    spec_type: ClassVar[type[Any]]
    setter: ClassVar[Setter[Any]]
    further: ClassVar[tuple[Setter[Any], ...]] = ()  # called after it
    native_name: ClassVar[str] = ""  # in C, if it is not the name of the class
    readable: ClassVar[bool] = True  # whether cuDNN has getters for it

    def __init_subclass__(cls) -> None:
        (cls.spec_type,) = get_args(vars(cls)["__orig_bases__"][0])

    def __init__(self, spec: S) -> None:
        if not isinstance(spec, self.spec_type):
            name = self.spec_type.__name__
            raise TypeError(f"{type(self).__name__} describes a {name}, not {spec!r}; see ct.{name}")
        library, name = _lib.load(), self.native_name or type(self).__name__
        pointer = getattr(types, f"cudnn{name}_t")()
        getattr(library, f"cudnnCreate{name}")(ctypes.byref(pointer))
        super().__init__(pointer, getattr(library, f"cudnnDestroy{name}"))
        self.spec = spec
        try:
            self._set(library)
        except BaseException:
            self.close()
            raise

    @classmethod
    def cached(cls, spec: S) -> Self:
        """Return the shared descriptor of a spec, which must not be closed."""
        return cast(Self, _cached(cast(Any, cls), spec, _lib.load()))

    def read(self) -> S:
        """Read the spec back from cuDNN."""
        _ = self._as_parameter_  # raises if the descriptor is closed
        if not self.readable:
            raise TypeError(f"cuDNN has no function that reads a {type(self).__name__} back")
        library = _lib.load()
        spec = self.spec_type(**self.setter.get(library, self))
        for setter in self.further:
            if setter.when(spec):
                spec = spec._replace(**setter.get(library, self))
        return cast(S, spec)

    def _set(self, library: Any) -> None:
        for setter in (self.setter, *self.further):
            if setter.when(self.spec):
                setter.set(library, self)

    def __repr__(self) -> str:
        return f"<{'closed ' if self.closed else ''}{type(self).__name__} {self.spec}>"


_cached = lru_cache(4096)(lambda cls, spec, _: cls(spec))  # the library is a part of the key


class TensorDescriptor(Descriptor[specs.TensorSpec]):
    """``cudnnTensorDescriptor_t`` of a :class:`TensorSpec`, by ``cudnnSetTensorNdDescriptor``."""

    setter = Setter(
        "cudnnSetTensorNdDescriptor", dtype("dtype"), *arrays("shape", "strides"), capacity=MAX_AXES
    )


class FilterDescriptor(Descriptor[specs.FilterSpec]):
    """``cudnnFilterDescriptor_t`` of a :class:`FilterSpec`, by ``cudnnSetFilterNdDescriptor``."""

    setter = Setter(
        "cudnnSetFilterNdDescriptor",
        dtype("dtype"),
        choice("layout", members(enums.TensorFormat, *specs.LAYOUTS)),
        *arrays("shape"),  # K, C, window in every format, which only gives the order in memory
        capacity=MAX_AXES,
    )


_MATH = members(enums.MathType, without="_math")
MATH_NAMES = {int(code): name for name, code in _MATH.items()}


class ConvolutionDescriptor(Descriptor[specs.ConvolutionSpec]):
    """``cudnnConvolutionDescriptor_t`` of a :class:`ConvolutionSpec`, with its groups and math type."""

    setter = Setter(
        "cudnnSetConvolutionNdDescriptor",
        *arrays("padding", "stride", "dilation"),
        choice("mode", members(enums.ConvolutionMode, *MODES)),
        dtype("compute"),
        capacity=MAX_AXES - 2,  # cuDNN counts spatial axes here and rejects a larger number
    )
    further = (
        Setter("cudnnSetConvolutionGroupCount", integer("groups")),
        Setter("cudnnSetConvolutionMathType", choice("math", _MATH)),
    )


_ACTIVATIONS = members(enums.ActivationMode)
_NAN = flag("propagate_nan", enums.NanPropagation)


class ActivationDescriptor(Descriptor[specs.ActivationSpec]):
    """``cudnnActivationDescriptor_t`` of an :class:`ActivationSpec`, by ``cudnnSetActivationDescriptor``."""

    setter = Setter(
        "cudnnSetActivationDescriptor", choice("mode", _ACTIVATIONS, "activation"), _NAN, real("coefficient")
    )
    further = (
        Setter(
            "cudnnSetActivationDescriptorSwishBeta",
            real("coefficient"),
            when=lambda spec: as_choice(spec.mode, tuple(_ACTIVATIONS), "activation") == "swish",
        ),
    )


class PoolingDescriptor(Descriptor[specs.PoolingSpec]):
    """``cudnnPoolingDescriptor_t`` of a :class:`PoolingSpec`, by ``cudnnSetPoolingNdDescriptor``."""

    setter = Setter(
        "cudnnSetPoolingNdDescriptor",
        choice("mode", members(enums.PoolingMode)),
        _NAN,
        *arrays("window", "padding", "stride"),
        capacity=MAX_AXES - 2,
    )


class LRNDescriptor(Descriptor[specs.LRNSpec]):
    """``cudnnLRNDescriptor_t`` of an :class:`LRNSpec`, by ``cudnnSetLRNDescriptor``."""

    setter = Setter("cudnnSetLRNDescriptor", integer("n", ctypes.c_uint), *map(real, ("alpha", "beta", "k")))


class OpTensorDescriptor(Descriptor[specs.OpTensorSpec]):
    """``cudnnOpTensorDescriptor_t`` of an :class:`OpTensorSpec`, by ``cudnnSetOpTensorDescriptor``."""

    setter = Setter(
        "cudnnSetOpTensorDescriptor", choice("op", members(enums.OpTensorOp)), dtype("compute"), _NAN
    )


class ReduceDescriptor(Descriptor[specs.ReduceSpec]):
    """``cudnnReduceTensorDescriptor_t`` of a :class:`ReduceSpec`, by ``cudnnSetReduceTensorDescriptor``.

    Indices have 32 bits, the only width that cuDNN computes.
    """

    setter = Setter(
        "cudnnSetReduceTensorDescriptor",
        choice("op", members(enums.ReduceTensorOp)),
        dtype("compute"),
        _NAN,
        flag("indices", enums.ReduceTensorIndices),
        Argument("", encode=lambda _: enums.IndicesType.INDICES_32BIT),
    )
    native_name = "ReduceTensorDescriptor"


class SpatialTransformerDescriptor(Descriptor[specs.SpatialTransformerSpec]):
    """``cudnnSpatialTransformerDescriptor_t`` of a :class:`SpatialTransformerSpec`; cannot be read back."""

    setter = Setter(
        "cudnnSetSpatialTransformerNdDescriptor",
        Argument("", encode=lambda _: enums.SamplerType.BILINEAR),
        dtype("dtype"),
        *arrays("shape"),
    )
    readable = False


class CTCLossDescriptor(Descriptor[specs.CTCLossSpec]):
    """``cudnnCTCLossDescriptor_t`` of a :class:`CTCLossSpec`, by ``cudnnSetCTCLossDescriptor_v9``."""

    setter = Setter(
        "cudnnSetCTCLossDescriptor_v9",
        dtype("compute"),
        choice("normalization", members(enums.LossNormalizationMode)),
        choice("out_of_bound", members(enums.CTCGradMode, without="_oob_gradients")),
        integer("max_label_length"),
    )
