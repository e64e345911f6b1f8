"""The independent answers against known values, identities and each other."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import ndimage, signal, special

from . import by_loops
from .answer import GATES, Answer
from .answer_cases import DRAWS, MODES, ROUNDS, cases, conv_case, solve, value
from .draw import RECIPES
from .magnitude import SCALES

TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not TORCH, reason="PyTorch is not installed")
if TORCH:
    from . import by_torch

UNIT = 2.0**-53


def array(*values: Any) -> np.ndarray:
    return np.array(values, np.float64)


# --- both implementations -----------------------------------------------------------------------------------


def test_answers_exist_for_the_same_operations() -> None:
    assert set(by_loops.ANSWERS) == set(SCALES) == set(DRAWS)
    assert set(by_loops.ANSWERS) == {*RECIPES, "dropout_backward"}  # which a call of dropout draws
    if TORCH:
        assert set(by_torch.ANSWERS) == set(by_loops.ANSWERS)


def differences(mine: dict[str, Answer], others: dict[str, Answer]) -> Iterator[str]:
    """Describe each result that is not the same within the bound that scales promise."""
    if set(mine) != set(others):
        yield f"results {sorted(mine)} and {sorted(others)}"
        return
    for name, (got, scale, exact, ambiguous, _) in mine.items():
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
    for operands, arguments in cases(name):
        mine = by_loops.ANSWERS[name](operands, arguments)
        other = by_torch.ANSWERS[name](operands, arguments)
        assert not list(differences(mine, other)), arguments


def _zeros(**shapes: tuple[int, ...]) -> dict[str, Any]:
    return {name: np.zeros(shape) for name, shape in shapes.items()}


INFINITE = array([np.inf, 1], [-np.inf, -np.inf], [-np.inf, 2], [np.nan, 1])
HALVES = array([[0.5, 0.5, 0]], [[0.5, 0.5, 0]])
SAME = array([[1, 0, 0], [0, 1, 0]])

EDGES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("conv", _zeros(x=(0, 2, 5, 5), w=(3, 2, 3, 3)), {}),
    ("conv", _zeros(x=(2, 0, 5), w=(3, 0, 3)), {}),
    ("conv", _zeros(x=(2, 2, 5), w=(3, 2, 3)), {"padding": np.array([1]), "stride": np.int64(2)}),
    ("conv_bias_activation", _zeros(x=(2, 0, 5), w=(3, 0, 3), bias=(1, 3, 1)), {"activation": "sigmoid"}),
    ("pool", _zeros(x=(2, 0, 5, 5)), {"window": 2}),
    ("pool_backward", _zeros(x=(0, 3, 4), y=(0, 3, 2), dy=(0, 3, 2)), {"window": 2, "mode": "sum"}),
    ("softmax", _zeros(x=(2, 0, 3)), {}),
    ("softmax", {"x": INFINITE}, {}),
    ("softmax", {"x": INFINITE}, {"algo": "log"}),
    ("softmax_backward", _zeros(y=(2, 0, 3), dy=(2, 0, 3)), {}),
    ("activation", {"x": INFINITE}, {"mode": "swish"}),
    ("activation", {"x": INFINITE}, {"mode": "elu"}),
    ("op_tensor", {"a": INFINITE, "b": None}, {"op": "sqrt"}),
    ("batch_norm_training", _zeros(x=(2, 0, 3), scale=(0,), bias=(0,)), {}),
    ("batch_norm_training", _zeros(x=(4, 2, 3), scale=(2,), bias=(2,)), {"epsilon": 0}),
    ("batch_norm_training", _zeros(x=(4,), scale=(1,), bias=(1,)), {}),
    ("batch_norm_backward", _zeros(x=(0, 2, 3), dy=(0, 2, 3), scale=(2,)), {}),
    ("batch_norm_backward", _zeros(x=(2, 0), dy=(2, 0), y=(2, 0), scale=(0,)), {"activation": "relu"}),
    ("batch_norm_inference", _zeros(x=(2, 0), scale=(0,), bias=(0,), mean=(0,), var=(0,)), {}),
    ("batch_norm_inference_backward", _zeros(x=(0, 2), dy=(0, 2), scale=(2,), mean=(2,), var=(2,)), {}),
    ("reduce", {"x": INFINITE}, {"axis": (), "op": "norm1"}),
    ("reduce", {"x": INFINITE}, {"axis": 1, "op": "max", "indices": True, "propagate_nan": False}),
    ("reduce", {"x": np.float64(3)}, {"op": "amax"}),
    ("reduce", _zeros(x=(0, 3)), {"axis": 1, "op": "min", "indices": True}),
    ("reduce", _zeros(x=(3, 0)), {"axis": 1, "op": "mul_no_zeros"}),
    ("lrn", _zeros(x=(2, 0, 3)), {}),
    ("lrn_backward", _zeros(x=(0, 3, 3), y=(0, 3, 3), dy=(0, 3, 3)), {}),
    ("affine_grid", _zeros(theta=(0, 2, 3)), {"shape": (0, 2, 2)}),
    ("grid_sample", _zeros(x=(2, 0, 3, 3), grid=(2, 2, 2, 2)), {}),
    ("grid_sample_backward", _zeros(x=(0, 2, 3, 3), grid=(0, 2, 2, 2), dy=(0, 2, 2, 2)), {}),
    ("spatial_transformer_backward", _zeros(x=(2, 0, 3, 3), theta=(2, 2, 3), dy=(2, 0, 3, 3)), {}),
    ("spatial_transformer", {"x": np.ones((1, 1, 3, 3)), "theta": SAME}, {}),
    (
        "ctc_loss",
        _zeros(logits=(0, 2, 3)),
        {"labels": [[1], [2]], "label_lengths": [1, 0], "input_lengths": [0, 0]},
    ),
    (
        "ctc_loss",
        {"logits": HALVES},
        {"labels": [2], "label_lengths": [1], "input_lengths": [2], "normalization": "none"},
    ),
    (
        "RNN",
        {**_zeros(x=(3, 0, 2), dy=(3, 0, 2)), "weights": _zeros(**{"l0.R_hidden": (2, 2)})},
        {"mode": "rnn_tanh", "input_mode": "skip"},
    ),
    (
        "RNN",
        {**_zeros(x=(3, 2, 2), dhy=(1, 2, 2)), "weights": _zeros(**{"l0.R_hidden": (2, 2)})},
        {"mode": "rnn_relu", "input_mode": "skip", "lengths": (0, 0)},
    ),
]


@pytest.mark.parametrize(("name", "operands", "arguments"), EDGES)
def test_answers_exist_when_operands_are_empty_or_infinite(
    name: str, operands: dict[str, Any], arguments: dict[str, Any]
) -> None:
    mine = by_loops.ANSWERS[name](operands, arguments)
    for result in mine.values():
        assert result.value.shape == result.scale.shape
        assert np.isfinite(result.scale).all()
    if TORCH:
        assert not list(differences(mine, by_torch.ANSWERS[name](operands, arguments)))


# --- known values and identities ----------------------------------------------------------------------------


def test_scales_bound_the_rounding_of_operands_to_float32() -> None:
    """A call on float32 operands differs from one on float64 operands by no more than the bound."""

    def rounded(given: Any) -> Any:
        if isinstance(given, dict):
            return {name: rounded(one) for name, one in given.items()}
        return (
            given.astype(np.float32).astype(np.float64)
            if getattr(given, "dtype", None) == np.float64
            else given
        )

    for name in DRAWS:
        for operands, arguments in cases(name, 25):
            exact = by_loops.ANSWERS[name](operands, arguments)
            moved = by_loops.ANSWERS[name](rounded(operands), arguments)
            for key, (right, scale, only, ambiguous, _) in exact.items():
                judged = np.isfinite(right) if ambiguous is None else np.isfinite(right) & ~ambiguous
                if only or not judged.any():
                    continue
                # An element that float32 moves over a corner has another slope.
                bound = 12 * 2.0**-24 * scale + 1e-12
                error = np.abs(moved[key].value[judged] - right[judged])
                assert (error <= bound[judged]).all(), (name, key, arguments)


def test_scales_are_of_the_size_of_the_values() -> None:
    """Bounds that let everything pass would find nothing, nor would masks of everything."""
    for name in DRAWS:
        ratios, masks = [], []
        for operands, arguments in cases(name, 25):
            for right, scale, only, ambiguous, _ in by_loops.ANSWERS[name](operands, arguments).values():
                judged = np.isfinite(right) & (right != 0)
                if judged.any() and not only:
                    ratios.append(np.median(scale[judged] / np.abs(right[judged])))
                if right.size:
                    masks.append(0.0 if ambiguous is None else ambiguous.mean())
        assert 1 <= np.median(ratios) <= 200, name
        assert np.mean(masks) < 0.35, name


@pytest.mark.parametrize("mode", ["cross_correlation", "convolution"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_conv_agrees_with_scipy(axes: int, mode: str) -> None:
    rng = np.random.default_rng(axes)
    x, w = rng.normal(size=(2, 3, *(5, 6, 4)[:axes])), rng.normal(size=(2, 3, *(3, 2, 3)[:axes]))
    method = signal.correlate if mode == "cross_correlation" else signal.convolve
    for padding, name in (("valid", "valid"), ("full", "full")):
        y = value("conv", {"x": x, "w": w}, mode=mode, padding=padding)
        for n, k in np.ndindex(2, 2):
            wanted = sum(method(x[n, c], w[k, c], mode=name) for c in range(3))
            np.testing.assert_allclose(y[n, k], wanted, atol=1e-12)


def test_conv_agrees_with_its_formula() -> None:
    """Stride, dilation, groups, uneven padding and both modes, one element after another."""
    rng = np.random.default_rng(5)
    x, w = rng.normal(size=(2, 4, 7, 6)), rng.normal(size=(6, 2, 3, 2))
    padding, stride, dilation = ((2, 1), (0, 3)), (2, 1), (1, 3)
    for mode in ("cross_correlation", "convolution"):
        arguments = {"padding": padding, "stride": stride, "dilation": dilation, "groups": 2, "mode": mode}
        y = value("conv", {"x": x, "w": w}, **arguments)
        assert y.shape == (2, 6, (7 + 3 - 3) // 2 + 1, (6 + 3 - 4) // 1 + 1)
        for n, k, p, q in np.ndindex(*y.shape):
            total = 0.0
            for c, i, j in np.ndindex(2, 3, 2):
                row, column = p * 2 + i - 2, q + j * 3
                if 0 <= row < 7 and 0 <= column < 6:
                    place = (i, j) if mode == "cross_correlation" else (2 - i, 1 - j)
                    total += x[n, c + 2 * (k // 3), row, column] * w[(k, c, *place)]
            assert abs(total - y[n, k, p, q]) < 1e-12


def test_conv_padding_has_the_documented_sizes() -> None:
    x = np.zeros((1, 1, 9))
    for window, dilation, half in ((3, 1, 9), (4, 1, 10), (3, 2, 9), (2, 3, 10)):
        given = {"x": x, "w": np.zeros((1, 1, window))}
        assert value("conv", given, padding="half", dilation=dilation).shape[2] == half
        span = (window - 1) * dilation
        assert value("conv", given, padding="full", dilation=dilation).shape[2] == 9 + span
        assert value("conv", given, padding="valid", dilation=dilation).shape[2] == 9 - span


def _inner(a: np.ndarray, b: np.ndarray) -> float:
    return float((a * b).sum())


def test_conv_gradients_are_adjoint() -> None:
    """<conv(x, w), dy> = <x, dx> = <w, dw>, and a transposed convolution is the adjoint."""
    for seed in range(ROUNDS):
        rng = np.random.default_rng(seed)
        operands, arguments, out = conv_case(rng)
        x, w, dy = operands["x"], operands["w"], rng.normal(size=out)
        total = _inner(value("conv", operands, **arguments), dy)
        dx = value("conv_backward_data", {"w": w, "dy": dy}, x_shape=x.shape, **arguments)
        dw = value("conv_backward_filter", {"x": x, "dy": dy}, w_shape=w.shape, **arguments)
        assert dx.shape == x.shape
        assert dw.shape == w.shape
        np.testing.assert_allclose([_inner(x, dx), _inner(w, dw)], total, atol=1e-10)
        big = value("conv_transpose", {"x": dy, "w": w}, **arguments)
        other = rng.normal(size=big.shape)
        forward = value("conv", {"x": other, "w": w}, **arguments)
        np.testing.assert_allclose(_inner(big, other), _inner(forward, dy), atol=1e-10)


def test_conv_examples_of_the_docstrings() -> None:
    x, w = array([[1, 2, 4, 8]])[None, :, 0][None], array([[1, -1]])[None, :, 0][None]
    x, w = x.reshape(1, 1, 4), w.reshape(1, 1, 2)
    assert value("conv", {"x": x, "w": w}).ravel().tolist() == [-1, -2, -4]
    given = value("conv", {"x": x, "w": w}, mode="convolution", padding="full")
    assert given.ravel().tolist() == [1, 1, 2, 4, -8]
    dy = array(1, 2, 4).reshape(1, 1, 3)
    assert value("conv_backward_data", {"w": w, "dy": dy}, x_shape=(1, 1, 4)).ravel().tolist() == [
        1,
        1,
        2,
        -4,
    ]
    dy = array(1, 0, 1).reshape(1, 1, 3)
    assert value("conv_backward_filter", {"x": x, "dy": dy}, w_shape=(1, 1, 2)).ravel().tolist() == [5, 10]
    small, window = array(1, 2).reshape(1, 1, 2), array(1, 10, 100).reshape(1, 1, 3)
    enlarged = value("conv_transpose", {"x": small, "w": window}, stride=2)
    assert enlarged.ravel().tolist() == [1, 10, 102, 20, 200]
    fused = value("conv_bias_activation", {"x": x, "w": w, "bias": array(3)})
    assert fused.ravel().tolist() == [2, 1, 0]
    assert value("conv_backward_bias", {"dy": array([1, 2], [3, 4])[None]}).tolist() == [3, 7]


def test_activations_have_known_values() -> None:
    x = array(-2, -0.5, 0, 0.5, 9)
    wanted = {
        "relu": np.maximum(x, 0),
        "clipped_relu": np.clip(x, 0, 2),
        "sigmoid": 1 / (1 + np.exp(-x)),
        "tanh": (np.exp(x) - np.exp(-x)) / (np.exp(x) + np.exp(-x)),
        "elu": np.where(x > 0, x, 2 * (np.exp(x) - 1)),
        "swish": x / (1 + np.exp(-2 * x)),
        "identity": x,
    }
    for mode, right in wanted.items():
        np.testing.assert_allclose(value("activation", {"x": x}, mode=mode, coefficient=2), right, atol=1e-14)
    plain = value("activation", {"x": x}, mode="swish")
    np.testing.assert_allclose(plain, x / (1 + np.exp(-x)), atol=1e-14)
    one, zero = np.ones((1, 1, 1)), np.zeros((1, 1, 1))
    fused = value("conv_bias_activation", {"x": zero, "w": one, "bias": array(0.7)}, activation="gelu")
    np.testing.assert_allclose(fused.ravel(), 0.35 * (1 + special.erf(0.7 / np.sqrt(2))), rtol=1e-14)


@pytest.mark.parametrize(
    ("name", "arguments", "wanted"),
    [
        ("activation", {"mode": "relu", "propagate_nan": True}, np.nan),
        ("activation", {"mode": "relu", "propagate_nan": False}, 0.0),
        ("activation", {"mode": "clipped_relu", "coefficient": 2, "propagate_nan": False}, 0.0),
        ("activation", {"mode": "tanh", "propagate_nan": False}, np.nan),
        ("reduce", {"op": "max"}, np.nan),
        ("reduce", {"op": "max", "propagate_nan": False}, 3.0),
        ("reduce", {"op": "min", "propagate_nan": False}, 1.0),
        ("reduce", {"op": "add", "propagate_nan": False}, np.nan),
        ("pool", {"window": 3}, np.nan),
        ("pool", {"window": 3, "propagate_nan": False}, 3.0),
    ],
)
def test_nan_follows_the_policy(name: str, arguments: dict[str, Any], wanted: float) -> None:
    x = array(1, np.nan, 3).reshape(1, 1, 3)
    found = value(name, {"x": x if name != "activation" else x[..., 1:2]}, **arguments)
    np.testing.assert_array_equal(found.ravel(), [wanted])


def _differences(
    name: str, operands: dict[str, Any], by: str, result: str, dy: np.ndarray, **arguments: Any
) -> Any:
    """The gradient of <result, dy> by an operand, by central differences."""
    x, step = operands[by], 1e-6
    found = np.zeros(x.shape)
    for place in np.ndindex(*x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * step
            ends.append(_inner(by_loops.VALUES[name]({**operands, by: moved}, arguments)[result], dy))
        found[place] = (ends[0] - ends[1]) / (2 * step)
    return found


def _check_gradients(
    name: str, given: dict[str, Any], found: dict[str, Answer], dy: np.ndarray, *by: str, **arguments: Any
) -> None:
    """Compare the gradients by some operands with central differences of <y, dy>."""
    for operand in by:
        wanted = _differences(name, given, operand, "y", dy, **arguments)
        _close(found[f"d{operand}"].value, wanted)


def _close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, atol=3e-7 * (1 + np.abs(wanted).max(initial=0)))


POOLINGS = ("max", "average_inc_pad", "average_exc_pad", "sum")
WINDOWS = {"window": 3, "stride": 2, "padding": ((1, 0), (1, 2))}
FACTORS = {"lrn_alpha": 0.9, "lrn_beta": 0.75, "k": 1.0}
AXES: tuple[dict[str, Any], ...] = ({}, {"mode": "instance"}, {"axis": 0})
# Layers of one operand: a seed, the shape of x, and arguments.
LAYERS: list[tuple[str, int, tuple[int, ...], dict[str, Any]]] = [
    *(("activation", 1, (3, 4), {"mode": mode, "coefficient": c}) for mode in MODES for c in (0, 0.7)),
    *(("pool", 3, (1, 2, 4, 5), {"mode": mode, **WINDOWS}) for mode in POOLINGS),
    *(("softmax", 7, (2, 3, 2), {"algo": a, **axes}) for a in ("accurate", "fast", "log") for axes in AXES),
    *(("lrn", 11, (2, 5, 2), {"n": n, **FACTORS}) for n in (1, 2, 3, 4, 9)),
]


@pytest.mark.parametrize(("name", "seed", "shape", "arguments"), LAYERS)
def test_gradients_of_layers_by_differences(
    name: str, seed: int, shape: tuple[int, ...], arguments: dict[str, Any]
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape)
    y = value(name, {"x": x}, **arguments)
    dy = rng.normal(size=y.shape)
    found = value(f"{name}_backward", {"x": x, "y": y, "dy": dy}, **arguments)
    _close(found, _differences(name, {"x": x}, "x", "y", dy, **arguments))


def test_activation_gradients_at_corners() -> None:
    x = array(-1, 0, 1, 2)
    dy = np.ones(4)
    for mode, coefficient, wanted in (
        ("relu", 0, [0, 0, 1, 1]),
        ("elu", 0, [0, 1, 1, 1]),
        ("clipped_relu", 2, [0, 0, 1, 1]),
    ):
        y = value("activation", {"x": x}, mode=mode, coefficient=coefficient)
        assert (
            value(
                "activation_backward", {"x": x, "y": y, "dy": dy}, mode=mode, coefficient=coefficient
            ).tolist()
            == wanted
        )


@pytest.mark.parametrize("mode", POOLINGS)
def test_pool_agrees_with_its_definition(mode: str) -> None:
    rng = np.random.default_rng(2)
    x, pads = rng.normal(size=(2, 2, 5, 6)), (1, 1)
    y = value("pool", {"x": x}, window=(3, 2), stride=(2, 3), padding=pads, mode=mode)
    assert y.shape == (2, 2, 3, 3)
    for n, c, p, q in np.ndindex(*y.shape):
        rows, columns = (max(0, 2 * p - 1), min(5, 2 * p + 2)), (max(0, 3 * q - 1), min(6, 3 * q + 1))
        seen = x[n, c, slice(*rows), slice(*columns)]
        wanted = {
            "max": seen.max(),
            "average_inc_pad": seen.sum() / 6,
            "average_exc_pad": seen.mean(),
            "sum": seen.sum(),
        }[mode]
        assert abs(y[n, c, p, q] - wanted) < 1e-14


def test_pool_gradients_are_ambiguous_where_maxima_are_equal() -> None:
    x = array(1, 5, 5, 2, 7, 1).reshape(1, 1, 6)
    y = value("pool", {"x": x}, window=3)
    (answer,) = solve(
        "pool_backward", {"x": x, "y": y, "dy": array(1, 10).reshape(1, 1, 2)}, window=3
    ).values()
    assert answer.value.ravel().tolist() == [0, 1, 0, 0, 10, 0]
    assert answer.ambiguous is not None
    assert answer.ambiguous.ravel().tolist() == [False, True, True, False, False, False]


def test_reductions_agree_with_numpy() -> None:
    x = np.random.default_rng(4).normal(size=(3, 4, 2))
    x[0, 0, 0] = 0
    wanted: dict[str, Callable[..., Any]] = {
        "add": np.sum,
        "mul": np.prod,
        "min": np.min,
        "max": np.max,
        "amax": lambda x, axes, **how: np.max(np.abs(x), axes, **how),
        "average": np.mean,
        "norm1": lambda x, axes, **how: np.sum(np.abs(x), axes, **how),
        "norm2": lambda x, axes, **how: np.sqrt(np.sum(x**2, axes, **how)),
        "mul_no_zeros": lambda x, axes, **how: np.prod(np.where(x == 0, 1, x), axes, **how),
    }
    for op, function in wanted.items():
        for axes in (None, 1, (0, -1)):
            for keepdims in (False, True):
                found = value("reduce", {"x": x}, op=op, axis=axes, keepdims=keepdims)
                np.testing.assert_allclose(found, function(x, axes, keepdims=keepdims), rtol=1e-13)
    found = solve("reduce", {"x": x}, op="max", axis=(0, 2), indices=True)["indices"]
    assert found.exact_only
    assert found.value.tolist() == np.moveaxis(x, 1, 0).reshape(4, 6).argmax(1).tolist()
    nothing = np.zeros((0, 3))
    results = {op: value("reduce", {"x": nothing}, op=op, axis=0).tolist() for op in ("add", "mul", "norm2")}
    assert results == {"add": [0] * 3, "mul": [1] * 3, "norm2": [0] * 3}


def test_op_tensor_and_add_have_known_values() -> None:
    a, b = array([1, 4], [9, 16]), array([2, 3])
    given = {"a": a, "b": b}
    assert value("add", given).tolist() == [[3, 7], [11, 19]]
    assert value("op_tensor", given, op="add", alpha1=2, alpha2=-1).tolist() == [[0, 5], [16, 29]]
    assert value("op_tensor", given, op="mul", alpha2=2).tolist() == [[4, 24], [36, 96]]
    assert value("op_tensor", given, op="min").tolist() == [[1, 3], [2, 3]]
    assert value("op_tensor", given, op="max").tolist() == [[2, 4], [9, 16]]
    assert value("op_tensor", {"a": a, "b": None}, op="sqrt", alpha1=4).tolist() == [[2, 4], [6, 8]]
    assert value("op_tensor", {"a": a}, op="not", alpha1=2).tolist() == [[-1, -7], [-17, -31]]
    one = {"a": array(1.0), "b": array(np.nan)}
    assert value("op_tensor", one, op="max", propagate_nan=False).tolist() == [1]
    assert np.isnan(value("op_tensor", one, op="max")).all()


def test_softmax_agrees_with_scipy() -> None:
    x = np.random.default_rng(6).normal(size=(2, 3, 4)) * 30
    for axis, arguments in (
        (1, {}),
        ((1, 2), {"mode": "instance"}),
        ((0, 1), {"axis": (0, 1)}),
        (2, {"axis": -1}),
    ):
        for algo in ("accurate", "fast"):
            found = value("softmax", {"x": x}, algo=algo, **arguments)
            np.testing.assert_allclose(found, special.softmax(x, axis), rtol=1e-12)
        found = value("softmax", {"x": x}, algo="log", **arguments)
        np.testing.assert_allclose(found, x - special.logsumexp(x, axis, keepdims=True), atol=1e-12)


def test_batch_norm_has_known_values() -> None:
    x, scale, bias = array([1], [3]), array(10), array(5)
    running = {"running_mean": array(1), "running_var": array(4)}
    found = solve("batch_norm_training", {"x": x, "scale": scale, "bias": bias, **running}, epsilon=0)
    assert {name: answer.value.ravel().tolist() for name, answer in found.items()} == {
        "y": [-5, 15],
        "mean": [2],
        "invstd": [1],
        "running_mean": pytest.approx([1.1]),
        "running_var": pytest.approx([3.8]),
    }
    # The axes of the statistics follow the mode.
    x = np.random.default_rng(8).normal(size=(3, 2, 4))
    for mode, axes in (("spatial", (0, 2)), ("per_activation", (0,))):
        one = np.ones([1 if axis in axes else n for axis, n in enumerate(x.shape)])
        found = solve("batch_norm_training", {"x": x, "scale": one, "bias": 0 * one}, mode=mode, epsilon=0.5)
        mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
        np.testing.assert_allclose(found["y"].value, (x - mean) / np.sqrt(var + 0.5), atol=1e-13)
        assert found["mean"].value.shape == one.shape
        given = {"x": x, "scale": one, "bias": 0 * one, "mean": mean, "var": var}
        again = value("batch_norm_inference", given, mode=mode, epsilon=0.5)
        np.testing.assert_allclose(again, found["y"].value, atol=1e-13)


@pytest.mark.parametrize("mode", ["spatial", "per_activation"])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_batch_norm_gradients_by_differences(mode: str, activation: str | None) -> None:
    rng = np.random.default_rng(9)
    x, dy, z = (rng.normal(size=(3, 2, 2)) for _ in range(3))
    shape = (1, 2, 1) if mode == "spatial" else (1, 2, 2)
    given = {"x": x, "scale": rng.normal(size=shape), "bias": rng.normal(size=shape), "residual": z}
    arguments = {"mode": mode, "epsilon": 0.1, "activation": activation}
    forward = {
        name: answer.value for name, answer in solve("batch_norm_training", given, **arguments).items()
    }
    operands = {"x": x, "dy": dy, "scale": given["scale"], "y": forward["y"]}
    saved = {name: forward[name] for name in ("mean", "invstd")}
    for statistics in ({}, saved):
        found = solve("batch_norm_backward", {**operands, **statistics}, **arguments)
        _check_gradients("batch_norm_training", given, found, dy, "x", "scale", "bias", **arguments)
        assert ("dz" in found) == (activation is not None)
        if activation is not None:
            wanted = _differences("batch_norm_training", given, "residual", "y", dy, **arguments)
            _close(found["dz"].value, wanted)


def test_group_norm_gradients_by_differences() -> None:
    rng = np.random.default_rng(11)
    x, dy = rng.normal(size=(2, 6, 2)), rng.normal(size=(2, 6, 2))
    given = {"x": x, "scale": rng.normal(size=6), "bias": rng.normal(size=6)}
    arguments = {"groups": 2, "epsilon": 0.1}
    forward = solve("group_norm", given, **arguments)
    saved = {name: forward[name].value for name in ("mean", "invstd")}
    for statistics in ({}, saved):
        operands = {"x": x, "dy": dy, "scale": given["scale"], **statistics}
        found = solve("group_norm_backward", operands, **arguments)
        _check_gradients("group_norm", given, found, dy, "x", "scale", "bias", **arguments)


def test_group_norm_of_one_channel_each_is_instance_norm() -> None:
    rng = np.random.default_rng(12)
    given = {"x": rng.normal(size=(2, 3, 5)), "scale": rng.normal(size=3), "bias": rng.normal(size=3)}
    groups, images = solve("group_norm", given, groups=3), solve("instance_norm", given)
    for name, answer in images.items():
        np.testing.assert_allclose(groups[name].value.ravel(), answer.value.ravel(), rtol=1e-13)


def test_batch_norm_inference_gradients_by_differences() -> None:
    rng = np.random.default_rng(10)
    x, dy = rng.normal(size=(3, 2, 2)), rng.normal(size=(3, 2, 2))
    given = {"x": x, **{name: rng.random(2) + 0.5 for name in ("scale", "bias", "mean", "var")}}
    found = solve("batch_norm_inference_backward", {**given, "dy": dy}, epsilon=0.1)
    _check_gradients("batch_norm_inference", given, found, dy, "x", "scale", "bias", epsilon=0.1)


def test_lrn_has_known_values() -> None:
    x = array(1, 2, 3).reshape(1, 3, 1)
    found = value("lrn", {"x": x}, n=1, lrn_alpha=1, lrn_beta=1, k=1)
    np.testing.assert_allclose(found.ravel(), [0.5, 0.4, 0.3])
    found = value("lrn", {"x": x}, n=2, lrn_alpha=2, lrn_beta=1, k=1)  # itself, and the channel after it
    np.testing.assert_allclose(found.ravel(), [1 / 6, 2 / 14, 3 / 10])


def test_causal_conv_has_known_values() -> None:
    x, w = array(1, 2, 3, 4).reshape(1, 1, 4), array(100, 10, 1).reshape(1, 3)
    found = value("causal_conv1d", {"x": x, "w": w, "bias": array(0.5)})
    assert found.ravel().tolist() == [1.5, 12.5, 123.5, 234.5]


def test_causal_conv_gradients_by_differences() -> None:
    rng = np.random.default_rng(12)
    given = {"x": rng.normal(size=(2, 3, 5)), "w": rng.normal(size=(3, 4)), "bias": rng.normal(size=3)}
    dy = rng.normal(size=(2, 3, 5))
    for activation in (None, "silu"):
        found = solve("causal_conv1d_backward", {**given, "dy": dy}, activation=activation)
        _check_gradients("causal_conv1d", given, found, dy, *given, activation=activation)


def test_fft_causal_conv_is_a_causal_conv_of_reversed_windows() -> None:
    rng = np.random.default_rng(13)
    x, w, dy = rng.normal(size=(2, 3, 9)), rng.normal(size=(3, 4)), rng.normal(size=(2, 3, 9))
    reverse = {"x": x, "w": w[:, ::-1]}
    _close(value("fft_causal_conv1d", {"x": x, "w": w}), value("causal_conv1d", reverse))
    found = solve("fft_causal_conv1d_backward", {"x": x, "w": w, "dy": dy})
    wanted = solve("causal_conv1d_backward", {**reverse, "dy": dy})
    _close(found["dx"].value, wanted["dx"].value)
    _close(found["dw"].value, wanted["dw"].value[:, ::-1])


def test_b2b_causal_conv_gradients_by_differences() -> None:
    rng = np.random.default_rng(14)
    shapes = {"x": (2, 3, 3, 5), "w_proj": (3, 3, 2), "w_mixer": (3, 4), "skip_bias": (3,)}
    given = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    dy = rng.normal(size=(2, 3, 5))
    mixed = solve("b2b_causal_conv1d", given)["mixed"].value
    found = solve("b2b_causal_conv1d_backward", {**given, "mixed": mixed, "dy": dy})
    _check_gradients("b2b_causal_conv1d", given, found, dy, *given)


def test_graph_attention_gradients_by_differences() -> None:
    rng = np.random.default_rng(15)
    for _ in range(20):
        operands, arguments = DRAWS["graph_attention_backward"](rng)
        given = {name: operands[name] for name in ("x", "target", "w", "edges", "mask")}
        found = solve("graph_attention_backward", operands, **arguments)
        _check_gradients("graph_attention", given, found, operands["dy"], "x", "target", "w", **arguments)


def test_sampling_examples_of_the_docstrings() -> None:
    x, grid = array(1, 3, 5).reshape(1, 1, 1, 3), array([-1, -1], [0.5, -1], [1, -1]).reshape(1, 1, 3, 2)
    assert value("grid_sample", {"x": x, "grid": grid}).ravel().tolist() == [1, 4, 5]
    upside_down = array([1, 0, 0], [0, -1, 0]).reshape(1, 2, 3)
    assert value("affine_grid", {"theta": upside_down}, shape=(1, 2, 2))[0, 0].tolist() == [[-1, 1], [1, 1]]
    dgrid = array([1, 10], [2, 20]).reshape(1, 2, 1, 2)
    dtheta = value("affine_grid_backward", {"dgrid": dgrid})
    assert dtheta.tolist() == [[[-3, 1, 3], [-30, 10, 30]]]
    mirror = array([-1, 0, 0], [0, 1, 0]).reshape(1, 2, 3)
    assert value("spatial_transformer", {"x": x, "theta": mirror}).ravel().tolist() == [5, 3, 1]


def test_sampling_agrees_with_scipy() -> None:
    rng = np.random.default_rng(12)
    x, grid = rng.normal(size=(1, 1, 4, 5)), rng.normal(size=(1, 6, 7, 2))
    rows, columns = (grid[0, ..., 1] + 1) / 2 * 3, (grid[0, ..., 0] + 1) / 2 * 4
    padded = np.pad(x[0, 0], 2)
    wanted = ndimage.map_coordinates(padded, [rows + 2, columns + 2], order=1, mode="grid-constant", cval=0)
    np.testing.assert_allclose(value("grid_sample", {"x": x, "grid": grid})[0, 0], wanted, atol=1e-12)


def test_sampling_gradients_by_differences() -> None:
    rng = np.random.default_rng(13)
    x, theta = rng.normal(size=(2, 2, 3, 4)), rng.normal(size=(2, 2, 3)) * 0.6
    scales = {"scale_height": 1.4, "scale_width": 0.5}
    dy = rng.normal(size=value("spatial_transformer", {"x": x, "theta": theta}, **scales).shape)
    found = solve("spatial_transformer_backward", {"x": x, "theta": theta, "dy": dy}, **scales)
    for by in ("x", "theta"):
        wanted = _differences("spatial_transformer", {"x": x, "theta": theta}, by, "y", dy, **scales)
        _close(found[f"d{by}"].value, wanted)
    grid = value("affine_grid", {"theta": theta}, shape=dy.shape)
    found = solve("grid_sample_backward", {"x": x, "grid": grid, "dy": dy})
    for by in ("x", "grid"):
        _close(found[f"d{by}"].value, _differences("grid_sample", {"x": x, "grid": grid}, by, "y", dy))


def test_dropout_has_known_values() -> None:
    mask = np.array([True, False])
    assert value("dropout", {"x": array(3, 4), "mask": mask}, p=0.25).tolist() == [4, 0]
    assert value("dropout_backward", {"dy": array(3, 4), "mask": mask}, p=0.25).tolist() == [4, 0]


def _alignments(symbols: int, steps: int, labels: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every row of symbols that reads as the labels."""
    for row in product(range(symbols), repeat=steps):
        merged = [s for t, s in enumerate(row) if t == 0 or s != row[t - 1]]
        if tuple(s for s in merged if s) == labels:
            yield row


