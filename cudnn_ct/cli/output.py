"""Output of commands: lines, tables, progress bars and errors; coloured on a terminal, plain otherwise.

Commands print by these functions alone: text may come from any file, environment or library, and a terminal
obeys control characters in it. An error is one line on stderr and an exit code, never a traceback.
"""

from __future__ import annotations

import io
import json
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import click
from rich.console import Console, JustifyMethod
from rich.style import Style
from rich.table import Table
from rich.text import Text

from cudnn_doctor.finding import is_styled, is_terminal, printable

from ..errors import CudnnError, CudnnWarning

EMPTY = {"", "-"}
WIDTH = 80  # columns of a narrow terminal
UNLIMITED = 1 << 20  # columns of a file or a pipe
COLORS = {"ok": "green", "failed": "red", "skipped": "yellow"}

Column = tuple[str, bool]
"""A heading, and whether the column has numbers."""

Tick = Callable[[str], None]
"""Called after each step with the name of a step."""


def counted(number: int, noun: str) -> str:
    """Return a number with a noun, such as ``1 graph`` or ``2 graphs``."""
    return f"{number} {noun}{'s' if number != 1 else ''}"


def in_bytes(number: int) -> str:
    """Return a number of bytes with a unit, such as ``131 B`` or ``1.0 MiB``."""
    size, units = float(number), ["GiB", "MiB", "KiB"]
    while size >= 1000 and units:
        size, unit = size / 1024, units.pop()
    return f"{size:.1f} {unit}" if number >= 1000 else f"{number} B"


def say(text: object = "", *, label: str = "", err: bool = False) -> None:
    """Print one line, after a label in bold; control characters in the text are escaped."""
    bold = click.style(label, bold=True) if label else ""
    click.echo(bold + printable(str(text)), err=err, color=is_styled(sys.stderr if err else sys.stdout))


def say_lines(text: object) -> None:
    """Print each line of a text."""
    for line in str(text).splitlines():
        say(line)


def say_json(report: object) -> None:
    """Print one JSON object for programs; JSON has no control characters."""
    click.echo(json.dumps(report, indent=2))


def show(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int = 0) -> None:
    """Print a table without the columns that are empty in all rows, because a terminal may be narrow.

    The last column is folded at ``width`` characters: by default, at the width of a terminal, and not at all
    in a file or a pipe.
    """
    filled = [place for place in range(len(columns)) if {row[place] for row in rows} - EMPTY or not rows]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place in filled:
        name, number = columns[place]
        folds = place == filled[-1]
        side: JustifyMethod = "right" if number else "left"
        table.add_column(Text(name), justify=side, no_wrap=not folds, overflow="fold")
    for row in rows:
        color = next((COLORS[cell] for cell in row if cell in COLORS), None)
        table.add_row(*(Text(printable(row[place])) for place in filled), style=Style(color=color))
    room, colors = width or (None if is_terminal(sys.stdout) else UNLIMITED), is_styled(sys.stdout)
    printed = io.StringIO()
    Console(
        file=printed, width=room, force_terminal=colors, color_system="standard" if colors else None
    ).print(table)
    for line in printed.getvalue().splitlines():
        click.echo(line.rstrip(), color=colors)


@contextmanager
def progress(what: str, total: int) -> Iterator[Tick]:
    """Show progress on stderr if that is a terminal; yield the function to call after each step."""
    if not is_terminal(sys.stderr):
        yield lambda _: None
        return
    with click.progressbar(
        length=total, label=what, file=sys.stderr, item_show_func=lambda name: name or ""
    ) as bar:
        yield lambda name: bar.update(1, name)


# --- errors ------------------------------------------------------------------------------------------------


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
