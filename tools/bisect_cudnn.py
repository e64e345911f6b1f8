"""Find the first cuDNN that does not plan a problem, or computes it wrong or slower.

python tools/bisect_cudnn.py 9.8 9.10.2 9.28 --download wheels --gpu h200 --x 8,64,28,28 --w 64,64,3,3
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from bisect_child import difference
from wheels import Cudnn, find_all

from cudnn_ct import _lib
from cudnn_ct._config import config
from cudnn_ct.cli.offline import NoAnswerError, answer_of, gpu_option, read_gpu, start
from cudnn_ct.cli.options import Convolution, convolution_options
from cudnn_ct.cli.output import (
    FAILED,
    NOTHING,
    Column,
    fail,
    plain_warnings,
    plainly,
    progress,
    say,
    say_json,
    show,
    usage,
)
from cudnn_doctor import libraryset, sandbox

# The child imports the same package as this process: its own search path may lead to another cudnn_ct.
OLDEST_PLANNER = (9, 8)  # older versions cannot plan for a described device
TOLERANCES = {"float64": 1e-9, "float32": 5e-3, "float16": 2e-2, "bfloat16": 5e-2}
TOLERANCE = 2e-2  # of the results of a file

GOOD, SKIPPED = "ok", "skipped"
COLUMNS: tuple[Column, ...] = (
    ("cuDNN", False), ("status", False), ("engines", True), ("ms", True), ("error", True), ("", False),
)  # fmt: skip


class Outcome(NamedTuple):
    """The result of one cuDNN.

    ``status`` is ``ok``, ``skipped``, ``does not plan``, ``fails``, ``wrong`` or ``slower``.
    """

    cudnn: Cudnn
    status: str
    reason: str = ""
    engines: tuple[str, ...] = ()
    ms: float | None = None
    error: float | None = None

    @property
    def bad(self) -> bool:
        """Whether this version has the defect that is searched."""
        return self.status not in (GOOD, SKIPPED)


class Limits(NamedTuple):
    """When a result is wrong, a time slow, and a process hung."""

    tolerance: float
    factor: float
    seconds: float


@click.command()
@click.argument("versions", nargs=-1, required=True, metavar="VERSION...")
@partial(convolution_options, required=False)
@click.option("--file", type=click.Path(exists=True, dir_okay=False), help="A Python file with the problem.")
@gpu_option
@click.option(
    "--download", type=click.Path(file_okay=False), metavar="DIR", help="Let pip download missing versions."
)
@click.option("--slower", type=click.FloatRange(min=1, min_open=True), default=1.5, show_default=True)
@click.option("--tolerance", type=click.FloatRange(min=0), help="Largest error of results; by the dtype.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=300.0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@plainly()
def command(
    versions: tuple[str, ...],
    convolution: Convolution | None,
    file: str | None,
    gpu: str | None,
    download: str | None,
    slower: float,
    tolerance: float | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Find the first cuDNN that fails at a problem after one that does not, among several versions.

    A VERSION is the folder of a cuDNN, or a number such as 9.10.2 that is installed or that --download lets
    pip download. Each runs in its own process. On a GPU the results are compared, and times that are larger
    than those of the previous version by the factor --slower. With --gpu cuDNN plans without a GPU.

    The problem is a convolution, or --file FILE.py: with --gpu it defines `graph`, else `call`, which
    returns arrays, and perhaps `reference`, which returns what they should be.

    Example: python tools/bisect_cudnn.py 9.8 9.19 --download wheels --gpu h200 --x 8,64,28,28 --w 64,64,3,3
    """
    if (convolution is None) == (file is None):
        raise click.UsageError("name one problem: a convolution by --x and --w, or --file")
    description = None
    if gpu is not None:
        with usage():
            description = read_gpu(gpu)
    cudnns = find_all(versions, download)
    if tolerance is None:
        tolerance = TOLERANCES.get(convolution.dtype, 0.0) if convolution else TOLERANCE
    limits = Limits(tolerance, slower, seconds)
    request = {
        "device": description,
        "file": file and os.path.abspath(file),
        "convolution": convolution and convolution._asdict(),
        "allow_tf32": config.allow_tf32,
    }
    outcomes = _examined(cudnns, request, limits)
    bad = first_bad(outcomes)
    if as_json:
        rows = [{**row._asdict(), "cudnn": row.cudnn.name, "library": row.cudnn.library} for row in outcomes]
        report = {"schema": 1, "versions": rows, "first_bad": bad and bad.cudnn.name}
        say_json(report)
    else:
        show(COLUMNS, [_cells(row) for row in outcomes])
        say()
        say(verdict(outcomes))
    examined = any(row.status != SKIPPED for row in outcomes)
    sys.exit(NOTHING if not examined else FAILED if any(row.bad for row in outcomes) else 0)


