"""CTC loss of the reference: labels, lengths and results; loops are in tests/oracle."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cudnn_ct.reference.layers import ctc_loss
from tests.ctc_cases import CTCCase, ctc_cases


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
