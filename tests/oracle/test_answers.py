"""The independent answers against known values, identities and each other."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy import special

from . import by_loops
from .answer import GATES, Answer, conv_parameters, transformed_shape
from .magnitude import SCALES

Case = tuple[str, dict[str, Any], dict[str, Any]]
Draw = Callable[[np.random.Generator], Case]

TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not TORCH, reason="PyTorch is not installed")

ROUNDS = 40  # random cases for each operation
UNIT = 2.0**-53


def solve(name: str, operands: dict[str, Any], **arguments: Any) -> dict[str, Answer]:
    return by_loops.ANSWERS[name](operands, arguments)


def value(name: str, operands: dict[str, Any], **arguments: Any) -> np.ndarray:
    """Return the only result of an operation."""
    (answer,) = solve(name, operands, **arguments).values()
    return answer.value


def array(*values: Any) -> np.ndarray:
    return np.array(values, np.float64)


# --- random cases: one function for each operation ----------------------------------------------------------


def _pick(rng: np.random.Generator, *values: Any) -> Any:
    return values[rng.integers(len(values))]


def _shape(rng: np.random.Generator, ndim: int, most: int = 4, least: int = 1) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(least, most + 1, ndim))


def _conv_case(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any], tuple[int, ...]]:
    """Operands x and w, arguments, and the shape of the result."""
    axes, groups = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    window = _shape(rng, axes, 3)
    arguments = {
        "padding": _pick(rng, 0, 1, "valid", "half", "full", tuple((0, 2) for _ in window), (1,) * axes),
        "stride": _pick(rng, 1, 2, (2,) * axes),
        "dilation": _pick(rng, 1, 2),
        "groups": groups,
        "mode": _pick(rng, "cross_correlation", "convolution"),
    }
    w = rng.normal(size=(groups * int(rng.integers(1, 3)), int(rng.integers(0, 3)), *window))
    x = rng.normal(size=(int(rng.integers(0, 3)), w.shape[1] * groups, *_shape(rng, axes, 8, 5)))
    out = conv_parameters(window, arguments).geometry.out(x.shape[2:])
    return {"x": x, "w": w}, arguments, (x.shape[0], w.shape[0], *out)


def _conv(rng: np.random.Generator) -> Case:
    operands, arguments, _ = _conv_case(rng)
    return "conv", operands, arguments


def _conv_backward_data(rng: np.random.Generator) -> Case:
    operands, arguments, out = _conv_case(rng)
    shape = operands["x"].shape
    return (
        "conv_backward_data",
        {"w": operands["w"], "dy": rng.normal(size=out)},
        {**arguments, "x_shape": shape},
    )


def _conv_backward_filter(rng: np.random.Generator) -> Case:
    operands, arguments, out = _conv_case(rng)
    shape = operands["w"].shape
    given = {"x": operands["x"], "dy": rng.normal(size=out)}
    return "conv_backward_filter", given, {**arguments, "w_shape": shape}


def _conv_backward_bias(rng: np.random.Generator) -> Case:
    return "conv_backward_bias", {"dy": rng.normal(size=_shape(rng, int(rng.integers(3, 6)), 4, 0))}, {}


def _conv_transpose(rng: np.random.Generator) -> Case:
    operands, arguments, out = _conv_case(rng)
    arguments = {
        **arguments,
        "stride": 2,
        "output_padding": _pick(rng, 0, 1),
        "padding": _pick(rng, 0, "half"),
    }
    return "conv_transpose", {"x": rng.normal(size=out), "w": operands["w"]}, arguments


def _conv_bias_activation(rng: np.random.Generator) -> Case:
    operands, arguments, out = _conv_case(rng)
    operands["z"] = _pick(rng, None, rng.normal(size=out))
    operands["b"] = _pick(rng, None, rng.normal(size=out[1]))
    modes = ("relu", "clipped_relu", "sigmoid", "tanh", "elu", "gelu", "swish", "identity")
    after = {"activation": _pick(rng, *modes), "coef": _pick(rng, 0.5, 1), "alpha1": _pick(rng, 1, -2)}
    return "conv_bias_activation", operands, {**arguments, **after, "alpha2": _pick(rng, 1, 0.25)}


_MODES = ("relu", "clipped_relu", "sigmoid", "tanh", "elu", "swish", "identity")


def _activation(rng: np.random.Generator) -> Case:
    x = rng.normal(size=_shape(rng, int(rng.integers(0, 5)), 4, 0)) * 3
    if x.size > 2:
        x.reshape(-1)[:3] = np.nan, np.inf, 0.0
    arguments = {"mode": _pick(rng, *_MODES), "coef": _pick(rng, 0, 1.5), "nan": _pick(rng, *_NAN)}
    return "activation", {"x": x}, arguments


_NAN = ("propagate", "not_propagate")


def _activation_backward(rng: np.random.Generator) -> Case:
    x = rng.normal(size=_shape(rng, 3)) * 3
    arguments = {"mode": _pick(rng, *_MODES), "coef": _pick(rng, 0, 1.5)}
    y = value("activation", {"x": x}, **arguments)
    return "activation_backward", {"x": x, "y": y, "dy": rng.normal(size=x.shape)}, arguments


def _op_tensor(rng: np.random.Generator) -> Case:
    a = rng.normal(size=_shape(rng, 3, 4, 0))
    b = rng.normal(size=tuple(_pick(rng, 1, n) for n in a.shape))
    a.reshape(-1)[:1], b.reshape(-1)[-1:] = np.nan, np.nan
    op = _pick(rng, "add", "mul", "min", "max", "sqrt", "not")
    operands = {"a": np.abs(a) if op == "sqrt" else a, "b": None if op in ("sqrt", "not") else b}
    factors = {"alpha1": _pick(rng, 1, 2.5), "alpha2": _pick(rng, 1, -0.5)}
    return "op_tensor", operands, {"op": op, "nan": _pick(rng, *_NAN), **factors}


def _add(rng: np.random.Generator) -> Case:
    a = rng.normal(size=_shape(rng, 4))
    return "add", {"a": a, "b": rng.normal(size=(1, a.shape[1], 1, 1))}, {}


def _scale(rng: np.random.Generator) -> Case:
    return "scale", {"x": rng.normal(size=_shape(rng, 2))}, {"alpha": -1.5}


def _fill(rng: np.random.Generator) -> Case:
    return "fill", {"x": rng.normal(size=_shape(rng, 2, 3, 0))}, {"value": 0.1}


def _transform(rng: np.random.Generator) -> Case:
    return "transform", {"x": rng.normal(size=_shape(rng, 2)).T}, {"layout": "nhwc"}


def _reduce(rng: np.random.Generator) -> Case:
    ops = ("add", "mul", "min", "max", "amax", "avg", "norm1", "norm2", "mul_no_zeros")
    x, op = rng.normal(size=_shape(rng, int(rng.integers(1, 5)))), _pick(rng, *ops)
    if op in ("add", "mul", "norm1", "norm2", "mul_no_zeros"):
        x = x[: _pick(rng, 0, None)]
    if op == "mul_no_zeros" and x.size:
        x.reshape(-1)[0] = 0
    if _pick(rng, False, True) and x.size:
        x.reshape(-1)[-1] = np.nan
    axes = _pick(rng, None, 0, -1, tuple(range(x.ndim))[::2], ())
    if axes == ():
        axes = (0,)
    arguments = {"op": op, "axes": axes, "keepdims": _pick(rng, False, True), "nan": _pick(rng, *_NAN)}
    return "reduce", {"x": x}, {**arguments, "indices": op in ("min", "max")}


def _pool_case(rng: np.random.Generator) -> tuple[np.ndarray, dict[str, Any]]:
    axes = int(rng.integers(1, 4))
    x = rng.normal(size=(*_shape(rng, 2, 3, 0), *_shape(rng, axes, 7, 3)))
    window = _pick(rng, "global", 2, 3, _shape(rng, axes, 3))
    arguments = {
        "window": window,
        "stride": _pick(rng, None, 1, 2),
        "padding": 0 if window == "global" or np.ndim(window) else _pick(rng, 0, 1, "half", ((0, 1),) * axes),
        "mode": _pick(
            rng, "max", "max_deterministic", "average", "average_inc_pad", "average_exc_pad", "sum"
        ),
        "nan": _pick(rng, *_NAN),
    }
    return x, arguments


def _pool(rng: np.random.Generator) -> Case:
    x, arguments = _pool_case(rng)
    if x.size > 3 and _pick(rng, True, False):
        x.reshape(-1)[:3] = np.nan, np.inf, -np.inf
    return "pool", {"x": x}, arguments


def _pool_backward(rng: np.random.Generator) -> Case:
    x, arguments = _pool_case(rng)
    if _pick(rng, True, False):
        x = np.round(x)  # with equal elements
    y = value("pool", {"x": x}, **arguments)
    return "pool_backward", {"x": x, "y": y, "dy": rng.normal(size=y.shape)}, arguments


def _softmax(rng: np.random.Generator) -> Case:
    x = rng.normal(size=_shape(rng, int(rng.integers(2, 5)), 4, _pick(rng, 0, 1))) * _pick(rng, 1, 20)
    axis = _pick(rng, None, 0, -1, (0, 1), (-2, -1))
    mode, algo = _pick(rng, "channel", "instance"), _pick(rng, "accurate", "fast", "log")
    return "softmax", {"x": x}, {"algo": algo, "mode": mode, "axis": axis}


def _softmax_backward(rng: np.random.Generator) -> Case:
    _, operands, arguments = _softmax(rng)
    y = value("softmax", operands, **arguments)
    return "softmax_backward", {"y": y, "dy": rng.normal(size=y.shape)}, arguments


def _norm_case(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    mode = _pick(rng, "spatial", "per_activation")
    x = rng.normal(size=_shape(rng, int(rng.integers(2, 6)), 4, 2)) * 3 + 1
    shape = (1, x.shape[1], *([1] * (x.ndim - 2) if mode == "spatial" else x.shape[2:]))
    if mode == "spatial" and _pick(rng, True, False):
        shape = shape[1:2]
    names = ("scale", "bias", "mean", "var")
    operands = {"x": x, **{name: np.abs(rng.normal(size=shape)) + 0.1 for name in names}}
    return operands, {"mode": mode, "epsilon": _pick(rng, 0, 1e-5, 0.1)}


def _batch_norm_training(rng: np.random.Generator) -> Case:
    operands, arguments = _norm_case(rng)
    if _pick(rng, True, False):
        operands["running_mean"], operands["running_var"] = operands["mean"], operands["var"]
    for name in ("mean", "var"):
        del operands[name]
    operands["z"] = _pick(rng, None, rng.normal(size=operands["x"].shape))
    if _pick(rng, True, False, False, False):
        operands["x"] = operands["x"][:0]
        operands["z"] = None
    more = {"momentum": _pick(rng, 0.1, 1.0, 0), "activation": _pick(rng, None, "relu")}
    return "batch_norm_training", operands, {**arguments, **more}


def _batch_norm_inference(rng: np.random.Generator) -> Case:
    operands, arguments = _norm_case(rng)
    operands["x"] = operands["x"][: _pick(rng, 0, None, None)]
    return "batch_norm_inference", operands, arguments


def _batch_norm_backward(rng: np.random.Generator) -> Case:
    operands, arguments = _norm_case(rng)
    x, scale = operands["x"], operands["scale"]
    forward = solve("batch_norm_training", {"x": x, "scale": scale, "bias": operands["bias"]}, **arguments)
    given = {"x": x, "scale": scale, "dy": rng.normal(size=x.shape)}
    if _pick(rng, True, False):
        given.update({name: forward[name].value for name in ("mean", "invstd")})
    if _pick(rng, True, False):
        arguments["activation"] = "relu"
        given["y"] = np.maximum(forward["y"].value, 0)
    return "batch_norm_backward", given, arguments


def _batch_norm_inference_backward(rng: np.random.Generator) -> Case:
    operands, arguments = _norm_case(rng)
    operands["dy"] = rng.normal(size=operands["x"].shape)
    del operands["bias"]
    return "batch_norm_inference_backward", operands, arguments


def _lrn(rng: np.random.Generator) -> Case:
    x = rng.normal(
        size=(*_shape(rng, 1, 3, 0), int(rng.integers(1, 7)), *_shape(rng, int(rng.integers(1, 4)), 3))
    )
    factors = {"lrn_alpha": _pick(rng, 1e-4, 1.0), "lrn_beta": _pick(rng, 0.75, 1), "k": _pick(rng, 2, 1.0)}
    return "lrn", {"x": x}, {"n": int(rng.integers(1, 8)), **factors}


def _lrn_backward(rng: np.random.Generator) -> Case:
    _, operands, arguments = _lrn(rng)
    y = value("lrn", operands, **arguments)
    return "lrn_backward", {**operands, "y": y, "dy": rng.normal(size=y.shape)}, arguments


def _affine_grid(rng: np.random.Generator) -> Case:
    n = int(rng.integers(0, 4))
    return "affine_grid", {"theta": rng.normal(size=(n, 2, 3))}, {"shape": (n, *_shape(rng, 3, 5))}


def _affine_grid_backward(rng: np.random.Generator) -> Case:
    return "affine_grid_backward", {"dgrid": rng.normal(size=(*_shape(rng, 3, 5), 2))}, {}


def _grid_sample(rng: np.random.Generator) -> Case:
    x = rng.normal(size=_shape(rng, 4, 5))
    grid = rng.normal(size=(x.shape[0], *_shape(rng, 2, 5), 2)) * _pick(rng, 0.5, 1.5)
    grid[0, 0, 0] = _pick(rng, (-1, 1), (0, 0), (9, 9), (np.nan, 0))
    return "grid_sample", {"x": x, "grid": grid}, {}


def _grid_sample_backward(rng: np.random.Generator) -> Case:
    _, operands, _ = _grid_sample(rng)
    operands["dy"] = rng.normal(size=(*operands["x"].shape[:2], *operands["grid"].shape[1:3]))
    return "grid_sample_backward", operands, {}


def _spatial_transformer(rng: np.random.Generator) -> Case:
    x = rng.normal(size=_shape(rng, 4, 5, 0) if _pick(rng, 1, 0, 0) else _shape(rng, 4, 5))
    x = x.reshape(*x.shape[:2], *(max(1, n) for n in x.shape[2:])) if x.size else np.zeros((0, 2, 3, 3))
    scales = {"scale_height": _pick(rng, 1, 0.5, 1.7), "scale_width": _pick(rng, 1, 0.3)}
    return "spatial_transformer", {"x": x, "theta": rng.normal(size=(x.shape[0], 2, 3))}, scales


def _spatial_transformer_backward(rng: np.random.Generator) -> Case:
    _, operands, arguments = _spatial_transformer(rng)
    operands["dy"] = rng.normal(size=transformed_shape(operands["x"].shape, arguments))
    return "spatial_transformer_backward", operands, arguments


def _dropout(rng: np.random.Generator) -> Case:
    x = rng.normal(size=_shape(rng, 3))
    return "dropout", {"x": x, "mask": rng.random(x.shape) < 0.5}, {"p": 0.3}


def _dropout_backward(rng: np.random.Generator) -> Case:
    _, operands, arguments = _dropout(rng)
    return "dropout_backward", {"dy": operands["x"], "mask": operands["mask"]}, arguments


def _ctc_loss(rng: np.random.Generator) -> Case:
    steps, batch, symbols = (int(n) for n in rng.integers((1, 1, 2), (8, 5, 5)))
    normalization = _pick(rng, "softmax", "none")
    logits = rng.normal(size=(steps, batch, symbols)) * 2
    if normalization == "none":
        logits = special.softmax(logits, -1)
    lengths = rng.integers(0, 4, batch)
    labels: Any = rng.integers(1, symbols, (batch, 4))
    if _pick(rng, True, False):
        labels = np.concatenate([row[:count] for row, count in zip(labels, lengths, strict=True)])
    arguments = {
        "labels": labels,
        "label_lengths": lengths,
        "input_lengths": rng.integers(0, steps + 1, batch),
        "normalization": normalization,
        "out_of_bound": _pick(rng, "zero", "skip"),
    }
    return "ctc_loss", {"logits": logits, "out": _pick(rng, None, np.ones(logits.shape))}, arguments


def _rnn(rng: np.random.Generator) -> Case:
    mode = _pick(rng, *GATES)
    inputs, hidden, layers, directions = (int(n) for n in rng.integers((1, 2, 1, 1), (4, 5, 3, 3)))
    skip = _pick(rng, False, False, True)
    inputs = hidden if skip else inputs
    projected = hidden - 1 if mode == "lstm" and _pick(rng, True, False) else 0
    biases, weights = _pick(rng, (), ("bW",), ("bR",), ("bW", "bR")), {}
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
    layout, batch, steps = _pick(rng, "sequence_major", "batch_major", "packed"), 3, 4
    lengths: Any = _pick(rng, None, (4, 0, 2), (1, 3, 4))
    shape: tuple[int, ...] = (steps, batch) if layout == "sequence_major" else (batch, steps)
    if layout == "packed":
        lengths = (4, 2, 1)
        shape = (sum(lengths),)
    rows = (layers * directions, batch)
    operands: dict[str, Any] = {"x": rng.normal(size=(*shape, inputs)), "weights": weights}
    operands["h0"] = _pick(rng, None, rng.normal(size=(*rows, output)))
    if mode == "lstm":
        operands["c0"] = _pick(rng, None, rng.normal(size=(*rows, hidden)))
    for name, size in (
        ("dy", (*shape, output * directions)),
        ("dhy", (*rows, output)),
        ("dcy", (*rows, hidden)),
    ):
        if name != "dcy" or mode == "lstm":
            operands[name] = _pick(rng, None, rng.normal(size=size))
    arguments = {
        "mode": mode,
        "num_layers": layers,
        "direction": "bidirectional" if directions == 2 else "unidirectional",
        "layout": layout,
        "lengths": lengths,
        "padding_value": _pick(rng, 0, 7.5),
        "clip": _pick(rng, None, (-0.5, 0.25)) if mode == "lstm" else None,
    }
    return "RNN", operands, arguments


DRAWS: dict[str, Draw] = {
    "conv": _conv,
    "conv_backward_data": _conv_backward_data,
    "conv_backward_filter": _conv_backward_filter,
    "conv_backward_bias": _conv_backward_bias,
    "conv_transpose": _conv_transpose,
    "conv_bias_activation": _conv_bias_activation,
    "activation": _activation,
    "activation_backward": _activation_backward,
    "op_tensor": _op_tensor,
    "add": _add,
    "scale": _scale,
    "fill": _fill,
    "transform": _transform,
    "reduce": _reduce,
    "pool": _pool,
    "pool_backward": _pool_backward,
    "softmax": _softmax,
    "softmax_backward": _softmax_backward,
    "batch_norm_training": _batch_norm_training,
    "batch_norm_inference": _batch_norm_inference,
    "batch_norm_backward": _batch_norm_backward,
    "batch_norm_inference_backward": _batch_norm_inference_backward,
    "lrn": _lrn,
    "lrn_backward": _lrn_backward,
    "affine_grid": _affine_grid,
    "affine_grid_backward": _affine_grid_backward,
    "grid_sample": _grid_sample,
    "grid_sample_backward": _grid_sample_backward,
    "spatial_transformer": _spatial_transformer,
    "spatial_transformer_backward": _spatial_transformer_backward,
    "dropout": _dropout,
    "dropout_backward": _dropout_backward,
    "ctc_loss": _ctc_loss,
    "RNN": _rnn,
}


def cases(name: str, rounds: int = ROUNDS) -> Iterator[Case]:
    for seed in range(rounds):
        yield DRAWS[name](np.random.default_rng((seed, len(name))))


# --- both implementations -----------------------------------------------------------------------------------


def test_answers_exist_for_the_same_operations() -> None:
    assert set(by_loops.ANSWERS) == set(SCALES) == set(DRAWS)
    if TORCH:
        from . import by_torch

        assert set(by_torch.ANSWERS) == set(by_loops.ANSWERS)


def differences(mine: dict[str, Answer], others: dict[str, Answer]) -> Iterator[str]:
    """Describe each result that is not the same within the bound that scales promise."""
    if set(mine) != set(others):
        yield f"results {sorted(mine)} and {sorted(others)}"
        return
    for name, (got, scale, exact, ambiguous) in mine.items():
        other = others[name]
        if not got.shape == scale.shape == other.value.shape == other.scale.shape:
            yield f"{name}: shapes {got.shape}, {scale.shape}, {other.value.shape}, {other.scale.shape}"
            continue
        assert got.dtype == other.value.dtype, f"{name} is {got.dtype} and {other.value.dtype}"
        assert exact == other.exact_only
        assert np.isfinite(scale).all(), name
        judged = np.ones(got.shape, bool) if ambiguous is None else ~ambiguous
        same = (got == other.value) | (np.isnan(got) & np.isnan(other.value))
        with np.errstate(invalid="ignore"):
            near = np.abs(got - other.value) <= 64 * UNIT * scale
        bad = judged & ~same & ~near
        if bad.any():
            yield f"{name}: {got[bad][:4]} and {other.value[bad][:4]}, scale {scale[bad][:4]}"


@needs_torch
@pytest.mark.parametrize("name", DRAWS)
def test_by_torch_agrees_with_by_loops(name: str) -> None:
    from . import by_torch

    for _, operands, arguments in cases(name):
        mine = by_loops.ANSWERS[name](operands, arguments)
        other = by_torch.ANSWERS[name](operands, arguments)
        assert not list(differences(mine, other)), arguments
