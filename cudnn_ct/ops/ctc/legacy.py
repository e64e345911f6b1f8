"""CTC losses by the legacy calls, in float32 or float64, and repairs of the results that they get wrong."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from math import inf, log
from typing import Any, NamedTuple

from ..._bindings.enums import CTCLossAlgo
from ...context import Context
from ...cuda import allocator
from ...descriptors import CTCLossDescriptor, TensorDescriptor
from ...dtypes import DTYPES
from ...errors import NotSupportedError
from ...plans.axes import sliced
from ...plans.base import Plan
from ...plans.elementwise import copy_plan, fill_plan, op_tensor_of, scale_plan
from ...plans.program import NO_STEP, FunctionPlan, Step, chained
from ...shapes.ctc import CTCProblem
from ...shapes.layers import SoftmaxParams
from ...shapes.specs import ActivationSpec, LayerProblem, TensorSpec
from ...shapes.tensor import ReduceProblem
from .._implementations import plan_for_sequences
from ..activation import legacy_plan as activation_plan
from ..reduce.plans import legacy_reduction
from ..softmax import softmax_of_rows, softmax_plan

# Pointers of a run; then the temporaries of `_with_repairs`.
_LOGITS, *_LABELS, _LOSS, _GRADIENT, _COPY, _KEPT = range(8)


def without_steps(problem: CTCProblem, _: Context) -> Plan | None:
    """Return a plan for logits without elements, whose losses are known."""
    return None if problem.logits.size else chained((), _known_results(problem), NO_STEP)


def _with_repairs(
    make: Callable[[CTCProblem, Context], Plan], problem: CTCProblem, context: Context
) -> Plan | None:
    """Return a plan of a C call between the steps that correct its results."""
    tensors = problem.logits, problem.loss, problem.gradient
    if any(spec.dtype != problem.ctc.compute or "nchw" not in spec.layouts for spec in tensors):
        return None
    # The same memory, also if an axis of length 1 has another stride.
    logits, loss, gradient = (TensorSpec.packed(spec.shape, spec.dtype) for spec in tensors)
    problem = problem._replace(logits=logits, loss=loss, gradient=gradient)
    source = _COPY if _is_doubled(problem) else _LOGITS
    of_logits = of_activations if problem.ctc.normalization == "softmax" else of_probabilities
    steps = [
        *_copied_gradients(problem, _GRADIENT, _KEPT),
        Step(fill_plan(problem.gradient, 0.0), (_GRADIENT,)),  # cuDNN writes only a part of it
        *_blanks_as_labels(problem),
        Step(of_logits(problem, context, make(problem, context)), (source, *_LABELS, _LOSS, _GRADIENT)),
        *_without_labels(problem, context),
        *_known_results(problem),
        *_copied_gradients(problem, _KEPT, _GRADIENT),
    ]
    nothing = problem.logits._replace(shape=(0,), strides=(1,))
    copies = (
        problem.logits if _is_doubled(problem) else nothing,
        problem.gradient if problem.kept else nothing,
    )
    return chained(copies, steps, NO_STEP)


def _copied_gradients(problem: CTCProblem, source: int, target: int) -> list[Step]:
    """Copy the gradients that must not change."""
    if not problem.kept:
        return []
    return [Step(plan_for_sequences(problem.kept, copy_plan, *[problem.gradient] * 2), (source, target))]


def _is_doubled(problem: CTCProblem) -> bool:
    """Return whether the first label of some sequences gets the probabilities of the blank."""
    return problem.ctc.normalization == "none" and bool(problem.repairs.unlabelled)


def _blanks_as_labels(problem: CTCProblem) -> list[Step]:
    """Copy the logits, and in the copy the probabilities of the blank to the first label."""
    if not _is_doubled(problem):
        return []
    steps = [Step(copy_plan(problem.logits, problem.logits), (_LOGITS, _COPY))]
    for end, sequences in _by_steps(problem.repairs.unlabelled).items():
        spec = _until(end, problem.logits)
        steps.append(Step(plan_for_sequences(sequences, _blank_as_label, spec, spec), (_LOGITS, _COPY)))
    return steps


def of_probabilities(problem: CTCProblem, context: Context, loss_plan: Plan) -> Plan:
    """Return a plan of loss and gradient from the plan of a C call without softmax; it has its pointers."""
    # It converts cuDNN's gradient by probabilities p to the gradient by activations, p - q, where q is the
    # probability that an alignment has a symbol at a step. cuDNN 9.19 writes g = -q / p if q > 0, else g = p,
    # so -q is p min(g, 0). It writes p too if all alignments have one symbol at a step with probability 1.
    # The sum of q over the symbols, otherwise 1, is 0 then, so the gradient is p times this sum, less q.
    # Values past the end of a sequence are undefined, and zeroed.
    logits, *labels, loss, gradient, product, column = range(8)
    spec = problem.gradient
    relu = activation_plan(LayerProblem(spec, spec, None, None, "relu", ActivationSpec("relu")))
    sums = TensorSpec.packed(spec.shape[:2], spec.dtype)
    each = sums._replace(shape=(*sums.shape, 1), strides=(*sums.strides, 1))
    steps = [
        Step(loss_plan, (logits, *labels, loss, gradient)),
        Step(scale_plan(spec), (gradient,), -1.0),
        Step(relu, (gradient, gradient), -1.0),
        Step(op_tensor_of("mul", spec, spec, spec), (gradient, logits, gradient)),  # -q
        *sum_over_symbols(spec, context, gradient, column),
        Step(op_tensor_of("mul", spec, each, spec), (logits, column, product)),
        Step(op_tensor_of("add", spec, spec, spec, alpha2=-1.0), (gradient, product, gradient)),
    ]
    for end, sequences in _by_steps(problem.repairs.ends).items():
        steps.append(Step(plan_for_sequences(sequences, partial(_zero_from, end), spec), (gradient,)))
    return chained([spec, sums], steps, NO_STEP)


def _without_labels(problem: CTCProblem, context: Context) -> list[Step]:
    """Set both results of sequences that have steps and no labels."""
    make_one = partial(_unlabelled, problem.ctc.normalization, context)
    steps = []
    for end, sequences in _by_steps(problem.repairs.unlabelled).items():
        specs = _until(end, problem.logits), problem.loss, _until(end, problem.gradient)
        steps.append(Step(plan_for_sequences(sequences, make_one, *specs), (_LOGITS, _LOSS, _GRADIENT)))
    return steps


def _known_results(problem: CTCProblem) -> list[Step]:
    """Set both results of impossible sequences, and of those without steps and labels."""
    steps = []
    for value, sequences in ((inf, problem.repairs.impossible), (0.0, problem.repairs.empty)):
        if sequences:
            losses = plan_for_sequences(sequences, partial(fill_plan, value=value), problem.loss)
            steps.append(Step(losses, (_LOSS,)))
            if problem.gradient.size:
                steps.append(Step(plan_for_sequences(sequences, zero_plan, problem.gradient), (_GRADIENT,)))
    return steps


def _zero_from(end: int, x: TensorSpec) -> Plan:
    offset = end * x.strides[0] * DTYPES[x.dtype].itemsize
    return sliced([(zero_plan(x._replace(shape=(x.shape[0] - end, *x.shape[1:]))), (offset,))])


def _until(end: int, spec: TensorSpec) -> TensorSpec:
    return spec._replace(shape=(end, *spec.shape[1:]))


def _by_steps(pairs: Sequence[tuple[int, int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for sequence, end in pairs:
        found.setdefault(end, []).append(sequence)
    return found


def _blank_as_label(logits: TensorSpec, copy: TensorSpec) -> Plan:
    return sliced([(copy_plan(_blank(logits), _blank(copy)), (0, DTYPES[copy.dtype].itemsize))])


def _unlabelled(
    normalization: str, context: Context, logits: TensorSpec, loss: TensorSpec, gradient: TensorSpec
) -> Plan:
    """Return a plan of loss and gradient of sequences without labels, for which cuDNN 9.19 writes zero."""
    # The only alignment has a blank at each step. So the loss is minus the sum of the logarithms of the
    # blank's probabilities, and the gradient is the probabilities, less one for the blank.
    # cuDNN has no logarithm but that of softmax. Without softmax, cuDNN computed the loss of one label that
    # is as probable as the blank: each of its T (T + 1) / 2 alignments is as probable as all blanks.
    of_logits, of_loss, of_gradient, probabilities, less, third, fourth = range(7)
    rows = TensorSpec.packed(logits.shape, logits.dtype)
    one = TensorSpec.packed((1, 1, rows.shape[2]), rows.dtype)
    if normalization == "softmax":
        column = TensorSpec.packed(rows.shape[:2], rows.dtype)
        total = ReduceProblem(column, loss, None, (0,), "add", True)
        temporaries = [rows, one, rows, column]
        steps = [
            Step(copy_plan(logits, rows), (of_logits, third)),
            Step(softmax_of_symbols(rows, "log"), (third, probabilities)),
            Step(copy_plan(_blank(rows), column), (probabilities, fourth)),
            Step(legacy_reduction(total, context), (fourth, of_loss), -1.0),
            Step(softmax_of_symbols(rows, "accurate"), (third, probabilities)),
        ]
    else:
        alignments = TensorSpec.packed((1,), loss.dtype)
        length = rows.shape[0]
        temporaries = [rows, one, alignments]
        steps = [
            Step(fill_plan(alignments, log(length * (length + 1) // 2)), (third,)),
            Step(op_tensor_of("add", loss, alignments, loss), (of_loss, third, of_loss)),
            Step(copy_plan(logits, rows), (of_logits, probabilities)),
        ]
    steps += [
        Step(fill_plan(one, 0.0), (less,)),
        Step(fill_plan(_blank(one), -1.0), (less,)),
        Step(op_tensor_of("add", rows, one, gradient), (probabilities, less, of_gradient)),
    ]
    return chained(temporaries, steps)


def _blank(spec: TensorSpec) -> TensorSpec:
    """Return the spec of the blank's column."""
    return TensorSpec(spec.shape[:2], spec.strides[:2], spec.dtype)


