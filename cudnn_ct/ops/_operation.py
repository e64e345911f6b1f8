"""Operations, and their calls: prepared ones, and those on arrays without memory.

A prepared call has all that depends on specs, not on pointers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, Self

from ..array import DeviceArray, ResultSlot
from ..array_shapes import ShapeArray, records, spec_of
from ..context import Context
from ..cuda import stream as streams
from ..cuda.array_key import array_key
from ..cuda.replay import ReplayTable
from ..errors import CudnnError, NotSupportedError
from ..graph.offline import ShapesOnly
from ..graph.recording import alone, record, record_first, unplanned
from ..plans.base import SelectedPlan
from ..plans.program import align_after, nbytes_of
from ..plans.strided_copy import StridedCopy
from ..shapes.checks import as_list
from ..shapes.specs import ALIGNMENT, TensorSpec
from ._implementations import FirstSupported, Implementation, Independent, InPieces, Piece, pieces_of, usable
from ._operands import byte_extent, check_writable, representable, unexpanded

NEW: tuple[Any, ...] = (None,)  # one new result, the case of most calls
MAX_POINTER_SETS = 256  # sets of pointers of which a call counts the runs


class PreparedCall(NamedTuple):
    """A call that one thread prepared for one set of arguments: what depends on specs, not on pointers."""

    problem: Any
    inputs: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    selected: SelectedPlan
    copies: OperandCopies | None  # of inputs with strides that no descriptor holds, in every run
    in_place: bool  # whether a result may lie exactly where an input does
    label: str  # names the results in messages
    result_slots: tuple[ResultSlot, ...]  # what the results take
    spans: tuple[tuple[int, int], ...]  # the bytes that each operand reaches from its pointer, results last
    runs: dict[Any, int]  # with each set of pointers, whose results are known to overlap nothing
    replays: ReplayTable  # the graphs that are launched for some of them
    fresh: list[bool]  # not empty before the first run

    @classmethod
    def of(
        cls,
        problem: Any,
        inputs: tuple[TensorSpec, ...],
        results: tuple[TensorSpec, ...],
        selected: SelectedPlan,
        device: int,
        *,
        label: str,
        copies: OperandCopies | None = None,
        in_place: bool = False,
    ) -> Self:
        """Make a call, with the fields that follow from the specs."""
        spans = tuple(map(byte_extent, (*inputs, *results)))
        keys = [array_key(spec, device, True, False) for spec in results]
        slots = tuple([(end, key) for (_, end), key in zip(spans[len(inputs) :], keys, strict=True)])
        layout = (copies, in_place, f"the result of {label}", slots, spans)
        return cls(problem, inputs, results, selected, *layout, {}, ReplayTable(), [True])

    @streams.relaxed()
    def run_first(self, ctx: Context, *arguments: Any) -> None:
        """Run for the first time: cuDNN may load modules and allocate, which captures elsewhere forbid."""
        compare = self.copies is None  # first results on copies are not compared
        if self.selected.run_first(ctx, *arguments, compare=compare):
            self.fresh.clear()

    def describe(self) -> str:
        """Describe the plan, and for how many sets of pointers it is replayed."""
        keys = [*self.replays]  # another thread may drop one
        count = sum(key[0] is not None for key in keys)
        lines = [self.selected.describe()]
        lines += [f"  {self.copies.describe()}"] if self.copies else []
        lines += [f"  replayed for {count} {'set' if count == 1 else 'sets'} of pointers"] if count else []
        lines += ["  replayed for other pointers"] if count < len(keys) else []
        return "\n".join(lines)

    def set_runs(self, facts: Any, count: int) -> None:
        """Set the number of runs with a set of pointers, or with any: then the first of ``facts`` is None."""
        if len(self.runs) >= MAX_POINTER_SETS:
            before = self.runs.copy()  # a finalizer may make this call
            self.runs.clear()
            kept = {key: runs for key, runs in before.items() if key[0] is None}
            if len(kept) < MAX_POINTER_SETS // 2:  # else the factors of each call are others
                self.runs.update(kept)
        self.runs[facts] = count


class CallSignature(NamedTuple):
    """All that a prepared call depends on, except for the settings."""

    names: tuple[str, ...]  # of the operands, as ``specs``
    specs: tuple[TensorSpec, ...]
    outs: tuple[TensorSpec | None, ...] = NEW  # of results that the caller gave
    params: tuple[Any, ...] = ()  # the other arguments, as the caller wrote them
    scaled: tuple[bool, bool] = (False, False)  # alpha is not 1, beta is not 0
    aligned: bool = True  # all pointers are multiples of 16 bytes


Select = Callable[[Context], SelectedPlan]
"""Select the plan that runs a problem in a thread."""

Compose = Callable[[Any, bool, Context], SelectedPlan]
"""Compose a problem of calls of other operations; the bool is whether all pointers are aligned."""


_PLAIN = frozenset((bool, float, int, str, range, type(None)))  # immutable types


def freeze(value: Any) -> Any:
    """Return an immutable snapshot of an argument for cache keys; raise TypeError for an invalid one."""
    if type(value) in _PLAIN or isinstance(value, Enum):
        return value
    value = as_list(value)
    if isinstance(value, list | tuple):
        parts = tuple([part if type(part) in _PLAIN else freeze(part) for part in value])
        if isinstance(value, tuple) and all(map(operator.is_, parts, value)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else parts
    if str(getattr(value, "dtype", None)) == "bool" and not value.shape:  # a NumPy bool
        return bool(value)
    if not isinstance(value, DeviceArray):
        for number in (operator.index, float):
            try:
                return number(value)
            except (TypeError, ValueError):
                continue
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"{value!r} is not a valid parameter; expected a number or a tuple of numbers"
        ) from None
    return value


def enum_names(values: Any, *fields: str) -> Any:
    """Replace enum members in ``fields`` by their names: members of different enums compare equal as ints."""
    names = {field: value.name for field in fields if isinstance(value := getattr(values, field), Enum)}
    return values._replace(**names) if names else values


class Operation(NamedTuple):
    """An operation: its name, the function that makes its problem, and how a plan is selected.

    ``problem`` takes the specs of the operands by their names, the specs of the results that are given (None
    for a new one), and the arguments as the caller wrote them. Most operations list ``implementations``, the
    fastest first. Those that are autotuned have ``select``, which takes the problem and the arguments; their
    ``problem`` gets the scaling and the alignment as ``scaled`` and ``aligned``. Their ``implementations``
    are used where no engine is selected, and replace libraries that a cuDNN lacks.

    Other operands than ``broadcasts`` with a stride of 0 and those with negative ones are copied, unless
    ``any_strides`` is set.
    """

    name: str
    problem: Callable[..., Any]
    implementations: tuple[Implementation, ...] = ()
    in_place: bool = False  # whether a result may be an operand itself
    broadcasts: tuple[str, ...] = ()  # operands whose axes may have length 1, also with a stride of 0
    any_strides: bool = False
    independent: Independent | None = None  # the axes along which a problem with too many elements is split
    written: tuple[str, ...] = ("out",)  # the names of the results in messages
    relayout: bool = True  # see `ops._implementations.FirstSupported`
    select: Callable[[Any, tuple[Any, ...]], Select] | None = None
    freeze: Callable[[tuple[Any, ...]], tuple[Any, ...]] = freeze  # an immutable snapshot
    compose: Compose | None = None  # in place of implementations in unscaled calls
    factor: str = "alpha"  # the name of alpha in messages

    def settle(self, signature: CallSignature) -> Callable[[Context], PreparedCall]:
        """Check arguments, and return a function that prepares their call for a thread and a device."""
        inputs = self.inputs_of(signature.names, signature.specs)
        for name, out in zip(self.written, signature.outs, strict=False):
            check_writable(out, name)
        problem = self.problem_of(signature, inputs)
        copies = copies_of(signature.specs, inputs)
        selection = self.selection(problem, signature)

        def prepare(ctx: Context) -> PreparedCall:
            return PreparedCall.of(
                problem,
                signature.specs,
                problem.results,
                selection(ctx),
                ctx.device,
                copies=copies,
                in_place=self.in_place,
                label=self.name,
            )

        return prepare

    def selection(self, problem: Any, signature: CallSignature) -> Select:
        """Check the arguments that select a plan, and return a function that selects it for a thread."""
        select = self.select(problem, signature.params) if self.select else None
        pieces = pieces_of(problem, self.independent)
        if len(pieces) > 1:
            return lambda ctx: InPieces(self._selected_pieces(pieces, signature, ctx))
        return lambda ctx: self._selected(select, problem, signature, ctx)

    def inputs_of(self, names: Sequence[str], specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the operands as the problem has them: as they are, with shorter axes, or packed copies."""
        if self.any_strides:
            return tuple(specs)
        read = [
            unexpanded(spec) if name in self.broadcasts else spec
            for name, spec in zip(names, specs, strict=True)
        ]
        return tuple(map(representable, read))

    def problem_of(self, signature: CallSignature, inputs: tuple[TensorSpec, ...]) -> Any:
        """Make the problem of a call whose operands are ``inputs``."""
        specs = dict(zip(signature.names, inputs, strict=True))
        if self.select is None:
            return self.problem(specs, signature.outs, *signature.params)
        alpha, beta = signature.scaled  # the field of `ConvProblem` names the factor that is not as usual
        scaled = "alpha" if alpha else "beta" if beta else ""
        return self.problem(
            specs, signature.outs, *signature.params, scaled=scaled, aligned=signature.aligned
        )

    def _selected_pieces(
        self, pieces: Sequence[Piece], signature: CallSignature, ctx: Context
    ) -> list[tuple[SelectedPlan, tuple[int, ...]]]:
        """Select a plan for each piece; equal pieces have one."""
        selected: dict[Any, SelectedPlan] = {}
        found = []
        for problem, offsets in pieces:
            aligned = signature.aligned and not any(offset % ALIGNMENT for offset in offsets)
            if (problem, aligned) not in selected:
                select = self.select(problem, signature.params) if self.select else None
                one = self._selected(select, problem, signature._replace(aligned=aligned), ctx)
                selected[problem, aligned] = one
            found.append((selected[problem, aligned], offsets))
        return found

    def _selected(
        self, select: Select | None, problem: Any, signature: CallSignature, ctx: Context
    ) -> SelectedPlan:
        """Select a plan, or use an implementation that replaces engines which this cuDNN lacks."""
        scaled, aligned = any(signature.scaled), signature.aligned
        if self.compose and not scaled:
            return self.compose(problem, aligned, ctx)
        factor = f"{self.factor} is not 1" if signature.scaled[0] else "beta is not 0"
        how = {"scaled": scaled, "relayout": self.relayout, "aligned": aligned, "factor": factor}

        def instead(ctx: Context) -> SelectedPlan:
            return FirstSupported(problem, self.implementations, ctx, **how)  # type: ignore[arg-type]

        if isinstance(ctx, ShapesOnly) and select:
            ways = [select, instead] if usable(self.implementations, scaled=scaled) else [select]
            found: SelectedPlan = record_first(partial(way, ctx) for way in ways)
            return found
        try:
            if select:
                return select(ctx)
        except NotSupportedError:
            if not usable(self.implementations, scaled=scaled):
                raise
        return instead(ctx)


