"""Arguments that the functions of `cudnn_ct.reference` reject, with the messages of the operations."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cudnn_ct import Graph, reference
from cudnn_ct.cli.selftest_cases import PARAMETERS
from cudnn_ct.cli.selftest_rows import required
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.reference.dropout import dropout
from cudnn_ct.reference.rnn import rnn, rnn_backward
from cudnn_ct.shapes.rnn import rnn_parameters, rnn_spec
from tests.fusion_cases import FUSIONS
from tests.layers import several


def ones(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    return np.ones(shape, dtype)


SPEC = rnn_spec("gru", 5, 4, direction="bidirectional", dtype="float64")
CELL = {"x": ones(3, 2, 5), "weights": [np.zeros(row.shape) for row in rnn_parameters(SPEC)], "spec": SPEC}
FUNCTIONS = {"dropout": dropout, "rnn": rnn, "rnn_backward": rnn_backward}

SHAPES = {"conv_output_shape", "conv_transpose_output_shape", "pool_output_shape"}


def by_names(function: str) -> dict[str, Any]:
    """Return an array for each required parameter: three channels for a parameter of channels, else data."""
    return {name: ones(3) if name in PARAMETERS else ones(2, 3, 5) for name in required(function)}


# Arguments that each function accepts, unless they follow from the names of its parameters.
ACCEPTED: dict[str, dict[str, Any]] = {
    "add": {"a": ones(2, 3), "b": ones(1, 3)},
    "attention": {name: ones(1, 2, 4, 8) for name in "qkv"},
    "attention_backward": {name: ones(1, 2, 4, 8) for name in ("dy", "q", "k", "v", "y")}
    | {"stats": ones(1, 2, 4, dtype="f")},
    "clear_padding": {"x": ones(1, 2, 4, 8), "lengths": [3]},
    "affine_grid": {"theta": ones(2, 2, 3), "shape": (2, 4, 4)},
    "affine_grid_backward": {"dgrid": ones(2, 4, 4, 2)},
    "conv": {"x": ones(1, 3, 5), "w": ones(4, 3, 3)},
    "conv_backward_bias": {"dy": ones(1, 2, 3)},
    "conv_backward_data": {"dy": ones(1, 2, 3), "w": ones(2, 1, 3), "x_shape": (1, 1, 5)},
    "conv_backward_filter": {"dy": ones(1, 2, 3), "x": ones(1, 1, 5), "w_shape": (2, 1, 3)},
    "conv_bias_activation": {
        "x": ones(1, 3, 5),
        "w": ones(4, 3, 3),
        "bias": ones(4),
        "residual": ones(1, 4, 3),
    },
    "batch_norm_finalize": {
        **dict.fromkeys(("sums", "square_sums", "scale", "bias"), ones(3, dtype=np.float32)),
        **dict.fromkeys(("running_mean", "running_var"), ones(3, dtype=np.float32)),
        "count": 4,
    },
    "conv_backward_data_relu_batch_norm": {
        "dy": ones(1, 4, 3, dtype=np.float16),
        "w": ones(4, 3, 3, dtype=np.float16),
        "x": ones(1, 3, 5, dtype=np.float16),
        **dict.fromkeys(("mean", "invstd", "scale", "bias"), ones(3, dtype=np.float32)),
    },
    "conv_backward_filter_scale_bias_relu": {
        "dy": ones(1, 4, 3, dtype=np.float16),
        "x": ones(1, 3, 5, dtype=np.float16),
        **dict.fromkeys(("scale", "bias"), ones(3, dtype=np.float16)),
        "w_shape": (4, 3, 3),
    },
    "conv_batch_norm_statistics": {
        "x": ones(1, 3, 5, dtype=np.float32), "w": ones(4, 3, 3, dtype=np.float32)
    },
    "conv_scale_bias_activation": {
        "x": ones(1, 3, 5, dtype=np.float32),
        "w": ones(4, 3, 3, dtype=np.float32),
        "scale": ones(4, dtype=np.float32),
        "bias": ones(4, dtype=np.float32),
        "residual": ones(1, 4, 3, dtype=np.float32),
    },
    "causal_conv1d": {"x": ones(2, 3, 5), "w": ones(3, 4)},
    "causal_conv1d_backward": {"dy": ones(2, 3, 5), "x": ones(2, 3, 5), "w": ones(3, 4)},
    "fft_causal_conv1d": {"x": ones(2, 3, 256), "w": ones(3, 128)},
    "fft_causal_conv1d_backward": {
        "dy": ones(2, 3, 256), "x": ones(2, 3, 256), "w": ones(3, 128)
    },
    "b2b_causal_conv1d": {
        "x": ones(2, 3, 3, 5), "w_proj": ones(3, 3, 4), "w_mixer": ones(3, 7), "skip_bias": ones(3)
    },
    "b2b_causal_conv1d_backward": {
        "dy": ones(2, 3, 5), "x": ones(2, 3, 3, 5), "w_proj": ones(3, 3, 4), "w_mixer": ones(3, 7),
        "skip_bias": ones(3), "mixed": ones(2, 3, 5)
    },
    "graph_aggregate": {"offsets": [0, 2, 3], "indices": [0, 1, 2], "x": ones(3, 4)},
    "graph_aggregate_backward": {
        "dy": ones(2, 4), "offsets": [0, 2, 3], "indices": [0, 1, 2], "x_shape": (3, 4)
    },
    "graph_attention": {
        "offsets": [0, 2, 3], "indices": [0, 1, 2], "x": ones(3, 4), "target": ones(2, 4), "w": ones(4)
    },
    "graph_attention_backward": {
        "dy": ones(2, 4), "offsets": [0, 2, 3], "indices": [0, 1, 2], "x": ones(3, 4), "target": ones(2, 4),
        "w": ones(4), "scores": ones(2, 1, 3), "activated": ones(3, 4)
    },
    "conv_transpose": {"x": ones(2, 4, 5), "w": ones(4, 3, 3)},
    "ctc_loss": {
        "logits": ones(3, 2, 4), "labels": [1, 2, 3], "label_lengths": [1, 2], "input_lengths": [3, 3]
    },
    "dropout": {"x": ones(2), "kept": [True, False], "probability": 0.5},
    "fill": {"x": ones(2), "value": 1},
    "grid_sample": {"x": ones(2, 3, 4, 5), "grid": ones(2, 6, 7, 2)},
    "grid_sample_backward": {"dy": ones(2, 3, 6, 7), "x": ones(2, 3, 4, 5), "grid": ones(2, 6, 7, 2)},
    "matmul": {"a": ones(2, 3), "b": ones(3, 4)},
    "matmul_backward": {"dy": ones(2, 4), "a": ones(2, 3), "b": ones(3, 4)},
    "op_tensor": {"a": ones(2), "b": ones(2)},
    "pool": {"x": ones(1, 1, 5, 5), "window": 2},
    "pool_backward": {"dy": ones(1, 1, 3), "x": ones(1, 1, 6), "y": ones(1, 1, 3), "window": 2},
    "reduce": {"x": ones(2, 3, 4), "axis": 1},
    "reduce_with_indices": {"x": ones(2, 3, 4), "axis": 1, "op": "max"},
    "rnn": CELL,
    "rnn_backward": CELL | {"dy": np.zeros((3, 2, 8))},
    "scale": {"x": ones(2), "alpha": 1},
    "softmax_backward": {"dy": ones(2, 3), "y": ones(2, 3)},
    "spatial_transformer": {"x": ones(2, 3, 4, 5), "theta": ones(2, 2, 3)},
    "spatial_transformer_backward": {"dy": ones(2, 3, 4, 5), "x": ones(2, 3, 4, 5), "theta": ones(2, 2, 3)},
}  # fmt: skip
SINGLE = {
    "x": ones(2, 3, 5, dtype=np.float32),
    "dy": ones(2, 3, 5, dtype=np.float32),
    "scale": ones(5, dtype=np.float32),
    **dict.fromkeys(("mean", "invstd", "invrms"), ones(2, 3, 1, dtype=np.float32)),
}
OF_SAMPLES = SINGLE | {"scale": ones(2, 5, dtype=np.float32)}
ROW_NORMS = [
    f"{mode}{step}" for mode in ("layer_norm", "rms_norm", "ada_layer_norm") for step in ("", "_backward")
]
ACCEPTED |= {
    name: {one: (OF_SAMPLES if name.startswith("ada") else SINGLE)[one] for one in required(name)}
    for name in ROW_NORMS
}
FLOAT8 = as_dtype("float8_e4m3").numpy
ACCEPTED["scaled_matmul"] = {"a": ones(2, 3, dtype=FLOAT8), "b": ones(3, 4, dtype=FLOAT8)}
ACCEPTED["scaled_conv"] = {"x": ones(1, 3, 5, dtype=FLOAT8), "w": ones(4, 3, 3, dtype=FLOAT8)}
ACCEPTED["scaled_attention"] = {name: ones(1, 2, 4, 16, dtype=FLOAT8) for name in "qkv"}
SEVERAL_DTYPES = (
    *ROW_NORMS,
    "scaled_matmul",
    "scaled_conv",
    "conv_scale_bias_activation",
    *FUSIONS,
)  # operands may differ in dtype
ACCEPTED |= {name: by_names(name) for name in reference.__all__ if name not in {*ACCEPTED, *SHAPES}}

# Arguments that replace accepted ones, and the error: one row for each check that a function makes. Most
# checks belong to `shapes`, and the tests of operations have more cases of them.
REJECTED: list[tuple[str, dict[str, Any], str]] = [
    ("activation", {"mode": "gelu"}, "ValueError: mode must be one of identity, relu, .* silu: got 'gelu'"),
    ("activation", {"propagate_nan": "keep"}, "TypeError: propagate_nan must be True or False"),
    ("conv", {"w": ones(4, 2, 3)}, "ValueError: x has 3 channels; w expects 2 x groups 1 = 2"),
    ("conv_backward_bias", {"dy": ones(1, 2)}, r"ValueError: dy has shape \(1, 2\); expected \(N, K, "),
    ("conv_backward_data", {"x_shape": (1, 1, 9)}, r"ValueError: dy has shape .*; x of \(1, 1, 9\) with w"),
    ("conv_bias_activation", {"bias": ones(3)}, r"ValueError: bias has shape \(3,\); y of .* needs \(4,\)"),
    ("conv_bias_activation", {"residual": ones(4, 3)}, r"ValueError: residual has shape \(4, 3\); y"),
    ("conv_batch_norm_statistics", {"scale": ones(3)}, "ValueError: scale is given without bias"),
    ("conv_batch_norm_statistics", {"padding": ((1, 0),)}, "ValueError: padding differs between the sides"),
    ("batch_norm_finalize", {"count": 1}, "ValueError: count must be at least 2: got 1"),
    ("batch_norm_finalize", {"momentum": 2}, "ValueError: momentum must be between 0 and 1: got 2"),
    ("batch_norm_finalize", {"eq_dtype": "int8"}, "TypeError: eq_dtype is not supported: got int8"),
    ("batch_norm_finalize", {"bias": ones(2)}, r"ValueError: bias has a wrong shape: got \(2,\), .* \(3,\)"),
    ("conv_backward_data_relu_batch_norm", {"mean": ones(3)}, "TypeError: mean has a wrong dtype: .*"),
    ("conv_backward_filter_scale_bias_relu", {"scale": ones(4)}, r"ValueError: scale has a wrong shape"),
    ("conv_scale_bias_activation", {"scale": ones(3)}, r"ValueError: scale has a wrong shape: .* \(4,\)"),
    ("conv_scale_bias_activation", {"residual": ones(4, 3)}, r"ValueError: residual has shape \(4, 3\); y"),
    ("scaled_conv", {"bias": ones(3)}, r"ValueError: bias has a wrong shape: got \(3,\), expected \(4,\)"),
    ("scaled_conv", {"bias": ones(4)}, "TypeError: bias has a wrong dtype: got float64, expected"),
    ("scaled_conv", {"scale": ones(1)}, "ValueError: scale is not a float32 array of one element: got"),
    ("scaled_conv", {"out_dtype": "int8"}, "TypeError: out_dtype is not supported: got int8, expected"),
    ("scaled_conv", {"activation": "elu"}, "ValueError: activation must be one of identity, relu, gelu, "),
    ("scaled_conv", {"out": (None, ones(1))}, "ValueError: out has amax, but amax is not set"),
    ("causal_conv1d", {"w": ones(3, 9)}, "ValueError: the width of w is not supported: got 9, expected 2 to"),
    ("causal_conv1d", {"bias": "tanh"}, "TypeError: bias is not an array of numbers: got 'tanh'"),
    ("causal_conv1d", {"activation": "relu"}, "ValueError: activation must be one of silu, swish, identity"),
    ("causal_conv1d_backward", {"bias": ones(2)}, r"ValueError: bias has a wrong shape: got \(2,\), exp"),
    ("fft_causal_conv1d", {"w": ones(3, 100)}, "ValueError: the width of w is not supported: got 100 for fl"),
    ("fft_causal_conv1d", {"x": ones(2, 3, 200)}, "ValueError: the length of x is not supported: got 200, e"),
    ("fft_causal_conv1d_backward", {"dy": ones(2, 3, 128)}, r"ValueError: dy has shape \(2, 3, 128\); x has"),
    ("b2b_causal_conv1d", {"x": ones(2, 3, 5)}, r"ValueError: x has a wrong shape: got \(2, 3, 5\), expecte"),
    ("b2b_causal_conv1d", {"w_proj": ones(3, 3, 33)}, "ValueError: the width of w_proj is not supported: go"),
    ("b2b_causal_conv1d", {"w_mixer": ones(4, 7)}, r"ValueError: w_mixer has a wrong shape: got \(4, 7\), e"),
    ("b2b_causal_conv1d", {"skip_bias": ones(1)}, r"ValueError: skip_bias has a wrong shape: got \(1,\), e"),
    ("b2b_causal_conv1d_backward", {"mixed": ones(1)}, r"ValueError: mixed has a wrong shape: got \(1,\), e"),
    ("graph_aggregate", {"x": None}, "TypeError: x and edges are both None: expected features of nodes"),
    ("graph_aggregate", {"offsets": [0, 2, 4]}, "ValueError: offsets are out of order: expected increasing "),
    ("graph_aggregate", {"offsets": [0, 4, 3]}, "ValueError: offsets are out of order: expected increasing "),
    ("graph_aggregate", {"op": "prod"}, "ValueError: op must be one of sum, mean, max, min: got 'prod'"),
    ("graph_aggregate", {"edges": ones(2, 4)}, r"ValueError: edges has a wrong shape: got \(2, 4\), expect"),
    ("graph_aggregate_backward", {"x_shape": None}, "TypeError: x_shape and edges_shape are both None: exp"),
    ("graph_aggregate_backward", {"edges_shape": (2, 1)}, r"ValueError: edges_shape is wrong: got \(2, 1\)"),
    ("graph_aggregate_backward", {"op": "max"}, "ValueError: positions does not match op='max': expected th"),
    ("graph_attention", {"heads": 3}, "ValueError: heads does not divide the features: got 3 heads, 4 feat"),
    ("graph_attention", {"mask": ones(2, 3)}, r"ValueError: mask has a wrong shape: got \(2, 3\), expected "),
    ("graph_attention", {"w": ones(3)}, r"ValueError: w has a wrong shape: got \(3,\), expected \(4,\)"),
    ("graph_attention_backward", {"scores": ones(2, 3)}, r"ValueError: scores has a wrong shape: got \(2, "),
    ("conv_transpose", {"stride": 2, "output_padding": 2}, r"ValueError: output_padding \(2,\) must be less"),
    ("ctc_loss", {"logits": ones(3, 4)}, r"ValueError: logits have shape \(3, 4\); expected \(T, N, A\)"),
    ("ctc_loss", {"labels": [1, 2]}, r"ValueError: there are 2 labels; label_lengths \(1, 2\) add up to 3"),
    ("ctc_loss", {"labels": [1, 2, 4]}, "ValueError: sequence 1 has the label 4; labels are between 0 and 3"),
    ("ctc_loss", {"labels": [0, 2, 3]}, "ValueError: sequence 0 has the label 0; .* and not the blank 0"),
    ("ctc_loss", {"labels": 3}, "TypeError: labels must be integers, in rows or one after another, not 3"),
    ("ctc_loss", {"blank": 4}, "ValueError: blank must be between 0 and 3, the last of A = 4, got 4"),
    ("ctc_loss", {"normalization": "log"}, "ValueError: normalization must be one of none, softmax"),
    ("ctc_loss", {"out": ([], None)}, "TypeError: out must be a NumPy array, not list"),
    ("ctc_loss", {"out": (ones(3), None)}, r"ValueError: out has shape \(3,\); the loss has \(2,\)"),
    ("dropout", {"kept": [True]}, r"ValueError: kept has shape \(1,\); x has \(2,\)"),
    ("dropout", {"probability": 1}, "ValueError: probability must be at least 0 and less than 1: got 1"),
    ("lrn", {"n": 0}, "ValueError: n must be between 1 and 16: got 0"),
    ("lrn", {"k": 0}, "ValueError: k must be at least 1e-05: got 0"),
    ("lrn", {"x": ones(2, 3)}, r"ValueError: x has shape \(2, 3\); expected \(N, C"),
    ("batch_norm_training", {"scale": ones(4)}, r"ValueError: scale has .* needs \(1, 3, 1\) or \(3,\)"),
    ("batch_norm_training", {"epsilon": -1e-9}, "ValueError: epsilon must be at least 0 and finite"),
    ("batch_norm_training", {"momentum": 1.5}, "ValueError: momentum must be between 0 and 1: got 1.5"),
    ("batch_norm_training", {"activation": "tanh"}, "ValueError: activation must be one of relu: got 'tanh'"),
    ("batch_norm_training", {"running_mean": [1, 1, 1], "running_var": ones(3)}, "TypeError: .* updated in"),
    ("batch_norm_training", {"running_mean": ones(2), "running_var": ones(3)}, "ValueError: running_mean h"),
    ("batch_norm_training", {"residual": ones(2, 3, 1)}, r"ValueError: residual has shape \(2, 3, 1\); x"),
    ("batch_norm_backward", {"mean": ones(3)}, "ValueError: mean and invstd must both be given"),
    ("batch_norm_backward", {"activation": "relu"}, "ValueError: activation='relu' needs y"),
    ("batch_norm_backward", {"activation": "relu", "y": ones(2, 3)}, r"ValueError: y has shape \(2, 3\)"),
    ("instance_norm", {"scale": ones(4)}, r"ValueError: scale has .* needs \(3,\)"),
    ("instance_norm_backward", {"invstd": ones(2, 3, 1)}, "ValueError: mean and invstd must both be given"),
    ("group_norm_backward", {"mean": ones(2, 1)}, "ValueError: ^mean and invstd must both .*, or neither$"),
    ("group_norm_backward", {"invstd": ones(2, 1)}, "ValueError: ^mean and invstd must both .*, or neither$"),
    ("rms_norm_backward", {"bias_gradient": ones(2)}, "TypeError: bias_gradient must be True or False"),
    ("pool", {"window": 0}, "ValueError: window must be between 1"),
    ("pool", {"mode": "median"}, "ValueError: mode must be one of max, max_deterministic, average_inc_pad"),
    ("pool", {"propagate_nan": "ignore"}, "TypeError: propagate_nan must be True or False"),
    ("pool", {"x": ones(1, 1, 5, 5, dtype="b"), "mode": "sum"}, "TypeError: .* mode='sum' takes .* not int8"),
    ("pool_backward", {"y": ones(1, 1, 6)}, r"ValueError: y has shape .*; pooling x of .* gives \(1, 1, 3\)"),
    ("softmax", {"algo": "exact"}, "ValueError: algo must be one of fast, accurate, log: got 'exact'"),
    ("softmax", {"axis": ()}, "ValueError: .* at least one axis"),
    ("affine_grid", {"shape": (3, 4, 4)}, r"ValueError: theta has shape \(2, 2, 3\); a batch of 3"),
    ("affine_grid_backward", {"dgrid": ones(2, 2, 3)}, r"ValueError: dgrid has shape \(2, 2, 3\)"),
    ("grid_sample", {"grid": ones(2, 6, 7, 1)}, r"ValueError: grid has shape \(2, 6, 7, 1\)"),
    ("spatial_transformer", {"theta": ones(1, 2, 3)}, "ValueError: .* a batch of 2 needs"),
    ("spatial_transformer", {"scale_width": 0}, "ValueError: scale_width must be more"),
    ("spatial_transformer_backward", {"scale_width": 2}, "ValueError: dy has shape"),
    ("op_tensor", {"b": None}, "ValueError: op='add' needs b"),
    ("op_tensor", {"propagate_nan": 2}, "TypeError: propagate_nan"),
    ("op_tensor", {"alpha2": ones(3)}, "TypeError: alpha2 must be a number"),
    ("add", {"a": ones(2, 1), "b": ones(2, 3)}, r"ValueError: b has shape \(2, 3\)"),
    ("scale", {"x": [1.0]}, "TypeError: .* x must be an array, not"),
    ("attention", {"kept": ones(1, 2, 4, 4)}, "ValueError: kept needs dropout: got dropout=0"),
    ("attention", {"lengths_q": [4], "lengths_kv": [5]}, "ValueError: lengths_kv must be from 0 to 4: got 5"),
    ("matmul", {"a": ones(2, 3, dtype=int), "b": ones(3, 4, dtype=int)}, "TypeError: a product of matrices"),
    ("softmax", {"x": np.float32(1), "axis": 0}, "ValueError: axis is out of range: got 0, but .* no axes"),
    ("reduce", {"x": np.float32(1), "axis": 0}, "ValueError: axis is out of range: got 0, but .* no axes"),
    ("attention", {"out": ()}, "ValueError: out has 0 arrays; the results are y, stats"),
    ("attention", {"out": (None, ones(1, 2, 4, dtype="f"))}, "ValueError: out has stats, but return_stats=F"),
    ("scaled_attention", {"out": (None,), "amax": True}, "ValueError: out has 1 arrays; the results are y, "),
    ("scaled_attention", {"out": (None, None, ones(1))}, "ValueError: out has amax, but amax is not set"),
    ("transform", {"layout": "nhwc", "out": 3}, "TypeError: out must be a NumPy array, not int"),
    ("transform", {"strides": (2, 2, 1)}, r"ValueError: strides \(2, 2, 1\) overlap"),
    ("transform", {"x": ones(2, 2, dtype="b"), "dtype": "float32"}, "TypeError: .* got int8 to float32"),
    ("reduce", {"axis": "all"}, "TypeError: axis must be an int or a tuple of ints: got 'all'"),
    ("reduce", {"op": "max", "x": ones(2, 0, 3)}, r"ValueError: cannot take op='max' over axes \(1,\): x"),
    ("rnn", {"x": ones(3, 2, 4)}, r"ValueError: x has shape \(3, 2, 4\); .* needs \(T, B, 5\)"),
    ("rnn", {"h0": ones(1, 2, 4)}, r"ValueError: h0 has shape \(1, 2, 4\); this network needs \(2, 2, 4\)"),
    ("rnn", {"h0": ones(2, 2, 4, dtype="e")}, "TypeError: .* h0 is float16"),
    ("rnn", {"masks": ones(1, 3, 2, 4)}, r"ValueError: masks have shape \(1, 3, 2, 4\); .* \(0, 3, 2, 8\)"),
    ("rnn", {"weights": []}, "ValueError: there are 0 weights; this network has 24: gru 5 -> 4, 1 layer"),
    ("rnn", {"weights": 3}, "TypeError: weights are a mapping by names or a sequence, not int"),
    ("rnn", {"spec": ("gru", 5, 4)}, "TypeError: spec must be an RNNSpec, not tuple"),
    ("rnn", {"padding": None}, "TypeError: padding must be a number"),
    ("rnn_backward", {"dcy": ones(2, 2, 4)}, "ValueError: dcy is given, but mode='gru' has no cells"),
    ("rnn_backward", {"dhy": ones(2, 2, 4, dtype="f")}, "TypeError: .* dhy is float32"),
]  # fmt: skip


def call(name: str, **changes: Any) -> Any:
    function = FUNCTIONS.get(name) or getattr(reference, name)
    return function(**(ACCEPTED[name] | changes))


def arrays(name: str) -> dict[str, np.ndarray]:
    """Return the accepted arguments that are arrays."""
    return {key: value for key, value in ACCEPTED[name].items() if isinstance(value, np.ndarray)}


GRADIENTS = [name for name in ACCEPTED if "dy" in arrays(name) and len(arrays(name)) > 1]


def parameters(name: str) -> set[str]:
    return set(inspect.signature(FUNCTIONS.get(name) or getattr(reference, name)).parameters)


OPTIONAL = {("op_tensor", "b"), ("conv_bias_activation", "bias")}
IN_PLACE = {("scale", "x"), ("fill", "x")}  # these have another message
REQUIRED = [
    (name, operand)
    for name in ACCEPTED
    if name not in FUNCTIONS
    for operand in arrays(name)
    if operand in required(name) and (name, operand) not in OPTIONAL | IN_PLACE
]


@pytest.mark.parametrize(
    ("arrays", "keywords", "message"),
    [
        ((ones(1, 2, 5),), {}, r"pool\(\) missing required argument: 'window'"),
        (
            (ones(1, 2, 5),),
            {"window": 2, "strides": 1},
            "unexpected keyword argument 'strides'; write stride=",
        ),
        ((ones(1, 2, 5), 2), {}, "got 2 positional arguments, expected 1; write window="),
        ((ones(1, 2, 5),), {"window": 2, "x": 1}, "got multiple values for argument 'x'"),
    ],
    ids=["missing", "unknown", "position", "twice"],
)
def test_reference_rejects_a_wrong_call_as_the_operation_does(
    arrays: tuple[Any, ...], keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        reference.pool(*arrays, **keywords)


@pytest.mark.parametrize(("name", "operand"), REQUIRED)
def test_reference_names_a_missing_operand(name: str, operand: str) -> None:
    with pytest.raises(TypeError, match=f"^{operand} is not an array: got NoneType$"):
        call(name, **{operand: None})


def test_reference_graph_accepts_an_input_named_built() -> None:
    g = Graph()
    problem = g.define(g.neg(g.input((3,), name="built")))
    np.testing.assert_array_equal(reference.graph(problem, built=ones(3, dtype="f")), -np.ones(3))


def paged(**changes: Any) -> Any:
    """Return attention with three pages of four keys for each of two sequences, of nine and five keys."""
    table: dict[str, Any] = {"page_table": [[0, 1, 2], [4, 3, 0]], "lengths_q": [6, 6], "lengths_kv": [9, 5]}
    blocks = np.random.default_rng(0).standard_normal((5, 2, 4, 8))
    return reference.attention(ones(2, 4, 6, 8), blocks, blocks, **(table | changes)).y


@pytest.mark.parametrize("unused", [-1, 5, 99])
def test_reference_attention_ignores_unused_pages(unused: int) -> None:
    np.testing.assert_array_equal(paged(page_table=[[0, 1, 2], [4, 3, unused]]), paged())
    none = paged(page_table=[[unused] * 3, [4, 3, 0]], lengths_kv=[0, 5])
    np.testing.assert_array_equal(none[0], np.zeros((4, 6, 8)))
    np.testing.assert_array_equal(none[1], paged()[1])


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ([[0, 1, -1], [4, 3, 0]], ValueError, "page_table is out of range: got -1, expected 0 to 4"),
        ([[0, 1, 2], [4, 5, 0]], ValueError, "page_table is out of range: got 5, expected 0 to 4"),
        (ones(2, 3, dtype="f"), TypeError, "page_table has the wrong dtype: got float32, expected integers"),
    ],
)
def test_reference_attention_rejects_pages(table: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        paged(page_table=table)


DROPPED: dict[str, Any] = {name: ones(2, 4, 9, 8) for name in "kv"} | {"q": ones(2, 4, 6, 8), "dropout": 0.5}


@pytest.mark.parametrize("shape", [(6, 9), (2, 4, 6, 8), (2, 4, 6, 1), (2, 4, 6, 10), (1, 4, 6, 9)])
def test_reference_attention_rejects_the_shape_of_kept(shape: tuple[int, ...]) -> None:
    message = re.escape(f"kept has the wrong shape: got {shape}, expected (2, 4, 6, 9)")
    with pytest.raises(ValueError, match=message):
        call("attention", **DROPPED, kept=ones(*shape))
    gradients = {"dy": DROPPED["q"], "y": DROPPED["q"], "stats": ones(2, 4, 6, dtype="f")}
    with pytest.raises(ValueError, match=message):
        call("attention_backward", **DROPPED, **gradients, kept=ones(*shape))


@pytest.mark.parametrize(
    ("shape", "fits"), [((2, 4, 6, 9), True), ((2, 4, 8, 12), True), ((2, 4, 6, 8), False)]
)
def test_reference_attention_takes_kept_of_packed_sequences(shape: tuple[int, ...], fits: bool) -> None:
    packed: dict[str, Any] = {"q": ones(10, 4, 8), "k": ones(13, 4, 8), "v": ones(13, 4, 8), "dropout": 0.5}
    arguments = packed | {"offsets_q": [0, 6, 10], "offsets_kv": [0, 9, 13], "kept": ones(*shape)}
    if fits:
        np.testing.assert_allclose(reference.attention(**arguments).y, 2 * ones(10, 4, 8))
    else:
        with pytest.raises(ValueError, match="kept has the wrong shape"):
            reference.attention(**arguments)


@pytest.mark.parametrize(("name", "changes", "message"), REJECTED)
def test_reference_rejects_bad_arguments(name: str, changes: dict[str, Any], message: str) -> None:
    kind, _, text = message.partition(": ")
    with pytest.raises({"TypeError": TypeError, "ValueError": ValueError}[kind], match=text):
        call(name, **changes)


def wrong_dtypes() -> Iterator[tuple[str, str, Any]]:
    """Yield each operand with a dtype that it cannot have, or that the other operands do not have."""
    for name in ACCEPTED:
        for operand in arrays(name):
            yield name, operand, np.int64
            # The statistics of attention are float32.
            if name not in SEVERAL_DTYPES and len(arrays(name)) > 1 and operand != "stats":
                yield name, operand, np.float32


@pytest.mark.parametrize(("name", "operand", "dtype"), list(wrong_dtypes()))
def test_reference_rejects_other_dtypes(name: str, operand: str, dtype: Any) -> None:
    with pytest.raises(TypeError, match=np.dtype(dtype).name):
        call(name, **{operand: arrays(name)[operand].astype(dtype)})


@pytest.mark.parametrize("name", GRADIENTS)
def test_reference_rejects_a_gradient_of_another_shape(name: str) -> None:
    with pytest.raises(ValueError, match=r"dy has (a wrong )?shape"):
        call(name, dy=arrays(name)["dy"][..., :-1])


WITH_OUT = [name for name in ACCEPTED if "out" in parameters(name)]


@pytest.mark.parametrize("name", WITH_OUT)
def test_reference_rejects_an_out_that_is_no_array(name: str) -> None:
    with pytest.raises(TypeError, match="out must be a NumPy array, not int"):
        call(name, out=2**31)


@pytest.mark.parametrize("name", [name for name in WITH_OUT if not name.startswith("scaled_")])
def test_reference_rejects_an_out_that_does_not_fit(name: str) -> None:
    results = [one for one in several(call(name)) if one is not None]
    for place, one in enumerate(results):
        outs: list[Any] = [None] * len(results)
        other = np.float64 if one.dtype == np.float32 else np.float32
        for memory, error in ((np.ones(one.shape, other), TypeError), (ones(*one.shape, 1), ValueError)):
            outs[place] = memory
            with pytest.raises(
                error,
                match=r"out (is float\d+|has shape .*); the .* (is (float\d+|int32)|has)",
            ):
                call(name, out=outs if len(outs) > 1 else memory)
    if "beta" in parameters(name):
        with pytest.raises(ValueError, match="beta=1 needs out"):
            call(name, beta=1)


def test_reference_takes_groups_with_an_index() -> None:
    class Two:
        def __index__(self) -> int:
            return 2

    x, w = np.ones((1, 4, 3, 3), np.float32), np.ones((4, 2, 2, 2), np.float32)
    for one in (Two(), 2):
        assert reference.conv(x, w, groups=one).shape == (1, 4, 2, 2)  # type: ignore[arg-type]
        assert reference.conv_transpose(x, w, groups=one).shape == (1, 4, 4, 4)  # type: ignore[arg-type]


def test_matmul_backward_sums_the_bias_of_no_columns() -> None:
    dy, a, b = (np.zeros(shape, np.float32) for shape in ((127, 0), (127, 1), (1, 0)))
    found = reference.matmul_backward(dy, a, b, bias_gradient=True)
    assert [one.shape for one in found if one is not None] == [(127, 1), (1, 0), (0,)]
