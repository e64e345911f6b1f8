"""Reasons for which cuDNN rejects a graph, from the messages that it logs.

The status of a rejected graph is the same for most problems; the messages name the cause for each engine.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .._bindings.types import cudnnCallback_t
from ..context import Context
from ..errors import CudnnError
from .engines import HEURISTICS, heuristic_configs
from .offline import Planner
from .operations import Graph, operation_graph

__all__ = ["rejection_reasons"]

MAX_REASONS = 6
SEVERITIES = 0b111  # fatal errors, errors and warnings

_REASON = re.compile(r"(?:Warning|Error): (CUDNN_STATUS_\w+); Reason: (.*)")
# Conditions in cuDNN's sources that only repeat that a call has failed, and engines of other architectures.
_REPEATS = re.compile(
    r"!?[\w.:>-]+\(.*\)|\(CUDNN_STATUS_NOT_INITIALIZED == status\).*|.*redirecting to .*"
    r"|.*only supported since \w+ architecture"
)

_lock = threading.Lock()  # the callback belongs to the process


def rejection_reasons(graph: Graph, context: Context | Planner) -> list[str]:
    """Return why cuDNN's heuristics have no engine for a graph, each reason once; empty if unknown.

    The heuristics are queried again, while cuDNN's messages are recorded.
    """
    with _recorded_messages(context.library) as lines:
        for mode in HEURISTICS:
            with suppress(CudnnError):
                native = operation_graph(graph, context)
                if next(heuristic_configs(native, context, [mode], 1), None):
                    break
    found = [match.groups() for match in map(_REASON.search, lines) if match]
    reasons = [
        f"{reason.partition(' at: ')[0].strip()} [{status}]"
        for status, reason in found
        if not _REPEATS.fullmatch(reason.strip())
    ]
    return list(dict.fromkeys(reasons))[:MAX_REASONS]


@contextmanager
def _recorded_messages(library: Any) -> Iterator[list[str]]:
    """Record the lines that cuDNN logs meanwhile, instead of passing them to the callback of the process."""
    lines: list[str] = []

    def record(severity: int, data: Any, about: Any, message: Any) -> None:  # noqa: ARG001
        lines.extend(line.decode("utf-8", "replace") for line in message.lines())

    callback = cudnnCallback_t(record)
    mask, data, previous = ctypes.c_uint(), ctypes.c_void_p(), cudnnCallback_t()
    with _lock:
        library.cudnnGetCallback(ctypes.byref(mask), ctypes.byref(data), ctypes.byref(previous))
        library.cudnnSetCallback(mask.value | SEVERITIES, None, callback)
        try:
            yield lines
        finally:
            library.cudnnSetCallback(mask, data, previous)
