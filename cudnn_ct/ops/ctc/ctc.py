"""CTC (connectionist temporal classification): the loss of unaligned label sequences, and its gradient."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple, Never

from ... import context
from ..._caches import BoundedDict
from ..._hints import UNSET, corrected
from ...array import DeviceArray
from ...array_creation import as_operand
from ...context import Context
from ...cuda import interop
from ...cuda import stream as streams
from ...errors import NotSupportedError
from ...plans.wrappers import on_float32
from ...shapes import ctc as rules
from ...shapes.checks import as_choice
from ...shapes.ctc import CTCLoss
from ...shapes.specs import CTCLossSpec, Shape
from ...typing import ArrayLike, StreamLike
from .._call import execute
from .._documented import documented
from .._implementations import Implementation
from .._operands import stream_of
from .._operation import Operation
from .._state import CallState, DeviceNumbers, not_on_stream
from .legacy import PLANS, without_steps

MAX_COPIES = 64  # copies of labels and lengths that a thread keeps on the device

_COPIES = "labels and lengths of CTC losses"  # the key of these copies in a context
LABEL_NAMES = ("labels", "label_lengths", "input_lengths")


@documented()
def ctc_loss(
    logits: ArrayLike,
    labels: ArrayLike | Sequence[int] | Sequence[Sequence[int]],
    label_lengths: ArrayLike | Sequence[int],
    input_lengths: ArrayLike | Sequence[int],
    *more: Never,
    normalization: Literal["none", "softmax"] = "softmax",
    out_of_bound: Literal["zero", "skip"] = "zero",
    blank: int = 0,
    algo: Literal["deterministic", "non_deterministic"] = "deterministic",
    out: ArrayLike | tuple[ArrayLike | None, ArrayLike | None] | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> CTCLoss[DeviceArray]:
    """Compute ``-log p(labels)`` for each sequence, and its gradient.

    The probability of labels is the sum over all alignments that become the labels when repeated symbols are
    merged and blanks removed. It is computed in float32, or in float64 for float64.

    Parameters
    ----------
    logits : device array, shape (T, N, A), float16 | bfloat16 | float32 | float64
        Activations; with ``normalization="none"`` probabilities. Values past the end of a sequence are not
        read.
    labels : ints, (N, S), or the concatenated labels of all sequences
        From 1 to A - 1; at most 255 for each sequence. Labels and lengths are Python sequences, NumPy arrays
        or arrays on the device.
    label_lengths : N ints
        The number of labels of each sequence.
    input_lengths : N ints, 0 to T
        The number of steps of each sequence.
    normalization : {"softmax", "none"}
        Whether softmax is applied to ``logits``. In both cases the gradient is with regard to the activations
        before softmax.
    out_of_bound : {"zero", "skip"}
        The gradient of a sequence with fewer steps than its labels need, one each and one between equal ones:
        zero, or the values of ``out``. The loss of such a sequence is infinite.
    blank : int
        The symbol that stands for no label; cuDNN supports 0 only.
    algo : {"deterministic", "non_deterministic"}
        cuDNN's algorithm. The second may give slightly different results from run to run.
    out : device array, shape and dtype of ``logits``; or a pair (loss, gradient); optional
        The array for the gradient, or those for both results. It must not overlap ``logits``.

    Returns
    -------
    CTCLoss
        ``loss``, shape (N,), and ``gradient``, shape (T, N, A), zero past the end of each sequence; both of
        the dtype of ``logits``. With softmax both are NaN for a sequence with several alignments that all, or
        with some probability, need symbols with a probability below exp(-95); for float64 exp(-700).

    Raises
    ------
    NotSupportedError
        The blank is not 0, a sequence has more than 255 labels, or cuDNN rejects the call, as older versions
        reject float64. Or the call is captured, and labels or lengths are on the device that have to be read.
    NotInitializedError
        The call is captured, and labels or lengths on the host were not seen before on the stream.

    Notes
    -----
    ``cudnnCTCLoss_v8``; if cuDNN rejects that, ``cudnnCTCLoss``, which takes labels on the host and cannot be
    captured. Labels on the host are copied to the device once and used as long as they are the same. Labels
    on the device are read back to be checked, which waits for them.

    A captured call takes labels and lengths all on the host, or, with softmax, all on the device (int32,
    contiguous). They are not checked there: each sequence needs labels, and enough steps for them. From the
    device, a sequence with a single alignment has the limit of those with several.

    With ``algo="deterministic"`` the same bits from run to run.

    Examples
    --------
    >>> logits = ct.zeros((2, 1, 2))  # two steps, one sequence, the blank and one symbol
    >>> loss, gradient = ct.ctc_loss(logits, [[1]], [1], [2])
    >>> np.exp(-loss.numpy())  # three of the four alignments become the label
    array([0.75], dtype=float32)
    """
    if more or unknown or any(one is UNSET for one in (logits, labels, label_lengths, input_lengths)):
        return corrected(ctc_loss, locals())
    where = stream_of(logits, "logits", stream, (labels, label_lengths, input_lengths))
    with streams.on_device(where.device):
        ctx = context.current(where)
        array, outs = as_operand(logits, "logits", where), rules.ctc_outs(out)
        spec = rules.ctc_spec(normalization, out_of_bound, blank)
        targets = _targets(ctx, array.shape, (labels, label_lengths, input_lengths), spec)
        compute = "float64" if array.spec.dtype == "float64" else "float32"
        kept = "zero" if outs[1] is None else spec.out_of_bound  # new memory holds nothing to keep
        ctc = CTCLossSpec(spec.normalization, kept, targets.room, compute)
        params = (ctc, as_choice(algo, rules.CTC_ALGOS, "algo"), targets.repairs)
        names, operands = ("logits", *LABEL_NAMES), (array, *targets.arrays)
        state = CallState(value=targets.host)
        return CTCLoss(*execute(OPERATION, names, operands, params, outs=outs, stream=where, state=state))


OPERATION = Operation(
    "a CTC loss",
    rules.ctc_problem,
    (
        Implementation(without_steps),
        *(Implementation(make, aligned=True) for make in PLANS),
        *(Implementation(on_float32(make, "float16", "bfloat16")) for make in PLANS),
    ),
    written=("out.loss", "out.gradient"),
)


class _Targets(NamedTuple):
    """Labels, label lengths and input lengths as cuDNN takes them."""

    arrays: tuple[DeviceArray, ...]  # on the device
    host: tuple[Any, ...]  # the same as C arrays
    room: int  # the number of labels that the descriptor is made for
    repairs: rules.CTCRepairs  # the sequences that cuDNN cannot compute, which others replace


def _targets(ctx: Context, shape: Shape, values: tuple[Any, ...], spec: rules.CTCSpec) -> _Targets:
    """Return labels and lengths as a call takes them; a capture cannot read arrays on the device."""
    _, _, alphabet = rules.check_ctc_logits(shape, spec.blank)
    if alphabet == 1:
        raise NotSupportedError(f"logits have shape {shape}: a blank alone; cuDNN wants a label too")
    if spec.blank:
        raise NotSupportedError(
            f"blank is {spec.blank}; cuDNN has the blank at 0 alone: exchange symbols {spec.blank} and 0"
        )
    device = [
        as_operand(value, name, ctx.stream)
        if isinstance(value, DeviceArray) or not interop.in_host_memory(value)
        else None
        for name, value in zip(LABEL_NAMES, values, strict=True)
    ]
    if ctx.capturing and any(array is not None for array in device):
        targets = _unread(shape[1], device, spec.normalization)
    else:
        targets = _checked(ctx, shape, values, device)
    # Calls that differ in sequences that need no repair share what is prepared.
    unused = {"single": ()} if spec.normalization == "none" else {"ends": ()}
    repairs = targets.repairs._replace(**unused)
    arrays = tuple(array.view_as(rules.CTC_LABELS) for array in targets.arrays)  # one spec for all sizes
    return targets._replace(arrays=arrays, repairs=repairs)


def _unread(batch: int, device: Sequence[DeviceArray | None], normalization: str) -> _Targets:
    """Return labels and lengths that a captured graph reads when it runs."""
    arrays = tuple(array for array in device if array is not None)
    if len(arrays) < len(device) or normalization == "none":
        raise NotSupportedError(
            "labels or lengths on the device cannot be read while a graph is captured: pass all of them on "
            "the host, or with normalization='softmax' all of them on the device"
        )
    for name, array in zip(LABEL_NAMES, arrays, strict=True):
        if not _is_as_cudnn_takes_it(array):
            raise TypeError(
                f"{name} on the device is {array.spec}; a captured call takes int32, one after another"
            )
        if name != "labels" and array.size != batch:
            raise ValueError(f"{name} has shape {array.shape}; the batch has {batch} sequences")
    return _Targets(arrays, (None,) * len(arrays), rules.CTC_MAX_LABELS, rules.CTCRepairs())


def _checked(
    ctx: Context, shape: Shape, values: tuple[Any, ...], device: Sequence[DeviceArray | None]
) -> _Targets:
    """Check all labels and lengths; arrays on the device are read back."""
    labels, counts, inputs = (
        value if array is None else array.numpy() for value, array in zip(values, device, strict=True)
    )
    rows, steps = rules.check_ctc_operands(shape, labels, counts, inputs)
    repairs = rules.ctc_repairs(rows, steps, shape[0])
    # PyTorch saw cuDNN access memory out of bounds for more labels than steps; one label in one step is safe.
    shortened = {*repairs.impossible, *repairs.empty}
    replaced = shortened.union(n for n, _ in repairs.unlabelled)
    rows = tuple((1,) if n in replaced else row for n, row in enumerate(rows))
    steps = tuple(1 if n in shortened else end for n, end in enumerate(steps))
    lengths = tuple(map(len, rows))
    for n, count in enumerate(lengths):
        if count > rules.CTC_MAX_LABELS:
            raise NotSupportedError(f"sequence {n} has {count} labels; cuDNN takes {rules.CTC_MAX_LABELS}")
    numbers = (tuple(chain(*rows)) or (1,), lengths, steps)  # cuDNN needs an address
    arrays = tuple(
        _copied(ctx, value) if array is None or replaced or not _is_as_cudnn_takes_it(array) else array
        for value, array in zip(numbers, device, strict=True)
    )
    host = tuple((ctypes.c_int * len(value))(*value) for value in numbers)
    # The capacity for labels does not depend on label lengths on the device, which a capture cannot read.
    room = rules.ctc_room(lengths) if device[1] is None else rules.CTC_MAX_LABELS
    return _Targets(arrays, host, room, repairs)


def _copied(ctx: Context, values: Shape) -> DeviceArray:
    """Return the copy of numbers on the device, made when they are first seen."""
    copies = ctx.plans.setdefault(_COPIES, BoundedDict(MAX_COPIES))
    copy: DeviceNumbers | None = copies.get(values)
    if copy is None:
        if ctx.capturing:
            raise not_on_stream("labels or lengths")
        copy = copies[values] = DeviceNumbers(ctx.device, values, "labels or lengths")
    return copy.on(ctx)


def _is_as_cudnn_takes_it(array: DeviceArray) -> bool:
    return array.spec.dtype == "int32" and array.ndim == 1 and array.size > 0 and array.spec.is_dense
