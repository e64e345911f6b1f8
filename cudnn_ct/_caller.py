"""The operation that a program called, and the line that called it."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import NamedTuple

from .errors import PACKAGES

_COMMANDS = f"{PACKAGES[0]}.cli."
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


def split(text: str) -> Caller:
    """Return the caller that ``str`` has written; raise no error for another text."""
    operation, _, line = text.partition(_AT)
    return Caller(operation, line)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
