"""``cudnn-ct selftest``: compare the results of cuDNN on this GPU with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import click

import cudnn_ct as ct

from .. import _lib
from .._find import find_cudnn
from .._lib import load
from ..availability import available
from ..doctor import diagnose
from ..doctor.finding import Severity
from ..doctor.report import verdict
from ..errors import CudnnError, format_version
from .device import name_here
from .errors import NOTHING, fail, need_library
from .options import json_option
from .selftest_cases import OPERATIONS, cases
from .selftest_report import COLUMNS, FAILED, OK, SKIPPED, Outcome, as_dict, cells, count, outcome_of
from .selftest_run import attempt
from .table import progress, say, say_json, show

# --- the rows of a selftest without a GPU: checks of the parts of cuDNN that need none ---------------------


def checks() -> Iterator[tuple[str, Callable[[], Outcome]]]:
    """Yield the checks by name."""
    for name, check in {"cuDNN loads": _loads, "descriptors": _descriptors, "doctor": _doctor}.items():

        def passed(row: Outcome, check: Callable[[], str] = check) -> Outcome:
            return row._replace(verdict=OK, detail=check())

        yield name, partial(outcome_of, Outcome(name, FAILED), passed, may_lack=False)


def _loads() -> str:
    ct.version()  # raises for a header of another version
    return f"cuDNN {_lib.load().version_text} at {_lib.load().path}"


def _descriptors() -> str:
    specs: dict[Any, Any] = {
        ct.TensorDescriptor: ct.TensorSpec.packed((2, 3, 4, 5), "float16", "nhwc"),
        ct.FilterDescriptor: ct.FilterSpec((8, 3, 3, 3), "float16", "nhwc"),
        ct.ConvolutionDescriptor: ct.ConvolutionSpec((1, 2), (2, 1), (1, 3), groups=2),
        ct.ActivationDescriptor: ct.ActivationSpec("elu", 0.5),
        ct.PoolingDescriptor: ct.PoolingSpec((3, 2), (1, 0), (2, 2), "max"),
        ct.CTCLossDescriptor: ct.CTCLossSpec("softmax", "skip", 100),
        ct.LRNDescriptor: ct.LRNSpec(5, 1e-4, 0.75, 2.0),
        ct.OpTensorDescriptor: ct.OpTensorSpec("mul"),
        ct.ReduceDescriptor: ct.ReduceSpec("add"),
    }
    for kind, spec in specs.items():
        with kind(spec) as made:
            read = made.read()
        if read != spec:
            raise CudnnError(f"{kind.__name__}: cuDNN has {read} for {spec}")
    return f"{len(specs)} created and read back"


def _doctor() -> str:
    """Run the doctor on the cuDNN of this machine, even if it cannot be loaded."""
    diagnosis = diagnose(find_cudnn().path)
    errors = [found for found in diagnosis.findings if found.severity == Severity.ERROR]
    if diagnosis.exit_code():
        raise CudnnError("; ".join(f"{found.code}: {found.message}" for found in errors))
    return verdict(diagnosis)


# --- command -----------------------------------------------------------------------------------------------


@click.command(name="selftest")
@click.option(
    "--op", multiple=True, type=click.Choice(OPERATIONS), metavar="OP",
    help="Run only this operation; may be repeated.",
)  # fmt: skip
@json_option
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
        counts = {verdict: count(rows, verdict) for verdict in (OK, FAILED, SKIPPED)}
        summary = ", ".join(f"{number} {verdict}" for verdict, number in counts.items() if number)
        say(f"{summary}, in {sum(row.seconds for row in rows):.1f} s")
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


def _version() -> str | None:
    try:
        return format_version(load().version)
    except CudnnError:
        return None
