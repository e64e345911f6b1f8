"""Recurrent networks as values: errors, the table of parameters, layouts, weights of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_ct._bindings.enums import DirectionMode, RNNAlgo, RNNBiasMode, RNNDataLayout, RNNInputMode, RNNMode
from cudnn_ct.dtypes import as_dtype
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
from cudnn_ct.shapes.rnn_problem import guessed_algos, rnn_problem, unfit_algo, why_not_packed
from cudnn_ct.shapes.rnn_weights import arrange_weights, from_torch, to_torch
from cudnn_ct.shapes.sequences import (
    RNN_LAYOUTS,
    RNNShapes,
    check_rnn_operands,
    rnn_layout,
    rnn_shapes,
)
from tests.rnn_cases import rnn_specs

# --- the network -------------------------------------------------------------------------------------------


def test_names_are_those_of_cudnn() -> None:
    assert tuple(m.name.lower() for m in RNNMode) == RNN_MODES
    assert set(RNN_BIASES) == {m.name.lower() for m in RNNBiasMode}
    assert tuple(m.name.lower() for m in DirectionMode) == RNN_DIRECTIONS
    assert tuple(m.name.lower() for m in RNNAlgo if m is not RNNAlgo.COUNT) == RNN_ALGOS
    assert tuple(f"{name}_input" for name in RNN_INPUT_MODES) == tuple(m.name.lower() for m in RNNInputMode)
    assert {rnn_layout(layout) for layout in RNNDataLayout} == set(RNN_LAYOUTS)


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


def test_str_of_a_network_has_all_fields() -> None:
    spec = rnn_spec("lstm", 3, 4, 2, projection_size=2, dropout=0.25, clip=(-1, 2), dtype="half")
    assert str(spec) == (
        "lstm 3 -> 4 projected to 2, 2 layers, unidirectional, linear input, double_bias, dropout 0.25, "
        "cells clipped to [-1, 2], float16 (sums in float32, tensor_op math), standard"
    )


@pytest.mark.parametrize(
    ("dtype", "precision", "allow_tf32", "wanted"),
    [
        ("float32", None, True, ("float32", "default")),
        ("float32", None, False, ("float32", "fma")),
        ("float32", "float32", True, ("float32", "fma")),
        ("float32", "tf32", False, ("float32", "default")),
        ("float16", None, False, ("float32", "tensor_op")),
        ("float16", "float16", True, ("float16", "tensor_op")),
        ("float16", "float32", True, ("float32", "fma")),
        ("bfloat16", None, True, ("float32", "tensor_op")),
        ("float64", None, True, ("float64", "default")),
    ],
)
def test_precision(dtype: str, precision: str | None, allow_tf32: bool, wanted: tuple[str, str]) -> None:
    spec = rnn_spec("gru", 3, 4, dtype=dtype, precision=precision, allow_tf32=allow_tf32)
    assert (spec.compute, spec.math) == wanted


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"mode": "elman"}, ValueError, "mode must be one of rnn_relu, rnn_tanh, lstm, gru: got 'elman'"),
        ({"direction": "both"}, ValueError, "direction must be one of unidirectional, bidirectional"),
        ({"input_mode": "none"}, ValueError, "input_mode must be one of linear, skip"),
        ({"input_mode": 3}, ValueError, "input_mode must be one of linear, skip: got 3"),
        ({"bias": True}, ValueError, "bias must be one of no_bias, single_inp_bias, double_bias"),
        ({"algo": "fast"}, ValueError, "algo must be one of standard, persist_static"),
        ({"input_mode": "skip"}, ValueError, "input_size is 5, hidden_size 4"),
        ({"input_size": 0}, ValueError, "input_size must be between 1 and 2147483647, got 0"),
        ({"hidden_size": -4}, ValueError, "hidden_size must be between 1 and 2147483647, got -4"),
        ({"num_layers": 2.0}, TypeError, "num_layers must be an int: got 2.0"),
        ({"projection_size": -1}, ValueError, "projection_size must be between 0"),
        ({"projection_size": 4}, ValueError, "less than hidden_size 4, got 4"),
        ({"projection_size": 2, "mode": "gru"}, ValueError, "projection_size=2 is for mode='lstm'"),
        ({"projection_size": 2, "algo": "persist_static"}, ValueError, "algo='persist_static' has no proj"),
        ({"dropout": -0.1}, ValueError, "dropout must be at least 0 and less than 1, got -0.1"),
        ({"dropout": 1}, ValueError, "dropout must be at least 0 and less than 1, got 1"),
        ({"dropout": "some"}, TypeError, "dropout must be a number"),
        ({"dtype": "int8"}, TypeError, "a recurrent network takes .* not int8"),
        ({"dtype": "bfloat16", "precision": "as_input"}, ValueError, "keep sums in float32"),
        ({"dtype": "float64", "precision": "tf32"}, ValueError, "precision='tf32' is for float32"),
        ({"clip": (1, -1)}, ValueError, r"clip=\(1, -1\): low must not be more than high"),
        ({"clip": (float("nan"), 1)}, ValueError, "nor either be NaN"),
        ({"clip": 3}, TypeError, r"clip must be two numbers \(low, high\) or None, not 3"),
        ({"clip": (1, 2, 3)}, TypeError, "clip must be two numbers"),
        ({"clip": (-1, 1), "mode": "gru"}, ValueError, "is for the cells of mode='lstm'"),
    ],
)
def test_bad_networks(change: dict[str, Any], error: type[Exception], says: str) -> None:
    good: dict[str, Any] = {"mode": "lstm", "input_size": 5, "hidden_size": 4}
    with pytest.raises(error, match=says):
        rnn_spec(**(good | change))


# --- parameters --------------------------------------------------------------------------------------------


def test_names_of_parameters() -> None:
    rows = rnn_parameters(rnn_spec("lstm", 4, 4, 2, input_mode="skip", direction="bidirectional",
                                   bias="single_inp_bias", projection_size=3))  # fmt: skip
    assert [row.name for row in rows if row.pseudo_layer == 1] == [
        *(f"l0_reverse.bW_{gate}" for gate in ("input", "forget", "cell", "output")),
        *(f"l0_reverse.R_{gate}" for gate in ("input", "forget", "cell", "output")),
        "l0_reverse.P",
    ]
    assert len({row.name for row in rows}) == len(rows)
    shapes = {row.name: row.shape for row in rows}
    assert shapes["l0.R_cell"] == (4, 3)
    assert shapes["l0.P"] == (3, 4)
    assert shapes["l1.W_cell"] == (4, 6)


def test_the_example_of_theano() -> None:
    assert rnn_weight_size(rnn_spec("gru", 32, 16, 3)) == 3 * (16 * (32 + 16) + 2 * 16) + 2 * 3 * 2 * 16 * 17


# --- weights -----------------------------------------------------------------------------------------------


def numbered(spec: RNNSpec) -> list[np.ndarray]:
    """Weights with another number for each element."""
    numbers = np.arange(1.0, rnn_weight_size(spec) + 1)
    return [row.view(numbers) for row in rnn_parameters(spec)]


@given(
    spec=rnn_specs().filter(lambda spec: spec.input_mode == "linear"), prefix=st.sampled_from(("", "a.b."))
)
def test_to_torch_and_back(spec: RNNSpec, prefix: str) -> None:
    weights = numbered(spec)
    state = to_torch(weights, spec, prefix=prefix)
    for name, array in state.items():
        assert not any(np.shares_memory(array, w) for w in weights), name
    for back, weight in zip(from_torch(state, spec, prefix=prefix), weights, strict=True):
        np.testing.assert_array_equal(back, weight)


def test_from_torch_splits_the_gates() -> None:
    for mode, names in (
        ("lstm", ("input", "forget", "cell", "output")),  # torch's i, f, g, o
        ("gru", ("reset", "update", "new")),  # torch's r, z, n
    ):
        spec = rnn_spec(mode, 1, 1, 1, direction="bidirectional")
        state = {
            f"{tensor}_l0{ending}": np.array([f"{tensor} {i}{ending}" for i in range(len(names))])
            for tensor in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            for ending in ("", "_reverse")
        }
        shaped = {n: a.reshape(-1, 1) if n.startswith("weight") else a for n, a in state.items()}
        rows = (row.name for row in rnn_parameters(spec))
        named = {n: a.item() for n, a in zip(rows, from_torch(shaped, spec), strict=True)}
        for i, gate in enumerate(names):
            assert named[f"l0.W_{gate}"] == f"weight_ih {i}"
            assert named[f"l0.bR_{gate}"] == f"bias_hh {i}"
            assert named[f"l0_reverse.R_{gate}"] == f"weight_hh {i}_reverse"
            assert named[f"l0_reverse.bW_{gate}"] == f"bias_ih {i}_reverse"


@pytest.mark.parametrize(("bias", "kept"), [("single_inp_bias", "bW"), ("single_rec_bias", "bR")])
def test_two_biases_of_torch_are_summed_into_one(bias: str, kept: str) -> None:
    double = rnn_spec("lstm", 2, 3)
    state = to_torch(numbered(double), double)
    single = double._replace(bias=bias)
    merged = to_torch(from_torch(state, single), single)
    total = state["bias_ih_l0"] + state["bias_hh_l0"]
    np.testing.assert_array_equal(merged["bias_ih_l0"] + merged["bias_hh_l0"], total)
    gru = rnn_spec("gru", 2, 3)
    with pytest.raises(ValueError, match=f"l0.{kept}_new has no room .* largest element is"):
        from_torch(to_torch(numbered(gru), gru), gru._replace(bias=bias))


@pytest.mark.parametrize(("one", "other"), [(2048, 1), (60_000, 60_000), (1, 2**-10)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_biases_are_added_before_they_are_rounded(dtype: str, one: float, other: float) -> None:
    spec = rnn_spec("rnn_tanh", 1, 1, bias="single_inp_bias")
    biases = np.array([[one], [other]]).astype(as_dtype(dtype).numpy)
    state = dict.fromkeys(("weight_ih_l0", "weight_hh_l0"), np.ones((1, 1)))
    joined = from_torch(state | {"bias_ih_l0": biases[0], "bias_hh_l0": biases[1]}, spec)[1]
    assert joined == biases.astype(float).sum()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"weight_hh_l0": None}, "the state lacks weight_hh_l0"),
        ({"weight_ih_l1": np.ones(3)}, "the state has weight_ih_l1, which this network has not"),
        ({"bias_ih_l0": np.ones(3)}, r"bias_ih_l0 has shape \(3,\); this network needs \(12,\)"),
    ],
)
def test_bad_torch_states(change: dict[str, Any], says: str) -> None:
    spec = rnn_spec("lstm", 2, 3)
    state = to_torch(numbered(spec), spec) | change
    with pytest.raises(ValueError, match=says):
        from_torch({name: array for name, array in state.items() if array is not None}, spec)


def test_torch_has_no_skip_input() -> None:
    spec = rnn_spec("lstm", 3, 3, input_mode="skip")
    for call in (lambda: to_torch(numbered(spec), spec), lambda: from_torch({}, spec)):
        with pytest.raises(ValueError, match="torch has no skip input"):
            call()


def test_bad_weights() -> None:
    spec = rnn_spec("rnn_tanh", 2, 3, bias="no_bias")
    named = dict(zip(("l0.W_hidden", "l0.R_hidden"), numbered(spec), strict=True))
    assert arrange_weights(spec, named) == tuple(named.values())
    for wrong, says in (
        ({"l0.W_hidden": np.ones((2, 3))}, "the mapping of weights lacks l0.R_hidden"),
        (named | {"l0.P": np.ones(3)}, "the mapping of weights has l0.P, which this network has not"),
        (list(named.values())[::-1], r"l0.W_hidden has shape \(3, 3\); this network needs \(3, 2\)"),
        ([np.ones((3, 2))], "there are 1 weights; this network has 2"),
    ):
        with pytest.raises(ValueError, match=says):
            arrange_weights(spec, wrong)


# --- layouts -----------------------------------------------------------------------------------------------


def test_shapes_of_each_layout() -> None:
    spec = rnn_spec("lstm", 5, 4, 3, direction="bidirectional", projection_size=2)
    states = ((6, 2, 2), (6, 2, 4))
    assert rnn_shapes(spec, 7, 2) == RNNShapes((7, 2, 5), (7, 2, 4), *states)
    assert rnn_shapes(spec, 7, 2, "batch_major") == RNNShapes((2, 7, 5), (2, 7, 4), *states)
    assert rnn_shapes(spec, 7, 2, "packed", (7, 3)) == RNNShapes((10, 5), (10, 4), *states)
    assert rnn_shapes(rnn_spec("gru", 5, 4), 7, 2).c is None


def test_operands_of_each_layout() -> None:
    spec = rnn_spec("lstm", 5, 4)
    assert check_rnn_operands(spec, (7, 2, 5), lengths=[0, 7]) == (rnn_shapes(spec, 7, 2), (0, 7))
    shapes, lengths = check_rnn_operands(spec, (2, 7, 5), layout="batch_major")
    assert (shapes, lengths) == (rnn_shapes(spec, 7, 2, "batch_major"), (7, 7))
    shapes, lengths = check_rnn_operands(spec, (10, 5), (1, 2, 4), (1, 2, 4), (7, 3), "packed")
    assert (shapes, lengths) == (rnn_shapes(spec, 7, 2, "packed", (7, 3)), (7, 3))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (((7, 2, 5), None, None, None, "packed"), r"packed data needs \(sum of lengths, 5\)"),
        (((10, 5), None, None, None, "packed"), "packed data needs lengths"),
        (((10, 5), None, None, (7, 4), "packed"), r"x has 10 packed rows; lengths \(7, 4\) add up to 11"),
        (((2, 7, 4), None, None, None, "batch_major"), r"batch major data needs \(B, T, 5\)"),
        (((2, 7, 5), None, None, (7, 8), "batch_major"), "sequence 1 has length 8"),
        (((7, 2, 5), (1, 2, 5)), r"h0 has shape \(1, 2, 5\); this network needs \(1, 2, 3\): .* projection"),
        (
            ((7, 2, 5), None, (1, 2, 3)),
            r"c0 has shape \(1, 2, 3\); this network needs \(1, 2, 4\): .* hidden",
        ),
    ],
)
def test_bad_operands(arguments: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_rnn_operands(rnn_spec("lstm", 5, 4, projection_size=3), *arguments)


# --- calls -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "steps", "lengths", "wanted"),
    [
        ("sequence_major", 3, (3, 3), "packed"),
        ("sequence_major", 3, (3, 2), "sequence_major"),
        ("batch_major", 3, (3, 3), "batch_major"),
        ("batch_major", 3, (3,), "packed"),
        ("batch_major", 1, (1, 1, 1), "packed"),
        ("batch_major", 3, (2,), "batch_major"),
        ("packed", 3, (3, 2), "packed"),
    ],
)
def test_full_sequences_are_the_same_memory_packed(
    layout: str, steps: int, lengths: tuple[int, ...], wanted: str
) -> None:
    problem = rnn_problem(rnn_spec("gru", 4, 4), layout, steps, len(lengths), lengths, True)
    assert (problem.layout, problem.ragged) == (wanted, set(lengths) != {steps})


def test_a_problem_has_no_algorithm_and_its_kind_no_sizes() -> None:
    spec = rnn_spec("gru", 4, 5, algo="persist_dynamic")
    problem = rnn_problem(spec, "batch_major", 3, 2, (3, 1), False)
    assert problem.spec.algo == "standard"
    assert problem.kind == rnn_problem(spec, "batch_major", 9, 7, (3,) * 7, False).kind
    assert problem.kind != problem._replace(training=True).kind
    assert problem.result.shape == (3, 2, 5)
    assert str(problem) == (
        "gru 4 -> 5, 1 layer, unidirectional, linear input, double_bias, float32 (sums in float32, default "
        "math): 2 sequences of different lengths, 3 steps, batch major, inference"
    )


@pytest.mark.parametrize(
    ("mode", "dtype", "hidden", "batch", "first"),
    [
        ("lstm", "float16", 1024, 64, "persist_static"),
        ("lstm", "float16", 1025, 64, "standard"),
        ("gru", "float16", 1024, 128, "persist_static"),
        ("gru", "float16", 1536, 64, "standard"),
        ("rnn_tanh", "float16", 1536, 16, "persist_static"),
        ("rnn_tanh", "float16", 256, 16, "persist_static_small_h"),
        ("rnn_tanh", "float32", 256, 16, "persist_static_small_h"),
        ("lstm", "bfloat16", 64, 1, "standard"),
        ("lstm", "float32", 1024, 1, "persist_static"),
        ("lstm", "float32", 1024, 2, "standard"),
        ("rnn_relu", "float64", 64, 1, "standard"),
    ],
)
def test_heuristic_order(mode: str, dtype: str, hidden: int, batch: int, first: str) -> None:
    spec = rnn_spec(mode, 8, hidden, dtype=dtype)
    guessed = guessed_algos(rnn_problem(spec, "packed", 5, batch, (5,) * batch, True))
    assert guessed[0] == first
    assert sorted(guessed) == sorted(RNN_ALGOS)


def test_unfit_algorithms_and_lengths() -> None:
    problem = rnn_problem(rnn_spec("lstm", 4, 4, projection_size=2), "packed", 3, 1, (3,), True)
    assert not unfit_algo(problem, "standard")
    assert unfit_algo(problem, "persist_static") == "persist_static has no projection"
    assert not why_not_packed((3, 2, 2))
    assert "lengths are (2, 3)" in why_not_packed((2, 3))