@pytest.mark.parametrize("labels", [(), (1,), (1, 1), (2, 1), (1, 2, 1)])
def test_ctc_agrees_with_all_alignments(labels: tuple[int, ...]) -> None:
    rng, steps = np.random.default_rng(14), 5
    logits = rng.normal(size=(steps, 2, 3))
    p = special.softmax(logits, -1)
    short = steps - 1
    given = {
        "labels": [*labels, *labels],
        "label_lengths": [len(labels)] * 2,
        "input_lengths": [steps, short],
    }
    found = solve("ctc_loss", {"logits": logits}, **given)
    again = solve("ctc_loss", {"logits": p}, normalization="none", **given)
    for n, end in enumerate((steps, short)):
        rows = list(_alignments(3, end, labels))
        weights = array(*(np.prod(p[np.arange(end), n, row]) for row in rows))
        occupied = np.zeros((end, 3))
        for row, weight in zip(rows, weights, strict=True):
            occupied[np.arange(end), row] += weight / weights.sum()
        for answers in (found, again):
            np.testing.assert_allclose(answers["loss"].value[n], -np.log(weights.sum()), rtol=1e-12)
            np.testing.assert_allclose(answers["gradient"].value[:end, n], p[:end, n] - occupied, atol=1e-12)
            assert (answers["gradient"].value[end:, n] == 0).all()


