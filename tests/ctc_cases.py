"""CTC losses as values that all tiers share, and what must hold of them wherever they run."""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.shapes.ctc import ctc_min_steps
from tests.layers import Place, compare
from tests.strategies import VIEWS, in_memory_of, lay_out

# Largest error over the largest number: cuDNN adds probabilities in float32, or float64.
TOLERANCE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2, "float64": 1e-12}


class CTCCase(NamedTuple):
    """One CTC loss. ``labels`` and ``steps`` are of each sequence; what is past its end is NaN.

    ``out`` is how a given gradient lies in memory, None where none is given; ``both`` says that the loss is
    given too. ``on_device`` says which of labels, label_lengths and input_lengths are there.
    """

    labels: tuple[tuple[int, ...], ...] = ((1,),)
    steps: tuple[int, ...] = (1,)
    longest: int = 1
    alphabet: int = 2
    dtype: str = "float32"
    view: str = "packed"
    out: str | None = None
    normalization: str = "softmax"
    out_of_bound: str = "zero"
    algo: str = "deterministic"
    both: bool = False
    in_rows: bool = False
    on_device: tuple[bool, bool, bool] = (False, False, False)
    seed: int = 0

    @property
    def logits(self) -> np.ndarray:
        shape = (self.longest, len(self.labels), self.alphabet)
        values = np.random.default_rng(self.seed).standard_normal(shape)
        if self.normalization == "none":
            values = np.exp(values) / np.exp(values).sum(axis=2, keepdims=True)
        values[np.arange(self.longest)[:, None] >= np.array(self.steps)] = np.nan
        return lay_out(values.astype(as_dtype(self.dtype).numpy), "nchw", self.view)

    @property
    def integers(self) -> list[np.ndarray]:
        """Labels, their lengths and the steps, as 32-bit integers."""
        counts = [len(row) for row in self.labels]
        widest = max(counts, default=0)
        if self.in_rows:
            padded = [[*row, *[-9] * (widest - len(row))] for row in self.labels]
            labels = np.array(padded, np.int32).reshape(len(counts), widest)
        else:
            labels = np.array(list(chain(*self.labels)), np.int32)
        return [labels, np.array(counts, np.int32), np.array(self.steps, np.int32)]

    @property
    def mathematics(self) -> dict[str, Any]:
        return {"normalization": self.normalization, "out_of_bound": self.out_of_bound}


@st.composite
def ctc_cases(
    draw: st.DrawFn, *, possible: bool = False, dtypes: tuple[str, ...] = tuple(TOLERANCE)
) -> CTCCase:
    """Batches of all lengths, in and out of bound, with labels that repeat."""
    alphabet = draw(st.integers(2, 5))
    symbols = st.integers(1, alphabet - 1)
    labels = draw(st.lists(st.lists(symbols, max_size=4).map(tuple), min_size=1, max_size=4))
    least = [ctc_min_steps(row) if possible else 0 for row in labels]
    steps = [draw(st.integers(n, max(n, 7))) for n in least]
    longest = draw(st.integers(max(steps), max(steps) + 2))
    return CTCCase(
        tuple(labels),
        tuple(steps),
        longest,
        alphabet,
        draw(st.sampled_from(dtypes)),
        draw(st.sampled_from(VIEWS)),
        draw(st.none() | st.sampled_from(VIEWS)),
        draw(st.sampled_from(("softmax", "none"))),
        draw(st.sampled_from(("zero", "skip"))),
        draw(st.sampled_from(("deterministic", "non_deterministic"))),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.tuples(*[st.booleans()] * 3)),
        draw(st.integers(0, 99)),
    )


def check_ctc(case: CTCCase, place: Place, tolerance: float | None = None) -> None:
    """Loss and gradient are those of the reference, and a gradient that is skipped is what it was.

    ``tolerance`` is that of the gradient, whose probabilities are differences of logarithms: those of long
    sequences are so large that few digits are left. That of the loss is never more than 1e-4 for it.
    """
    out: Any = None
    if case.out:
        shape, skips = case.logits.shape, case.out_of_bound == "skip"
        values = np.full(shape, 7.0 if skips else np.nan).astype(as_dtype(case.dtype).numpy)
        out = lay_out(values, "nchw", case.out)
    expected = ct.reference.ctc_loss(
        case.logits, *case.integers, **case.mathematics, out=None if out is None else out.copy()
    )
    losses = np.full(len(case.labels), np.nan).astype(as_dtype(case.dtype).numpy)
    given = [
        place(array) if there and array.size else array
        for array, there in zip(case.integers, case.on_device, strict=True)
    ]
    placed = None if out is None else place(out)
    outs = (place(losses), placed) if case.both else placed
    got = ct.ctc_loss(place(case.logits), *given, **case.mathematics, algo=case.algo, out=outs)
    assert placed is None or in_memory_of(got.gradient, placed)
    assert not case.both or in_memory_of(got.loss, outs[0])
    largest = TOLERANCE[case.dtype] if tolerance is None else tolerance
    compare(got.loss, expected.loss, tolerance=max(TOLERANCE[case.dtype], min(largest, 1e-4)))
    compare(got.gradient, expected.gradient, tolerance=largest)