# --- copies of operands whose strides no descriptor holds: 0 or negative ones ------------------------------


def copies_of(specs: Sequence[TensorSpec], inputs: Sequence[TensorSpec]) -> OperandCopies | None:
    """Return the copies of operands that differ from the ``inputs`` of a problem; None if all are equal."""
    read = [
        spec if spec.shape == copy.shape else unexpanded(spec)
        for spec, copy in zip(specs, inputs, strict=True)
    ]
    pairs = enumerate(zip(read, inputs, strict=True))
    copies = {place: (spec, copy) for place, (spec, copy) in pairs if spec != copy}
    return OperandCopies(copies) if copies else None


class OperandCopies:
    """Copies of operands by their places, in one memory of the context.

    A call makes them without an allocation in a capture, and before the plan takes its workspace.
    """

    __slots__ = ("_nbytes", "_temporary", "places")

    def __init__(self, copies: Mapping[int, tuple[TensorSpec, TensorSpec]]) -> None:
        self.places, nbytes = {}, 0
        for place, (source, target) in copies.items():
            offset, nbytes = align_after(nbytes, nbytes_of(target))
            self.places[place] = StridedCopy(source, target), offset
        most = max(copy.workspace for copy, _ in self.places.values())
        self._temporary, self._nbytes = align_after(nbytes, most)

    def made(self, context: Context, pointers: Sequence[int]) -> tuple[list[int], object]:
        """Enqueue the copies; return the pointers with those of the copies, and their memory."""
        memory = context.operand_copies(self._nbytes)
        inner = list(pointers)
        for place, (copy, offset) in self.places.items():
            inner[place] = memory.handle + offset
            copy.copy(context, pointers[place], inner[place], memory.handle + self._temporary)
        return inner, memory

    def describe(self) -> str:
        count = len(self.places)
        return f"{count} {'operand' if count == 1 else 'operands'} copied: strides are 0 or negative"