def test_ctc_gradients_by_differences() -> None:
    logits = np.random.default_rng(15).normal(size=(5, 2, 4))
    given = {"labels": [[1, 2], [3, 3]], "label_lengths": [2, 2], "input_lengths": [5, 4]}
    dy = array(1, 1)
    found = solve("ctc_loss", {"logits": logits}, **given)["gradient"].value
    _close(found, _differences("ctc_loss", {"logits": logits}, "logits", "loss", dy, **given))


def test_ctc_losses_of_impossible_sequences_are_infinite() -> None:
    logits = np.zeros((3, 2, 2))
    given = {"labels": [[1, 1], [1, 1]], "label_lengths": [2, 1], "input_lengths": [2, 0]}
    for out_of_bound, out, left in (
        ("zero", None, 0),
        ("skip", np.full((3, 2, 2), 7.0), 7),
        ("skip", None, 0),
    ):
        found = solve("ctc_loss", {"logits": logits, "out": out}, out_of_bound=out_of_bound, **given)
        assert np.isposinf(found["loss"].value).all()
        assert (found["gradient"].value == left).all()
    given = {"labels": [], "label_lengths": [0, 0], "input_lengths": [0, 0]}
    assert (solve("ctc_loss", {"logits": logits}, **given)["loss"].value == 0).all()


