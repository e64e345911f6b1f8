"""The loader on the files of the installed wheel: links to them, and copies of the one that a test breaks.

Each broken installation is loaded in a child process: were the loader wrong, it would not survive.

Other versions of cuDNN, where there are any, are named by environment variables: CUDNN_CT_TEST_CUDNNS lists
the library folders of other cuDNN 9 (separated by colons), CUDNN_CT_TEST_CUDNN8 is that of a cuDNN 8.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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
    prelude = "import json, os, sys\nfrom cudnn_ct import _lib, _raw, errors\n"
    clean = {
        name: value for name, value in os.environ.items() if name not in ("LD_LIBRARY_PATH", "LD_PRELOAD")
    }
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
    """Return what the code in a child printed as JSON, having ended well."""
    ran = child(code, library, **environ)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


LOAD = "print(json.dumps([_lib.load().path, _lib.load().found_via, _lib.load().version]))"
FAIL = """
try:
    _lib.load()
except errors.CudnnError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""
MAPPED = "sorted(f for f in _lib.mapped_files() if 'libcudnn' in f)"


# --- what is sound loads -----------------------------------------------------------------------------------


def test_the_wheel_is_found(cudnn: Installation) -> None:
    path, via, version = answer(LOAD)
    assert (path, via, version) == (cudnn.shim, "wheel", cudnn.number)


def test_importing_opens_and_imports_nothing(cudnn: Installation) -> None:
    code = """
    before = set(sys.modules)  # a .pth file of the environment may have put something there
    import cudnn_ct._info, cudnn_ct._find, cudnn_ct._installation, cudnn_ct._elf, cudnn_ct
    dir(_raw.raw), repr(_raw.raw)
    libraries = ("libcudnn", "libcuda", "libcublas", "libnvrtc")
    mapped = [f for f in _lib.mapped_files() if any(name in f for name in libraries)]
    heavy = {"cuda", "numpy", "click", "rich", "torch", "cupy", "jax", "ml_dtypes"}
    new = {name.partition(".")[0] for name in set(sys.modules) - before}
    print(json.dumps([mapped, sorted(new & heavy), len(dir(_raw.raw))]))
    """
    mapped, imported, functions = answer("\n".join(line.strip() for line in code.splitlines()))
    assert (mapped, imported) == ([], [])
    assert functions > 200


def link_to_file(folder: Path, shim: Path) -> Path:
    (folder / "elsewhere.so").symlink_to(shim)
    return folder / "elsewhere.so"


def link_to_folder(folder: Path, shim: Path) -> Path:
    (folder / "cudnn").symlink_to(shim.parent)
    return folder / "cudnn"


def relative_link(folder: Path, shim: Path) -> Path:
    (folder / "relative.so").symlink_to(os.path.relpath(shim, folder))
    return folder / "relative.so"


def chain_of_links(folder: Path, shim: Path) -> Path:
    (folder / "first").symlink_to(link_to_folder(folder, shim) / shim.name)
    (folder / "second").symlink_to("first")
    return folder / "second"


@pytest.mark.parametrize("link", [link_to_file, link_to_folder, relative_link, chain_of_links])
def test_symbolic_links_just_work(tmp_path: Path, cudnn: Installation, link: Any) -> None:
    path, _, version = answer(LOAD, link(tmp_path, Path(cudnn.shim)))
    assert (path, version) == (cudnn.shim, cudnn.number)


def test_a_copy_with_links_to_the_large_libraries_loads(tree: Path, cudnn: Installation) -> None:
    assert answer(LOAD, tree) == [str(tree / "libcudnn.so.9"), "CUDNN_CT_LIBRARY", cudnn.number]


@pytest.mark.parametrize("flag", ["LIBRARY_PATH", "BASE_PATH"])
def test_flags_of_dnn_name_a_place(tree: Path, cudnn: Installation, flag: str) -> None:
    place = {"LIBRARY_PATH": tree, "BASE_PATH": tree.parent}[flag]
    code = "from cudnn_ct import dnn\nprint(json.dumps([_lib.load().path, dnn.version(), dnn.dnn_present()]))"
    path, version, present = answer(code, **{f"CUDNN_CT_DNN_{flag}": str(place)})
    assert Path(path).parent == tree
    assert (version, present) == (cudnn.number, True)


