"""Descriptors of recurrent networks and of the sequences that they take."""

from __future__ import annotations

import ctypes
from math import copysign
from typing import Any

from .._bindings import types
from .._bindings.enums import (
    DirectionMode,
    MathType,
    RNNAlgo,
    RNNBiasMode,
    RNNClipMode,
    RNNDataLayout,
    RNNInputMode,
    RNNMode,
)
from ..dtypes import DTYPES, as_dtype
from ..shapes.rnn import RNNSpec
from ..shapes.rnn_problem import RNNDataSpec
from ..shapes.sequences import RNN_LAYOUTS
from .base import DTYPE_NAMES, Descriptor, DescriptorType, int_array, ints

__all__ = ["RNNDataDescriptor", "RNNDescriptor"]

PADDED_IO_ENABLED = 1  # CUDNN_RNN_PADDED_IO_ENABLED, without which cuDNN takes packed data only


def _write_network(library: Any, descriptor: Any, spec: RNNSpec) -> None:
    library.cudnnSetRNNDescriptor_v8(
        descriptor,
        RNNAlgo[spec.algo.upper()],
        RNNMode[spec.mode.upper()],
        RNNBiasMode[spec.bias.upper()],
        DirectionMode[spec.direction.upper()],
        RNNInputMode[f"{spec.input_mode}_input".upper()],
        as_dtype(spec.dtype).code,
        as_dtype(spec.compute).code,
        MathType[f"{spec.math}_MATH".upper()],
        spec.input_size,
        spec.hidden_size,
        spec.output_size,  # without a projection, cuDNN wants the hidden size
        spec.num_layers,
        descriptor.dropout,
        PADDED_IO_ENABLED if descriptor.padded else 0,
    )
    if spec.clip is not None:
        library.cudnnRNNSetClip_v9(descriptor, RNNClipMode.MINMAX, *spec.clip)


def _read_network(library: Any, descriptor: Any) -> RNNSpec:
    codes, sizes = [ctypes.c_int() for _ in range(8)], [ctypes.c_int32() for _ in range(4)]
    dropout, flags = types.cudnnDropoutDescriptor_t(), ctypes.c_uint32()
    parts: list[Any] = [*codes, *sizes, dropout, flags]
    library.cudnnGetRNNDescriptor_v8(descriptor, *[ctypes.byref(part) for part in parts])
    algo, mode, bias, direction, input_mode, dtype, compute, math = (code.value for code in codes)
    inputs, hidden, projection, layers = (size.value for size in sizes)
    clipping, low, high = ctypes.c_int(), ctypes.c_double(), ctypes.c_double()
    library.cudnnRNNGetClip_v9(descriptor, ctypes.byref(clipping), ctypes.byref(low), ctypes.byref(high))
    return RNNSpec(
        mode=RNNMode(mode).name.lower(),
        input_size=inputs,
        hidden_size=hidden,
        num_layers=layers,
        direction=DirectionMode(direction).name.lower(),
        input_mode=RNNInputMode(input_mode).name.lower().removesuffix("_input"),
        bias=RNNBiasMode(bias).name.lower(),
        projection_size=0 if projection == hidden else projection,
        dropout=descriptor.spec.dropout,  # which only a handle could tell
        dtype=DTYPE_NAMES[dtype],
        compute=DTYPE_NAMES[compute],
        math=MathType(math).name.lower().removesuffix("_math"),
        algo=RNNAlgo(algo).name.lower(),
        clip=(low.value, high.value) if clipping.value == RNNClipMode.MINMAX else None,
    )


class RNNDescriptor(Descriptor):
    """``cudnnRNNDescriptor_t`` of an :class:`RNNSpec`, by ``cudnnSetRNNDescriptor_v8``.

    ``padded`` says whether it takes data that is not packed. ``dropout`` is a dropout descriptor, which lives
    as long as this.
    """

    __slots__ = ("dropout", "padded")
    kind = DescriptorType(
        RNNSpec,
        types.cudnnRNNDescriptor_t,
        "cudnnCreateRNNDescriptor",
        "cudnnDestroyRNNDescriptor",
        _write_network,
        _read_network,
    )

    def __init__(self, spec: RNNSpec, *, padded: bool = True, dropout: Any = None) -> None:
        self.padded = padded
        self.dropout = dropout
        super().__init__(spec)


_LAYOUT_CODES = dict(
    zip(
        RNN_LAYOUTS,
        (
            RNNDataLayout.SEQ_MAJOR_UNPACKED,
            RNNDataLayout.BATCH_MAJOR_UNPACKED,
            RNNDataLayout.SEQ_MAJOR_PACKED,
        ),
        strict=True,
    )
)
_LAYOUT_NAMES = {int(code): name for name, code in _LAYOUT_CODES.items()}


def _write_data(library: Any, descriptor: Any, spec: RNNDataSpec) -> None:
    steps, batch, size = ints((spec.steps, spec.batch, spec.size), "steps, batch and size")
    if len(spec.lengths) != spec.batch:  # C would read past the end
        raise ValueError(f"there are {len(spec.lengths)} lengths; the batch has {spec.batch} sequences")
    library.cudnnSetRNNDataDescriptor(
        descriptor,
        as_dtype(spec.dtype).code,
        _LAYOUT_CODES[spec.layout],
        steps,
        batch,
        size,
        ints(spec.lengths, "lengths"),
        _element(spec.dtype, spec.padding),
    )


def _read_data(library: Any, descriptor: Any) -> RNNDataSpec:
    dtype, layout, steps, batch, size = numbers = [ctypes.c_int() for _ in range(5)]
    room = descriptor.spec.batch
    lengths, padding = int_array(room), (ctypes.c_char * 8)()
    library.cudnnGetRNNDataDescriptor(
        descriptor, *map(ctypes.byref, numbers), room, lengths, ctypes.byref(padding)
    )
    return RNNDataSpec(
        DTYPE_NAMES[dtype.value],
        _LAYOUT_NAMES[layout.value],
        steps.value,
        batch.value,
        size.value,
        tuple(lengths),
        _number(DTYPE_NAMES[dtype.value], bytes(padding)),
    )


class RNNDataDescriptor(Descriptor):
    """``cudnnRNNDataDescriptor_t`` of an :class:`RNNDataSpec`, by ``cudnnSetRNNDataDescriptor``."""

    __slots__ = ()
    kind = DescriptorType(
        RNNDataSpec,
        types.cudnnRNNDataDescriptor_t,
        "cudnnCreateRNNDataDescriptor",
        "cudnnDestroyRNNDataDescriptor",
        _write_data,
        _read_data,
    )


def _element(dtype: str, value: float) -> Any:
    """A pointer to a number of a dtype; the descriptor copies as many bytes as the dtype has."""
    if value == 0 and copysign(1, value) > 0:
        return ctypes.byref((ctypes.c_char * 8)())
    import numpy as np

    with np.errstate(all="ignore"):
        held = np.asarray(value).astype(DTYPES[dtype].numpy).tobytes()
    return ctypes.byref(ctypes.create_string_buffer(held, len(held)))


def _number(dtype: str, held: bytes) -> float:
    import numpy as np

    return float(np.frombuffer(held[: DTYPES[dtype].itemsize], DTYPES[dtype].numpy)[0])