def _loss_arguments(problem: CTCProblem) -> tuple[CTCLossAlgo, CTCLossDescriptor, TensorDescriptor]:
    loss, tensor = CTCLossDescriptor.cached(problem.ctc), TensorDescriptor.cached(problem.logits)
    return CTCLossAlgo[problem.algo.upper()], loss, tensor


def _device_plan(problem: CTCProblem, context: Context) -> FunctionPlan:
    """Return one ``cudnnCTCLoss_v8``: labels and lengths are read on the device, so it can be captured."""
    algo, loss, tensor = _loss_arguments(problem)
    size = ctypes.c_size_t()
    context.library.cudnnGetCTCLossWorkspaceSize_v8(
        context.handle, algo, loss, tensor, tensor, ctypes.byref(size)
    )
    nbytes = size.value

    # The call has no factors.
    def run(context: Context, pointers: Sequence[Any], *_: float) -> None:
        logits, *labels, of_loss, gradient = pointers
        memory = nbytes, context.workspace(nbytes)
        context.library.cudnnCTCLoss_v8(
            *(context.handle, algo, loss, tensor, logits), *(*labels, of_loss, tensor, gradient, *memory)
        )

    return FunctionPlan(f"cudnnCTCLoss_v8, {algo.name.lower()}", run, nbytes)


