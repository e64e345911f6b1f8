"""CTC, connectionist temporal classification: the loss of labels without a timetable, and its gradient."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from .. import context
from ..array import DeviceArray
from ..array_creation import as_operand
from ..context import BoundedDict, Context
from ..cuda import interop
from ..cuda import stream as streams
from ..dtypes import DTYPES
from ..errors import NotInitializedError, NotSupportedError
from ..shapes.ctc import (
    CTC_ALGOS,
    CTC_MAX_LABELS,
    CTCLoss,
    check_ctc_logits,
    check_ctc_of_host,
    check_ctc_operands,
    ctc_min_steps,
    ctc_outs,
    ctc_problem,
    ctc_room,
    ctc_spec,
)
from ..shapes.parse import as_choice
from ..shapes.specs import ALIGNMENT, CTCLossSpec, TensorSpec
from ._call import PreparedCall, run
from ._fallback import FirstSupported, Implementation
from ._operands import check_writable, contiguous, representable, stream_of
from .ctc_legacy import ctc_loss as ctc_plan
from .ctc_legacy import ctc_loss_of_host_labels as ctc_plan_of_host_labels

__all__ = ["ctc_loss"]

MAX_COPIES = (
    64  # copies of labels and lengths that a thread keeps on the device, and calls that do more for some
)

_COPIES = "labels and lengths of CTC losses"  # the key of these copies in a context
_RAGGED = "CTC losses that do more for some sequences"  # the key of these calls
_NAMES = ("labels", "label_lengths", "input_lengths")
_Some = tuple[Any, ...]  # sequences of a batch, each with what there is to know of it
_WHATEVER = TensorSpec.packed((0,), "int32")


def ctc_loss(
    logits: Any,
    labels: Any,
    label_lengths: Any,
    input_lengths: Any,
    *,
    normalization: Any = "softmax",
    out_of_bound: Any = "zero",
    blank: int = 0,
    algo: Any = "deterministic",
    out: Any = None,
    stream: Any = None,
) -> CTCLoss[Any]:
    """Compute ``-log p(labels)`` for each sequence, and its gradient.

    The probability of labels is the sum over all alignments that read as the labels once repetitions are made
    one and blanks are left out. It is computed in float32, or in float64 for float64.

    Parameters
    ----------
    logits : device array, shape (T, N, A), float16 | bfloat16 | float32 | float64
        Activations; with ``normalization="none"`` probabilities, which are taken as they are. What is past
        the end of a sequence does not matter.
    labels : ints, (N, S), or one sequence's after another's without gaps
        From 1 to A - 1; at most 255 for each sequence. This and the lengths are sequences, NumPy arrays or
        arrays on the device.
    label_lengths : N ints
        How many labels each sequence has.
    input_lengths : N ints, 0 to T
        How many steps each sequence has.
    normalization : {"softmax", "none"}
        Whether softmax makes probabilities of ``logits``. In both cases the gradient is with regard to the
        activations before softmax.
    out_of_bound : {"zero", "skip"}
        The gradient of a sequence with fewer steps than its labels need, one each and one between equal ones:
        zero, or what ``out`` holds. The loss of such a sequence is infinite.
    blank : int
        The symbol that stands for no label; cuDNN has it at 0 and nowhere else.
    algo : {"deterministic", "non_deterministic"}
        cuDNN's algorithm. The second may give slightly different results from run to run.
    out : device array, shape and dtype of ``logits``; or two with the loss first; optional
        Where the gradient goes, or both results: what an earlier call returned will do. Not ``logits``.
    stream : optional
        An address, or anything with ``__cuda_stream__``; by default that of ``ct.use``.

    Returns
    -------
    CTCLoss
        ``loss``, shape (N,), and ``gradient``, shape (T, N, A), zero past the end of each sequence; both of
        the dtype of ``logits``.

    Raises
    ------
    TypeError
        ``logits`` are not on the device or of another dtype, or a length or label is not an integer.
    ValueError
        Shapes, lengths or labels do not fit; the message has the numbers.
    NotSupportedError
        The blank is not 0, a sequence has more than 255 labels, or cuDNN refused, as older ones refuse
        float64. Or the call is being captured with labels on the device, and lengths on the host say that a
        sequence has none, or more than its steps allow; or with ``normalization="none"`` and
        ``input_lengths`` on the device: pass these from the host.
    NotInitializedError
        The call is being captured, and labels or lengths that are on the host were not seen before.
    AllocationError
        Device memory ran out.

    Notes
    -----
    ``cudnnCTCLoss_v8``, which takes labels and lengths on the device; where cuDNN refuses that,
    ``cudnnCTCLoss``, which takes them on the host and cannot be captured. Half types are computed on float32
    copies. Labels on the host are copied to the device once as long as they stay the same. Those on the
    device are read back to be checked, which waits for them; pass what the host has.

    Only while a CUDA graph is captured are labels and lengths on the device (then int32, one after another)
    not looked at: the graph reads what they hold when it runs. Those on the host are checked as ever. With
    ``normalization="none"`` the steps of each sequence have to be known, hence on the host: what cuDNN
    writes, the gradient by probabilities, is turned into the one by activations, and set to zero past the
    ends. cuDNN is answerable for nothing then where a sequence has more labels than its steps allow; where
    one has no labels, its loss is 0 and its gradient is too large by 1 at the blank.

    With ``algo="deterministic"`` the same bits from run to run.

    Examples
    --------
    >>> logits = ct.zeros((2, 1, 2))  # two steps, one sequence, the blank and one symbol
    >>> loss, gradient = ct.ctc_loss(logits, [[1]], [1], [2])
    >>> np.exp(-loss.numpy())  # three of the four alignments read as the label
    array([0.75], dtype=float32)
    """
    where = stream_of(logits, "logits", stream)
    previous = streams.set_device(where.device)
    try:
        ctx = context.current(where)
        array = as_operand(logits, "logits", where)
        outs = ctc_outs(out)
        results = [
            None if one is None else as_operand(one, name, where, written=True)
            for one, name in zip(outs, ("out.loss", "out.gradient"), strict=True)
        ]
        normalization, out_of_bound, blank = ctc_spec(normalization, out_of_bound, blank)
        given = _CTCInputs(ctx, array.spec.shape, (labels, label_lengths, input_lengths), blank)
        there = any(one is not None for one in given.device)
        targets = given.unseen(normalization) if there and ctx.capturing else given.checked()
        compute = "float64" if array.spec.dtype == "float64" else "float32"
        kept = "zero" if outs[1] is None else out_of_bound  # new memory holds nothing to keep
        ctc = CTCLossSpec(normalization, kept, targets.room, compute)
        wanted = tuple(None if one is None else one.spec for one in results)
        unaligned = _unaligned(array, *results)
        call = _prepared(ctx, array.spec, wanted, ctc, as_choice(algo, CTC_ALGOS, "algo"), targets, unaligned)
        if call.pack:
            array = contiguous(array, where)
        call = call._replace(choice=_WithHost(call.choice, targets.host))
        made = run(ctx, call, (array, *targets.arrays), tuple(results), 1, 0)
        return CTCLoss(*(new if one is None else one for new, one in zip(made, outs, strict=True)))
    finally:
        streams.restore_device(previous)


class _CTCTargets(NamedTuple):
    """Labels, their lengths and the steps of each sequence, as a call takes them.

    ``arrays`` are on the device, ``host`` the same as C arrays. ``room`` is how many labels the descriptor is
    made for. Sequences that are ``impossible``, ``empty`` or ``unlabelled`` have others in their place, which
    cuDNN can compute; the last come with how many steps each has. So do the ``ends``, of sequences that have
    fewer steps than there are, but for the first two.
    """

    arrays: tuple[DeviceArray, ...]
    host: tuple[Any, ...]
    room: int
    impossible: tuple[int, ...] = ()
    empty: tuple[int, ...] = ()
    unlabelled: tuple[tuple[int, int], ...] = ()
    ends: tuple[tuple[int, int], ...] = ()

    def known(self, normalization: str) -> tuple[_Some, _Some, _Some, _Some]:
        """What is done for some sequences alone: those with others in their place, and ends to be kept."""
        ends = self.ends if normalization == "none" else ()
        return self.impossible, self.empty, self.unlabelled, ends


class _CTCInputs:
    """Labels and lengths as the caller gave them; ``device`` has those that are on the device, else None."""

    def __init__(self, ctx: Context, shape: Sequence[int], values: tuple[Any, ...], blank: int) -> None:
        _, self.batch, alphabet = check_ctc_logits(shape, blank)
        if alphabet == 1:
            raise NotSupportedError(
                f"logits have shape {tuple(shape)}: a blank alone; cuDNN wants a label too"
            )
        if blank:
            raise NotSupportedError(
                f"blank is {blank}; cuDNN has the blank at 0 alone: exchange symbols {blank} and 0"
            )
        self.ctx, self.shape, self.values = ctx, shape, values
        self.device = [
            as_operand(value, name, ctx.stream) if _is_on_device(value) else None
            for name, value in zip(_NAMES, values, strict=True)
        ]

    def checked(self) -> _CTCTargets:
        """Look at all of them, and take what is on the device already from there."""
        labels, counts, inputs = (
            value if array is None else array.numpy()
            for value, array in zip(self.values, self.device, strict=True)
        )
        rows, steps = check_ctc_operands(self.shape, labels, counts, inputs)
        impossible = [n for n, row in enumerate(rows) if steps[n] < ctc_min_steps(row)]
        empty = [n for n, row in enumerate(rows) if not row and not steps[n]]
        unlabelled = [(n, steps[n]) for n, row in enumerate(rows) if not row and steps[n]]
        # PyTorch saw cuDNN leave its memory where there are more labels than steps: one label in one step is
        # safe. One in all steps is for sequences without labels.
        shortened = {*impossible, *empty}
        ends = [(n, end) for n, end in enumerate(steps) if end < self.shape[0] and n not in shortened]
        known = shortened.union(n for n, _ in unlabelled)
        rows = tuple((1,) if n in known else row for n, row in enumerate(rows))
        steps = tuple(1 if n in shortened else end for n, end in enumerate(steps))
        lengths = tuple(map(len, rows))
        _check_most(lengths)
        values = (tuple(chain(*rows)) or (1,), lengths, steps)  # no memory is not to be pointed at
        arrays = [
            array if array is not None and not known and _is_as_cudnn_takes_it(array) else self._copied(value)
            for value, array in zip(values, self.device, strict=True)
        ]
        host = tuple((ctypes.c_int * len(value))(*value) for value in values)
        others = tuple(impossible), tuple(empty), tuple(unlabelled), tuple(ends)
        return _CTCTargets(tuple(arrays), host, self._room(lengths), *others)

    def unseen(self, normalization: str) -> _CTCTargets:
        """Take what is on the device as it is: it cannot be read while a graph is captured."""
        there = [array is not None for array in self.device]
        rows, counts, steps = check_ctc_of_host(self.shape, self.values, there)
        if counts and 0 in counts:
            raise NotSupportedError(
                f"sequence {counts.index(0)} has no labels, which cuDNN gets wrong: to capture this call, "
                "pass labels and lengths that are all on the host"
            )
        if normalization == "none" and steps is None:
            raise NotSupportedError(
                "input_lengths on the device cannot be read while a graph is captured, and normalization="
                "'none' needs them to leave gradients past the ends at zero: pass input_lengths on the host"
            )
        _check_most(counts or ())
        self._check_enough(rows, counts, steps)
        ends = tuple((n, end) for n, end in enumerate(steps or ()) if end < self.shape[0])
        labels = None if rows is None else tuple(chain(*rows)) or (1,)  # as in `checked`
        arrays = []
        for name, value, array in zip(_NAMES, (labels, counts, steps), self.device, strict=True):
            if array is None:
                assert value is not None
                array = self._copied(value)
            elif not _is_as_cudnn_takes_it(array):
                raise TypeError(
                    f"{name} on the device is {array.spec}; a captured call takes int32, one after another"
                )
            if name != "labels" and array.shape != (self.batch,):
                raise ValueError(f"{name} has shape {array.shape}; the batch has {self.batch} sequences")
            if name == "labels" and array.size < sum(counts or ()):
                raise ValueError(
                    f"there are {array.size} labels; label_lengths {counts} add up to {sum(counts or ())}"
                )
            arrays.append(array)
        return _CTCTargets(tuple(arrays), (None,) * 3, self._room(counts or ()), ends=ends)

    def _check_enough(
        self,
        rows: tuple[tuple[int, ...], ...] | None,
        counts: tuple[int, ...] | None,
        steps: tuple[int, ...] | None,
    ) -> None:
        """Raise where what is known says that a sequence has too few steps: cuDNN would leave its memory."""
        if counts is None:
            least = [1] * self.batch
        else:
            least = list(counts if rows is None else map(ctc_min_steps, rows))
        most = [self.shape[0]] * self.batch if steps is None else steps
        for n, (wanted, found) in enumerate(zip(least, most, strict=True)):
            if found < wanted:
                raise NotSupportedError(
                    f"sequence {n} has at most {found} steps, and needs {wanted} or more for its labels; "
                    "cuDNN would leave its memory: to capture this call, pass labels and lengths that are "
                    "all on the host"
                )

    def _room(self, counts: Sequence[int]) -> int:
        """The same for every call with lengths on the device, whatever they hold."""
        return ctc_room(counts) if self.device[1] is None else CTC_MAX_LABELS

    def _copied(self, values: tuple[int, ...]) -> DeviceArray:
        """The copy of some integers on the device, made when they were first seen."""
        kept = self.ctx.plans.setdefault(_COPIES, BoundedDict(MAX_COPIES))
        copy: _DeviceInts | None = kept.get(values)
        if copy is None:
            if self.ctx.capturing:
                raise _not_seen()
            copy = kept[values] = _DeviceInts(self.ctx.device, values)
        return copy.on(self.ctx)


class _DeviceInts:
    """Integers on the device. They outlive the streams that use them, so their home is the default stream."""

    __slots__ = ("_array", "_there")

    def __init__(self, device: int, values: tuple[int, ...]) -> None:
        import numpy as np

        home = streams.default_stream(device)
        self._array = DeviceArray.from_host(np.array(values, np.int32), DTYPES["int32"], "nchw", home)
        self._there = False  # for other streams than that

    def on(self, ctx: Context) -> DeviceArray:
        """The array, for work on the stream of a context; a captured graph keeps it."""
        array, stream = self._array, ctx.stream
        if stream != array.home:
            capturing = ctx.capturing
            if not self._there:  # once: nobody writes them again
                if capturing:
                    raise _not_seen()
                streams.synchronize(array.writer)
                self._there = True
            if capturing:
                ctx.pin(array)
        array.writer = stream  # which has nobody to wait for
        return array


def _not_seen() -> NotInitializedError:
    return NotInitializedError(
        "labels or lengths that were not seen before on this stream would be copied while a graph is "
        "captured: make the same call once on this stream before, or pass int32 arrays on the device"
    )


class _WithHost(NamedTuple):
    """A choice, and the C arrays that its plan may read beside the pointers of a run."""

    choice: FirstSupported
    host: tuple[Any, ...]

    def run(self, ctx: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Run the plan, whose pointers begin with the tensors of the problem."""
        logits, labels, counts, steps, loss, gradient = pointers
        ordered: Any = (logits, loss, gradient, labels, counts, steps, *self.host)
        self.choice.run(ctx, ordered, alpha, beta)


