"""CTC losses by the legacy calls, which compute in float32 or float64 on contiguous logits.

The gradient is zeroed before the call, because cuDNN does not write all of it; sequences that cuDNN cannot
compute are set afterwards. The pointers of a run are logits, labels, label lengths, input lengths, loss and
gradient. Labels and lengths as C arrays are in the :class:`CTCState` of the call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from math import inf, log
from typing import Any, NamedTuple

from .._bindings.enums import CTCLossAlgo
from ..context import Context
from ..cuda import allocator
from ..descriptors import CTCLossDescriptor, TensorDescriptor
from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..plans.base import Plan
from ..plans.chain import ChainPlan, Step
from ..plans.elementwise import cast_or_copy_plan, copy_plan, fill_plan, op_tensor, scale_plan
from ..plans.tiling import SlicedPlan
from ..shapes.ctc import CTCProblem
from ..shapes.elementwise import OpTensorProblem
from ..shapes.layer import LayerProblem
from ..shapes.layers import SoftmaxParams
from ..shapes.reduction import ReduceProblem
from ..shapes.specs import ActivationSpec, TensorSpec
from ._sequences import plan_for_sequences
from ._state import CallState
from .activation import legacy_plan as activation_plan
from .reduce.legacy import reduction
from .softmax import softmax_plan

__all__ = ["CTCState", "ctc_loss", "ctc_loss_of_host_labels"]

_LOGITS, *_LABELS, _LOSS, _GRADIENT = range(6)
_POINTERS = 6

# Pointers and temporaries of the plan for sequences without labels.
_PLACES = ("logits", "loss", "gradient", "probabilities", "less", "third", "fourth")

NO_STEP = -1  # no step of a chain is scaled


class CTCState(CallState):
    """Labels, label lengths and input lengths as C arrays; None if a capture cannot read them."""

    __slots__ = ("host",)

    def __init__(self, host: tuple[Any, ...]) -> None:
        super().__init__()
        self.host = host


def ctc_loss(problem: CTCProblem, context: Context) -> Plan:
    """``cudnnCTCLoss_v8``: labels and lengths are read on the device, so it can be captured."""
    return _around(problem, context, lambda logits: DevicePlan(problem, logits, context), _LABELS)


def ctc_loss_of_host_labels(problem: CTCProblem, context: Context) -> Plan:
    """``cudnnCTCLoss``: labels and lengths are read on the host, at the call."""
    return _around(problem, context, lambda logits: HostPlan(problem, logits), ())


def _around(
    problem: CTCProblem, context: Context, make: Callable[[TensorSpec], Plan], labels: Sequence[int]
) -> Plan:
    """Return a plan of a C call, with the copies that it needs and the repairs of its results."""
    places = _placed(problem)
    steps: list[Step] = []
    if places.wide.size:
        steps += _before(problem, places)
        steps.append(Step(make(places.wide), (places.logits, places.loss, places.gradient, *labels)))
        steps += _repaired(problem, places)
    steps += _without_cudnn(problem, places, context)
    steps += _handed_over(problem, places)
    return ChainPlan(places.temporaries, steps, NO_STEP)


class _Places(NamedTuple):
    """The place of each tensor among the pointers of a run, followed by the temporaries.

    ``wide`` is the spec of logits and gradient there: contiguous, in the dtype of the computation. ``losses``
    is that of the loss.
    """

    logits: int
    loss: int
    gradient: int
    wide: TensorSpec
    losses: TensorSpec
    temporaries: list[TensorSpec]


def _placed(problem: CTCProblem) -> _Places:
    """Use a tensor itself if cuDNN supports it and may write all of it, else a temporary."""
    wide = TensorSpec.packed(problem.logits.shape, problem.ctc.compute)
    losses = TensorSpec.packed(problem.loss.shape, problem.ctc.compute)
    temporaries: list[TensorSpec] = []

    def place(given: int, spec: TensorSpec, wanted: TensorSpec, *, copy: bool = False) -> int:
        if spec.dtype == wanted.dtype and "nchw" in spec.layouts and not copy:
            return given
        temporaries.append(wanted)
        return _POINTERS + len(temporaries) - 1

    logits = place(_LOGITS, problem.logits, wide, copy=bool(_doubled(problem)))
    loss = place(_LOSS, problem.loss, losses)
    gradient = place(_GRADIENT, problem.gradient, wide, copy=bool(problem.kept))
    return _Places(logits, loss, gradient, wide, losses, temporaries)


def _doubled(problem: CTCProblem) -> dict[int, list[int]]:
    """Return sequences whose first label gets the probabilities of the blank, by their steps."""
    return _by_steps(problem.repairs.unlabelled) if problem.ctc.normalization == "none" else {}


def _before(problem: CTCProblem, places: _Places) -> list[Step]:
    """Zero the gradient, of which cuDNN writes only a part, and copy the logits if needed."""
    steps = [Step(fill_plan(places.wide, 0.0), (places.gradient,))]
    if places.logits != _LOGITS:
        steps.append(Step(cast_or_copy_plan(problem.logits, places.wide), (_LOGITS, places.logits)))
    for end, sequences in _doubled(problem).items():
        specs = _until(end, problem.logits), _until(end, places.wide)
        steps.append(Step(plan_for_sequences(sequences, _blank_as_label, *specs), (_LOGITS, places.logits)))
    return steps


def _repaired(problem: CTCProblem, places: _Places) -> list[Step]:
    """Convert the gradient to one by activations, and zero it for sequences that were replaced."""
    wide, gradient = places.wide, (places.gradient,)
    steps: list[Step] = []
    if problem.ctc.normalization == "none":
        steps += _by_activations(wide, places.logits, places.gradient)
        for end, sequences in _by_steps(problem.repairs.ends).items():
            steps.append(Step(plan_for_sequences(sequences, partial(_zero_from, end), wide), gradient))
    known = problem.repairs.empty if problem.kept else (*problem.repairs.impossible, *problem.repairs.empty)
    if known:
        steps.append(Step(plan_for_sequences(known, _zero, wide), gradient))
    return steps


def _without_cudnn(problem: CTCProblem, places: _Places, context: Context) -> list[Step]:
    """Set both results of sequences without labels, and the losses of sequences that were replaced."""
    wide, losses = places.wide, places.losses
    make_one = partial(_unlabelled, problem.ctc.normalization, context)
    steps: list[Step] = []
    for end, sequences in _by_steps(problem.repairs.unlabelled).items():
        specs = _until(end, problem.logits), losses, _until(end, wide)
        plan = plan_for_sequences(sequences, make_one, *specs)
        steps.append(Step(plan, (_LOGITS, places.loss, places.gradient)))
    for value, known in ((inf, problem.repairs.impossible), (0.0, problem.repairs.empty)):
        if known:
            fill = partial(fill_plan, value=value)
            steps.append(Step(plan_for_sequences(known, fill, losses), (places.loss,)))
    return steps


def _handed_over(problem: CTCProblem, places: _Places) -> list[Step]:
    """Copy temporaries into the results, except for gradients that are kept."""
    steps: list[Step] = []
    if places.loss != _LOSS:
        steps.append(Step(cast_or_copy_plan(places.losses, problem.loss), (places.loss, _LOSS)))
    written = [n for n in range(places.wide.shape[1]) if n not in set(problem.kept)]
    if places.gradient != _GRADIENT and places.wide.size and written:
        plan = plan_for_sequences(written, cast_or_copy_plan, places.wide, problem.gradient)
        steps.append(Step(plan, (places.gradient, _GRADIENT)))
    return steps


def _by_activations(spec: TensorSpec, probabilities: int, gradient: int) -> list[Step]:
    """Return steps from cuDNN's gradient by probabilities p to the gradient by activations, p - q.

    q is the probability that an alignment has a symbol at a step. cuDNN 9.19 writes g = -q / p if q > 0, else
    g = p, so the gradient is p + p min(g, 0). Values past the end of a sequence are undefined.
    """
    relu = activation_plan(LayerProblem(spec, spec, None, None, "relu", ActivationSpec("relu")))
    times, plus = (op_tensor(OpTensorProblem(spec, spec, spec, op, True)) for op in ("mul", "add"))
    both = (gradient, probabilities, gradient)  # cuDNN may write over its first operand, not over its second
    return [
        Step(scale_plan(spec), (gradient,), -1.0),
        Step(relu, (gradient, gradient), -1.0),
        Step(times, both),
        Step(plus, both),
    ]


_zero = partial(fill_plan, value=0.0)


def _zero_from(end: int, x: TensorSpec) -> Plan:
    """Fill the steps from ``end`` on."""
    offset = end * x.strides[0] * DTYPES[x.dtype].itemsize
    return SlicedPlan([(_zero(x._replace(shape=(x.shape[0] - end, *x.shape[1:]))), (offset,))])


def _until(end: int, spec: TensorSpec) -> TensorSpec:
    return spec._replace(shape=(end, *spec.shape[1:]))


def _by_steps(pairs: Sequence[tuple[int, int]]) -> dict[int, list[int]]:
    """Group sequences by their number of steps."""
    found: dict[int, list[int]] = {}
    for sequence, end in pairs:
        found.setdefault(end, []).append(sequence)
    return found


def _blank_as_label(logits: TensorSpec, copy: TensorSpec) -> Plan:
    """Copy the probabilities of the blank to the first label."""
    return SlicedPlan([(cast_or_copy_plan(_blank(logits), _blank(copy)), (0, DTYPES[copy.dtype].itemsize))])


def _unlabelled(normalization: str, context: Context, logits: TensorSpec, *results: TensorSpec) -> Plan:
    """Return a plan of loss and gradient of sequences without labels, for which cuDNN 9.19 writes zero.

    The only alignment has a blank at each step. So the loss is minus the sum of the logarithms of the blank's
    probabilities, and the gradient is the probabilities, less one for the blank.

    cuDNN has no logarithm but that of softmax. Without softmax, cuDNN computed the loss of one label that is
    as probable as the blank: each of its T (T + 1) / 2 alignments is as probable as all blanks.
    """
    loss, gradient = results
    rows = TensorSpec.packed(logits.shape, gradient.dtype)
    less = TensorSpec.packed((1, 1, rows.shape[2]), rows.dtype)
    at = {name: place for place, name in enumerate(_PLACES)}
    temporaries: list[TensorSpec] = [rows, less]
    steps: list[Step] = []

    def step(plan: Plan, names: str, factor: float = 1.0) -> None:
        steps.append(Step(plan, tuple(at[name] for name in names.split()), factor))

    if normalization == "softmax":
        column = TensorSpec.packed(rows.shape[:2], rows.dtype)
        temporaries += [rows, column]
        total = ReduceProblem(column, loss, None, (0,), "add", True)
        step(cast_or_copy_plan(logits, rows), "logits third")
        step(_softmax(rows, "log"), "third probabilities")
        step(copy_plan(_blank(rows), column), "probabilities fourth")
        step(reduction(total, context), "fourth loss", -1.0)
        step(_softmax(rows, "accurate"), "third probabilities")
    else:
        alignments = TensorSpec.packed((1,), loss.dtype)
        temporaries += [alignments]
        length = rows.shape[0]
        step(fill_plan(alignments, log(length * (length + 1) // 2)), "third")
        step(_sum(loss, alignments, loss), "loss third loss")
        step(cast_or_copy_plan(logits, rows), "logits probabilities")
    step(fill_plan(less, 0.0), "less")
    step(fill_plan(_blank(less), -1.0), "less")
    step(_sum(rows, less, gradient), "probabilities less gradient")
    return ChainPlan(temporaries, steps)


def _blank(spec: TensorSpec) -> TensorSpec:
    """Return the spec of the blank's column."""
    return TensorSpec(spec.shape[:2], spec.strides[:2], spec.dtype)


