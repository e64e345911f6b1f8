"""The loader on the files of the installed wheel: links to them, and copies of the one that a test breaks.

Each broken installation is loaded in a child process: were the loader wrong, it would not survive.

The environment variable CUDNN_CT_TEST_CUDNNS lists library folders of other cuDNN 9, separated by colons.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cudnn_ct.errors import format_version
from cudnn_doctor.read.installation import Installation, inspect
from cudnn_doctor.read.libraries import SUBLIBRARIES
from tests.elf_files import make_elf, make_header
from tests.processes import answer_of

from .wheels import FOLDERS, SEARCHED, WHEEL, needs_cudnn

NO_OTHER = "no other cuDNN 9 at hand (CUDNN_CT_TEST_CUDNNS)"
each_other = pytest.mark.parametrize(
    "other", FOLDERS or [pytest.param(None, marks=pytest.mark.skip(reason=NO_OTHER))], ids=str
)


@cache
def installed() -> Installation | None:
    return inspect(WHEEL) if WHEEL else None


pytestmark = needs_cudnn


@pytest.fixture
def cudnn() -> Installation:
    """The wheel's cuDNN."""
    found = installed()
    assert found is not None
    return found


@pytest.fixture
def tree(tmp_path: Path, cudnn: Installation) -> Path:
    """A folder with a copy of the small libcudnn.so.9 and links to the large libraries; no header."""
    folder = tmp_path / "a place" / "lib"
    folder.mkdir(parents=True)
    shutil.copy(cudnn.shim, folder / "libcudnn.so.9")
    for part in cudnn.parts:
        (folder / part.file).symlink_to(part.real)
    return folder


def answer(code: str, library: Path | str | None = None, **environ: str) -> Any:
    """Run code in a process with a clean environment, and return the last JSON value that it printed."""
    prelude = "import json, os, sys, warnings\nfrom cudnn_ct import _lib, _raw, errors\n" + HELPERS
    if library is not None:
        environ["CUDNN_CT_LIBRARY"] = str(library)
    return answer_of(prelude + code, "-W", "error", without=SEARCHED, **environ)


HELPERS = """
def report(*values):
    print(json.dumps(values[0] if len(values) == 1 else values))

def error_of(call):
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]

def warnings_of(call):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = call()
    return result, [[type(one.message).__name__, str(one.message)] for one in seen]
"""
LOAD = "report(_lib.load().path, _lib.load().found.found_via, _lib.load().version)"
FAIL = "report(error_of(_lib.load))"
MAPPED = "sorted(f for f in _lib.mapped_files() if 'libcudnn' in f)"


# --- sound installations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["LIBRARY_PATH", "BASE_PATH"])
def test_dnn_flags_name_the_library(tree: Path, cudnn: Installation, flag: str) -> None:
    place = {"LIBRARY_PATH": tree, "BASE_PATH": tree.parent}[flag]
    code = "from cudnn_ct import dnn\nreport(_lib.load().path, dnn.version(), dnn.dnn_present())"
    path, *rest = answer(code, **{f"CUDNN_CT_DNN_{flag}": str(place)})
    assert Path(path).parent == tree
    assert rest == [cudnn.number, True]


def test_dnn_version_fails_when_its_flag_names_nothing(tmp_path: Path, cudnn: Installation) -> None:
    code = "from cudnn_ct import dnn\nreport(error_of(dnn.version))"
    _, told = answer(code, CUDNN_CT_DNN_LIBRARY_PATH=str(tmp_path))
    assert told.startswith("We can't determine the cudnn version as it is not available: ")
    assert told.count("CUDNN_CT_LIBRARY or ct.config") == 1


def test_load_opens_all_parts_in_the_real_folder(cudnn: Installation) -> None:
    mapped, skipped = answer(f"report(_lib.load() and {MAPPED}, _lib.load().skipped)")
    expected = {cudnn.shim, *(part.real for part in cudnn.parts if part.name not in skipped)}
    assert set(mapped) == expected
    assert set(skipped) <= {"engines_runtime_compiled"}  # needs libcuda.so.1, missing without a driver
    assert all("libcuda.so.1" in reason for reason in skipped.values())


def opened_before(shim: Path | str) -> str:
    return f"import ctypes; ctypes.CDLL({str(shim)!r}).cudnnGetVersion()\n"


def test_load_uses_the_library_that_the_process_has_loaded(tree: Path, cudnn: Installation) -> None:
    shim = str(tree / "libcudnn.so.9")
    assert answer(opened_before(shim) + LOAD) == [shim, "already loaded", cudnn.number]
    kind, text = answer(opened_before(cudnn.shim) + FAIL, tree)  # a second one is rejected
    assert kind == "LibraryLoadError"
    assert f"already loaded {cudnn.shim}" in text
    assert shim in text


