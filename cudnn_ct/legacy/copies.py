"""Copies in device memory, between any two ways to lie in it."""

from __future__ import annotations

from collections.abc import Sequence

from .. import memory as memories
from ..context import Context
from ..problem.plan import Plan
from ..problem.specs import TensorSpec
from .calls import CallPlan
from .scratch import nbytes_of
from .slices import sliced

__all__ = ["copying", "duplicating"]


def copying(x: TensorSpec, y: TensorSpec) -> Plan:
    """``cudnnTransformTensor``, y = alpha x + beta y, between tensors of one shape and dtype."""
    return sliced(lambda a, b: CallPlan("cudnnTransformTensor", (), [(0, a)], b), x, y)


def duplicating(spec: TensorSpec) -> Plan:
    """Return a plan that copies a tensor to other memory with the same strides.

    The bytes of a dense tensor are copied by the driver, which takes every dtype and address.
    """
    scaled = copying(spec, spec)
    return _BytesPlan(nbytes_of(spec), scaled) if spec.dense else scaled


class _BytesPlan:
    """``cuMemcpyDtoDAsync``, or another plan in a run with factors."""

    __slots__ = ("_nbytes", "_scaled", "workspace")

    def __init__(self, nbytes: int, scaled: Plan) -> None:
        self._nbytes = nbytes
        self._scaled = scaled
        self.workspace = 0

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Enqueue the copy."""
        if alpha == 1 and beta == 0:
            source, target = pointers
            memories.copy_device(target, source, self._nbytes, context.stream)
        else:
            self._scaled.run(context, pointers, alpha, beta)

    def describe(self) -> str:
        """Return the name of the driver's function."""
        return "chosen: cuMemcpyDtoDAsync"