def test_rnn_gradients_by_differences() -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        operands, arguments = DRAWS["RNN"](rng)
        arguments["mode"] = arguments["mode"] if arguments["mode"] != "rnn_relu" else "rnn_tanh"
        flat = {
            "x": operands["x"],
            **{name: operands[name] for name in ("h0", "c0") if operands.get(name) is not None},
        }
        found = solve("RNN", operands, **arguments)
        incoming = {
            name: operands[f"d{name}"] for name in ("y", "hy", "cy") if operands.get(f"d{name}") is not None
        }
        if not incoming:
            assert set(found) <= {"y", "hy", "cy"}
            continue
        plain = {name: array for name, array in operands.items() if not name.startswith("d")}

        def total(
            by: str, moved: np.ndarray, plain: Any = plain, incoming: Any = incoming, how: Any = arguments
        ) -> float:
            given = (
                {**plain, by: moved} if by in plain else {**plain, "weights": {**plain["weights"], by: moved}}
            )
            results = by_loops.VALUES["RNN"](given, how)
            past = [np.nan_to_num(results[name] - (7.5 if name == "y" else 0)) for name in incoming]
            return sum(_inner(r, dy) for r, dy in zip(past, incoming.values(), strict=True))

        flat.update(operands["weights"])
        for name, given in flat.items():
            key = {"x": "dx", "h0": "dhx", "c0": "dcx"}.get(name, f"dweights/{name}")
            wanted = np.zeros(given.shape)
            for place in list(np.ndindex(*given.shape))[::3]:
                moved = [given.copy(), given.copy()]
                moved[0][place] += 1e-6
                moved[1][place] -= 1e-6
                wanted[place] = (total(name, moved[0]) - total(name, moved[1])) / 2e-6
                assert abs(found[key].value[place] - wanted[place]) < 1e-5, (key, place, arguments)


