"""CTC (connectionist temporal classification): the loss of unaligned label sequences, and its gradient."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

from .. import context
from .._caches import BoundedDict
from ..array import DeviceArray
from ..array_creation import as_operand
from ..context import Context
from ..cuda import interop
from ..cuda import stream as streams
from ..errors import NotSupportedError
from ..shapes.ctc import (
    CTC_ALGOS,
    CTC_LABELS,
    CTC_MAX_LABELS,
    CTCLoss,
    CTCRepairs,
    check_ctc_logits,
    check_ctc_of_host,
    check_ctc_operands,
    ctc_min_steps,
    ctc_outs,
    ctc_problem,
    ctc_repairs,
    ctc_room,
    ctc_spec,
)
from ..shapes.parse import as_choice
from ..shapes.specs import CTCLossSpec, Shape
from ..typing import ArrayLike, StreamLike
from ._call import Operation, execute
from ._fallback import Implementation
from ._operands import stream_of
from ._sequences import DeviceInts, not_on_stream
from .ctc_legacy import CTCState
from .ctc_legacy import ctc_loss as ctc_plan
from .ctc_legacy import ctc_loss_of_host_labels as ctc_plan_of_host_labels

__all__ = ["ctc_loss"]

MAX_COPIES = 64  # copies of labels and lengths that a thread keeps on the device

_COPIES = "labels and lengths of CTC losses"  # the key of these copies in a context
LABEL_NAMES = ("labels", "label_lengths", "input_lengths")


def ctc_loss(
    logits: ArrayLike,
    labels: ArrayLike | Sequence[int] | Sequence[Sequence[int]],
    label_lengths: ArrayLike | Sequence[int],
    input_lengths: ArrayLike | Sequence[int],
    *,
    normalization: Literal["none", "softmax"] = "softmax",
    out_of_bound: Literal["zero", "skip"] = "zero",
    blank: int = 0,
    algo: str = "deterministic",
    out: tuple[ArrayLike | None, ArrayLike | None] | None = None,
    stream: StreamLike | None = None,
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
        ``logits`` are not on the device or have another dtype, or a length or label is not an integer.
    ValueError
        Shapes, lengths or labels do not fit; the message has the numbers.
    NotSupportedError
        The blank is not 0, a sequence has more than 255 labels, or cuDNN rejects the call, as older versions
        reject float64. Or the call is captured with labels on the device, and lengths on the host show that a
        sequence has no labels, or more than its steps allow; or with ``normalization="none"`` and
        ``input_lengths`` on the device.
    NotInitializedError
        The call is captured, and labels or lengths on the host were not seen before on the stream.
    AllocationError
        Device memory ran out.

    Notes
    -----
    ``cudnnCTCLoss_v8``, which takes labels and lengths on the device; if cuDNN rejects that,
    ``cudnnCTCLoss``, which takes them on the host and cannot be captured. Half precision is computed on
    float32 copies. Labels on the host are copied to the device once and used as long as they are the same.
    Labels on the device are read back to be checked, which waits for them.

    While a CUDA graph is captured, labels and lengths on the device (int32, contiguous) are not checked: the
    graph reads their values when it runs. The result is then undefined for a sequence with more labels than
    its steps allow; for one without labels, the loss is 0 and the gradient too large by 1 at the blank.

    With ``algo="deterministic"`` the same bits from run to run.

    Examples
    --------
    >>> logits = ct.zeros((2, 1, 2))  # two steps, one sequence, the blank and one symbol
    >>> loss, gradient = ct.ctc_loss(logits, [[1]], [1], [2])
    >>> np.exp(-loss.numpy())  # three of the four alignments become the label
    array([0.75], dtype=float32)
    """
    where = stream_of(logits, "logits", stream)
    previous = streams.set_device(where.device)
    try:
        ctx = context.current(where)
        array = as_operand(logits, "logits", where)
        outs = ctc_outs(out)
        spec = ctc_spec(normalization, out_of_bound, blank)
        given = (labels, label_lengths, input_lengths)
        targets = _targets(ctx, array.spec.shape, given, spec.blank, spec.normalization)
        compute = "float64" if array.spec.dtype == "float64" else "float32"
        kept = "zero" if outs[1] is None else spec.out_of_bound  # new memory holds nothing to keep
        ctc = CTCLossSpec(spec.normalization, kept, targets.room, compute)
        params = (ctc, as_choice(algo, CTC_ALGOS, "algo"), targets.repairs)
        names, operands = ("logits", *LABEL_NAMES), (array, *targets.arrays)
        state = CTCState(targets.host)
        return CTCLoss(*execute(OPERATION, names, operands, params, outs=outs, stream=where, state=state))
    finally:
        streams.restore_device(previous)


