"""Softmax and its gradient by the legacy calls."""

from __future__ import annotations

from .._bindings.enums import SoftmaxAlgorithm, SoftmaxMode
from ..errors import NotSupportedError
from ..problem import LAYOUTS, SoftmaxProblem, TensorSpec, tensors_of
from .calls import CallPlan
from .fold import folded

__all__ = ["softmax"]

LONG = 3072  # elements of a row in float32, beyond which the mode that sums whole images is quicker


def softmax(problem: SoftmaxProblem) -> CallPlan:
    """``cudnnSoftmaxForward``, or ``cudnnSoftmaxBackward``."""
    first, *others = _folded(problem)
    # Of rows, both modes have the same sums. The gradient in the one for channels sums a row in one thread.
    gradient, rows = problem.dx is not None, first.shape[2:] == (1, 1)
    quicker = gradient or (first.shape[1] > LONG and first.dtype == "float32")
    mode = SoftmaxMode.INSTANCE if rows and quicker else SoftmaxMode.CHANNEL
    head = (SoftmaxAlgorithm[problem.algo.upper()], mode)
    if not gradient:
        return CallPlan("cudnnSoftmaxForward", head, [(0, first)], others[0])
    dy, dx = others
    return CallPlan("cudnnSoftmaxBackward", head, [(0, first), (1, dy)], dx)


def _folded(problem: SoftmaxProblem) -> list[TensorSpec]:
    """The tensors with what is summed over as channels."""
    tensors = list(tensors_of(problem).values())
    rank, axes = len(tensors[0].shape), problem.axes
    made = folded(tensors, [range(axes.start), axes, range(axes.stop, rank)])
    if not any(all(layout in spec.layouts for spec in made) for layout in LAYOUTS):
        # cuDNN 9.19 takes these, and writes where they are not.
        raise NotSupportedError("not all operands lie in one order without gaps")
    return made