def test_a_flag_that_names_nothing_is_not_passed_over(tmp_path: Path, cudnn: Installation) -> None:
    code = (
        "from cudnn_ct import dnn\n"
        "try:\n    dnn.version()\nexcept RuntimeError as error:\n    print(json.dumps(str(error)))"
    )
    told = answer(code, CUDNN_CT_DNN_LIBRARY_PATH=str(tmp_path))
    assert told.startswith("We can't determine the cudnn version as it is not available: ")
    assert "(CUDNN_CT_LIBRARY or ct.config.library names this path)" in told


def test_all_parts_are_opened_from_the_real_folder(cudnn: Installation) -> None:
    mapped, skipped = answer(f"print(json.dumps([_lib.load() and {MAPPED}, _lib.load().skipped]))")
    expected = {cudnn.shim, *(file.path for file in cudnn.files if file.path and file.name not in skipped)}
    assert set(mapped) == expected
    assert set(skipped) <= {
        "engines_runtime_compiled"
    }  # which needs libcuda.so.1, not there without a driver
    assert all("libcuda.so.1" in reason for reason in skipped.values())


def test_what_the_process_has_loaded_is_used(tree: Path, cudnn: Installation) -> None:
    first = f"import ctypes; ctypes.CDLL({str(tree / 'libcudnn.so.9')!r}).cudnnGetVersion()\n"
    assert answer(first + LOAD) == [str(tree / "libcudnn.so.9"), "already loaded", cudnn.number]


def test_a_second_cudnn_in_a_process_is_refused(tree: Path, cudnn: Installation) -> None:
    first = f"import ctypes; ctypes.CDLL({cudnn.shim!r}).cudnnGetVersion()\n"
    kind, text = answer(first + FAIL, tree)
    assert kind == "LibraryLoadError"
    assert f"already loaded {cudnn.shim}" in text
    assert str(tree / "libcudnn.so.9") in text


def test_threads_that_load_at_once_get_one_library() -> None:
    code = """
import ctypes, threading
opened, CDLL = [], ctypes.CDLL
ctypes.CDLL = lambda path, *rest: opened.append(path) or CDLL(path, *rest)
barrier, got = threading.Barrier(8), []
def work():
    barrier.wait()
    got.append(_lib.load())
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
print(json.dumps([len(got), len(set(map(id, got))), sum(p.endswith("libcudnn.so.9") for p in opened)]))
"""
    assert answer(code) == [8, 1, 1]


def test_many_threads_load_it_at_once(cudnn: Installation) -> None:
    code = """
import threading
import cudnn_ct as ct
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
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps([len(seen), len(set(map(id, seen))), failures]))
"""
    assert answer(code) == [16, 1, []]


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
print(json.dumps(looked_up))
"""
    assert answer(code) == {"cudnnCreate": 1, "cudnnBackendFinalize": 1}


def test_a_folder_that_everybody_may_write_is_warned_of(tree: Path) -> None:
    tree.chmod(0o777)
    code = """
import warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    _lib.load()
    _lib.load()
print(json.dumps([str(warning.message) for warning in seen]))
"""
    (said,) = answer(code, tree)
    assert said.startswith(f"any user can write {tree}, and so run code")


def test_a_fork_does_not_inherit_a_lock_that_is_held() -> None:
    code = """