def _softmax(rows: TensorSpec, algo: str) -> Plan:
    params = SoftmaxParams(range(2, 3), algo)
    return softmax_plan(LayerProblem(rows, rows, None, None, "softmax", params))


def _sum(a: TensorSpec, b: TensorSpec, c: TensorSpec) -> Plan:
    return op_tensor(OpTensorProblem(a, b, c, "add", True))


class _LossPlan:
    """The parts that both C functions for CTC losses share."""

    __slots__ = ("_algo", "_loss", "_tensor", "workspace")

    def __init__(self, problem: CTCProblem, logits: TensorSpec) -> None:
        self._algo = CTCLossAlgo[problem.algo.upper()]
        self._loss = CTCLossDescriptor.cached(problem.ctc)
        self._tensor = TensorDescriptor.cached(logits)
        self.workspace = 0


class DevicePlan(_LossPlan):
    """One ``cudnnCTCLoss_v8``."""

    __slots__ = ()

    def __init__(self, problem: CTCProblem, logits: TensorSpec, context: Context) -> None:
        super().__init__(problem, logits)
        size = ctypes.c_size_t()
        context.library.cudnnGetCTCLossWorkspaceSize_v8(
            context.handle, self._algo, self._loss, self._tensor, self._tensor, ctypes.byref(size)
        )
        self.workspace = size.value

    # The call has no factors.
    def run(self, context: Context, pointers: Sequence[Any], alpha: float, beta: float) -> None:  # noqa: ARG002
        """Enqueue the call."""
        logits, loss, gradient, *labels = pointers
        memory = self.workspace, context.workspace(self.workspace)
        context.library.cudnnCTCLoss_v8(
            *(context.handle, self._algo, self._loss, self._tensor, logits),
            *(*labels, loss, self._tensor, gradient, *memory),
        )

    def describe(self) -> str:
        """Return a description of the plan."""
        return f"chosen: cudnnCTCLoss_v8, {self._algo.name.lower()}"


