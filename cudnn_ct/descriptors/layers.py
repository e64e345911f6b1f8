"""Descriptors of what layers other than convolution take: their parameters as cuDNN holds them."""

from __future__ import annotations

import ctypes
from typing import Any

from .._bindings import types
from .._bindings.enums import (
    ActivationMode,
    IndicesType,
    NanPropagation,
    OpTensorOp,
    PoolingMode,
    ReduceTensorIndices,
    ReduceTensorOp,
    SamplerType,
)
from ..dtypes import as_dtype
from ..shapes.parse import as_choice
from ..shapes.specs import (
    ActivationSpec,
    LRNSpec,
    OpTensorSpec,
    PoolingSpec,
    ReduceSpec,
    SpatialTransformerSpec,
)
from .base import DTYPE_NAMES, MAX_AXES, Descriptor, DescriptorType, int_array, ints, same_length

__all__ = [
    "ActivationDescriptor",
    "LRNDescriptor",
    "OpTensorDescriptor",
    "PoolingDescriptor",
    "ReduceDescriptor",
    "SpatialTransformerDescriptor",
]


def _names(enum: Any) -> tuple[str, ...]:
    return tuple(member.name.lower() for member in enum)


_ACTIVATIONS = {member.name.lower(): int(member) for member in ActivationMode}
_ACTIVATION_NAMES = {code: name for name, code in _ACTIVATIONS.items()}


def _write_activation(library: Any, descriptor: Any, spec: ActivationSpec) -> None:
    mode = as_choice(spec.mode, tuple(_ACTIVATIONS), "activation")
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


class ActivationDescriptor(Descriptor):
    """``cudnnActivationDescriptor_t`` of an :class:`ActivationSpec`, by ``cudnnSetActivationDescriptor``."""

    __slots__ = ()
    kind = DescriptorType(
        ActivationSpec,
        types.cudnnActivationDescriptor_t,
        "cudnnCreateActivationDescriptor",
        "cudnnDestroyActivationDescriptor",
        _write_activation,
        _read_activation,
    )


def _write_pooling(library: Any, descriptor: Any, spec: PoolingSpec) -> None:
    axes = same_length(window=spec.window, padding=spec.padding, stride=spec.stride)
    library.cudnnSetPoolingNdDescriptor(
        descriptor,
        PoolingMode[as_choice(spec.mode, _names(PoolingMode), "mode").upper()],
        NanPropagation(int(spec.propagate_nan)),
        axes,
        ints(spec.window, "window"),
        ints(spec.padding, "padding"),
        ints(spec.stride, "stride"),
    )


def _read_pooling(library: Any, descriptor: Any) -> PoolingSpec:
    mode, nan, axes = (ctypes.c_int() for _ in range(3))
    window, padding, stride = (int_array(MAX_AXES) for _ in range(3))
    library.cudnnGetPoolingNdDescriptor(
        descriptor,
        MAX_AXES - 2,
        ctypes.byref(mode),
        ctypes.byref(nan),
        ctypes.byref(axes),
        window,
        padding,
        stride,
    )
    return PoolingSpec(
        window=tuple(window[: axes.value]),
        padding=tuple(padding[: axes.value]),
        stride=tuple(stride[: axes.value]),
        mode=PoolingMode(mode.value).name.lower(),
        propagate_nan=nan.value == NanPropagation.PROPAGATE_NAN,
    )


class PoolingDescriptor(Descriptor):
    """``cudnnPoolingDescriptor_t`` of a :class:`PoolingSpec`, by ``cudnnSetPoolingNdDescriptor``."""

    __slots__ = ()
    kind = DescriptorType(
        PoolingSpec,
        types.cudnnPoolingDescriptor_t,
        "cudnnCreatePoolingDescriptor",
        "cudnnDestroyPoolingDescriptor",
        _write_pooling,
        _read_pooling,
    )


def _write_lrn(library: Any, descriptor: Any, spec: LRNSpec) -> None:
    (n,) = ints((spec.n,), "n")
    library.cudnnSetLRNDescriptor(descriptor, n, spec.alpha, spec.beta, spec.k)


def _read_lrn(library: Any, descriptor: Any) -> LRNSpec:
    n, alpha, beta, k = ctypes.c_uint(), *(ctypes.c_double() for _ in range(3))
    library.cudnnGetLRNDescriptor(
        descriptor, ctypes.byref(n), ctypes.byref(alpha), ctypes.byref(beta), ctypes.byref(k)
    )
    return LRNSpec(n.value, alpha.value, beta.value, k.value)


