"""``cudnn-ct selftest``: compare the results of cuDNN on this GPU with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import click

from .._lib import load
from ..availability import available
from ..errors import CudnnError, format_version
from .device import name_here
from .errors import NOTHING, fail, need_library, plainly
from .selftest_cases import OPERATIONS, cases
from .selftest_cpu import checks
from .selftest_report import COLUMNS, FAILED, OK, SKIPPED, Outcome, as_dict, cells, count
from .selftest_run import attempt
from .table import progress, say, say_json, show


@click.command(name="selftest")
@click.option(
    "--op", multiple=True, type=click.Choice(OPERATIONS), metavar="OP",
    help="Run only this operation; may be repeated.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@plainly
def command(op: tuple[str, ...], as_json: bool) -> None:
    """Compare every operation on the GPU, forward and backward, with NumPy.

    Exits with 0 if all rows pass, with 1 after a failure. Without a GPU it prints the reason, checks the
    parts of cuDNN that need none, and exits with 3 (with 1 if a check fails).
    """
    here = available()
    chosen = list(_on_gpu(op) if here else checks())
    rows = []
    with progress("selftest", len(chosen)) as tick:
        for name, check in chosen:
            tick(name)
            rows.append(check())
    if as_json:
        about = {"device": name_here() if here else None, "reason": here.reason or None}
        say_json(as_dict(rows, cudnn=_version(), **about))
    else:
        show(COLUMNS, [cells(row) for row in rows])
        say()
        say(_summary(rows))
    if failed := count(rows, FAILED):
        reason = "" if here else f"; and no operation was run: {here.reason}"
        fail(f"{failed} of {len(rows)} failed{reason}")
    if not here:
        need_library()
        fail(f"no operation was run: {here.reason}", NOTHING)


def _on_gpu(only: tuple[str, ...]) -> Iterator[tuple[str, Callable[[], Outcome]]]:
    for case in cases():
        if not only or case.operation in only:
            yield case.operation, partial(attempt, case)


def _summary(rows: list[Outcome]) -> str:
    seconds = sum(row.seconds for row in rows)
    counts = [f"{number} {verdict}" for verdict in (OK, FAILED, SKIPPED) if (number := count(rows, verdict))]
    return f"{', '.join(counts)}, in {seconds:.1f} s"


def _version() -> str | None:
    try:
        return format_version(load().version)
    except CudnnError:
        return None