OPERATION = Operation(
    "a CTC loss",
    ctc_problem,
    (Implementation(ctc_plan, aligned=True), Implementation(ctc_plan_of_host_labels, aligned=True)),
    written=("out.loss", "out.gradient"),
    relayout=False,
)


class _Targets(NamedTuple):
    """Labels, label lengths and input lengths as cuDNN takes them.

    ``arrays`` are on the device, ``host`` the same as C arrays. ``room`` is the number of labels that the
    descriptor is made for. Sequences that cuDNN cannot compute are replaced by others; ``repairs`` has them.
    """

    arrays: tuple[DeviceArray, ...]
    host: tuple[Any, ...]
    room: int
    repairs: CTCRepairs


def _targets(
    ctx: Context, shape: Sequence[int], values: tuple[Any, ...], blank: int, normalization: str
) -> _Targets:
    """Return labels and lengths as a call takes them; a capture cannot read arrays on the device."""
    _, _, alphabet = check_ctc_logits(shape, blank)
    if alphabet == 1:
        raise NotSupportedError(f"logits have shape {tuple(shape)}: a blank alone; cuDNN wants a label too")
    if blank:
        raise NotSupportedError(
            f"blank is {blank}; cuDNN has the blank at 0 alone: exchange symbols {blank} and 0"
        )
    device = [
        as_operand(value, name, ctx.stream) if _is_on_device(value) else None
        for name, value in zip(LABEL_NAMES, values, strict=True)
    ]
    unread = any(array is not None for array in device) and ctx.capturing
    if unread:
        targets = _captured(ctx, shape, values, device, normalization)
    else:
        targets = _checked(ctx, shape, values, device)
    # Softmax needs no repair of the ends, so calls that differ in them share what is prepared.
    repairs = targets.repairs if normalization == "none" else targets.repairs._replace(ends=())
    arrays = tuple(array.view_as(CTC_LABELS) for array in targets.arrays)  # one spec for all sizes
    return targets._replace(arrays=arrays, repairs=repairs)


def _checked(
    ctx: Context, shape: Sequence[int], values: tuple[Any, ...], device: Sequence[DeviceArray | None]
) -> _Targets:
    """Check all labels and lengths; arrays on the device are read back."""
    labels, counts, inputs = (
        value if array is None else array.numpy() for value, array in zip(values, device, strict=True)
    )
    rows, steps = check_ctc_operands(shape, labels, counts, inputs)
    repairs = ctc_repairs(rows, steps, shape[0])
    # PyTorch saw cuDNN access memory out of bounds for more labels than steps; one label in one step is safe.
    shortened = {*repairs.impossible, *repairs.empty}
    replaced = shortened.union(n for n, _ in repairs.unlabelled)
    rows = tuple((1,) if n in replaced else row for n, row in enumerate(rows))
    steps = tuple(1 if n in shortened else end for n, end in enumerate(steps))
    lengths = tuple(map(len, rows))
    _check_max_labels(lengths)
    numbers = (_concatenated(rows), lengths, steps)
    copies = [
        _copied(ctx, value) if array is None or replaced or not _is_as_cudnn_takes_it(array) else array
        for value, array in zip(numbers, device, strict=True)
    ]
    host = tuple((ctypes.c_int * len(value))(*value) for value in numbers)
    return _Targets(tuple(copies), host, _room(lengths, device), repairs)


