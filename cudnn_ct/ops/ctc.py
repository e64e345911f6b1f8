"""CTC (connectionist temporal classification): the loss of unaligned label sequences, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from .. import context
from ..array import DeviceArray
from ..array_creation import as_operand
from ..cuda import stream as streams
from ..shapes.ctc import CTC_ALGOS, CTCLoss, ctc_outs, ctc_problem, ctc_spec
from ..shapes.parse import as_choice
from ..shapes.specs import CTCLossSpec
from ..typing import ArrayLike, StreamLike
from ._call import Operation, execute
from ._fallback import Implementation
from ._operands import stream_of
from .ctc_labels import LABEL_NAMES, ctc_targets
from .ctc_legacy import CTCState
from .ctc_legacy import ctc_loss as ctc_plan
from .ctc_legacy import ctc_loss_of_host_labels as ctc_plan_of_host_labels

__all__ = ["ctc_loss"]

NAMES = ("logits", *LABEL_NAMES)


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
        targets = ctc_targets(ctx, array.spec.shape, given, spec.blank, spec.normalization)
        compute = "float64" if array.spec.dtype == "float64" else "float32"
        kept = "zero" if outs[1] is None else spec.out_of_bound  # new memory holds nothing to keep
        ctc = CTCLossSpec(spec.normalization, kept, targets.room, compute)
        params = (ctc, as_choice(algo, CTC_ALGOS, "algo"), targets.repairs)
        operands, state = (array, *targets.arrays), CTCState(targets.host)
        return CTCLoss(*execute(OPERATION, NAMES, operands, params, outs=outs, stream=where, state=state))
    finally:
        streams.restore_device(previous)


OPERATION = Operation(
    "a CTC loss",
    ctc_problem,
    (Implementation(ctc_plan, aligned=True), Implementation(ctc_plan_of_host_labels, aligned=True)),
    written=("out.loss", "out.gradient"),
    relayout=False,
)