def test_load_opens_one_library_when_threads_load_at_once(cudnn: Installation) -> None:
    code = """
import ctypes, threading
import cudnn_ct as ct
opened, CDLL = [], ctypes.CDLL
ctypes.CDLL = lambda path, *rest: opened.append(path) or CDLL(path, *rest)
begin, seen, failures = threading.Barrier(16), [], []

def work(number):
    try:
        begin.wait()
        seen.append(_lib.load())
        ct.raw.cudnnGetVersion()
        spec = ct.TensorSpec.packed((number + 1, 2, 3, 4))
        assert ct.TensorDescriptor(spec).read() == spec
        _lib.load().cudnnBackendFinalize  # which opens libcublasLt first
    except BaseException as error:
        failures.append(repr(error))

threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
report(len(seen), len(set(map(id, seen))), sum(path.endswith("libcudnn.so.9") for path in opened), failures)
"""
    assert answer(code) == [16, 1, 1, []]


def test_library_binds_each_function_once_when_threads_make_their_first_calls() -> None:
    """ctypes frees what a function is called with when it is bound again, also during a call."""
    code = """
import collections, threading, time
library = _lib.load()
lookup, opened, looked_up = library._lookup, library.open_companions, collections.Counter()

def slowly():
    time.sleep(0.3)  # the other threads wait for this one meanwhile
    return opened()

def counted(name):
    looked_up[name] += 1
    return lookup(name)

library.open_companions, library._lookup = slowly, counted
threads = [threading.Thread(target=lambda: library.cudnnCreate) for _ in range(4)]
[t.start() for t in threads], [t.join() for t in threads]
report(looked_up)
"""
    assert answer(code) == {"cudnnCreate": 1, "cudnnBackendFinalize": 1}


def test_load_warns_once_of_a_folder_that_any_user_can_write(tree: Path) -> None:
    tree.chmod(0o777)
    (said,) = answer("report(warnings_of(lambda: (_lib.load(), _lib.load())[0].version)[1])", tree)
    assert said[1].startswith(f"any user can write {tree}, and so run code")


def test_load_works_in_a_fork_of_a_process_that_holds_the_lock() -> None:
    code = """
import threading
warnings.simplefilter("ignore")
held, go = threading.Event(), threading.Event()
def hold():
    with _lib._state.lock:
        held.set(), go.wait()
threading.Thread(target=hold).start()
held.wait()
if (pid := os.fork()) == 0:
    import signal
    signal.alarm(30)
    os._exit(0 if _lib.load().version else 1)
status = os.waitpid(pid, 0)[1]
go.set()
report(status)
"""
    assert answer(code) == 0


# --- other versions ----------------------------------------------------------------------------------------

# Finalising a descriptor makes cuDNN open its engines and its heuristics.
FINALIZE = "import ctypes as C\nfrom cudnn_doctor.probe import finalize\n"


@pytest.fixture
def decoy(tmp_path: Path, cudnn: Installation) -> Path:
    """A folder with another copy of the heuristics, as LD_LIBRARY_PATH may name one."""
    folder = tmp_path / "decoy"
    folder.mkdir()
    shutil.copy(cudnn.libraries["heuristic"].real, folder / "libcudnn_heuristic.so.9")
    return folder


def test_load_keeps_the_search_path_from_replacing_a_part(decoy: Path, cudnn: Installation) -> None:
    code = FINALIZE + "\nfinalize(C.CDLL({}))\nreport(" + MAPPED + ")"
    control = answer(code.format(repr(cudnn.shim)), LD_LIBRARY_PATH=str(decoy))
    if not any(str(decoy) in path for path in control):
        pytest.skip("this cuDNN does not take its heuristics from the search path")
    mapped = answer(code.format("_lib.load().path"), LD_LIBRARY_PATH=str(decoy))
    assert [path for path in mapped if str(decoy) in path] == []
    assert any("heuristic" in path for path in mapped)


def test_load_warns_of_a_part_that_cudnn_opened_by_its_full_name(tmp_path: Path, cudnn: Installation) -> None:
    decoy = tmp_path / f"libcudnn_graph.so.{format_version(cudnn.number or 0)}"
    shutil.copy(cudnn.libraries["graph"].real, decoy)
    code = "report(warnings_of(lambda: _lib.load().version)[1])"
    ((kind, warned),) = answer(code, LD_LIBRARY_PATH=str(tmp_path))
    assert kind == "CudnnWarning"
    assert str(decoy) in warned
    assert "LD_LIBRARY_PATH" in warned


