"""Modes, edge cases and limits of the reference; loops are in tests/oracle."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_ct import reference
from cudnn_ct._bindings import constants, enums
from cudnn_ct.reference.dropout import dropout
from cudnn_ct.reference.layers import ctc_loss
from cudnn_ct.reference.rnn import rnn, rnn_backward
from cudnn_ct.shapes.checks import FLOATS, as_choice
from cudnn_ct.shapes.ctc import ctc_spec
from cudnn_ct.shapes.layers import LRN_MAX_CHANNELS, activation_spec, check_lrn_factors
from cudnn_ct.shapes.norm import NORM_MIN_EPSILON, norm_axes, norm_parameter_dtype, norm_samples
from cudnn_ct.shapes.rnn import RNN_MODES, rnn_parameters, rnn_spec
from cudnn_ct.shapes.specs import MAX_AXES
from cudnn_ct.shapes.tensor import OP_TENSOR_OPS, REDUCE_OPS
from tests.conv_cases import int8_cases
from tests.ctc_cases import CTCCase, ctc_cases
from tests.layers import LayerCase
from tests.rnn_cases import RNNCase, rnn_cases


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return 3 * np.random.default_rng(seed).standard_normal(shape)


# --- modes and limits of cuDNN ---


@pytest.mark.parametrize(
    "kind",
    [
        *(enums.ActivationMode, enums.BatchNormMode, enums.OpTensorOp, enums.PoolingMode),
        *(enums.ReduceTensorOp, enums.SoftmaxAlgorithm, enums.SoftmaxMode),
    ],
)
def test_modes_may_be_enums(kind: Any) -> None:
    names = [member.name.lower() for member in kind]
    assert [as_choice(member, names, "mode") for member in kind] == names


def test_names_and_limits_match_cudnn() -> None:
    assert [op.name.lower() for op in enums.OpTensorOp] == list(OP_TENSOR_OPS)
    assert [op.name.lower() for op in enums.ReduceTensorOp] == list(REDUCE_OPS)
    for mode in enums.LossNormalizationMode:
        assert ctc_spec(normalization=mode).normalization == mode.name.lower()
    assert [ctc_spec(out_of_bound=mode).out_of_bound for mode in enums.CTCGradMode] == ["zero", "skip"]
    assert constants.CUDNN_DIM_MAX == MAX_AXES
    assert constants.CUDNN_LRN_MAX_N == LRN_MAX_CHANNELS
    least = (0, constants.CUDNN_LRN_MIN_BETA, constants.CUDNN_LRN_MIN_K)
    assert check_lrn_factors(*least) == least
    assert constants.CUDNN_BN_MIN_EPSILON == NORM_MIN_EPSILON
    assert [norm_parameter_dtype(dtype) for dtype in FLOATS] == ["float32", "float32", "float32", "float64"]


# --- activation ---


def test_swish_has_slope_1_by_default() -> None:
    x = np.linspace(-3, 3, 7)
    plain = reference.activation(x, mode="swish")
    np.testing.assert_allclose(plain, x / (1 + np.exp(-x)), rtol=1e-14)
    assert activation_spec("swish", 0) == activation_spec("swish", 1) == activation_spec("SiLU", 0)
    for coefficient in (0, 1.5):
        keywords: dict[str, Any] = {"activation": "silu", "coefficient": coefficient}
        fused = reference.conv_bias_activation(x.reshape(1, 1, 7), np.ones((1, 1, 1)), None, **keywords)
        expected = reference.activation(x, mode="swish", coefficient=coefficient)
        np.testing.assert_array_equal(fused.ravel(), expected)


@pytest.mark.parametrize(
    ("mode", "bend", "slope"),
    [("relu", 0, 0), ("clipped_relu", 0, 0), ("clipped_relu", 1.5, 1), ("elu", 0, 1)],
)
def test_activation_backward_has_the_slope_of_cudnn_at_corners(mode: str, bend: float, slope: float) -> None:
    x = np.array([bend], float)
    y = reference.activation(x, mode=mode, coefficient=1.5)
    assert reference.activation_backward(np.ones(1), x, y, mode=mode, coefficient=1.5).item() == slope


# --- batch normalisation and dropout ---


def test_batch_norm_of_one_sample_has_that_mean() -> None:
    x, scale, bias = random(1, 3), random(3, seed=1), random(3, seed=2)
    np.testing.assert_array_equal(reference.batch_norm_training(x, scale, bias).y, [bias])
    assert not reference.batch_norm_backward(x, x, scale).dx.any()
    message = r"unbiased variance, which one sample .* x of shape \(1, 3\) with mode='spatial' has one"
    with pytest.raises(ValueError, match=message):
        reference.batch_norm_training(x, scale, bias, running_mean=scale.copy(), running_var=scale.copy())
    assert norm_axes((2, 3, 4, 5, 6, 7), "spatial") == (0, 2, 3, 4, 5)
    assert norm_samples((2, 3, 4), "per_activation") == 2


def test_batch_norm_keeps_running_statistics_when_a_call_is_rejected() -> None:
    x, one = random(4, 3), np.ones(3)
    mean0, var0 = np.zeros(3), np.ones(3)
    with pytest.raises(ValueError, match="out has shape"):
        reference.batch_norm_training(x, one, one, running_mean=mean0, running_var=var0, out=np.ones(3))
    assert not mean0.any()


def test_dropout_scales_kept_elements_and_zeroes_dropped_ones() -> None:
    y = dropout(np.array([3, 3, np.nan, np.inf], np.float32), [True, False, False, False], 0.25)
    assert y.dtype == np.float32
    assert y.tolist() == [4, 0, 0, 0]


# --- CTC loss ----------------------------------------------------------------------------------------------


@given(case=ctc_cases(dtypes=("float64",)), blank=st.integers(0, 1), in_rows=st.booleans())
def test_ctc_loss_ignores_steps_and_labels_past_the_end(case: CTCCase, blank: int, in_rows: bool) -> None:
    """Also if the last symbol is the blank, and the others follow each other from 0."""
    case = case._replace(normalization="softmax", in_rows=in_rows)
    labels, counts, inputs = case.integers
    flat, clean = case._replace(in_rows=False).integers[0], np.nan_to_num(case.logits)
    expected = ctc_loss(clean, flat, counts, inputs)
    last = blank * (case.alphabet - 1)
    got = ctc_loss(np.roll(case.logits, -blank, axis=2), labels - blank, counts, inputs, blank=last)
    np.testing.assert_allclose(got.loss, expected.loss, rtol=1e-12)
    np.testing.assert_allclose(got.gradient, np.roll(expected.gradient, -blank, axis=2), atol=1e-12)


def test_ctc_loss_writes_both_results_into_out() -> None:
    x, given = np.zeros((2, 1, 3)), (np.empty(1), np.empty((2, 1, 3)))
    expected = ctc_loss(x, [1], [1], [2])
    got = ctc_loss(x, [1], [1], [2], out=given)
    for one, ours, wanted in zip(given, got, expected, strict=True):
        assert ours is one
        np.testing.assert_array_equal(ours, wanted)
    assert ctc_loss(x, [1], [1], [2], out=(given[0], None)).loss is given[0]
    assert ctc_loss(x, [1], [1], [2], out=given[1]).gradient is given[1]


def test_ctc_loss_has_a_gradient_when_there_are_no_labels() -> None:
    """The only alignment has a gradient for the blank: the limit of gradients as p approaches zero."""
    p = np.array([[[0.0, 0.5, 0.5]], [[0.2, 0.4, 0.4]]])
    almost = np.where(p, p, 1e-300)
    loss, gradient = ctc_loss(p, [], [0], [2], normalization="none")
    assert np.isposinf(loss).all()
    np.testing.assert_array_equal(gradient, ctc_loss(almost, [], [0], [2], normalization="none").gradient)
    np.testing.assert_allclose(gradient[:, 0], [[-1, 0.5, 0.5], [-0.8, 0.4, 0.4]], rtol=1e-15)
    logits = np.array([[[-np.inf, 0.0, 0.0]], [[0.0, 0.0, 0.0]]])
    np.testing.assert_allclose(ctc_loss(logits, [], [0], [2]).gradient[0, 0], [-1, 0.5, 0.5])


# --- convolution and pooling -------------------------------------------------------------------------------


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@given(int8_cases())
def test_conv_of_int8_is_exact(case: LayerCase) -> None:
    x, w = (one.array() for one in case.operands if one)
    outs = {name: one.array() for name, one in case.outs.items()}
    wide = {name: out.astype(np.float64) for name, out in outs.items()}
    expected = reference.conv(x.astype(np.float64), w.astype(np.float64), **case.keywords, **wide)
    y = reference.conv(x, w, **case.keywords, **outs)
    assert y.dtype == (outs["out"].dtype if outs else np.int32)
    np.testing.assert_array_equal(y.astype(np.float64), np.rint(2 * expected) / 2)  # alpha may be a half


def test_conv_of_int8_wraps_around_when_the_sum_exceeds_int32() -> None:
    """All engines of cuDNN 9.19 wrap around, with any dtype of the result."""
    x, w = np.full((1, 140_000, 1), 127, np.int8), np.full((1, 140_000, 1), 127, np.int8)
    wrapped = 140_000 * 127**2 - 2**32
    assert reference.conv(x, w).tolist() == [[[wrapped]]]
    assert reference.conv(x, -w).tolist() == [[[-wrapped]]]
    out = np.empty((1, 1, 1), np.float32)
    assert reference.conv(x, w, out=out).tolist() == [[[float(np.float32(wrapped))]]]


def test_conv_reads_nan_in_out_only_when_beta_is_not_0() -> None:
    out, operands = np.full((1, 1, 1), np.nan), (np.ones((1, 1, 3)), np.ones((1, 1, 3)))
    assert np.isnan(reference.conv(*operands, beta=1, out=out)).all()
    assert reference.conv(*operands, out=out).item() == 3


def test_conv_accepts_the_input_as_out() -> None:
    x = np.arange(5.0).reshape(1, 1, 5)
    reference.conv(x, np.array([[[1.0, 0.0, 0.0]]]), padding=1, out=x)
    assert x.ravel().tolist() == [0, 0, 1, 2, 3]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_conv_rounds_up_when_the_sum_is_just_over_a_tie(dtype: np.dtype[Any], sign: int) -> None:
    # 1 + half a unit in the last place + a trace: nearest is 1 + one unit, but rounding by way of float32
    # loses the trace, meets a tie, and answers 1.
    half = 2.0**-11 if dtype == np.float16 else 2.0**-8
    ones = np.ones((1, 2, 1), dtype)
    x = np.array([[[sign * half * 2**7], [sign * 2.0**-17]]]).astype(dtype)
    w = np.array([[[2.0**-7], [2.0**-23]]]).astype(dtype)
    out = (sign * ones[:, :1]).copy()
    assert reference.conv(x, w, beta=1, out=out).astype(np.float64).item() == sign * (1 + 2 * half)


def test_conv_of_a_photograph_needs_little_memory() -> None:
    x, w = np.ones((1, 3, 427, 640), np.float32), np.ones((18, 1, 7, 7), np.float32)
    tracemalloc.start()
    try:
        reference.conv(x, w, groups=3, padding="half")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200e6


def test_pool_backward_gives_the_gradient_to_the_first_of_equal_elements() -> None:
    x = np.ones((1, 1, 2, 2))
    dx = reference.pool_backward(np.array([[[[7.0]]]]), x, x[:, :, :1, :1], window=2)
    assert dx.tolist() == [[[[7, 0], [0, 0]]]]


def test_pool_backward_skips_the_padding_when_the_maximum_is_0() -> None:
    x = np.array([[[0.0, -1.0, -1.0]]])
    y = reference.pool(x, window=2, stride=1, padding=1)
    dx = reference.pool_backward(np.ones_like(y), x, y, window=2, stride=1, padding=1)
    np.testing.assert_array_equal(dx, [[[2, 1, 1]]])


@pytest.mark.parametrize("mode", ["max", "max_deterministic"])
def test_pool_of_int8_equals_pool_of_float64(mode: str) -> None:
    x = np.random.default_rng(0).integers(-128, 128, (2, 3, 7, 5)).astype(np.int8)
    keywords: dict[str, Any] = {"window": (3, 2), "stride": 2, "padding": 1, "mode": mode}
    y = reference.pool(x, **keywords)
    assert y.dtype == np.int8
    np.testing.assert_array_equal(y, reference.pool(x.astype(float), **keywords))


# --- recurrent networks ------------------------------------------------------------------------------------


@given(case=rnn_cases())
def test_rnn_ignores_steps_past_the_end(case: RNNCase) -> None:
    x, dirty = case.x, case.x
    past = np.arange(case.steps)[:, None] >= np.array(case.lengths)
    dirty[past] = np.nan
    clean = rnn(x, case.weights, case.spec, **case.options, padding=7)
    again = rnn(dirty, case.weights, case.spec, **case.options, padding=7)
    np.testing.assert_array_equal(clean.y, again.y)
    assert (clean.y[past] == 7).all()
    dy = case.random(clean.y.shape, 3)
    dirty_dy = np.where(past[..., None], np.nan, dy)
    first = rnn_backward(x, case.weights, case.spec, dy, **case.options)
    second = rnn_backward(dirty, case.weights, case.spec, dirty_dy, **case.options)
    np.testing.assert_array_equal(first.dx, second.dx)
    assert not first.dx[past].any()
    for one, other in zip(first.dweights, second.dweights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("mode", RNN_MODES)
def test_rnn_keeps_the_states_when_there_are_no_steps(mode: str) -> None:
    case = RNNCase(rnn_spec(mode, 3, 3, 2, direction="bidirectional", dtype="float64"), 2, (0, 0), True, 0)
    options = case.options
    rows = rnn_parameters(case.spec)
    by_name = {row.name: w for row, w in zip(rows, case.weights, strict=True)}
    y, hy, cy = rnn(case.x, dict(reversed(by_name.items())), case.spec, **options, padding=-5)
    assert (y == -5).all()
    np.testing.assert_array_equal(hy, options["h0"])
    dcy = {} if cy is None else {"dcy": options["c0"]}
    d = rnn_backward(case.x, case.weights, case.spec, y, dhy=hy, **dcy, **options)
    np.testing.assert_array_equal(d.dh0, hy)
    assert not any(dw.any() for dw in (d.dx, *d.dweights))
    if cy is not None:
        np.testing.assert_array_equal(cy, options["c0"])
        np.testing.assert_array_equal(d.dc0, options["c0"])


@pytest.mark.parametrize("shape", [(0, 2), (3, 0)])
def test_rnn_accepts_an_empty_batch(shape: tuple[int, int]) -> None:
    spec = rnn_spec("lstm", 3, 4, dtype="float64")
    case = RNNCase(spec, shape[0], (shape[0],) * shape[1], True, 0)
    y, hy, _ = rnn(case.x, case.weights, spec, **case.options)
    assert y.shape == (*shape, 4)
    np.testing.assert_array_equal(hy, case.options["h0"])
    assert rnn_backward(case.x, case.weights, spec, y).dx.shape == (*shape, 3)


def test_rnn_keeps_nan_in_its_sequence() -> None:
    case = RNNCase(rnn_spec("lstm", 3, 4, 2, direction="bidirectional", dtype="float64"), 3, (3, 0), True, 0)
    options = case.options
    options["h0"][:, 1] = np.nan
    y, hy, _ = rnn(case.x, case.weights, case.spec, **options)
    assert np.isnan(hy).all((0, 2)).tolist() == [False, True]
    assert not np.isnan(hy[:, 0]).any()
    d = rnn_backward(case.x, case.weights, case.spec, np.ones_like(y), **options)
    assert not any(np.isnan(g).any() for g in (d.dx, d.dh0, d.dc0, *d.dweights))


def test_rnn_applies_masks_between_layers() -> None:
    case = RNNCase(rnn_spec("gru", 3, 4, 2, dropout=0.5, dtype="float64"), 3, (3, 2), False, 0)
    masks = np.random.default_rng(0).choice([0.0, 2.0], (1, 3, 2, 4))
    rows = rnn_parameters(case.spec)
    below, above = (
        [w for r, w in zip(rows, case.weights, strict=True) if r.pseudo_layer == i] for i in (0, 1)
    )
    first = rnn(case.x, below, rnn_spec("gru", 3, 4, dtype="float64"), lengths=case.lengths)
    second = rnn(first.y * masks[0], above, rnn_spec("gru", 4, 4, dtype="float64"), lengths=case.lengths)
    both = rnn(case.x, case.weights, case.spec, lengths=case.lengths, masks=masks)
    np.testing.assert_allclose(both.y, second.y, rtol=1e-13)
    dy = case.random(both.y.shape, 3)
    d = rnn_backward(case.x, case.weights, case.spec, dy, lengths=case.lengths, masks=masks)
    along = case.random(case.x.shape, 4)
    up, down = (
        rnn(case.x + step * along, case.weights, case.spec, lengths=case.lengths, masks=masks).y
        for step in (1e-5, -1e-5)
    )
    np.testing.assert_allclose((d.dx * along).sum(), ((up - down) * dy).sum() / 2e-5, atol=1e-7)


def test_rnn_clips_the_first_cells_when_they_are_used() -> None:
    spec = rnn_spec("lstm", 1, 1, clip=(-0.1, 0.1), dtype="float64")
    weights = [np.full(row.shape, 0.5) for row in rnn_parameters(spec)]
    x = np.ones((2, 1, 1))
    clipped, given = (rnn(x, weights, spec, c0=np.full((1, 1, 1), c)) for c in (0.1, 3.0))
    np.testing.assert_array_equal(given.y, clipped.y)
    backward = rnn_backward(x, weights, spec, np.ones((2, 1, 1)), c0=np.full((1, 1, 1), 3.0))
    assert not backward.dc0.any()
