"""CTC against all alignments one by one, against torch where it is installed, and its gradient."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_ct._bindings.enums import CTCGradMode, LossNormalizationMode
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.reference.ctc import ctc_loss
from cudnn_ct.shapes.checks import FLOATS
from cudnn_ct.shapes.ctc import ctc_min_steps, ctc_spec
from tests.gradients import assert_gradient


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


def reads_as(alignment: tuple[int, ...], blank: int) -> tuple[int, ...]:
    return tuple(symbol for symbol, _ in itertools.groupby(alignment) if symbol != blank)


def by_alignments(p: np.ndarray, labels: tuple[int, ...], blank: int) -> tuple[float, np.ndarray]:
    """Probability of the labels, and for each step and symbol that of an alignment that names it there."""
    total, named = 0.0, np.zeros(p.shape)
    for alignment in itertools.product(range(p.shape[1]), repeat=len(p)):
        if reads_as(alignment, blank) == labels:
            probability = float(np.prod([p[t, symbol] for t, symbol in enumerate(alignment)]))
            total += probability
            for t, symbol in enumerate(alignment):
                named[t, symbol] += probability
    return total, named


@given(case=cases(), normalization=st.sampled_from(("softmax", "none")), dtype=st.sampled_from(FLOATS))
def test_all_alignments(case: Case, normalization: str, dtype: str) -> None:
    given_logits = case.logits if normalization == "softmax" else softmax(case.logits)
    logits = given_logits.astype(as_dtype(dtype).numpy)
    probabilities = logits.astype(float)
    if normalization == "softmax":
        probabilities = softmax(probabilities)
    loss, gradient = ctc_loss(logits, *case.arguments, normalization=normalization, blank=case.blank)
    assert loss.dtype == gradient.dtype == logits.dtype
    assert (loss.shape, gradient.shape) == (logits.shape[1:2], logits.shape)
    tolerance = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6, "float64": 1e-12}[dtype]
    for n, (labels, end) in enumerate(zip(case.labels, case.inputs, strict=True)):
        p = probabilities[:end, n]
        total, named = by_alignments(p, labels, case.blank)
        mine = gradient[:, n].astype(float)
        assert not mine[end:].any()
        assert (total == 0) == (end < ctc_min_steps(labels))
        if total == 0:
            assert np.isposinf(loss[n])
            assert not mine.any()
            continue
        np.testing.assert_allclose(float(loss[n]), -np.log(total), rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(mine[:end], p - named / total, rtol=tolerance, atol=tolerance)


@given(case=cases(feasible=True), normalization=st.sampled_from(("softmax", "none")))
def test_gradient_by_differences(case: Case, normalization: str) -> None:
    """In both normalizations the gradient is with regard to what goes into softmax."""

    def losses(activations: np.ndarray) -> np.ndarray:
        x = activations if normalization == "softmax" else softmax(activations)
        return ctc_loss(x, *case.arguments, normalization=normalization, blank=case.blank).loss

    x = case.logits if normalization == "softmax" else softmax(case.logits)
    gradient = ctc_loss(x, *case.arguments, normalization=normalization, blank=case.blank).gradient
    assert_gradient(gradient, losses, case.logits, np.ones(len(case.labels)), 1e-6)


@given(case=cases(feasible=True).filter(lambda case: min(case.inputs) > 0))
def test_against_torch(case: Case) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(case.logits).requires_grad_()
    labels, label_lengths, input_lengths = (torch.tensor(a, dtype=torch.long) for a in case.arguments)
    loss = torch.nn.functional.ctc_loss(
        x.log_softmax(2), labels, input_lengths, label_lengths, blank=case.blank, reduction="none"
    )
    loss.sum().backward()
    mine = ctc_loss(case.logits, *case.arguments, blank=case.blank)
    np.testing.assert_allclose(mine.loss, loss.detach().numpy(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(mine.gradient, x.grad.numpy(), rtol=1e-11, atol=1e-12)


def test_long_sequences_do_not_underflow() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, labels = 5 * rng.standard_normal((400, 2, 30)), rng.integers(1, 30, (2, 90))
    leaf = torch.from_numpy(x).requires_grad_()
    arguments = (torch.tensor([400, 350]), torch.tensor([90, 80]))
    loss = torch.nn.functional.ctc_loss(
        leaf.log_softmax(2), torch.from_numpy(labels), *arguments, reduction="none"
    )
    loss.sum().backward()
    mine = ctc_loss(x, labels, [90, 80], [400, 350])
    assert mine.loss.min() > 800  # whose exponential is below every float64
    np.testing.assert_allclose(mine.loss, loss.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(mine.gradient, leaf.grad.numpy(), rtol=0, atol=1e-9)


@given(case=cases())
def test_labels_in_rows_or_one_after_another(case: Case) -> None:
    flat, counts, inputs = case.arguments
    widest = max(counts)
    rows = np.array([[*row, *[-9] * (widest - len(row))] for row in case.labels], int)
    first = ctc_loss(case.logits, np.array(flat, np.int32), counts, inputs, blank=case.blank)
    second = ctc_loss(case.logits, rows.reshape(len(counts), widest), counts, inputs, blank=case.blank)
    np.testing.assert_array_equal(first.loss, second.loss)
    np.testing.assert_array_equal(first.gradient, second.gradient)


@given(case=cases())
def test_what_is_past_the_end_is_not_looked_at(case: Case) -> None:
    dirty, inputs = case.logits, np.array(case.inputs)
    dirty[np.arange(len(dirty))[:, None] >= inputs] = np.nan
    for clean, again in zip(
        *(ctc_loss(x, *case.arguments, blank=case.blank) for x in (case.logits, dirty)), strict=True
    ):
        np.testing.assert_array_equal(clean, again)


def test_out_of_bound_gradients_are_zero_or_left() -> None:
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


def test_both_results_may_be_given() -> None:
    x, given = np.zeros((2, 1, 3)), (np.empty(1), np.empty((2, 1, 3)))
    expected = ctc_loss(x, [1], [1], [2])
    got = ctc_loss(x, [1], [1], [2], out=given)
    for one, ours, wanted in zip(given, got, expected, strict=True):
        assert ours is one
        np.testing.assert_array_equal(ours, wanted)
    assert ctc_loss(x, [1], [1], [2], out=(given[0], None)).loss is given[0]
    with pytest.raises(ValueError, match=r"out has shape \(2,\); the loss has \(1,\)"):
        ctc_loss(x, [1], [1], [2], out=(np.empty(2), None))


def test_labels_of_probability_zero_have_no_gradient() -> None:
    p = np.array([[[0.5, 0.5, 0.0]]])
    loss, gradient = ctc_loss(p, [2], [1], [1], normalization="none")
    assert np.isposinf(loss).all()
    assert np.isnan(gradient[0, 0, 2])


def test_no_labels_have_a_gradient_whatever_the_probability_of_the_blank() -> None:
    """There is one alignment, so it names the blank for sure: the limit of what there is before zero."""
    p = np.array([[[0.0, 0.5, 0.5]], [[0.2, 0.4, 0.4]]])
    almost = np.where(p, p, 1e-300)
    loss, gradient = ctc_loss(p, [], [0], [2], normalization="none")
    assert np.isposinf(loss).all()
    np.testing.assert_array_equal(gradient, ctc_loss(almost, [], [0], [2], normalization="none").gradient)
    np.testing.assert_allclose(gradient[:, 0], [[-1, 0.5, 0.5], [-0.8, 0.4, 0.4]], rtol=1e-15)
    logits = np.array([[[-np.inf, 0.0, 0.0]], [[0.0, 0.0, 0.0]]])
    np.testing.assert_allclose(ctc_loss(logits, [], [0], [2]).gradient[0, 0], [-1, 0.5, 0.5])


def test_no_labels_are_read_from_blanks_alone() -> None:
    loss, gradient = ctc_loss(np.zeros((2, 1, 4)), [], [0], [2])
    np.testing.assert_allclose(loss, [2 * np.log(4)])
    np.testing.assert_allclose(gradient[:, 0], [[-0.75, 0.25, 0.25, 0.25]] * 2)
    loss, gradient = ctc_loss(np.zeros((2, 2, 4)), [1], [0, 1], [0, 0])
    assert loss.tolist() == [0, np.inf]
    assert not gradient.any()


def test_names_are_those_of_cudnn() -> None:
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
def test_what_does_not_fit_is_refused(change: dict[str, Any], error: type[Exception], says: str) -> None:
    good: dict[str, Any] = {
        "logits": np.ones((3, 2, 4)), "labels": [1, 2, 3], "label_lengths": [1, 2], "input_lengths": [3, 3],
    }  # fmt: skip
    with pytest.raises(error, match=says):
        ctc_loss(**(good | change))