import threading, warnings
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
print(json.dumps(status))
"""
    assert answer(code) == 0


# --- no other version gets in ------------------------------------------------------------------------------

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
    for file in cudnn.files:
        if file.name == "heuristic" and file.path:
            shutil.copy(file.path, folder / f"libcudnn_{file.name}.so.9")
    return folder


def test_the_search_path_does_not_replace_a_part(decoy: Path, cudnn: Installation) -> None:
    plain = f"{FINALIZE}\nfinalize(C.CDLL({cudnn.shim!r}))\nprint(json.dumps({MAPPED}))"
    control = answer(plain, LD_LIBRARY_PATH=str(decoy))
    if not any(str(decoy) in path for path in control):
        pytest.skip("this cuDNN does not take its heuristics from the search path")
    ours = f"{FINALIZE}\nfinalize(C.CDLL(_lib.load().path))\nprint(json.dumps({MAPPED}))"
    mapped = answer(ours, LD_LIBRARY_PATH=str(decoy))
    assert [path for path in mapped if str(decoy) in path] == []
    assert any("heuristic" in path for path in mapped)


def test_a_part_that_got_in_by_its_full_name_is_warned_of(tmp_path: Path, cudnn: Installation) -> None:
    graph = next(file for file in cudnn.files if file.name == "graph")
    decoy = tmp_path / f"libcudnn_graph.so.{graph.version}"
    shutil.copy(str(graph.path), decoy)
    code = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    _lib.load()
print(json.dumps([str(warning.message) for warning in caught if warning.category is errors.CudnnWarning]))
"""
    (warned,) = answer(code, LD_LIBRARY_PATH=str(tmp_path))
    assert str(decoy) in warned
    assert "LD_LIBRARY_PATH" in warned


@each_other
def test_other_versions_load_and_do_not_mix(other: Path, cudnn: Installation) -> None:
    version = inspect(other / "libcudnn.so.9").number
    assert version != cudnn.number
    code = (
        f"{FINALIZE}\nfinalize(C.CDLL(_lib.load().path))\nprint(json.dumps([_lib.load().version, {MAPPED}]))"
    )
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
def test_a_function_that_is_newer_than_the_library(other: Path) -> None:
    version = inspect(other / "libcudnn.so.9").number or 0
    code = """
from cudnn_ct._bindings.functions import FUNCTIONS
newer = [name for name, p in FUNCTIONS.items() if p.since > _lib.load().version]
try:
    getattr(_raw.raw, newer[0])()
except errors.VersionMismatchError as error:
    print(json.dumps(str(error)))
"""
    assert f"have {format_version(version)}" in answer(code, other)


def test_parts_of_two_versions_are_refused(tree: Path, cudnn: Installation) -> None:
    if not OTHERS:
        pytest.skip(NO_OTHER)
    (tree / "libcudnn_ops.so.9").unlink()
    (tree / "libcudnn_ops.so.9").symlink_to(OTHERS[0] / "libcudnn_ops.so.9")
    kind, text = answer(FAIL, tree)
    assert kind == "VersionMismatchError"
    assert str(OTHERS[0] / "libcudnn_ops.so.9") in text


def test_a_preloaded_part_of_elsewhere_is_refused(tmp_path: Path, cudnn: Installation) -> None:
    foreign = tmp_path / "libcudnn_ext.so.9"
    ext = {file.name: file.path for file in cudnn.files}["ext"]
    if ext is None:
        pytest.skip("this cuDNN has no small library to copy")
    shutil.copy(ext, foreign)
    kind, text = answer(FAIL, LD_PRELOAD=str(foreign))
    assert kind == "LibraryLoadError"
    assert str(foreign) in text


# --- what is broken is refused, with its path and what to do -----------------------------------------------


def broken(tree: Path, name: str, data: bytes) -> Path:
    path = tree / name
    path.unlink()
    path.write_bytes(data)
    return path


def start_of(path: str | None, size: int) -> bytes:
    with open(path or "", "rb") as file:
        return file.read(size)


@pytest.mark.parametrize("part", ["", "_graph", "_engines_precompiled"])
def test_a_truncated_library(tree: Path, cudnn: Installation, part: str) -> None:
    whole = {"": cudnn.shim, **{f"_{file.name}": file.path for file in cudnn.files}}[part]
    path = broken(tree, f"libcudnn{part}.so.9", start_of(whole, 100_000))
    kind, text = answer(FAIL, tree)
    assert kind == "LibraryLoadError"
    assert f"{path} is truncated or damaged: got 100,000 bytes" in text
    assert "install it again" in text


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("libcudnn_ops.so.9", b"", "is empty"),
        ("libcudnn.so.9", b"<html>404</html>", "is a web page"),
        ("libcudnn_graph.so.9", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ],
)
def test_a_file_that_is_no_library(tree: Path, name: str, data: bytes, words: str) -> None:
    path = broken(tree, name, data)
    kind, text = answer(FAIL, tree)
    assert kind == "LibraryLoadError"
    assert str(path) in text
    assert words in text


