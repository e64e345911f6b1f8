"""The loader on the files of the installed wheel: links to them, and copies of the one that a test breaks.

Each broken installation is loaded in a child process: were the loader wrong, it would not survive.

Other versions of cuDNN, where there are any, are named by environment variables: CUDNN_CT_TEST_CUDNNS lists
the library folders of other cuDNN 9 (separated by colons), CUDNN_CT_TEST_CUDNN8 is that of a cuDNN 8.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import cudnn_ct
from cudnn_ct._find import CUDNN, CUDNN_STEPS, SearchContext, search
from cudnn_ct._installation import Installation, inspect
from cudnn_ct._libraries import SUBLIBRARIES
from cudnn_ct.errors import format_version
from tests.elf_files import make_elf, make_header

PYTHONPATH = os.pathsep.join([str(Path(cudnn_ct.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
OTHERS = [Path(folder) for folder in os.environ.get("CUDNN_CT_TEST_CUDNNS", "").split(":") if folder]
NO_OTHER = "no other cuDNN 9 at hand (CUDNN_CT_TEST_CUDNNS)"
each_other = pytest.mark.parametrize(
    "other", OTHERS or [pytest.param(None, marks=pytest.mark.skip(reason=NO_OTHER))], ids=str
)
CUDNN_8 = os.environ.get("CUDNN_CT_TEST_CUDNN8")


@cache
def installed() -> Installation | None:
    wheel = search(CUDNN, [step for step in CUDNN_STEPS if step[0] == "wheel"], SearchContext())
    return inspect(wheel.path) if wheel.path else None


pytestmark = pytest.mark.skipif(installed() is None, reason="no cuDNN wheel is installed")


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
    for file in cudnn.files:
        if file.path:
            (folder / f"libcudnn_{file.name}.so.9").symlink_to(file.path)
    return folder


def child(code: str, library: Path | str | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run code that has ``_lib`` and ``json`` in a process with a clean environment."""
    prelude = "import json, os, sys, warnings\nfrom cudnn_ct import _lib, _raw, errors\n" + HELPERS
    dropped = ("LD_LIBRARY_PATH", "LD_PRELOAD")
    clean = {name: value for name, value in os.environ.items() if name not in dropped}
    if library is not None:
        environ["CUDNN_CT_LIBRARY"] = str(library)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", prelude + code],
        env={**clean, "PYTHONPATH": PYTHONPATH, **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )


def answer(code: str, library: Path | str | None = None, **environ: str) -> Any:
    """Return the last JSON value that the code in a child printed; the child must succeed."""
    ran = child(code, library, **environ)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


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
LOAD = "report(_lib.load().path, _lib.load().found_via, _lib.load().version)"
FAIL = "report(error_of(_lib.load))"
MAPPED = "sorted(f for f in _lib.mapped_files() if 'libcudnn' in f)"


# --- sound installations -----------------------------------------------------------------------------------


def test_load_finds_the_wheel(cudnn: Installation) -> None:
    assert answer(LOAD) == [cudnn.shim, "wheel", cudnn.number]


def test_import_opens_no_library_and_imports_no_heavy_package(cudnn: Installation) -> None:
    code = """
before = set(sys.modules)  # a .pth file of the environment may have imported modules
import cudnn_ct._info, cudnn_ct._find, cudnn_ct._installation, cudnn_ct._elf, cudnn_ct
dir(_raw.raw), repr(_raw.raw)
libraries = ("libcudnn", "libcuda", "libcublas", "libnvrtc")
mapped = [f for f in _lib.mapped_files() if any(name in f for name in libraries)]
heavy = {"cuda", "numpy", "click", "rich", "torch", "cupy", "jax", "ml_dtypes"}
new = {name.partition(".")[0] for name in set(sys.modules) - before}
report(mapped, sorted(new & heavy), len(dir(_raw.raw)))
"""
    mapped, imported, functions = answer(code)
    assert (mapped, imported) == ([], [])
    assert functions > 200


@pytest.mark.parametrize("link", ["file", "folder", "relative", "chain"])
def test_load_follows_links(tmp_path: Path, cudnn: Installation, link: str) -> None:
    shim = Path(cudnn.shim)
    (tmp_path / "file").symlink_to(shim)
    (tmp_path / "folder").symlink_to(shim.parent)
    (tmp_path / "relative").symlink_to(os.path.relpath(shim, tmp_path))
    (tmp_path / "first").symlink_to(tmp_path / "folder" / shim.name)
    (tmp_path / "chain").symlink_to("first")
    path, _, version = answer(LOAD, tmp_path / link)
    assert (path, version) == (cudnn.shim, cudnn.number)


