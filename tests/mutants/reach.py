"""Record the lines of the package that each test reaches, and the duration of each test.

As a pytest plugin (``-p tests.mutants.reach``) it records a run of the tests, into the file that
``CUDNN_CT_MUTANTS_REACH`` names. Python processes that a test starts record their lines too, through a
``sitecustomize`` in the copy.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from .patterns import DOCTOR, LEFT_OUT

__all__ = ["Reach", "files_of", "measure"]

CALLS = 50  # of one function in one test that are traced: it takes long
NEAR = 10  # lines above one that no test reaches
VARIABLE = "CUDNN_CT_MUTANTS_REACH"
# Scripts that run without site packages, so that nothing is recorded, and the modules that start them.
STARTED_BY = {f"{DOCTOR}/probe.py": f"{DOCTOR}/sandbox.py"}
# Tests that run for long by themselves, or that judge the sources and not their behaviour.
TESTS_LEFT_OUT = ("test_gpu_record.py", "test_mutants.py", "test_fuzz.py", "test_soak.py")

# A child starts before there is a package to import: builtins, os and sys alone.
CHILD = """
import atexit, os, sys
seen, package, doctor = set(), {package!r}, {doctor!r}
def line(frame, event, _):
    seen.add((frame.f_code.co_filename, frame.f_lineno))
    return line
def call(frame, event, _):
    return line if frame.f_code.co_filename.startswith((package, doctor)) else None
def write():
    sys.settrace(None)
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    with open(os.path.join({folder!r}, str(os.getpid())), "a") as file:
        for name, number in seen:
            start = len(package) + 1 if name.startswith(package) else len(os.path.dirname(doctor)) + 1
            file.write("%s\\t%d\\t%s\\n" % (name[start:], number, test))
if os.environ.get("PYTEST_CURRENT_TEST"):  # else it is no child of a test
    leave = os._exit
    def leave_at_once(code):  # as processes of multiprocessing do, without the functions of atexit
        write()
        leave(code)
    os._exit = leave_at_once
    atexit.register(write)
    sys.settrace(call)
