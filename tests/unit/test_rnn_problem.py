"""Recurrent networks as values: errors, the table of parameters, layouts, weights of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_ct._bindings.enums import DirectionMode, RNNAlgo, RNNBiasMode, RNNInputMode, RNNMode
from cudnn_ct.shapes.rnn import (
    RNN_ALGOS,
    RNNSpec,
    arrange_weights,
    from_torch,
    rnn_parameters,
    rnn_spec,
    rnn_weight_size,
    to_torch,
)
from cudnn_ct.shapes.sequences import check_rnn_operands, guessed_algos, rnn_problem, unfit_algo
from tests.rnn_cases import rnn_specs


def test_enums_are_accepted() -> None:
    spec = rnn_spec(
        RNNMode.GRU, 4, 4, 2, direction=DirectionMode.BIDIRECTIONAL, input_mode=RNNInputMode.SKIP_INPUT,
        bias=RNNBiasMode.SINGLE_INP_BIAS, algo=RNNAlgo.PERSIST_STATIC, projection_size=None,
    )  # fmt: skip
    wanted = rnn_spec(
        "gru", 4, 4, 2, direction="bidirectional", input_mode="skip", bias="single_inp_bias",
        algo="persist_static",
    )  # fmt: skip
    assert spec == wanted
    assert hash(spec) == hash(wanted)
    assert (spec.directions, spec.pseudo_layers, spec.output_size) == (2, 4, 4)


@pytest.mark.parametrize(
    ("dtype", "precision", "allow_tf32", "wanted"),
    [
        ("float32", None, True, ("float32", "default")),
        ("float32", None, False, ("float32", "fma")),
        ("float32", "tf32", False, ("float32", "default")),
        ("float16", "float16", True, ("float16", "tensor_op")),
        ("float16", "float32", True, ("float32", "fma")),
        ("bfloat16", None, True, ("float32", "tensor_op")),
        ("float64", None, True, ("float64", "default")),
    ],
)
def test_precision_of_sums(
    dtype: str, precision: str | None, allow_tf32: bool, wanted: tuple[str, str]
) -> None:
    spec = rnn_spec("gru", 3, 4, dtype=dtype, precision=precision, allow_tf32=allow_tf32)
    assert (spec.compute, spec.math) == wanted


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"mode": "elman"}, ValueError, "mode must be one of rnn_relu, rnn_tanh, lstm, gru: got 'elman'"),
        ({"input_mode": 3}, ValueError, "input_mode must be one of linear, skip, .*: got 3"),
        ({"input_mode": "skip"}, ValueError, "input_size is 5, hidden_size 4"),
        ({"input_size": 0}, ValueError, "input_size must be between 1 and 2147483647, got 0"),
        ({"num_layers": 2.0}, TypeError, "num_layers must be an int: got 2.0"),
        ({"projection_size": 4}, ValueError, "less than hidden_size 4, got 4"),
        ({"projection_size": 2, "mode": "gru"}, ValueError, "projection_size=2 is for mode='lstm'"),
        ({"dropout": 1}, ValueError, "dropout must be at least 0 and less than 1, got 1"),
        ({"dtype": "int8"}, TypeError, "a recurrent network takes .* not int8"),
        ({"dtype": "bfloat16", "precision": "as_input"}, ValueError, "keep sums in float32"),
        ({"dtype": "float64", "precision": "tf32"}, ValueError, "precision='tf32' is for float32"),
        ({"clip": (1, -1)}, ValueError, r"clip=\(1, -1\): low must not be more than high"),
        ({"clip": (float("nan"), 1)}, ValueError, "nor either be NaN"),
        ({"clip": 3}, TypeError, r"clip must be two numbers \(low, high\) or None, not 3"),
        ({"clip": (-1, 1), "mode": "gru"}, ValueError, "is for the cells of mode='lstm'"),
    ],
)
def test_rnn_spec_rejects_bad_parameters(change: dict[str, Any], error: type[Exception], says: str) -> None:
    good: dict[str, Any] = {"mode": "lstm", "input_size": 5, "hidden_size": 4}
    with pytest.raises(error, match=says):
        rnn_spec(**(good | change))


def numbered(spec: RNNSpec) -> list[np.ndarray]:
    """Weights with another number for each element."""
    numbers = np.arange(1.0, rnn_weight_size(spec) + 1)
    return [row.view(numbers) for row in rnn_parameters(spec)]


@given(spec=rnn_specs(torch=True), prefix=st.sampled_from(("", "a.b.")))
def test_to_torch_and_back(spec: RNNSpec, prefix: str) -> None:
    weights = numbered(spec)
    state = to_torch(weights, spec, prefix=prefix)
    for name, array in state.items():
        assert not any(np.shares_memory(array, w) for w in weights), name
    for back, weight in zip(from_torch(state, spec, prefix=prefix), weights, strict=True):
        np.testing.assert_array_equal(back, weight)


def test_to_torch_writes_zeros_for_a_bias_that_the_network_lacks() -> None:
    spec = rnn_spec("lstm", 2, 3, projection_size=1, bias="single_inp_bias")
    state = to_torch(numbered(spec), spec)
    assert state["bias_ih_l0"].all()
    np.testing.assert_array_equal(state["bias_hh_l0"], np.zeros(4 * 3))


@pytest.mark.parametrize(
    ("mode", "gates"),  # in torch's order: i, f, g, o and r, z, n
    [("lstm", ("input", "forget", "cell", "output")), ("gru", ("reset", "update", "new"))],
)
def test_from_torch_splits_the_gates(mode: str, gates: tuple[str, ...]) -> None:
    spec, parts = rnn_spec(mode, 1, 1), np.arange(float(len(gates)))
    matrices = {"weight_ih_l0": parts[:, None], "weight_hh_l0": 10 + parts[:, None]}
    arrays = from_torch(matrices | {"bias_ih_l0": 20 + parts, "bias_hh_l0": 30 + parts}, spec)
    named = {row.name: array.item() for row, array in zip(rnn_parameters(spec), arrays, strict=True)}
    for i, gate in enumerate(gates):
        assert [named[f"l0.{letter}_{gate}"] for letter in ("W", "R", "bW", "bR")] == [
            i,
            10 + i,
            20 + i,
            30 + i,
        ]


LSTM, PLAIN = rnn_spec("lstm", 2, 3), rnn_spec("rnn_tanh", 2, 3, bias="no_bias")
STATE = to_torch(numbered(LSTM), LSTM)
NAMED = dict(zip(("l0.W_hidden", "l0.R_hidden"), numbered(PLAIN), strict=True))


def test_weights_by_name_are_put_in_order() -> None:
    assert arrange_weights(PLAIN, dict(reversed(NAMED.items()))) == tuple(NAMED.values())


@pytest.mark.parametrize(
    ("call", "spec", "weights", "says"),
    [
        (from_torch, LSTM, dict(list(STATE.items())[1:]), "the state lacks weight_ih_l0"),
        (from_torch, LSTM, STATE | {"weight_ih_l1": 1}, "the state has weight_ih_l1, which this network has"),
        (from_torch, LSTM, STATE | {"bias_ih_l0": np.ones(3)}, r"bias_ih_l0 has shape \(3,\); .* \(12,\)"),
        (from_torch, LSTM._replace(bias="single_inp_bias"), STATE, "one bias where torch has two"),
        (from_torch, rnn_spec("gru", 3, 3, input_mode="skip"), {}, "torch has no skip input"),
        (arrange_weights, PLAIN, NAMED | {"l0.P": 1}, "the mapping of weights has l0.P, which this network"),
        (arrange_weights, PLAIN, list(NAMED.values())[::-1], r"l0.W_hidden has shape \(3, 3\); .* \(3, 2\)"),
        (arrange_weights, PLAIN, [np.ones((3, 2))], "there are 1 weights; this network has 2"),
    ],
)
def test_weights_that_do_not_fit_are_rejected(call: Any, spec: RNNSpec, weights: Any, says: str) -> None:
    arguments = (weights, spec) if call is from_torch else (spec, weights)
    with pytest.raises(ValueError, match=says):
        call(*arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (((7, 2, 5), None, None, None, "packed"), r"packed data needs \(sum of lengths, 5\)"),
        (((10, 5), None, None, None, "packed"), "packed data needs lengths"),
        (((10, 5), None, None, (7, 4), "packed"), r"x has 10 packed rows; lengths \(7, 4\) add up to 11"),
        (((2, 7, 4), None, None, None, "batch_major"), r"batch major data needs \(B, T, 5\)"),
        (((2, 7, 5), None, None, (7, 8), "batch_major"), "lengths of sequence 1 is 8"),
        (((7, 2, 5), (1, 2, 5)), r"h0 has shape \(1, 2, 5\); this network needs \(1, 2, 3\): .* projection"),
        (
            ((7, 2, 5), None, (1, 2, 3)),
            r"c0 has shape \(1, 2, 3\); this network needs \(1, 2, 4\): .* hidden",
        ),
    ],
)
def test_operands_that_do_not_fit_the_network_are_rejected(arguments: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_rnn_operands(rnn_spec("lstm", 5, 4, projection_size=3), *arguments)


def test_problem_has_no_algorithm() -> None:
    spec = rnn_spec("lstm", 4, 5, projection_size=2, algo="persist_dynamic")
    problem = rnn_problem(spec, "batch_major", 3, 2, (3, 1), False)
    assert problem.spec.algo == "standard"


@pytest.mark.parametrize(
    ("mode", "dtype", "hidden", "batch", "first"),
    [
        ("lstm", "float16", 1024, 64, "persist_static"),
        ("lstm", "float16", 1025, 64, "standard"),
        ("rnn_tanh", "float16", 256, 16, "persist_static_small_h"),
        ("lstm", "bfloat16", 64, 1, "standard"),
        ("lstm", "float32", 1024, 1, "persist_static"),
        ("lstm", "float32", 1024, 2, "standard"),
        ("rnn_relu", "float64", 64, 1, "standard"),
    ],
)
def test_guessed_algos_order(mode: str, dtype: str, hidden: int, batch: int, first: str) -> None:
    spec = rnn_spec(mode, 8, hidden, dtype=dtype, projection_size=8 if mode == "lstm" else None)
    guessed = guessed_algos(rnn_problem(spec, "packed", 5, batch, (5,) * batch, True))
    assert guessed[0] == first
    assert sorted(guessed) == sorted(RNN_ALGOS)


def test_algorithms_without_projection_are_unfit() -> None:
    problem = rnn_problem(rnn_spec("lstm", 4, 4, projection_size=2), "packed", 3, 1, (3,), True)
    assert not unfit_algo(problem, "standard")
    assert unfit_algo(problem, "persist_static") == "persist_static has no projection"
