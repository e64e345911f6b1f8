"""Exceptions and warnings, the exception for each cuDNN status, and the caller that they concern."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import NamedTuple

from cudnn_doctor.read.versions import format_version as format_version

PACKAGES = ("cudnn_ct", "cudnn_ct_dnn")  # a program calls either of them

MAX_SHOWN = 3  # reasons in the message of an error


class CudnnError(RuntimeError):
    """Base of all errors that cuDNN or its installation causes.

    Attributes
    ----------
    status : int or None
        cuDNN's status code, if one of its C calls failed.
    function : str or None
        The C function that failed.
    detail : str
        cuDNN's own last error text, fetched right after the failure.
    """

    def __init__(
        self, message: str, *, status: int | None = None, function: str | None = None, detail: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.function = function
        self.detail = detail


class NotInitializedError(CudnnError):
    """The device, the driver or cuDNN cannot be used here (status 1xxx)."""


class VersionMismatchError(NotInitializedError):
    """Header, library or sub-libraries have different versions, or a symbol is missing (status 1002)."""


class BadParamError(CudnnError, ValueError):
    """cuDNN rejected an argument (status 2xxx)."""


class Reason(NamedTuple):
    """Why some engines reject a graph.

    Attributes
    ----------
    engines : tuple of int
        Their numbers; empty if cuDNN rejects the graph before it looks for an engine.
    must_change : str
        The property that must change: ``"graph"`` (dtypes, shapes, layouts, operations), ``"gpu"``, or
        ``"engine"`` (its knobs, or how it is made); ``"other"`` if it is not known, and ``"unknown"`` if the
        engine could not be asked, as cuBLASLt without a GPU.
    words : str
        The reason in plain words, or cuDNN's own line if it has no translation.
    line : str
        cuDNN's own line.
    """

    engines: tuple[int, ...]
    must_change: str
    words: str
    line: str

    def __str__(self) -> str:
        who = f"{_engines(self.engines)}: "
        line = self.line.partition(" at: ")[0]  # without the condition in cuDNN's sources
        behind = "" if line in ("", self.words) else f" (cuDNN: {line})"
        return f"{who if self.engines else ''}{self.words}{behind}"


class Explanation(NamedTuple):
    """Why cuDNN supports a graph or not; ``print`` it.

    Attributes
    ----------
    problem : str
        The operation or graph, and the GPU.
    supported : tuple of int
        Numbers of the engines that support it.
    changes : tuple of str
        Changes of one property, of which each suffices for an engine to support it.
    reasons : tuple of Reason
        Why the other engines reject it: those first that name a property of the graph.
    computed_by : str
        How the call was computed, if one was explained that is supported.
    graph : object
        The graph, from ``cudnn_ct.graph.operations``.
    """

    problem: str
    supported: tuple[int, ...] = ()
    changes: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()
    computed_by: str = ""
    graph: object = None

    @property
    def unknown(self) -> bool:
        """Whether no engine supports it among those that could be asked."""
        return not self.supported and any(one.must_change == "unknown" for one in self.reasons)

    def summary(self) -> list[str]:
        """Return the most useful reasons, one a line, for the message of an error."""
        useful = [one for one in self.reasons if one.must_change != "engine"]
        shown = useful[:MAX_SHOWN] or self.reasons[:1]
        lines = [f"reason: {reason}" for reason in shown]
        left = len(self.reasons) - len(shown)
        return [*lines, f"({left} more: print the error's explanation)"] if left else lines

    def __str__(self) -> str:
        how = _engines(self.supported) if self.supported else self.computed_by
        verdict = "may be supported" if self.unknown else "is not supported"
        lines = [f"{self.problem} {f'is supported by {how}' if how else verdict}"]
        if self.changes:
            which = "one of these changes" if len(self.changes) > 1 else "this change"
            lines.append(f"{which} is enough:")
            lines += [f"  {change}" for change in self.changes]
        if self.reasons:
            lines.append("other engines:" if self.supported else "reasons:")
            lines += [f"  {reason}" for reason in self.reasons]
        return "\n".join(lines)


class NotSupportedError(CudnnError):
    """The request is valid, but this cuDNN does not support it on this GPU (status 3xxx).

    Attributes
    ----------
    explanation : Explanation or None
        Why each engine of the graph API rejects the request; None if it is not computed by a graph, or if
        engines support it and other limits, such as ``workspace_limit``, exclude them.
    reasons : tuple of Reason
        The reasons of the explanation, those first that name a property of the request.
    """

    explanation: Explanation | None = None

    @property
    def reasons(self) -> tuple[Reason, ...]:
        return self.explanation.reasons if self.explanation else ()


class InternalError(CudnnError):
    """cuDNN failed internally (status 4xxx)."""


class AllocationError(InternalError, MemoryError):
    """Host or device memory ran out."""


class ExecutionFailedError(CudnnError):
    """A kernel could not be launched or failed (status 5xxx)."""


class LibraryLoadError(CudnnError):
    """A library was found and could not be loaded or used."""


class LibraryNotFoundError(LibraryLoadError):
    """No usable library was found; ``steps`` has each place that was searched, and the reason."""

    def __init__(self, message: str, steps: Sequence[tuple[str, str]] = ()) -> None:
        self.steps = tuple(steps)
        super().__init__("\n".join([message, *(f"  {place}: {reason}" for place, reason in self.steps)]))


class CudnnWarning(UserWarning):
    """A condition that the caller should know of; the result is correct nevertheless."""


# By status, or else by its thousands.
_CLASSES: dict[int, type[CudnnError]] = {
    1: NotInitializedError,
    2: BadParamError,
    3: NotSupportedError,
    4: InternalError,
    5: ExecutionFailedError,
    1002: VersionMismatchError,
    1008: LibraryLoadError,
    3009: LibraryLoadError,
    4003: AllocationError,
    4004: AllocationError,
}

# Advice for statuses that state their cause.
_ADVICE: dict[int, str] = {
    1001: "cuDNN found no usable GPU: check that a driver is installed and `nvidia-smi` lists a device.",
    1002: "libraries of different cuDNN versions are loaded in this process; `cudnn-ct info` lists them.",
    1008: "a sub-library of cuDNN, or the libcuda.so.1 that some need, is missing or cannot be loaded; "
    "`cudnn-ct info` lists them.",
    3007: "this cuDNN has no code for this GPU's architecture; another cuDNN version may have.",
    3008: "a library that cuDNN needs at run time, such as libnvrtc, is missing; `cudnn-ct doctor` names it.",
    3009: "a sub-library or another CUDA library is missing; `cudnn-ct info` lists them.",
}


Warnings = dict[tuple[str, type[Warning]], None]
"""Messages and categories, in order and each once."""


class _Thread(threading.local):
    deferred: Warnings | None = None


_thread = _Thread()


@contextmanager
def deferring(deferred: Warnings) -> Iterator[None]:
    """Collect the warnings of this thread within a block: another thread has the line that called."""
    outer, _thread.deferred = _thread.deferred, deferred
    try:
        yield
    finally:
        _thread.deferred = outer


def warn_caller(message: str, category: type[Warning] = CudnnWarning) -> None:
    """Warn at the line that called the package."""
    if _thread.deferred is not None:
        _thread.deferred[message, category] = None
        return
    frame, level = sys._getframe(1), 2
    # Functions of the package may be decorated by context managers, and modules are imported when needed.
    inner = (*PACKAGES, "contextlib", "importlib", "numpy")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in inner:
        frame = frame.f_back
        level += "_bootstrap" not in frame.f_code.co_filename  # such frames have no level
    warnings.warn(message, category, stacklevel=level)


def without_frames(error: CudnnError) -> CudnnError:
    """Return an error without its frames and those of its causes: they keep arrays of the caller alive."""
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = one.__context__ = None
        one = one.__cause__
    return error


def error_from_status(status: int, function: str, detail: str = "", version: int | None = None) -> CudnnError:
    """Return the exception for a status of a C call, with the text of ``cudnnGetLastErrorString``."""
    cls = _CLASSES.get(status) or _CLASSES.get(status // 1000, CudnnError)
    message = f"{function} returned {_status_name(status)} ({status})"
    if detail:
        message += f": {detail}"
    if version is not None:
        message += f" [cuDNN {format_version(version)}]"
    if status in _ADVICE:
        message += f"\n{_ADVICE[status]}"
    return cls(message, status=status, function=function, detail=detail)


def _status_name(status: int) -> str:
    from ._bindings.enums import Status  # 73 enum classes: only after a failure

    try:
        return f"CUDNN_STATUS_{Status(status).name}"
    except ValueError:
        return "an unknown status"


def _engines(engines: tuple[int, ...]) -> str:
    return f"{'engine' if len(engines) == 1 else 'engines'} {_ranges(engines)}"


def _ranges(numbers: tuple[int, ...]) -> str:
    """Return numbers with ranges: ``"0 to 7, 12"``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(
        f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts
    )