def test_rnn_examples_of_the_docstrings() -> None:
    """A network that adds: with skip input and one recurrent weight of 1."""
    x = array(1, 2, 3).reshape(3, 1, 1)
    found = solve(
        "RNN",
        {"x": x, "weights": {"l0.R_hidden": np.ones((1, 1))}, "dy": np.ones((3, 1, 1))},
        mode="rnn_relu",
        input_mode="skip",
        bias="no_bias",
    )
    assert found["y"].value.ravel().tolist() == [1, 3, 6]
    assert found["hy"].value.ravel().tolist() == [6]
    assert found["dx"].value.ravel().tolist() == [3, 2, 1]
    assert found["dweights/l0.R_hidden"].value.tolist() == [[5]]


def test_rnn_runs_the_second_direction_from_the_end_of_each_sequence() -> None:
    rng = np.random.default_rng(17)
    x, lengths = rng.normal(size=(4, 2, 3)), (4, 3)
    one = {"W_hidden": rng.normal(size=(2, 3)), "R_hidden": rng.normal(size=(2, 2))}
    weights = {f"{where}.{name}": array for where in ("l0", "l0_reverse") for name, array in one.items()}
    arguments = {"mode": "rnn_tanh", "bidirectional": True, "lengths": lengths}
    flipped = x.copy()
    for n, end in enumerate(lengths):
        flipped[:end, n] = x[:end, n][::-1]
    found = solve("RNN", {"x": x, "weights": weights}, **arguments)
    other = solve("RNN", {"x": flipped, "weights": weights}, **arguments)
    np.testing.assert_array_equal(found["hy"].value, other["hy"].value[::-1])
    for n, end in enumerate(lengths):
        mirrored = other["y"].value[:end, n][::-1]
        np.testing.assert_array_equal(found["y"].value[:end, n], np.roll(mirrored, 2, axis=1))