def test_a_missing_part(tree: Path) -> None:
    (tree / "libcudnn_cnn.so.9").unlink()
    kind, text = answer(FAIL, tree)
    assert kind == "LibraryLoadError"
    assert f"{tree} is not a complete cuDNN: libcudnn_cnn.so.9 missing" in text


def test_a_dangling_link(tree: Path) -> None:
    (tree / "libcudnn_adv.so.9").unlink()
    (tree / "libcudnn_adv.so.9").symlink_to("gone.so")
    _, text = answer(FAIL, tree)
    assert "gone.so" in text


def test_a_library_of_another_machine(tree: Path, cudnn: Installation) -> None:
    data = bytearray(Path(cudnn.shim).read_bytes())
    here = int.from_bytes(data[18:20], "little")
    data[18:20] = (183 if here == 62 else 62).to_bytes(2, "little")
    path = broken(tree, "libcudnn.so.9", bytes(data))
    kind, text = answer(FAIL, tree)
    assert kind == "LibraryLoadError"
    assert f"{path} is a library for {'aarch64' if here == 62 else 'x86-64'}" in text


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that everybody may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("part", ["", "_graph"])
def test_an_unreadable_library(public_folder: Path, tree: Path, cudnn: Installation, part: str) -> None:
    for file in tree.iterdir():
        shutil.copy(file, public_folder, follow_symlinks=False)
    path = broken(public_folder, f"libcudnn{part}.so.9", Path(cudnn.shim).read_bytes())
    path.chmod(0)
    drop = "from cudnn_ct import _elf\nif os.geteuid() == 0: os.setuid(65534)  # modes do not stop root\n"
    kind, text = answer(drop + FAIL, public_folder)
    assert kind == "LibraryLoadError"
    assert f"{path} cannot be read: permission denied" in text
    assert f"must be able to read the files of cuDNN: chmod a+r {path}" in text


def test_nothing_at_the_explicit_path(tmp_path: Path) -> None:
    kind, text = answer(FAIL, tmp_path / "nothing.so")
    assert kind == "LibraryNotFoundError"
    assert str(tmp_path / "nothing.so") in text
    assert "CUDNN_CT_LIBRARY" in text


def test_no_cudnn_anywhere_names_every_step() -> None:
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
def test_cudnn_8_is_refused() -> None:
    kind, text = answer(FAIL, CUDNN_8)
    assert kind == "VersionMismatchError"
    assert "libcudnn.so.8 is cuDNN 8." in text
    assert ">= 9.0" in text


def test_an_engine_that_cannot_be_loaded_is_done_without_and_warned_of(tree: Path) -> None:
    path = broken(tree, "libcudnn_heuristic.so.9", make_elf("libcudnn_heuristic.so.9", ["libnowhere.so.1"]))
    code = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    skipped = _lib.load().skipped
warned = [str(warning.message) for warning in caught if warning.category is errors.CudnnWarning]
print(json.dumps([skipped["heuristic"], warned]))
"""
    reason, warned = answer(code, tree)
    assert "libnowhere.so.1" in reason
    assert len(warned) == 1
    assert str(path) in warned[0]
    assert "libnowhere.so.1" in warned[0]


def test_folders_that_may_not_be_entered_are_passed_over(public_folder: Path, cudnn: Installation) -> None:
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
print(json.dumps(_find.search(_find.CUDNN, _find.CUDNN_STEPS[:-1], places).path))
"""
    try:
        assert answer(code) is None
    finally:
        closed.chmod(0o700)


# --- libcublasLt -------------------------------------------------------------------------------------------

WITHOUT_CUBLASLT = """
_lib.COMPANION_STEPS = _lib.COMPANION_STEPS[:2]  # already loaded, and beside cuDNN
"""


def test_without_cublaslt_what_needs_it_raises_and_the_rest_works(tree: Path) -> None:
    code = f"""{WITHOUT_CUBLASLT}
for name in ("cudnnCreate", "cudnnBackendFinalize"):
    try:
        getattr(_raw.raw, name)
    except errors.LibraryNotFoundError as error:
        print(json.dumps(str(error)))
_raw.raw.cudnnGraphVersionCheck()
print(json.dumps(_lib.version()))
"""
    ran = child(code, tree)
    assert ran.returncode == 0, ran.stderr
    first, second, _ = map(json.loads, ran.stdout.splitlines())
    assert "libcublasLt.so." in first
    assert "pip install nvidia-cublas" in first
    assert "beside cuDNN: no libcublasLt" in first
    assert second == first


