"""Descriptors of recurrent networks and of their sequences, which take values that specs do not hold."""

from __future__ import annotations

import ctypes
from math import copysign
from typing import Any

from ..._bindings import enums
from ...descriptors import Descriptor, DescriptorType, Setter, choice, dtype, integer, ints, members
from ...dtypes import DTYPES
from ...shapes.rnn import RNN_ALGOS, RNNSpec
from ...shapes.rnn_problem import RNNDataSpec

__all__ = ["RNNDataDescriptor", "RNNDescriptor"]

PADDED_IO_ENABLED = 1  # CUDNN_RNN_PADDED_IO_ENABLED, without which cuDNN takes packed data only

_NETWORK = Setter(
    "cudnnSetRNNDescriptor_v8",
    choice("algo", members(enums.RNNAlgo, *RNN_ALGOS)),
    choice("mode", members(enums.RNNMode)),
    choice("bias", members(enums.RNNBiasMode)),
    choice("direction", members(enums.DirectionMode)),
    choice("input_mode", members(enums.RNNInputMode, without="_input")),
    dtype("dtype"),
    dtype("compute"),
    choice("math", members(enums.MathType, without="_math")),
    integer("input_size"),
    integer("hidden_size"),
    integer("output_size"),  # cuDNN requires the hidden size here if the network has no projection
    integer("num_layers"),
)
_SEQUENCES = Setter(
    "cudnnSetRNNDataDescriptor",
    dtype("dtype"),
    choice(
        "layout",
        {
            "sequence_major": enums.RNNDataLayout.SEQ_MAJOR_UNPACKED,
            "batch_major": enums.RNNDataLayout.BATCH_MAJOR_UNPACKED,
            "packed": enums.RNNDataLayout.SEQ_MAJOR_PACKED,
        },
    ),
    integer("steps"),
    integer("batch"),
    integer("size"),
)


class RNNDescriptor(Descriptor[RNNSpec]):
    """``cudnnRNNDescriptor_t`` of an :class:`RNNSpec`, which keeps ``dropout`` alive."""

    __slots__ = ("dropout", "padded")
    kind = DescriptorType(RNNSpec, _NETWORK, readable=False)

    def __init__(self, spec: RNNSpec, *, padded: bool = True, dropout: Any = None) -> None:
        self.padded = padded
        self.dropout = dropout
        super().__init__(spec)

    def _set(self, library: Any) -> None:
        _NETWORK.set(library, self, self.dropout, PADDED_IO_ENABLED if self.padded else 0)
        if self.spec.clip is not None:
            library.cudnnRNNSetClip_v9(self, enums.RNNClipMode.MINMAX, *self.spec.clip)


class RNNDataDescriptor(Descriptor[RNNDataSpec]):
    """``cudnnRNNDataDescriptor_t`` of an :class:`RNNDataSpec`, by ``cudnnSetRNNDataDescriptor``."""

    __slots__ = ()
    kind = DescriptorType(RNNDataSpec, _SEQUENCES, readable=False)

    def _set(self, library: Any) -> None:
        spec = self.spec
        if len(spec.lengths) != spec.batch:  # C would read past the end
            raise ValueError(f"there are {len(spec.lengths)} lengths; the batch has {spec.batch} sequences")
        _SEQUENCES.set(library, self, ints(spec.lengths, "lengths"), _element(spec.dtype, spec.padding))


def _element(dtype: str, value: float) -> Any:
    """Return a pointer to a number of a dtype, which the descriptor copies."""
    if value == 0 and copysign(1, value) > 0:
        return ctypes.byref((ctypes.c_char * 8)())
    import numpy as np

    with np.errstate(all="ignore"):
        held = np.asarray(value).astype(DTYPES[dtype].numpy).tobytes()
    return ctypes.byref(ctypes.create_string_buffer(held, len(held)))