@needs_torch
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_rnn_agrees_with_torch_modules(mode: str) -> None:
    import torch

    kinds = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn_tanh": torch.nn.RNN}
    more = {"proj_size": 2} if mode == "lstm" else {}
    module = kinds[mode](3, 4, 2, bidirectional=True, dtype=torch.float64, **more)
    weights = {}
    for name, tensor in module.state_dict().items():
        kind, _, where = name.partition("_l")
        if kind == "weight_hr":
            weights[f"l{where}.P"] = tensor.numpy()
            continue
        letter = {"weight_ih": "W", "weight_hh": "R", "bias_ih": "bW", "bias_hh": "bR"}[kind]
        for gate, part in zip(
            GATES[mode], tensor.numpy().reshape(len(GATES[mode]), 4, *tensor.shape[1:]), strict=True
        ):
            weights[f"l{where}.{letter}_{gate}"] = part
    x = np.random.default_rng(16).normal(size=(5, 3, 3))
    lengths = (2, 5, 4)
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.from_numpy(x), lengths, enforce_sorted=False)
    y, state = module(packed)
    y, _ = torch.nn.utils.rnn.pad_packed_sequence(y)
    arguments = {"mode": mode, "num_layers": 2, "direction": "bidirectional", "lengths": lengths}
    found = solve("RNN", {"x": x, "weights": weights}, **arguments)
    np.testing.assert_allclose(found["y"].value, y.detach().numpy(), atol=1e-12)
    for name, tensor in zip(("hy", "cy"), state if mode == "lstm" else (state,), strict=False):
        np.testing.assert_allclose(found[name].value, tensor.detach().numpy(), atol=1e-12)