@each_other
def test_load_does_not_mix_versions(other: Path, cudnn: Installation) -> None:
    version = inspect(other / "libcudnn.so.9").number
    assert version != cudnn.number
    code = f"{FINALIZE}\nfinalize(C.CDLL(_lib.load().path))\nreport(_lib.load().version, {MAPPED})"
    for mine, theirs, expected in (
        (other, Path(cudnn.shim).parent, version),
        (Path(cudnn.shim).parent, other, cudnn.number),
    ):
        got, mapped = answer(code, mine, LD_LIBRARY_PATH=str(theirs))
        assert got == expected
        parts = {os.path.basename(path): os.path.dirname(path) for path in mapped}
        # cuDNN 9.20 opens parts that only later versions contain, and finds them on the search path.
        assert {folder for name, folder in parts.items() if (mine / name).exists()} == {str(mine)}


# --- broken installations: tests/lib/test_doctor.py has more -----------------------------------------------


def broken(tree: Path, name: str, data: bytes) -> Path:
    path = tree / name
    path.unlink()
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("part", ["", "_graph", "_engines_precompiled"])
def test_load_rejects_a_truncated_library(tree: Path, part: str) -> None:
    """The dynamic linker would end the process."""
    name = f"libcudnn{part}.so.9"
    with open(tree / name, "rb") as file:
        path = broken(tree, name, file.read(100_000))
    kind, text = answer(FAIL, tree)
    assert kind == "LibraryLoadError"
    assert f"{path} is truncated or damaged: got 100,000 bytes" in text


def test_load_warns_and_skips_an_engine_that_cannot_be_opened(tree: Path) -> None:
    path = broken(tree, "libcudnn_heuristic.so.9", make_elf("libcudnn_heuristic.so.9", ["libnowhere.so.1"]))
    skipped, ((kind, warned),) = answer("report(*warnings_of(lambda: _lib.load().skipped))", tree)
    assert kind == "CudnnWarning"
    assert "libnowhere.so.1" in skipped["heuristic"]
    assert str(path) in warned
    assert "libnowhere.so.1" in warned


# --- libcublasLt -------------------------------------------------------------------------------------------


def test_functions_that_need_cublaslt_raise_without_it(tree: Path) -> None:
    code = """
from cudnn_ct import _dlopen
_dlopen.COMPANION_STEPS = _dlopen.COMPANION_STEPS[:2]  # already loaded, and beside cuDNN
failed = [error_of(lambda: getattr(_raw.raw, name)) for name in ("cudnnCreate", "cudnnBackendFinalize")]
_raw.raw.cudnnGraphVersionCheck()
report(failed, _lib.version())
"""
    (first, second), _ = answer(code, tree)
    assert first[0] == "LibraryNotFoundError"
    for words in ("libcublasLt.so.", "pip install nvidia-cublas", "beside cuDNN: no libcublasLt"):
        assert words in first[1]
    assert second == first


def test_cublaslt_is_opened_before_the_functions_that_need_it() -> None:
    code = """
lt = lambda: any("libcublasLt" in f for f in _lib.mapped_files())
before = lt(), _lib.load() and lt()
_raw.raw.cudnnBackendFinalize
report(*before, lt(), "cudnnCreate" in vars(_lib.load()))
"""
    assert answer(code) == [False, False, True, True]


# --- version and header ------------------------------------------------------------------------------------


def test_header_of_another_version_warns_at_load_and_raises_for_the_version(
    tree: Path, cudnn: Installation
) -> None:
    header = make_header(tree.parent / "include/cudnn_version.h", "9.98.7")
    code = """
import cudnn_ct as ct
strict = ct.available().reason, ct.library_info().problem  # both raise nothing if warnings are errors
_lib._state.library = None
loaded, warned = warnings_of(lambda: [ct.raw.cudnnGetVersion(), ct.raw.cudnnGetVersion()])
problem = ct.library_info().problem
report(strict, loaded, warned, problem, [error_of(lambda: _lib.version(raises)) for raises in (True, False)])
"""
    strict, loaded, warned, problem, failed = answer(code, tree)
    assert all("9.98.7" in text for text in strict)
    assert loaded == [cudnn.number, cudnn.number]
    assert warned == [["CudnnWarning", problem]]
    for kind, text in failed:
        assert kind == "VersionMismatchError"
        for word in (header, "9.98.7", tree / "libcudnn.so.9", format_version(cudnn.number or 0)):
            assert str(word) in text
            assert str(word) in problem


def test_sublibraries_name_every_library_of_the_wheel(cudnn: Installation) -> None:
    there = {path.name for path in Path(cudnn.folder).glob("libcudnn_*.so.9")}
    assert there == {f"libcudnn_{name}.so.9" for name in SUBLIBRARIES} & there
    assert cudnn.problems == ()
