"""Lines, tables and progress bars: coloured on a terminal, plain otherwise.

Commands print by these functions alone: text may come from any file, environment or library, and a terminal
obeys control characters in it.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click
from rich.console import Console, JustifyMethod
from rich.style import Style
from rich.table import Table
from rich.text import Text

from cudnn_doctor.terminal import is_styled, is_terminal, printable

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
