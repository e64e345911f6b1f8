"""Plans of operations: the first implementation that cuDNN supports, and pieces of large problems.

Problems with more elements than cuDNN takes are computed in pieces. An operation returns the axes along which
its results do not depend on each other: rows of a softmax, images of a pooling, all axes of an activation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import add
from typing import Any, NamedTuple

from .._config import config
from .._lib import load
from ..context import Context
from ..cuda import stream as streams
from ..dtypes import DTYPES
from ..errors import BadParamError, CudnnError, NotSupportedError, without_frames
from ..graph.offline import ShapesOnly, target_of
from ..graph.recording import record_first
from ..legal.rules import rejection_of
from ..plans.axes import MAX_CALLS, sliced
from ..plans.base import Candidate, NotChosen, Plan, SelectedPlan, packed_of, tensors_of, unsupported
from ..plans.program import ALPHA, BETA, Program, Step, Steps, run_all
from ..plans.wrappers import PlanMaker, on_float32, on_operands_of, zero_or_scale
from ..shapes.specs import ALIGNMENT, INT_MAX, LAYOUTS, TensorSpec, nearest_layout

IGNORES_NAN = "propagate_nan is False, which only legacy functions support"


class Implementation(NamedTuple):
    make: PlanMaker  # returns None for problems that it is not made for
    # Whether its kernels load 16 bytes at once, which ends the CUDA context on misaligned memory: the plan
    # gets copies of misaligned operands.
    aligned: bool = False
    scales: bool = True  # its plan applies alpha and beta
    replaces: str = ""  # the library whose calls it replaces: it is used where the set lacks that one


def of_problem(make: Callable[[Any], Plan | None], *, aligned: bool = False) -> Implementation:
    """Return the implementation whose plan needs nothing but the problem."""
    return Implementation(lambda problem, _: make(problem), aligned)


def by_engines(make: PlanMaker, replaces: str = "ops") -> Implementation:
    """Return the implementation by graphs that replaces the calls of a library; its engines are compiled."""

    def planned(problem: Any, context: Context) -> Plan | None:
        made = make(problem, context) if config.allow_runtime_compilation else None
        if made is None and "float64" in {spec.dtype for spec in tensors_of(problem).values()}:
            raise NotSupportedError("no engine computes float64")
        return made

    return Implementation(planned, aligned=True, scales=False, replaces=replaces)


def usable(implementations: Sequence[Implementation], *, scaled: bool) -> list[Implementation]:
    """Return the implementations that may be tried for a call, in their order."""
    return [
        one
        for one in implementations
        if (one.scales or not scaled) and (not one.replaces or load().lacks(one.replaces))
    ]


def with_bfloat16(one: Implementation) -> tuple[Implementation, Implementation]:
    """Return an implementation, and the same on float32 copies of bfloat16, which its C calls lack."""
    return one, one._replace(make=on_float32(one.make, "bfloat16"))


class FirstSupported(SelectedPlan):
    """The implementations of a problem in one thread, and the plan of the first that cuDNN supports.

    ``relayout`` is set if copies of the operands in another layout are of use.
    """

    def __init__(
        self,
        problem: Any,
        implementations: Sequence[Implementation],
        context: Context,
        *,
        scaled: bool = False,
        relayout: bool = True,
        aligned: bool = True,
        factor: str = "alpha or beta is given",
    ) -> None:
        self._problem = problem
        if wrong := rejection_of(problem, "", target_of(context)):
            raise unsupported(problem, [f"rejected: {wrong}"])
        given = usable(implementations, scaled=scaled)
        self._makers = _makers(problem, given, relayout, aligned)
        if any(one.replaces for one in usable(implementations, scaled=False) if one not in given):
            self._makers.append(partial(_reject, f"{factor}, which only legacy functions support"))
        self._left, self._rejections = iter(self._makers), list[str]()
        if isinstance(context, ShapesOnly):
            self.plan = record_first(partial(make, context) for make in self._makers)
        else:
            self._next(context)

    def run_other(self, error: CudnnError, context: Context, *arguments: Any) -> bool:
        """Run the next plan after a rejection, which cuDNN raises before any kernel starts."""
        while isinstance(error, NotSupportedError | BadParamError):
            if self.plan is not _NONE_LEFT:
                self._rejections.append(f"{self.plan.describe()}: {error}")
            self._next(context)
            try:
                self.plan.run(context, *arguments)
            except (NotSupportedError, BadParamError) as another:
                error = without_frames(another)
            else:
                return True
        return False

    def describe(self) -> str:
        return "\n".join([self.plan.describe(), *(f"  rejected: {line}" for line in self._rejections)])

    @streams.relaxed()  # cuDNN loads modules for a plan
    def _next(self, context: Context) -> None:
        """Make the next plan. If none is left, the next call begins again: a rejection may be transient."""
        for make in self._left:
            try:
                plan = make(context)
            except (NotSupportedError, ValueError) as error:  # a ValueError: no descriptor holds such numbers
                self._rejections.append(str(error))
            else:
                if plan is not None:
                    self.plan = plan
                    return
        self.plan, self._left, reasons = _NONE_LEFT, iter(self._makers), self._rejections
        self._rejections = []
        raise unsupported(self._problem, reasons)


def _reject(reason: str, _: Context) -> None:
    raise NotSupportedError(reason)


_NONE_LEFT = NotChosen("every implementation was rejected, and the next call tries them again")


# The context is given when a plan is made: kept in here, it would hold itself by the calls that it keeps.
def _makers(
    problem: Any, implementations: Sequence[Implementation], relayout: bool, aligned: bool
) -> list[Callable[[Context], Plan | None]]:
    """Return makers of plans on the operands in their current layout, then on packed copies of some."""
    # For misaligned operands, implementations that need no copy come first, and the plans of the others make
    # the copies.
    if not any(spec.size for spec in problem.results):
        return [lambda _: zero_or_scale(problem.results[0])]
    ordered = sorted(implementations, key=lambda one: one.aligned and not aligned)
    targets = [problem]
    if relayout:
        first = next(iter(tensors_of(problem).values()))
        targets += [packed_of(problem, layout) for layout in (nearest_layout(first), *LAYOUTS)]
    return [
        partial(_on_copies, one.make, problem, target, one.aligned and not aligned)
        for target in dict.fromkeys(targets)
        for one in ordered
    ]


def _on_copies(make: PlanMaker, problem: Any, target: Any, align: bool, context: Context) -> Plan | None:
    """Return a plan for a problem whose operands are copied into those of ``target``, or are misaligned."""
    inner = make(target, context)
    return None if inner is None else on_operands_of(inner, problem, target, align=align)


# --- pieces of problems with more elements than cuDNN takes ------------------------------------------------


Split = dict[str, int]
"""Names of the tensors that are split, each with its axis; the other tensors belong to all pieces."""

Independent = Callable[[Any], Iterable[Split]]
"""Function of a problem that returns the ways to split it."""

Piece = tuple[Any, tuple[int, ...]]
"""The problem of a piece, and the offset of the piece in each tensor, in bytes."""


def along(problem: Any, axes: Iterable[int]) -> Iterator[Split]:
    """Yield a split along each of some axes, of the tensors that are as long there as the first tensor."""
    tensors = tensors_of(problem)
    shape = next(iter(tensors.values())).shape
    for axis in axes:
        yield {
            name: axis
            for name, spec in tensors.items()
            if len(spec.shape) == len(shape) and spec.shape[axis] == shape[axis]
        }


def every_axis(problem: Any) -> Iterator[Split]:
    """Yield the splits of an operation on each element by itself."""
    first = next(iter(tensors_of(problem).values()))
    return along(problem, range(len(first.shape)))


def pieces_of(problem: Any, independent: Independent | None) -> list[Piece]:
    """Return the pieces of a problem, the problem itself if its tensors are small or it cannot be split."""
    whole = [(problem, (0,) * len(tensors_of(problem)))]
    if independent is None:
        return whole
    try:
        return list(_pieces(problem, independent))
    except NotSupportedError:
        return whole


def _pieces(problem: Any, independent: Independent) -> Iterator[Piece]:
    tensors = tensors_of(problem)
    large = [name for name, spec in tensors.items() if spec.size > INT_MAX]
    if not large:
        yield problem, (0,) * len(tensors)
        return
    # Names of the tensors that must be split: the large ones, and those that are written.
    needed = {*large, *list(tensors)[-len(problem.results) :]}
    first = next(iter(tensors))
    splits = [
        split
        for split in independent(problem)
        if needed <= split.keys() and tensors[large[0]].shape[split[large[0]]] > 1
    ]
    if not splits:
        raise NotSupportedError("no axis is independent")
    # The outermost axis in memory: then the pieces are as contiguous as the tensors.
    split = max(splits, key=lambda one: tensors[first].strides[one[first]] if first in one else 0)
    length = tensors[large[0]].shape[split[large[0]]]
    chunk = _chunk(length, max(tensors[name].size // length for name in split))
    if length // chunk > MAX_CALLS:
        raise NotSupportedError(f"more than {MAX_CALLS:,} pieces")
    for start in range(0, length, chunk):
        shorter = {
            name: _part(tensors[name], axis, min(chunk, length - start)) for name, axis in split.items()
        }
        offsets = [
            start * spec.strides[split[name]] * DTYPES[spec.dtype].itemsize if name in split else 0
            for name, spec in tensors.items()
        ]
        part = problem._replace(**shorter)
        if any(offset % ALIGNMENT for offset in offsets) and getattr(part, "aligned", False):
            part = part._replace(aligned=False)
        for inner, more in _pieces(part, independent):
            yield inner, tuple(a + b for a, b in zip(offsets, more, strict=True))


def _chunk(length: int, elements: int) -> int:
    """Return the length of equal pieces of an axis; ``elements`` is the largest number at one index of it."""
    most = max(1, INT_MAX // elements)
    if most < ALIGNMENT:
        return most
    count = -(-length // (most - most % ALIGNMENT))
    equal = -(-length // count)
    return equal + -equal % ALIGNMENT  # so that the pieces are as aligned as the tensors


def _part(spec: TensorSpec, axis: int, length: int) -> TensorSpec:
    return spec._replace(shape=(*spec.shape[:axis], length, *spec.shape[axis + 1 :]))


class InPieces(SelectedPlan):
    """The selections of pieces, with the offsets of each piece in the operands and results."""

    __slots__ = ("_about", "_pieces", "_plans")

    def __init__(self, pieces: Sequence[tuple[SelectedPlan, tuple[int, ...]]]) -> None:
        self._pieces = pieces
        self._about = f"in {len(pieces)} pieces of at most {INT_MAX:,} elements"
        self._join()

    @property
    def candidate(self) -> Candidate | None:
        return self._pieces[0][0].candidate

    @property
    def needs_timing(self) -> bool:
        return any(selected.needs_timing for selected, _ in self._pieces)

    @property
    def exploring(self) -> bool:
        return any(selected.exploring for selected, _ in self._pieces)

    @property
    def fallback_reason(self) -> str:
        return next((selected.fallback_reason for selected, _ in self._pieces), "")

    def run_first(self, context: Context, *arguments: Any, compare: bool) -> bool:  # noqa: ARG002
        """Run each piece as if for the first time, because another plan may have to run it alone."""
        pointers, *factors = arguments
        run_all(
            partial(one.run_first, context, tuple(map(add, pointers, offsets)), *factors, compare=False)
            for one, offsets in self._pieces
        )
        if any(one.plan is not plan for (one, _), plan in zip(self._pieces, self._plans, strict=True)):
            self._join()
        return False

    def describe(self) -> str:
        return f"{self._pieces[0][0].describe()}\n  {self._about}"

    def _join(self) -> None:
        """Make the program of the plans, which a replay records."""
        self._plans = [selected.plan for selected, _ in self._pieces]
        steps = [
            Step(plan, None, ALPHA, BETA, offsets)
            for plan, (_, offsets) in zip(self._plans, self._pieces, strict=True)
        ]
        self.plan = Program(Steps((), steps), about=f"{{}}; {self._about}", main=self._plans[0])


# --- some sequences of a batch -----------------------------------------------------------------------------


def plan_for_sequences(sequences: Sequence[int], make: Callable[..., Plan], *specs: TensorSpec) -> Plan:
    """Return a plan for part of a batch, axis 1 or the only one; ``make`` plans adjacent sequences."""
    pieces = []
    for first, count in _runs(sequences):
        parts, offsets = [], []
        for spec in specs:
            axis = min(1, len(spec.shape) - 1)
            parts.append(_part(spec, axis, count))
            offsets.append(first * spec.strides[axis] * DTYPES[spec.dtype].itemsize)
        pieces.append((make(*parts), tuple(offsets)))
    return pieces[0][0] if len(pieces) == 1 and not any(pieces[0][1]) else sliced(pieces)


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first number and the length of each run of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and sum(runs[-1]) == number:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs
