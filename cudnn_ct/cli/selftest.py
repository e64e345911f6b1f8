"""``cudnn-ct selftest``: compare the results of cuDNN on this GPU with NumPy."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

from .device import name_here
from .errors import NO_GPU, fail, need_library, plainly, usage
from .selftest_report import COLUMNS, FAILED, OK, SKIPPED, Outcome, as_dict, as_junit, cells, count
from .table import progress, show

__all__ = ["command"]


@click.command(name="selftest")
@click.option("--op", multiple=True, metavar="OP", help="Run only this operation; may be repeated.")
@click.option("--device", type=click.Path(), metavar="FILE", help="Without a GPU: plan for the one in FILE.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@click.option("--junit", type=click.Path(dir_okay=False), metavar="FILE", help="Write a JUnit report.")
@plainly
def command(op: tuple[str, ...], device: str | None, as_json: bool, junit: str | None) -> None:
    """Compare every operation on the GPU, forward and backward, with NumPy.

    Exits with 0 if all rows pass, with 1 after a failure. Without a GPU it prints the reason, checks the
    parts of cuDNN that need none, and exits with 3 (with 1 if a check fails).
    """
    from ..context import available
    from .offline import read_description

    with usage():
        description = None if device is None else read_description(device)
    names = _operations(op)
    if junit:  # fail before the run, which takes time
        with open(junit, "ab"):
            pass
    here = available()
    rows = _on_gpu(names) if here else _without(description)
    if as_json:
        about = {"device": name_here() if here else None, "reason": here.reason or None}
        click.echo(json.dumps(as_dict(rows, cudnn=_version(), **about), indent=2))
    else:
        show(COLUMNS, [cells(row) for row in rows])
        click.echo(f"\n{_summary(rows)}")
    if junit:  # after the table, so that an error in writing does not lose it
        with open(junit, "wb") as file:
            file.write(as_junit(rows, here.reason))
    if failed := count(rows, FAILED):
        reason = "" if here else f"; and no operation was run: {here.reason}"
        fail(f"{failed} of {len(rows)} failed{reason}")
    if not here:
        need_library()
        fail(f"no operation was run: {here.reason}", NO_GPU)


def _operations(only: tuple[str, ...]) -> tuple[str, ...]:
    """Return the operations to run."""
    from .selftest_cases import OPERATIONS

    if strange := [name for name in only if name not in OPERATIONS]:
        raise click.UsageError(f"unknown operation {strange[0]!r}; expected one of {', '.join(OPERATIONS)}")
    return tuple(name for name in OPERATIONS if not only or name in only)


def _on_gpu(names: tuple[str, ...]) -> list[Outcome]:
    from .selftest_cases import cases
    from .selftest_run import attempt

    chosen = [(case.operation, partial(attempt, case)) for case in cases() if case.operation in names]
    return _run("selftest", chosen)


def _without(description: dict[str, Any] | None) -> list[Outcome]:
    from .selftest_cpu import checks

    return _run("without a GPU:", list(checks(description)))


def _run(what: str, chosen: Sequence[tuple[str, Callable[[], Outcome]]]) -> list[Outcome]:
    rows = []
    with progress(what, len(chosen)) as tick:
        for name, check in chosen:
            tick(name)
            rows.append(check())
    return rows


def _summary(rows: list[Outcome]) -> str:
    seconds = sum(row.seconds for row in rows)
    counts = [f"{number} {verdict}" for verdict in (OK, FAILED, SKIPPED) if (number := count(rows, verdict))]
    return f"{', '.join(counts)}, in {seconds:.1f} s"


def _version() -> str | None:
    from .._lib import load
    from ..errors import CudnnError, format_version

    try:
        return format_version(load().version)
    except CudnnError:
        return None
