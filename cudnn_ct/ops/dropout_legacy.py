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
from ..plans.base import Plan, tensors_of
from ..plans.chain import ChainPlan, Step
from ..plans.elementwise import cast_or_copy_plan
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


def dropout_plan(problem: DropoutProblem) -> Plan:
    """``cudnnDropoutForward``; cuDNN changes the states through the descriptor."""
    x, y, *small = tensors_of(problem).values()
    return _in_order(problem, "cudnnDropoutForward", (x, y, *small[:2]), (0, 1, 2))


def gradient_plan(problem: DropoutGradientProblem) -> Plan:
    """``cudnnDropoutBackward``."""
    dy, mask, dx, _ = tensors_of(problem).values()
    return _in_order(problem, "cudnnDropoutBackward", (dy, mask, dx), (0, 2, 1))


def _in_order(
    problem: DropoutProblem | DropoutGradientProblem,
    function: str,
    tensors: tuple[TensorSpec, ...],
    places: tuple[int, int, int],
) -> Plan:
    """Return a plan that computes in the memory order of the mask, on copies of other operands.

    ``tensors`` are those of a run's pointers, and ``places`` those of the input, the result and the mask.
    """
    source, target, mask = places
    if not problem.order.size:
        return ZeroOrScale(tensors[target])
    # cuDNN's dropout lacks bfloat16.
    order = problem.order._replace(dtype="float32") if problem.order.dtype == "bfloat16" else problem.order
    moved = [at for at in (source, target) if not _alike(tensors[at], order)]
    copies = {at: len(tensors) + n for n, at in enumerate(moved)}
    plan = _DropoutPlan(problem, function, order, (*(copies.get(at, at) for at in (source, target)), mask))
    if not moved:
        return plan
    steps = [Step(plan, tuple(range(len(tensors) + len(moved))))]
    if source in copies:
        steps.insert(0, Step(cast_or_copy_plan(tensors[source], order), (source, copies[source])))
    if target in copies:
        steps.append(Step(cast_or_copy_plan(order, tensors[target]), (copies[target], target)))
    return ChainPlan([order] * len(moved), steps)


def _alike(spec: TensorSpec, order: TensorSpec) -> bool:
    """Return whether dtype and order in memory are equal; axes of length 1 do not count."""
    return spec.dtype == order.dtype and bool(set(spec.layouts) & set(order.layouts))


def _as_one_axis(spec: TensorSpec) -> TensorDescriptor:
    return TensorDescriptor.cached(*collapse([spec], [range(len(spec.shape))]))


class _DropoutPlan:
    __slots__ = ("_descriptor", "_function", "_nbytes", "_places", "_tensor", "workspace")

    def __init__(
        self,
        problem: DropoutProblem | DropoutGradientProblem,
        function: str,
        order: TensorSpec,
        places: tuple[int, ...],
    ) -> None:
        self._function = function
        self._descriptor = problem.descriptor
        self._tensor = _as_one_axis(order)
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