def _captured(
    ctx: Context,
    shape: Sequence[int],
    values: tuple[Any, ...],
    device: Sequence[DeviceArray | None],
    normalization: str,
) -> _Targets:
    """Check labels and lengths in host memory, because a capture cannot read the others."""
    rows, counts, steps = check_ctc_of_host(shape, values, [array is not None for array in device])
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
    _check_max_labels(counts or ())
    _check_enough_steps(shape, rows, counts, steps)
    arrays = []
    numbers = (None if rows is None else _concatenated(rows), counts, steps)
    for name, value, array in zip(LABEL_NAMES, numbers, device, strict=True):
        if array is None:
            assert value is not None
            array = _copied(ctx, value)
        elif not _is_as_cudnn_takes_it(array):
            raise TypeError(
                f"{name} on the device is {array.spec}; a captured call takes int32, one after another"
            )
        if name != "labels" and array.shape != (shape[1],):
            raise ValueError(f"{name} has shape {array.shape}; the batch has {shape[1]} sequences")
        if name == "labels" and array.size < sum(counts or ()):
            raise ValueError(
                f"there are {array.size} labels; label_lengths {counts} add up to {sum(counts or ())}"
            )
        arrays.append(array)
    ends = tuple((n, end) for n, end in enumerate(steps or ()) if end < shape[0])
    return _Targets(tuple(arrays), (None,) * 3, _room(counts or (), device), CTCRepairs(ends=ends))


def _check_enough_steps(
    shape: Sequence[int], rows: tuple[Shape, ...] | None, counts: Shape | None, steps: Shape | None
) -> None:
    """Raise if the known numbers show too few steps: cuDNN would access memory out of bounds."""
    needed = [1] * shape[1] if counts is None else list(counts if rows is None else map(ctc_min_steps, rows))
    for n, (wanted, found) in enumerate(zip(needed, steps or (shape[0],) * shape[1], strict=True)):
        if found < wanted:
            raise NotSupportedError(
                f"sequence {n} has at most {found} steps, and needs {wanted} or more for its labels; "
                "cuDNN would leave its memory: to capture this call, pass labels and lengths that are "
                "all on the host"
            )


def _check_max_labels(counts: Sequence[int]) -> None:
    for n, count in enumerate(counts):
        if count > CTC_MAX_LABELS:
            raise NotSupportedError(f"sequence {n} has {count} labels; cuDNN takes {CTC_MAX_LABELS}")


def _concatenated(rows: Sequence[Shape]) -> Shape:
    return tuple(chain(*rows)) or (1,)  # cuDNN needs an address


def _room(counts: Sequence[int], device: Sequence[DeviceArray | None]) -> int:
    """Return the capacity for labels, which does not depend on label lengths on the device."""
    return ctc_room(counts) if device[1] is None else CTC_MAX_LABELS


def _copied(ctx: Context, values: Shape) -> DeviceArray:
    """Return the copy of numbers on the device, made when they are first seen."""
    copies = ctx.plans.setdefault(_COPIES, BoundedDict(MAX_COPIES))
    copy: DeviceInts | None = copies.get(values)
    if copy is None:
        if ctx.capturing:
            raise not_on_stream("labels or lengths")
        copy = copies[values] = DeviceInts(ctx.device, values, "labels or lengths")
    return copy.on(ctx)


def _is_on_device(value: Any) -> bool:
    return isinstance(value, DeviceArray) or not interop.in_host_memory(value)


def _is_as_cudnn_takes_it(array: DeviceArray) -> bool:
    return array.spec.dtype == "int32" and array.ndim == 1 and array.size > 0 and array.spec.dense