class HostPlan(_LossPlan):
    """One ``cudnnCTCLoss``, whose workspace depends on the labels and is allocated in each run."""

    __slots__ = ()

    def run(self, context: Context, pointers: Sequence[Any], alpha: float, beta: float) -> None:  # noqa: ARG002
        """Query the size of the workspace, and enqueue the call."""
        logits, loss, gradient = pointers
        if context.capturing:
            raise NotSupportedError("cudnnCTCLoss reads labels from host memory, which no CUDA graph can")
        size, library, labels = ctypes.c_size_t(), context.library, context.state.host
        tensors = self._tensor, self._tensor
        library.cudnnGetCTCLossWorkspaceSize(
            context.handle, *tensors, *labels, self._algo, self._loss, ctypes.byref(size)
        )
        # Freed on the stream as soon as the call is enqueued, hence after it.
        scratch = allocator.allocate(size.value, context.stream, "a workspace") if size.value else None
        address = None if scratch is None else int(scratch.handle)
        library.cudnnCTCLoss(
            *(context.handle, self._tensor, logits, *labels, loss, self._tensor, gradient),
            *(self._algo, self._loss, address, size.value),
        )

    def describe(self) -> str:
        """Return a description of the plan."""
        return f"chosen: cudnnCTCLoss, {self._algo.name.lower()}, labels on the host"