"""


class Reach(NamedTuple):
    """Seconds of each test, and the tests of each line; those of line 0 reach the file."""

    seconds: dict[str, float]
    lines: dict[str, dict[int, list[str]]]

    @classmethod
    def read(cls, text: str) -> Reach:
        """Read what :meth:`text` wrote."""
        seconds, places = json.loads(text)
        tests = list(seconds)
        lines = {
            path: {int(line): [tests[place] for place in one] for line, one in of_path.items()}
            for path, of_path in places.items()
        }
        return cls(seconds, lines)

    def text(self) -> str:
        """Write it as JSON, with each test by its place."""
        places = {test: place for place, test in enumerate(self.seconds)}
        lines = {
            path: {line: [places[test] for test in tests] for line, tests in of_path.items()}
            for path, of_path in self.lines.items()
        }
        return json.dumps([self.seconds, lines])

    def add(self, other: Reach) -> None:
        """Take over what was recorded of other tests."""
        self.seconds.update(other.seconds)
        for path, lines in other.lines.items():
            own = self.lines.setdefault(path, {})
            for line, tests in lines.items():
                own.setdefault(line, []).extend(tests)

    def tests_of(self, path: str, line: int, seconds: float) -> list[str]:
        """Return tests that reach a line, then those that reach its file, for a number of seconds.

        The file counts because a line that runs at the import of its module is recorded for one test at most.
        """
        if path in STARTED_BY:
            path, line = STARTED_BY[path], 0
        there = self.lines.get(path, {})
        # A part of a statement may have no line of its own.
        near = next((there[number] for number in range(line, line - NEAR, -1) if there.get(number)), ())
        chosen, spent = [], 0.0
        for test in dict.fromkeys((*self._in_turns(near), *self._in_turns(there.get(0, ())))):
            spent += self.seconds[test]
            if chosen and spent > seconds:
                break
            chosen.append(test)
        return chosen

    def _in_turns(self, tests: Sequence[str]) -> list[str]:
        """Return the fastest test of each file, then the second of each, and so on.

        A line that most tests reach would otherwise be left to the fastest tests, which check the least.
        """
        before: Counter[str] = Counter()
        turns: list[tuple[int, float, str]] = []
        for test in sorted(tests, key=lambda one: (self.seconds[one], one)):
            file = test.partition("::")[0]
            turns.append((before[file], self.seconds[test], test))
            before[file] += 1
        return [test for _, _, test in sorted(turns)]


def measure(root: Path, tests: Sequence[str], seconds: float) -> Reach:
    """Run tests in a copy of the project once, and record what they reach."""
    folder = root / ".reach"
    folder.mkdir()
    package = str(root / "cudnn_ct")
    doctor = str(root / DOCTOR)
    child = CHILD.format(package=package, doctor=doctor, folder=str(folder))
    (root / "sitecustomize.py").write_text(child)
    target = folder / "reach.jsonl"
    environ = {
        **os.environ,
        VARIABLE: str(target),
        "PYTHONPATH": str(root),
        "CUDNN_CT_HYPOTHESIS_PROFILE": "ci",
    }
    # Recording slows tests down, and the limit of one test would end the process without its other tests.
    plugins = ["--timeout=0", "-p", "no:cacheprovider", "-p", "tests.mutants.reach"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, *tests]
    done = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, timeout=seconds)
    if done.returncode not in (0, 1):  # a test that fails here is of no use, and the others are
        raise RuntimeError(f"the tests could not be recorded:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")
    reach = Reach({}, {})
    for test, duration, places in map(json.loads, target.read_text().splitlines()):
        lines = {path: {line: [test] for line in (0, *numbers)} for path, numbers in places.items()}
        reach.add(Reach({test: duration}, lines))
    for path in folder.glob("[0-9]*"):
        _add_child(reach, path)
    return reach


def files_of(root: Path, tiers: Sequence[str]) -> list[str]:
    """The files of tests below folders of a project, or named, without those that are left out."""
    found = [
        path
        for tier in tiers
        for path in (sorted((root / tier).rglob("test_*.py")) if (root / tier).is_dir() else [root / tier])
    ]
    return [str(path.relative_to(root)) for path in found if path.name not in TESTS_LEFT_OUT]


def _add_child(reach: Reach, path: Path) -> None:
    for row in path.read_text().splitlines():
        file, number, test = row.split("\t")
        if test in reach.seconds:
            for line in (0, int(number)):
                tests = reach.lines.setdefault(file, {}).setdefault(line, [])
                if test not in tests:
                    tests.append(test)


# --- the plugin --------------------------------------------------------------------------------------------


class _Recorder:
    """Traces the lines of the package; in each test, those of the first calls of a function alone.

    What is recorded goes to a file at once: in memory it would slow every garbage collection of the tests.
    """

    def __init__(self, package: str, target: Path) -> None:
        self.package, self.doctor = package, str(Path(package).with_name(DOCTOR))
        self.left_out = tuple(f"{package}/{part}/" for part in LEFT_OUT)  # no mutants, and many lines
        self.target = target
        self.seconds: float | None = None  # of the present test, once it has passed
        self.seen: set[tuple[CodeType, int]] = set()
        self.calls: Counter[CodeType] = Counter()

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        code, file = frame.f_code, frame.f_code.co_filename
        if self.calls[code] == CALLS:
            return None
        self.calls[code] += 1
        own = file.startswith((self.package, self.doctor))
        return self.line if own and not file.startswith(self.left_out) else None

    def line(self, frame: FrameType, event: str, _: Any) -> Any:
        self.seen.add((frame.f_code, frame.f_lineno))
        return self.line

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.seen, self.calls, self.seconds = set(), Counter(), None
        threading.settrace(self.trace)
        sys.settrace(self.trace)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.passed and report.when == "call":
            self.seconds = round(report.duration, 3)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        if self.seconds is None:
            return
        places: dict[str, list[int]] = {}
        for code, line in self.seen:
            file = Path(code.co_filename)
            root = self.package if file.is_relative_to(self.package) else Path(self.doctor).parent
            places.setdefault(str(file.relative_to(root)), []).append(line)
        rows = {path: sorted(set(lines)) for path, lines in sorted(places.items())}
        with self.target.open("a") as file:
            file.write(json.dumps([nodeid, self.seconds, rows]) + "\n")


def pytest_configure(config: Any) -> None:
    if target := os.environ.get(VARIABLE):
        recorder = _Recorder(str(config.rootpath / "cudnn_ct"), Path(target))
        config.pluginmanager.register(recorder, "mutants-reach")
