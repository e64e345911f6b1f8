"""Hypothesis profiles, the skip of the GPU tier, processes, and the record of a run on a GPU."""

from __future__ import annotations

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

TESTS = Path(__file__).parent
GPU_TESTS = TESTS / "gpu"
TOOLS = TESTS.parent / "tools"


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


def has_gpu() -> bool:
    """Return whether the driver has devices here, without loading it."""
    return any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg"))


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
        sys.path.append(str(TOOLS))
        import gpu_record

        self.path, self.tool = path, gpu_record
        self.sources = gpu_record.hash_sources()  # of the sources that run

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        counts = {"skipped": 0, "passed": 0, "failed": 0}
        failures: list[str] = []
        for name, outcome in (*zip(counts, counts, strict=True), ("error", "failed")):
            reports = [one for one in terminalreporter.stats.get(name, ()) if _of_the_tier(one)]
            counts[outcome] += len(reports)
            failures += [one.nodeid for one in reports if outcome == "failed"]
        if not counts["passed"] + counts["failed"]:
            reason = why_not_on_gpu() or "no test of tests/gpu was selected"
            terminalreporter.write_line(f"no GPU record written: {reason}", red=True)
            return
        self.tool.write(self.path, counts, failures, self.sources)
        terminalreporter.write_line(f"GPU record written to {self.path}: {self.tool.summary(counts)}")


def _of_the_tier(report: pytest.TestReport | pytest.CollectReport) -> bool:
    """Return whether a report belongs to the GPU tier, as does that of a file that cannot be collected."""
    if isinstance(report, pytest.CollectReport):
        return report.nodeid.startswith("tests/gpu/")
    return "gpu" in report.keywords
