"""Rules of recurrent networks against the real library, without a GPU."""

from __future__ import annotations

import ctypes
import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct._bindings import types
from cudnn_ct._lib import load
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.ops.rnn.plans import _NETWORK, _SEQUENCES, RNNDataDescriptor, RNNDescriptor
from cudnn_ct.shapes.rnn import (
    RNN_ALGOS,
    RNN_BIASES,
    RNN_DIRECTIONS,
    RNN_INPUT_MODES,
    RNN_MODES,
    RNNSpec,
    rnn_parameters,
    rnn_spec,
    rnn_weight_size,
)
from cudnn_ct.shapes.sequences import RNN_LAYOUTS, RNNDataSpec, check_lengths, packed_for_cudnn
from tests.processes import answer_of
from tests.rnn_cases import rnn_specs

pytestmark = pytest.mark.usefixtures("cudnn")

# The two functions that return the places of parameters require a handle, but do not read it. Without a GPU
# they get zeros for one, in a child process, which may crash should that ever change.
CHILD = """
import ctypes, json, sys
import cudnn_ct as ct
from cudnn_ct._bindings import types
from cudnn_ct.ops.rnn.plans import RNNDescriptor
from cudnn_ct.shapes.rnn import RNNSpec

BASE, MOST = 1 << 40, 9  # an address that nothing is read from; linLayerIDs to query

def made():
    descriptor = types.cudnnTensorDescriptor_t()
    ct.raw.cudnnCreateTensorDescriptor(ctypes.byref(descriptor))
    return descriptor

matrix, bias = made(), made()
zeros = ctypes.create_string_buffer(1 << 20)
handle = ctypes.cast(zeros, types.cudnnHandle_t)

def shape(tensor):
    dtype, rank, dims, strides = ctypes.c_int(), ctypes.c_int(), (ctypes.c_int * 8)(), (ctypes.c_int * 8)()
    ct.raw.cudnnGetTensorNdDescriptor(tensor, 8, ctypes.byref(dtype), ctypes.byref(rank), dims, strides)
    return list(dims[: rank.value])

def parameters(spec):
    size, found, network = ctypes.c_size_t(), [], RNNDescriptor(spec, padded=False)
    ct.raw.cudnnGetRNNWeightSpaceSize(handle, network, ctypes.byref(size))
    for pseudo_layer in range(spec.pseudo_layers):
        for i in range(MOST):
            m, b = ctypes.c_void_p(), ctypes.c_void_p()
            place = (handle, network, pseudo_layer, size.value, BASE, i)
            try:
                ct.raw.cudnnGetRNNWeightParams(*place, matrix, ctypes.byref(m), bias, ctypes.byref(b))
            except ct.BadParamError:
                continue  # the linLayerID does not exist
            for kind, pointer, tensor in (("matrix", m, matrix), ("bias", b, bias)):
                if pointer.value:
                    found.append([pseudo_layer, i, kind, shape(tensor), pointer.value - BASE])
    return size.value, found

print(json.dumps([parameters(RNNSpec(*fields)) for fields in json.load(sys.stdin)]))
"""


def networks(algo: str) -> list[RNNSpec]:
    """Networks that an algorithm supports: persistent ones have both biases and no projection."""
    persistent = algo != "standard"
    modes = [(mode, 0) for mode in RNN_MODES] + [("lstm", 3)] * (not persistent)
    biases = ("double_bias",) if persistent else RNN_BIASES
    dtypes = ("float32", "float16", "float64")[: 3 if algo in ("standard", "persist_dynamic") else 2]
    products = itertools.product(modes, RNN_DIRECTIONS, RNN_INPUT_MODES, biases, (1, 3), dtypes)
    return [
        rnn_spec(
            mode, 5 if skip == "skip" else 7, 5, layers, direction=direction, input_mode=skip,
            bias=bias, projection_size=projection, dtype=dtype, algo=algo,
        )
        for (mode, projection), direction, skip, bias, layers, dtype in products
    ]  # fmt: skip


def ask(specs: list[RNNSpec]) -> list[Any]:
    answers: list[Any] = answer_of(CHILD, stdin=json.dumps(specs))
    return answers


