"""Fixtures and helpers of the GPU tests."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import HealthCheck, Phase, reject, settings
from hypothesis.errors import Unsatisfiable

import cudnn_ct as ct
from cudnn_ct import _lib, testing
from cudnn_ct.cuda import replay
from cudnn_ct.errors import ExecutionFailedError, NotSupportedError, VersionMismatchError
from tests.counted import count_replays, counted
from tests.layers import LayerCase, check_layer
from tests.mixed import own_stream
from tests.spread import use_gpu
from tests.strategies import Place
from tests.strategies import own as place

__all__ = ["captured", "check_drawn", "examples", "library", "own_stream", "place"]

PHASES = tuple(phase for phase in Phase if phase not in (Phase.shrink, Phase.explain))
COMPILES = False  # whether this cuDNN compiles a kernel for nearly each problem
if "CUDNN_CT_LIBRARY" in os.environ:
    with contextlib.suppress(ct.CudnnError, ImportError):
        # Before a test imports PyTorch, which then uses this cuDNN instead of its own.
        COMPILES = _lib.load().kind == "jit"
        if COMPILES:  # without engines, importing PyTorch would end the process
            importlib.import_module("torch").backends.cudnn.enabled = False

if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    use_gpu(int(worker.removeprefix("gw")))

if COMPILES:  # shrinking a failure would compile for minutes
    settings.register_profile(
        "small", settings(), max_examples=10, suppress_health_check=list(HealthCheck), phases=PHASES
    )
    settings.load_profile("small")


def examples(most: int) -> int:
    """Return how many calls a test draws on a GPU: few if each of them compiles a kernel."""
    return max(most // 20 if COMPILES else most, settings.default.max_examples)


def check_drawn(case: LayerCase, tolerance: float | None = None) -> None:
    """Check a drawn call; another is drawn for one that a set of a few libraries does not support."""
    try:
        check_layer(case, place, tolerance)
    except (NotSupportedError, VersionMismatchError):
        if not COMPILES:
            raise
        reject()


# Files about commands, pages, rejections, C functions and implementations, which do not depend on replays.
ABOUT_OTHER_THINGS = (
    "cli",
    "doctor",
    "faults",
    "graph_rejections",
    "guides",
    "jit",
    "large",
    "raw",
    "sanitized",
    "tools",
)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip these files without replays, before their fixtures run."""
    if not ct.config.replay and item.path.stem.removeprefix("test_") in ABOUT_OTHER_THINGS:
        pytest.skip("only the run with replays has this file")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """Skip a test of a call that a set of a few libraries does not support: it has fewer engines."""
    try:
        return (yield)
    except (NotSupportedError, VersionMismatchError, ExceptionGroup) as error:
        if _lib.load().kind == "full" or not all(map(is_rejection, leaves(error))):
            raise
        pytest.skip(f"cuDNN {_lib.load().version_text} does not support it: {str(error)[:200]}")
    except Unsatisfiable:
        if not COMPILES:
            raise
        pytest.skip(f"cuDNN {_lib.load().version_text} supports none of the drawn calls")


def leaves(error: Exception) -> Iterator[Exception]:
    """Yield the errors of a group, of which one test may have several."""
    if isinstance(error, ExceptionGroup):
        for one in error.exceptions:
            yield from leaves(one)
    else:
        yield error


def is_rejection(error: Exception) -> bool:
    """Return whether an error says that cuDNN does not support a call."""
    return isinstance(error, NotSupportedError | VersionMismatchError)


@pytest.fixture(autouse=True)
def _calls_are_replayed_early() -> Iterator[None]:
    """Make each second call with the same memory a replay, unless CUDNN_CT_REPLAY is 0."""
    with testing.replay_after(1):
        yield


CHILDREN = {"subprocess.Popen", "os.fork", "os.posix_spawn"}
_events: list[None] = []  # one for each replay, recording and child of this process


@pytest.fixture(scope="session", autouse=True)
def _replays_are_counted() -> None:
    """Count what a run without replays would change; children may replay as well."""
    count_replays(_events)
    replay.capture = counted(replay.capture, _events)
    sys.addaudithook(lambda event, _: _events.append(None) if event in CHILDREN else None)


@pytest.fixture(autouse=True)
def _replays_are_reported(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the record know that this test has replays: it runs without them as well."""
    before = len(_events)
    yield
    if len(_events) > before:
        request.node.user_properties.append(("replayed", True))


@pytest.fixture(autouse=True)
def _certificates_have_their_own_tests(request: pytest.FixtureRequest, monkeypatch: Any) -> None:
    """Compare results with the references of the tests alone: a second opinion compiles a second engine.

    Random graphs run in children, which have the default.
    """
    if request.path.stem != "test_certificates":
        monkeypatch.setattr(ct.config, "certify", "off")


@pytest.fixture(autouse=True)
def _some_tests_are_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let a test marked ``alone`` wait for the other processes of the run, which share the device.

    Each test passes a gate, which a test marked ``alone`` closes while it waits, so that no other starts.
    """
    if not hasattr(request.config, "workerinput"):
        yield
        return
    alone = request.node.get_closest_marker("alone") is not None
    with lock_file("room") as room:
        with lock_file("gate") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
        if alone:
            ct.empty_cache()


def lock_file(name: str) -> IO[bytes]:
    """Open the lock file of a name, which all processes of this run share."""
    run = os.environ["PYTEST_XDIST_TESTRUNUID"]
    return (Path(tempfile.gettempdir()) / f"cudnn-ct-{run}-{name}").open("wb")


@pytest.fixture(autouse=True)
def _a_fault_fails_one_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """End the process after an out-of-bounds access, because every later test would fail."""
    yield
    try:
        ct.synchronize()
    except ExecutionFailedError as error:
        if hasattr(request.config, "workerinput"):
            os._exit(1)  # xdist reports the test that ended its process, and starts another
        pytest.exit(f"the CUDA context ended in {request.node.nodeid}: {error}", returncode=1)


@pytest.fixture(name="place")
def _place() -> Place:
    return place


@pytest.fixture
def leave_memory_to_others() -> Iterator[None]:
    yield
    gc.collect()
    ct.empty_cache()


def captured(stream: Any, call: Callable[[], object]) -> Any:
    """Return a CUDA graph of the work that a call enqueues on a stream."""
    builder = stream.create_graph_builder().begin_building()
    call()
    return builder.end_building().complete()


def library(name: str):
    """Import another library, or skip the test if it is not installed."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else jax takes most of the memory
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{name} is not installed: {error}")
