"""CTC loss of the reference: labels, lengths and errors; loops are in tests/oracle."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_ct._bindings.enums import CTCGradMode, LossNormalizationMode
from cudnn_ct.reference.ctc import ctc_loss
from cudnn_ct.shapes.ctc import ctc_min_steps, ctc_spec


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
def cases(draw: st.DrawFn, *, feasible: bool = False) -> Case:
    alphabet = draw(st.integers(2, 4))
    blank = draw(st.integers(0, alphabet - 1))
    symbols = st.sampled_from([s for s in range(alphabet) if s != blank])
    rows = draw(st.lists(st.lists(symbols, max_size=3), min_size=1, max_size=3))
    least = [ctc_min_steps(row) if feasible else 0 for row in rows]
    inputs = [draw(st.integers(n, max(n, 4))) for n in least]
    return Case(alphabet, blank, tuple(map(tuple, rows)), tuple(inputs), draw(st.integers(0, 99)))


def softmax(v: np.ndarray) -> np.ndarray:
    e = np.exp(v - v.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


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
    with pytest.raises(ValueError, match=r"out has shape \(2,\); the loss has \(1,\)"):
        ctc_loss(x, [1], [1], [2], out=(np.empty(2), None))


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


def test_ctc_names_match_cudnn() -> None:
    for mode in LossNormalizationMode:
        assert ctc_spec(normalization=mode).normalization == mode.name.lower()
    assert [ctc_spec(out_of_bound=mode).out_of_bound for mode in CTCGradMode] == ["zero", "skip"]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"logits": np.ones((3, 4))}, ValueError, r"logits have shape \(3, 4\); expected \(T, N, A\)"),
        ({"logits": np.ones((3, 2, 4), int)}, TypeError, "ctc_loss takes .* not int64"),
        ({"labels": [1, 2]}, ValueError, r"there are 2 labels; label_lengths \(1, 2\) add up to 3"),
        ({"labels": [1, 2, 4]}, ValueError, "sequence 1 has the label 4; labels are between 0 and 3"),
        ({"labels": [0, 2, 3]}, ValueError, "sequence 0 has the label 0; .* and not the blank 0"),
        ({"labels": [1, 2, -1]}, ValueError, "sequence 1 has the label -1"),
        ({"labels": [1.0, 2.0, 3.0]}, TypeError, "labels must be integers"),
        ({"labels": 3}, TypeError, "labels must be integers, in rows or one after another, not 3"),
        ({"labels": None}, TypeError, "labels must be integers, in rows or one after another, not None"),
        ({"labels": np.array(3)}, TypeError, r"labels must be integers, in rows or .*, not array\(3\)"),
        ({"labels": [[1, 1]]}, ValueError, "there are 1 rows of labels; the batch has 2 sequences"),
        ({"labels": [[1], [2]]}, ValueError, "sequence 1 has label_length 2; its row of labels has 1"),
        ({"label_lengths": [3]}, ValueError, "label_lengths has 1 numbers; the batch has 2 sequences"),
        ({"label_lengths": [4, -1]}, ValueError, "label_lengths of sequence 1 is -1; it must be at least 0"),
        ({"input_lengths": [3, 4]}, ValueError, "sequence 1 is 4; it must be between 0 and the 3 steps"),
        ({"input_lengths": "33"}, TypeError, "input_lengths must be integers"),
        ({"blank": 4}, ValueError, "blank must be between 0 and 3, the last of A = 4, got 4"),
        ({"blank": 0.5}, TypeError, "blank must be an int"),
        ({"normalization": "log"}, ValueError, "normalization must be one of none, softmax"),
        ({"out_of_bound": "nan"}, ValueError, "out_of_bound must be one of zero, skip"),
        ({"out": np.ones((3, 2, 3))}, ValueError, r"out has shape \(3, 2, 3\); the gradient has \(3, 2, 4\)"),
        ({"out": np.ones((3, 2, 4), np.float32)}, TypeError, "out is float32; the gradient is float64"),
        ({"out": 3}, TypeError, "out must be a NumPy array, not int"),
        ({"out": ([], None)}, TypeError, "out must be a NumPy array, not list"),
    ],
)
def test_ctc_loss_rejects_bad_arguments(change: dict[str, Any], error: type[Exception], says: str) -> None:
    good: dict[str, Any] = {
        "logits": np.ones((3, 2, 4)), "labels": [1, 2, 3], "label_lengths": [1, 2], "input_lengths": [3, 3],
    }  # fmt: skip
    with pytest.raises(error, match=says):
        ctc_loss(**(good | change))
