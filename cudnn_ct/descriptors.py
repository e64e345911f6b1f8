"""Native descriptors: built from specs, read back as specs, one row of a table for each kind."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self, cast

from . import _lib
from ._bindings import types
from ._bindings.enums import ActivationMode, ConvolutionMode, MathType, NanPropagation, TensorFormat
from ._owned import Owned
from .dtypes import DTYPES, as_dtype
from .problem import LAYOUTS, MODES, ActivationSpec, ConvolutionSpec, FilterSpec, TensorSpec, choice

__all__ = [
    "ActivationDescriptor",
    "ConvolutionDescriptor",
    "Descriptor",
    "FilterDescriptor",
    "TensorDescriptor",
]

MAX_AXES = 8  # CUDNN_DIM_MAX
_INT_MAX = 2**31 - 1

_DTYPE_NAMES = {row.code: row.name for row in DTYPES.values()}
_FORMATS = {"nchw": TensorFormat.NCHW, "nhwc": TensorFormat.NHWC}
_MATH = {
    "default": MathType.DEFAULT_MATH,
    "tensor_op": MathType.TENSOR_OP_MATH,
    "tensor_op_allow_conversion": MathType.TENSOR_OP_MATH_ALLOW_CONVERSION,
    "fma": MathType.FMA_MATH,
}
MATH_NAMES = {int(value): name for name, value in _MATH.items()}


class Kind(NamedTuple):
    """One kind of descriptor: its spec, its C names, and the functions between spec and native object."""

    spec: type
    pointer: Any
    create: str
    destroy: str
    write: Callable[[Any, Any, Any], None]
    read: Callable[[Any, Any], Any]


class Descriptor(Owned):
    """A native cuDNN descriptor of a spec.

    Make one, print it, ``read()`` it back from cuDNN, pass it to any function of ``ct.raw``, and ``close()``
    it or leave that to its last reference. A descriptor is never changed once made, so threads may share it.

    Parameters
    ----------
    spec
        The value to describe: :class:`TensorSpec`, :class:`FilterSpec`, :class:`ConvolutionSpec` or
        :class:`ActivationSpec`.

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
    ::

        with ct.TensorDescriptor(ct.TensorSpec.packed((8, 64, 28, 28), "float16", "nhwc")) as descriptor:
            ct.raw.cudnnGetTensorSizeInBytes(descriptor, ctypes.byref(ctypes.c_size_t()))
    """

    __slots__ = ("spec",)

    kind: ClassVar[Kind]

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
        return self.kind.read(_lib.load(), self)

    def __repr__(self) -> str:
        return f"<{'closed ' if self.closed else ''}{type(self).__name__} {self.spec}>"


@lru_cache(maxsize=4096)
def _cached(cls: Any, spec: Any, library: Any) -> Any:  # noqa: ARG001 - part of the key
    return cls(spec)


# --- tensor ------------------------------------------------------------------------------------------------


def _write_tensor(library: Any, descriptor: Any, spec: TensorSpec) -> None:
    axes = _same_length(shape=spec.shape, strides=spec.strides)
    dims, strides = _ints(spec.shape, "shape"), _ints(spec.strides, "strides")
    library.cudnnSetTensorNdDescriptor(descriptor, as_dtype(spec.dtype).code, axes, dims, strides)


def _read_tensor(library: Any, descriptor: Any) -> TensorSpec:
    code, axes = ctypes.c_int(), ctypes.c_int()
    dims, strides = _int_array(MAX_AXES), _int_array(MAX_AXES)
    library.cudnnGetTensorNdDescriptor(
        descriptor, MAX_AXES, ctypes.byref(code), ctypes.byref(axes), dims, strides
    )
    return TensorSpec(tuple(dims[: axes.value]), tuple(strides[: axes.value]), _DTYPE_NAMES[code.value])


# --- filter ------------------------------------------------------------------------------------------------


def _write_filter(library: Any, descriptor: Any, spec: FilterSpec) -> None:
    # The lengths are K, C, window in this order for both formats; only the format says how they lie.
    dims = _ints(spec.shape, "shape")
    code, form = as_dtype(spec.dtype).code, _FORMATS[choice(spec.layout, LAYOUTS, "layout")]
    library.cudnnSetFilterNdDescriptor(descriptor, code, form, len(spec.shape), dims)


def _read_filter(library: Any, descriptor: Any) -> FilterSpec:
    code, form, axes = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    dims = _int_array(MAX_AXES)
    library.cudnnGetFilterNdDescriptor(
        descriptor, MAX_AXES, ctypes.byref(code), ctypes.byref(form), ctypes.byref(axes), dims
    )
    layout = TensorFormat(form.value).name.lower()
    return FilterSpec(tuple(dims[: axes.value]), _DTYPE_NAMES[code.value], layout)


# --- convolution -------------------------------------------------------------------------------------------


def _write_convolution(library: Any, descriptor: Any, spec: ConvolutionSpec) -> None:
    axes = _same_length(padding=spec.padding, stride=spec.stride, dilation=spec.dilation)
    library.cudnnSetConvolutionNdDescriptor(
        descriptor,
        axes,
        _ints(spec.padding, "padding"),
        _ints(spec.stride, "stride"),
        _ints(spec.dilation, "dilation"),
        ConvolutionMode[choice(spec.mode, MODES, "mode").upper()],
        as_dtype(spec.compute).code,
    )
    (groups,) = _ints((spec.groups,), "groups")
    library.cudnnSetConvolutionGroupCount(descriptor, groups)
    library.cudnnSetConvolutionMathType(descriptor, _MATH[choice(spec.math, tuple(_MATH), "math")])


def _read_convolution(library: Any, descriptor: Any) -> ConvolutionSpec:
    axes, mode, code, groups, math = (ctypes.c_int() for _ in range(5))
    padding, stride, dilation = (_int_array(MAX_AXES) for _ in range(3))
    library.cudnnGetConvolutionNdDescriptor(
        descriptor,
        MAX_AXES - 2,  # cuDNN refuses to be asked for more than its spatial axes
        ctypes.byref(axes),
        padding,
        stride,
        dilation,
        ctypes.byref(mode),
        ctypes.byref(code),
    )
    library.cudnnGetConvolutionGroupCount(descriptor, ctypes.byref(groups))
    library.cudnnGetConvolutionMathType(descriptor, ctypes.byref(math))
    return ConvolutionSpec(
        padding=tuple(padding[: axes.value]),
        stride=tuple(stride[: axes.value]),
        dilation=tuple(dilation[: axes.value]),
        groups=groups.value,
        mode=ConvolutionMode(mode.value).name.lower(),
        compute=_DTYPE_NAMES[code.value],
        math=MATH_NAMES[math.value],
    )


# --- activation --------------------------------------------------------------------------------------------

_ACTIVATIONS = {member.name.lower(): int(member) for member in ActivationMode}
_ACTIVATION_NAMES = {code: name for name, code in _ACTIVATIONS.items()}


def _write_activation(library: Any, descriptor: Any, spec: ActivationSpec) -> None:
    mode = choice(spec.mode, tuple(_ACTIVATIONS), "activation")
    library.cudnnSetActivationDescriptor(
        descriptor, _ACTIVATIONS[mode], NanPropagation(int(spec.propagate_nan)), spec.coef
    )
    if mode == "swish":
        library.cudnnSetActivationDescriptorSwishBeta(descriptor, spec.coef)


def _read_activation(library: Any, descriptor: Any) -> ActivationSpec:
    mode, nan, coef = ctypes.c_int(), ctypes.c_int(), ctypes.c_double()
    library.cudnnGetActivationDescriptor(
        descriptor, ctypes.byref(mode), ctypes.byref(nan), ctypes.byref(coef)
    )
    name = _ACTIVATION_NAMES[mode.value]
    if name == "swish":
        library.cudnnGetActivationDescriptorSwishBeta(descriptor, ctypes.byref(coef))
    return ActivationSpec(name, coef.value, nan.value == NanPropagation.PROPAGATE_NAN)


# --- the table ---------------------------------------------------------------------------------------------


class TensorDescriptor(Descriptor):
    """``cudnnTensorDescriptor_t`` of a :class:`TensorSpec`, by ``cudnnSetTensorNdDescriptor``."""

    __slots__ = ()
    kind = Kind(
        TensorSpec,
        types.cudnnTensorDescriptor_t,
        "cudnnCreateTensorDescriptor",
        "cudnnDestroyTensorDescriptor",
        _write_tensor,
        _read_tensor,
    )


class FilterDescriptor(Descriptor):
    """``cudnnFilterDescriptor_t`` of a :class:`FilterSpec`, by ``cudnnSetFilterNdDescriptor``."""

    __slots__ = ()
    kind = Kind(
        FilterSpec,
        types.cudnnFilterDescriptor_t,
        "cudnnCreateFilterDescriptor",
        "cudnnDestroyFilterDescriptor",
        _write_filter,
        _read_filter,
    )


class ConvolutionDescriptor(Descriptor):
    """``cudnnConvolutionDescriptor_t`` of a :class:`ConvolutionSpec`, by ``cudnnSetConvolutionNdDescriptor``.

    Groups and math type are part of the spec.
    """

    __slots__ = ()
    kind = Kind(
        ConvolutionSpec,
        types.cudnnConvolutionDescriptor_t,
        "cudnnCreateConvolutionDescriptor",
        "cudnnDestroyConvolutionDescriptor",
        _write_convolution,
        _read_convolution,
    )


class ActivationDescriptor(Descriptor):
    """``cudnnActivationDescriptor_t`` of an :class:`ActivationSpec`, by ``cudnnSetActivationDescriptor``."""

    __slots__ = ()
    kind = Kind(
        ActivationSpec,
        types.cudnnActivationDescriptor_t,
        "cudnnCreateActivationDescriptor",
        "cudnnDestroyActivationDescriptor",
        _write_activation,
        _read_activation,
    )


def _ints(values: Sequence[int], name: str) -> Any:
    """A C array of ints. ctypes would cut a number that is too large; this raises."""
    for value in values:
        if not -_INT_MAX <= value <= _INT_MAX:
            raise ValueError(f"{name} {tuple(values)}: cuDNN's descriptors hold 32-bit numbers, got {value}")
    return (ctypes.c_int * len(values))(*values)


def _same_length(**parts: Sequence[int]) -> int:
    """The number of axes that all parts of a spec agree on: C would read past the end of a shorter one."""
    lengths = {name: len(part) for name, part in parts.items()}
    if len(set(lengths.values())) != 1:
        text = ", ".join(f"{name} has {n}" for name, n in lengths.items())
        raise ValueError(f"a spec needs one number per axis in each part; {text}")
    if lengths[next(iter(lengths))] > MAX_AXES:
        raise ValueError(f"cuDNN's descriptors have at most {MAX_AXES} axes; {lengths}")
    return lengths[next(iter(lengths))]


def _int_array(length: int) -> Any:
    return (ctypes.c_int * length)()
