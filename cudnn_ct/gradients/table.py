"""The table of operations with a gradient, by the names of operators.

Operators of libraries with automatic differentiation are made from it: a new operation needs one row. Forward
and backward operations are next to each other. Rows without ``gradient`` are called by gradients, or are the
forward pass without saved results.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

from ..shapes.checks import expect_rank, one_dtype
from ..shapes.rnn import RNNSpec, rnn_spec, rnn_weight_size
from ..shapes.sequences import check_rnn_operands
from ..shapes.specs import TensorSpec
from . import formulas as f
from .formulas import NONE, Backward, Param, Row


def _first(*names: str) -> dict[str, int]:
    return dict.fromkeys(names, 0)


_NORM = ("x", "scale", "bias")
_XY = _first("x", "y")
_BACKWARD = _first("dy", "x", "y", "dx")
_OF_IMAGES = _first("x", "y", *f.STATISTICS)

# Most normalisations, and their gradients.
_NORMALISED = Row(
    _NORM, ("y", *f.STATISTICS), f.EPSILON, needs=dict.fromkeys(_NORM, ("x", "scale", *f.STATISTICS))
)
_NORM_BACKWARD = Row(("dy", "x", "scale", *f.STATISTICS), f.NORM_GRADIENTS, f.EPSILON)

# fmt: off
_ROWS: dict[str, Row] = {
    "conv": Row(("x", "w"), ("y",), f.GEOMETRY, needs={"x": ("w",), "w": ("x",)}, gradient=f.conv, batch=_XY),
    "conv_backward_data": Row(
        ("dy", "w"), ("dx",), {"x_shape": Param("shape"), **f.GEOMETRY}, needs={"dy": ("w",), "w": ("dy",)},
        gradient=f.conv_backward_data, batch=_first("dy", "dx"),
    ),
    "conv_backward_filter": Row(
        ("dy", "x"), ("dw",), {"w_shape": Param("shape"), **f.GEOMETRY}, needs={"dy": ("x",), "x": ("dy",)},
        gradient=f.conv_backward_filter,
    ),
    "conv_backward_bias": Row(("dy",), ("db",), needs={"dy": ()}, gradient=f.conv_backward_bias),
    "conv_transpose": Row(
        ("x", "w"), ("y",), {**f.GEOMETRY, "output_padding": Param("ints", (0,))},
        needs={"x": ("w",), "w": ("x",)}, gradient=f.conv_transpose, batch=_XY,
    ),
    "conv_bias_activation": Row(
        ("x", "w", "bias", "residual"), ("y",), {**f.GEOMETRY, **f.FUSED}, optional=("bias", "residual"),
        needs=f.fused_conv_needs, gradient=f.fused_conv, batch=_first("x", "residual", "y"),
    ),
    "activation": Row(
        ("x",), ("y",), f.ACTIVATION, needs=f.activation_needs, gradient=f.activation, batch=_XY,
    ),
    "activation_backward": Row(
        ("dy", "x", "y"), ("dx",), f.ACTIVATION, needs=f.activation_backward_needs,
        gradient=f.activation_backward, batch=_BACKWARD,
    ),
    "pool": Row(("x",), ("y",), f.POOLING, needs=f.pool_needs, gradient=f.pool, batch=_XY),
    "pool_backward": Row(
        ("dy", "x", "y"), ("dx",), f.POOLING, needs=f.pool_backward_needs, gradient=f.pool_backward,
        batch=_BACKWARD,
    ),
    "softmax": Row(("x",), ("y",), f.SOFTMAX, needs={"x": ("y",)}, gradient=f.softmax),
    "softmax_backward": Row(("dy", "y"), ("dx",), f.SOFTMAX),
    "lrn": Row(("x",), ("y",), f.LRN, needs={"x": ("x", "y")}, gradient=f.lrn, batch=_XY),
    "lrn_backward": Row(("dy", "x", "y"), ("dx",), f.LRN, batch=_BACKWARD),
    "batch_norm_training": Row(
        (*_NORM, "residual", "running_mean", "running_var"), ("y", *f.STATISTICS), f.BATCH_NORM_TRAINING,
        optional=("residual", "running_mean", "running_var"), updated=("running_mean", "running_var"),
        needs=f.batch_norm_needs, gradient=f.batch_norm_training,
    ),
    "batch_norm_backward": _NORM_BACKWARD,
    "batch_norm_activation_backward": Row(
        ("dy", "x", "scale", *f.STATISTICS, "y"), (*f.NORM_GRADIENTS, "dz"),
        {**f.EPSILON, "activation": Param("str", "relu")}, function="batch_norm_backward",
    ),
    "batch_norm_inference": Row(
        (*_NORM, "mean", "var"), ("y",), f.EPSILON, needs=dict.fromkeys(_NORM, ("x", "scale", "mean", "var")),
        gradient=f.batch_norm_inference, batch=_XY,
    ),
    "batch_norm_inference_backward": Row(("dy", "x", "scale", "mean", "var"), f.NORM_GRADIENTS, f.EPSILON),
    "instance_norm": _NORMALISED._replace(gradient=f.instance_norm, batch=_OF_IMAGES),
    "instance_norm_backward": _NORM_BACKWARD,
    "group_norm": _NORMALISED._replace(params=f.GROUPS, gradient=f.group_norm, batch=_OF_IMAGES),
    "group_norm_backward": _NORM_BACKWARD._replace(params=f.GROUPS),
    "layer_norm": _NORMALISED._replace(optional=("bias",), gradient=f.layer_norm),
    "layer_norm_inference": Row(
        _NORM, ("y",), f.EPSILON, optional=("bias",), fixed={"training": False}, function="layer_norm",
    ),
    "layer_norm_backward": _NORM_BACKWARD._replace(params=NONE),
    "ada_layer_norm": _NORMALISED._replace(
        optional=("bias",), gradient=f.ada_layer_norm, batch=_first(*_NORM, "y", *f.STATISTICS),
    ),
    "ada_layer_norm_backward": _NORM_BACKWARD._replace(
        params=NONE, batch=_first("dy", "x", "scale", *f.STATISTICS, *f.NORM_GRADIENTS),
    ),
    "rms_norm": Row(
        _NORM, ("y", "invrms"), f.EPSILON, optional=("bias",),
        needs=dict.fromkeys(_NORM, ("x", "scale", "invrms")), gradient=f.rms_norm,
    ),
    "rms_norm_inference": Row(
        _NORM, ("y",), f.EPSILON, optional=("bias",), fixed={"training": False}, function="rms_norm",
    ),
    "rms_norm_backward": Row(("dy", "x", "scale", "invrms"), ("dx", "dscale")),
    "rms_norm_bias_backward": Row(
        ("dy", "x", "scale", "invrms"), f.NORM_GRADIENTS, fixed={"bias_gradient": True},
        function="rms_norm_backward",
    ),
    "matmul": Row(
        ("a", "b", "bias", "residual"), ("y",), f.MATMUL, optional=("bias", "residual"), needs=f.matmul_needs,
        gradient=f.matmul,
    ),
    "matmul_backward": Row(("dy", "a", "b"), ("da", "db"), {"alpha": f.MATMUL["alpha"]}),
    "matmul_bias_backward": Row(
        ("dy", "a", "b"), ("da", "db", "dbias"), {"alpha": f.MATMUL["alpha"]}, fixed={"bias_gradient": True},
        function="matmul_backward",
    ),
    "attention": Row(
        (*f.QKV, "bias"), ("y", "stats"), f.ATTENTION, optional=("bias",), fixed={"return_stats": True},
        needs=dict.fromkeys((*f.QKV, "bias"), f.ATTENDED), gradient=f.attention,
        batch=_first(*f.QKV, "y", "stats"),
    ),
    "attention_inference": Row(
        (*f.QKV, "bias"), ("y",), f.ATTENTION, optional=("bias",), batch=_first(*f.QKV, "y"),
        function="attention",
    ),
    "attention_backward": Row(
        ("dy", *f.QKV, "y", "stats", "bias"), ("dq", "dk", "dv"), f.ATTENTION, optional=("bias",),
        batch=_first("dy", *f.QKV, "y", "stats", "dq", "dk", "dv"),
    ),
    "attention_bias_backward": Row(
        ("dy", *f.QKV, "y", "stats", "bias"), ("dq", "dk", "dv", "dbias"), f.ATTENTION, optional=("bias",),
        fixed={"dbias": True}, function="attention_backward",
    ),
    "ctc_loss": Row(
        ("logits", "labels", "label_lengths", "input_lengths"), ("loss", "gradient"),
        needs={"logits": ("gradient",)}, gradient=f.ctc_loss,
    ),
    "affine_grid": Row(
        ("theta",), ("grid",), {"shape": Param("shape")}, needs={"theta": ()}, gradient=f.affine_grid,
    ),
    "affine_grid_backward": Row(
        ("dgrid",), ("dtheta",), needs={"dgrid": ()}, gradient=f.affine_grid_backward,
        batch=_first("dgrid", "dtheta"),
    ),
    "grid_sample": Row(
        ("x", "grid"), ("y",), needs=dict.fromkeys(("x", "grid"), ("x", "grid")), gradient=f.grid_sample,
        batch=_first("x", "grid", "y"),
    ),
    "grid_sample_backward": Row(
        ("dy", "x", "grid"), ("dx", "dgrid"), batch=_first("dy", "x", "grid", "dx", "dgrid"),
    ),
}
# fmt: on
OPERATIONS = {name: row._replace(function=row.function or name) for name, row in _ROWS.items()}


# --- recurrent networks, methods of RNN, and their bodies --------------------------------------------------

# Their weights are one array. The reserve of a training pass belongs to the package, so that a gradient runs
# the network again.
_NETWORK = {
    "hidden_size": Param("int"),
    "mode": Param("str", "lstm"),
    "num_layers": Param("int", 1),
    "direction": Param("str", "unidirectional"),
    "bias": Param("str", "double_bias"),
    "projection_size": Param("int", 0),
}
_CALL = {"layout": Param("str", "sequence_major"), "lengths": Param("lengths", None, optional=True)}
PARAMS = {**_NETWORK, **_CALL}
Params = Mapping[str, Any]


def _rows(name: str, states: tuple[str, ...], last: tuple[str, ...]) -> dict[str, Row]:
    """Return the forward and the backward row of networks by the names of their states."""
    operands, results = ("x", "w", *states), ("y", *last)
    given, found = (tuple(f"d{one}" for one in names) for names in (results, operands))

    def gradient(ops: Any, at: Backward) -> dict[str, Any]:
        arrays = (at[one] for one in (*operands, *given))
        return dict(zip(operands, getattr(ops, f"{name}_backward")(*arrays, **at.params), strict=True))

    forward = Row(
        operands, results, PARAMS, states, needs=dict.fromkeys(operands, operands), gradient=gradient,
        differentiable=len(results), function="rnn",
    )  # fmt: skip
    backward = Row((*operands, *given), found, PARAMS, (*states, *given), function="rnn_backward")
    return {name: forward, f"{name}_backward": backward}


NETWORKS = {**_rows("lstm", ("h0", "c0"), ("hy", "cy")), **_rows("rnn", ("h0",), ("hy",))}


def spec_of_network(x: TensorSpec, params: Params) -> RNNSpec:
    """Check the parameters of a network for an input, and return it as a value."""
    return rnn_spec(input_size=x.shape[-1], dtype=x.dtype, **{one: params[one] for one in _NETWORK})


def network_results(name: str, params: Params, specs: Mapping[str, TensorSpec]) -> tuple[TensorSpec, ...]:
    """Check the operands of a network, and return its results."""
    x, dtypes = specs["x"], {one: spec.dtype for one, spec in specs.items()}
    expect_rank(x, "x", 2 if params["layout"] == "packed" else 3)
    spec = spec_of_network(x, params)
    one_dtype("a recurrent network", **dtypes)
    h, c = (specs[one].shape if one in specs else None for one in ("h0", "c0"))
    shapes, _ = check_rnn_operands(spec, x.shape, h, c, params["lengths"], params["layout"])
    known = {**shapes._asdict(), "w": (rnn_weight_size(spec),)}
    if specs["w"].shape != known["w"]:
        raise ValueError(f"w has the wrong shape: got {specs['w'].shape}, expected {known['w']} for {spec}")
    letters = (one.strip("d0")[0] for one in NETWORKS[name].results)  # dx, hy, dc0 are like x, h, c
    return tuple(TensorSpec.packed(known[letter], x.dtype) for letter in letters)


def body(rnn: Any, name: str, x: TensorSpec, params: Params, precision: str | None = None) -> Any:
    """Return the function of a row, by the class of networks: it takes the operands by name, and ``out``."""
    network = _network(rnn, spec_of_network(x, params), precision)
    run = partial(_backward, network) if name.endswith("_backward") else network.forward
    return partial(run, **{one: params[one] for one in _CALL})


@lru_cache(64)
def _network(rnn: Any, spec: RNNSpec, precision: str | None) -> Any:
    keywords = {one: getattr(spec, one) for one in (*_NETWORK, "input_size", "dtype")}
    return rnn(**keywords, precision=precision)


def _backward(rnn: Any, *, dy: Any, dhy: Any, dcy: Any = None, out: Any, **given: Any) -> None:
    reserve, stream = rnn.forward(**given, training=True).reserve, given.get("stream")
    rnn.backward_data(dy, reserve, dhy, dcy, out=(out[0], *out[2:]), stream=stream)
    rnn.backward_weights(reserve, out=out[1], stream=stream)