def _prepared(
    ctx: Context,
    logits: TensorSpec,
    outs: tuple[TensorSpec | None, ...],
    ctc: CTCLossSpec,
    algo: str,
    targets: _CTCTargets,
    unaligned: tuple[int, ...],
) -> PreparedCall:
    """Look the call up. Those that do more for some sequences are kept apart: few will come again."""
    known = targets.known(ctc.normalization)
    key = ("a CTC loss", logits, outs, ctc, algo, known, unaligned)
    calls = ctx.plans.setdefault(_RAGGED, BoundedDict(MAX_COPIES)) if any(known) else ctx.calls
    call: PreparedCall | None = calls.get(key)
    if call is None:
        for out in outs:
            check_writable(out)
        given = representable(logits)
        problem = ctc_problem(given, outs, ctc, algo, *known, unaligned)
        inputs = (given, _WHATEVER, _WHATEVER, _WHATEVER)
        call = calls[key] = PreparedCall.of(
            problem,
            inputs,
            problem.results,
            FirstSupported(problem, _IMPLEMENTATIONS, ctx, relayout=False),
            pack=given != logits,
            what="a CTC loss",
        )
    return call


_IMPLEMENTATIONS = (Implementation(ctc_plan), Implementation(ctc_plan_of_host_labels))


def _unaligned(*arrays: DeviceArray | None) -> tuple[int, ...]:
    """Which of some arrays do not begin where kernels may load several elements at once.

    Those that are to be made do, and so do copies of what no descriptor describes.
    """
    return tuple(
        n
        for n, array in enumerate(arrays)
        if array is not None and array.pointer % ALIGNMENT and array.spec.describable
    )


def _is_on_device(value: Any) -> bool:
    return isinstance(value, DeviceArray) or not interop.in_host_memory(value)


def _is_as_cudnn_takes_it(array: DeviceArray) -> bool:
    return array.spec.dtype == "int32" and array.ndim == 1 and array.size > 0 and array.spec.dense


def _check_most(counts: Sequence[int]) -> None:
    for n, count in enumerate(counts):
        if count > CTC_MAX_LABELS:
            raise NotSupportedError(f"sequence {n} has {count} labels; cuDNN takes {CTC_MAX_LABELS}")
