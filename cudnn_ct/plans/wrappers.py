"""Plans that run another plan: on copies of operands, or with the result scaled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..context import Context
from ..errors import BadParamError, NotSupportedError
from ..shapes.specs import ALIGNMENT, TensorSpec
from .base import Plan
from .elementwise import constant_plan, copy_plan, duplicate_plan, fill_plan, into_copy, scale_plan
from .program import ALPHA, BETA, Case, Program, Step, Steps, partial_write_error
from .workspace import align_after, nbytes_of

__all__ = ["RelayoutPlan", "scaled_after", "zero_or_scale", "zero_results"]


class _Move(NamedTuple):
    """The copy of one operand: its bytes, the plans that copy the operand there and back, and its kind."""

    nbytes: int
    into: Plan | None
    out_of: Plan | None
    always: bool
    kind: str = ""


class RelayoutPlan:
    """Another plan, which gets copies of some of its operands.

    An operand with a packed spec among ``moves`` is copied in every run; that of one which is only read may
    repeat axes of length 1 or have another floating-point dtype. With ``align``, each other operand
    is copied in a run where its pointer is misaligned: kernels that load 16 bytes at once end the CUDA
    context on such memory.

    The copies are in the workspace, behind that of the other plan, and 256-byte aligned. The last ``outputs``
    operands are written; beta multiplies the first of them. The last ``updated`` are read as well. A run
    takes the part of ``workspace`` that it needs. ``copy_into`` and ``copy_out_of`` return the plans of
    copies to packed specs and back.
    """

    __slots__ = ("_first_output", "_inner", "_moves", "_start", "workspace")

    def __init__(
        self,
        inner: Plan,
        moves: Sequence[tuple[TensorSpec, TensorSpec | None]],
        outputs: int = 1,
        updated: int = 0,
        *,
        align: bool = False,
        copy_into: Callable[[TensorSpec, TensorSpec], Plan] = into_copy,
        copy_out_of: Callable[[TensorSpec, TensorSpec], Plan] = copy_plan,
    ) -> None:
        self._inner = inner
        self._first_output = first = len(moves) - outputs
        self._moves = {}
        for place, (spec, packed) in enumerate(moves):
            if packed is None and not (align and spec.size):
                continue
            into: Plan | None = None
            out_of: Plan | None = None
            if place < first or place >= len(moves) - updated:
                into = duplicate_plan(spec) if packed is None else copy_into(spec, packed)
            if place >= first:
                out_of = duplicate_plan(spec) if packed is None else copy_out_of(packed, spec)
            nbytes, always = nbytes_of(packed or spec), packed is not None
            self._moves[place] = _Move(nbytes, into, out_of, always, _kind(spec, packed or spec))
        copies = [plan for move in self._moves.values() for plan in (move.into, move.out_of) if plan]
        self._start = max(plan.workspace for plan in (inner, *copies))
        self.workspace = self._placed(self._moves)[1]

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        moved = {
            place: move for place, move in self._moves.items() if move.always or pointers[place] % ALIGNMENT
        }
        if not moved:
            self._inner.run(context, pointers, alpha, beta)
            return
        offsets, nbytes = self._placed(moved)
        base, first, inner = context.workspace(nbytes), self._first_output, list(pointers)
        for place, offset in offsets.items():
            inner[place] = base + offset
        for place, move in moved.items():
            if move.into is not None:
                move.into.run(context, (pointers[place], inner[place]), 1.0, 0.0)
        self._inner.run(context, inner, alpha, 0.0 if first in moved else beta)
        try:
            for place, move in moved.items():
                if move.out_of is not None:
                    factor = beta if place == first else 0.0
                    move.out_of.run(context, (inner[place], pointers[place]), 1.0, factor)
        except (BadParamError, NotSupportedError) as error:
            if first == len(pointers) - 1:
                raise
            raise partial_write_error(error) from error

    def describe(self) -> str:
        kinds = Counter(move.kind for move in self._moves.values() if move.always)
        lines = [f"{count} operands {kind}" for kind, count in kinds.items()]
        lines += ["misaligned operands copied to aligned memory"] if kinds.total() < len(self._moves) else []
        return "; ".join([self._inner.describe(), *lines])

    def _placed(self, moves: Iterable[int]) -> tuple[dict[int, int], int]:
        """Offsets of copies in the workspace, by operand, and the bytes of that workspace."""
        offsets, nbytes = {}, self._start
        for place in moves:
            offsets[place], nbytes = align_after(nbytes, self._moves[place].nbytes)
        return offsets, nbytes


def _kind(spec: TensorSpec, copy: TensorSpec) -> str:
    """Return how a copy differs from its operand, for descriptions."""
    if spec.shape != copy.shape:
        return "repeated along axes of length 1"
    return "copied into a packed layout" if spec.dtype == copy.dtype else f"converted to {copy.dtype}"


def scaled_after(inner: Plan, operands: int, result: TensorSpec, factor: float = 1) -> Program:
    """Return a plan that applies alpha and beta to the result of a plan that cannot.

    ``inner`` has ``operands`` before its result. It writes to the workspace, then result = alpha * factor *
    workspace + beta * result. Without factors, it writes the result itself.
    """
    places = tuple(range(operands))
    steps = [
        Step(inner, (*places, operands + 1)),
        Step(copy_plan(result, result, factor), (operands + 1, operands), ALPHA, BETA),
    ]
    return Program(
        Steps([result], steps),
        case=Case([Step(inner, None)]) if factor == 1 else None,
        about="{}; alpha and beta applied by a separate call",
        main=inner,
    )


def zero_or_scale(spec: TensorSpec) -> Program:
    """Return the plan result = beta * result: the result of sums without terms."""
    about = "chosen: no terms to sum, the output is only scaled"
    if not spec.size:
        return Program(Steps((), ()), about=about)
    # cudnnSetTensor does not support int32, whose zero has the same bits; int32 is never scaled.
    spec = spec._replace(dtype="float32") if spec.dtype == "int32" else spec
    # Zeros are set, because scaling by 0 keeps NaN.
    zero = Case([Step(fill_plan(spec, 0.0), (-1,))], alpha=False)
    return Program(Steps((), [Step(scale_plan(spec), (-1,), BETA)]), case=zero, about=about)


def zero_results(specs: Sequence[TensorSpec]) -> Program:
    """Return the plan result = 0 for each result that has elements: sums without terms."""
    filled = [(place - len(specs), spec) for place, spec in enumerate(specs) if spec.size]
    steps = [Step(constant_plan(spec, 0.0), (place,)) for place, spec in filled]
    return Program(Steps((), steps), about="chosen: no terms to sum, the results are set to 0")
