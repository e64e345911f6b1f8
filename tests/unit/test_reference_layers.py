"""Modes, edge cases and limits of the reference, and its CTC loss; loops are in tests/oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_ct import reference
from cudnn_ct._bindings import constants, enums
from cudnn_ct.reference.dropout import dropout
from cudnn_ct.reference.layers import ctc_loss
from cudnn_ct.shapes.checks import FLOATS, as_choice
from cudnn_ct.shapes.ctc import ctc_spec
from cudnn_ct.shapes.layers import LRN_MAX_CHANNELS, activation_spec, check_lrn_factors
from cudnn_ct.shapes.norm import NORM_MIN_EPSILON, norm_axes, norm_parameter_dtype, norm_samples
from cudnn_ct.shapes.specs import MAX_AXES
from cudnn_ct.shapes.tensor import OP_TENSOR_OPS, REDUCE_OPS
from tests.ctc_cases import CTCCase, ctc_cases


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
    [("relu", 0, 0), ("clipped_relu", 0, 0), ("clipped_relu", 1.5, 0), ("elu", 0, 1)],
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