def test_load_accepts_a_copy_with_links_to_the_large_libraries(tree: Path, cudnn: Installation) -> None:
    assert answer(LOAD, tree) == [str(tree / "libcudnn.so.9"), "CUDNN_CT_LIBRARY", cudnn.number]


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
    assert "(CUDNN_CT_LIBRARY or ct.config.library names this path)" in told


def test_load_opens_all_parts_in_the_real_folder(cudnn: Installation) -> None:
    mapped, skipped = answer(f"report(_lib.load() and {MAPPED}, _lib.load().skipped)")
    expected = {cudnn.shim, *(file.path for file in cudnn.files if file.path and file.name not in skipped)}
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
lookup, opened, looked_up = library._lookup, library.open_cublaslt, collections.Counter()

def slowly():
    time.sleep(0.3)  # the other threads wait for this one meanwhile
    return opened()

def counted(name):
    looked_up[name] += 1
    return lookup(name)

library.open_cublaslt, library._lookup = slowly, counted
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

# A tensor descriptor, and its finalisation: that is when cuDNN opens its engines and its heuristics.
FINALIZE = """
import ctypes as C
def finalize(lib):
    d = C.c_void_p()
    lib.cudnnBackendCreateDescriptor(17, C.byref(d))
    lib.cudnnBackendSetAttribute(d, 901, 1, C.c_int64(1), C.byref(C.c_int(0)))
    for name, values in ((906, [1]), (900, [16]), (902, [2, 3, 4, 5]), (903, [60, 20, 5, 1])):
        array = (C.c_int64 * len(values))(*values)
        lib.cudnnBackendSetAttribute(d, name, 3, C.c_int64(len(values)), array)
    return lib.cudnnBackendFinalize(d)
"""


@pytest.fixture
def decoy(tmp_path: Path, cudnn: Installation) -> Path:
    """A folder with another copy of the heuristics, as LD_LIBRARY_PATH may name one."""
    folder = tmp_path / "decoy"
    folder.mkdir()
    heuristic = next(file.path for file in cudnn.files if file.name == "heuristic")
    shutil.copy(str(heuristic), folder / "libcudnn_heuristic.so.9")
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
    graph = next(file for file in cudnn.files if file.name == "graph")
    decoy = tmp_path / f"libcudnn_graph.so.{graph.version}"
    shutil.copy(str(graph.path), decoy)
    code = "report(warnings_of(lambda: _lib.load().version)[1])"
    ((kind, warned),) = answer(code, LD_LIBRARY_PATH=str(tmp_path))
    assert kind == "CudnnWarning"
    assert str(decoy) in warned
    assert "LD_LIBRARY_PATH" in warned


@pytest.mark.parametrize("searched", [True, False], ids=["own version", "another version"])
def test_load_accepts_a_part_by_the_names_that_cudnn_searches_for(
    tree: Path, cudnn: Installation, searched: bool
) -> None:
    version = format_version(cudnn.number or 0) if searched else "9.99.9"
    (tree / "libcudnn_ops.so.9").rename(tree / f"libcudnn_ops.so.{version}")
    if searched:
        assert answer(f"_lib.load()\n{LOAD}", tree)[2] == cudnn.number
    else:
        kind, text = answer(FAIL, tree)
        assert kind == "LibraryLoadError"
        unused = "libcudnn_ops.so.9 missing (libcudnn_ops.so.9.99.9: cuDNN does not search for this name)"
        assert unused in text


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


@each_other
def test_function_that_is_newer_than_the_library_raises(other: Path) -> None:
    version = inspect(other / "libcudnn.so.9").number or 0
    code = """
from cudnn_ct._bindings.functions import FUNCTIONS
newer = [name for name, p in FUNCTIONS.items() if p.since > _lib.load().version]
report(error_of(getattr(_raw.raw, newer[0])))
"""
    kind, text = answer(code, other)
    assert kind == "VersionMismatchError"
    assert f"have {format_version(version)}" in text


