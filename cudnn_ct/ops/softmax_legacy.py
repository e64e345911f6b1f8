"""Softmax and its gradient by the legacy calls."""

from __future__ import annotations

from .._bindings.enums import SoftmaxAlgorithm, SoftmaxMode
from ..errors import NotSupportedError
from ..plans.axes import collapse
from ..plans.base import tensors_of
from ..plans.call import CallPlan
from ..shapes.softmax import SoftmaxProblem
from ..shapes.specs import LAYOUTS, TensorSpec

__all__ = ["softmax", "softmax_of_rows"]

LONG = 3072  # elements of a row in float32, beyond which the mode that sums whole images is quicker


def softmax(problem: SoftmaxProblem) -> CallPlan:
    """``cudnnSoftmaxForward``, or ``cudnnSoftmaxBackward``."""
    return _plan(problem, _folded(problem), SoftmaxMode.CHANNEL)


def softmax_of_rows(problem: SoftmaxProblem) -> CallPlan | None:
    """The same in the mode that sums whole images, which for rows has the same sums, where it is quicker.

    That is for gradients, which the other mode sums in one thread a row; and forward for long rows.
    """
    tensors = _folded(problem)
    first = tensors[0]
    quicker = problem.dx is not None or (first.shape[1] > LONG and first.dtype == "float32")
    if first.shape[2:] != (1, 1) or not quicker:
        return None
    return _plan(problem, tensors, SoftmaxMode.INSTANCE)


def _plan(problem: SoftmaxProblem, tensors: list[TensorSpec], mode: SoftmaxMode) -> CallPlan:
    first, *others = tensors
    head = (SoftmaxAlgorithm[problem.algo.upper()], mode)
    if problem.dx is None:
        return CallPlan("cudnnSoftmaxForward", head, [(0, first)], others[0])
    dy, dx = others
    return CallPlan("cudnnSoftmaxBackward", head, [(0, first), (1, dy)], dx)


def _folded(problem: SoftmaxProblem) -> list[TensorSpec]:
    """The tensors with what is summed over as channels."""
    tensors = list(tensors_of(problem).values())
    rank, axes = len(tensors[0].shape), problem.axes
    made = collapse(tensors, [range(axes.start), axes, range(axes.stop, rank)])
    if not any(all(layout in spec.layouts for spec in made) for layout in LAYOUTS):
        # cuDNN 9.19 takes these, and writes where they are not.
        raise NotSupportedError("not all operands lie in one order without gaps")
    return made