class LRNDescriptor(Descriptor):
    """``cudnnLRNDescriptor_t`` of an :class:`LRNSpec`, by ``cudnnSetLRNDescriptor``."""

    __slots__ = ()
    kind = DescriptorType(
        LRNSpec,
        types.cudnnLRNDescriptor_t,
        "cudnnCreateLRNDescriptor",
        "cudnnDestroyLRNDescriptor",
        _write_lrn,
        _read_lrn,
    )


def _write_op_tensor(library: Any, descriptor: Any, spec: OpTensorSpec) -> None:
    library.cudnnSetOpTensorDescriptor(
        descriptor,
        OpTensorOp[as_choice(spec.op, _names(OpTensorOp), "op").upper()],
        as_dtype(spec.compute).code,
        NanPropagation(int(spec.propagate_nan)),
    )


def _read_op_tensor(library: Any, descriptor: Any) -> OpTensorSpec:
    op, code, nan = (ctypes.c_int() for _ in range(3))
    library.cudnnGetOpTensorDescriptor(descriptor, ctypes.byref(op), ctypes.byref(code), ctypes.byref(nan))
    return OpTensorSpec(
        OpTensorOp(op.value).name.lower(),
        DTYPE_NAMES[code.value],
        nan.value == NanPropagation.PROPAGATE_NAN,
    )


class OpTensorDescriptor(Descriptor):
    """``cudnnOpTensorDescriptor_t`` of an :class:`OpTensorSpec`, by ``cudnnSetOpTensorDescriptor``."""

    __slots__ = ()
    kind = DescriptorType(
        OpTensorSpec,
        types.cudnnOpTensorDescriptor_t,
        "cudnnCreateOpTensorDescriptor",
        "cudnnDestroyOpTensorDescriptor",
        _write_op_tensor,
        _read_op_tensor,
    )


def _write_reduce(library: Any, descriptor: Any, spec: ReduceSpec) -> None:
    library.cudnnSetReduceTensorDescriptor(
        descriptor,
        ReduceTensorOp[as_choice(spec.op, _names(ReduceTensorOp), "op").upper()],
        as_dtype(spec.compute).code,
        NanPropagation(int(spec.propagate_nan)),
        ReduceTensorIndices.FLATTENED_INDICES if spec.indices else ReduceTensorIndices.NO_INDICES,
        IndicesType.INDICES_32BIT,
    )


def _read_reduce(library: Any, descriptor: Any) -> ReduceSpec:
    op, code, nan, indices, width = (ctypes.c_int() for _ in range(5))
    library.cudnnGetReduceTensorDescriptor(descriptor, *map(ctypes.byref, (op, code, nan, indices, width)))
    return ReduceSpec(
        ReduceTensorOp(op.value).name.lower(),
        DTYPE_NAMES[code.value],
        nan.value == NanPropagation.PROPAGATE_NAN,
        indices.value == ReduceTensorIndices.FLATTENED_INDICES,
    )


class ReduceDescriptor(Descriptor):
    """``cudnnReduceTensorDescriptor_t`` of a :class:`ReduceSpec`, by ``cudnnSetReduceTensorDescriptor``.

    Indices have 32 bits, the only width that cuDNN computes.
    """

    __slots__ = ()
    kind = DescriptorType(
        ReduceSpec,
        types.cudnnReduceTensorDescriptor_t,
        "cudnnCreateReduceTensorDescriptor",
        "cudnnDestroyReduceTensorDescriptor",
        _write_reduce,
        _read_reduce,
    )


def _write_transformer(library: Any, descriptor: Any, spec: SpatialTransformerSpec) -> None:
    dims = ints(spec.shape, "shape")
    library.cudnnSetSpatialTransformerNdDescriptor(
        descriptor, SamplerType.BILINEAR, as_dtype(spec.dtype).code, len(spec.shape), dims
    )


class SpatialTransformerDescriptor(Descriptor):
    """``cudnnSpatialTransformerDescriptor_t`` of a :class:`SpatialTransformerSpec`.

    By ``cudnnSetSpatialTransformerNdDescriptor``. The shape is that of the result. cuDNN has no function that
    reads it back.
    """

    __slots__ = ()
    kind = DescriptorType(
        SpatialTransformerSpec,
        types.cudnnSpatialTransformerDescriptor_t,
        "cudnnCreateSpatialTransformerDescriptor",
        "cudnnDestroySpatialTransformerDescriptor",
        _write_transformer,
    )