def test_attention_without_masks_agrees_with_scipy() -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(2, 3, 5, 8)), rng.normal(size=(2, 3, 4, 8)), rng.normal(size=(2, 3, 4, 6))
    found = solve("attention", {"q": q, "k": k, "v": v}, scale=0.25, return_stats=True)
    scores = np.einsum("bhid,bhjd->bhij", q, k) / 4
    np.testing.assert_allclose(found["y"].value, special.softmax(scores, -1) @ v, atol=1e-14)
    np.testing.assert_allclose(found["stats"].value, special.logsumexp(scores, -1), atol=1e-14)


def test_attention_masks_have_the_keys_of_their_formula() -> None:
    """One value for each key shows what a query attends to, of equal weights."""
    zeros, v = np.zeros((1, 1, 3, 8)), np.eye(5, 8).reshape(1, 1, 5, 8)
    operands = {"q": zeros, "k": np.zeros((1, 1, 5, 8)), "v": v}
    for causal, window, lengths, shift, left, right in (
        (True, None, None, 0, 9, 0),
        ("bottom_right", None, None, 2, 9, 0),
        (True, (1, None), None, 0, 1, 0),
        (False, (1, 1), None, 0, 1, 1),
        ("bottom_right", (1, 0), ([2], [4]), 2, 1, 0),
    ):
        rows, columns = (one[0] for one in lengths) if lengths else (3, 5)
        given = {"lengths_q": lengths[0], "lengths_kv": lengths[1]} if lengths else {}
        y = value("attention", operands, causal=causal, window=window, **given)[0, 0]
        for i in range(3):
            wanted = {j for j in range(columns) if i < rows and -left <= j - i - shift <= right}
            assert {int(j) for j in np.flatnonzero(y[i])} == wanted, (causal, window, i)


def test_attention_backward_is_the_slope_of_attention() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        operands, arguments = DRAWS["attention"](rng)
        if "page_table" in arguments:
            continue
        known = by_loops.VALUES["attention"](operands, {**arguments, "return_stats": True})
        dy = rng.normal(size=known["y"].shape)
        bias = {"dbias": True} if "bias" in operands else {}
        given = {"dy": dy, **operands, **known}
        found = by_loops.VALUES["attention_backward"](given, {**arguments, **bias})
        for name, gradient in found.items():
            step = rng.normal(size=gradient.shape) * 1e-6
            ends = [
                by_loops.VALUES["attention"](
                    {**operands, name[1:]: operands[name[1:]] + sign * step}, arguments
                )
                for sign in (1, -1)
            ]
            slope = ((ends[0]["y"] - ends[1]["y"]) * dy).sum() / 2
            np.testing.assert_allclose((gradient * step).sum(), slope, rtol=1e-4, atol=1e-11)


