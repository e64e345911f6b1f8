"""CTC (connectionist temporal classification): rules for its parameters, labels and lengths; its problem."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from typing import Any, Generic, Literal, NamedTuple

from .checks import as_choice, as_int, one_dtype, result_slots, result_spec
from .sequences import as_integers, check_lengths
from .specs import CTCLossSpec, Shape, T, TensorSpec, check_shape, problem_class

CTC_NORMALIZATIONS: tuple[Literal["none", "softmax"], ...] = ("none", "softmax")
CTC_OUT_OF_BOUND: dict[str, Literal["zero", "skip"]] = {
    "zero": "zero", "skip": "skip",
    "zero_oob_gradients": "zero", "skip_oob_gradients": "skip",  # cuDNN's names
}  # fmt: skip
CTC_ALGOS = ("deterministic", "non_deterministic")
CTC_LABELS = TensorSpec.packed((0,), "int32")  # labels and lengths in a problem, whatever their number
CTC_MAX_LABELS = 255  # of a sequence, that cuDNN takes


class CTCLoss(NamedTuple, Generic[T]):
    """The loss of each sequence, and the gradient with regard to the activations before softmax."""

    loss: T
    gradient: T


class CTCSpec(NamedTuple):
    """The parameters of a CTC loss, of :data:`CTC_NORMALIZATIONS` and :data:`CTC_OUT_OF_BOUND`."""

    normalization: Literal["none", "softmax"]
    out_of_bound: Literal["zero", "skip"]
    blank: int


class CTCRepairs(NamedTuple):
    """Sequences whose results cuDNN does not compute, or computes wrongly."""

    # The results of these two are known, and cuDNN gets one label in one step instead.
    impossible: Shape = ()  # have fewer steps than their labels need
    empty: Shape = ()  # have neither steps nor labels
    # These two are pairs of a sequence and the number of its steps.
    unlabelled: tuple[tuple[int, int], ...] = ()  # have steps but no labels
    ends: tuple[tuple[int, int], ...] = ()  # the others with fewer steps than the longest
    single: Shape = ()  # have as many steps as their labels need


@problem_class("", "loss gradient")
class CTCProblem(NamedTuple):
    """The loss and the gradient of logits, with the sequences that need repairs."""

    logits: TensorSpec
    labels: TensorSpec
    label_lengths: TensorSpec
    input_lengths: TensorSpec
    loss: TensorSpec
    gradient: TensorSpec
    ctc: CTCLossSpec
    algo: str
    repairs: CTCRepairs = CTCRepairs()

    @property
    def kept(self) -> Shape:
        """Sequences whose gradients stay as they are in ``out``."""
        return self.repairs.impossible if self.ctc.out_of_bound == "skip" else ()

    @property
    def updated(self) -> int:
        """The number of results that are read as well, counted from the last one."""
        return 1 if self.kept else 0

    def __str__(self) -> str:
        c = self.ctc
        return (
            f"CTC loss ({self.algo}): logits {self.logits}, normalization {c.normalization}, "
            f"out of bound {c.out_of_bound}, at most {c.max_label_length} labels"
        )


def ctc_outs(out: Any) -> tuple[Any, Any]:
    """Return the given loss and gradient from ``out``: the latter alone, or both."""
    loss, gradient = result_slots(out if isinstance(out, tuple | list) else (None, out), CTCLoss._fields)
    return loss, gradient


def ctc_problem(
    specs: dict[str, TensorSpec], outs: tuple[TensorSpec | None, ...], *params: Any
) -> CTCProblem:
    """Validate the tensors of a CTC loss; ``params`` are the other fields of its problem."""
    logits = specs["logits"]
    dtype = one_dtype("ctc_loss", logits=logits.dtype)
    loss, gradient = (
        result_spec(shape, TensorSpec.packed(shape, dtype), out=out, name=f"out {name}")
        for shape, out, name in zip(
            (logits.shape[1:2], logits.shape), outs, ("loss", "gradient"), strict=True
        )
    )
    return CTCProblem(logits, CTC_LABELS, CTC_LABELS, CTC_LABELS, loss, gradient, *params)


def ctc_room(counts: Iterable[int]) -> int:
    """Return the capacity for labels of a sequence: a power of two, so that batches share prepared calls.

    >>> ctc_room([3, 40]), ctc_room([]), ctc_room([200])
    (64, 16, 255)
    """
    longest, room = max(counts, default=0), 16
    while room < longest:
        room *= 2
    return min(room, CTC_MAX_LABELS)


def ctc_spec(normalization: Any = "softmax", out_of_bound: Any = "zero", blank: int = 0) -> CTCSpec:
    """Validate the parameters of a CTC loss, whose values may have cuDNN's names."""
    mode = as_choice(out_of_bound, tuple(CTC_OUT_OF_BOUND), "out_of_bound")
    softmax = as_choice(normalization, CTC_NORMALIZATIONS, "normalization")
    return CTCSpec(softmax, CTC_OUT_OF_BOUND[mode], as_int(blank, "blank"))


