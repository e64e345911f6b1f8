"""Reasons why cuDNN rejects a graph: its own lines for each engine, received by a callback."""

# cuDNN's last error text has one line, or none. A callback receives the line of every check that failed.
# It is set only after planning has failed, so that successful calls have no additional cost.

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from .._bindings.types import cudnnCallback_t
from ..context import Context
from ..errors import CudnnError
from .backend import BackendDescriptor, attempt
from .engines import Knobs, engine_config, engine_descriptor, knob_number
from .offline import Planner
from .operations import Graph, operation_graph

LEVELS = 1 << 1 | 1 << 2  # errors and warnings; the level below also prints every argument of every call
_HEAD = re.compile(r"\s*(?:Warning|Error): (CUDNN_STATUS_\w+); Reason: (.*)", re.DOTALL)
_ADDRESS = re.compile(r"0x[0-9a-f]+")
KNOB_NEEDED = ("knob must be set", "process_knob_choices()")  # the latter in cuDNN 9.19
MAX_VALUES = 64
_lock = threading.RLock()  # the callback belongs to the process


class _Thread(threading.local):
    """The lines that this thread records; None if it does not record."""

    lines: list[Line] | None = None


_thread = _Thread()


class Line(NamedTuple):
    """One failed check: cuDNN's status, and its text."""

    status: str
    text: str


class EngineLines(NamedTuple):
    """The failed checks of one engine, the first cause first; ``number`` is -1 for the graph itself."""

    number: int
    lines: tuple[Line, ...]


def parse(text: str) -> Line | None:
    """Parse a line of a message; None if it is not a failed check.

    >>> parse("    Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: Engine 5 is not enabled for MATMUL at: true")
    Line(status='CUDNN_STATUS_NOT_SUPPORTED', text='Engine 5 is not enabled for MATMUL at: true')
    """
    found = _HEAD.fullmatch(text)
    return Line(found[1], " ".join(found[2].split())) if found else None


@contextmanager
def recorded(library: Any) -> Iterator[list[Line]]:
    """Record cuDNN's failed checks of this thread, and restore the callback that was there before.

    Messages of other threads go to that callback only after the recording. Threads record one after another.
    """
    lines: list[Line] = []
    with _lock:
        mask, user_data, previous = ctypes.c_uint(), ctypes.c_void_p(), cudnnCallback_t()
        library.cudnnGetCallback(ctypes.byref(mask), ctypes.byref(user_data), ctypes.byref(previous))
        library.cudnnSetCallback(LEVELS, None, _callback())
        outer, _thread.lines = _thread.lines, lines
        try:
            yield lines
        finally:
            _thread.lines = outer
            library.cudnnSetCallback(mask.value, user_data, previous)


@cache
def _callback() -> Any:
    """Return the function that cuDNN calls with messages, which is never freed.

    Another thread may have read its address before the recording ended, and call it afterwards.
    """
    return cudnnCallback_t(_record)


def _record(severity: int, user_data: Any, debug: Any, message: Any) -> None:  # noqa: ARG001
    if _thread.lines is not None:
        found = (parse(text.decode("utf-8", "replace")) for text in message.lines())
        _thread.lines.extend(line for line in found if line is not None)


def lines_of_graph(graph: Graph, context: Context | Planner) -> list[EngineLines]:
    """Return the failed checks of each engine, or of the graph with the number -1; nothing is compiled."""
    if not isinstance(context, Planner):
        context.last_graph = None  # made again, while the callback is there
    with recorded(context.library) as lines:
        native = attempt(operation_graph, graph, context)
        if isinstance(native, CudnnError):
            return [EngineLines(-1, tuple(lines) or (Line("", native.detail or str(native)),))]
        rows = []
        for number in range(native.one("engine_global_count")):
            del lines[:]
            supported = _supports(native, number, context, lines)
            rows.append(EngineLines(number, () if supported else _causes(lines)))
    return rows


def _causes(lines: list[Line]) -> tuple[Line, ...]:
    """Return the lines of an engine without repetition; addresses differ from run to run."""
    cleaned = (line._replace(text=_ADDRESS.sub("0x..", line.text)) for line in lines)
    return tuple(dict.fromkeys(cleaned)) or (Line("", "no reason"),)


def _supports(native: BackendDescriptor, number: int, context: Context | Planner, lines: list[Line]) -> bool:
    """Return whether an engine supports a graph: then the size of its workspace is known."""
    engine = attempt(engine_descriptor, native, number, context)
    if isinstance(engine, CudnnError):
        return False
    if _has_workspace(engine, ()):
        return True
    if not any(text in line.text for line in lines for text in KNOB_NEEDED):
        return False
    # Engines for attention have no default for the first of their knobs.
    del lines[:]
    first = engine.children("knob_info", "knob_info", engine.count("knob_info"))[0]
    values = range(first.one("minimum_value"), first.one("maximum_value") + 1)[:MAX_VALUES]
    kind = knob_number(first.one("type"))
    return any(_has_workspace(engine, ((kind, value),)) for value in values)


def _has_workspace(engine: BackendDescriptor, knobs: Knobs) -> bool:
    size = attempt(lambda: engine_config(engine, knobs).one("workspace_size"))
    return not isinstance(size, CudnnError)
