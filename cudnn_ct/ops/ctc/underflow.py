"""CTC losses of activations whose softmax has probabilities that round to 0 or to 1.

cuDNN takes the logarithm of each probability after the softmax, so a probability that underflows is
impossible for it. Here it gets logarithms of the softmax, and those below a limit are raised to it. A raise
by c multiplies the probability by exp(c), and that of an alignment by exp(C) for the sum C of its raises.
cuDNN's loss is too small by -log(E[exp(-C)]) then, an expectation over the alignments as they are raised:

- If almost no alignment has a raised symbol, as for all usual activations, both results are right.
- If a sequence has a single alignment, the difference is its C.
- Otherwise the differences between alignments are lost, and the results of the sequence are NaN.

If all alignments of a sequence have one symbol at a step, with a probability that rounds to 1, cuDNN 9.19
writes p as the gradient of the step instead of p - q. The gradient of the logarithm of a softmax,
dy - p sum(dy), corrects that: it is p - q for p - q, whose sum is 0, and p - p = 0 for p.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from ...context import Context
from ...plans.base import Plan
from ...plans.elementwise import fill_plan, op_tensor_of
from ...plans.program import NO_STEP, Step, chained
from ...shapes.ctc import CTCProblem
from ...shapes.layer import LayerProblem
from ...shapes.layers import SoftmaxParams
from ...shapes.reduction import ReduceProblem
from ...shapes.specs import TensorSpec
from .._sequences import plan_for_sequences
from ..reduce.legacy import reduction
from ..softmax import softmax_of_rows, softmax_plan


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
    return [Step(reduction(total, context), (source, target), factor)]


def softmax_of_symbols(rows: TensorSpec, algo: str) -> Plan:
    """Return a plan of the softmax over the symbols, or of its logarithm."""
    params = SoftmaxParams(range(2, 3), algo)
    return softmax_plan(LayerProblem(rows, rows, None, None, "softmax", params))


def _sum_over_steps(rows: TensorSpec, losses: TensorSpec, context: Context) -> Plan:
    return reduction(ReduceProblem(_column(rows), losses, None, (0,), "add", True), context)


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
