"""The meaning of CTC, connectionist temporal classification: the loss of labels without a timetable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..shapes.checks import one_dtype
from ..shapes.ctc import CTCLoss, check_ctc_operands, ctc_min_steps, ctc_outs, ctc_spec
from ._cast import Array, Float64, check_out, round_once, wide

__all__ = ["ctc_loss"]


def ctc_loss(
    logits: npt.ArrayLike,
    labels: npt.ArrayLike | Sequence[Sequence[int]],
    label_lengths: Iterable[int],
    input_lengths: Iterable[int],
    *,
    normalization: Any = "softmax",
    out_of_bound: Any = "zero",
    blank: int = 0,
    out: Array | tuple[Array | None, Array | None] | None = None,
) -> CTCLoss[Array]:
    """Compute ``-log p(labels)`` for each sequence, and its gradient; both are rounded once at the end.

    An alignment names a label or the blank at each step; it reads as the labels once repetitions are made one
    and blanks are left out. The probability of labels is the sum over all their alignments of the product of
    the probabilities at each step, and is reckoned forwards and backwards, in logarithms [1]_. The gradient
    is ``p - q`` for the probability p of a symbol at a step and q, that of an alignment to name it there.

    Parameters
    ----------
    logits : array, shape (T, N, A), float16 | bfloat16 | float32 | float64
        Activations; with ``normalization="none"`` probabilities, which are taken as they are. What is past
        the end of a sequence is never looked at.
    labels : ints, (N, S), or one sequence's after another's without gaps
        From 0 to A - 1 without the blank.
    label_lengths : N ints
        How many labels each sequence has.
    input_lengths : N ints, 0 to T
        How many steps each sequence has.
    normalization : "softmax" or "none"
        Whether softmax makes probabilities of ``logits``. In both cases, as in cuDNN, the gradient is with
        regard to the activations before softmax.
    out_of_bound : "zero" or "skip"
        The gradient of a sequence with fewer steps than its labels need, one each and one between equal ones:
        zero, or what ``out`` holds. The loss of such a sequence is infinite.
    blank : int
        The symbol that stands for no label; cuDNN has it at 0.
    out : array, shape and dtype of ``logits``; or two with the loss first; optional
        Written and returned as the gradient, or as both results; by default new, and zero where nothing is
        written.

    Returns
    -------
    CTCLoss
        ``loss``, shape (N,), and ``gradient``, shape (T, N, A), zero past the end of each sequence; both of
        the dtype of ``logits``. Where all alignments have probability zero, though there are steps enough,
        the loss is infinite; the gradient is NaN where there are labels, and finite where there are none.

    Raises
    ------
    TypeError
        The dtype is none of the four, a length or label is not an integer, or ``out`` does not fit.
    ValueError
        Shapes, lengths or labels do not fit; the message has the numbers.

    References
    ----------
    .. [1] A. Graves, S. Fernández, F. Gomez, J. Schmidhuber: Connectionist temporal classification,
       ICML 2006.

    Examples
    --------
    Two steps, and the label 1 in both, or in one beside a blank: 0.25 + 0.25 + 0.25.

    >>> loss, gradient = ctc_loss(np.zeros((2, 1, 2)), [[1]], [1], [2])
    >>> np.exp(-loss)
    array([0.75])
    >>> gradient[:, 0]
    array([[ 0.16666667, -0.16666667],
           [ 0.16666667, -0.16666667]])
    """
    logits, spec = np.asarray(logits), ctc_spec(normalization, out_of_bound, blank)
    one_dtype("ctc_loss", logits=logits.dtype)
    rows, steps = check_ctc_operands(logits.shape, labels, label_lengths, input_lengths, spec.blank)
    outs = ctc_outs(out)
    made = np.zeros(logits.shape[1:2], logits.dtype), np.zeros_like(logits)
    for new, one, name in zip(made, outs, ("loss", "gradient"), strict=True):
        check_out(one, new.shape, new.dtype, name)
    result = CTCLoss(*(new if one is None else one for new, one in zip(made, outs, strict=True)))

    losses, gradient, values = np.empty(len(rows)), wide(result.gradient), wide(logits)
    for n, (row, end) in enumerate(zip(rows, steps, strict=True)):
        enough = end >= ctc_min_steps(row)
        if enough or spec.out_of_bound == "zero":
            gradient[:, n] = 0
        if not enough:
            losses[n] = np.inf
            continue
        logs = _log_probabilities(values[:end, n], spec.normalization)
        losses[n], gradient[:end, n] = _loss(logs, row, spec.blank)
    result.loss[...] = round_once(losses, logits.dtype)
    result.gradient[...] = round_once(gradient, logits.dtype)
    return result


@np.errstate(divide="ignore", invalid="ignore")
def _log_probabilities(values: Float64, normalization: str) -> Float64:
    if normalization == "none":
        return np.asarray(np.log(values))
    shifted = values - values.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


# Logarithms of zero are at home here: -inf stands for what cannot be.
@np.errstate(invalid="ignore", divide="ignore")
def _loss(logs: Float64, labels: Sequence[int], blank: int) -> tuple[float, Float64]:
    """Loss and gradient of one sequence, of whose probabilities the logarithms (steps, symbols) are given."""
    if not len(logs):  # no step and no label: one alignment, the empty one
        return 0.0, logs
    if not len(labels):  # one alignment again: it names the blank at each step, however probable that is
        return -logs[:, blank].sum(), np.exp(logs) - (np.arange(logs.shape[1]) == blank)
    symbols = np.array([blank, *(s for label in labels for s in (label, blank))])
    emitted = logs[:, symbols]
    forwards = _sums(emitted, _may_skip(symbols))
    backwards = _sums(emitted[::-1, ::-1], _may_skip(symbols[::-1]))[::-1, ::-1]
    # Both count what is emitted at their own step, so one of the two is taken off again.
    through = forwards + np.where(np.isneginf(emitted), 0, backwards - emitted)
    loss = -np.logaddexp.reduce(through[0])
    posterior = np.zeros_like(logs)
    for place, symbol in enumerate(symbols):
        posterior[:, symbol] += np.exp(through[:, place] + loss)
    return loss, np.exp(logs) - posterior


def _sums(emitted: Float64, may_skip: Array) -> Float64:
    """Logarithms of the sum over all ways that begin at the first step and are at each place at each step.

    A way stays where it is, goes on by one place, or by two where that skips a blank between unlike labels.
    It begins at the first place, the blank, or at the second, the first label.
    """
    sums = np.full(emitted.shape, -np.inf)
    sums[0, :2] = emitted[0, :2]
    for t in range(1, len(emitted)):
        before = sums[t - 1]
        one, two = (np.concatenate([np.full(n, -np.inf), before])[: len(before)] for n in (1, 2))
        two = np.where(may_skip, two, -np.inf)
        sums[t] = emitted[t] + np.logaddexp(np.logaddexp(before, one), two)
    return sums


def _may_skip(symbols: Array) -> Array:
    """Whether a place can be reached from two places before it: a label that is unlike the one before.

    A blank cannot: it is like the one before.
    """
    before = np.concatenate([symbols[:2], symbols])[: len(symbols)]
    return np.asarray((symbols != before) & (np.arange(len(symbols)) >= 2))
