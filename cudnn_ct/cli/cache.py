"""``cudnn-ct cache``: manage the algorithm cache, the folder of tuned algorithms."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from ..autotune.store import Store, export_algo_cache, import_algo_cache, store
from ..doctor.terminal import printable
from .errors import FAILED, fail, plainly, usage
from .table import show

__all__ = ["command"]

COLUMNS = (("us", True), ("algorithm", False), ("cuDNN", False), ("GPU", False), ("problem", False))
OFF = "the algorithm cache is disabled: CUDNN_CT_ALGO_CACHE is off"


@click.group(name="cache")
def command() -> None:
    """Show, clear, export or import the algorithms that were tuned on this machine."""


@command.command()
@plainly
def path() -> None:
    """Print the path of the folder."""
    here = store().path
    if here is None:
        fail(OFF)
    click.echo(here)


@command.command("show")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@plainly
def show_(as_json: bool) -> None:
    """List the fastest algorithm of each problem and GPU."""
    kept = store()
    choices = kept.export()
    if as_json:
        report = {"schema": 1, "path": kept.path and str(kept.path), "choices": choices}
        click.echo(json.dumps(report, indent=2))
    elif kept.path is None:
        click.echo(OFF)
    elif choices or not kept.failed:
        click.echo(f"{printable(str(kept.path))}: {len(choices)} tuned algorithms")
        if choices:
            show(COLUMNS, [_cells(key, choice) for key, choice in choices.items()])
    _end(kept)


@command.command()
@plainly
def clear() -> None:
    """Delete all tuned algorithms."""
    kept = store()
    had = len(kept.export())
    kept.clear()
    left = len(kept.export())
    _end(kept)
    if left:
        fail(f"{left} tuned algorithms remain in {kept.path}")
    click.echo(f"deleted {had} tuned algorithms" if kept.path else OFF)


@command.command("export")
@click.argument("file", type=click.Path(dir_okay=False, writable=True))
@plainly
def export_(file: str) -> None:
    """Write the tuned algorithms to FILE, for other machines with this GPU and cuDNN."""
    click.echo(f"wrote {export_algo_cache(file)} tuned algorithms to {file}")


@command.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@plainly
def import_(file: str) -> None:
    """Read tuned algorithms from FILE of `cudnn-ct cache export`, replacing those of the same problems."""
    with usage():
        count = import_algo_cache(file)
    if store().path is None:
        fail(OFF)
    click.echo(f"imported {count} tuned algorithms from {file}")


def _end(kept: Store) -> None:
    """Exit with an error if a warning has reported that the folder or a file in it is not usable."""
    if kept.failed:
        sys.exit(FAILED)


def _cells(key: str, choice: dict[str, Any]) -> list[str]:
    """Return the cells of a record, as far as it can be read: its file may be malformed."""
    version, device, problem, *_ = [*key.split(" | "), "", ""]
    rows = choice.get("rows")
    best = rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], dict) else {}
    name = " ".join(str(best.get(part, "")) for part in ("backend", "algorithm"))
    rejected = f" ({best['rejected']})" if best.get("rejected") else ""
    time = _microseconds(best.get("time_ms"))
    return [time, f"{name}{rejected}".strip(), version.removeprefix("cuDNN "), device, problem]


def _microseconds(milliseconds: object) -> str:
    try:
        return f"{float(milliseconds) * 1000:.1f}" if isinstance(milliseconds, int | float) else "-"
    except OverflowError:  # JSON has integers that no float holds
        return "-"
