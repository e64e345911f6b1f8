"""Calls of public functions with hostile arguments, as lines of Python: the same for a seed and a number."""

from __future__ import annotations

import ast
import inspect
import random
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np

import cudnn_ct as ct
from cudnn_ct.cli.selftest_cases import cases

from .values import ARRAYS, FLOATS, INTEGERS, NAMES, POOLS, SEQUENCES, STREAMS, TEXTS

__all__ = ["OTHERS", "families", "line"]

SPECS = """
ct.ActivationSpec('relu')
ct.CTCLossSpec()
ct.ConvolutionSpec((1, 1), (1, 2), (1, 1))
ct.FilterSpec((4, 3, 2, 2), 'float16')
ct.LRNSpec()
ct.OpTensorSpec('add')
ct.PoolingSpec((2, 2), (0, 0), (1, 1), 'max')
ct.ReduceSpec('add')
ct.SpatialTransformerSpec((2, 3, 4, 5), 'float32')
ct.TensorSpec((2, 3, 4, 5), (60, 20, 5, 1), 'float32')
""".strip().splitlines()

# Right calls of functions that the selftest does not call, or calls in another way.
OTHERS = """
ct.asarray(host((2, 3)))
ct.asarray(array((2, 8, 9, 10)), dtype='float16', layout='nhwc')
ct.empty((2, 3))
ct.zeros((2, 3, 4), dtype='float64')
ct.full((2, 3, 4), 7)
ct.scaled_matmul(array((16, 32), 'float8_e4m3'), array((32, 16), 'float8_e4m3'))
ct.scaled_conv(array((1, 16, 4, 4), 'float8_e4m3'), array((16, 16, 3, 3), 'float8_e4m3'), amax=True)
ct.scaled_attention(*[array((1, 2, 4, 16), 'float8_e4m3')] * 3, amax=True)
ct.use(device=0)
ct.synchronize()
ct.empty_cache()
ct.available()
ct.last_plan()
ct.version()
ct.library_info()
ct.conv_output_shape((2, 8, 9, 10), (8, 8, 3, 3), padding=1)
ct.conv_transpose_output_shape((2, 8, 9, 10), (8, 8, 3, 3), stride=2)
ct.pool_output_shape((2, 8, 9, 10), window=2)
ct.conv_algorithms(array((2, 8, 9, 10)), array((8, 8, 3, 3)), measure=False)
ct.conv_plan(array((2, 8, 9, 10)), array((8, 8, 3, 3)), padding=1)
ct.conv_plan(array((2, 8, 9, 10)), array((8, 8, 3, 3)))(array((2, 8, 9, 10)), array((8, 8, 3, 3)))
ct.conv_bias_activation_plan(array((2, 8, 9, 10)), array((8, 8, 3, 3)), array((8,)))
ct.export_algo_cache('algo_cache.json')
ct.import_algo_cache('algo_cache.json')
ct.batch_norm_overflow_detected()
ct.DropoutState(0.5, 3)
ct.DropoutState().restore(ct.DropoutState().save())
ct.dropout(array((2, 8, 9, 10)), ct.DropoutState())
ct.dropout_backward(array((2, 8, 9, 10)), *dropped())
ct.RNN('gru', 2, 3, num_layers=2)
ct.RNN('lstm', 2, 3).forward(array((4, 3, 2)), array((84,)), lengths=[4, 2, 3])
ct.RNN('gru', 2, 3).forward(array((4, 3, 2)), array((63,)), training=True)
ct.RNN('gru', 2, 3).pack_params([np.zeros(one) for one in [(3, 2), (3,)] * 3 + [(3, 3), (3,)] * 3])
ct.RNN('rnn_relu', 2, 3, bias='no_bias').from_torch(\
dict(weight_ih_l0=host((3, 2)), weight_hh_l0=host((3, 3))))
ct.RNN('gru', 2, 3).split_params(array((63,)), 0)
ct.RNN('gru', 2, 3).to_torch(array((63,)))
ct.RNN('gru', 2, 3).algorithms((4, 3, 2), measure=False)
(t := trained()).net.backward_data(array((4, 3, 3)), t.reserve)
(t := trained()).net.backward_weights(t.with_gradients().reserve)
ct.Graph()
ct.Graph(intermediate_dtype='float16', compute_dtype='float32')
ct.Graph().input((2, 3, 4), 'float16')
(t := product()).graph.matmul(t.a, t.b)
(t := product()).graph.add(t.y, 3)
(t := product()).graph.reshape(t.y, (3, 24, 16))
(t := product()).graph.reduce(t.y, 'add', 2)
(t := product()).y.output(dtype='float16')
(t := product()).graph.define(t.y)
(t := product()).graph.build(t.y)
(t := product()).graph.build(t.y)(array((3, 16, 32)), array((3, 32, 24)))
ct.reference.graph((t := product()).graph.define(t.y), host((3, 16, 32)), host((3, 32, 24)))
ct.explain(ct.lrn, array((2, 8, 9, 10)))
array((2, 8, 9, 10)).copy()
array((2, 8, 9, 10)).fill(3)
array((2, 8, 9, 10)).numpy()
array((2, 8, 9, 10)).close()
array((2, 8, 9, 10)).packed('nhwc')
array((2, 8, 9, 10)).__dlpack__(stream=1)
ct.raw.cudnnGetVersion()
ct.raw.cudnnGetErrorString(3000)
ct.TensorSpec.packed((2, 3), 'float32', 'nchw')
ct.dnn.dnn_available()
ct.dnn.dnn_present()
ct.dnn.version()
ct.dnn.dnn_conv(array((2, 8, 9, 10)), array((8, 8, 3, 3)), border_mode='half')
ct.dnn.dnn_conv3d(array((2, 3, 4, 5, 6)), array((4, 3, 2, 2, 2)))
ct.dnn.dnn_gradweight(array((2, 8, 9, 10)), array((2, 8, 7, 8)), (8, 8, 3, 3))
ct.dnn.dnn_gradinput(array((8, 8, 3, 3)), array((2, 8, 7, 8)), (2, 8, 9, 10))
ct.dnn.dnn_pool(array((2, 8, 9, 10)), (2, 2), stride=(1, 2))
ct.dnn.dnn_batch_normalization_train(array((2, 8, 9, 10)), *[array((1, 8, 1, 1))] * 2, mode='spatial')
ct.dnn.dnn_batch_normalization_test(array((2, 8, 9, 10)), *[array((1, 8, 1, 1))] * 4, mode='spatial')
ct.dnn.dnn_spatialtf(array((2, 8, 9, 10)), array((2, 2, 3)), scale_width=2)
ct.dnn.GpuDnnConvDesc('valid', subsample=(1, 1))
ct.dnn.GpuDnnPool('max')
ct.dnn.GpuDnnPool('max')(array((2, 8, 9, 10)), (2, 2), (1, 1), (0, 0))
ct.dnn.GpuDnnSoftmax('accurate', 'channel')
ct.dnn.GpuDnnSoftmax('accurate', 'channel')(array((2, 8, 9, 10)))
ct.dnn.GpuDnnReduction('add', (1,), 'float32', 'float32', False)
ct.dnn.GpuDnnDropoutOp(True)
ct.dnn.GpuDnnConv.get_out_shape((2, 8, 9, 10), (8, 8, 3, 3), 'valid', (1, 1))
ct.dnn.RNNBlock('float32', 3, 1, 'gru')
ct.dnn.RNNBlock('float32', 3, 1, 'gru').get_param_size((2, 4))
ct.dnn.RNNBlock('float32', 3, 1, 'gru').split_params(array((81,)), 0, (2, 4))
ct.dnn.RNNBlock('float32', 3, 1, 'gru').apply(array((81,)), array((5, 2, 4)), array((1, 2, 3)))
ct.reference.ctc_loss(host((4, 2, 3)), [[1, 2], [1, 1]], [2, 1], [4, 4])
ct.reference.op_tensor(host((2, 3)), host((1, 3)), alpha1=2)
set_config('algo', None)
set_config('workspace_limit', None)
set_config('allow_tf32', None)
set_config('deterministic', None)
set_config('autotune_max_engines', None)
set_config('nonsense', None)
""".strip().splitlines()

