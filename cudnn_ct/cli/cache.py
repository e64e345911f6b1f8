"""``cudnn-ct cache``: the file that keeps timed choices."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from ..doctor.terminal import printable
from .errors import FAILED, fail, plainly, usage
from .table import show

if TYPE_CHECKING:
    from ..autotune.store import Store

__all__ = ["command"]

STDOUT = "-"
OFF = "no choices are kept: CUDNN_CT_ALGO_CACHE is off"


@click.group(name="cache")
def command() -> None:
    """Show, clear, export or import the choices of algorithms that were timed here."""


@command.command()
@plainly
def path() -> None:
    """Print the path of the file."""
    from ..autotune.store import store

    here = store().path
    if here is None:
        fail(OFF)
    click.echo(here)


@command.command("show")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@plainly
def show_(as_json: bool) -> None:
    """List the choices: for which problem on which GPU, and what was quickest."""
    from ..autotune.store import store

    kept = store()
    choices = kept.export()
    if as_json:
        told = {"schema": 1, "path": kept.path and str(kept.path), "choices": choices}
        click.echo(json.dumps(told, indent=2))
    elif kept.path is None:
        click.echo(OFF)
    elif choices or not kept.failed:
        _show(kept.path, choices)
    _end(kept)


def _show(path: Path, choices: dict[str, dict[str, Any]]) -> None:
    size = f", {os.path.getsize(path):,} bytes" if path.exists() else ""
    click.echo(f"{printable(str(path))}: {len(choices)} choices{size}")
    if choices:
        columns = (("us", True), ("algorithm", False), ("cuDNN", False), ("GPU", False), ("problem", False))
        show(columns, [_cells(key, choice) for key, choice in choices.items()])


@command.command()
@plainly
def clear() -> None:
    """Forget all choices."""
    from ..autotune.store import store

    kept = store()
    had = len(kept.export())
    kept.clear()
    left = len(kept.export())
    _end(kept)
    if left:
        fail(f"{left} choices are still in {kept.path}")
    click.echo(f"forgot {had} choices" if kept.path else OFF)


@command.command("export")
@click.argument("file", type=click.Path(dir_okay=False, writable=True))
@plainly
def export_(file: str) -> None:
    """Write the choices to FILE, or to stdout for -, for another machine with the same GPU and cuDNN."""
    from ..autotune.store import export_algo_cache

    if file == STDOUT:
        with TemporaryDirectory() as folder:
            path = Path(folder, "algo_cache.json")
            export_algo_cache(path)
            click.echo(path.read_text(encoding="utf-8"), nl=False)
        return
    click.echo(f"wrote {export_algo_cache(file)} choices to {file}")


@command.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@plainly
def import_(file: str) -> None:
    """Read choices from FILE of `cudnn-ct cache export`; they replace those for the same problems."""
    from ..autotune.store import import_algo_cache, store

    with usage():
        count = import_algo_cache(file)
    if store().path is None:
        fail(OFF)
    click.echo(f"took {count} choices from {file}")


def _end(kept: Store) -> None:
    """End the command where a warning has told that the file is of no use."""
    if kept.failed:
        sys.exit(FAILED)


def _cells(key: str, choice: dict[str, Any]) -> list[str]:
    """A choice as far as it can be read: the file may be of other hands."""
    version, device, problem, *_ = [*key.split(" | "), "", ""]
    rows = choice.get("rows")
    best = rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], dict) else {}
    name = " ".join(str(best.get(part, "")) for part in ("backend", "algorithm"))
    rejected = f" ({best['rejected']})" if best.get("rejected") else ""
    return [
        _microseconds(best.get("time_ms")),
        f"{name}{rejected}".strip(),
        version.removeprefix("cuDNN "),
        device,
        problem,
    ]


def _microseconds(milliseconds: object) -> str:
    try:
        return f"{float(milliseconds) * 1000:.1f}" if isinstance(milliseconds, int | float) else "-"
    except OverflowError:  # JSON has integers that no float holds
        return "-"