# --- calls on arrays without memory ------------------------------------------------------------------------

composing: ContextVar[Any] = ContextVar("composing", default=None)  # `Parts` of the definition that is called


def call_on_shapes(
    op: Operation,
    names: tuple[str, ...],
    operands: tuple[Any, ...],
    params: tuple[Any, ...],
    scaled: tuple[bool, bool],
    outs: tuple[Any, ...],
    factors: tuple[Any, Any],
) -> Sequence[DeviceArray]:
    """Record the graphs of a call if they are recorded, and return arrays without memory for its results.

    ``factors`` are alpha and beta. A call of the definition of an operation becomes a part of it.
    """
    if (parts := composing.get()) is not None:
        found: Sequence[DeviceArray] = parts.call(op, names, operands, params, scaled, outs, factors)
        return found
    specs = tuple(spec_of(array, name) for array, name in zip(operands, names, strict=True))
    given: tuple[TensorSpec | None, ...] = tuple(
        None if out is None else spec_of(out, name) for name, out in zip(op.written, outs, strict=False)
    )
    for name, spec in zip(op.written, given, strict=False):
        check_writable(spec, name)
    params = op.freeze(params)
    signature = CallSignature(names, specs, given, params, scaled)
    problem = op.problem_of(signature, op.inputs_of(names, specs))
    if records():
        _record(op, problem, params, scaled)
    results: list[DeviceArray] = [ShapeArray.of(spec) for spec in problem.results]
    for place, (out, spec) in enumerate(zip(outs[: len(results)], given, strict=False)):
        if spec is not None:
            results[place] = out if isinstance(out, DeviceArray) else ShapeArray.of(spec)
    return results


def _record(op: Operation, problem: Any, params: tuple[Any, ...], scaled: tuple[bool, bool]) -> None:
    """Plan a problem as its first run does, but without a GPU, so that its graphs are recorded."""
    signature, where, reason = CallSignature((), (), params=params, scaled=scaled), ShapesOnly(), ""
    select = op.selection(problem, signature)  # rejects arguments
    with alone() as recorded:
        try:
            select(where)  # type: ignore[arg-type]
        except CudnnError as error:
            reason = f"{type(error).__name__}: {error}"
            recorded.requests.clear()
        except AttributeError as error:  # an implementation without a graph may need what a context has
            if not isinstance(error.obj, ShapesOnly):
                raise
            reason = "its plan needs a GPU"
    for request in recorded.requests.values():
        record(request)
    if reason or not recorded:
        unplanned(problem, reason or "cuDNN computes it by a function that needs no plan")
