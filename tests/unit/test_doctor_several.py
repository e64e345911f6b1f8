"""Installations with two defects: both are reported, the cause first, and no fix of one worsens the other."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import cudnn_doctor as doctor
from cudnn_doctor import diagnosis
from cudnn_doctor.finding import Fix, Severity, finding
from cudnn_doctor.read import files as _files
from tests.elf_files import make_cudnn, make_elf
from tests.unit.test_doctor_metadata import write_metadata


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of ``pip install --target`` with a cuDNN for CUDA 12 and a libcublasLt."""
    make_cudnn(tmp_path / "nvidia/cudnn/lib", "9.28.0", cuda=12)
    (tmp_path / "nvidia/cublas/lib").mkdir(parents=True)
    (tmp_path / "nvidia/cublas/lib/libcublasLt.so.12").write_bytes(make_elf("libcublasLt.so.12"))
    return tmp_path


def record(site: Path, label: str, files: list[str]) -> None:
    info = site / f"{label}.dist-info"
    info.mkdir()
    sizes = [(name, os.path.getsize(site / name)) for name in files]
    (info / "RECORD").write_text("".join(f"{name},,{size}\n" for name, size in sizes))


def test_one_library_for_another_processor_hides_no_broken_companion(site: Path) -> None:
    ops = site / "nvidia/cudnn/lib/libcudnn_ops.so.9"
    ops.write_bytes(make_elf(ops.name, machine=21))
    (site / "nvidia/cublas/lib/libcublasLt.so.12").write_bytes(b"")
    codes = {each.code for each in doctor.diagnose(site, run=False).findings}
    assert {"foreign-machine", "damaged-library"} <= codes


def test_a_divided_environment_keeps_the_libraries_of_the_version_on_disk(site: Path) -> None:
    lib = "nvidia/cudnn/lib"
    names = sorted(name for name in os.listdir(site / lib) if "ext" not in name and "tensor" not in name)
    record(site, "nvidia_cudnn_cu12-9.10.2.21", [f"{lib}/{name}" for name in names])
    for consumer, need in (("torch-2.8", "nvidia-cudnn-cu12==9.10.2.21"), ("jax-1", "nvidia-cudnn-cu13>=9")):
        write_metadata(site / f"{consumer}.dist-info", [need])
    found = doctor.diagnose(site, run=False)
    unowned = [each for each in found.findings if each.code == "unowned-library"]
    assert len(unowned) == 2
    assert found.commands == ()
    assert all(each.fix.startswith("use separate environments") for each in unowned)


@pytest.mark.parametrize("needs", ["nvidia-cudnn-cu12==9.10.2.21", "nvidia-cudnn-cu13>=9.12"])
def test_a_folder_without_a_python_gets_another_version(site: Path, needs: str) -> None:
    lib = "nvidia/cudnn/lib"
    record(site, "nvidia_cudnn_cu12-9.28.0.42", [f"{lib}/{name}" for name in os.listdir(site / lib)])
    write_metadata(site / "x-1.dist-info", [needs])
    commands = doctor.diagnose(site, run=False).commands
    assert needs in commands[0]
    assert any(f"rm -rf {site}/nvidia_cudnn_cu12-9.28.0.42.dist-info" in each for each in commands)
    assert any("nvidia-cublas" in each for each in commands) == ("cu13" in needs)


def test_a_library_that_is_loaded_first_precedes_its_effects() -> None:
    effects = [
        finding("mixed-versions", "x"),
        finding("unresolved-symbols", "x"),
        finding("load-failed", "x"),
    ]
    for code in ("preloaded", "shadowed", "memory-limit"):
        cause = finding(code, "x", fix={"advice": "y"})
        assert diagnosis.sort([*effects, cause])[0] == cause


@pytest.mark.parametrize("code", diagnosis._COMPETING)
def test_a_finding_that_another_refers_to_precedes_it(code: str) -> None:
    values = {"advice": "x", "package": "x", "path": "x"}
    cause = finding(code, "x", severity=Severity.WARNING, fix=values)
    effect = finding("mixed-versions", "x", repair=Fix(f"see {code}"))
    assert diagnosis.sort([effect, cause]) == (cause, effect)


def test_a_broken_record_hides_no_leftovers_of_another_version(site: Path) -> None:
    lib = "nvidia/cudnn/lib"  # with libraries that 9.1 does not have
    record(site, "nvidia_cudnn_cu12-9.1.0.70", [f"{lib}/libcudnn.so.9"])
    (site / "nvidia_cudnn_cu12-9.1.0.70.dist-info/RECORD").write_bytes(b"\0garbage")
    (site / "bin").mkdir()
    for commands in (doctor.diagnose(site, run=False).commands, with_python(site)):
        assert any(f"{lib}/libcudnn*.so.9" in each for each in commands if " -rf " in each), commands


def with_python(site: Path) -> tuple[str, ...]:
    """Return the commands for the same files in the site-packages of a Python."""
    home = site / "v/lib/python3.11/site-packages"
    home.mkdir(parents=True)
    (site / "v/bin").mkdir()
    (site / "v/bin/python3.11").touch()
    for name in ("nvidia", "nvidia_cudnn_cu12-9.1.0.70.dist-info"):
        os.rename(site / name, home / name)
    return doctor.diagnose(home, run=False).commands