def _host_plan(problem: CTCProblem, _: Context) -> FunctionPlan:
    """Return one ``cudnnCTCLoss``, whose workspace depends on the labels and is allocated in each run."""
    algo, loss, tensor = _loss_arguments(problem)

    def run(context: Context, pointers: Sequence[Any], *_: float) -> None:
        logits, *_labels, of_loss, gradient = pointers
        if context.capturing:
            raise NotSupportedError("cudnnCTCLoss reads labels from host memory, which no CUDA graph can")
        size, library, labels = ctypes.c_size_t(), context.library, context.state.value
        library.cudnnGetCTCLossWorkspaceSize(
            context.handle, tensor, tensor, *labels, algo, loss, ctypes.byref(size)
        )
        # Freed on the stream as soon as the call is enqueued, hence after it.
        scratch = allocator.allocate(size.value, context.stream, "a workspace") if size.value else None
        address = None if scratch is None else int(scratch.handle)
        library.cudnnCTCLoss(
            *(context.handle, tensor, logits, *labels, of_loss, tensor, gradient),
            *(algo, loss, address, size.value),
        )

    return FunctionPlan(f"cudnnCTCLoss, {algo.name.lower()}, labels on the host", run)


PLANS = partial(_with_repairs, _device_plan), partial(_with_repairs, _host_plan)


