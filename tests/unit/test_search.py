"""The steps that look for libraries, and the verdict on what they find: fake trees, no NVIDIA software."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cudnn_ct import _find
from cudnn_ct._find import (
    COMPANION_STEPS,
    CUDNN,
    CUDNN_STEPS,
    SearchContext,
    SearchResult,
    cublaslt,
    search,
    searched,
)
from cudnn_ct._installation import inspect, require
from cudnn_ct.doctor import locate as places_of_the_doctor
from cudnn_ct.errors import LibraryLoadError, LibraryNotFoundError, VersionMismatchError
from tests.elf_files import make_cudnn, make_elf, make_header

NO_CHILD = CUDNN_STEPS[:-1]  # without cuda-pathfinder, which knows this machine and not the fake one


def look(tmp_path: Path, steps: object = NO_CHILD, **places: object) -> SearchResult:
    """Look for cuDNN on a machine that has nothing but what the test gives it."""
    bare = {
        "setting": None,
        "environ": {},
        "path": (),
        "mapped": tuple,
        "linker_cache": str(tmp_path / "no.cache"),
        "linker_folders": (),
    }
    return search(CUDNN, steps, SearchContext(**{**bare, **places}))


# --- the steps ---------------------------------------------------------------------------------------------


def test_every_step_that_finds_nothing_leaves_a_reason(tmp_path: Path) -> None:
    found = look(tmp_path)
    assert found.path is None
    assert [name for name, _ in found.steps] == [name for name, _ in NO_CHILD]
    assert all(reason for _, reason in found.steps)


def test_each_step_finds_its_own(tmp_path: Path) -> None:
    shim = make_cudnn(tmp_path / "root" / "nvidia/cudnn/lib")
    conda = make_cudnn(tmp_path / "conda/lib")
    cache = tmp_path / "ld.so.cache"
    cache.write_bytes(b"glibc-ld.so.cache1.1\0libcudnn.so.9\0" + os.fsencode(shim) + b"\0")
    for via, given in {
        "CUDNN_CT_LIBRARY": {"setting": str(shim)},
        "already loaded": {"mapped": lambda: ["/usr/lib/libc.so.6", str(shim)]},
        "wheel": {"path": ("/nowhere", str(tmp_path / "root"))},
        "conda": {"environ": {"CONDA_PREFIX": str(tmp_path / "conda")}},
        "CUDNN_PATH": {"environ": {"CUDNN_PATH": str(shim.parent)}},
        "system": {"environ": {"LD_LIBRARY_PATH": f"/nowhere:{shim.parent}"}},
    }.items():
        found = look(tmp_path, **given)
        assert (found.found_via, found.path) == (via, conda if via == "conda" else shim)
    assert look(tmp_path, linker_cache=str(cache)).path == shim
    assert look(tmp_path, linker_folders=(str(shim.parent),)).path == shim


def test_the_order_of_the_steps(tmp_path: Path) -> None:
    names = ["explicit", "mapped", "wheel", "conda", "cudnn_path", "system"]
    shims = {
        name: make_cudnn(tmp_path / name / ("nvidia/cudnn/lib" if name == "wheel" else "lib"))
        for name in names
    }
    places = {
        "explicit": lambda: {"setting": str(shims["explicit"])},
        "mapped": lambda: {"mapped": lambda: [str(shims["mapped"])]},
        "wheel": lambda: {"path": (str(tmp_path / "wheel"),)},
        "conda": lambda: {"CONDA_PREFIX": str(tmp_path / "conda")},
        "cudnn_path": lambda: {"CUDNN_PATH": str(tmp_path / "cudnn_path")},
        "system": lambda: {"LD_LIBRARY_PATH": str(shims["system"].parent)},
    }
    for first in range(len(names)):
        given: dict[str, object] = {}
        environ: dict[str, object] = {}
        for name in names[first:]:
            (given if name in names[:3] else environ).update(places[name]())
        assert look(tmp_path, environ=environ, **given).path == shims[names[first]]


@pytest.mark.parametrize("name", ["CUDA_PATH", "CUDA_HOME", "CUDA_ROOT"])
@pytest.mark.parametrize("folder", ["", "lib", "lib64"])
def test_search_finds_cudnn_in_a_cuda_toolkit(tmp_path: Path, name: str, folder: str) -> None:
    shim = make_cudnn(tmp_path / folder)
    environ = {name: str(tmp_path)}
    assert look(tmp_path, environ=environ).path == shim
    doctors = [place for place in places_of_the_doctor.usual(environ, []).found if place.via == name]
    assert [place.folder for place in doctors] == [str(shim.parent.resolve())]


def test_search_prefers_cudnn_path_then_the_toolkits_in_order(tmp_path: Path) -> None:
    names = ["CUDNN_PATH", "CUDA_PATH", "CUDA_HOME", "CUDA_ROOT", "LD_LIBRARY_PATH"]
    shims = {name: make_cudnn(tmp_path / name) for name in names}
    for first, name in enumerate(names):
        environ = {each: str(tmp_path / each) for each in names[first:]}
        assert look(tmp_path, environ=environ).path == shims[name]
        assert places_of_the_doctor.usual(environ, []).found[0].via == name


@pytest.mark.parametrize("name", ["CUDA_PATH", "CUDA_HOME", "CUDA_ROOT"])
def test_search_finds_cublaslt_in_a_cuda_toolkit(tmp_path: Path, name: str) -> None:
    path = tmp_path / "lib64/libcublasLt.so.12"
    path.parent.mkdir()
    path.write_bytes(make_elf("libcublasLt.so.12"))
    environ = {name: str(tmp_path)}
    found = search(
        cublaslt(12), COMPANION_STEPS, SearchContext(setting=None, environ=environ, path=(), mapped=tuple)
    )
    assert (found.path, found.found_via) == (path, "CUDA toolkit")


def test_the_linker_passes_over_libraries_of_other_machines(tmp_path: Path) -> None:
    other = tmp_path / "other/libcudnn.so.9"
    other.parent.mkdir()
    other.write_bytes(make_elf("libcudnn.so.9", machine=3))
    shim = make_cudnn(tmp_path / "lib")
    assert look(tmp_path, linker_folders=(str(other.parent), str(shim.parent))).path == shim
    assert look(tmp_path, linker_folders=(str(other.parent),)).path is None


def test_system_folders_are_below_the_root_of_an_image(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(
        b"libcudnn.so.9\0/opt/cudnn/libcudnn.so.9\0/opt/libcudnn.so.90\0"
    )
    context = SearchContext(None, {}, (), root=str(tmp_path))
    first, *others = searched(["system"], CUDNN, context)
    assert first == ("ld.so.cache", f"{tmp_path}/opt/cudnn")
    assert others == [("system", f"{tmp_path}{folder}") for folder in context.linker_folders]


def test_doctor_needs_no_package_and_no_setting(tmp_path: Path) -> None:
    make_cudnn(tmp_path)
    root = str(Path(_find.__file__).parents[1])
    done = (
        subprocess.run(  # -S leaves site-packages out; a wrong setting warns where the settings are imported
            [sys.executable, "-S", "-W", "error", "-m", "cudnn_ct", "doctor", "--static", str(tmp_path)],
            env={**os.environ, "PYTHONPATH": root, "CUDNN_CT_DEBUG_SYNC": "wrong"},
            capture_output=True,
            text=True,
        )
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "9.27.0" in done.stdout


@pytest.mark.parametrize("folder", [".", "lib", "lib64"])
def test_a_root_or_the_folder_of_the_libraries_will_do(tmp_path: Path, folder: str) -> None:
    shim = make_cudnn(tmp_path / "cudnn" / folder)
    assert look(tmp_path, setting=tmp_path / "cudnn").path == shim
    assert look(tmp_path, environ={"CUDNN_PATH": str(tmp_path / "cudnn")}).path == shim


def test_an_explicit_path_that_is_wrong_is_not_passed_over(tmp_path: Path) -> None:
    wheel = make_cudnn(tmp_path / "root/nvidia/cudnn/lib")
    (tmp_path / "empty").mkdir()
    for setting in (tmp_path / "nothing.so", tmp_path / "empty"):
        found = look(tmp_path, setting=setting, path=(str(tmp_path / "root"),))
        assert found.found_via == "CUDNN_CT_LIBRARY"
        assert found.path != wheel
        assert isinstance(inspect(str(found.path)).problems[0], LibraryNotFoundError)


def test_only_a_full_name_is_the_newest_first(tmp_path: Path) -> None:
    for name in ("libcudnn.so.9.2.0", "libcudnn.so.9.10.1", "libcudnn.so.90", "libcudnn_ops.so.9"):
        (tmp_path / name).write_bytes(b"")
    assert look(tmp_path, setting=tmp_path).path == tmp_path / "libcudnn.so.9.10.1"


def test_a_dangling_link_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libcudnn.so.9").symlink_to("libcudnn.so.9.99.0")
    found = look(tmp_path, environ={"CONDA_PREFIX": str(tmp_path)})
    assert found.found_via == "conda"
    with pytest.raises(LibraryNotFoundError, match=r"libcudnn\.so\.9\.99\.0 does not exist"):
        require(found)


def test_what_a_setting_names_in_vain_is_named_with_the_setting(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(LibraryNotFoundError) as caught:
        require(look(tmp_path, setting=gone))
    words = f"CUDNN_CT_LIBRARY or ct.config names {gone}, which does not exist; correct it, or unset it"
    assert str(caught.value).startswith(words)


def test_another_major_version_is_named_and_passed_over(tmp_path: Path) -> None:
    old = tmp_path / "old/lib/libcudnn.so.8"
    old.parent.mkdir(parents=True)
    old.write_bytes(make_elf("libcudnn.so.8"))
    new = make_cudnn(tmp_path / "root/nvidia/cudnn/lib")
    environ = {"CONDA_PREFIX": str(tmp_path / "old"), "LD_LIBRARY_PATH": str(new.parent)}
    found = look(tmp_path, environ=environ)
    assert found.path == new
    assert found.others == (old,)
    assert "only libcudnn.so.8" in dict(found.steps)["conda"]


def test_cudnn_8_alone_is_a_better_answer_than_none(tmp_path: Path) -> None:
    old = tmp_path / "libcudnn.so.8"
    old.write_bytes(make_elf("libcudnn.so.8"))
    with pytest.raises(VersionMismatchError, match=f"{old} is cuDNN 8"):
        require(look(tmp_path, environ={"LD_LIBRARY_PATH": str(tmp_path)}))


def test_what_is_not_found_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(LibraryNotFoundError, match="pip install nvidia-cudnn") as caught:
        require(look(tmp_path))
    assert [place for place, _ in caught.value.steps] == [name for name, _ in NO_CHILD]


def test_what_is_broken_says_how_it_was_found_and_what_else_is_wrong(tmp_path: Path) -> None:
    shim = make_cudnn(tmp_path / "lib", without=["ext"])
    (shim.parent / "libcudnn_cnn.so.9").write_bytes(b"")
    with pytest.raises(LibraryLoadError, match=r"libcudnn_cnn\.so\.9 is empty") as caught:
        require(look(tmp_path, environ={"CONDA_PREFIX": str(tmp_path)}))
    notes = caught.value.__notes__
    assert notes[0] == "found via conda"
    assert "libcudnn_ext.so.9 not there" in notes[1]


def test_a_companion_beside_the_wheel_of_cudnn(tmp_path: Path) -> None:
    shim = make_cudnn(tmp_path / "nvidia/cudnn/lib")
    for cuda, folder in ((12, "nvidia/cublas/lib"), (13, "nvidia/cu13/lib")):
        path = tmp_path / folder / f"libcublasLt.so.{cuda}"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
    places = SearchContext(
        environ={}, path=(), mapped=tuple, linker_cache="", linker_folders=(), beside=shim.parent
    )
    for cuda in (12, 13):
        found = search(cublaslt(cuda), COMPANION_STEPS[:-1], places)
        assert (found.found_via, found.path.name) == ("beside cuDNN", f"libcublasLt.so.{cuda}")
    missing = search(cublaslt(14), COMPANION_STEPS[:-1], places)
    assert missing.path is None
    assert "only libcublasLt.so.12" in dict(missing.steps)["beside cuDNN"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "def load_nvidia_dynamic_lib(name): raise RuntimeError('no such thing')",
            "RuntimeError: no such thing",
        ),
        ("import os; os.kill(os.getpid(), 9)", "signal 9"),
        (
            "class R: abs_path = '/x/libcudnn.so.10'\ndef load_nvidia_dynamic_lib(name): return R",
            "another version",
        ),
        ("", "ImportError"),
    ],
)
def test_pathfinder_is_asked_in_a_child(tmp_path: Path, body: str, reason: str) -> None:
    package = tmp_path / "cuda/pathfinder"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(body)
    found = look(tmp_path, CUDNN_STEPS[-1:], path=(str(tmp_path), *sys.path), environ=os.environ)
    assert found.path is None
    assert reason in found.steps[0][1]


def test_pathfinder_has_the_last_word(tmp_path: Path) -> None:
    package = tmp_path / "cuda/pathfinder"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "class R: abs_path = '/x/libcudnn.so.9'\ndef load_nvidia_dynamic_lib(name): print('noise'); return R"
    )
    found = look(tmp_path, CUDNN_STEPS[-1:], path=(str(tmp_path), *sys.path), environ=os.environ)
    assert found.path == Path("/x/libcudnn.so.9")


@pytest.mark.parametrize(
    ("system", "machine"), [("win32", "AMD64"), ("darwin", "arm64"), ("linux", "riscv64")]
)
def test_other_systems_are_told_so(monkeypatch: pytest.MonkeyPatch, system: str, machine: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    name = os.uname_result(("", "", "", "", machine))
    monkeypatch.setattr(os, "uname", lambda: name)
    found = _find.find_cudnn()
    assert found.path is None
    assert "Linux with glibc on x86-64 or aarch64" in found.steps[0][1]
    assert f"{system} on {machine}" in found.steps[0][1]


def test_another_c_library_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def confstr(name: str) -> str:
        raise ValueError(name)

    monkeypatch.setattr(os, "confstr", confstr)
    assert "another C library" in _find.find_cudnn().steps[0][1]


# --- what lies in the folder -------------------------------------------------------------------------------


def problem(shim: Path) -> Exception:
    first, *_ = inspect(shim).problems
    return first


def test_a_sound_installation(tmp_path: Path) -> None:
    installation = inspect(make_cudnn(tmp_path / "lib", "9.27.0"))
    assert installation.problems == ()
    assert installation.version == 92700
    assert [file.version for file in installation.files if file.version] == ["9.27.0"] * 3
    assert installation.header is None
    assert installation.notes == ()


def test_the_real_path_is_taken_through_all_links(tmp_path: Path) -> None:
    shim = make_cudnn(tmp_path / "real")
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "one").symlink_to("folder/libcudnn.so.9")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    for path in (shim, tmp_path / "folder/libcudnn.so.9", tmp_path / "one", tmp_path / "two"):
        installation = inspect(path)
        assert (installation.shim, installation.problems) == (str(shim), ())


def test_the_most_exact_name_beside_the_library_is_taken(tmp_path: Path) -> None:
    shim = make_cudnn(tmp_path, "9.27.0", ops="9.10.2")
    exact = tmp_path / "libcudnn.so.9.27.0"
    shim.rename(exact)
    shim.symlink_to(exact.name)
    (tmp_path / "libcudnn_ops.so.9.27.0").write_bytes((tmp_path / "libcudnn_graph.so.9").read_bytes())
    files = {file.name: file.path for file in inspect(shim).files}
    assert files["ops"] == str(tmp_path / "libcudnn_ops.so.9.27.0")
    assert files["cnn"] == str(tmp_path / "libcudnn_cnn.so.9")


def test_missing_libraries_are_named(tmp_path: Path) -> None:
    error = problem(make_cudnn(tmp_path, without=["cnn", "ext"]))
    assert isinstance(error, LibraryLoadError)
    assert str(tmp_path) in str(error)
    assert "libcudnn_cnn.so.9, libcudnn_ext.so.9" in str(error)


def test_libraries_that_came_later_are_not_missed(tmp_path: Path) -> None:
    assert inspect(make_cudnn(tmp_path, "9.19.0", without=["ext", "engines_tensor_ir"])).problems == ()


@pytest.mark.parametrize("part", ["graph", "ops", "adv"])
def test_mixed_versions_are_named(tmp_path: Path, part: str) -> None:
    error = problem(make_cudnn(tmp_path, "9.27.0", **{part: "9.10.2"}))
    assert isinstance(error, VersionMismatchError)
    assert f"libcudnn_{part}.so.9 is 9.10.2" in str(error)
    assert "9.27.0" in str(error)


def test_cudnn_8_is_refused_with_its_version(tmp_path: Path) -> None:
    shim = tmp_path / "libcudnn.so.8"
    shim.write_bytes(make_elf("libcudnn.so.8"))
    assert "is cuDNN 8: cudnn_ct needs cuDNN >= 9.0" in str(problem(shim))
    constant = {"cudnn_ops_infer_version": 0x00080907}
    (tmp_path / "libcudnn_ops_infer.so.8").write_bytes(
        make_elf("libcudnn_ops_infer.so.8", constants=constant)
    )
    assert isinstance(problem(shim), VersionMismatchError)
    assert f"{shim} is cuDNN 8.9.7: cudnn_ct needs cuDNN >= 9.0" in str(problem(shim))


def test_a_sub_library_is_not_cudnn(tmp_path: Path) -> None:
    make_cudnn(tmp_path)
    assert "is libcudnn_ops.so.9, not libcudnn.so.9" in str(problem(tmp_path / "libcudnn_ops.so.9"))


def test_every_broken_file_is_reported(tmp_path: Path) -> None:
    shim = make_cudnn(tmp_path)
    (tmp_path / "libcudnn_ops.so.9").write_bytes(b"")
    (tmp_path / "libcudnn_cnn.so.9").write_bytes(b"<html>")
    texts = [str(error) for error in inspect(shim).problems]
    assert len(texts) == 2
    assert "libcudnn_ops.so.9 is empty" in texts[0]
    assert "libcudnn_cnn.so.9 is a web page" in texts[1]


def test_a_file_that_not_everybody_may_read_is_noted(tmp_path: Path) -> None:
    shim = make_cudnn(tmp_path)
    (tmp_path / "libcudnn_adv.so.9").chmod(0o600)
    installation = inspect(shim)
    assert installation.problems == ()
    assert len(installation.notes) == 1
    assert f"chmod a+r {tmp_path / 'libcudnn_adv.so.9'}" in installation.notes[0]


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
def test_the_header_that_belongs_to_a_library(tmp_path: Path, library: str, header: str) -> None:
    path = make_header(tmp_path / header, "9.19.0")
    found = inspect(make_cudnn(tmp_path / library)).header
    assert found is not None
    assert (found.path, found.version) == (str(path), "9.19.0")


def test_a_header_elsewhere_does_not_belong_to_it(tmp_path: Path) -> None:
    make_header(tmp_path / "include/cudnn_version.h", "9.19.0")
    assert inspect(make_cudnn(tmp_path / "deep/er/lib")).header is None


def test_a_header_without_a_version_has_none(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include/cudnn_version.h").write_text("#define CUDNN_MAJOR 9\n")
    found = inspect(make_cudnn(tmp_path / "lib")).header
    assert found is not None
    assert found.version is None
