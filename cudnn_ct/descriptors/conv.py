"""The descriptor of a convolution."""

from __future__ import annotations

import ctypes
from typing import Any

from .._bindings import types
from .._bindings.enums import ConvolutionMode, MathType
from ..dtypes import as_dtype
from ..shapes.conv import MODES
from ..shapes.parse import as_choice
from ..shapes.specs import ConvolutionSpec
from .base import DTYPE_NAMES, MAX_AXES, Descriptor, DescriptorType, int_array, ints, same_length

__all__ = ["MATH_NAMES", "ConvolutionDescriptor"]

_MATH = {
    "default": MathType.DEFAULT_MATH,
    "tensor_op": MathType.TENSOR_OP_MATH,
    "tensor_op_allow_conversion": MathType.TENSOR_OP_MATH_ALLOW_CONVERSION,
    "fma": MathType.FMA_MATH,
}
MATH_NAMES = {int(value): name for name, value in _MATH.items()}


def _write_convolution(library: Any, descriptor: Any, spec: ConvolutionSpec) -> None:
    axes = same_length(padding=spec.padding, stride=spec.stride, dilation=spec.dilation)
    library.cudnnSetConvolutionNdDescriptor(
        descriptor,
        axes,
        ints(spec.padding, "padding"),
        ints(spec.stride, "stride"),
        ints(spec.dilation, "dilation"),
        ConvolutionMode[as_choice(spec.mode, MODES, "mode").upper()],
        as_dtype(spec.compute).code,
    )
    (groups,) = ints((spec.groups,), "groups")
    library.cudnnSetConvolutionGroupCount(descriptor, groups)
    library.cudnnSetConvolutionMathType(descriptor, _MATH[as_choice(spec.math, tuple(_MATH), "math")])


def _read_convolution(library: Any, descriptor: Any) -> ConvolutionSpec:
    axes, mode, code, groups, math = (ctypes.c_int() for _ in range(5))
    padding, stride, dilation = (int_array(MAX_AXES) for _ in range(3))
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
        compute=DTYPE_NAMES[code.value],
        math=MATH_NAMES[math.value],
    )


class ConvolutionDescriptor(Descriptor):
    """``cudnnConvolutionDescriptor_t`` of a :class:`ConvolutionSpec`, by ``cudnnSetConvolutionNdDescriptor``.

    Groups and math type are part of the spec.
    """

    __slots__ = ()
    kind = DescriptorType(
        ConvolutionSpec,
        types.cudnnConvolutionDescriptor_t,
        "cudnnCreateConvolutionDescriptor",
        "cudnnDestroyConvolutionDescriptor",
        _write_convolution,
        _read_convolution,
    )