# The pools of values for parameters that a right call does not give.
USUAL = {
    **dict.fromkeys(("out", "residual", "running_mean", "running_var", "h0", "c0", "dhy", "bias"), ARRAYS),
    **dict.fromkeys(("padding", "stride", "dilation", "lengths", "strides", "output_padding"), SEQUENCES),
    **dict.fromkeys(("groups", "axis", "workspace_limit", "device", "n", "seed"), INTEGERS),
    **dict.fromkeys(
        ("alpha", "beta", "coefficient", "epsilon", "momentum", "lrn_alpha", "lrn_beta", "k"), FLOATS
    ),
    **dict.fromkeys(("algo", "precision", "mode", "layout", "dtype", "op", "activation"), TEXTS),
}


def line(seed: int, number: int) -> str:
    """Draw one call: mostly a right one with some arguments exchanged, added or left out."""
    rng = random.Random(f"{seed}:{number}")
    right = ast.parse(rng.choice(rng.choice(families())), mode="eval").body
    assert isinstance(right, ast.Call)
    function, args = ast.unparse(right.func), [ast.unparse(value) for value in right.args]
    keywords = {str(row.arg): ast.unparse(row.value) for row in right.keywords}
    names = _parameters(function)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3))):
        kind = rng.random()
        if kind < 0.45 and args:
            place = rng.randrange(len(args))
            args[place] = hostile(rng, _pool_of(args[place]))
        elif kind < 0.9 and names:
            name = rng.choice(names)
            if name in names[: len(args)]:  # by position already
                place = names.index(name)
                args[place] = hostile(rng, _pool_of(args[place]))
            else:
                usual = _pool_of(keywords[name]) if name in keywords else USUAL.get(name)
                keywords[name] = hostile(rng, usual) if name != "stream" else rng.choice(STREAMS)
        elif kind < 0.93 and args:
            args.pop()
        elif kind < 0.96:
            args.append(hostile(rng))
        else:
            keywords[rng.choice(("nonsense", "out", "dtype"))] = hostile(rng)
    return _call(function, args, keywords)


