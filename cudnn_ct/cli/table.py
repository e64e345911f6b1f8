"""Tables and progress bars: styled on a terminal, plain otherwise."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from ..doctor.terminal import printable

__all__ = ["Column", "Tick", "progress", "show", "styled"]

EMPTY = {"", "-"}
STYLES = {"ok": "green", "failed": "bold red", "skipped": "yellow"}

Column = tuple[str, bool]
"""A heading, and whether the column has numbers."""

Tick = Callable[[str], None]
"""Called after each step with the name of a step."""


def show(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table without the columns that are empty in all rows, because a terminal may be narrow."""
    filled = [place for place in range(len(columns)) if {row[place] for row in rows} - EMPTY or not rows]
    columns = [columns[place] for place in filled]
    rows = [[printable(row[place]) for place in filled] for row in rows]  # cells may come from any file
    if styled(sys.stdout):
        _show_styled(columns, rows)
        return
    cells = [[heading for heading, _ in columns], *rows]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    for row in cells:
        padded = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, (_, number) in zip(row, widths, columns, strict=True)
        )
        click.echo("  ".join(padded).rstrip())


@contextmanager
def progress(what: str, total: int) -> Iterator[Tick]:
    """Show progress on stderr if that is a terminal; yield the function to call after each step."""
    if not _on_terminal(sys.stderr):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda name: bar.update(task, advance=1, description=f"{what} {name}")


def _show_styled(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for heading, number in columns:
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for row in rows:  # as Text, because a path or a message may contain the markup of rich
        table.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in row))
    Console().print(table)


def styled(stream: Any) -> bool:
    """Return whether to use styles: on a terminal, unless NO_COLOR is set."""
    return _on_terminal(stream) and not os.environ.get("NO_COLOR")


def _on_terminal(stream: Any) -> bool:
    return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"
