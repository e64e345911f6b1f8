"""CTC loss of the reference: labels, lengths and results; loops are in tests/oracle."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cudnn_ct.reference.ctc import ctc_loss


class Case(NamedTuple):
    """Labels and lengths of a batch, how many symbols there are, and which is the blank."""

    alphabet: int
    blank: int
    labels: tuple[tuple[int, ...], ...]
    inputs: tuple[int, ...]
    seed: int

    @property
    def logits(self) -> np.ndarray:
        shape = (max(self.inputs), len(self.inputs), self.alphabet)
        return np.random.default_rng(self.seed).standard_normal(shape)

    @property
    def arguments(self) -> tuple[Any, ...]:
        return list(itertools.chain(*self.labels)), [len(row) for row in self.labels], self.inputs


@st.composite
def cases(draw: st.DrawFn) -> Case:
    alphabet = draw(st.integers(2, 4))
    blank = draw(st.integers(0, alphabet - 1))
    symbols = st.sampled_from([s for s in range(alphabet) if s != blank])
    rows = draw(st.lists(st.lists(symbols, max_size=3), min_size=1, max_size=3))
    inputs = [draw(st.integers(0, 4)) for _ in rows]
    return Case(alphabet, blank, tuple(map(tuple, rows)), tuple(inputs), draw(st.integers(0, 99)))


@given(case=cases())
def test_ctc_loss_accepts_labels_in_rows_or_concatenated(case: Case) -> None:
    flat, counts, inputs = case.arguments
    widest = max(counts)
    rows = np.array([[*row, *[-9] * (widest - len(row))] for row in case.labels], int)
    first = ctc_loss(case.logits, np.array(flat, np.int32), counts, inputs, blank=case.blank)
    second = ctc_loss(case.logits, rows.reshape(len(counts), widest), counts, inputs, blank=case.blank)
    np.testing.assert_array_equal(first.loss, second.loss)
    np.testing.assert_array_equal(first.gradient, second.gradient)


@given(case=cases())
def test_ctc_loss_ignores_steps_past_the_end(case: Case) -> None:
    dirty, inputs = case.logits, np.array(case.inputs)
    dirty[np.arange(len(dirty))[:, None] >= inputs] = np.nan
    for clean, again in zip(
        *(ctc_loss(x, *case.arguments, blank=case.blank) for x in (case.logits, dirty)), strict=True
    ):
        np.testing.assert_array_equal(clean, again)


def test_ctc_loss_zeroes_or_keeps_the_gradient_when_out_of_bound() -> None:
    """Two equal labels need a blank between them, three steps in all; the second sequence has enough."""
    x, arguments = np.zeros((3, 2, 3)), ([1, 1, 2], [2, 1], [2, 2])
    out = np.full(x.shape, 7.0)
    zero = ctc_loss(x, *arguments, out=out)
    assert zero.gradient is out
    assert np.isposinf(zero.loss).tolist() == [True, False]
    assert not out[:, 0].any()
    kept = np.full(x.shape, 7.0)
    skip = ctc_loss(x, *arguments, out_of_bound="skip", out=kept)
    assert np.isposinf(skip.loss[0])
    assert (kept[:, 0] == 7).all()
    np.testing.assert_array_equal(kept[:, 1], out[:, 1])
    assert not kept[2, 1].any()  # past the end, a sequence that is in bounds has none


def test_ctc_loss_writes_both_results_into_out() -> None:
    x, given = np.zeros((2, 1, 3)), (np.empty(1), np.empty((2, 1, 3)))
    expected = ctc_loss(x, [1], [1], [2])
    got = ctc_loss(x, [1], [1], [2], out=given)
    for one, ours, wanted in zip(given, got, expected, strict=True):
        assert ours is one
        np.testing.assert_array_equal(ours, wanted)
    assert ctc_loss(x, [1], [1], [2], out=(given[0], None)).loss is given[0]


def test_ctc_loss_has_a_gradient_when_there_are_no_labels() -> None:
    """There is one alignment, so it names the blank for sure: the limit of what there is before zero."""
    p = np.array([[[0.0, 0.5, 0.5]], [[0.2, 0.4, 0.4]]])
    almost = np.where(p, p, 1e-300)
    loss, gradient = ctc_loss(p, [], [0], [2], normalization="none")
    assert np.isposinf(loss).all()
    np.testing.assert_array_equal(gradient, ctc_loss(almost, [], [0], [2], normalization="none").gradient)
    np.testing.assert_allclose(gradient[:, 0], [[-1, 0.5, 0.5], [-0.8, 0.4, 0.4]], rtol=1e-15)
    logits = np.array([[[-np.inf, 0.0, 0.0]], [[0.0, 0.0, 0.0]]])
    np.testing.assert_allclose(ctc_loss(logits, [], [0], [2]).gradient[0, 0], [-1, 0.5, 0.5])