def hostile(rng: random.Random, usual: tuple[str, ...] | None = None) -> str:
    """Draw any value; mostly of the ``usual`` kind, which more checks accept."""
    if usual and rng.random() < 0.6:
        return rng.choice(usual)
    return rng.choice(rng.choice(POOLS))


def _call(function: str, args: Iterable[str], keywords: Mapping[str, str]) -> str:
    given = [*args, *(f"{name}={text}" for name, text in keywords.items())]
    return f"{function}({', '.join(given)})"


def _pool_of(text: str) -> tuple[str, ...]:
    """Return the pool of values of the kind of an argument."""
    if text.startswith(("array(", "host(", "*", "t.")):
        return ARRAYS
    if text[0] in "([":
        return SEQUENCES
    return TEXTS if text[0] in "'\"" else INTEGERS if text.lstrip("-").isdigit() else FLOATS


@cache
def families() -> tuple[list[str], ...]:
    """Return right calls, in groups that are equally likely."""
    ours: dict[str, list[str]] = {}
    theirs: dict[str, list[str]] = {}
    for case in cases():
        kept = case.dtype == "float32" or (case.dtype, case.layout) == ("float16", "nhwc")
        if case.operation in ("RNN", "dropout") or not kept:
            continue
        operation, (operands, both, device) = case.operation, case.inputs()
        right = _right(f"ct.{operation}", operands, both | device, "array", case.layout)
        ours.setdefault(operation, []).append(right)
        if hasattr(ct.reference, operation):
            right = _right(f"ct.reference.{operation}", operands, both, "host", case.layout)
            theirs.setdefault(operation, []).append(right)
    # Specs are checked when a descriptor is made of them.
    descriptors = [f"{spec.partition('Spec(')[0]}Descriptor({spec})" for spec in SPECS]
    others = [[text] for text in OTHERS]
    return (*ours.values(), *others, *list(theirs.values())[::3], SPECS, *[descriptors] * 8)


def _right(function: str, operands: Any, keywords: dict[str, Any], place: str, layout: str) -> str:
    """Return a call with the inputs of the selftest, whose arrays ``place`` makes."""

    def text(value: Any) -> str:
        if not isinstance(value, np.ndarray):
            return repr(value)
        return f"{place}({value.shape}, {value.dtype.name!r}, {layout!r})"

    return _call(function, map(text, operands), {name: text(value) for name, value in keywords.items()})


@cache
def _parameters(function: str) -> tuple[str, ...]:
    """Return the names of a function's parameters, those that may be given by position first."""
    try:
        found = inspect.signature(eval(function, dict(NAMES)))
    except (TypeError, ValueError, ct.CudnnError):  # of a builtin, or without a device
        return ()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ours = ("self", "stacklevel")  # the latter is not for callers
    return tuple(name for name, one in found.parameters.items() if one.kind not in kinds and name not in ours)
