"""Importing the package loads no library: tests in child processes, which have imported nothing else."""

from __future__ import annotations

import threading
from pathlib import Path
from statistics import median

import pytest

from cudnn_ct.cuda import driver
from tests.maintainers import TOOLS
from tests.processes import answer_of, output_of, run_python

LIBRARIES = ("libcudnn", "libcuda", "libcudart", "libcublas", "libnvrtc")
MODULES = (
    "torch", "cupy", "jax", "numba", "cuda.core", "cuda.pathfinder", "cuda.bindings",
    "ml_dtypes", "platformdirs", "click", "rich",
)  # fmt: skip

LOOK_AROUND = f"""
import json, sys
before = set(sys.modules)
{{statement}}
with open("/proc/self/maps") as maps:
    files = {{{{line.split()[-1].rsplit("/", 1)[-1] for line in maps}}}}
print(json.dumps({{{{
    "libraries": sorted(file for file in files if file.startswith({LIBRARIES!r})),
    "modules": sorted(name for name in {MODULES!r} if name in sys.modules and name not in before),
}}}}))
"""

STOPWATCH = """
import time
start = time.process_time()
{statement}
print(time.process_time() - start)
"""


needs_maps = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc/self/maps")


@needs_maps
@pytest.mark.parametrize(
    "statement", ["import cudnn_ct", "import cudnn_ct; dir(cudnn_ct); repr(cudnn_ct)"], ids=["import", "look"]
)
def test_import_opens_no_cuda_library_and_imports_nothing_heavy(statement: str) -> None:
    assert answer_of(LOOK_AROUND.format(statement=statement)) == {"libraries": [], "modules": []}


@needs_maps
def test_look_around_finds_imported_modules() -> None:
    pytest.importorskip("ml_dtypes")
    assert answer_of(LOOK_AROUND.format(statement="import ml_dtypes"))["modules"] == ["ml_dtypes"]


def test_import_takes_at_most_half_again_as_long_as_numpy() -> None:
    """Compare the processor time of alternating runs, because a busy machine disturbs it little.

    A disturbed round can reject a fast package, so the fastest of three rounds counts.
    """
    answer_of(STOPWATCH.format(statement="import cudnn_ct, numpy"))  # warms the file cache, compiles bytecode
    ratios = []
    for _ in range(3):
        ours, numpys = [], []
        for _ in range(5):
            numpys.append(answer_of(STOPWATCH.format(statement="import numpy")))
            ours.append(answer_of(STOPWATCH.format(statement="import cudnn_ct")))
        ratios.append(median(ours) / median(numpys))
        if ratios[-1] <= 1.5:
            return
    pytest.fail(f"import cudnn_ct takes {', '.join(f'{ratio:.2f}' for ratio in ratios)} x import numpy")


def test_no_submodule_takes_the_place_of_a_public_name() -> None:
    """Importing ``cudnn_ct.x`` sets ``ct.x`` to the module: no public object may have a module's name."""
    code = """
import pkgutil, types, cudnn_ct as ct
for found in pkgutil.walk_packages(ct.__path__, "cudnn_ct."):
    if "__main__" not in found.name and found.name.split(".")[1] not in ("torch", "jax", "cupy"):
        __import__(found.name)
modules = ("dnn", "reference")
wrong = [n for n in ct.__all__ if n not in modules and isinstance(getattr(ct, n), types.ModuleType)]
wrong += [f"{p.__name__}.{n}" for p in (ct.reference, ct.dnn) for n in p.__all__
          if isinstance(getattr(p, n), types.ModuleType)]
print(*wrong)
"""
    assert output_of("-c", code).split() == []


def test_stub_is_up_to_date() -> None:
    if not TOOLS.is_dir():
        pytest.skip("tools/ is not next to these tests")
    output_of(TOOLS / "stub.py")


def test_cuda_core_is_whole_while_other_threads_import_it() -> None:
    """Its lock of imports does not work: see findings/cuda_core_is_imported_in_parts_by_threads.sh."""
    code = """
import threading
from cudnn_ct.cuda import driver
barrier, failures = threading.Barrier(8), []
def work(number):
    barrier.wait()
    try:
        if number % 2:
            import cuda.core
        else:
            driver.core.__wrapped__().utils.StridedMemoryView, driver.core().Buffer
    except Exception as error:
        failures.append(repr(error))
threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
print(*failures)
"""
    assert output_of("-c", code).split() == []


# --- imports in a background thread while CUDA starts ------------------------------------------------------


FIRST_USE = """
import sys
from tests.unit.cuda_driver import install
install()
from cudnn_ct.cuda import driver
from cudnn_ct.cuda import stream
names = ["cudnn_ct." + name for name in driver.MODULES]
assert not any(name in sys.modules for name in names)
stream.set_device(0)
print(all(name in sys.modules for name in names), driver._import_thread)
"""


def test_first_context_of_a_process_comes_with_the_imports() -> None:
    done = run_python("-W", "error", "-c", FIRST_USE, timeout=90)
    assert (done.stdout, done.stderr) == ("True None\n", "")


def test_begin_starts_no_thread_when_the_modules_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MODULES", ("errors",))
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was started"))
    driver.begin_imports()
    driver.finish_imports()


@pytest.mark.parametrize("failure", ["import", "thread"])
def test_failure_is_left_to_the_first_use_of_the_module(
    failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(driver, "MODULES", ("a_module_that_does_not_exist",))
    if failure == "thread":
        monkeypatch.setattr(threading.Thread, "start", start)
    driver.begin_imports()
    assert (driver._import_thread is None) == (failure == "thread")
    driver.finish_imports()
    assert driver._import_thread is None