# --- softmax whose probabilities round to 0 or to 1 --------------------------------------------------------

# CTC losses of activations whose softmax has probabilities that round to 0 or to 1.
#
# cuDNN takes the logarithm of each probability after the softmax, so a probability that underflows is
# impossible for it. Here it gets logarithms of the softmax, and those below a limit are raised to it. A raise
# by c multiplies the probability by exp(c), and that of an alignment by exp(C) for the sum C of its raises.
# cuDNN's loss is too small by -log(E[exp(-C)]) then, an expectation over the alignments as they are raised:
#
# - If almost no alignment has a raised symbol, as for all usual activations, both results are right.
# - If a sequence has a single alignment, the difference is its C.
# - Otherwise the differences between alignments are lost, and the results of the sequence are NaN.
#
# If all alignments of a sequence have one symbol at a step, with a probability that rounds to 1, cuDNN 9.19
# writes p as the gradient of the step instead of p - q. The gradient of the logarithm of a softmax,
# dy - p sum(dy), corrects that: it is p - q for p - q, whose sum is 0, and p - p = 0 for p.


class _Limits(NamedTuple):
    """The least logarithm of a probability that cuDNN gets, and the error that is accepted for it."""

    least: float  # keeps some digits in subnormal numbers: exp(-95) is 3,945 times the smallest float32
    tolerance: float
    largest: float  # times 2, it overflows


_LIMITS = {"float32": _Limits(-95.0, 1e-5, 2e38), "float64": _Limits(-700.0, 1e-11, 1e308)}


def of_activations(problem: CTCProblem, context: Context, loss_plan: Plan) -> Plan:
    """Return a plan of loss and gradient from the plan of a C call with softmax.

    Its pointers are those of the C call. Logits past the end of a sequence may be NaN or infinite: the C call
    does not read them, and its gradient, which is 0 there, is only multiplied by finite numbers.
    """
    logits, *labels, loss, gradient, logs, limited, one, column, raised = range(11)
    rows, limits = problem.logits, _LIMITS[problem.ctc.compute]
    one_spec = TensorSpec.packed((1,) * 3, rows.dtype)
    repairs, losses = problem.repairs, TensorSpec.packed(problem.loss.shape, rows.dtype)
    each = losses._replace(shape=(1, *losses.shape, 1), strides=(losses.shape[0], 1, 1))
    log = SoftmaxParams(range(2, 3), "log")  # its gradient is dy - exp(y) sum(dy)
    backward = LayerProblem(None, rows, problem.gradient, problem.gradient, "softmax", log)
    at_least = partial(op_tensor_of, "max", rows, one_spec, rows, alpha2=limits.least)
    steps = [
        Step(fill_plan(one_spec, 1.0), (one,)),
        Step(softmax_of_symbols(rows, "log"), (logits, logs)),
        Step(at_least(), (logs, one, limited)),
        Step(loss_plan, (limited, *labels, loss, gradient)),
        Step(at_least(propagate_nan=False), (logs, one, limited)),
        Step(op_tensor_of("add", rows, rows, rows, alpha1=-1.0), (logs, limited, logs)),  # raises
    ]
    if repairs.single:
        add = partial(_add_raises, context, limits.largest)
        parts = plan_for_sequences(repairs.single, add, rows, problem.gradient, problem.loss)
        steps.append(Step(parts, (logs, gradient, loss)))
    steps += [
        Step(op_tensor_of("min", rows, one_spec, rows, propagate_nan=False), (logs, one, logs)),
        Step(op_tensor_of("mul", rows, rows, rows), (logs, gradient, logs)),
        *sum_over_symbols(rows, context, logs, column, -1.0),
        Step(_sum_over_steps(rows, losses, context), (column, raised)),
    ]
    known = {*repairs.single, *repairs.impossible, *repairs.empty, *(n for n, _ in repairs.unlabelled)}
    if known:
        steps.append(Step(plan_for_sequences(tuple(sorted(known)), zero_plan, losses), (raised,)))
    steps += [
        *_nan_where_above(limits.tolerance, losses, raised, one),
        Step(softmax_of_rows(backward) or softmax_plan(backward), (limited, gradient, gradient)),
        Step(op_tensor_of("add", problem.loss, losses, problem.loss), (loss, raised, loss)),
        Step(op_tensor_of("add", problem.gradient, each, problem.gradient), (gradient, raised, gradient)),
    ]
    return chained([rows, rows, one_spec, _column(rows), losses], steps, NO_STEP)


