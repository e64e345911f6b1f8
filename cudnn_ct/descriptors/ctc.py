"""The descriptor of a CTC loss."""

from __future__ import annotations

import ctypes
from typing import Any

from .._bindings import types
from .._bindings.enums import CTCGradMode, LossNormalizationMode
from ..dtypes import as_dtype
from ..shapes.ctc import CTC_NORMALIZATIONS, CTC_OUT_OF_BOUND
from ..shapes.parse import as_choice
from ..shapes.specs import CTCLossSpec
from .base import DTYPE_NAMES, Descriptor, DescriptorType, ints

__all__ = ["CTCLossDescriptor"]

_GRADIENTS = {"zero": CTCGradMode.ZERO_OOB_GRADIENTS, "skip": CTCGradMode.SKIP_OOB_GRADIENTS}
_GRADIENT_NAMES = {int(mode): name for name, mode in _GRADIENTS.items()}


def _write_ctc(library: Any, descriptor: Any, spec: CTCLossSpec) -> None:
    (most,) = ints((spec.most_labels,), "most_labels")
    library.cudnnSetCTCLossDescriptor_v9(
        descriptor,
        as_dtype(spec.compute).code,
        LossNormalizationMode[as_choice(spec.normalization, CTC_NORMALIZATIONS, "normalization").upper()],
        _GRADIENTS[as_choice(spec.out_of_bound, CTC_OUT_OF_BOUND, "out_of_bound")],
        most,
    )


def _read_ctc(library: Any, descriptor: Any) -> CTCLossSpec:
    code, normalization, gradients, most = (ctypes.c_int() for _ in range(4))
    library.cudnnGetCTCLossDescriptor_v9(
        descriptor, *map(ctypes.byref, (code, normalization, gradients, most))
    )
    return CTCLossSpec(
        LossNormalizationMode(normalization.value).name.lower(),
        _GRADIENT_NAMES[gradients.value],
        most.value,
        DTYPE_NAMES[code.value],
    )


class CTCLossDescriptor(Descriptor):
    """``cudnnCTCLossDescriptor_t`` of a :class:`CTCLossSpec`, by ``cudnnSetCTCLossDescriptor_v9``."""

    __slots__ = ()
    kind = DescriptorType(
        CTCLossSpec,
        types.cudnnCTCLossDescriptor_t,
        "cudnnCreateCTCLossDescriptor",
        "cudnnDestroyCTCLossDescriptor",
        _write_ctc,
        _read_ctc,
    )
