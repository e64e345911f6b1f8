"""CTC losses by the legacy calls, which compute in float32 or float64 on contiguous logits.

What cuDNN leaves unwritten is zeroed before; sequences that it is not asked for, or wrong about, are set
afterwards. The gradient of probabilities that are taken as they are is made of what cuDNN writes.

The pointers of a run are logits, labels, their lengths and the steps of each sequence on the device, loss and
gradient. The same labels and lengths as C arrays on the host are in the :class:`CTCState` of the call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any, NamedTuple

from .._bindings.enums import CTCLossAlgo
from ..context import Context
from ..cuda import allocator
from ..descriptors import CTCLossDescriptor, TensorDescriptor
from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..plans.base import Plan
from ..plans.chain import ChainPlan, Step
from ..plans.elementwise import cast_or_copy_plan, fill_plan, op_tensor, scale_plan
from ..plans.tiling import SlicedPlan
from ..shapes.ctc import CTCProblem
from ..shapes.elementwise import OpTensorProblem
from ..shapes.layer import LayerProblem
from ..shapes.specs import ActivationSpec, TensorSpec
from ._state import CallState
from .activation import legacy_plan as activation_plan
from .ctc_empty_labels import blank_as_label, unlabelled

__all__ = ["CTCState", "ctc_loss", "ctc_loss_of_host_labels"]

_LOGITS, *_LABELS, _LOSS, _GRADIENT = range(6)
_POINTERS = 6

NO_STEP = -1  # no step of a chain is scaled


class CTCState(CallState):
    """Labels, their lengths and the steps of each sequence as C arrays, for a plan that reads them so.

    They are None if they are on the device and cannot be read.
    """

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
    """A call, what has to be copied for it, and what it leaves to us."""
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
    """The place of each tensor among the pointers of a run and the temporaries behind these.

    Logits and gradient are ``wide`` there: contiguous, and in the dtype that is computed in. So are the
    ``losses``.
    """

    logits: int
    loss: int
    gradient: int
    wide: TensorSpec
    losses: TensorSpec
    temporaries: list[TensorSpec]


def _placed(problem: CTCProblem) -> _Places:
    """Use a tensor itself if cuDNN takes it and nothing else is to be written to it, else a temporary."""
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
    """Sequences whose first label gets the probabilities of the blank, by their steps."""
    return _by_steps(problem.unlabelled) if problem.ctc.normalization == "none" else {}


def _before(problem: CTCProblem, places: _Places) -> list[Step]:
    """Zeros where cuDNN writes no gradient, and the logits as it takes them."""
    steps = [Step(fill_plan(places.wide, 0.0), (places.gradient,))]
    if places.logits != _LOGITS:
        steps.append(Step(cast_or_copy_plan(problem.logits, places.wide), (_LOGITS, places.logits)))
    for end, sequences in _doubled(problem).items():
        specs = _until(end, problem.logits), _until(end, places.wide)
        steps.append(Step(_of_sequences(sequences, blank_as_label, *specs), (_LOGITS, places.logits)))
    return steps


def _repaired(problem: CTCProblem, places: _Places) -> list[Step]:
    """Gradients by activations, and zeros where others stood in for sequences that cuDNN does not see."""
    wide, gradient = places.wide, (places.gradient,)
    steps: list[Step] = []
    if problem.ctc.normalization == "none":
        steps += _by_activations(wide, places.logits, places.gradient)
        for end, sequences in _by_steps(problem.ends).items():
            steps.append(Step(_of_sequences(sequences, partial(_zero_from, end), wide), gradient))
    known = problem.empty if problem.kept else (*problem.impossible, *problem.empty)
    if known:
        steps.append(Step(_of_sequences(known, _zero, wide), gradient))
    return steps


def _without_cudnn(problem: CTCProblem, places: _Places, context: Context) -> list[Step]:
    """Both results of sequences without labels, and the losses of those that cuDNN does not see."""
    wide, losses = places.wide, places.losses
    make_one = partial(unlabelled, problem.ctc.normalization, context)
    steps: list[Step] = []
    for end, sequences in _by_steps(problem.unlabelled).items():
        specs = _until(end, problem.logits), losses, _until(end, wide)
        plan = _of_sequences(sequences, make_one, *specs)
        steps.append(Step(plan, (_LOGITS, places.loss, places.gradient)))
    for value, known in ((inf, problem.impossible), (0.0, problem.empty)):
        if known:
            fill = partial(fill_plan, value=value)
            steps.append(Step(_of_sequences(known, fill, losses), (places.loss,)))
    return steps


def _handed_over(problem: CTCProblem, places: _Places) -> list[Step]:
    """Copies of temporaries into the results, except for gradients that are kept."""
    steps: list[Step] = []
    if places.loss != _LOSS:
        steps.append(Step(cast_or_copy_plan(places.losses, problem.loss), (places.loss, _LOSS)))
    written = [n for n in range(places.wide.shape[1]) if n not in set(problem.kept)]
    if places.gradient != _GRADIENT and places.wide.size and written:
        plan = _of_sequences(written, cast_or_copy_plan, places.wide, problem.gradient)
        steps.append(Step(plan, (places.gradient, _GRADIENT)))
    return steps


def _by_activations(spec: TensorSpec, probabilities: int, gradient: int) -> list[Step]:
    """Steps from cuDNN's gradient by probabilities p to the gradient by activations.

    For the probability q of an alignment to name a symbol at a step, cuDNN 9.19 writes -q / p where q is more
    than zero, and p where it is none. Wanted is p - q, the sum of p and p times the lesser of that and zero.
    What is past the end of a sequence is whatever p makes of it.
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
    """Fill all steps but the first."""
    offset = end * x.strides[0] * DTYPES[x.dtype].itemsize
    return SlicedPlan([(_zero(x._replace(shape=(x.shape[0] - end, *x.shape[1:]))), (offset,))])


