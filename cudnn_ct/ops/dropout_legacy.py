"""Dropout and its gradient by the legacy calls."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from .._bindings.types import cudnnDropoutDescriptor_t
from .._handle import NativeHandle
from ..context import Context
from ..descriptors import TensorDescriptor
from ..plans.axes import collapse
from ..plans.base import Plan
from ..plans.chain import ChainPlan, Step
from ..plans.elementwise import cast_plan
from ..plans.wrappers import RelayoutPlan
from ..shapes.elementwise import TransformProblem
from ..shapes.specs import TensorSpec

__all__ = ["DropoutDescriptor", "dropout", "mask_size", "states_size"]


class DropoutDescriptor(NativeHandle):
    """``cudnnDropoutDescriptor_t`` over memory that holds the states of random generators.

    Making one seeds them, by a kernel on the context's stream.
    """

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
    """Bytes of the states of a device's random generators."""
    size = ctypes.c_size_t()
    context.library.cudnnDropoutGetStatesSize(context.handle, ctypes.byref(size))
    return size.value


def mask_size(context: Context, x: TensorSpec) -> int:
    """Bytes of the mask that a dropout of x leaves for its gradient."""
    size = ctypes.c_size_t()
    one = _as_one_axis(x._replace(dtype="float32") if x.dtype == "bfloat16" else x)
    context.library.cudnnDropoutGetReserveSpaceSize(one, ctypes.byref(size))
    return size.value


def dropout(
    function: str,
    descriptor: DropoutDescriptor,
    x: TensorSpec,
    y: TensorSpec,
    mask: TensorSpec,
    order: TensorSpec,
    rest: Sequence[TensorSpec] = (),
) -> Plan:
    """A plan of ``cudnnDropoutForward`` or ``cudnnDropoutBackward``.

    The bits of a mask are in the order of x in memory, so both work on that ``order``, on copies where an
    operand lies otherwise. The pointers of a run are x, y and the mask of a forward call, whose mask is
    written, then ``rest``, which is not touched by us; of a backward call they are x, the mask and y.
    """
    backward = function == "cudnnDropoutBackward"
    if order.dtype == "bfloat16":
        return _on_float32(function, descriptor, x, y, mask, order, rest, backward)
    plan = _DropoutPlan(function, descriptor, order, mask.size, backward)
    one, two = ((spec, None if _alike(spec, order) else order) for spec in (x, y))
    small: tuple[TensorSpec, TensorSpec | None] = (mask, None)
    moves = [one, small, two] if backward else [one, two, small, *((spec, None) for spec in rest)]
    if not (one[1] or two[1]):
        return plan
    return RelayoutPlan(plan, moves, 1 if backward else 2 + len(rest))


def _on_float32(
    function: str,
    descriptor: DropoutDescriptor,
    x: TensorSpec,
    y: TensorSpec,
    mask: TensorSpec,
    order: TensorSpec,
    rest: Sequence[TensorSpec],
    backward: bool,
) -> Plan:
    """The same on float32 copies: cuDNN has no dropout of bfloat16."""
    wide = order._replace(dtype="float32")
    plan = _DropoutPlan(function, descriptor, wide, mask.size, backward)
    first = 3 + len(rest)  # the places of the copies
    copy, result = first, first + 1
    there, back = cast_plan(TransformProblem(x, wide)), cast_plan(TransformProblem(wide, y))
    steps = [
        Step(there, (0, copy)),
        Step(plan, (copy, 1, result) if backward else (copy, result, 2)),
        Step(back, (result, 2 if backward else 1)),
    ]
    return ChainPlan([wide, wide], steps)


def _as_one_axis(spec: TensorSpec) -> TensorDescriptor:
    return TensorDescriptor.cached(*collapse([spec], [range(len(spec.shape))]))


def _alike(spec: TensorSpec, order: TensorSpec) -> bool:
    """Whether elements lie in memory in the same order: axes of length 1 do not count."""
    return bool(set(spec.layouts) & set(order.layouts))


class _DropoutPlan:
    __slots__ = ("_backward", "_descriptor", "_function", "_nbytes", "_tensor", "workspace")

    def __init__(
        self, function: str, descriptor: DropoutDescriptor, order: TensorSpec, nbytes: int, backward: bool
    ) -> None:
        self._function = function
        self._descriptor = descriptor
        self._tensor = _as_one_axis(order)
        self._nbytes = nbytes
        self._backward = backward
        self.workspace = 0

    # The calls have no factors.
    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:  # noqa: ARG002
        x, second, third, *_ = pointers
        y, mask = (third, second) if self._backward else (second, third)
        getattr(context.library, self._function)(
            context.handle, self._descriptor, self._tensor, x, self._tensor, y, mask, self._nbytes
        )

    def describe(self) -> str:
        return f"chosen: {self._function}"
