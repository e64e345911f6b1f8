"""What SECURITY.md promises: nothing is unpickled or evaluated, no library comes from the current folder."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cudnn_ct
from cudnn_ct import _find
from cudnn_ct._find import COMPANION_STEPS, CUDNN, CUDNN_STEPS, SearchContext, cublaslt, search
from cudnn_ct._installation import inspect, world_writable
from cudnn_ct.autotune import store
from cudnn_ct.autotune.store import Store
from cudnn_ct.doctor import locate as places_of_the_doctor
from cudnn_ct.errors import CudnnWarning
from tests.elf_files import make_cudnn, make_elf

PACKAGE = Path(cudnn_ct.__file__).parent

# --- nothing is evaluated ----------------------------------------------------------------------------------

# Modules that make objects or code of what they read, and those that hand text to a shell.
MODULES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
MODULES |= {"code", "codeop", "runpy", "imp", "commands", "pty", "xmlrpc"}
CALLS = {"eval", "exec", "compile", "__import__", "execfile", "input", "system", "popen", "literal_eval"}
KEYWORDS = {"allow_pickle", "shell"}
# `re.compile` makes a pattern, and no code.
HARMLESS = {"re.compile"}


def dangers(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        at = f"{path}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            yield from (f"{at} imports {one.name}" for one in node.names if one.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            if (node.module or "").split(".")[0] in MODULES:
                yield f"{at} imports {node.module}"
        elif isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            if function.rpartition(".")[2] in CALLS and function not in HARMLESS:
                yield f"{at} calls {function}"
            yield from (f"{at} gives {one.arg}" for one in node.keywords if one.arg in KEYWORDS)


def test_nothing_is_unpickled_evaluated_or_given_to_a_shell() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 100
    assert [danger for path in files for danger in dangers(path)] == []


def test_dangers_finds_each_kind(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import pickle\nfrom marshal import loads\neval('1')\nnp.load(f, allow_pickle=True)\n")
    assert len(list(dangers(bad))) == 4


def test_modules_that_are_imported_by_name_are_the_packages_own() -> None:
    """`import_module` is for lazy names; what it is given begins with a dot."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                assert ast.unparse(node.args[0]).lstrip("f").startswith("'."), f"{path}:{node.lineno}"


# --- which libraries are loaded ----------------------------------------------------------------------------


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder in which somebody has put a cuDNN, and a libcublasLt, wherever one may look."""
    folder = tmp_path / "downloads"
    for place in ("", "lib", "lib64", "nvidia/cudnn/lib", "nvidia/cublas/lib"):
        make_cudnn(folder / place)
        (folder / place / "libcublasLt.so.12").write_bytes(make_elf("libcublasLt.so.12"))
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("named", ["", ":", "::/nowhere", ".", "lib", "./lib:../downloads", "$ORIGIN"])
def test_search_skips_relative_folders(trap: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    asked: list[tuple[list[str], dict[str, str]]] = []

    def child(command: list[str], *, env: dict[str, str], **_: Any) -> Any:
        asked.append((command, env))
        return subprocess.CompletedProcess(command, 1, "", "nothing")

    monkeypatch.setattr(subprocess, "run", child)
    places = SearchContext(
        setting=None,
        environ={"LD_LIBRARY_PATH": named, "CONDA_PREFIX": "."},
        path=("", ".", "../downloads"),
        mapped=tuple,
        linker_cache="/nowhere",
        linker_folders=(),
    )
    for wanted, steps in ((CUDNN, CUDNN_STEPS), (cublaslt(12), COMPANION_STEPS)):
        found = search(wanted, steps, places)
        assert found.path is None, found
    assert str(trap) not in str(places_of_the_doctor.usual(places.environ, list(places.path)))
    for command, environ in asked:  # cuda-pathfinder uses the dynamic linker, in a child
        assert "-P" in command
        assert not {"", ".", "../downloads"} & set(command[4:])
        assert all(map(os.path.isabs, filter(None, environ["LD_LIBRARY_PATH"].split(":"))))
        assert "" not in environ["LD_LIBRARY_PATH"].split(":")[1:]


def test_find_cudnn_skips_the_current_folder_of_a_process(trap: Path) -> None:
    """As python -c and the prompt have it in sys.path."""
    code = "import json; from cudnn_ct import _find; print(json.dumps(str(_find.find_cudnn().path)))"
    environ = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "LD_LIBRARY_PATH": ":"}
    environ.pop("CUDNN_CT_LIBRARY", None)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=trap, env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert str(trap) not in json.loads(done.stdout)


def test_find_explicit_accepts_a_relative_path(trap: Path) -> None:
    assert _find.find_explicit(CUDNN, SearchContext(setting="lib")) == Path("lib/libcudnn.so.9")


# --- writable libraries --------------------------------------------------------------------------


def test_inspect_warns_of_a_library_that_any_user_can_write(tmp_path: Path) -> None:
    shim = make_cudnn(tmp_path / "lib")
    assert inspect(shim).world_writable == ""
    for path in (shim, shim.parent / "libcudnn_graph.so.9", shim.parent):
        before = path.stat().st_mode
        path.chmod(0o777)
        found = inspect(shim)
        assert found.world_writable.startswith(f"any user can write {path}, and so run code")
        assert f"chmod o-w {path}" in found.world_writable
        assert found.world_writable in found.notes
        path.chmod(before)
    shim.parent.chmod(0o1777)  # as /tmp: users cannot replace each other's files
    assert inspect(shim).world_writable == ""
    assert world_writable(str(tmp_path / "nothing")) == ""


@pytest.mark.parametrize("first", ["get", "put"])
def test_a_file_of_choices_that_everybody_may_write_is_not_believed(tmp_path: Path, first: str) -> None:
    path = tmp_path / "choices"
    Store(path).put("key", {"engine": 1})
    assert path.stat().st_mode & 0o022 == 0  # as it is made, whatever the umask
    path.chmod(0o666)
    made, content = Store(path), path.read_bytes()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if first == "get":
            assert made.get("key") is None
        for _ in range(2):
            made.put("key", {"engine": 2})
            assert made.get("key") is None
    (said,) = seen
    assert said.category is CudnnWarning
    assert "everybody may write it, and it is not believed; chmod o-w" in str(said.message)
    assert path.read_bytes() == content
    path.chmod(0o600)
    assert Store(path).get("key") == {"engine": 1}


def test_the_file_of_choices_is_made_for_its_owner_alone_to_write(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store.Store(tmp_path / "folder" / "choices").put("key", {})
    finally:
        os.umask(before)
    assert not (tmp_path / "folder" / "choices").stat().st_mode & 0o022
