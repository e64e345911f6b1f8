"""What a command says when something is wrong: one line and an exit code, never a traceback."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from ..doctor.terminal import printable
from ..errors import CudnnError, CudnnWarning

__all__ = [
    "FAILED",
    "NO_GPU",
    "fail",
    "first_line",
    "need_gpu",
    "need_library",
    "plainly",
    "usage",
    "verdict_of",
]

FAILED = 1
NO_GPU = 3  # it could not be tried, as the doctor's 3 is

DOCTOR = "doctor: "


def fail(text: str, code: int = FAILED) -> NoReturn:
    """End the command with a line on stderr."""
    _tell(text)
    sys.exit(code)


def need_gpu(otherwise: str = "") -> None:
    """End the command with ``NO_GPU`` and the reason where there is a cuDNN, and no GPU for it.

    Raises
    ------
    CudnnError
        It is the cuDNN, or its libcublasLt, that cannot be used.
    """
    from ..context import available

    here = available()
    if not here:
        need_library()
        fail(f"{here.reason}{f'; {otherwise}' if otherwise else ''}", NO_GPU)


def need_library() -> None:
    """Raise what keeps cuDNN itself from being used, be there a GPU or not."""
    from .. import _lib

    _lib.version()  # which raises for a header of another version too
    _lib.load().cudnnCreate  # noqa: B018 - bound only once libcublasLt is there


@contextmanager
def usage() -> Iterator[None]:
    """Let what Python refuses in the arguments be a wrong usage."""
    try:
        yield
    except CudnnError:
        raise
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from None


def plainly(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command tell errors and warnings of the package in a line each, with the doctor's verdict."""

    @functools.wraps(command)
    def told(*arguments: Any, **keywords: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("default", CudnnWarning)
            warnings.showwarning = _warn
            try:
                return command(*arguments, **keywords)
            except CudnnError as error:
                for line in verdict_of(error):
                    click.echo(printable(line), err=True)
                fail(first_line(error))
            except OSError as error:  # a file that cannot be written, say; click has those it opens itself
                fail(str(error))

    return told


def first_line(error: BaseException) -> str:
    """The first line of what an exception says."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def verdict_of(error: BaseException) -> list[str]:
    """The doctor's lines among the notes of an exception."""
    return [note for note in getattr(error, "__notes__", ()) if note.startswith(DOCTOR)]


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    _tell(str(message))


def _tell(text: str) -> None:
    """Print a line on stderr; SQLite's errors have names from the file, which a terminal must not obey."""
    click.echo(f"cudnn-ct: {printable(text, keep=chr(10))}", err=True)
