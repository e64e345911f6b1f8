"""Programs around a plan: copies and conversions of its operands, and the scaling of its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..context import Context
from ..shapes.arithmetic import HALF
from ..shapes.specs import ALIGNMENT, TensorSpec
from . import elementwise
from .base import Plan, tensors_of
from .program import ALPHA, BETA, Program, Step, Steps, Variants, chained, nbytes_of, unscaled


class _Move(NamedTuple):
    """The copy of one operand: its bytes, the plans that copy the operand there and back, and its kind."""

    nbytes: int
    into: Plan | None
    out_of: Plan | None
    always: bool
    kind: str = ""


def on_copies(
    inner: Plan,
    moves: Sequence[tuple[TensorSpec, TensorSpec | None]],
    outputs: int = 1,
    updated: int = 0,
    *,
    align: bool = False,
    copy_into: Callable[[TensorSpec, TensorSpec], Plan] = elementwise.into_copy,
    copy_out_of: Callable[[TensorSpec, TensorSpec], Plan] = elementwise.copy_plan,
) -> Program:
    """Return a program that runs a plan on copies of some of its operands.

    An operand with a packed spec among ``moves`` is copied in every run; that of one which is only read may
    repeat axes of length 1 or have another floating-point dtype. With ``align``, each other operand
    is copied in a run where its pointer is misaligned: kernels that load 16 bytes at once end the CUDA
    context on such memory.

    The copies are in the workspace, behind that of the plan, and 256-byte aligned. The last ``outputs``
    operands are written; beta multiplies the first of them. The last ``updated`` are read as well. A run
    takes the part of the workspace that it needs. ``copy_into`` and ``copy_out_of`` return the plans of
    copies to packed specs and back.
    """
    count, first = len(moves), len(moves) - outputs
    copies: dict[int, _Move] = {}
    for place, (spec, packed) in enumerate(moves):
        if packed is None and not (align and spec.size):
            continue
        into: Plan | None = None
        out_of: Plan | None = None
        if place < first or place >= count - updated:
            into = elementwise.duplicate_plan(spec) if packed is None else copy_into(spec, packed)
        if place >= first:
            duplicate = elementwise.scaled_duplicate_plan if place == first else elementwise.duplicate_plan
            out_of = duplicate(spec) if packed is None else copy_out_of(packed, spec)
        nbytes, always = nbytes_of(packed or spec), packed is not None
        copies[place] = _Move(nbytes, into, out_of, always, _kind(spec, packed or spec))

    def steps(misaligned: tuple[int, ...]) -> Steps:
        moved = {place: move for place, move in copies.items() if move.always or place in misaligned}
        places = {place: count + number for number, place in enumerate(moved)}
        before = [Step(move.into, (place, places[place])) for place, move in moved.items() if move.into]
        after = [
            Step(move.out_of, (places[place], place), 1.0, BETA if place == first else 0.0)
            for place, move in moved.items()
            if move.out_of
        ]
        given = tuple(places.get(place, place) for place in range(count)) if moved else None
        step = Step(inner, given, ALPHA, 0.0 if first in moved else BETA)
        written = len(before) + 1 if outputs > 1 else None
        return Steps([move.nbytes for move in moved.values()], [*before, step, *after], written)

    kinds = Counter(move.kind for move in copies.values() if move.always)
    lines = ["{}", *(f"{number} operands {kind}" for kind, number in kinds.items())]
    watched = tuple(place for place, move in copies.items() if not move.always)
    lines += ["misaligned operands copied to aligned memory"] if watched else []
    variants = Variants(partial(_misaligned, watched), steps, Program(steps(watched)).workspace)
    return Program(steps(()), variants=variants if watched else None, about="; ".join(lines), main=inner)


def _misaligned(watched: Sequence[int], pointers: Sequence[int], *_: Any) -> tuple[int, ...]:
    """Return the places among ``watched`` whose pointers are misaligned."""
    found: tuple[int, ...] = ()
    for place in watched:
        if pointers[place] % ALIGNMENT:
            found += (place,)
    return found


def on_operands_of(inner: Plan, problem: Any, core: Any, *, align: bool = False) -> Plan:
    """Return a problem's plan from that of ``core``: operands that differ, or are misaligned, are copied."""
    if core == problem and not align:
        return inner
    pairs = zip(tensors_of(problem).values(), tensors_of(core).values(), strict=True)
    moves = [(spec, None if spec == copy else copy) for spec, copy in pairs]
    return on_copies(inner, moves, len(problem.results), getattr(problem, "updated", 0), align=align)


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
        Step(elementwise.scaled_copy_plan(result, result, factor), (operands + 1, operands), ALPHA, BETA),
    ]
    return Program(
        Steps([result], steps),
        variants=unscaled([Step(inner, None)]) if factor == 1 else None,
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
    # Zeros are set, because scaling by 0 keeps NaN. Not every cuDNN can scale: that plan is made when needed.
    zero = Steps((), [Step(elementwise.fill_plan(spec, 0.0), (-1,))])
    variants = Variants(
        lambda _, alpha, beta: beta != 0,  # noqa: ARG005
        lambda _: Steps((), [Step(elementwise.scale_plan(spec), (-1,), BETA)]),
    )
    return Program(zero, variants=variants, about=about)


def zero_results(specs: Sequence[TensorSpec]) -> Program:
    """Return the plan result = 0 for each result that has elements: sums without terms."""
    filled = [(place - len(specs), spec) for place, spec in enumerate(specs) if spec.size]
    steps = [Step(elementwise.fill_plan(spec, 0.0), (place,)) for place, spec in filled]
    return Program(Steps((), steps), about="chosen: no terms to sum, the results are set to 0")


# --- float32 -----------------------------------------------------------------------------------------------

# Returns a plan for a problem, or None if the implementation does not apply to it.
PlanMaker = Callable[[Any, Context], Plan | None]


def with_wide(names: Sequence[str], maker: PlanMaker) -> PlanMaker:
    """Return an implementation that runs another one on float32 copies of operands in half precision."""

    def wide(problem: Any, context: Context) -> Plan | None:
        tensors = tensors_of(problem)
        copies = {name: widened(tensors[name]) for name in names if tensors[name].dtype in HALF}
        core = problem._replace(**copies)
        inner = maker(core, context) if copies else None
        return None if inner is None else on_operands_of(inner, problem, core)

    return wide


def on_float32(maker: PlanMaker, *dtypes: str) -> PlanMaker:
    """Return an implementation that runs another one on float32 copies of the operands of ``dtypes``."""

    def wide(problem: Any, context: Context) -> Plan | None:
        tensors = tensors_of(problem)
        copies = {name: widened(spec) for name, spec in tensors.items() if spec.dtype in dtypes}
        inner = maker(problem._replace(**copies), context) if copies else None
        if inner is None:
            return None
        places = list(range(len(tensors)))  # of the operands of the inner plan
        into, out_of = [], []
        first, read_again = len(tensors) - len(problem.results), len(tensors) - getattr(problem, "updated", 0)
        for place, (name, spec) in enumerate(tensors.items()):
            if name not in copies:
                continue
            places[place] = copied = len(tensors) + list(copies).index(name)
            if place < first or place >= read_again:
                into.append(Step(elementwise.cast_plan(spec, copies[name]), (place, copied)))
            if place >= first:
                out_of.append(Step(elementwise.cast_plan(copies[name], spec), (copied, place)))
        # The first result is last, because the last step applies alpha and beta.
        return chained(list(copies.values()), [*into, Step(inner, tuple(places)), *reversed(out_of)])

    return wide


def widened(spec: TensorSpec) -> TensorSpec:
    """Return the spec of a contiguous float32 copy, in the layout of a contiguous ``spec``."""
    return TensorSpec.packed(spec.shape, "float32", spec.layouts[0] if spec.layouts else "nchw")