def test_load_rejects_parts_of_two_versions(tree: Path, cudnn: Installation) -> None:
    if not OTHERS:
        pytest.skip(NO_OTHER)
    (tree / "libcudnn_ops.so.9").unlink()
    (tree / "libcudnn_ops.so.9").symlink_to(OTHERS[0] / "libcudnn_ops.so.9")
    kind, text = answer(FAIL, tree)
    assert kind == "VersionMismatchError"
    assert str(OTHERS[0] / "libcudnn_ops.so.9") in text


def test_load_rejects_a_preloaded_part_of_another_folder(tmp_path: Path, cudnn: Installation) -> None:
    foreign = tmp_path / "libcudnn_ext.so.9"
    ext = {file.name: file.path for file in cudnn.files}["ext"]
    if ext is None:
        pytest.skip("this cuDNN has no small library to copy")
    shutil.copy(ext, foreign)
    kind, text = answer(FAIL, LD_PRELOAD=str(foreign))
    assert kind == "LibraryLoadError"
    assert str(foreign) in text


# --- broken installations ----------------------------------------------------------------------------------


def broken(tree: Path, name: str, data: bytes) -> Path:
    path = tree / name
    path.unlink()
    path.write_bytes(data)
    return path


def cut_short(tree: Path, name: str) -> None:
    with open(tree / name, "rb") as file:
        start = file.read(100_000)
    broken(tree, name, start)


def of_another_machine(tree: Path, name: str) -> None:
    data = bytearray((tree / name).read_bytes())
    data[18:20] = (183 if data[18] == 62 else 62).to_bytes(2, "little")
    broken(tree, name, bytes(data))


def dangling(tree: Path, name: str) -> None:
    (tree / name).unlink()
    (tree / name).symlink_to("gone.so")


LFS = b"version https://git-lfs.github.com/spec/v1\n"
TRUNCATED = r"{path} is truncated or damaged: got 100,000 bytes.*install it again"
BROKEN: list[tuple[str, Callable[[Path, str], object], str]] = [
    ("libcudnn.so.9", cut_short, TRUNCATED),
    ("libcudnn_graph.so.9", cut_short, TRUNCATED),
    ("libcudnn_engines_precompiled.so.9", cut_short, TRUNCATED),
    ("libcudnn_ops.so.9", lambda tree, name: broken(tree, name, b""), "{path} is empty"),
    ("libcudnn.so.9", lambda tree, name: broken(tree, name, b"<html>404</html>"), "{path} is a web page"),
    ("libcudnn_graph.so.9", lambda tree, name: broken(tree, name, LFS), "{path} .*git lfs pull"),
    ("libcudnn_cnn.so.9", lambda tree, name: (tree / name).unlink(), "not a complete cuDNN: {name} missing"),
    ("libcudnn_adv.so.9", dangling, "gone.so"),
    ("libcudnn.so.9", of_another_machine, "{path} is a library for (aarch64|x86-64)"),
]


@pytest.mark.parametrize(("name", "damage", "words"), BROKEN)
def test_load_rejects_a_broken_library(tree: Path, name: str, damage: Any, words: str) -> None:
    damage(tree, name)
    kind, text = answer(FAIL, tree)
    assert kind in ("LibraryLoadError", "LibraryNotFoundError")
    assert re.search(words.format(path=re.escape(str(tree / name)), name=name), text), text


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that everybody may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("part", ["", "_graph"])
def test_load_names_the_command_for_an_unreadable_library(
    public_folder: Path, tree: Path, cudnn: Installation, part: str
) -> None:
    for file in tree.iterdir():
        shutil.copy(file, public_folder, follow_symlinks=False)
    path = broken(public_folder, f"libcudnn{part}.so.9", Path(cudnn.shim).read_bytes())
    path.chmod(0)
    drop = "from cudnn_ct import _elf\nif os.geteuid() == 0: os.setuid(65534)  # modes do not stop root\n"
    kind, text = answer(drop + FAIL, public_folder)
    assert kind == "LibraryLoadError"
    assert f"{path} cannot be read: permission denied" in text
    assert f"must be able to read the files of cuDNN: chmod a+r {path}" in text


def test_load_reports_every_step_when_no_cudnn_is_found(tmp_path: Path) -> None:
    kind, text = answer(FAIL, tmp_path / "nothing.so")
    assert kind == "LibraryNotFoundError"
    assert str(tmp_path / "nothing.so") in text
    assert "CUDNN_CT_LIBRARY" in text
    code = """
from cudnn_ct import _find
bare = _find.SearchContext(setting=None, environ={}, path=(), linker_cache="", linker_folders=())
_find.SearchContext = lambda: bare
"""
    kind, text = answer(code + FAIL)
    assert kind == "LibraryNotFoundError"
    assert "pip install" in text
    for step, _ in CUDNN_STEPS:
        assert f"  {step}: " in text