@pytest.mark.parametrize("algo", RNN_ALGOS)
def test_parameters_are_where_the_table_says(algo: str) -> None:
    specs = networks(algo)
    for spec, (size, found) in zip(specs, ask(specs), strict=True):
        itemsize = as_dtype(spec.dtype).itemsize
        assert size == rnn_weight_size(spec) * itemsize, str(spec)
        # cuDNN describes a matrix as (1, rows, columns) and a bias as (1, rows, 1).
        wanted = [
            [r.pseudo_layer, r.lin_layer_id, r.kind, [1, *r.shape, 1][:3], r.offset * itemsize]
            for r in rnn_parameters(spec)
        ]
        assert found == wanted, str(spec)


def takes(layout: str, lengths: list[int], steps: int) -> bool:
    """Whether cuDNN describes data of a layout with these lengths."""
    try:
        RNNDataDescriptor(RNNDataSpec("float32", layout, steps, len(lengths), 5, tuple(lengths)))
    except ct.BadParamError:
        return False
    return True


@given(lengths=st.lists(st.integers(-1, 4), min_size=1, max_size=4), steps=st.integers(1, 4))
@example(lengths=[0, 0], steps=1)
@example(lengths=[3, 3, 1], steps=3)
def test_lengths_are_taken_as_cudnn_takes_them(cudnn: int, lengths: list[int], steps: int) -> None:
    # 9.1.0 takes no sequence without a step, and packed ones in any order; 9.10.2 is as those after it.
    assume(cudnn >= 91002 or (all(lengths) and lengths == sorted(lengths, reverse=True)))
    try:
        good = check_lengths(lengths, steps, len(lengths)) == tuple(lengths)
    except ValueError:
        good = False
    for layout in ("sequence_major", "batch_major"):
        assert takes(layout, lengths, steps) == good
    assert takes("packed", lengths, max(1, *lengths)) == packed_for_cudnn(lengths)


FLOATS = st.sampled_from(("float16", "bfloat16", "float32", "float64"))
BFLOAT16_FROM = 91900  # in networks: 9.10.2 refuses it


@given(spec=FLOATS.flatmap(lambda dtype: rnn_specs(dtype=dtype)))
def test_networks_read_back(cudnn: int, spec: RNNSpec) -> None:
    assume(cudnn >= BFLOAT16_FROM or spec.dtype != "bfloat16")
    for padded in (False, True):
        network = RNNDescriptor(spec, padded=padded)
        dropout, flags = types.cudnnDropoutDescriptor_t(), ctypes.c_uint32()
        fields = _NETWORK.get(load(), network, ctypes.byref(dropout), ctypes.byref(flags))
        assert fields == {name: getattr(spec, name) for name in fields}
        assert flags.value == padded
        mode, low, high = ctypes.c_int(), ctypes.c_double(), ctypes.c_double()
        ct.raw.cudnnRNNGetClip_v9(network, *map(ctypes.byref, (mode, low, high)))
        assert ((low.value, high.value) if mode.value else None) == spec.clip


@given(
    dtype=FLOATS,
    layout=st.sampled_from(RNN_LAYOUTS),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    padding=st.sampled_from((0.0, -1.5, 0.1, 3e38)),
)
def test_sequences_read_back(cudnn: int, dtype: str, layout: str, lengths: list[int], padding: float) -> None:
    """The descriptor holds the padding as an element of its dtype."""
    assume(cudnn >= BFLOAT16_FROM or dtype != "bfloat16")
    lengths = sorted(lengths, reverse=True)
    steps = lengths[0] if layout == "packed" else 5  # of packed data cuDNN wants the longest
    spec = RNNDataSpec(dtype, layout, steps, len(lengths), 7, tuple(lengths), padding)
    data, read, held = RNNDataDescriptor(spec), (ctypes.c_int * len(lengths))(), (ctypes.c_char * 8)()
    fields = _SEQUENCES.get(load(), data, len(lengths), read, ctypes.byref(held))
    assert fields == {name: getattr(spec, name) for name in fields}
    assert list(read) == lengths
    with np.errstate(all="ignore"):
        assert bytes(held).startswith(np.asarray(padding).astype(as_dtype(dtype).numpy).tobytes())