def _until(end: int, spec: TensorSpec) -> TensorSpec:
    """The first steps."""
    return spec._replace(shape=(end, *spec.shape[1:]))


def _by_steps(pairs: Sequence[tuple[int, int]]) -> dict[int, list[int]]:
    """Sequences by how many steps they have, from pairs of both."""
    found: dict[int, list[int]] = {}
    for sequence, end in pairs:
        found.setdefault(end, []).append(sequence)
    return found


def _of_sequences(sequences: Sequence[int], make: Callable[..., Plan], *specs: TensorSpec) -> Plan:
    """A plan for some sequences of a batch, from one that ``make`` gives for neighbours."""
    pieces = []
    for first, count in _runs(sorted(sequences)):
        parts, offsets = [], []
        for spec in specs:
            axis = min(1, len(spec.shape) - 1)  # the batch comes after the steps, where there are any
            parts.append(spec._replace(shape=(*spec.shape[:axis], count, *spec.shape[axis + 1 :])))
            offsets.append(first * spec.strides[axis] * DTYPES[spec.dtype].itemsize)
        pieces.append((make(*parts), tuple(offsets)))
    return pieces[0][0] if len(pieces) == 1 and not any(pieces[0][1]) else SlicedPlan(pieces)


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers in order as (first, how many) of those that follow each other."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and sum(runs[-1]) == number:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs


class DevicePlan:
    """One ``cudnnCTCLoss_v8``."""

    __slots__ = ("_algo", "_loss", "_tensor", "workspace")

    def __init__(self, problem: CTCProblem, logits: TensorSpec, context: Context) -> None:
        self._algo = CTCLossAlgo[problem.algo.upper()]
        self._loss = CTCLossDescriptor.cached(problem.ctc)
        self._tensor = TensorDescriptor.cached(logits)
        size = ctypes.c_size_t()
        context.library.cudnnGetCTCLossWorkspaceSize_v8(
            context.handle, self._algo, self._loss, self._tensor, self._tensor, ctypes.byref(size)
        )
        self.workspace = size.value

    # The call has no factors.
    def run(self, context: Context, pointers: Sequence[Any], alpha: float, beta: float) -> None:  # noqa: ARG002
        """Enqueue the call."""
        logits, loss, gradient, labels, counts, steps = pointers
        context.library.cudnnCTCLoss_v8(
            context.handle,
            self._algo,
            self._loss,
            self._tensor,
            logits,
            labels,
            counts,
            steps,
            loss,
            self._tensor,
            gradient,
            self.workspace,
            context.workspace(self.workspace),
        )

    def describe(self) -> str:
        """Tell what was chosen."""
        return f"chosen: cudnnCTCLoss_v8, {self._algo.name.lower()}"


class HostPlan:
    """One ``cudnnCTCLoss``. How much scratch memory it needs depends on the labels, so it takes its own."""

    __slots__ = ("_algo", "_loss", "_tensor", "workspace")

    def __init__(self, problem: CTCProblem, logits: TensorSpec) -> None:
        self._algo = CTCLossAlgo[problem.algo.upper()]
        self._loss = CTCLossDescriptor.cached(problem.ctc)
        self._tensor = TensorDescriptor.cached(logits)
        self.workspace = 0

    def run(self, context: Context, pointers: Sequence[Any], alpha: float, beta: float) -> None:  # noqa: ARG002
        """Ask for the size of the scratch memory, and enqueue the call."""
        logits, loss, gradient = pointers
        labels, counts, steps = context.state.host
        if context.capturing:
            raise NotSupportedError("cudnnCTCLoss reads labels from host memory, which no CUDA graph can")
        size, library = ctypes.c_size_t(), context.library
        library.cudnnGetCTCLossWorkspaceSize(
            context.handle,
            self._tensor,
            self._tensor,
            labels,
            counts,
            steps,
            self._algo,
            self._loss,
            ctypes.byref(size),
        )
        # Freed on the stream as soon as the call is enqueued, hence after it.
        scratch = allocator.allocate(size.value, context.stream, "a workspace") if size.value else None
        library.cudnnCTCLoss(
            context.handle,
            self._tensor,
            logits,
            labels,
            counts,
            steps,
            loss,
            self._tensor,
            gradient,
            self._algo,
            self._loss,
            None if scratch is None else int(scratch.handle),
            size.value,
        )

    def describe(self) -> str:
        """Tell what was chosen."""
        return f"chosen: cudnnCTCLoss, {self._algo.name.lower()}, labels on the host"
