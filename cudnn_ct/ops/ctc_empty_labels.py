"""CTC losses of sequences without labels, for which cuDNN 9.19 writes zero.

The only alignment has a blank at each step. So the loss is minus the sum of the logarithms of the blank's
probabilities, and the gradient is the probabilities, less one for the blank.
"""

from __future__ import annotations

from math import log

from ..context import Context
from ..dtypes import DTYPES
from ..plans.base import Plan
from ..plans.chain import ChainPlan, Step
from ..plans.elementwise import cast_or_copy_plan, copy_plan, fill_plan, op_tensor
from ..plans.tiling import SlicedPlan
from ..shapes.elementwise import FillProblem, OpTensorProblem
from ..shapes.reduction import ReduceProblem
from ..shapes.softmax import SoftmaxProblem
from ..shapes.specs import TensorSpec
from .reduce.legacy import reduction
from .softmax import softmax_plan

__all__ = ["blank_as_label", "unlabelled"]

_LOGITS, _LOSS, _GRADIENT, _PROBABILITIES, _LESS, _ROWS, _COLUMN = range(7)
_WAYS = _ROWS


def blank_as_label(logits: TensorSpec, copy: TensorSpec) -> Plan:
    """Copy the probabilities of the blank to the first label."""
    return SlicedPlan([(cast_or_copy_plan(_blank(logits), _blank(copy)), (0, DTYPES[copy.dtype].itemsize))])


def unlabelled(normalization: str, context: Context, logits: TensorSpec, *results: TensorSpec) -> Plan:
    """Return a plan of loss and gradient of sequences without labels; all steps of the logits count.

    cuDNN has no logarithm but that of softmax. Without softmax, cuDNN computed the loss of one label that is
    as probable as the blank: each of its T (T + 1) / 2 alignments is as probable as all blanks.
    """
    loss, gradient = results
    rows = TensorSpec.packed(logits.shape, gradient.dtype)
    less = TensorSpec.packed((1, 1, rows.shape[2]), rows.dtype)
    temporaries = [rows, less]
    if normalization == "softmax":
        column = TensorSpec.packed(rows.shape[:2], rows.dtype)
        temporaries += [rows, column]
        total = ReduceProblem(column, loss, None, (0,), "add", True)
        steps = [
            Step(cast_or_copy_plan(logits, rows), (_LOGITS, _ROWS)),
            Step(_softmax(rows, "log"), (_ROWS, _PROBABILITIES)),
            Step(copy_plan(_blank(rows), column), (_PROBABILITIES, _COLUMN)),
            Step(reduction(total, context), (_COLUMN, _LOSS), -1.0),
            Step(_softmax(rows, "accurate"), (_ROWS, _PROBABILITIES)),
        ]
    else:
        ways = TensorSpec.packed((1,), loss.dtype)
        temporaries += [ways]
        length = rows.shape[0]
        steps = [
            Step(fill_plan(FillProblem(ways)), (_WAYS,), log(length * (length + 1) // 2)),
            Step(_sum(loss, ways, loss), (_LOSS, _WAYS, _LOSS)),
            Step(cast_or_copy_plan(logits, rows), (_LOGITS, _PROBABILITIES)),
        ]
    steps += [
        Step(fill_plan(FillProblem(less)), (_LESS,), 0.0),
        Step(fill_plan(FillProblem(_blank(less))), (_LESS,), -1.0),
        Step(_sum(rows, less, gradient), (_PROBABILITIES, _LESS, _GRADIENT)),
    ]
    return ChainPlan(temporaries, steps)


def _blank(spec: TensorSpec) -> TensorSpec:
    """Return the spec of the blank's column."""
    return TensorSpec(spec.shape[:2], spec.strides[:2], spec.dtype)


def _softmax(rows: TensorSpec, algo: str) -> Plan:
    return softmax_plan(SoftmaxProblem(rows, rows, None, None, range(2, 3), algo))


def _sum(a: TensorSpec, b: TensorSpec, c: TensorSpec) -> Plan:
    return op_tensor(OpTensorProblem(a, b, c, "add", True))
