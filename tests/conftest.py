"""Hypothesis profiles, the skip of the GPU tier, processes, and the record of a run on a GPU."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ["CUDNN_CT_ALGO_CACHE"] = "off"  # before the package is imported: tests keep nothing in a home

# Before NumPy is imported: each process of pytest-xdist gets its share of the cores. By default the BLAS of
# each process starts one thread for each core, and threads that wait occupy a core.
if _processes := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    _threads = str(max(1, (os.cpu_count() or 1) // _processes))
    for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(_name, _threads)


def has_gpu() -> bool:
    """Return whether the driver has devices here, without loading it."""
    return any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg"))


# The fakes keep device memory on the host, and pointers are numbers above 2**32. The heap of a Python that is
# not position-independent, such as Debian's, is below: malloc in pytest-xdist's processes maps memory there.
# On a GPU, tests that compile engines and load libraries take five times as long with it.
if not has_gpu() and ctypes.addressof(ctypes.create_string_buffer(4096)) < 2**32:
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": "1", "MALLOC_MMAP_MAX_": str(10**8)}

TESTS = Path(__file__).parent
GPU_TESTS = TESTS / "gpu"
TOOLS = TESTS.parent / "tools"
SECONDS = TESTS / "gpu_seconds.json"
JOURNALS = {True: ".tests", False: ".tests-off"}  # files next to a record: its tests with and without replays
LONG = 8.0  # seconds


# --- hypothesis --------------------------------------------------------------------------------------------

# No deadline anywhere: the first call of a shape may load kernels, and CI machines pause. Fixtures of this
# suite are safe to share between examples.
_COMMON = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}
settings.register_profile("ci", max_examples=25, derandomize=True, **_COMMON)
settings.register_profile("default", max_examples=25, **_COMMON)
settings.register_profile("nightly", max_examples=5_000, **_COMMON)
settings.load_profile(
    os.environ.get("CUDNN_CT_HYPOTHESIS_PROFILE")
    or ("ci" if os.environ.get("CI", "").lower() in ("1", "true") else "default")
)


# --- the GPU tier ------------------------------------------------------------------------------------------


@cache
def why_not_on_gpu() -> str:
    """Return why operations cannot run here, in one line; empty where they can."""
    import cudnn_ct as ct

    available = ct.available()
    return "" if available else str(available.reason)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier = [item for item in items if GPU_TESTS in item.path.parents]
    for item in tier:
        item.add_marker(pytest.mark.gpu)
    if not has_gpu():  # one test of each module is skipped, with the reason
        kept = {item.path: item for item in reversed(tier)}
        deselected = {*tier} - {*kept.values()}
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in deselected]
    if record := config.getoption("--gpu-record"):
        leave_out_what_replayed_nothing(config, items, Path(record))
        leave_out_what_ran(config, items, Path(record))
    if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
        items[:] = long_first(items, read_seconds(), workers)


def leave_out_what_replayed_nothing(config: pytest.Config, items: list[pytest.Item], record: Path) -> None:
    """Without replays, deselect the tests that replayed nothing: they would run as before."""
    if gpu_record_tool().replays_are_on() or (journal := read_journal(record, replays=True)) is None:
        return
    keep_only(config, items, lambda test: test in journal and journal[test][1])


def leave_out_what_ran(config: pytest.Config, items: list[pytest.Item], record: Path) -> None:
    """Deselect the tests that an interrupted run has ended, where only the rest is to run."""
    tool = gpu_record_tool()
    if os.environ.get(tool.MODE) == tool.REST:
        journal = read_journal(record, replays=tool.replays_are_on()) or {}
        keep_only(config, items, lambda test: test not in journal)


def keep_only(config: pytest.Config, items: list[pytest.Item], wanted: Callable[[str], bool]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if not wanted(item.nodeid)])
    items[:] = [item for item in items if wanted(item.nodeid)]


def read_journal(record: Path, *, replays: bool) -> dict[str, tuple[str, bool]] | None:
    """Return the outcome of each test, and whether it replayed a call or had children; None if unknown.

    The tests of other sources are unknown.
    """
    try:
        first, *lines = record.with_suffix(JOURNALS[replays]).read_text().splitlines()
    except FileNotFoundError:
        return None
    if first != gpu_record_tool().hash_sources():
        return None
    rows = (line.split(" ", 2) for line in lines)
    return {test: (outcome, replayed == "replayed") for outcome, replayed, test in rows}


def read_seconds() -> dict[str, int]:
    """Return how long the longest tests of the GPU tier took, by their ids."""
    return json.loads(SECONDS.read_text()) if SECONDS.is_file() else {}


def long_first(items: list[pytest.Item], seconds: dict[str, int], workers: int) -> list[pytest.Item]:
    """Deal the long tests to the beginnings of the parts that work stealing gives to the processes.

    Otherwise the last process to end is one that has just begun a long test.
    """
    long = sorted((item for item in items if item.nodeid in seconds), key=lambda item: -seconds[item.nodeid])
    short = [item for item in items if item.nodeid not in seconds]
    parts: list[pytest.Item] = []
    for worker in range(workers):
        mine = long[worker::workers]
        size = (len(items) - len(parts)) // (workers - worker)
        parts += [*mine, *short[: max(0, size - len(mine))]]
        del short[: max(0, size - len(mine))]
    return parts + short


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection: the fakes collect twice in every test."""
    gc.collect()
    gc.freeze()


