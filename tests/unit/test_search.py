"""The steps of the search, and the judgement of its result: fake folders, no NVIDIA software."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cudnn_ct import _dlopen
from cudnn_ct._dlopen import require
from cudnn_ct.errors import LibraryLoadError, LibraryNotFoundError, VersionMismatchError
from cudnn_doctor import locate
from cudnn_doctor.read import find as _find
from cudnn_doctor.read.find import CUDNN, CUDNN_STEPS, TOOLKITS, SearchContext, SearchResult, search
from cudnn_doctor.read.installation import inspect
from cudnn_doctor.read.libraries import SUBLIBRARIES, WHEEL_FOLDERS, needs
from tests.elf_files import NOT_JIT, make_cudnn, make_elf, make_header, make_jit

NO_CHILD = CUDNN_STEPS[:-1]  # without cuda-pathfinder, which searches this machine


def look(tmp_path: Path, steps: object = NO_CHILD, **places: object) -> SearchResult:
    """Search for cuDNN only in the places that a test passes."""
    bare = {
        "setting": None,
        "environ": {},
        "path": (),
        "mapped": tuple,
        "linker_cache": str(tmp_path / "no.cache"),
        "linker_folders": (),
        "prefix": str(tmp_path / "no"),
    }
    return search(CUDNN, steps, SearchContext(**{**bare, **places}))


# --- the steps ---------------------------------------------------------------------------------------------


def test_search_returns_a_reason_for_each_step_that_finds_nothing(tmp_path: Path) -> None:
    found = look(tmp_path)
    assert found.path is None
    assert [name for name, _ in found.steps] == [name for name, _ in NO_CHILD]
    assert all(reason for _, reason in found.steps)
    with pytest.raises(LibraryNotFoundError, match="pip install nvidia-cudnn") as caught:
        require(found)
    assert [place for place, _ in caught.value.steps] == [name for name, _ in NO_CHILD]


# For each source, in the order of the search: its step, the folder of the library in the folder `root`, and
# the part of the search context that names it.
SOURCES: list[tuple[str, str, Callable[[str], dict[str, Any]]]] = [
    ("CUDNN_CT_LIBRARY", "lib", lambda root: {"setting": f"{root}/lib/libcudnn.so.9"}),
    ("already loaded", "lib", lambda root: {"mapped": lambda: ["/libc.so.6", f"{root}/lib/libcudnn.so.9"]}),
    ("wheel", "nvidia/cudnn/lib", lambda root: {"path": ("/nowhere", root)}),
    ("conda", "lib", lambda root: {"environ": {"CONDA_PREFIX": root}}),
    ("conda", "lib", lambda root: {"prefix": root}),  # of a Python in an environment that is not active
    ("CUDNN_PATH", "lib", lambda root: {"environ": {"CUDNN_PATH": root}}),
    *(
        ("CUDA toolkit", folder, lambda root, name=name: {"environ": {name: root}})
        for name, folder in zip(TOOLKITS, ("", "lib", "lib64"), strict=True)
    ),
    ("system", "lib", lambda root: {"environ": {"LD_LIBRARY_PATH": f"/nowhere:{root}/lib"}}),
    ("system", "lib", lambda root: {"linker_cache": f"{root}/cache"}),
    ("system", "lib", lambda root: {"linker_folders": (f"{root}/lib",)}),
]


def test_search_finds_cudnn_with_each_step_and_runs_them_in_order(tmp_path: Path) -> None:
    shims, given = [], []
    for number, (_, folder, context_of) in enumerate(SOURCES):
        root = tmp_path / str(number)
        shims.append(make_cudnn(root / folder))
        (root / "conda-meta").mkdir()
        (root / "cache").write_bytes(b"glibc-ld.so.cache1.1\0libcudnn.so.9\0%b\0" % bytes(shims[-1]))
        given.append(context_of(str(root)))
    for first, (via, _, _) in enumerate(SOURCES):
        alone = look(tmp_path, **given[first])
        assert (alone.found_via, alone.path) == (via, shims[first])
        environ = {name: root for one in given[first:] for name, root in one.get("environ", {}).items()}
        later = {name: value for one in given[first:][::-1] for name, value in one.items()}
        assert look(tmp_path, **{**later, "environ": environ}).path == shims[first]


@pytest.mark.parametrize("folder", ["", "lib", "lib64"])
@pytest.mark.parametrize("name", ["CUDNN_PATH", *TOOLKITS])
def test_search_accepts_a_root_or_the_folder_of_the_libraries(tmp_path: Path, name: str, folder: str) -> None:
    shim = make_cudnn(tmp_path / folder)
    environ = {name: str(tmp_path)}
    assert look(tmp_path, environ=environ).path == look(tmp_path, setting=tmp_path).path == shim
    doctors = [place for place in locate.usual(environ, []).found if place.via == name]
    assert [place.folder for place in doctors] == [str(shim.parent.resolve())]


def test_search_prefers_the_full_wheel_to_the_small_one_in_any_entry(tmp_path: Path) -> None:
    small = make_jit(tmp_path / "one/nvidia/cudnn_jit/lib")
    path = (str(tmp_path / "one"), str(tmp_path / "two"))
    alone = look(tmp_path, path=path)
    assert (alone.path, alone.found_via) == (small, "wheel")
    full = make_cudnn(tmp_path / "two/nvidia/cudnn/lib")
    assert look(tmp_path, path=path).path == full
    assert look(tmp_path, path=path, setting=small).path == small
    places = locate.usual({}, list(path)).found
    assert [place.folder for place in places[:2]] == [str(full.parent), str(small.parent)]


@pytest.mark.parametrize(
    ("folder", "without", "kind", "missing"),
    [
        ("any", NOT_JIT, "jit", []),
        ("nvidia/cudnn_jit/lib", [*NOT_JIT, "graph"], "jit", ["graph"]),
        ("any", [*NOT_JIT, "engines_runtime_compiled"], "full", ["ops", "cnn", "adv"]),
        ("any", ["cnn"], "full", ["cnn"]),
        ("any", [name for name in SUBLIBRARIES if name != "ext"], "ext", []),
        ("nvidia/cudnn/lib", [], "full", []),
    ],
)
def test_installation_is_a_set_of_libraries(
    tmp_path: Path, folder: str, without: list[str], kind: str, missing: list[str]
) -> None:
    found = inspect(make_cudnn(tmp_path / folder, without=without))
    assert found.kind == kind
    assert found.missing[: len(missing)] == missing
    assert bool(found.missing) == bool(missing) == bool(found.problems)


@pytest.mark.parametrize(
    ("companion", "version", "kinds"),
    [
        ("libcublasLt", (9, 20, 0), "full"),
        ("libcublasLt", (9, 27, 0), "full"),
        ("libnvrtc", (9, 20, 0), "full jit"),
        ("libnvrtc", (9, 21, 0), ""),
    ],
)
def test_needs_knows_which_engines_use_a_library_of_cuda(
    companion: str, version: tuple[int, int, int], kinds: str
) -> None:
    assert " ".join(kind for kind in WHEEL_FOLDERS if needs(companion, kind, version)) == kinds


def test_locate_finds_copies_in_packages_and_notes_renamed_ones(tmp_path: Path) -> None:
    folder = make_cudnn(tmp_path / "torch/lib").parent
    found = [place.folder for place in locate.usual({}, [str(tmp_path)]).found if place.via == "package"]
    assert found == [str(folder)]
    (tmp_path / "x-1.dist-info").mkdir()
    (tmp_path / "x-1.dist-info/RECORD").write_text("x.libs/libcudnn_ops-74a4c495.so.9.1.0,,7\n")
    (tmp_path / "x.libs").mkdir()
    for data, codes in ((make_elf("x"), ["renamed-cudnn"]), (b"", ["renamed-cudnn", "damaged-library"])):
        (tmp_path / "x.libs/libcudnn_ops-74a4c495.so.9.1.0").write_bytes(data)
        named, usual = locate.named(str(tmp_path / "x.libs")), locate.usual({}, [str(tmp_path)])
        for places in (named, usual):
            assert [each.code for each in places.findings] == codes
    assert usual.findings[1].fix == "install x==1 again"


def test_search_skips_libraries_of_other_machines_as_the_linker_does(tmp_path: Path) -> None:
    other = tmp_path / "other/libcudnn.so.9"
    other.parent.mkdir()
    other.write_bytes(make_elf("libcudnn.so.9", machine=3))
    shim = make_cudnn(tmp_path / "lib")
    assert look(tmp_path, linker_folders=(str(other.parent), str(shim.parent))).path == shim
    assert look(tmp_path, linker_folders=(str(other.parent),)).path is None


def test_searched_yields_folders_below_the_root_of_an_image(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(
        b"libcudnn.so.9\0/opt/cudnn/libcudnn.so.9\0/opt/libcudnn.so.90\0"
    )
    context = SearchContext(None, {}, (), root=str(tmp_path))
    first, *others = _find.searched(["system"], CUDNN, context)
    assert first == ("ld.so.cache", f"{tmp_path}/opt/cudnn")
    assert others == [("system", f"{tmp_path}{folder}") for folder in context.linker_folders]


def test_search_returns_an_explicit_path_even_if_it_is_wrong(tmp_path: Path) -> None:
    wheel = make_cudnn(tmp_path / "root/nvidia/cudnn/lib")
    (tmp_path / "empty").mkdir()
    for setting in (tmp_path / "nothing.so", tmp_path / "empty"):
        found = look(tmp_path, setting=setting, path=(str(tmp_path / "root"),))
        assert found.found_via == "CUDNN_CT_LIBRARY"
        assert found.path != wheel
        assert inspect(str(found.path)).problems[0].kind == "missing"
    gone = tmp_path / "nothing.so"
    words = f"CUDNN_CT_LIBRARY or ct.config names {gone}, which does not exist; correct it, or unset it"
    with pytest.raises(LibraryNotFoundError, match=re.escape(words)):
        require(look(tmp_path, setting=gone))


def test_search_prefers_the_newest_version_name(tmp_path: Path) -> None:
    for name in ("libcudnn.so.9.2.0", "libcudnn.so.9.10.1", "libcudnn.so.90", "libcudnn_ops.so.9"):
        (tmp_path / name).write_bytes(b"")
    assert look(tmp_path, setting=tmp_path).path == tmp_path / "libcudnn.so.9.10.1"


def test_search_skips_and_names_another_major_version(tmp_path: Path) -> None:
    old = tmp_path / "old/lib/libcudnn.so.8"
    old.parent.mkdir(parents=True)
    old.write_bytes(make_elf("libcudnn.so.8"))
    new = make_cudnn(tmp_path / "root/nvidia/cudnn/lib")
    environ = {"CONDA_PREFIX": str(tmp_path / "old"), "LD_LIBRARY_PATH": str(new.parent)}
    found = look(tmp_path, environ=environ)
    assert found.path == new
    assert found.others == (old,)
    assert "only libcudnn.so.8" in dict(found.steps)["conda"]
    with pytest.raises(VersionMismatchError, match=f"{old} is cuDNN 8"):
        require(look(tmp_path, environ={"CONDA_PREFIX": str(tmp_path / "old")}))


def test_require_notes_the_step_and_all_problems(tmp_path: Path) -> None:
    shim = make_cudnn(tmp_path / "lib", without=["ext"])
    (shim.parent / "libcudnn_cnn.so.9").write_bytes(b"")
    with pytest.raises(LibraryLoadError, match=r"libcudnn_cnn\.so\.9 is empty") as caught:
        require(look(tmp_path, environ={"CONDA_PREFIX": str(tmp_path)}))
    notes = caught.value.__notes__
    assert notes[0] == "found via conda"
    assert "libcudnn_ext.so.9 missing" in notes[1]


def test_search_finds_a_companion_next_to_the_wheel_of_cudnn(tmp_path: Path) -> None:
    shim = make_cudnn(tmp_path / "nvidia/cudnn/lib")
    for cuda, folder in ((12, "nvidia/cublas/lib"), (13, "nvidia/cu13/lib")):
        path = tmp_path / folder / f"libcublasLt.so.{cuda}"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
    places = SearchContext(
        environ={}, path=(), mapped=tuple, linker_cache="", linker_folders=(), beside=str(shim.parent)
    )
    for cuda in (12, 13):
        found = search(_find.of_cuda("libcublasLt", cuda), _find.COMPANION_STEPS[:-1], places)
        assert (found.found_via, found.path.name) == ("beside cuDNN", f"libcublasLt.so.{cuda}")
    missing = search(_find.of_cuda("libcublasLt", 14), _find.COMPANION_STEPS[:-1], places)
    assert missing.path is None
    assert "only libcublasLt.so.12" in dict(missing.steps)["beside cuDNN"]


FINDS = "class R: abs_path = '/x/libcudnn.so.{}'\ndef load_nvidia_dynamic_lib(name): print('noise'); return R"


@pytest.mark.parametrize(
    ("body", "path", "reason"),
    [
        (FINDS.format(9), Path("/x/libcudnn.so.9"), "/x/libcudnn.so.9"),
        (FINDS.format(10), None, "another version"),
        ("def load_nvidia_dynamic_lib(name): raise RuntimeError('none')", None, "RuntimeError: none"),
        ("import os; os.kill(os.getpid(), 9)", None, "signal 9"),
        ("", None, "ImportError"),
        (
            "def load_nvidia_dynamic_lib(name): raise OSError('Failure finding \"libcublasLt.so.13\"')",
            None,
            "it loads another library first: OSError: Failure finding",
        ),
    ],
)
def test_search_runs_pathfinder_in_a_child(tmp_path: Path, body: str, path: Path | None, reason: str) -> None:
    package = tmp_path / "cuda/pathfinder"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(body)
    found = look(tmp_path, CUDNN_STEPS[-1:], path=(str(tmp_path), *sys.path), environ=os.environ)
    assert found.path == path
    assert reason in found.steps[0][1]


def test_a_missing_cudnn_is_answered_with_both_kinds_of_wheels() -> None:
    with pytest.raises(LibraryNotFoundError, match=r"nvidia-cudnn-cu12 .*nvidia-cudnn-jit-cu12 .*doctor"):
        require(SearchResult(None, "", (("wheel", "no libcudnn.so.9"),)))


@pytest.mark.parametrize(
    ("system", "machine"), [("win32", "AMD64"), ("darwin", "arm64"), ("linux", "riscv64")]
)
def test_find_cudnn_rejects_other_systems(monkeypatch: pytest.MonkeyPatch, system: str, machine: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    name = os.uname_result(("", "", "", "", machine))
    monkeypatch.setattr(os, "uname", lambda: name)
    found = _dlopen.find_cudnn()
    assert found.path is None
    assert "Linux with glibc on x86-64 or aarch64" in found.steps[0][1]
    assert f"{system} on {machine}" in found.steps[0][1]


def test_find_cudnn_rejects_another_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "confstr", lambda name: int(name))  # raises ValueError, as musl does
    assert "another C library" in _dlopen.find_cudnn().steps[0][1]


# --- the files of a folder -------------------------------------------------------------------------------


def test_inspect_follows_all_links(tmp_path: Path) -> None:
    shim = make_cudnn(tmp_path / "real")
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "one").symlink_to("folder/libcudnn.so.9")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    for path in (shim, tmp_path / "folder/libcudnn.so.9", tmp_path / "one", tmp_path / "two"):
        installation = inspect(path)
        assert (installation.shim, installation.problems) == (str(shim), ())


def test_inspect_reads_a_folder_that_it_cannot_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = make_cudnn(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "listdir", lambda _: pytest.fail("the folder cannot be listed"))
    assert (inspect(shim).problems, inspect(shim).number) == ((), 92700)


def test_inspect_rejects_cudnn_8_with_its_version(tmp_path: Path) -> None:
    shim = tmp_path / "libcudnn.so.8"
    shim.write_bytes(make_elf("libcudnn.so.8"))
    constant = {"cudnn_ops_infer_version": 0x00080907}
    (tmp_path / "libcudnn_ops_infer.so.8").write_bytes(
        make_elf("libcudnn_ops_infer.so.8", constants=constant)
    )
    (problem,) = inspect(shim).problems
    assert problem.kind == "version"
    assert f"{shim} is cuDNN 8.9.7: cudnn_ct needs cuDNN >= 9.0" in str(problem)


@pytest.mark.parametrize(
    ("library", "header"),
    [
        ("lib", "include/cudnn_version.h"),
        ("lib64", "include/cudnn_version.h"),
        ("lib", "include/cudnn_version_v9.h"),
        ("lib/x86_64-linux-gnu", "include/x86_64-linux-gnu/cudnn_version_v9.h"),
        ("lib/x86_64-linux-gnu", "include/cudnn_version.h"),
    ],
)
def test_inspect_finds_the_header_of_a_library(tmp_path: Path, library: str, header: str) -> None:
    path = make_header(tmp_path / header, "9.19.0")
    shim = make_cudnn(tmp_path / library)
    assert inspect(shim).header == (str(path), (9, 19, 0))
    path.write_text("#define CUDNN_MAJOR 9\n")
    assert inspect(shim).header == (str(path), None)
    assert inspect(make_cudnn(tmp_path / "deep/er/lib")).header is None
