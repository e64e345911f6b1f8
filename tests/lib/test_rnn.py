"""Rules of recurrent networks against the real library, without a GPU."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct._bindings import enums, types
from cudnn_ct._lib import load
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.ops.rnn.plans import RNNDataDescriptor, RNNDescriptor
from cudnn_ct.shapes.rnn import (
    RNN_ALGOS,
    RNN_BIASES,
    RNN_DIRECTIONS,
    RNN_INPUT_MODES,
    RNN_MODES,
    RNNSpec,
    rnn_spec,
)
from cudnn_ct.shapes.rnn_params import rnn_parameters, rnn_weight_size
from cudnn_ct.shapes.rnn_problem import RNNDataSpec
from cudnn_ct.shapes.sequences import RNN_LAYOUTS, check_lengths, packed_for_cudnn
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


def networks() -> list[RNNSpec]:
    modes = [(mode, 0) for mode in RNN_MODES] + [("lstm", 3)]
    products = itertools.product(
        modes, RNN_DIRECTIONS, RNN_INPUT_MODES, RNN_BIASES, (1, 3), ("float32", "float16", "float64")
    )
    return [
        rnn_spec(
            mode, 5 if skip == "skip" else 7, 5, layers,
            direction=direction, input_mode=skip, bias=bias, projection_size=projection, dtype=dtype,
        )
        for (mode, projection), direction, skip, bias, layers, dtype in products
    ]  # fmt: skip


def ask(specs: list[RNNSpec]) -> list[Any]:
    environment = {**os.environ, "PYTHONPATH": str(Path(ct.__file__).parents[1])}
    command = [sys.executable, "-c", CHILD]
    done = subprocess.run(
        command, input=json.dumps(specs), capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout)
    return answers


def persistent_networks() -> list[RNNSpec]:
    """Networks that persistent kernels support: both biases, no projection; float64 in one of them."""
    return [
        spec._replace(algo=algo)
        for spec in networks()
        for algo in RNN_ALGOS[1:]
        if spec.bias == "double_bias" and not spec.projection_size
        if spec.dtype != "float64" or algo == "persist_dynamic"
    ]


@pytest.mark.parametrize("specs", [networks(), persistent_networks()], ids=["standard", "persistent"])
def test_parameters_are_where_the_table_says(specs: list[RNNSpec]) -> None:
    for spec, (size, found) in zip(specs, ask(specs), strict=True):
        itemsize = as_dtype(spec.dtype).itemsize
        assert size == rnn_weight_size(spec) * itemsize, str(spec)
        wanted = [
            # cuDNN describes a matrix as (1, rows, columns) and a bias as (1, rows, 1)
            [
                r.pseudo_layer,
                r.lin_layer_id,
                r.kind,
                [1, *r.shape, *[1] * (r.kind == "bias")],
                r.offset * itemsize,
            ]
            for r in rnn_parameters(spec)
        ]
        assert found == wanted, str(spec)


def takes(layout: enums.RNNDataLayout, lengths: list[int], steps: int) -> bool:
    """Whether cuDNN describes data of a layout with these lengths."""
    data, padding = types.cudnnRNNDataDescriptor_t(), ctypes.c_float(0)
    ct.raw.cudnnCreateRNNDataDescriptor(ctypes.byref(data))
    array = (ctypes.c_int * len(lengths))(*lengths)
    try:
        ct.raw.cudnnSetRNNDataDescriptor(
            data, 0, layout, steps, len(lengths), 5, array, ctypes.addressof(padding)
        )
    except ct.BadParamError:
        return False
    finally:
        ct.raw.cudnnDestroyRNNDataDescriptor(data)
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
    for layout in (enums.RNNDataLayout.SEQ_MAJOR_UNPACKED, enums.RNNDataLayout.BATCH_MAJOR_UNPACKED):
        assert takes(layout, lengths, steps) == good
    packed = takes(enums.RNNDataLayout.SEQ_MAJOR_PACKED, lengths, max(1, *lengths))
    assert packed == packed_for_cudnn(lengths)


FLOATS = st.sampled_from(("float16", "bfloat16", "float32", "float64"))
BFLOAT16_FROM = 91900  # in networks: 9.10.2 refuses it


@given(spec=FLOATS.flatmap(lambda dtype: rnn_specs(dtype=dtype)))
def test_networks_read_back(cudnn: int, spec: RNNSpec) -> None:
    assume(cudnn >= BFLOAT16_FROM or spec.dtype != "bfloat16")
    for padded in (False, True):
        network = RNNDescriptor(spec, padded=padded)
        dropout, flags = types.cudnnDropoutDescriptor_t(), ctypes.c_uint32()
        fields = network.kind.setters[0].get(load(), network, ctypes.byref(dropout), ctypes.byref(flags))
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
    fields = data.kind.setters[0].get(load(), data, len(lengths), read, ctypes.byref(held))
    assert fields == {name: getattr(spec, name) for name in fields}
    assert list(read) == lengths
    with np.errstate(all="ignore"):
        assert bytes(held).startswith(np.asarray(padding).astype(as_dtype(dtype).numpy).tobytes())


def test_lengths_that_are_not_as_many_as_sequences() -> None:
    with pytest.raises(ValueError, match="there are 2 lengths; the batch has 3 sequences"):
        RNNDataDescriptor(RNNDataSpec("float32", "packed", 5, 3, 7, (2, 1)))
