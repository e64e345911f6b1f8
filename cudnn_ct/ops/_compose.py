"""Operations made of operations: a definition calls them on shapes, and its calls become one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import add
from typing import Any, NamedTuple

from ..array_shapes import STREAM, ShapeArray, set_active
from ..context import Context
from ..dtypes import as_dtype
from ..errors import CudnnError, NotSupportedError
from ..plans.base import SelectedPlan, tensors_of
from ..plans.elementwise import copy_plan, fill_plan
from ..plans.program import Program, Step, Steps, places_after
from ..plans.wrappers import zero_or_scale
from ..shapes.specs import ALIGNMENT, Shape, TensorSpec
from ._operation import CallSignature, Compose, Operation, composing

# Arrays of a definition have addresses without memory: the place of the tensor, and bytes within it.
_BITS = 48

Definition = Callable[..., None]
"""A function of a problem, a :class:`Parts` and the arrays of the problem, which calls operations."""


class Part(NamedTuple):
    """A call: the selection of its plan, and the other fields of its step."""

    selected: SelectedPlan
    places: tuple[int, ...]
    alpha: Any
    beta: float
    offsets: tuple[int, ...]


def of_calls(definition: Definition) -> Compose:
    """Return the function that composes an operation of the calls of its definition.

    The definition writes all results. It may read and write views of arrays, as long as these are contiguous:
    a copy would not be one of its calls.
    """
    return partial(_composed, definition)


def _composed(definition: Definition, problem: Any, aligned: bool, context: Context) -> SelectedPlan:
    if not any(spec.size for spec in problem.results):
        return SelectedPlan(zero_or_scale(problem.results[0]))
    tensors = tensors_of(problem)
    parts = Parts(context, list(tensors.values()), aligned)
    first = len(tensors) - len(problem.results)
    arrays = [parts.packed(place, read=place < first) for place in range(len(tensors))]
    token = composing.set(parts)
    try:
        with set_active(True):
            definition(problem, parts, **dict(zip(tensors, arrays, strict=True)))
    finally:
        composing.reset(token)
    for place in range(first, len(tensors)):
        parts.copy(arrays[place], parts.arrays[place])
    return Composed(parts)


class Parts:
    """The calls of a definition, in their order, and the memory between them.

    ``arrays`` are those of the problem, ``steps`` the calls, ``temporaries`` the specs of the arrays that are
    neither operands nor results. Without ``aligned``, an array of the problem may be misaligned.
    """

    def __init__(self, context: Context, tensors: Sequence[TensorSpec], aligned: bool) -> None:
        self._context, self._aligned = context, aligned
        self.arrays = [_array(spec, place) for place, spec in enumerate(tensors)]
        self.temporaries: list[TensorSpec] = []
        self.steps: list[Part] = []

    def packed(self, place: int, *, read: bool) -> ShapeArray:
        """Return an array of the problem, or memory in its place if it is not contiguous, copied if read."""
        array = self.arrays[place]
        if "nchw" in array.spec.layouts:
            return array
        memory = self._temporary(TensorSpec.packed(array.spec.shape, array.spec.dtype))
        if read:
            self.copy(array, memory)
        return memory

    def copy(self, source: ShapeArray, target: ShapeArray) -> None:
        """Copy an array, unless the target is the array itself."""
        if source is not target:
            self._add(SelectedPlan(copy_plan(source.spec, target.spec)), [source, target])

    def filled(self, shape: Shape, dtype: str, value: float) -> ShapeArray:
        """Return an array of a number between the calls."""
        return self.fill(self._temporary(TensorSpec.packed(shape, as_dtype(dtype))), value)

    def fill(self, array: ShapeArray, value: float) -> ShapeArray:
        """Set the elements of an array to a number, and return it."""
        self._add(SelectedPlan(fill_plan(array.spec, value)), [array])
        return array

    def _temporary(self, spec: TensorSpec) -> ShapeArray:
        self.temporaries.append(spec)
        return _array(spec, len(self.arrays) + len(self.temporaries) - 1)

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
        moved = any(one.address % ALIGNMENT for one in (*operands, *outs) if one is not None)
        aligned = self._aligned and not moved
        signature = CallSignature(names, specs, given, op.freeze(params), scaled, aligned)
        inputs = op.inputs_of(names, specs)
        if inputs != specs:
            raise NotSupportedError(f"{op.name} copies its operands")
        problem = op.problem_of(signature, inputs)
        with set_active(False):
            selected = op.selection(problem, signature)(self._context)
        given_or_new = zip(outs, problem.results, strict=False)
        results = [self._temporary(spec) if out is None else out for out, spec in given_or_new]
        self._add(selected, [*operands, *results], *factors)
        return results

    def _add(
        self, selected: SelectedPlan, arrays: Sequence[ShapeArray], alpha: Any = 1.0, beta: float = 0.0
    ) -> None:
        places = tuple([(one.address >> _BITS) - 1 for one in arrays])
        offsets = tuple([one.address % (1 << _BITS) for one in arrays])
        self.steps.append(Part(selected, places, alpha, beta, offsets))


def _array(spec: TensorSpec, place: int) -> ShapeArray:
    return ShapeArray.over(spec, (place + 1) << _BITS, STREAM, STREAM, STREAM)


class Composed(SelectedPlan):
    """The selections of the parts, and the program of their plans.

    Temporaries lie in the workspace, behind those of the parts.
    """

    __slots__ = ("_parts", "_plans", "_temporaries")

    def __init__(self, parts: Parts) -> None:
        self._parts, self._temporaries = parts.steps, parts.temporaries
        self._join()

    @property
    def needs_timing(self) -> bool:
        return any(part.selected.needs_timing for part in self._parts)

    @property
    def exploring(self) -> bool:
        return any(part.selected.exploring for part in self._parts)

    def run_first(self, context: Context, *arguments: Any, compare: bool) -> bool:  # noqa: ARG002
        """Run each part as if for the first time, because another plan may have to run it.

        Begin again if one of them needs more workspace than before: it may have overwritten temporaries.
        """
        settled = None
        while settled is None:
            settled = self._run_parts(context, arguments[0])
            if self._plans != [part.selected.plan for part in self._parts]:
                self._join()
        return settled

    def run_other(self, error: CudnnError, context: Context, *arguments: Any) -> bool:  # noqa: ARG002
        """Run again from the beginning, where the part that fails may run another plan."""
        self.run_first(context, *arguments, compare=False)
        return True

    def _run_parts(self, context: Context, pointers: Sequence[int]) -> bool | None:
        """Return whether all parts have their plans; None if one of them needs more workspace than before."""
        own = max([plan.workspace for plan in self._plans])
        offsets, nbytes = places_after(own, self._temporaries)
        base = context.workspace(nbytes)
        _memory = context.workspace_memory()  # a part that needs more must not free what it reads
        memory, settled = [*pointers, *[base + offset for offset in offsets]], True
        for selected, places, alpha, beta, moved in self._parts:
            given = tuple(map(add, [memory[place] for place in places], moved))
            settled &= selected.run_first(context, given, alpha, beta, compare=False)
            if selected.plan.workspace > own:
                return None
        return settled

    def _join(self) -> None:
        """Make the program of the plans, which later runs and replays use."""
        self._plans = [part.selected.plan for part in self._parts]
        steps = [Step(plan, *part[1:]) for plan, part in zip(self._plans, self._parts, strict=True)]
        self.plan = Program(Steps(self._temporaries, steps))

    def describe(self) -> str:
        texts = (part.selected.describe().removeprefix("chosen: ") for part in self._parts)
        return f"chosen: {'; then '.join(texts)}"
