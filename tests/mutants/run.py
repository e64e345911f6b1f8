"""Plants mutants in copies of the project, and runs tests that may notice them."""

from __future__ import annotations

import compileall
import difflib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import cache_from_source
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import cudnn_ct

from .inside import KILLER
from .patterns import DOCTOR, Mutant, file_of
from .reach import Reach

__all__ = ["PACKAGE", "ROOT", "Outcome", "copied", "diff", "run_all"]

ROOT = Path(__file__).parents[2]
PACKAGE = Path(cudnn_ct.__file__).parent  # not below ROOT in a wheel
PARTS = ("tests", "tools", "examples", "docs", "benchmarks")  # and the files at the top
NOT_COPIED = shutil.ignore_patterns("__pycache__", ".*", "*.so")

PASSED, FAILED, NO_COLLECTION, USAGE = 0, 1, 2, 4  # pytest's exit codes


class Outcome(NamedTuple):
    """The end of one mutant.

    ``killer`` is the test that failed, or how the process ended; it is empty for a survivor.
    """

    mutant: Mutant
    killer: str
    tests: int  # that were chosen
    seconds: float


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the project in a temporary folder, compiled, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        root = Path(folder).resolve()
        root.chmod(0o755)
        for name in ("cudnn_ct", "cudnn_ct_dnn", DOCTOR):
            shutil.copytree(PACKAGE.with_name(name), root / name, ignore=NOT_COPIED)
            compileall.compile_dir(root / name, quiet=2)
        for part in PARTS:
            shutil.copytree(ROOT / part, root / part, ignore=NOT_COPIED)
        for path in ROOT.iterdir():
            if path.is_file() and path.name != ".git":
                shutil.copy2(path, root)
        yield root


def run_all(mutants: Iterable[Mutant], reach: Reach, jobs: int, seconds: float) -> Iterator[Outcome]:
    """Run each mutant in one of ``jobs`` copies; yield the outcomes in the order of the mutants."""
    with ExitStack() as stack:
        roots: SimpleQueue[Path] = SimpleQueue()
        for _ in range(jobs):
            roots.put(stack.enter_context(copied()))

        def run(mutant: Mutant) -> Outcome:
            root = roots.get()
            try:
                return _run(root, mutant, reach, seconds)
            finally:
                roots.put(root)

        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        stack.callback(pool.shutdown, cancel_futures=True)
        yield from pool.map(run, mutants)


def diff(mutant: Mutant) -> str:
    """Return the change as a unified diff of the package."""
    source = file_of(PACKAGE, mutant.path).read_bytes()
    before, after = (text.decode().splitlines(keepends=True) for text in (source, mutant.applied(source)))
    name = str(file_of(Path("cudnn_ct"), mutant.path))
    return "".join(difflib.unified_diff(before, after, name, name, n=1))


def _run(root: Path, mutant: Mutant, reach: Reach, seconds: float) -> Outcome:
    start = time.monotonic()
    # The first import of a module runs the lines outside of functions, for all tests that use it later.
    tests = reach.tests_of(mutant.path, mutant.line if mutant.function else 0, seconds)
    if not tests:
        return Outcome(mutant, "", 0, 0.0)
    with _planted(root, mutant):
        spent = sum(reach.seconds[test] for test in tests)
        killer = _killer(root, tests, 60 + 3 * spent)
    return Outcome(mutant, killer, len(tests), time.monotonic() - start)


@contextmanager
def _planted(root: Path, mutant: Mutant) -> Iterator[None]:
    path = file_of(root / "cudnn_ct", mutant.path)
    source = path.read_bytes()
    Path(cache_from_source(str(path))).unlink(missing_ok=True)  # times of files are too coarse to rely on
    path.write_bytes(mutant.applied(source))
    try:
        yield
    finally:
        path.write_bytes(source)


def _killer(root: Path, tests: list[str], seconds: float) -> str:
    """Run tests until one fails; return its name, or how the process ended. Empty: all passed."""
    said, wanted = root / ".killer", root / ".tests"
    said.unlink(missing_ok=True)
    wanted.write_text("\n".join(tests))
    environ = {
        **os.environ,
        KILLER: str(said),
        "PYTHONPATH": str(root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDNN_CT_HYPOTHESIS_PROFILE": "ci",
    }
    options = ["-q", "-x", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "tests.mutants.inside"]
    command = [sys.executable, "-m", "pytest", *options, "--timeout=60", f"@{wanted}"]
    process = subprocess.Popen(
        command,
        cwd=root,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"no end within {seconds:.0f} s"
    finally:
        _end(process)
    if process.returncode == PASSED:
        return ""
    if said.is_file():
        return said.read_text()
    if process.returncode < 0:
        return f"the process ended by {signal.Signals(-process.returncode).name}"
    if process.returncode in (FAILED, NO_COLLECTION, USAGE) and b"in place of the copy" not in output:
        return "the tests could not be collected"
    raise RuntimeError(f"pytest ended with {process.returncode}:\n{output.decode(errors='replace')[-4000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