@pytest.mark.skipif(not CUDNN_8, reason="no cuDNN 8 at hand (CUDNN_CT_TEST_CUDNN8)")
def test_load_rejects_cudnn_8() -> None:
    kind, text = answer(FAIL, CUDNN_8)
    assert kind == "VersionMismatchError"
    assert "libcudnn.so.8 is cuDNN 8." in text
    assert ">= 9.0" in text


def test_load_warns_and_skips_an_engine_that_cannot_be_opened(tree: Path) -> None:
    path = broken(tree, "libcudnn_heuristic.so.9", make_elf("libcudnn_heuristic.so.9", ["libnowhere.so.1"]))
    skipped, ((kind, warned),) = answer("report(*warnings_of(lambda: _lib.load().skipped))", tree)
    assert kind == "CudnnWarning"
    assert "libnowhere.so.1" in skipped["heuristic"]
    assert str(path) in warned
    assert "libnowhere.so.1" in warned


def test_search_skips_folders_that_cannot_be_entered(public_folder: Path, cudnn: Installation) -> None:
    closed = public_folder / "closed"
    closed.mkdir(mode=0o700)
    code = f"""
from cudnn_ct import _find
from cudnn_ct import _elf
os.chmod({str(closed)!r}, 0)
if os.geteuid() == 0: os.setuid(65534)
inside = {str(closed / "inside")!r}
environ = dict(LD_LIBRARY_PATH=inside, CONDA_PREFIX=inside, CUDNN_PATH=inside)
places = _find.SearchContext(None, environ, (inside,), linker_cache=inside, linker_folders=(inside,))
report(_find.search(_find.CUDNN, _find.CUDNN_STEPS[:-1], places).path)
"""
    try:
        assert answer(code) is None
    finally:
        closed.chmod(0o700)


# --- libcublasLt -------------------------------------------------------------------------------------------


def test_functions_that_need_cublaslt_raise_without_it(tree: Path) -> None:
    code = """
_lib.COMPANION_STEPS = _lib.COMPANION_STEPS[:2]  # already loaded, and beside cuDNN
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


@pytest.mark.parametrize("header", [True, False])
def test_version_with_and_without_a_header_of_the_same_version(
    tree: Path, cudnn: Installation, header: bool
) -> None:
    if header:
        make_header(tree.parent / "include/cudnn_version.h", format_version(cudnn.number or 0))
    assert answer("report(_lib.version())", tree) == cudnn.number


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


def test_version_without_a_cudnn(tmp_path: Path) -> None:
    quiet, (_, text) = answer(
        "report(_lib.version(raises=False), error_of(_lib.version))", tmp_path / "nothing"
    )
    assert quiet == -1
    assert "does not exist" in text


# --- functions ---------------------------------------------------------------------------------------------


def test_functions_are_typed_and_checked() -> None:
    code = """
import ctypes
from cudnn_ct._bindings import types
raw = _raw.raw
tensor = types.cudnnTensorDescriptor_t()
good = raw.cudnnCreateTensorDescriptor(ctypes.byref(tensor))
try:
    raw.cudnnSetTensor4dDescriptor(tensor, 0, 0, -1, 2, 3, 4)
except errors.BadParamError as error:
    failed = [error.status // 1000, error.function, bool(error.detail)]
wrong = error_of(lambda: raw.cudnnDestroyFilterDescriptor(tensor))
typo = error_of(lambda: raw.cudnnCreatTensorDescriptor)
report(good, failed, wrong[0], typo, raw.cudnnGetErrorString(0).decode())
"""
    good, failed, wrong, typo, text = answer(code)
    assert (good, failed, wrong) == (0, [2, "cudnnSetTensor4dDescriptor", True], "TypeError")
    assert typo[0] == "AttributeError"
    assert "cudnnCreateTensorDescriptor" in typo[1]
    assert text == "CUDNN_STATUS_SUCCESS"


def test_sublibraries_name_every_library_of_the_wheel(cudnn: Installation) -> None:
    there = {path.name for path in Path(cudnn.folder).glob("libcudnn_*.so.9")}
    assert there == {f"libcudnn_{name}.so.9" for name in SUBLIBRARIES} & there
    assert cudnn.problems == ()
