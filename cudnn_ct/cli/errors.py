"""Errors of commands: one line on stderr and an exit code, never a traceback."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from cudnn_doctor.terminal import printable

from ..errors import CudnnError, CudnnWarning

# The exit codes of all commands; click has 2 for wrong usage.
FAILED = 1  # a problem was found
NOTHING = 3  # nothing could be examined: no GPU, no cuDNN, no graphs

DOCTOR = "doctor: "


def fail(text: str, code: int = FAILED) -> NoReturn:
    """Print a line on stderr, and exit."""
    note(text)
    sys.exit(code)


def need_gpu(otherwise: str = "") -> None:
    """Exit with ``NOTHING`` if no GPU can be used; raise CudnnError if cuDNN or its libcublasLt cannot."""
    from ..availability import available

    here = available()
    if not here:
        need_library()
        fail(f"{here.reason}{f'; {otherwise}' if otherwise else ''}", NOTHING)


def need_library() -> None:
    """Raise the error that keeps cuDNN itself from being used, with or without a GPU."""
    from .. import _lib

    _lib.version()  # raises for a header of another version too
    _lib.load().cudnnCreate  # noqa: B018 - bound only once libcublasLt is there


@contextmanager
def usage() -> Iterator[None]:
    """Convert a TypeError or ValueError about the arguments to a usage error."""
    try:
        yield
    except CudnnError:
        raise
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from None


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings of the package in one line each, without the place that they come from."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", CudnnWarning)
        warnings.showwarning = lambda message, *_, **__: note(str(message))
        yield


@contextmanager
def plainly() -> Iterator[None]:
    """Print errors of the package in one line each, with the doctor's verdict, and exit."""
    try:
        yield
    except CudnnError as error:
        for line in verdict_of(error):
            click.echo(printable(line), err=True)
        fail(first_line(error))


def words_of(error: BaseException, program: str) -> str:
    """Return the type and the first line of an exception, and the line of a program that raised it."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename == program]
    words = f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")
    if not frames:
        return words
    inside = f" in {frames[-1].name}" if frames[-1].name != "<module>" else ""
    code = f" ({frames[-1].line})" if not str(error) and frames[-1].line else ""
    return f"line {frames[-1].lineno}{inside}: {words}{code}"


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an exception."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def verdict_of(error: BaseException) -> list[str]:
    """Return the doctor's lines among the notes of an exception."""
    return [note for note in getattr(error, "__notes__", ()) if note.startswith(DOCTOR)]


def note(text: str) -> None:
    """Print a line on stderr without the control characters that names of files may contain."""
    click.echo(f"cudnn-ct: {printable(text, keep=chr(10))}", err=True)
