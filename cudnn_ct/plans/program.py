"""Programs: plans that run one after another on operands, and on temporaries in the workspace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from operator import add, itemgetter
from typing import Any, NamedTuple

from .._caches import BoundedDict
from ..context import Context
from ..errors import BadParamError, CudnnError, ExecutionFailedError, NotSupportedError
from ..shapes.specs import TensorSpec
from .base import Plan
from .workspace import align_after, append

NO_STEP = -1  # no step of a chain is scaled
MAX_LINES = 64  # variants of which a program keeps the steps


class Factor(Enum):
    """A factor of a run, in place of a number."""

    ALPHA = "alpha"
    BETA = "beta"


ALPHA, BETA = Factor.ALPHA, Factor.BETA


class Step(NamedTuple):
    """A plan, the places of its pointers, and the factors that it is run with."""

    plan: Plan
    # Among a run's pointers, then the temporaries, then the constants; None stands for all pointers of a run.
    places: tuple[int, ...] | None
    alpha: Any = 1.0
    beta: float | Factor = 0.0
    offsets: tuple[int, ...] = ()  # bytes that are added to the pointers


class Steps(NamedTuple):
    """Steps, and the specs of their temporaries, or their bytes."""

    temporaries: Sequence[TensorSpec | int]
    steps: Sequence[Step]
    # The first step after results may have been overwritten: if cuDNN rejects it or a later one, no other
    # implementation may start over.
    written: int | None = None


class Variants(NamedTuple):
    """Other steps for some runs: ``key`` is true for the pointers and factors of such a run."""

    key: Callable[[Sequence[int], Any, float], Any]
    steps: Callable[[Any], Steps]  # for a key, called when the first such run needs them
    workspace: int = 0  # the most bytes that they need


class Program:
    """Steps on operands, temporaries and constants.

    The beginning of the workspace is that of the plans; temporaries are behind. ``constants`` return numbers
    on the device, which the program keeps. ``about`` describes the program, with "{}" for the plan ``main``;
    without it, all steps are described.
    """

    __slots__ = (
        *("_about", "_constants", "_held", "_line", "_lines", "_main", "_plans", "_variants"),
        "workspace",
    )

    def __init__(
        self,
        steps: Steps,
        *,
        constants: Sequence[Callable[[Context], Any]] = (),
        variants: Variants | None = None,
        about: str = "",
        main: Plan | None = None,
    ) -> None:
        self._line, self.workspace = _line(steps)
        self._plans = [step.plan for step in steps.steps]
        self._variants = variants
        if variants is not None:
            self._lines = BoundedDict(MAX_LINES)
            self.workspace = max(self.workspace, variants.workspace)
        self._constants, self._held = constants, tuple[Any, ...]()
        self._about, self._main = about, main

    def run(self, context: Context, pointers: Sequence[int], alpha: Any, beta: float) -> None:
        """Enqueue the steps."""
        line = self._line
        if self._variants is not None:
            key = self._variants.key(pointers, alpha, beta)
            if key:
                line = self._lines.get(key) or self._line_for(key)
        steps, offsets, nbytes, written = line
        memory = pointers
        if offsets:
            base = context.workspace(nbytes)
            memory = list(pointers)
            for offset in offsets:
                memory.append(base + offset)
        if self._constants:
            memory = list(memory)
            for constant in self._held or self._hold(context):
                memory.append(constant.on(context, self).pointer)
        number = 0
        try:
            for plan, taken, a, b, moved in steps:
                given = pointers if taken is None else taken(memory)
                plan.run(
                    context,
                    tuple(map(add, given, moved)) if moved else given,
                    alpha if a is ALPHA else beta if a is BETA else a,
                    beta if b is BETA else b,
                )
                number += 1
        except (BadParamError, NotSupportedError) as error:
            if number < written:
                raise
            raise partial_write_error(error) from error
        for constant in self._held:
            constant.keep_until_done(context.stream)

    def describe(self) -> str:
        """Return the description of the program, or of all steps."""
        if self._about:
            return self._about.format(self._main and self._main.describe())
        texts = (plan.describe().removeprefix("chosen: ") for plan in self._plans)
        return f"chosen: {'; then '.join(texts)}"

    def _hold(self, context: Context) -> tuple[Any, ...]:
        self._held = tuple(constant(context) for constant in self._constants)
        return self._held

    def _line_for(self, key: Any) -> _Line:
        assert self._variants is not None
        line, _ = _line(self._variants.steps(key))
        self._lines[key] = line
        return line


class _Line(NamedTuple):
    """Steps with functions that pick their pointers, the offsets of temporaries, and bytes of workspace.

    Without temporaries, the plans take their workspaces themselves.
    """

    steps: Sequence[tuple[Plan, Any, Any, Any, tuple[int, ...]]]
    offsets: Sequence[int]
    nbytes: int
    written: int


def _line(given: Steps) -> tuple[_Line, int]:
    """Return steps that are ready to run, and the bytes of workspace that they need."""
    temporaries, steps, written = given
    offsets, nbytes = places_after(max((step.plan.workspace for step in steps), default=0), temporaries)
    ready = [
        (step.plan, _taking(step.places), step.alpha, step.beta, step.offsets if any(step.offsets) else ())
        for step in steps
    ]
    return _Line(ready, offsets, nbytes, len(steps) if written is None else written), nbytes


def places_after(nbytes: int, temporaries: Sequence[TensorSpec | int]) -> tuple[list[int], int]:
    """Return the offsets of temporaries behind ``nbytes`` of workspace, and the bytes of all."""
    offsets = []
    for one in temporaries:
        offset, nbytes = align_after(nbytes, one) if isinstance(one, int) else append(nbytes, one)
        offsets.append(offset)
    return offsets, nbytes


def _taking(places: tuple[int, ...] | None) -> Any:
    """Return a function that picks the pointers at some places; None stands for all of them."""
    if places is None or len(places) > 1:
        return places and itemgetter(*places)
    first = places[0]
    return itemgetter(slice(first, first + 1 or None))


def unscaled(steps: Sequence[Step], workspace: int = 0) -> Variants:
    """Return the steps for runs with an alpha of 1 and a beta of 0."""
    return Variants(lambda _, alpha, beta: alpha == 1 and beta == 0, lambda _: Steps((), steps), workspace)


def chained(
    temporaries: Sequence[TensorSpec],
    steps: Sequence[Step],
    scaled: int | None = None,
    *,
    about: str = "",
    main: Plan | None = None,
) -> Program:
    """Return a program whose last step applies beta; ``scaled`` applies alpha, the last one by default."""
    last = len(steps) - 1
    place = last if scaled is None else scaled
    factors = [
        step._replace(alpha=ALPHA if i == place else step.alpha, beta=BETA if i == last else step.beta)
        for i, step in enumerate(steps)
    ]
    return Program(Steps(temporaries, factors), about=about, main=main)


def partial_write_error(error: CudnnError) -> ExecutionFailedError:
    """Return the error for a call that was rejected after earlier calls had changed the results."""
    return ExecutionFailedError(
        f"{error}\nearlier calls of the same operation have changed its results, so no fallback was tried",
        status=error.status,
        function=error.function,
        detail=error.detail,
    )


def run_all(calls: Iterable[Callable[[], object]]) -> None:
    """Make several calls for one result; after the first one, no other implementation may start over."""
    for i, call in enumerate(calls):
        try:
            call()
        except (NotSupportedError, BadParamError) as error:
            if not i:
                raise
            raise partial_write_error(error) from error
