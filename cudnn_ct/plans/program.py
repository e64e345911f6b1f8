"""Plans of one call, and programs: plans that run one after another, on operands and on temporaries."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import cache
from math import copysign, isnan
from operator import add, itemgetter
from typing import Any, NamedTuple

import numpy as np

from .._caches import BoundedDict
from ..context import Context
from ..descriptors import TensorDescriptor
from ..dtypes import DTYPES
from ..errors import BadParamError, CudnnError, ExecutionFailedError, NotSupportedError
from ..shapes.specs import TensorSpec
from .base import Plan

COPY_ALIGNMENT = 256  # bytes
NO_STEP = -1  # no step of a chain is scaled
MAX_LINES = 64  # variants of which a program keeps the steps


def append(nbytes: int, spec: TensorSpec | None) -> tuple[int, int]:
    """Return the offset of a packed tensor behind ``nbytes`` of workspace, and the bytes with it."""
    return (nbytes, nbytes) if spec is None else align_after(nbytes, spec.size * DTYPES[spec.dtype].itemsize)


def align_after(nbytes: int, more: int) -> tuple[int, int]:
    """Return the offset of ``more`` bytes behind ``nbytes`` of workspace, and the bytes with them."""
    start = -(-nbytes // COPY_ALIGNMENT) * COPY_ALIGNMENT
    return start, start + more


def nbytes_of(spec: TensorSpec) -> int:
    """Return the bytes that a tensor spans, with the gaps between its elements."""
    low, high = spec.extent
    return (high - low) * DTYPES[spec.dtype].itemsize


def room_of(specs: Iterable[TensorSpec]) -> int:
    """Return an upper bound of the bytes that copies of tensors take behind other workspace."""
    return sum(nbytes_of(spec) + COPY_ALIGNMENT for spec in specs)


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


# --- scalars in host memory --------------------------------------------------------------------------------


@cache
def scalar_type(compute: str) -> Any:
    """Return the function that makes a pointer to alpha or beta: a double for float64, else a float."""
    kind = ctypes.c_double if compute == "float64" else ctypes.c_float
    common: dict[float, Any] = {value: ctypes.byref(kind(value)) for value in (0, 1)}

    def scalar(value: float) -> Any:
        if value == 0 and copysign(1, value) < 0:  # -0.0 equals the key 0
            return ctypes.byref(kind(value))
        return common.get(value) or ctypes.byref(kind(value))

    return scalar


def scalar_bytes(dtype: str, value: float = 0.0) -> Any:
    """Return a pointer to the value that ``cudnnSetTensor`` sets elements of a dtype to."""
    # For half precision it is a float32, in contrast to the manual: cuDNN 9.19 reads four bytes and rounds.
    row = DTYPES[dtype]
    if value == 0 and copysign(1, value) > 0:
        return ctypes.byref((ctypes.c_char * 8)())
    with np.errstate(all="ignore"):
        half = dtype in ("float16", "bfloat16")
        held = _round_to_odd(value) if half else np.asarray(value).astype(row.numpy)
    return ctypes.byref(ctypes.create_string_buffer(held.tobytes(), held.nbytes))


def element_bytes(dtype: str, value: float) -> bytes:
    """Return a value as an element of a dtype, rounded once: ml_dtypes rounds to float32 before."""
    with np.errstate(all="ignore"):
        narrow = DTYPES[dtype].itemsize < 4 and DTYPES[dtype].numpy.kind in "fV"
        held = _round_to_odd(value) if narrow else np.asarray(value)
        return held.astype(DTYPES[dtype].numpy).tobytes()


def _round_to_odd(value: float) -> Any:
    """Round to a float32 with an odd last bit if inexact, so that cuDNN's rounding is the only one."""
    single = np.array(value).astype(np.float32)
    nearest = float(single)
    if nearest != value and not isnan(value):
        bits = single.view(np.uint32)
        bits -= np.uint32(abs(nearest) > abs(value))
        bits |= np.uint32(1)
    return single


# --- plans of one call -------------------------------------------------------------------------------------


class CallPlan:
    """The call ``f(handle, *head, alpha, (descriptor, pointer) of each input, beta, those of the result)``.

    ``inputs`` has, in the order of the C function, the place of each input among the pointers of a run, and
    its spec; the result is the last pointer. ``factor`` multiplies every alpha.
    """

    __slots__ = ("_alpha", "_arguments", "_beta", "_factor", "_function", "_places", "_scalar", "workspace")

    def __init__(
        self,
        function: str,
        head: tuple[Any, ...],
        inputs: Sequence[tuple[int, TensorSpec]],
        result: TensorSpec,
        factor: float = 1,
    ) -> None:
        self._function = function
        self._scalar = scalar_type(DTYPES[result.dtype].accumulate)
        self._factor = factor
        # All arguments but the handle, the pointers and other factors are created once, to save host time.
        self._alpha = len(head)
        arguments: list[Any] = [*head, self._scalar(factor)]
        self._places = []
        for place, spec in inputs:
            arguments += (TensorDescriptor.cached(spec), None)
            self._places.append((len(arguments) - 1, place))
        self._beta = len(arguments)
        self._arguments = [*arguments, self._scalar(0.0), TensorDescriptor.cached(result)]
        self.workspace = 0

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        arguments = self._arguments.copy()
        for at, place in self._places:
            arguments[at] = pointers[place]
        if alpha != 1:
            arguments[self._alpha] = self._scalar(self._factor * alpha)
        if beta != 0:
            arguments[self._beta] = self._scalar(beta)
        getattr(context.library, self._function)(context.handle, *arguments, pointers[-1])

    def describe(self) -> str:
        return f"chosen: {self._function}"


class FunctionPlan:
    """A plan whose run is a function of context, pointers, alpha and beta; ``about`` names it in texts."""

    __slots__ = ("_about", "run", "workspace")

    def __init__(self, about: str, run: Callable[..., None], workspace: int = 0) -> None:
        self._about, self.run, self.workspace = about, run, workspace

    def describe(self) -> str:
        return f"chosen: {self._about}"


class PointerSlot(str):
    """Placeholder for the pointer of an operand, by its name, in the arguments of a C function."""

    __slots__ = ()


class ArgumentTemplate:
    """All arguments of a C function but the handle; a run fills in its pointers, by their ``names``."""

    __slots__ = ("_places", "_ready")

    def __init__(self, arguments: Sequence[Any], names: Iterable[str]) -> None:
        order = {name: place for place, name in enumerate(names)}
        operands = [(at, name) for at, name in enumerate(arguments) if isinstance(name, PointerSlot)]
        self._places = [(at, order[name]) for at, name in operands if name in order]
        # The pointer of an operand that a run does not have is null.
        self._ready = [None if isinstance(one, PointerSlot) else one for one in arguments]

    def filled(self, pointers: Sequence[int]) -> list[Any]:
        """Return the arguments of a run, in a new list."""
        arguments = self._ready.copy()
        for at, place in self._places:
            arguments[at] = pointers[place]
        return arguments