# Before other fixtures of the test, and not while collecting: asking loads cuDNN and the driver.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (reason := why_not_on_gpu()):
        pytest.skip(reason)


# --- facts ------------------------------------------------------------------------------------------------


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return a function that adds a fact, as a user would: an engine that computes wrong results."""
    import cudnn_ct as ct
    from cudnn_ct import facts, testing

    def added(**fields: Any) -> None:
        row = {"name": "planted", "kind": "engine", "when": [], "effect": "wrong", **fields}
        file = tmp_path / "facts.json"
        file.write_text(json.dumps({"facts": [row]}))
        monkeypatch.setattr(ct.config, "facts", str(file))
        facts.forget()
        testing.reset()

    yield added
    monkeypatch.undo()
    facts.forget()
    testing.reset()


# --- processes --------------------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Limit ``-n auto`` to two processes if there is a GPU: each process allocates workspaces on it."""
    return 2 if has_gpu() else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give each process a contiguous part of the tests, so that most modules compute shared values once."""
    if config.getoption("dist") != "load":  # another was named
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


# --- the record of a run -----------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--gpu-record",
        nargs="?",
        const=str(TESTS / "gpu_record.json"),
        metavar="PATH",
        help="write the device and the outcomes of tests/gpu to PATH (default: tests/gpu_record.json)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a GPU that cuDNN can use; given to all of tests/gpu")
    config.addinivalue_line("markers", "nightly: too long for every change; .ci/nightly runs it")
    config.addinivalue_line("markers", "alone: takes most of the memory of a device; others wait")
    record = config.getoption("--gpu-record")
    if record and not hasattr(config, "workerinput"):  # with xdist, the controller counts
        if not record.endswith(".json"):
            raise pytest.UsageError(f"--gpu-record=PATH must be a .json file, written with =: got {record}")
        if not (TOOLS / "gpu_record.py").is_file():
            raise pytest.UsageError(f"--gpu-record needs {TOOLS / 'gpu_record.py'}, which does not exist")
        config.pluginmanager.register(GpuRecorder(Path(record)), "gpu-recorder")


class GpuRecorder:
    """Counts the outcomes of the GPU tier, and writes them at the end."""

    def __init__(self, path: Path) -> None:
        self.path, self.tool = path, gpu_record_tool()
        self.sources = self.tool.hash_sources()  # of the sources that run
        self.seconds: dict[str, float] = {}
        self.outcomes: dict[str, str] = {}
        replays = self.tool.replays_are_on()
        self.journal = path.with_suffix(JOURNALS[replays])
        known = read_journal(path, replays=replays) if os.environ.get(self.tool.MODE) else None
        self.earlier = known or {}  # the tests of the journal before this run, which adds to it

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not _of_the_tier(report):
            return
        if not self.outcomes and not self.earlier:
            self.journal.write_text(f"{self.sources}\n")
        test = report.nodeid
        self.seconds[test] = self.seconds.get(test, 0) + report.duration
        if self.outcomes.get(test, "passed") == "passed":
            self.outcomes[test] = report.outcome
        if report.when == "teardown":
            replayed = ("replayed", True) in map(tuple, report.user_properties)
            with self.journal.open("a") as file:  # at once: this run may be interrupted
                file.write(f"{self.outcomes[test]} {'replayed' if replayed else '-'} {test}\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        counts = {"skipped": 0, "passed": 0, "failed": 0}
        failures: list[str] = []
        for name, outcome in (*zip(counts, counts, strict=True), ("error", "failed")):
            reports = [one for one in terminalreporter.stats.get(name, ()) if _of_the_tier(one)]
            counts[outcome] += len(reports)
            failures += [one.nodeid for one in reports if outcome == "failed"]
        if os.environ.get(self.tool.MODE) == self.tool.REST:
            for test, (outcome, _) in self.earlier.items():
                counts[outcome] += 1
                failures += [test] * (outcome == "failed")
        if not counts["passed"] + counts["failed"]:
            reason = why_not_on_gpu() or "no test of tests/gpu was selected"
            terminalreporter.write_line(f"no GPU record written: {reason}", red=True)
            return
        self.tool.write(self.path, counts, failures, self.sources)
        if self.tool.replays_are_on():
            self._write_seconds()
        terminalreporter.write_line(f"GPU record written to {self.path}: {self.tool.summary(counts)}")

    def _write_seconds(self) -> None:
        """Keep which tests are long."""
        long = {name: round(seconds) for name, seconds in self.seconds.items() if seconds >= LONG}
        SECONDS.write_text(json.dumps(read_seconds() | long, indent=0, sort_keys=True) + "\n")


def gpu_record_tool() -> Any:
    """Import tools/gpu_record.py."""
    if str(TOOLS) not in sys.path:
        sys.path.append(str(TOOLS))
    import gpu_record

    return gpu_record


def _of_the_tier(report: pytest.TestReport | pytest.CollectReport) -> bool:
    """Return whether a report belongs to the GPU tier, as does that of a file that cannot be collected."""
    if isinstance(report, pytest.CollectReport):
        return report.nodeid.startswith("tests/gpu/")
    return "gpu" in report.keywords