def test_cublaslt_is_opened_before_what_needs_it() -> None:
    code = """
lt = lambda: any("libcublasLt" in f for f in _lib.mapped_files())
before = lt(), _lib.load() and lt()
_raw.raw.cudnnBackendFinalize
print(json.dumps([*before, lt(), "cudnnCreate" in vars(_lib.load())]))
"""
    assert answer(code) == [False, False, True, True]


# --- version and header ------------------------------------------------------------------------------------


def test_the_version_without_a_header(tree: Path, cudnn: Installation) -> None:
    assert answer("print(json.dumps(_lib.version()))", tree) == cudnn.number


def test_the_version_with_a_header_of_the_same(tree: Path, cudnn: Installation) -> None:
    make_header(tree.parent / "include/cudnn_version.h", format_version(cudnn.number or 0))
    assert answer("print(json.dumps(_lib.version()))", tree) == cudnn.number


@pytest.mark.parametrize("raises", [True, False])
def test_a_header_of_another_version_always_raises(tree: Path, cudnn: Installation, raises: bool) -> None:
    header = make_header(tree.parent / "include/cudnn_version.h", "9.98.7")
    code = f"""
import warnings
warnings.simplefilter("ignore")  # which loading gives
try:
    _lib.version(raises={raises})
except RuntimeError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""
    kind, text = answer(code, tree)
    assert kind == "VersionMismatchError"
    for word in (str(header), "9.98.7", str(tree / "libcudnn.so.9"), format_version(cudnn.number or 0)):
        assert word in text


def test_loading_warns_once_when_the_header_is_of_another_version(tree: Path, cudnn: Installation) -> None:
    header = make_header(tree.parent / "include/cudnn_version.h", "9.98.7")
    code = """
import warnings
import cudnn_ct as ct
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    loaded = [ct.raw.cudnnGetVersion(), ct.raw.cudnnGetVersion()]
    problem = ct.library_info().problem
print(json.dumps([loaded, problem, [[type(one.message).__name__, str(one.message)] for one in seen]]))
"""
    loaded, problem, warned = answer(code, tree)
    assert loaded == [cudnn.number, cudnn.number]
    assert warned == [["CudnnWarning", problem]]
    for word in (str(header), "9.98.7", str(tree / "libcudnn.so.9"), format_version(cudnn.number or 0)):
        assert word in problem


def test_available_and_library_info_raise_nothing_when_warnings_are_errors(tree: Path) -> None:
    make_header(tree.parent / "include/cudnn_version.h", "9.98.7")
    code = """
import cudnn_ct as ct
print(json.dumps([ct.available().reason, ct.library_info().problem]))
"""
    for said in answer(code, tree):
        assert "9.98.7" in said


def test_the_version_of_no_cudnn(tmp_path: Path) -> None:
    code = """
quiet = _lib.version(raises=False)
try:
    _lib.version()
except RuntimeError as error:
    print(json.dumps([quiet, str(error)]))
"""
    quiet, text = answer(code, tmp_path / "nothing")
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
try:
    raw.cudnnDestroyFilterDescriptor(tensor)
except TypeError as error:
    wrong = True
try:
    raw.cudnnCreatTensorDescriptor
except AttributeError as error:
    typo = str(error)
print(json.dumps([good, failed, wrong, typo, raw.cudnnGetErrorString(0).decode()]))
"""
    good, failed, wrong, typo, text = answer(code)
    assert good == 0
    assert failed == [2, "cudnnSetTensor4dDescriptor", True]
    assert wrong is True
    assert "cudnnCreateTensorDescriptor" in typo
    assert text == "CUDNN_STATUS_SUCCESS"


def test_the_table_names_every_library_of_the_wheel(cudnn: Installation) -> None:
    there = {path.name for path in Path(cudnn.folder).glob("libcudnn_*.so.9")}
    assert there == {f"libcudnn_{name}.so.9" for name in SUBLIBRARIES} & there
    assert cudnn.problems == ()
