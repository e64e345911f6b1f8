"""The operation that a program called, and the line that called it."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import NamedTuple

__all__ = ["NOBODY", "Caller", "caller", "split"]

_PACKAGE = __name__.partition(".")[0]
_COMMANDS = f"{_PACKAGE}.cli."
_BETWEEN = ("contextlib", "functools", "threading")
_AT = " at "


class Caller(NamedTuple):
    """An operation such as ``conv``, and a line such as ``train.py:12``; both are empty if unknown."""

    operation: str = ""
    line: str = ""

    def __str__(self) -> str:
        return _AT.join(filter(None, self))


NOBODY = Caller()


def caller() -> Caller:
    """Return the outermost operation of this package that is running, and the line that called it.

    Only the name of the program's file is kept, without its folder.
    """
    frame: FrameType | None = sys._getframe(1)
    last: FrameType | None = None
    while frame is not None and (_of_package(frame) or frame.f_globals.get("__name__") in _BETWEEN):
        last = frame if _of_package(frame) else last
        frame = frame.f_back
    if frame is None or last is None or last.f_globals.get("__name__", "").startswith(_COMMANDS):
        return NOBODY
    file = os.path.basename(frame.f_code.co_filename)
    return Caller(_operation(last), f"{file}:{frame.f_lineno}")


def split(text: str) -> Caller:
    """Return the caller that ``str`` has written; raise no error for another text."""
    operation, _, line = text.partition(_AT)
    return Caller(operation, line)


def _of_package(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    return isinstance(name, str) and name.partition(".")[0] == _PACKAGE


def _operation(frame: FrameType) -> str:
    """Return the name of a function; for a method that is called like a function, that of its class."""
    return frame.f_code.co_qualname.removesuffix(".__call__").rpartition("<locals>.")[2]
