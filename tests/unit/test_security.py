"""The promises of SECURITY.md: no library comes from the current folder or from a file that anyone can write.

The linter rejects calls that unpickle or evaluate data or start a shell.
"""

from __future__ import annotations

import ast
import os
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest

import cudnn_ct
from cudnn_ct.autotune.store import Store
from cudnn_ct.errors import CudnnWarning
from cudnn_doctor import locate as places_of_the_doctor
from cudnn_doctor.read import find as _find
from cudnn_doctor.read.find import COMPANION_STEPS, CUDNN, CUDNN_STEPS, SearchContext, of_cuda, search
from cudnn_doctor.read.installation import inspect, world_writable
from tests.elf_files import make_cudnn, make_elf

PACKAGE = Path(cudnn_ct.__file__).parent


def test_import_module_gets_relative_names_only() -> None:
    packages = [PACKAGE.with_name(name) for name in ("cudnn_ct", "cudnn_ct_dnn", "cudnn_doctor")]
    for path in (path for package in packages for path in package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                assert ast.unparse(node.args[0]).lstrip("f").startswith("'."), f"{path}:{node.lineno}"


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a current folder with a cuDNN and a libcublasLt at every place that a search may reach."""
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
    for wanted, steps in ((CUDNN, CUDNN_STEPS), (of_cuda("libcublasLt", 12), COMPANION_STEPS)):
        found = search(wanted, steps, places)
        assert found.path is None, found
    assert str(trap) not in str(places_of_the_doctor.usual(places.environ, list(places.path)))
    for command, environ in asked:  # cuda-pathfinder uses the dynamic linker, in a child
        assert "-P" in command
        assert not {"", ".", "../downloads"} & set(command[4:])
        assert all(map(os.path.isabs, filter(None, environ["LD_LIBRARY_PATH"].split(":"))))
        assert "" not in environ["LD_LIBRARY_PATH"].split(":")[1:]


def test_find_explicit_accepts_a_relative_path(trap: Path) -> None:
    assert _find.find_explicit(CUDNN, SearchContext(setting="lib")) == Path("lib/libcudnn.so.9")


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


@pytest.mark.parametrize(
    ("path", "reason"), [("/dev/null", "Not a directory"), ("/tmp", "world-writable; choose")]
)
def test_store_never_advises_to_change_devices_and_shared_folders(path: str, reason: str) -> None:
    with pytest.warns(CudnnWarning, match=f"{path}.*{reason}.*set CUDNN_CT_ALGO_CACHE") as caught:
        assert Store(path).get("key") is None
    assert "chmod" not in str(caught[0].message)


@pytest.mark.parametrize("first", ["get", "put"])
@pytest.mark.parametrize("which", ["folder", "file"])
def test_store_ignores_a_world_writable_folder_or_file(tmp_path: Path, first: str, which: str) -> None:
    folder = tmp_path / "folder" / "choices"
    before = os.umask(0)
    try:
        Store(folder).put("key", {"engine": 1})
    finally:
        os.umask(before)
    (file,) = folder.iterdir()
    path = folder if which == "folder" else file
    assert not path.stat().st_mode & 0o022  # only its owner may write it, whatever the umask
    path.chmod(0o777)
    made, content = Store(folder), file.read_bytes()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if first == "get":
            assert made.get("key") is None
        if which == "folder":
            made.put("key", {"engine": 2})
        assert made.export() == {}
    (said,) = seen
    assert said.category is CudnnWarning
    assert f"{path} is world-writable; run chmod o-w" in str(said.message)
    assert file.read_bytes() == content
    path.chmod(0o700)
    assert Store(folder).get("key") == {"engine": 1}