def test_weights_below_the_normal_numbers_of_float16_have_an_absolute_error() -> None:
    """The second key has a weight of 7.4 times the smallest float16, which 2**-11 of it does not cover."""
    tiny = 7.4 * 2.0**-24
    q, k = np.ones((1, 1, 1, 8)), np.zeros((1, 1, 2, 8))
    k[0, 0, 1] = np.log(tiny) / 8
    operands = {"q": q, "k": k, "v": np.ones((1, 1, 2, 8)), "dy": np.ones((1, 1, 1, 8))}
    operands |= {"y": np.ones((1, 1, 1, 8)), "stats": np.zeros((1, 1, 1))}
    found = solve("attention_backward", operands, scale=1.0, weights="float16")["dv"]
    np.testing.assert_allclose(found.value[0, 0, 1], tiny)
    error = np.abs(np.float16(tiny).astype(float) - tiny)
    assert found.rounded is not None
    assert 2.0**-11 * tiny < error <= 2.0**-11 * found.rounded[0, 0, 1, 0] <= 2.0**-25
    found = solve("attention_backward", operands, scale=1.0, weights="bfloat16")["dv"]
    assert found.rounded is not None
    np.testing.assert_allclose(found.rounded[0, 0, 1], tiny)


@pytest.mark.parametrize("scale", [0.0, 0.05, 1.0, 2.0])
def test_the_gradient_of_a_bias_has_the_rounding_of_scaled_gradients(scale: float) -> None:
    """Kernels round a gradient of scores after its product with the scale, and divide for dbias."""
    operands = {"q": np.ones((1, 1, 1, 8)), "k": np.zeros((1, 1, 1, 8)), "v": np.ones((1, 1, 1, 8))}
    operands |= {
        "y": np.zeros((1, 1, 1, 8)),
        "dy": np.full((1, 1, 1, 8), 2.0**-20),
        "stats": np.zeros((1, 1, 1)),
    }
    operands["bias"] = np.zeros((1, 1, 1, 1))
    found = solve("attention_backward", operands, scale=scale, dbias=True, weights="float16")["dbias"]
    rounded = float(np.float16(scale * found.value.item())) / scale if scale else 0.0
    error = abs(rounded - found.value.item()) if scale else 0.0
    assert found.rounded is not None
    assert error <= 2.0**-11 * found.rounded.item() <= 2.0**-23 / (min(scale, 1) or 1)


def test_scaled_matmul_takes_the_magnitude_before_the_scale() -> None:
    two, half = array(2.0), array(0.5)
    given = {"a": array([1.0, -3.0]), "b": array([2.0], [1.0]), "descale_a": half, "scale": two}
    found = solve("scaled_matmul", {**given, "bias": array(-1.0)}, amax=True)
    assert found["y"].value.tolist() == [[-3.0]]  # 2 * (0.5 * (2 - 3) - 1)
    assert found["amax"].value.tolist() == [1.5]


def test_scaled_conv_takes_the_magnitude_before_the_scale() -> None:
    two, half = array(2.0), array(0.5)
    given = {"x": array([[1.0, 2.0, 4.0]]), "w": array([[1.0, -1.0]]), "descale_w": half, "scale": two}
    found = solve("scaled_conv", {**given, "bias": array(-1.0)}, amax=True)
    assert found["y"].value.ravel().tolist() == [-3.0, -4.0]  # 2 * (0.5 * (1 - 2) - 1)
    assert found["amax"].value.tolist() == [2.0]


def test_scaled_attention_multiplies_scales_where_they_belong() -> None:
    """One key: the weight is 1, so only the scales of v, the weights and the result matter."""
    given = {"q": np.ones((1, 1, 2, 16)), "k": np.ones((1, 1, 1, 16)), "v": np.full((1, 1, 1, 16), -3.0)}
    scales = {"descale_q": 2.0, "descale_k": 0.25, "descale_v": 0.5, "scale_s": 8.0, "descale_s": 0.125}
    operands = {**given, **{name: array(one) for name, one in scales.items()}, "scale_o": array(4.0)}
    found = solve("scaled_attention", operands, return_stats=True, amax=True)
    assert found["y"].value.ravel().tolist() == [-6.0] * 32  # 4 * 0.5 * -3
    assert found["amax"].value.tolist() == [1.5]
    assert found["stats"].value.ravel().tolist() == [2.0] * 2  # 2 * 0.25 * 16 / sqrt(16)


def test_conv_scale_bias_activation_scales_before_the_bias_and_the_residual() -> None:
    operands = {"x": array([[1.0, 2.0, 4.0, 8.0]]), "w": array([[1.0, -1.0]])}
    operands |= {"scale": array(-2.0), "bias": array(-3.0), "residual": array([[1.5, 0.0, -9.0]])}
    assert value("conv_scale_bias_activation", operands).ravel().tolist() == [0.5, 1.0, 0.0]
    assert value("conv_scale_bias_activation", operands, activation="identity").ravel()[2] == -4.0


def test_fused_gradients_complete_the_gradient_of_a_batch_normalisation() -> None:
    """dz * eq_dz_scale + x * eq_x_scale + eq_bias is the gradient of x, if the statistics are those of x."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        operands, arguments = DRAWS["conv_backward_data_relu_batch_norm"](rng)
        x = operands["x"] = 1 + rng.normal(size=(3, *operands["x"].shape[1:]))
        operands["dy"] = rng.normal(size=(3, *operands["dy"].shape[1:]))
        axes, count = (0, *range(2, x.ndim)), x.size // x.shape[1]
        sums = {"sums": x.sum(axes), "square_sums": (x * x).sum(axes)}
        running = {name: np.zeros(x.shape[1]) for name in ("running_mean", "running_var")}
        parameters = {name: operands[name] for name in ("scale", "bias")}
        norm = solve("batch_norm_finalize", {**sums, **parameters, **running}, count=count)
        operands |= {name: norm[name].value for name in ("mean", "invstd")}
        found = solve("conv_backward_data_relu_batch_norm", operands, **arguments)
        wide = {
            name: found[name].value.reshape(-1, *(1,) * (x.ndim - 2))
            for name in ("eq_dz_scale", "eq_x_scale", "eq_bias")
        }
        dz = found["dz"].value
        dx = dz * wide["eq_dz_scale"] + x * wide["eq_x_scale"] + wide["eq_bias"]
        wanted = solve("batch_norm_backward", {"dy": dz, "x": x, **parameters})
        np.testing.assert_allclose(dx, wanted["dx"].value, atol=1e-9)
        np.testing.assert_allclose(found["dscale"].value, wanted["dscale"].value.ravel(), atol=1e-9)
        y = x * norm["eq_scale"].value.reshape(wide["eq_bias"].shape)
        y = y + norm["eq_bias"].value.reshape(wide["eq_bias"].shape)
        trained = solve("batch_norm_training", {"x": x, **parameters})
        np.testing.assert_allclose(y, trained["y"].value, atol=1e-9)