def first_bad(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the oldest bad version that follows a good one; None if no version does."""
    good = next((place for place, row in enumerate(outcomes) if row.status == GOOD), len(outcomes))
    return next((row for row in outcomes[good:] if row.bad), None)


def verdict(outcomes: Sequence[Outcome]) -> str:
    """Return the result in one line."""
    bad = first_bad(outcomes)
    examined = [row for row in outcomes if row.status != SKIPPED]
    if bad is not None:
        last = examined[examined.index(bad) - 1].cudnn.name
        return f"first bad version: {bad.cudnn.name}, {bad.status}: {bad.reason}; {last} is ok"
    wrong = [row for row in examined if row.bad]
    if not wrong:
        return f"no version is bad, of {len(examined)}" if examined else "no version was examined"
    reason = f"{wrong[0].cudnn.name} {wrong[0].status}: {wrong[0].reason}"
    if len(wrong) < len(examined):
        return f"no version is bad after a good one: {wrong[-1].cudnn.name} is the last bad version; {reason}"
    return f"all {len(wrong)} versions are bad; is the problem itself wrong? {reason}"


def _examined(cudnns: Sequence[Cudnn], request: dict[str, Any], limits: Limits) -> list[Outcome]:
    outcomes: list[Outcome] = []
    nvrtc = _lib.load().find_nvrtc() if request["device"] else ""
    with (
        tempfile.TemporaryDirectory(prefix="cudnn-ct-bisect-") as folder,
        progress("versions", len(cudnns)) as tick,
    ):
        for number, cudnn in enumerate(cudnns):
            results = os.path.join(folder, f"{number}.npz")
            asked = {**request, "results": results, "nvrtc": nvrtc}
            if request["device"] and cudnn.version < OLDEST_PLANNER:
                outcome = Outcome(cudnn, SKIPPED, "plans for a described GPU from 9.8 on")
            else:
                outcome = _outcome(cudnn, _ask(cudnn, asked, limits.seconds))
            outcomes.append(_compared(outcome, outcomes, Path(folder), limits))
            tick(cudnn.name)
    return outcomes


def _outcome(cudnn: Cudnn, answer: dict[str, Any]) -> Outcome:
    if "wrong_file" in answer:
        raise click.UsageError(answer["wrong_file"])
    if "no_gpu" in answer:
        fail(f"{answer['no_gpu']}; --gpu plans for a described GPU", NOTHING)
    loaded = answer.get("version", 0)
    expected = cudnn.version[0] * 10_000 + cudnn.version[1] * 100 + cudnn.version[2]
    if loaded and loaded != expected:
        return Outcome(cudnn, "fails", f"the process loaded cuDNN {loaded}, not {expected}")
    if "missing" in answer:
        return Outcome(cudnn, SKIPPED, answer["missing"])
    if "unsupported" in answer:
        return Outcome(cudnn, "does not plan", answer["unsupported"])
    if "failed" in answer:
        return Outcome(cudnn, "fails", answer["failed"])
    return Outcome(
        cudnn, GOOD, engines=tuple(answer.get("engines", ())), ms=answer.get("ms"), error=answer.get("error")
    )


def _compared(outcome: Outcome, before: Sequence[Outcome], folder: Path, limits: Limits) -> Outcome:
    """Compare results with those of the first good version unless there is a reference, and the time."""
    if outcome.bad or outcome.ms is None:
        return outcome
    good = [(place, row) for place, row in enumerate(before) if row.ms is not None and row.status != "wrong"]
    error, source = outcome.error, "the reference"
    if error is None and good:
        place, first = good[0]
        error, source = _difference(folder, place, len(before)), f"cuDNN {first.cudnn.name}"
    outcome = outcome._replace(error=error)
    if error is not None and not error <= limits.tolerance:
        words = f"differs by {error:.1e} from {source}, more than {limits.tolerance:.1e}"
        return outcome._replace(status="wrong", reason=words)
    if good:
        _, last = good[-1]
        assert last.ms is not None
        assert outcome.ms is not None
        if outcome.ms > last.ms * limits.factor:
            times = f"{outcome.ms / last.ms:.1f} times as long as cuDNN {last.cudnn.name}"
            return outcome._replace(status="slower", reason=times)
    return outcome


def _difference(folder: Path, first: int, second: int) -> float:
    with np.load(folder / f"{first}.npz") as before, np.load(folder / f"{second}.npz") as after:
        if len(before.files) != len(after.files):
            return float("inf")
        return max((difference(after[name], before[name]) for name in after.files), default=0.0)


def _ask(cudnn: Cudnn, request: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Run the child process with a cuDNN, and return its answer; a process that dies is a failure."""
    environ = {**os.environ, "CUDNN_CT_LIBRARY": cudnn.library, "CUDNN_CT_ALGO_CACHE": "off"}
    stub: list[int] = []
    if request["device"]:
        found = libraryset.read(os.path.dirname(cudnn.library))
        stub = [sandbox.in_memory(found.driver_functions if found else (), planning=True)]
        loaded = filter(None, [f"/proc/self/fd/{stub[0]}", os.environ.get("LD_PRELOAD")])
        environ["LD_PRELOAD"] = ":".join(loaded)
    try:
        done = start("bisect_child", request, environ, stub, seconds)
    except subprocess.TimeoutExpired:
        return {"failed": f"it takes more than {seconds:.0f} s"}
    except OSError as error:
        return {"failed": f"the process did not start: {error}"}
    finally:
        for descriptor in stub:
            os.close(descriptor)
    try:
        return answer_of(done)
    except NoAnswerError as error:
        return {"failed": f"the process {error}"}


def _cells(row: Outcome) -> list[str]:
    ms = "-" if row.ms is None else f"{row.ms:.4f}"
    error = "-" if row.error is None else f"{row.error:.1e}"
    return [row.cudnn.name, row.status, str(len(row.engines) or "-"), ms, error, row.reason]


if __name__ == "__main__":
    with plain_warnings():
        command()