def ctc_repairs(rows: Sequence[Shape], steps: Shape, longest: int) -> CTCRepairs:
    """Return the sequences that need repairs, for their labels and their numbers of steps."""
    impossible = tuple(n for n, row in enumerate(rows) if steps[n] < ctc_min_steps(row))
    empty = tuple(n for n, row in enumerate(rows) if not row and not steps[n])
    unlabelled = tuple((n, steps[n]) for n, row in enumerate(rows) if not row and steps[n])
    ends = tuple((n, end) for n, end in enumerate(steps) if end < longest and n not in {*impossible, *empty})
    single = tuple(n for n, row in enumerate(rows) if row and steps[n] == ctc_min_steps(row))
    return CTCRepairs(impossible, empty, unlabelled, ends, single)


def ctc_min_steps(labels: Sequence[int]) -> int:
    """Return the minimum of steps for labels: one each, and a blank between equal ones.

    With fewer steps no alignment is possible, which cuDNN calls out of bound.

    >>> ctc_min_steps([1, 2, 2, 3])
    5
    """
    return len(labels) + sum(a == b for a, b in pairwise(labels))


def check_ctc_operands(
    logits_shape: Iterable[int],
    labels: Any,
    label_lengths: Iterable[int],
    input_lengths: Iterable[int],
    blank: int = 0,
) -> tuple[tuple[Shape, ...], Shape]:
    """Return the labels and the number of steps of each sequence, or raise; too few steps are no error.

    ``labels`` are one row for each sequence, of which the first label_length count, or concatenated.

    >>> check_ctc_operands((9, 2, 4), [1, 2, 3], [1, 2], [9, 8])
    (((1,), (2, 3)), (9, 8))
    >>> check_ctc_operands((9, 2, 4), [[1, 0], [2, 3]], [1, 2], [9, 8])
    (((1,), (2, 3)), (9, 8))
    """
    steps, batch, alphabet = check_ctc_logits(logits_shape, blank)
    counts = check_lengths(label_lengths, None, batch, "label_lengths")
    inputs = check_lengths(input_lengths, steps, batch, "input_lengths")
    rows = _rows(labels, counts)
    for sequence, row in enumerate(rows):
        for label in row:
            if not 0 <= label < alphabet or label == blank:
                raise ValueError(
                    f"sequence {sequence} has the label {label}; labels are between 0 and {alphabet - 1}, "
                    f"and not the blank {blank}"
                )
    return rows, inputs


def check_ctc_logits(logits_shape: Iterable[int], blank: int = 0) -> Shape:
    """Return the shape of logits as a tuple of ints; raise if it is another one, or lacks the blank."""
    shape = check_shape(logits_shape, "logits_shape")
    if len(shape) != 3 or not shape[2]:
        raise ValueError(f"logits have shape {shape}; expected (T, N, A), with A of at least 1 for the blank")
    if not 0 <= blank < shape[2]:
        raise ValueError(
            f"blank must be between 0 and {shape[2] - 1}, the last of A = {shape[2]}, got {blank}"
        )
    return shape


def _rows(labels: Any, counts: Shape) -> tuple[Shape, ...]:
    """Return the labels of each sequence. An array may be larger than any list, so only its part is read."""
    try:
        found = len(labels)
    except TypeError:
        raise TypeError(f"labels must be integers, in rows or one after another, not {labels!r}") from None
    rank = len(getattr(labels, "shape", ())) or 1 + (
        found > 0 and all(hasattr(row, "__len__") for row in labels)
    )
    if rank > 2:
        raise ValueError(f"labels have shape {labels.shape}; they are in rows, or one after another")
    if rank == 1:
        if found != sum(counts):
            raise ValueError(f"there are {found} labels; label_lengths {counts} add up to {sum(counts)}")
        flat = iter(as_integers(labels, "labels"))
        return tuple(tuple(islice(flat, count)) for count in counts)
    if found != len(counts):
        raise ValueError(f"there are {found} rows of labels; the batch has {len(counts)} sequences")
    for sequence, (row, count) in enumerate(zip(labels, counts, strict=True)):
        if count > len(row):
            raise ValueError(
                f"sequence {sequence} has label_length {count}; its row of labels has {len(row)}"
            )
    return tuple(as_integers(row[:count], "labels") for row, count in zip(labels, counts, strict=True))
