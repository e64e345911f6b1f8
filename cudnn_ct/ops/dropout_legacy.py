"""Dropout and its gradient by the legacy calls."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from .. import _lib
from .._bindings.types import cudnnDropoutDescriptor_t
from .._handle import NativeHandle
from ..context import Context
from ..descriptors import TensorDescriptor
from ..plans.axes import collapse
from ..plans.base import Plan
from ..plans.wrappers import ZeroOrScale
from ..shapes.dropout import DropoutGradientProblem, DropoutProblem
from ..shapes.specs import TensorSpec

__all__ = ["DropoutDescriptor", "dropout_plan", "gradient_plan", "mask_size", "states_size"]


class DropoutDescriptor(NativeHandle):
    """``cudnnDropoutDescriptor_t`` over the states of random generators, seeded on the context's stream."""

    __slots__ = ()

    def __init__(self, context: Context, probability: float, states: int, nbytes: int, seed: int) -> None:
        pointer, library = cudnnDropoutDescriptor_t(), context.library
        library.cudnnCreateDropoutDescriptor(ctypes.byref(pointer))
        super().__init__(pointer, library.cudnnDestroyDropoutDescriptor)
        try:
            library.cudnnSetDropoutDescriptor(self, context.handle, probability, states, nbytes, seed)
        except BaseException:
            self.close()
            raise


def states_size(context: Context) -> int:
    """Return the bytes of the states of a device's random generators."""
    size = ctypes.c_size_t()
    context.library.cudnnDropoutGetStatesSize(context.handle, ctypes.byref(size))
    return size.value


def mask_size(x: TensorSpec) -> int:
    """Return the bytes of the mask that a dropout of x leaves for its gradient."""
    size = ctypes.c_size_t()
    one = _as_one_axis(x._replace(dtype="float32") if x.dtype == "bfloat16" else x)
    _lib.load().cudnnDropoutGetReserveSpaceSize(one, ctypes.byref(size))
    return size.value


def dropout_plan(problem: DropoutProblem) -> Plan | None:
    """``cudnnDropoutForward``; cuDNN changes the states through the descriptor."""
    return _plan(problem, "cudnnDropoutForward", (problem.x, problem.y), (0, 1, 2))


def gradient_plan(problem: DropoutGradientProblem) -> Plan | None:
    """``cudnnDropoutBackward``."""
    return _plan(problem, "cudnnDropoutBackward", (problem.dy, problem.dx), (0, 2, 1))


def _plan(
    problem: DropoutProblem | DropoutGradientProblem,
    function: str,
    tensors: tuple[TensorSpec, TensorSpec],
    places: tuple[int, int, int],
) -> Plan | None:
    """Return a plan for an input and a result in the memory order of the mask.

    ``places`` are those of the input, the result and the mask among the pointers of a run.
    """
    source, result = tensors
    if not result.size:
        return ZeroOrScale(result)
    if any(problem.layout not in spec.layouts for spec in tensors):
        return None
    return _DropoutPlan(problem, function, source, places)


def _as_one_axis(spec: TensorSpec) -> TensorDescriptor:
    return TensorDescriptor.cached(*collapse([spec], [range(len(spec.shape))]))


class _DropoutPlan:
    __slots__ = ("_descriptor", "_function", "_nbytes", "_places", "_tensor", "workspace")

    def __init__(
        self,
        problem: DropoutProblem | DropoutGradientProblem,
        function: str,
        x: TensorSpec,
        places: tuple[int, int, int],
    ) -> None:
        self._function = function
        self._descriptor = problem.descriptor
        self._tensor = _as_one_axis(TensorSpec.packed(x.shape, x.dtype, problem.layout))
        self._nbytes = problem.mask.size
        self._places = places
        self.workspace = 0

    # The calls have no factors.
    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:  # noqa: ARG002
        x, y, mask = (pointers[place] for place in self._places)
        getattr(context.library, self._function)(
            context.handle, self._descriptor, self._tensor, x, self._tensor, y, mask, self._nbytes
        )

    def describe(self) -> str:
        return f"chosen: {self._function}"
