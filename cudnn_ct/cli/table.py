"""Lines, tables and progress bars: coloured on a terminal, plain otherwise.

Commands print by these functions alone: text may come from any file, environment or library, and a terminal
obeys control characters in it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from ..doctor.terminal import printable

__all__ = ["Column", "Tick", "counted", "progress", "say", "say_json", "say_lines", "show", "styled"]

EMPTY = {"", "-"}
COLORS = {"ok": "green", "failed": "red", "skipped": "yellow"}

Column = tuple[str, bool]
"""A heading, and whether the column has numbers."""

Tick = Callable[[str], None]
"""Called after each step with the name of a step."""


def counted(number: int, noun: str) -> str:
    """Return a number with a noun, such as ``1 graph`` or ``2 graphs``."""
    return f"{number} {noun}{'s' if number != 1 else ''}"


def say(text: object = "", *, label: str = "", err: bool = False) -> None:
    """Print one line, after a label in bold; control characters in the text are escaped."""
    bold = click.style(label, bold=True) if label else ""
    click.echo(bold + printable(str(text)), err=err, color=styled(sys.stderr if err else sys.stdout))


def say_lines(text: object) -> None:
    """Print each line of a text."""
    for line in str(text).splitlines():
        say(line)


def say_json(report: object) -> None:
    """Print one JSON object for programs; JSON has no control characters."""
    click.echo(json.dumps(report, indent=2))


def show(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table without the columns that are empty in all rows, because a terminal may be narrow."""
    filled = [place for place in range(len(columns)) if {row[place] for row in rows} - EMPTY or not rows]
    headings = [columns[place][0] for place in filled]
    lines = [headings, *([printable(row[place]) for place in filled] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        padded = (
            cell.rjust(width) if columns[place][1] else cell.ljust(width)
            for cell, width, place in zip(line, widths, filled, strict=True)
        )
        color = next((COLORS[cell] for cell in line if cell in COLORS), None)
        click.secho("  ".join(padded).rstrip(), fg=color, bold=line is headings, color=styled(sys.stdout))


@contextmanager
def progress(what: str, total: int) -> Iterator[Tick]:
    """Show progress on stderr if that is a terminal; yield the function to call after each step."""
    if not _on_terminal(sys.stderr):
        yield lambda _: None
        return
    with click.progressbar(
        length=total, label=what, file=sys.stderr, item_show_func=lambda name: name or ""
    ) as bar:
        yield lambda name: bar.update(1, name)


def styled(stream: Any) -> bool:
    """Return whether to use styles: on a terminal, unless NO_COLOR is set."""
    return _on_terminal(stream) and not os.environ.get("NO_COLOR")


def _on_terminal(stream: Any) -> bool:
    return bool(stream and stream.isatty()) and os.environ.get("TERM") != "dumb"