# --- callers -----------------------------------------------------------------------------------------------

_COMMANDS = f"{PACKAGES[0]}.cli"  # and its modules
INNER = {*PACKAGES, "contextlib", "functools", "threading"}  # `cuda.foreign` adds the libraries of arrays
_AT = " at "


class Caller(NamedTuple):
    """An operation such as ``conv``, and a line such as ``train.py:12``; both are empty if unknown."""

    operation: str = ""
    line: str = ""

    def __str__(self) -> str:
        return _AT.join(filter(None, self))


def caller() -> Caller:
    """Return the outermost operation of this package that is running, and the line that called it.

    Only the name of the program's file is kept, without its folder. A method ``__call__`` is its class.
    """
    frame: FrameType | None = sys._getframe(1)
    outermost = ""
    while frame is not None and (package := _module(frame).partition(".")[0]) in INNER:
        if _module(frame).startswith(_COMMANDS):
            return Caller()
        if package in PACKAGES:
            outermost = frame.f_code.co_qualname.removesuffix(".__call__").rpartition("<locals>.")[2]
        frame = frame.f_back
    if frame is None:
        return Caller()
    return Caller(outermost, f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")


# Whether calls run on shapes only, in a block of `array_shapes.only_shapes`; those that need a GPU raise.
on_shapes: ContextVar[bool] = ContextVar("only_shapes", default=False)
# How messages name the callers of `not_on_shapes`, and the calls that take their place.
_ON_SHAPES = {
    "CapturedFunction": ("a function of ct.capture", "call the function itself"),
    "ConvPlan": ("a ConvPlan", "call the operation itself"),
    "conv_bias_activation_plan": ("conv_bias_activation_plan", "call conv_bias_activation instead"),
    "conv_plan": ("conv_plan", "call conv instead"),
}


def not_on_shapes(reason: str = "", instead: str = "leave it out") -> NotInitializedError:
    """Return the error of the running operation, which cannot run on shapes."""
    name = caller().operation.removesuffix(".__init__") or "this call"
    name, instead = _ON_SHAPES.get(name, (name, instead))
    return NotInitializedError(
        f"{name} needs a GPU and cannot run on shapes{reason and f': {reason}'}; in a block of "
        f"record_plans(shapes_only=True), {instead}"
    )


def caller_from(text: str) -> Caller:
    """Return the caller that ``str`` has written; raise no error for another text."""
    operation, _, line = text.partition(_AT)
    return Caller(operation, line)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
