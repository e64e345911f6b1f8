"""Shape rules, layouts, problems, recurrent networks and the text of specs: values, without a library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct._bindings.enums import (
    ConvolutionMode,
    DirectionMode,
    RNNAlgo,
    RNNBiasMode,
    RNNInputMode,
    RNNMode,
)
from cudnn_ct.plans.axes import Axis, coalesce, tile
from cudnn_ct.shapes.arithmetic import resolve_precision
from cudnn_ct.shapes.conv import conv_output_shape, conv_problem, pad_pairs
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
from cudnn_ct.shapes.specs import LAYOUTS, TensorSpec, equivalent_strides, packed_strides
from tests.conv_cases import Geometry, geometries
from tests.rnn_cases import rnn_specs

shapes = st.lists(st.integers(1, 5), min_size=3, max_size=5).map(tuple)


@given(shape=shapes)
def test_packed_strides_match_numpy(shape: tuple[int, ...]) -> None:
    array = np.empty(shape, np.uint8)
    assert packed_strides(shape) == array.strides
    channels_last = np.moveaxis(np.empty((shape[0], *shape[2:], shape[1]), np.uint8), -1, 1)
    assert packed_strides(shape, "nhwc") == channels_last.strides


def test_axes_are_merged_when_they_are_adjacent_in_each_tensor() -> None:
    packed, spread = TensorSpec((2, 3), (3, 1), "float32"), TensorSpec((2, 3), (6, 2), "float32")
    assert coalesce([packed, spread]) == [Axis((6, 6), (1, 2))]
    assert Axis((2, 1), (2**31, 1)).reach == 2**32


def test_images_in_two_layouts_keep_their_axes() -> None:
    specs = [TensorSpec.packed((2, 3, 4, 5), "float32", layout) for layout in LAYOUTS]
    made: list[TensorSpec] = []
    tile(lambda *given: made.extend(given), *specs)  # type: ignore[arg-type]
    assert made == specs


@given(shape=shapes, layout=st.sampled_from(LAYOUTS), odd=st.integers(1, 1000))
def test_layouts_of_ignores_strides_of_axes_of_length_1(
    shape: tuple[int, ...], layout: str, odd: int
) -> None:
    strides = packed_strides(shape, layout)
    disturbed = tuple(odd if n == 1 else s for n, s in zip(shape, strides, strict=True))
    found = TensorSpec(shape, disturbed, "float32").layouts
    assert layout in found
    assert len(found) == 2 or found == (layout,)


def test_layouts_of_a_view_with_gaps_are_none() -> None:
    assert TensorSpec((2, 3, 4, 5), (120, 20, 5, 1), "float32").layouts == ()
    assert TensorSpec((2, 3), (3, 1), "float32").layouts == ("nchw",)


@given(data=st.data(), shape=st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple))
def test_equivalent_strides_compares_the_places_of_elements(
    data: st.DataObject, shape: tuple[int, ...]
) -> None:
    """Compared with the place of each element."""
    steps = st.lists(st.integers(0, 3), min_size=len(shape), max_size=len(shape)).map(tuple)
    one, two = data.draw(steps), data.draw(steps)
    index = np.indices(shape)
    places = (np.tensordot(strides, index, 1) for strides in (one, two))
    assert equivalent_strides(shape, one, two) == np.array_equal(*places)


@given(case=geometries())
def test_output_shape_counts_the_places_of_the_window(case: Geometry) -> None:
    """Counted one by one, without the formula."""
    window, given = case.w[2:], (case.arguments[name] for name in ("stride", "dilation"))
    stride, dilation = ((one,) * len(window) if isinstance(one, int) else one for one in given)
    pairs = pad_pairs(case.arguments["padding"], window, dilation)
    for got, n, k, (before, after), s, d in zip(
        case.y[2:], case.x[2:], window, pairs, stride, dilation, strict=True
    ):
        starts = range(0, before + n + after, s)
        assert got == sum(start + (k - 1) * d < before + n + after for start in starts)


def test_pad_pairs_computes_named_paddings() -> None:
    assert pad_pairs("valid", (3, 4), (2, 1)) == ((0, 0), (0, 0))
    assert pad_pairs("half", (3, 4), (2, 1)) == ((2, 2), (2, 2))
    assert pad_pairs("full", (3, 4), (2, 1)) == ((4, 4), (3, 3))
    assert pad_pairs(np.int64(2), (3, 4), (1, 1)) == ((2, 2), (2, 2))
    assert pad_pairs([1, 2], (3, 4), (1, 1)) == ((1, 1), (2, 2))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"padding": np.array([1.0, 1.0])},
            TypeError,
            r"padding must be an int or a tuple of 2 ints, pairs \(before, after\) of each axis, or one of "
            r"valid, half, full: got array\(\[1., 1.\]\)",
        ),
        ({"dilation": 1.5}, TypeError, "dilation must be an int or a tuple of 2 ints: got 1.5"),
        ({"padding": ((1, 2),)}, ValueError, "expected 2 pairs"),
        ({"padding": ((1, 2), (3, -4))}, ValueError, "padding must be between 0"),
        ({"stride": (1, 2, 3)}, ValueError, "3 numbers; the window has 2 axes"),
        ({"stride": "2"}, TypeError, "stride must be an int"),
        ({"groups": 1.0}, TypeError, "groups must be an int"),
        ({"groups": -1}, ValueError, "groups must be at least 1: got -1"),
        ({"mode": 3}, ValueError, "mode must be one of"),
        ({"padding": 2**31}, ValueError, "padding must be between 0 and 2147483647"),
        ({"padding": 2**30, "stride": 1}, ValueError, "output shape"),
    ],
)
def test_output_shape_rejects_parameters(
    arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        conv_output_shape((1, 2, 5, 6), (2, 2, 3, 3), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("x", "w", "message"),
    [
        ((1, 2), (1, 2), "1 to 3 spatial axes"),
        ((1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6), "1 to 3 spatial axes"),
        ((1, 2, 3), (1, 2, 3, 1), r"w has 4 dimensions \(1, 2, 3, 1\)"),
        ((1, 6, 5), (2, 4, 3), "x has 6 channels; w expects 4 x groups 1 = 4"),
        ((1, 2, 5), (2, 2, 0), "needs at least one element"),
        ((1, 2, 5), (2, 2, 6), r"5 \+ padding 0 = 5, the window spans \(6 - 1\) x dilation 1 \+ 1 = 6"),
        ((1, -2, 5), (2, 2, 6), "each length must be between 0"),
    ],
)
def test_output_shape_rejects_shapes(x: tuple[int, ...], w: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        conv_output_shape(x, w)
    with pytest.raises(ValueError, match="3 filters, which 2 groups do not divide"):
        conv_output_shape((1, 4, 5), (3, 2, 2), groups=2)


def test_equal_problems_are_equal_keys() -> None:
    x, w = TensorSpec.packed((2, 3, 5, 6), "float16"), TensorSpec.packed((4, 3, 3, 3), "half")
    one = conv_problem("forward", x, w, padding=(1, 1), mode=ConvolutionMode.CONVOLUTION)
    two = conv_problem("forward", x, w, padding=1, mode="convolution", precision="as_input_f32")
    assert one == two
    assert hash(one) == hash(two)
    assert "padding ((1, 1), (1, 1))" in str(one)
    assert "mode convolution" in str(one)


def test_resolve_precision_returns_sums_and_tensor_cores() -> None:
    assert resolve_precision(None, "float16", True) == ("float32", True)
    assert resolve_precision(None, "float32", True) == ("float32", True)
    assert resolve_precision(None, "float32", False) == ("float32", False)
    assert resolve_precision(None, "float64", True) == ("float64", False)
    assert resolve_precision("float32", "bfloat16", True) == ("float32", False)
    assert resolve_precision("as_input", "float16", True) == ("float16", True)
    assert resolve_precision("float64", "float32", True) == ("float64", False)
    with pytest.raises(ValueError, match="precision='tf32' is for float32 data, not float64"):
        resolve_precision("tf32", "float64", True)
    for name in (None, "as_input_f32"):
        assert resolve_precision(name, "int8", True) == ("int32", False)
    for name in ("as_input", "float32", "float64"):
        with pytest.raises(ValueError, match=r"is for float16 or bfloat16 or float32.* data, not int8"):
            resolve_precision(name, "int8", True)


def test_int8_problem_has_the_dtype_of_out() -> None:
    x, w = (TensorSpec.packed(shape, "int8", "nhwc") for shape in ((2, 4, 5, 5), (8, 4, 3, 3)))
    for out in (None, "int32", "float32"):
        given_out = None if out is None else TensorSpec.packed((2, 8, 3, 3), out, "nhwc")
        made = conv_problem("forward", x, w, out=given_out)
        assert (made.y.dtype, made.y.layouts, made.compute) == (out or "int32", ("nhwc",), "int32")
    wrong = TensorSpec.packed((2, 8, 3, 3), "int8", "nhwc")
    with pytest.raises(TypeError, match="out is int8; sums of int8 are written as int32 or float32"):
        conv_problem("forward", x, w, out=wrong)
    with pytest.raises(ValueError, match="alpha is not supported for int32 results"):
        conv_problem("forward", x, w, scaled="alpha")
    with pytest.raises(TypeError, match=r"a gradient of a convolution takes float16, .*, not int8"):
        conv_problem("backward_data", wrong, w, shape=x.shape)


# --- the text of specs, which errors contain ---------------------------------------------------------------


@pytest.mark.parametrize("fields", [(None, None, None), ((1,), None, "float32"), ((1, 2), (1,), "float32")])
def test_wrong_spec_has_its_fields_as_text(fields: tuple[Any, ...]) -> None:
    wrong = TensorSpec(*fields)
    assert str(wrong) == repr(wrong)
    with pytest.raises(TypeError, match="cuDNN has no dtype TensorSpec"):
        ct.Graph(compute_dtype=wrong)  # type: ignore[arg-type]


def test_spec_names_its_layout_or_its_strides() -> None:
    assert str(TensorSpec.packed((2, 3), "float16")) == "float16[2, 3] nchw"
    assert str(TensorSpec((2, 3), (9, 2), "float16")) == "float16[2, 3] strides (9, 2)"


# --- recurrent networks: parameters, layouts, and weights of torch -----------------------------------------


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
        ("rnn_relu", "float32", 384, 16, "persist_static"),
        ("rnn_relu", "float32", 384, 17, "standard"),
        ("rnn_relu", "float32", 385, 16, "standard"),
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
