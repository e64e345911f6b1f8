"""Descriptors of tensors and filters."""

from __future__ import annotations

import ctypes
from typing import Any

from .._bindings import types
from .._bindings.enums import TensorFormat
from ..dtypes import as_dtype
from ..shapes.parse import as_choice
from ..shapes.specs import LAYOUTS, FilterSpec, TensorSpec
from .base import DTYPE_NAMES, MAX_AXES, Descriptor, DescriptorType, int_array, ints, same_length

__all__ = ["FilterDescriptor", "TensorDescriptor"]

_FORMATS = {"nchw": TensorFormat.NCHW, "nhwc": TensorFormat.NHWC}


def _write_tensor(library: Any, descriptor: Any, spec: TensorSpec) -> None:
    axes = same_length(shape=spec.shape, strides=spec.strides)
    dims, strides = ints(spec.shape, "shape"), ints(spec.strides, "strides")
    library.cudnnSetTensorNdDescriptor(descriptor, as_dtype(spec.dtype).code, axes, dims, strides)


def _read_tensor(library: Any, descriptor: Any) -> TensorSpec:
    code, axes = ctypes.c_int(), ctypes.c_int()
    dims, strides = int_array(MAX_AXES), int_array(MAX_AXES)
    library.cudnnGetTensorNdDescriptor(
        descriptor, MAX_AXES, ctypes.byref(code), ctypes.byref(axes), dims, strides
    )
    return TensorSpec(tuple(dims[: axes.value]), tuple(strides[: axes.value]), DTYPE_NAMES[code.value])


class TensorDescriptor(Descriptor):
    """``cudnnTensorDescriptor_t`` of a :class:`TensorSpec`, by ``cudnnSetTensorNdDescriptor``."""

    __slots__ = ()
    kind = DescriptorType(
        TensorSpec,
        types.cudnnTensorDescriptor_t,
        "cudnnCreateTensorDescriptor",
        "cudnnDestroyTensorDescriptor",
        _write_tensor,
        _read_tensor,
    )


def _write_filter(library: Any, descriptor: Any, spec: FilterSpec) -> None:
    # The lengths are K, C, window in this order for both formats; only the format says how they lie.
    dims = ints(spec.shape, "shape")
    code, form = as_dtype(spec.dtype).code, _FORMATS[as_choice(spec.layout, LAYOUTS, "layout")]
    library.cudnnSetFilterNdDescriptor(descriptor, code, form, len(spec.shape), dims)


def _read_filter(library: Any, descriptor: Any) -> FilterSpec:
    code, form, axes = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    dims = int_array(MAX_AXES)
    library.cudnnGetFilterNdDescriptor(
        descriptor, MAX_AXES, ctypes.byref(code), ctypes.byref(form), ctypes.byref(axes), dims
    )
    layout = TensorFormat(form.value).name.lower()
    return FilterSpec(tuple(dims[: axes.value]), DTYPE_NAMES[code.value], layout)


class FilterDescriptor(Descriptor):
    """``cudnnFilterDescriptor_t`` of a :class:`FilterSpec`, by ``cudnnSetFilterNdDescriptor``."""

    __slots__ = ()
    kind = DescriptorType(
        FilterSpec,
        types.cudnnFilterDescriptor_t,
        "cudnnCreateFilterDescriptor",
        "cudnnDestroyFilterDescriptor",
        _write_filter,
        _read_filter,
    )
