"""CTC loss for unaligned label sequences (Graves et al., Connectionist temporal classification, 2006)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..shapes.checks import one_dtype
from ..shapes.ctc import CTCLoss, check_ctc_operands, ctc_min_steps, ctc_outs, ctc_spec
from . import _signatures as signatures
from ._cast import Array, Float64, check_out, round_once, wide
from ._definition import Arguments, defined


@defined(signatures.ctc_loss)
def ctc_loss(p: Arguments) -> CTCLoss[Array]:
    """Compute ``-log sum(prod(p))`` over alignments, and its gradient. See :func:`cudnn_ct.ctc_loss`.

    The gradient is ``p - q`` for the probability p of a symbol at a step, and the probability q that an
    alignment has the symbol at that step. If all alignments have probability 0, the gradient is NaN, unless
    there are no labels.
    """
    logits, spec = p.required("logits")["logits"], ctc_spec(p.normalization, p.out_of_bound, p.blank)
    one_dtype("ctc_loss", logits=logits.dtype)
    given = (p.labels, p.label_lengths, p.input_lengths)
    rows, steps = check_ctc_operands(logits.shape, *given, spec.blank)
    outs = ctc_outs(p.out)
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


# -inf is the logarithm of an impossible event.
@np.errstate(invalid="ignore", divide="ignore")
def _loss(logs: Float64, labels: Sequence[int], blank: int) -> tuple[float, Float64]:
    """Return loss and gradient of one sequence from log-probabilities of shape (steps, symbols)."""
    if not len(logs):  # no step and no label: the only alignment is empty
        return 0.0, logs
    if not len(labels):  # the only alignment has the blank at each step, however probable that is
        return -logs[:, blank].sum(), np.exp(logs) - (np.arange(logs.shape[1]) == blank)
    symbols = np.array([blank, *(s for label in labels for s in (label, blank))])
    emitted = logs[:, symbols]
    forwards = _sums(emitted, _may_skip(symbols))
    backwards = _sums(emitted[::-1, ::-1], _may_skip(symbols[::-1]))[::-1, ::-1]
    # Both contain the emission at their own step, so one of the two is subtracted.
    through = forwards + np.where(np.isneginf(emitted), 0, backwards - emitted)
    loss = -np.logaddexp.reduce(through[0])
    posterior = np.zeros_like(logs)
    for place, symbol in enumerate(symbols):
        posterior[:, symbol] += np.exp(through[:, place] + loss)
    return loss, np.exp(logs) - posterior


def _sums(emitted: Float64, may_skip: Array) -> Float64:
    """Return the logarithms of the sums over all partial alignments that end at each place and step.

    An alignment starts at the first place (the blank) or at the second (the first label). At each step it
    stays, moves by one place, or moves by two if that skips a blank between different labels.
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
    """Return which places can be reached from two places before: labels that differ from the label before.

    A blank equals the blank before it.
    """
    before = np.concatenate([symbols[:2], symbols])[: len(symbols)]
    return np.asarray((symbols != before) & (np.arange(len(symbols)) >= 2))