def test_a_folder_of_links_is_private_too(tmp_path: Path) -> None:
    make_cudnn(tmp_path / "store")
    links = tmp_path / "lib"
    links.mkdir()
    for library in (tmp_path / "store").iterdir():
        (links / library.name).symlink_to(library)
    links.chmod(0o700)
    told = [each for each in doctor.diagnose(links, run=False).findings if each.code == "private-file"]
    assert [each.evidence["path"] for each in told] == [str(links)]


def test_a_preloaded_library_is_reported_although_cudnn_is_gone(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_cudnn(site.parent / f"{site.name}-other", "9.19.0")
    record(site, "nvidia_cudnn_cu12-9.28.0.42", ["nvidia/cudnn/lib/libcudnn.so.9"])
    shutil.rmtree(site / "nvidia/cudnn")
    monkeypatch.setenv("LD_PRELOAD", str(other))
    assert {"missing-library", "preloaded"} <= {
        each.code for each in doctor.diagnose(site, run=False).findings
    }


def test_another_cudnn_on_the_path_is_reported_although_the_installed_one_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "nvidia_cudnn_cu12-9.1.0.70.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("nvidia/cudnn/lib/libcudnn.so.9,,\n")
    other = make_cudnn(tmp_path / "other", "9.28.0")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(other.parent))
    monkeypatch.setenv("LD_PRELOAD", str(other.parent / "libcudnn_graph.so.9"))
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    found = doctor.diagnose(run=False)
    assert [each.folder for each in found.sets] == [str(other.parent)]
    told = [(each.code, each.severity) for each in found.findings if each.severity < Severity.NOTE]
    codes = ("missing-library", "preloaded", "shadowed")
    assert sorted(told) == [(code, Severity.WARNING) for code in codes]


def test_of_equal_findings_the_most_severe_is_kept() -> None:
    alike = [finding("no-driver", "x", severity=each, fix={"advice": "y"}) for each in reversed(Severity)]
    assert [each.severity for each in diagnosis.sort(alike)] == [Severity.ERROR]


def test_all_folders_that_other_users_cannot_enter_are_reported(site: Path) -> None:
    write_metadata(site / "x-1.dist-info", [])
    folders = [site / "nvidia/cudnn/lib", site / "nvidia/cudnn"]
    library = folders[0] / "libcudnn_ops.so.9"
    for path in (library, *folders):
        path.chmod(0o600 if path == library else 0o700)
    commands = doctor.diagnose(site, run=False).commands
    assert sorted(commands) == sorted(f"chmod a+rX {path}" for path in (library, *folders))


def test_a_private_folder_is_reported_although_its_libraries_are_gone(site: Path) -> None:
    record(site, "nvidia_cudnn_cu12-9.28.0.42", ["nvidia/cudnn/lib/libcudnn.so.9"])
    folder = site / "nvidia/cudnn/lib"
    shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    found = doctor.diagnose(site, run=False)
    assert {"missing-library", "private-file"} <= {each.code for each in found.findings}
    assert found.commands[0] == f"chmod a+rX {folder}"


@pytest.mark.parametrize("top", ["", "/", "/venv"])
def test_folders_around_a_file_end_at_the_root(top: str) -> None:
    assert list(_files.private("/venv/lib/python3.11/site-packages/x", top)) == []


def test_modes_are_changed_before_files_are_deleted(site: Path) -> None:
    lib = "nvidia/cudnn/lib"
    record(site, "nvidia_cudnn_cu12-9.28.0.42", [f"{lib}/{name}" for name in os.listdir(site / lib)])
    write_metadata(site / "x-1.dist-info", ["nvidia-cudnn-cu12==9.1.0.70"])  # without this library
    (site / lib / "libcudnn_ops.so.9").unlink()
    (site / lib / "libcudnn_engines_tensor_ir.so.9").chmod(0o602)
    commands = doctor.diagnose(site, run=False).commands
    assert [each.split()[:2] for each in commands[:2]] == [["chmod", "a+rX"], ["chmod", "o-w"]], commands


def test_a_library_for_another_cuda_explains_the_functions_that_it_lacks(site: Path) -> None:
    lib = site / "nvidia/cudnn/lib"
    names = ("cudnnGetCudartVersion", "cudnnOfExt")
    shim = make_elf("libcudnn.so.9", constants=dict.fromkeys(names, 0), runpath="$ORIGIN")
    (lib / "libcudnn.so.9").write_bytes(shim)
    assert doctor.diagnose(lib, run=False).findings[0].code == "unresolved-symbols"
    ext = make_elf("libcudnn_ext.so.9", constants={"cudnnGetCudartVersion": 13000})
    (lib / "libcudnn_ext.so.9").write_bytes(ext)
    codes = {each.code for each in doctor.diagnose(lib, run=False).findings}
    assert "mixed-cuda" in codes
    assert "unresolved-symbols" not in codes


def test_libraries_of_the_cuda_that_the_fix_installs_are_checked_too(site: Path) -> None:
    lib = "nvidia/cudnn/lib"  # with the libraries for CUDA 12
    record(site, "nvidia_cudnn_cu13-9.28.0.42", [f"{lib}/{name}" for name in os.listdir(site / lib)])
    (site / "nvidia/cu13/lib").mkdir(parents=True)
    (site / "nvidia/cu13/lib/libcublasLt.so.13").write_bytes(b"")
    told = [each for each in doctor.diagnose(site, run=False).findings if each.code == "damaged-library"]
    assert ["libcublasLt.so.13" in each.message for each in told] == [True]