class FarCase(NamedTuple):
    """One sequence of logits whose probabilities round to 0 or 1: 0 but for ``gaps``, at (step, symbol)."""

    labels: tuple[int, ...]
    steps: int
    gaps: tuple[tuple[int, int, float], ...]
    alphabet: int = 4

    @property
    def logits(self) -> np.ndarray:
        values = np.random.default_rng(0).uniform(-0.5, 0.5, (self.steps, 1, self.alphabet))
        for step, symbol, gap in self.gaps:
            values[step, 0, symbol] += gap
        return values


def _each(steps: int, symbols: tuple[int, ...], gap: float) -> tuple[tuple[int, int, float], ...]:
    return tuple((step, symbols[step % len(symbols)], gap) for step in range(steps))


# The logits of a label, of the blank, or of a symbol outside the labels are far above or below the others.
# In the first group all sequences have a single alignment, in the second several.
FAR_CASES = [
    *(FarCase((1,), 1, ((0, 1, gap),)) for gap in (18, 40, 90, 110, 800, 1e5, -90, -104, -110, -300, -1e5)),
    *(FarCase((1, 2, 2), 4, _each(4, (1, 2, 0, 2), gap)) for gap in (18, 60, 300, -90, -110, -300)),
    FarCase((1, 2), 2, ((0, 1, -300), (1, 2, 40))),
    FarCase((1,), 1, ((0, 3, 200),)),
    FarCase((1,), 1, ((0, 0, -np.inf),)),
    FarCase((1, 2), 2, ((0, 3, -np.inf), (1, 0, -np.inf))),
    *(FarCase((1, 2), 5, _each(5, (1, 0, 2, 2, 0), gap)) for gap in (10, 18, 40, 90, 110, 300, 1e5)),
    *(FarCase((1, 2), 5, _each(5, (1, 0, 2, 2, 0), gap)) for gap in (-18, -40)),
    *(FarCase((1, 2), 5, _each(5, (3,), gap)) for gap in (40, 90, -300, -np.inf)),
    FarCase((1, 2), 6, ((0, 1, 20), (1, 2, 30), (2, 2, 30), (3, 0, 200), (4, 0, 150), (5, 1, -np.inf))),
]

# Far symbols that all alignments share with others: their differences are out of the range of float32.
LOST_CASES = [FarCase((1, 2), 5, _each(5, (0,), gap)) for gap in (120, 300, 1e5)]


def check_far(
    case: FarCase, place: Place, dtype: str, algo: str = "deterministic", *, lost: bool = False
) -> None:
    """Loss and gradient are right, or NaN if ``lost``, with usual neighbours and any values past the end."""
    steps = case.steps + 3
    logits = np.random.default_rng(1).standard_normal((steps, 3, case.alphabet))
    logits[: case.steps, 1] = case.logits[:, 0]
    logits[case.steps :, 1] = np.array([[np.nan], [np.inf], [-np.inf]])
    logits = logits.astype(as_dtype(dtype).numpy)
    targets = [1, *case.labels, 1, 2], [1, len(case.labels), 2], [steps, case.steps, steps]
    expected = ct.reference.ctc_loss(logits, *targets)
    if lost:
        expected.loss[1] = expected.gradient[:, 1] = np.nan
    got = ct.ctc_loss(place(logits), *targets, algo=algo)
    # The logarithms of float32 of far symbols have an error of 1e-4, and so have their differences.
    tolerance = max(TOLERANCE[dtype], 0.0 if dtype == "float64" else 2e-4)
    for ours, theirs in zip(got, expected, strict=True):
        assert str(ours.dtype) == dtype
        values = ours.numpy().astype(np.float64)
        np.testing.assert_allclose(values, theirs.astype(np.float64), rtol=tolerance, atol=tolerance)
