"""What all tiers share: hypothesis profiles, the skip of the GPU tier, and the record of a run on a GPU."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

os.environ["CUDNN_CT_ALGO_CACHE"] = "off"  # before the package is imported: tests keep nothing in a home

TESTS = Path(__file__).parent
GPU_TESTS = TESTS / "gpu"
GPU_RECORD_TOOL = TESTS.parent / "tools" / "gpu_record.py"


# --- hypothesis --------------------------------------------------------------------------------------------

# No deadline anywhere: the first call of a shape may load kernels, and CI machines pause. Fixtures of this
# suite are safe to share between examples.
_COMMON = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}
settings.register_profile("ci", max_examples=50, derandomize=True, **_COMMON)
settings.register_profile("default", max_examples=100, **_COMMON)
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if GPU_TESTS in item.path.parents:
            item.add_marker(pytest.mark.gpu)


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection: the fakes collect twice in every test."""
    gc.collect()
    gc.freeze()


# Before other fixtures of the test, and not while collecting: asking loads cuDNN and the driver.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (reason := why_not_on_gpu()):
        pytest.skip(reason)


# --- processes --------------------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Limit ``-n auto`` to two processes if there is a GPU: each process allocates workspaces on it."""
    return 2 if any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg")) else None


# --- the record of a run -----------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--gpu-record",
        nargs="?",
        const=str(TESTS / "gpu_record.json"),
        metavar="PATH",
        help="write what tests/gpu gave on which device to PATH (default: tests/gpu_record.json)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a GPU that cuDNN can use; given to all of tests/gpu")
    config.addinivalue_line("markers", "nightly: too long for every change; .ci/nightly runs it")
    config.addinivalue_line("markers", "alone: takes most of the memory of a device; others wait")
    record = config.getoption("--gpu-record")
    if record and not hasattr(config, "workerinput"):  # with xdist, the controller counts
        if not record.endswith(".json"):
            raise pytest.UsageError(f"--gpu-record=PATH wants a .json file, not {record} (mind the =)")
        config.pluginmanager.register(GpuRecorder(_gpu_record_tool()), "gpu-recorder")


class GpuRecorder:
    """Counts the outcomes of the GPU tier and writes them down at the end."""

    def __init__(self, tool: ModuleType) -> None:
        self.tool = tool
        self.sources = tool.hash_sources()  # at the start: those are the ones that run
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "gpu" in report.keywords and (report.when == "call" or not report.passed):
            worst = max(self.outcomes.get(report.nodeid, ""), report.outcome, key=_BADNESS.index)
            self.outcomes[report.nodeid] = worst

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        path = Path(terminalreporter.config.getoption("--gpu-record"))
        counts = {name: list(self.outcomes.values()).count(name) for name in _BADNESS[1:]}
        if not counts["passed"] + counts["failed"]:
            reason = why_not_on_gpu() or "no test of tests/gpu was selected"
            terminalreporter.write_line(f"no GPU record written: {reason}", red=True)
            return
        self.tool.write(path, counts, self.sources)
        terminalreporter.write_line(f"GPU record written to {path}: {self.tool.summary(counts)}")


_BADNESS = ("", "skipped", "passed", "failed")


def _gpu_record_tool() -> ModuleType:
    if not GPU_RECORD_TOOL.is_file():
        raise pytest.UsageError(f"--gpu-record needs {GPU_RECORD_TOOL}, which is not there")
    spec = importlib.util.spec_from_file_location("gpu_record", GPU_RECORD_TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_record"] = module
    spec.loader.exec_module(module)
    return module