def sum_over_symbols(
    rows: TensorSpec, context: Context, source: int, target: int, factor: float = 1.0
) -> list[Step]:
    """Return the steps that sum an array of logits over the symbols, of which there are two or more."""
    total = ReduceProblem(rows, _column(rows), None, (2,), "add", True)
    return [Step(legacy_reduction(total, context), (source, target), factor)]


def softmax_of_symbols(rows: TensorSpec, algo: str) -> Plan:
    """Return a plan of the softmax over the symbols, or of its logarithm."""
    params = SoftmaxParams(range(2, 3), algo)
    return softmax_plan(LayerProblem(rows, rows, None, None, "softmax", params))


def _sum_over_steps(rows: TensorSpec, losses: TensorSpec, context: Context) -> Plan:
    return legacy_reduction(ReduceProblem(_column(rows), losses, None, (0,), "add", True), context)


def _add_raises(
    context: Context, largest: float, raises: TensorSpec, gradient: TensorSpec, loss: TensorSpec
) -> Plan:
    """Return a plan that adds C to the losses of sequences with a single alignment.

    The gradient of a raised symbol is -1 where the alignment has it, and positive elsewhere. An infinite
    raise times 0 would be NaN, so it is the largest number, and overflows in the sum.
    """
    of_raises, of_gradient, of_loss, named, one, column, total = range(7)
    rows, one_spec = (TensorSpec.packed(shape, raises.dtype) for shape in (raises.shape, (1,) * 3))
    losses = TensorSpec.packed(loss.shape, loss.dtype)
    finite = op_tensor_of("min", raises, one_spec, raises, alpha2=largest, propagate_nan=False)
    steps = [
        Step(fill_plan(one_spec, 0.0), (one,)),
        Step(op_tensor_of("min", gradient, one_spec, rows), (of_gradient, one, named)),
        Step(fill_plan(one_spec, 1.0), (one,)),
        Step(finite, (of_raises, one, of_raises)),
        Step(op_tensor_of("mul", rows, raises, rows), (named, of_raises, named)),
        *sum_over_symbols(rows, context, named, column, -2.0),
        Step(_sum_over_steps(rows, losses, context), (column, total)),
        Step(op_tensor_of("add", loss, losses, loss, alpha2=0.5), (of_loss, total, of_loss)),
    ]
    return chained([rows, one_spec, _column(rows), losses], steps, NO_STEP)


def _nan_where_above(limit: float, losses: TensorSpec, numbers: int, one: int) -> list[Step]:
    """Return the steps that turn numbers into NaN if they are above a limit, and into 0 otherwise."""
    one_spec = TensorSpec.packed((1,), losses.dtype)
    below = op_tensor_of("add", losses, one_spec, losses, alpha1=-1.0, alpha2=limit)
    return [
        Step(below, (numbers, one, numbers)),
        Step(op_tensor_of("sqrt", losses, losses), (numbers, numbers)),
        Step(op_tensor_of("add", losses, losses, losses, alpha2=-1.0), (numbers, numbers, numbers)),
    ]


def _column(rows: TensorSpec) -> TensorSpec:
    """Return the spec of one number for each step and sequence."""
    return TensorSpec.packed(rows.shape[:2], rows.dtype)


zero_plan = partial(fill_plan, value=0.0)
