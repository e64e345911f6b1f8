"""Operations made of operations: a definition calls them on shapes, and its calls become one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..array_shapes import STREAM, ShapeArray, set_active
from ..context import Context
from ..dtypes import as_dtype
from ..errors import CudnnError, NotSupportedError
from ..plans.base import Plan, SelectedPlan, tensors_of
from ..plans.elementwise import fill_plan
from ..plans.program import Program, Step, Steps
from ..shapes.specs import ALIGNMENT, Shape, TensorSpec
from ._fallback import Implementation
from ._operation import CallSignature, Operation
from ._shapes import composing

# Arrays of a definition have addresses without memory: the place of the tensor, and bytes within it.
_BITS = 48

Definition = Callable[..., None]
"""A function of a problem, a :class:`Parts` and the arrays of the problem, which calls operations."""


def of_calls(definition: Definition) -> Implementation:
    """Return the implementation of an operation by the calls of its definition.

    The definition writes all results. It may read and write views of arrays, as long as these are contiguous:
    a copy would not be one of its calls.
    """
    return Implementation(partial(_planned, definition), aligned=True, scales=False)


def _planned(definition: Definition, problem: Any, context: Context) -> Plan | None:
    tensors = tensors_of(problem)
    if not all("nchw" in spec.layouts for spec in tensors.values()):
        return None
    parts = Parts(context, list(tensors.values()))
    token = composing.set(parts)
    try:
        with set_active(True):
            definition(problem, parts, **dict(zip(tensors, parts.arrays, strict=True)))
    finally:
        composing.reset(token)
    return Composed(parts)


class Parts:
    """The calls of a definition, in their order, and the memory between them.

    ``arrays`` are those of the problem, ``steps`` the calls, ``temporaries`` the specs of the arrays that are
    neither operands nor results.
    """

    def __init__(self, context: Context, tensors: Sequence[TensorSpec]) -> None:
        self._context, self._count = context, len(tensors)
        self.arrays = [_array(spec, place) for place, spec in enumerate(tensors)]
        self.temporaries: list[TensorSpec] = []
        self.steps: list[Step] = []

    def filled(self, shape: Shape, dtype: str, value: float) -> ShapeArray:
        """Return an array of a number between the calls."""
        return self.fill(self._temporary(TensorSpec.packed(shape, as_dtype(dtype))), value)

    def fill(self, array: ShapeArray, value: float) -> ShapeArray:
        """Set the elements of an array to a number, and return it."""
        self.steps.append(Step(fill_plan(array.spec, value), _places([array])))
        return array

    def _temporary(self, spec: TensorSpec) -> ShapeArray:
        self.temporaries.append(spec)
        return _array(spec, self._count + len(self.temporaries) - 1)

    def call(
        self,
        op: Operation,
        names: tuple[str, ...],
        operands: Sequence[ShapeArray],
        params: tuple[Any, ...],
        scaled: tuple[bool, bool],
        outs: Sequence[ShapeArray | None],
        factors: tuple[Any, Any],
    ) -> list[ShapeArray]:
        """Add a call; return its results, new arrays where none is given."""
        specs = tuple(one.spec for one in operands)
        given = tuple(None if one is None else one.spec for one in outs)
        aligned = not any(one.pointer % ALIGNMENT for one in (*operands, *outs) if one is not None)
        signature = CallSignature(names, specs, given, op.freeze(params), scaled, aligned)
        inputs = op.inputs_of(names, specs)
        if inputs != specs:
            raise NotSupportedError(f"{op.name} copies its operands")
        problem = op.problem_of(signature, inputs)
        with set_active(False):
            selected = op.selection(problem, signature)(self._context)
        given_or_new = zip(outs, problem.results, strict=False)
        results = [self._temporary(spec) if out is None else out for out, spec in given_or_new]
        arrays = [*operands, *results]
        offsets = tuple(one.pointer % (1 << _BITS) for one in arrays)
        self.steps.append(Step(_Part(selected), _places(arrays), *factors, offsets))
        return results


def _array(spec: TensorSpec, place: int) -> ShapeArray:
    return ShapeArray.over(spec, (place + 1) << _BITS, STREAM, STREAM, STREAM)


def _places(arrays: Sequence[ShapeArray]) -> tuple[int, ...]:
    return tuple((one.pointer >> _BITS) - 1 for one in arrays)


class _GrownError(Exception):
    """A part has another plan, which needs more workspace than the part had: arrays may be overwritten."""


class _Part:
    """A call as a step: its plan may be timed, or exchanged for another one, when it runs first."""

    def __init__(self, selected: SelectedPlan) -> None:
        self._selected, self._fresh = selected, True
        self.workspace = selected.plan.workspace

    def run(self, context: Context, pointers: Sequence[int], alpha: Any, beta: float) -> None:
        selected, arguments = self._selected, (pointers, alpha, beta)
        if self._fresh:
            self._fresh = not selected.run_first(context, *arguments, compare=False)
        else:
            try:
                selected.plan.run(context, *arguments)
            except CudnnError as error:
                if not selected.run_other(error, context, *arguments):
                    raise
        if selected.plan.workspace > self.workspace:
            self.workspace = selected.plan.workspace
            raise _GrownError

    def describe(self) -> str:
        return self._selected.describe()


class Composed:
    """The program of an operation's parts. Temporaries lie in the workspace, behind those of the parts."""

    def __init__(self, parts: Parts) -> None:
        self._steps = Steps(parts.temporaries, parts.steps)
        self._program = Program(self._steps)

    @property
    def workspace(self) -> int:
        return self._program.workspace

    def run(self, context: Context, pointers: Sequence[int], alpha: Any, beta: float) -> None:
        """Enqueue the parts; begin again if one of them needs more workspace than before."""
        for _ in range(len(self._steps.steps) + 1):
            context.workspace(self.workspace)
            _memory = context.workspace_memory()  # a part that needs more must not free what it reads
            try:
                self._program.run(context, pointers, alpha, beta)
            except _GrownError:
                self._program = Program(self._steps)
            else:
                return

    def describe(self) -> str:
        return self._program.describe()
