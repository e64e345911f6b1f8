"""Random cases for the answers: one function for each operation draws operands and arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from scipy import special

from tests.operations import each

from . import by_loops
from .answer import GATES, Answer, conv_parameters, transformed_shape
from .recipes import Case, gradient_case, pick
from .tables import defined

__all__ = ["DRAWS", "MODES", "ROUNDS", "cases", "conv_case", "solve", "value"]

ROUNDS = 40  # random cases for each operation


def solve(name: str, operands: dict[str, Any], **arguments: Any) -> dict[str, Answer]:
    return by_loops.ANSWERS[name](operands, arguments)


def value(name: str, operands: dict[str, Any], **arguments: Any) -> np.ndarray:
    """Return the only result of an operation."""
    (answer,) = solve(name, operands, **arguments).values()
    return answer.value


def _shape(rng: np.random.Generator, ndim: int, most: int = 4, least: int = 1) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(least, most + 1, ndim))


def conv_case(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any], tuple[int, ...]]:
    """Operands x and w, arguments, and the shape of the result."""
    axes, groups = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    window = _shape(rng, axes, 3)
    arguments = {
        "padding": pick(rng, 0, 1, "valid", "half", "full", tuple((0, 2) for _ in window), (1,) * axes),
        "stride": pick(rng, 1, 2, (2,) * axes),
        "dilation": pick(rng, 1, 2),
        "groups": groups,
        "mode": pick(rng, "cross_correlation", "convolution"),
    }
    w = rng.normal(size=(groups * int(rng.integers(1, 3)), int(rng.integers(0, 3)), *window))
    x = rng.normal(size=(int(rng.integers(0, 3)), w.shape[1] * groups, *_shape(rng, axes, 8, 5)))
    out = conv_parameters(window, arguments).geometry.out(x.shape[2:])
    return {"x": x, "w": w}, arguments, (x.shape[0], w.shape[0], *out)


def conv(rng: np.random.Generator) -> Case:
    operands, arguments, _ = conv_case(rng)
    return operands, arguments


def conv_backward_data(rng: np.random.Generator) -> Case:
    operands, arguments, out = conv_case(rng)
    shape = operands["x"].shape
    return (
        {"w": operands["w"], "dy": rng.normal(size=out)},
        {**arguments, "x_shape": shape},
    )


def conv_backward_filter(rng: np.random.Generator) -> Case:
    operands, arguments, out = conv_case(rng)
    shape = operands["w"].shape
    given = {"x": operands["x"], "dy": rng.normal(size=out)}
    return given, {**arguments, "w_shape": shape}


def conv_backward_bias(rng: np.random.Generator) -> Case:
    return {"dy": rng.normal(size=_shape(rng, int(rng.integers(3, 6)), 4, 0))}, {}


def conv_transpose(rng: np.random.Generator) -> Case:
    operands, arguments, out = conv_case(rng)
    arguments = {
        **arguments,
        "stride": 2,
        "output_padding": pick(rng, 0, 1),
        "padding": pick(rng, 0, "half"),
    }
    return {"x": rng.normal(size=out), "w": operands["w"]}, arguments


def conv_bias_activation(rng: np.random.Generator) -> Case:
    operands, arguments, out = conv_case(rng)
    operands["residual"] = pick(rng, None, rng.normal(size=out))
    operands["bias"] = pick(rng, None, rng.normal(size=out[1]))
    modes = ("relu", "clipped_relu", "sigmoid", "tanh", "elu", "gelu", "swish", "identity")
    after = {"activation": pick(rng, *modes), "coefficient": pick(rng, 0.5, 1), "alpha1": pick(rng, 1, -2)}
    return operands, {**arguments, **after, "alpha2": pick(rng, 1, 0.25)}


MODES = ("relu", "clipped_relu", "sigmoid", "tanh", "elu", "swish", "identity")


def activation(rng: np.random.Generator) -> Case:
    x = rng.normal(size=_shape(rng, int(rng.integers(0, 5)), 4, 0)) * 3
    if x.size > 2:
        x.reshape(-1)[:3] = np.nan, np.inf, 0.0
    arguments = {
        "mode": pick(rng, *MODES),
        "coefficient": pick(rng, 0, 1.5),
        "propagate_nan": pick(rng, True, False),
    }
    return {"x": x}, arguments


def activation_backward(rng: np.random.Generator) -> Case:
    x = rng.normal(size=_shape(rng, 3)) * 3
    arguments = {"mode": pick(rng, *MODES), "coefficient": pick(rng, 0, 1.5)}
    y = value("activation", {"x": x}, **arguments)
    return {"x": x, "y": y, "dy": rng.normal(size=x.shape)}, arguments


def op_tensor(rng: np.random.Generator) -> Case:
    a = rng.normal(size=_shape(rng, 3, 4, 0))
    b = rng.normal(size=tuple(pick(rng, 1, n) for n in a.shape))
    a.reshape(-1)[:1], b.reshape(-1)[-1:] = np.nan, np.nan
    op = pick(rng, "add", "mul", "min", "max", "sqrt", "not")
    operands = {"a": np.abs(a) if op == "sqrt" else a, "b": None if op in ("sqrt", "not") else b}
    factors = {"alpha1": pick(rng, 1, 2.5), "alpha2": pick(rng, 1, -0.5)}
    return operands, {"op": op, "propagate_nan": pick(rng, True, False), **factors}


def add(rng: np.random.Generator) -> Case:
    a = rng.normal(size=_shape(rng, 4))
    return {"a": a, "b": rng.normal(size=(1, a.shape[1], 1, 1))}, {}


def scale(rng: np.random.Generator) -> Case:
    return {"x": rng.normal(size=_shape(rng, 2))}, {"alpha": -1.5}


def fill(rng: np.random.Generator) -> Case:
    return {"x": rng.normal(size=_shape(rng, 2, 3, 0))}, {"value": 0.1}


def transform(rng: np.random.Generator) -> Case:
    return {"x": rng.normal(size=_shape(rng, 2)).T}, {"layout": "nhwc"}


def reduce(rng: np.random.Generator) -> Case:
    ops = ("add", "mul", "min", "max", "amax", "average", "norm1", "norm2", "mul_no_zeros")
    x, op = rng.normal(size=_shape(rng, int(rng.integers(1, 5)))), pick(rng, *ops)
    if op in ("add", "mul", "norm1", "norm2", "mul_no_zeros"):
        x = x[: pick(rng, 0, None)]
    if op == "mul_no_zeros" and x.size:
        x.reshape(-1)[0] = 0
    if pick(rng, False, True) and x.size:
        x.reshape(-1)[-1] = np.nan
    axes = pick(rng, None, 0, -1, tuple(range(x.ndim))[::2], ())
    if axes == ():
        axes = (0,)
    arguments = {
        "op": op,
        "axis": axes,
        "keepdims": pick(rng, False, True),
        "propagate_nan": pick(rng, True, False),
    }
    return {"x": x}, {**arguments, "indices": op in ("min", "max")}


def _pool_case(rng: np.random.Generator) -> tuple[np.ndarray, dict[str, Any]]:
    axes = int(rng.integers(1, 4))
    x = rng.normal(size=(*_shape(rng, 2, 3, 0), *_shape(rng, axes, 7, 3)))
    window = pick(rng, "global", 2, 3, _shape(rng, axes, 3))
    arguments = {
        "window": window,
        "stride": pick(rng, None, 1, 2),
        "padding": 0 if window == "global" or np.ndim(window) else pick(rng, 0, 1, "half", ((0, 1),) * axes),
        "mode": pick(rng, "max", "max_deterministic", "average", "average_inc_pad", "average_exc_pad", "sum"),
        "propagate_nan": pick(rng, True, False),
    }
    return x, arguments


def pool(rng: np.random.Generator) -> Case:
    x, arguments = _pool_case(rng)
    if x.size > 3 and pick(rng, True, False):
        x.reshape(-1)[:3] = np.nan, np.inf, -np.inf
    return {"x": x}, arguments


def pool_backward(rng: np.random.Generator) -> Case:
    x, arguments = _pool_case(rng)
    if pick(rng, True, False):
        x = np.round(x)  # with equal elements
    y = value("pool", {"x": x}, **arguments)
    return {"x": x, "y": y, "dy": rng.normal(size=y.shape)}, arguments


def softmax(rng: np.random.Generator) -> Case:
    x = rng.normal(size=_shape(rng, int(rng.integers(2, 5)), 4, pick(rng, 0, 1))) * pick(rng, 1, 20)
    axis = pick(rng, None, 0, -1, (0, 1), (-2, -1))
    mode, algo = pick(rng, "channel", "instance"), pick(rng, "accurate", "fast", "log")
    return {"x": x}, {"algo": algo, "mode": mode, "axis": axis}


def softmax_backward(rng: np.random.Generator) -> Case:
    operands, arguments = softmax(rng)
    y = value("softmax", operands, **arguments)
    return {"y": y, "dy": rng.normal(size=y.shape)}, arguments


def _norm_case(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    mode = pick(rng, "spatial", "per_activation")
    x = rng.normal(size=_shape(rng, int(rng.integers(2, 6)), 4, 2)) * 3 + 1
    shape = (1, x.shape[1], *([1] * (x.ndim - 2) if mode == "spatial" else x.shape[2:]))
    if mode == "spatial" and pick(rng, True, False):
        shape = shape[1:2]
    names = ("scale", "bias", "mean", "var")
    operands = {"x": x, **{name: np.abs(rng.normal(size=shape)) + 0.1 for name in names}}
    return operands, {"mode": mode, "epsilon": pick(rng, 0, 1e-5, 0.1)}


def batch_norm_training(rng: np.random.Generator) -> Case:
    operands, arguments = _norm_case(rng)
    if pick(rng, True, False):
        operands["running_mean"], operands["running_var"] = operands["mean"], operands["var"]
    for name in ("mean", "var"):
        del operands[name]
    operands["residual"] = pick(rng, None, rng.normal(size=operands["x"].shape))
    if pick(rng, True, False, False, False):
        operands["x"] = operands["x"][:0]
        operands["residual"] = None
    more = {"momentum": pick(rng, 0.1, 1.0, 0), "activation": pick(rng, None, "relu")}
    return operands, {**arguments, **more}


def batch_norm_inference(rng: np.random.Generator) -> Case:
    operands, arguments = _norm_case(rng)
    operands["x"] = operands["x"][: pick(rng, 0, None, None)]
    return operands, arguments


def batch_norm_backward(rng: np.random.Generator) -> Case:
    operands, arguments = _norm_case(rng)
    x, scale = operands["x"], operands["scale"]
    forward = solve("batch_norm_training", {"x": x, "scale": scale, "bias": operands["bias"]}, **arguments)
    given = {"x": x, "scale": scale, "dy": rng.normal(size=x.shape)}
    if pick(rng, True, False):
        given.update({name: forward[name].value for name in ("mean", "invstd")})
    if pick(rng, True, False):
        arguments["activation"] = "relu"
        given["y"] = np.maximum(forward["y"].value, 0)
    return given, arguments


def batch_norm_inference_backward(rng: np.random.Generator) -> Case:
    operands, arguments = _norm_case(rng)
    operands["dy"] = rng.normal(size=operands["x"].shape)
    del operands["bias"]
    return operands, arguments


def instance_norm(rng: np.random.Generator) -> Case:
    shape = (pick(rng, 0, 1, 3), *_shape(rng, 2, 4, 1))
    operands = {
        "x": rng.normal(size=shape),
        "scale": rng.normal(size=shape[1]),
        "bias": rng.normal(size=shape[1]),
    }
    return operands, {"epsilon": pick(rng, 0.01, 0.1)}


def instance_norm_backward(rng: np.random.Generator) -> Case:
    return gradient_case(rng, by_loops.VALUES["instance_norm"], *instance_norm(rng))


def matmul(rng: np.random.Generator) -> Case:
    m, n, k = (int(one) for one in rng.integers(1, 6, 3))
    batch = pick(rng, ((), ()), ((2,), ()), ((), (3,)), ((2, 1), (3,)), ((2,), (2,)))
    operands: dict[str, Any] = {
        "a": rng.normal(size=(*batch[0], m, k)),
        "b": rng.normal(size=(*batch[1], k, n)),
    }
    if pick(rng, True, False):
        operands["bias"] = rng.normal(size=n)
    names = (None, "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
    return operands, {"activation": pick(rng, *names), "alpha": pick(rng, 1, -0.5)}


def matmul_backward(rng: np.random.Generator) -> Case:
    operands, _ = matmul(rng)
    operands.pop("bias", None)
    operands["dy"] = rng.normal(size=np.matmul(operands["a"], operands["b"]).shape)
    return operands, {"alpha": 0.5, "bias_gradient": pick(rng, True, False)}


def _row_norm(mode: str, rng: np.random.Generator) -> Case:
    shape = (3, *_shape(rng, 2, 5, 1))
    parameter = (3, shape[-1]) if mode == "ada_layer_norm" else shape[-1:]
    operands = {"x": rng.normal(size=shape), "scale": rng.normal(size=parameter)}
    if pick(rng, True, False):
        operands["bias"] = rng.normal(size=parameter)
    return operands, {"epsilon": pick(rng, 0.01, 0.1)}


def _row_norm_backward(mode: str, rng: np.random.Generator) -> Case:
    operands, arguments = _row_norm(mode, rng)
    forward = solve(mode, operands, **arguments)
    given = {"dy": rng.normal(size=operands["x"].shape), "x": operands["x"], "scale": operands["scale"]}
    given |= {name: one.value for name, one in forward.items() if name != "y"}
    more = {"bias_gradient": pick(rng, True, False)} if mode == "rms_norm" else {}
    return given, more


def causal_conv1d(rng: np.random.Generator) -> Case:
    x, width = rng.normal(size=_shape(rng, 3, 5, 0)), int(rng.integers(2, 9))
    operands = {"x": x, "w": rng.normal(size=(x.shape[1], width))}
    operands |= {"bias": rng.normal(size=x.shape[1])} if pick(rng, True, False) else {}
    return operands, {"activation": pick(rng, None, "silu")}


def causal_conv1d_backward(rng: np.random.Generator) -> Case:
    operands, arguments = causal_conv1d(rng)
    return {**operands, "dy": rng.normal(size=operands["x"].shape)}, arguments


def fft_causal_conv1d(rng: np.random.Generator) -> Case:
    channels, width = _shape(rng, 2)[0], pick(rng, 128, 256)
    x = rng.normal(size=(int(rng.integers(0, 3)), channels, width * int(rng.integers(1, 4))))
    return {"x": x, "w": rng.normal(size=(channels, width))}, {}


def fft_causal_conv1d_backward(rng: np.random.Generator) -> Case:
    operands, _ = fft_causal_conv1d(rng)
    return {**operands, "dy": rng.normal(size=operands["x"].shape)}, {}


def b2b_causal_conv1d(rng: np.random.Generator) -> Case:
    n, channels, length = _shape(rng, 3, 5, 0)
    projection, mixer = (int(one) for one in rng.integers(2, 9, 2))
    shapes = {
        "x": (n, channels, 3, length),
        "w_proj": (channels, 3, projection),
        "w_mixer": (channels, mixer),
    }
    operands = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    return {**operands, "skip_bias": rng.normal(size=channels)}, {}


def b2b_causal_conv1d_backward(rng: np.random.Generator) -> Case:
    operands, _ = b2b_causal_conv1d(rng)
    n, channels, _, length = operands["x"].shape
    more = {name: rng.normal(size=(n, channels, length)) for name in ("mixed", "dy")}
    return {**operands, **more}, {}


def _graph(rng: np.random.Generator) -> tuple[dict[str, Any], int]:
    lengths, sources = rng.integers(1, 4, int(rng.integers(1, 4))), int(rng.integers(1, 5))
    offsets = [0, *np.cumsum(lengths).tolist()]
    arguments: dict[str, Any] = {
        "offsets": offsets,
        "indices": rng.integers(0, sources, offsets[-1]).tolist(),
    }
    return arguments | {"order": pick(rng, None, rng.permutation(offsets[-1]).tolist())}, sources


def graph_aggregate(rng: np.random.Generator) -> Case:
    arguments, sources = _graph(rng)
    rows = (sources, len(arguments["indices"]), len(arguments["offsets"]) - 1)
    columns = pick(rng, (3, 0, 0), (0, 2, 0), (4, 1, 2))
    named = zip(("x", "edges", "concat"), rows, columns, strict=True)
    operands = {name: rng.normal(size=(n, count)) for name, n, count in named if count}
    return operands, {**arguments, "op": pick(rng, "sum", "mean", "max", "min")}


def graph_aggregate_backward(rng: np.random.Generator) -> Case:
    operands, arguments = graph_aggregate(rng)
    y = value("graph_aggregate", operands, **{**arguments, "op": "sum"})
    shapes = {f"{name}_shape": operands[name].shape for name in ("x", "edges") if name in operands}
    arguments |= {**shapes, "op": pick(rng, "sum", "mean")}
    return {"dy": rng.normal(size=y.shape)}, arguments


_CURVES = ("leaky_relu", "identity", "relu", "sigmoid", "tanh", "elu", "scale")


def graph_attention(rng: np.random.Generator) -> Case:
    arguments, sources = _graph(rng)
    heads, edges, nodes = pick(rng, 1, 2, 3), len(arguments["indices"]), len(arguments["offsets"]) - 1
    features = heads * int(rng.integers(1, 4))
    shapes = {"x": (sources, features), "target": (nodes, features), "w": (features,)}
    operands = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    operands["edges"] = pick(rng, None, rng.normal(size=(edges, features)))
    operands["mask"] = pick(rng, None, rng.uniform(0.5, 2, (heads, edges)))
    given = {"heads": heads, "concat": pick(rng, True, False), "activation": pick(rng, *_CURVES)}
    return operands, {**arguments, **given}


def graph_attention_backward(rng: np.random.Generator) -> Case:
    operands, arguments = graph_attention(rng)
    found = {name: one.value for name, one in solve("graph_attention", operands, **arguments).items()}
    saved = {name: found[name] for name in ("scores", "activated")}
    dy = rng.normal(size=found["y"].shape)
    return {**operands, **saved, "dy": dy}, arguments


def lrn(rng: np.random.Generator) -> Case:
    x = rng.normal(
        size=(*_shape(rng, 1, 3, 0), int(rng.integers(1, 7)), *_shape(rng, int(rng.integers(1, 4)), 3))
    )
    factors = {"lrn_alpha": pick(rng, 1e-4, 1.0), "lrn_beta": pick(rng, 0.75, 1), "k": pick(rng, 2, 1.0)}
    return {"x": x}, {"n": int(rng.integers(1, 8)), **factors}


def lrn_backward(rng: np.random.Generator) -> Case:
    operands, arguments = lrn(rng)
    y = value("lrn", operands, **arguments)
    return {**operands, "y": y, "dy": rng.normal(size=y.shape)}, arguments


def affine_grid(rng: np.random.Generator) -> Case:
    n = int(rng.integers(0, 4))
    return {"theta": rng.normal(size=(n, 2, 3))}, {"shape": (n, *_shape(rng, 3, 5))}


def affine_grid_backward(rng: np.random.Generator) -> Case:
    return {"dgrid": rng.normal(size=(*_shape(rng, 3, 5), 2))}, {}


def grid_sample(rng: np.random.Generator) -> Case:
    x = rng.normal(size=_shape(rng, 4, 5))
    grid = rng.normal(size=(x.shape[0], *_shape(rng, 2, 5), 2)) * pick(rng, 0.5, 1.5)
    grid[0, 0, 0] = pick(rng, (-1, 1), (0, 0), (9, 9), (np.nan, 0))
    return {"x": x, "grid": grid}, {}


def grid_sample_backward(rng: np.random.Generator) -> Case:
    operands, _ = grid_sample(rng)
    operands["dy"] = rng.normal(size=(*operands["x"].shape[:2], *operands["grid"].shape[1:3]))
    return operands, {}


def spatial_transformer(rng: np.random.Generator) -> Case:
    x = rng.normal(size=_shape(rng, 4, 5, 0) if pick(rng, 1, 0, 0) else _shape(rng, 4, 5))
    x = x.reshape(*x.shape[:2], *(max(1, n) for n in x.shape[2:])) if x.size else np.zeros((0, 2, 3, 3))
    scales = {"scale_height": pick(rng, 1, 0.5, 1.7), "scale_width": pick(rng, 1, 0.3)}
    return {"x": x, "theta": rng.normal(size=(x.shape[0], 2, 3))}, scales


def spatial_transformer_backward(rng: np.random.Generator) -> Case:
    operands, arguments = spatial_transformer(rng)
    operands["dy"] = rng.normal(size=transformed_shape(operands["x"].shape, arguments))
    return operands, arguments


def dropout(rng: np.random.Generator) -> Case:
    x = rng.normal(size=_shape(rng, 3))
    return {"x": x, "mask": rng.random(x.shape) < 0.5}, {"p": 0.3}


def dropout_backward(rng: np.random.Generator) -> Case:
    operands, arguments = dropout(rng)
    return {"dy": operands["x"], "mask": operands["mask"]}, arguments


def ctc_loss(rng: np.random.Generator) -> Case:
    steps, batch, symbols = (int(n) for n in rng.integers((1, 1, 2), (8, 5, 5)))
    normalization = pick(rng, "softmax", "none")
    logits = rng.normal(size=(steps, batch, symbols)) * 2
    if normalization == "none":
        logits = special.softmax(logits, -1)
        logits[rng.random(logits.shape) < pick(rng, 0, 0.2)] = 0
    lengths = rng.integers(0, 4, batch)
    labels: Any = rng.integers(1, symbols, (batch, 4))
    if pick(rng, True, False):
        labels = np.concatenate([row[:count] for row, count in zip(labels, lengths, strict=True)])
    arguments = {
        "labels": labels,
        "label_lengths": lengths,
        "input_lengths": rng.integers(0, steps + 1, batch),
        "normalization": normalization,
        "out_of_bound": pick(rng, "zero", "skip"),
    }
    return {"logits": logits, "out": pick(rng, None, np.ones(logits.shape))}, arguments


def _rnn(rng: np.random.Generator) -> Case:
    mode = pick(rng, *GATES)
    inputs, hidden, layers, directions = (int(n) for n in rng.integers((1, 2, 1, 1), (4, 5, 3, 3)))
    skip = pick(rng, False, False, True)
    inputs = hidden if skip else inputs
    projected = hidden - 1 if mode == "lstm" and pick(rng, True, False) else 0
    biases, weights = pick(rng, (), ("bW",), ("bR",), ("bW", "bR")), {}
    output = projected or hidden
    for layer in range(layers):
        for direction in range(directions):
            where = f"l{layer}{'_reverse' * direction}."
            for gate in GATES[mode]:
                if layer or not skip:
                    size = output * directions if layer else inputs
                    weights[f"{where}W_{gate}"] = rng.normal(size=(hidden, size))
                weights[f"{where}R_{gate}"] = rng.normal(size=(hidden, output))
                weights.update({f"{where}{bias}_{gate}": rng.normal(size=hidden) for bias in biases})
            if projected:
                weights[f"{where}P"] = rng.normal(size=(projected, hidden))
    layout, batch, steps = pick(rng, "sequence_major", "batch_major", "packed"), 3, 4
    lengths: Any = pick(rng, None, (4, 0, 2), (1, 3, 4))
    shape: tuple[int, ...] = (steps, batch) if layout == "sequence_major" else (batch, steps)
    if layout == "packed":
        lengths = (4, 2, 1)
        shape = (sum(lengths),)
    rows = (layers * directions, batch)
    operands: dict[str, Any] = {"x": rng.normal(size=(*shape, inputs)), "weights": weights}
    operands["h0"] = pick(rng, None, rng.normal(size=(*rows, output)))
    if mode == "lstm":
        operands["c0"] = pick(rng, None, rng.normal(size=(*rows, hidden)))
    for name, size in (
        ("dy", (*shape, output * directions)),
        ("dhy", (*rows, output)),
        ("dcy", (*rows, hidden)),
    ):
        if name != "dcy" or mode == "lstm":
            operands[name] = pick(rng, None, rng.normal(size=size))
    arguments = {
        "mode": mode,
        "num_layers": layers,
        "direction": "bidirectional" if directions == 2 else "unidirectional",
        "layout": layout,
        "lengths": lengths,
        "padding_value": pick(rng, 0, 7.5),
        "clip": pick(rng, None, (-0.5, 0.25)) if mode == "lstm" else None,
    }
    return operands, arguments


def scaled_matmul(rng: np.random.Generator) -> Case:
    rows, terms, columns, batch = (int(n) for n in rng.integers(1, 6, 4))
    operands = {"a": rng.normal(size=(batch, rows, terms)), "b": rng.normal(size=(terms, columns))}
    for name in ("descale_a", "descale_b", "scale"):
        operands[name] = pick(rng, None, rng.uniform(0.5, 2, 1))
    operands["bias"] = pick(rng, None, rng.normal(size=columns))
    operands["residual"] = pick(rng, None, rng.normal(size=(batch, rows, columns)))
    activation = pick(rng, None, "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
    return operands, {"activation": activation, "amax": pick(rng, True, False)}


def attention(rng: np.random.Generator) -> Case:
    kv_heads, batch, head, value_head = 1 + rng.integers(2), 1 + rng.integers(3), 8, pick(rng, 8, 16)
    heads, queries, keys = kv_heads * pick(rng, 1, 3), pick(rng, 1, 4, 7), pick(rng, 2, 4, 9)
    kind = pick(rng, "", "bias", "padded", "packed", "paged")
    causal = pick(rng, False, "top_left", "bottom_right")
    arguments = {"causal": causal, "scale": pick(rng, None, 0.5), "return_stats": bool(rng.integers(2))}
    if queries <= keys and kind in ("", "bias"):
        arguments["window"] = pick(rng, None, (2, None), (1, 1), (-1, 2))
    shapes = {"q": (batch, heads, queries, head), "k": (batch, kv_heads, keys, head)}
    shapes["v"] = (batch, kv_heads, keys, value_head)
    if kind == "paged":
        shapes |= {"k": (2 * batch, kv_heads, 3, head), "v": (2 * batch, kv_heads, 3, value_head)}
        arguments["page_table"] = rng.permutation(2 * batch).reshape(batch, 2).tolist()
        keys = 6
    lengths = [[int(n) for n in rng.integers(1, most + 1, batch)] for most in (queries, keys)]
    if causal == "bottom_right":
        lengths[0] = list(map(min, *lengths))
    if kind in ("padded", "paged"):
        arguments |= {"lengths_q": lengths[0], "lengths_kv": lengths[1]}
    if kind == "packed":
        room = lengths
        if rng.random() < 0.5:
            room = [[n + int(rng.integers(3)) for n in each] for each in lengths]
            arguments |= {"lengths_q": lengths[0], "lengths_kv": lengths[1]}
        shapes = {name: (sum(room[name != "q"]), shape[1], shape[3]) for name, shape in shapes.items()}
        for name, each in zip(("offsets_q", "offsets_kv"), room, strict=True):
            arguments[name] = [0, *(int(n) for n in np.cumsum(each))]
    operands = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    if kind == "bias":
        full = (batch, heads, queries, keys)
        operands["bias"] = rng.normal(size=tuple(pick(rng, 1, n) for n in full[:3]) + full[3:])
        if rng.random() < 0.3:
            operands["bias"], arguments["mask"] = (operands["bias"] > -0.5).astype(float), True
    return operands, arguments


def attention_backward(rng: np.random.Generator) -> Case:
    operands, arguments = attention(rng)
    while "page_table" in arguments:
        operands, arguments = attention(rng)
    known = by_loops.VALUES["attention"](operands, {**arguments, "return_stats": True})
    known["stats"] = known["stats"].astype(np.float32).astype(np.float64)
    del arguments["return_stats"]
    arguments["dbias"] = "bias" in operands and "mask" not in arguments
    return {"dy": rng.normal(size=known["y"].shape), **operands, **known}, arguments


def clear_padding(rng: np.random.Generator) -> Case:
    lengths = [int(n) for n in rng.integers(0, 6, 3)]
    return {"x": rng.normal(size=(3, 2, 5, 8))}, {"lengths": lengths}


def scaled_attention(rng: np.random.Generator) -> Case:
    kv_heads, batch = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    shapes = {"q": (batch, kv_heads * pick(rng, 1, 3), pick(rng, 2, 4, 7), 8)}
    keys = pick(rng, 1, 4, 9)
    shapes |= {"k": (batch, kv_heads, keys, 8), "v": (batch, kv_heads, keys, pick(rng, 8, 16))}
    operands: dict[str, Any] = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    for name in ("descale_q", "descale_k", "descale_v", "scale_s", "descale_s", "scale_o"):
        operands[name] = pick(rng, None, rng.uniform(0.5, 2, 1))
    flags = {name: pick(rng, True, False) for name in ("return_stats", "amax")}
    arguments = {"causal": pick(rng, False, True, "top_left"), "scale": pick(rng, None, 0.5), **flags}
    return operands, arguments


def _fused_case(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any], tuple[int, ...]]:
    """Return operands x, w, scale and bias of a fused convolution, its arguments and the shape of y."""
    axes, batch, channels, filters = (int(n) for n in rng.integers(1, 4, 4))
    window, size = _shape(rng, axes, 3), int(rng.integers(4, 7))
    arguments = {"padding": int(rng.integers(0, 2)), "stride": int(rng.integers(1, 3)), "dilation": 1}
    x, w = (batch, channels, *[size] * axes), (filters, channels, *window)
    y = (batch, filters, *conv_parameters(window, arguments).geometry.out(x[2:]))
    operands = {"x": rng.normal(size=x), "w": rng.normal(size=w)}
    operands |= {name: rng.normal(size=channels) for name in ("scale", "bias")}
    return operands, arguments, y


def conv_scale_bias_activation(rng: np.random.Generator) -> Case:
    operands, arguments, y = _fused_case(rng)
    operands |= {name: rng.normal(size=y[1]) for name in ("scale", "bias")}
    operands["residual"] = pick(rng, None, rng.normal(size=y))
    modes = ("relu", "clipped_relu", "sigmoid", "tanh", "elu", "gelu", "swish", "identity")
    arguments |= {"activation": pick(rng, *modes), "coefficient": 1.5}
    return operands, arguments


def scaled_conv(rng: np.random.Generator) -> Case:
    operands, arguments, y = _fused_case(rng)
    operands |= {"scale": pick(rng, None, rng.uniform(0.5, 2, 1)), "bias": None}
    for name in ("descale_x", "descale_w"):
        operands[name] = pick(rng, None, rng.uniform(0.5, 2, 1))
    if rng.integers(2):
        operands["bias"] = rng.normal(size=y[1])
    activation = pick(rng, None, "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
    return operands, arguments | {"activation": activation, "amax": pick(rng, True, False)}


def conv_batch_norm_statistics(rng: np.random.Generator) -> Case:
    operands, arguments, _ = _fused_case(rng)
    if rng.integers(2):
        operands |= {"scale": None, "bias": None}
    return operands, arguments


def conv_backward_filter_scale_bias_relu(rng: np.random.Generator) -> Case:
    operands, arguments, y = _fused_case(rng)
    arguments["w_shape"] = operands.pop("w").shape
    return {"dy": rng.normal(size=y), **operands}, arguments


def conv_backward_data_relu_batch_norm(rng: np.random.Generator) -> Case:
    operands, arguments, y = _fused_case(rng)
    channels = operands["x"].shape[1]
    statistics = {"mean": rng.normal(size=channels), "invstd": rng.uniform(0.5, 2, channels)}
    operands = {"dy": rng.normal(size=y), **operands, **statistics}
    return operands, arguments


def batch_norm_finalize(rng: np.random.Generator) -> Case:
    channels = int(rng.integers(1, 6))
    operands = {"sums": rng.normal(size=channels), "square_sums": rng.uniform(20, 80, channels)}
    operands |= {name: rng.normal(size=channels) for name in ("scale", "bias", "running_mean")}
    operands["running_var"] = rng.uniform(0.5, 2, channels)
    arguments = {"count": pick(rng, 2, 9, 1000), "epsilon": pick(rng, 1e-5, 1e-2)}
    return operands, {**arguments, "momentum": pick(rng, 0.0, 0.1, 1.0)}


_ROW_NORMS = ("layer_norm", "rms_norm", "ada_layer_norm")
DRAWS: dict[str, Callable[[np.random.Generator], Case]] = {
    **{name: one for name, one in defined(globals()).items() if name in by_loops.ANSWERS},
    "RNN": _rnn,
    **{name: partial(_row_norm, name) for name in _ROW_NORMS},
    **{f"{name}_backward": partial(_row_norm_backward, name) for name in _ROW_NORMS},
    **each("case"),
}


def cases(name: str, rounds: int = ROUNDS) -> Iterator[Case]:
    for seed in range(rounds):
        yield DRAWS[name](np.random.default_rng((seed, len(name))))
