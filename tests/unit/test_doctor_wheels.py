"""Wheels of cuDNN whose files are gone, and the commands that install them again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import cudnn_doctor as doctor
from cudnn_doctor.read import versions
from tests.elf_files import make_cudnn, make_jit
from tests.unit.test_doctor_leftovers import site as site
from tests.unit.test_doctor_metadata import write_metadata
from tests.unit.test_doctor_several import record


def wheel(site: Path, package: str = "nvidia_cudnn_jit_cu12", version: str = "9.27.0") -> Path:
    """Write a wheel with its RECORD, and return the folder of its libraries."""
    folder = site / ("nvidia/cudnn_jit/lib" if "jit" in package else "nvidia/cudnn/lib")
    (make_jit if "jit" in package else make_cudnn)(folder, version)
    record(site, f"{package}-{version}.42", sorted(str(path.relative_to(site)) for path in folder.iterdir()))
    return folder


def again(site: Path, pin: str) -> str:
    return f"{site.parents[2]}/bin/python3.11 -m pip install --force-reinstall --no-deps {pin}"


@pytest.mark.parametrize("package", ["nvidia-cudnn-cu12", "nvidia-cudnn-jit-cu12"])
def test_diagnose_repairs_a_wheel_when_its_libraries_are_gone(site: Path, package: str) -> None:
    shutil.rmtree(wheel(site, package.replace("-", "_")))
    found = doctor.diagnose(site.parents[2], run=False)
    assert found.findings[0].code == "missing-library"
    assert found.exit_code() == 1
    assert found.commands[0] == again(site, f"{package}==9.27.0.42")


def test_diagnose_warns_of_a_jit_wheel_without_libraries_when_another_cudnn_exists(site: Path) -> None:
    shutil.rmtree(wheel(site))
    wheel(site, "nvidia_cudnn_cu12", "9.28.0")
    found = doctor.diagnose(site.parents[2], run=False)
    (lost,) = (each for each in found.findings if each.code == "missing-library")
    assert lost.severity == doctor.Severity.WARNING


@pytest.mark.parametrize("contents", [b"", None])
def test_diagnose_reads_the_version_of_the_wheel_when_no_library_has_it(
    site: Path, contents: bytes | None
) -> None:
    graph = wheel(site) / "libcudnn_graph.so.9"
    graph.unlink()
    if contents is not None:
        graph.write_bytes(contents)
    found = doctor.diagnose(site.parents[2], run=False)
    assert found.sets[0].version == (9, 27, 0)
    codes = [each.code for each in found.findings]
    assert codes[0] == ("missing-library" if contents is None else "damaged-library")
    assert "missing-nvrtc" not in codes  # needed by older versions only
    assert found.commands == (again(site, "nvidia-cudnn-jit-cu12==9.27.0.42"),)


def test_diagnose_reports_a_jit_wheel_without_record(site: Path) -> None:
    wheel(site)
    (site / "nvidia_cudnn_jit_cu12-9.27.0.42.dist-info/RECORD").write_text("")
    found = doctor.diagnose(site.parents[2], run=False)
    assert "broken-record" in {each.code for each in found.findings}


# --- links to a cache, as uv creates them -----------------------------------------------------------------


def linked(site: Path, label: str, files: list[str]) -> None:
    """Replace installed files by links to a cache that no longer exists."""
    for name in files:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).unlink(missing_ok=True)
        (site / name).symlink_to(f"/gone/cache/{name}")
    record = site / f"{label}.dist-info/RECORD"
    record.parent.mkdir(exist_ok=True)
    record.write_text("".join(f"{name},,1\n" for name in [*files, f"{label}.dist-info/RECORD"]))


def deleted(commands: tuple[str, ...]) -> set[str]:
    words = [command.split()[2:] for command in commands if command.startswith("rm -rf ")]
    return {word for each in words for word in each if not word.endswith(".cudnn-doctor")}


def test_diagnose_deletes_all_links_of_a_wheel_when_their_targets_are_gone(site: Path) -> None:
    libraries = [str(path.relative_to(site)) for path in wheel(site).iterdir()]
    label = "nvidia_cudnn_jit_cu12-9.27.0.42"
    files = [*libraries, "nvidia/cudnn_jit/include/cudnn.h", f"{label}.dist-info/METADATA"]
    linked(site, label, files)
    outside = site.parents[2] / "outside"
    outside.symlink_to("/gone/outside")
    with (site / f"{label}.dist-info/RECORD").open("a") as stream:
        stream.write(f"../../../outside,,1\n{outside},,1\n")
    shutil.rmtree(site / "pip")
    found = doctor.diagnose(site.parents[2], run=False)
    assert found.findings[0].code == "broken-link"
    assert deleted(found.commands) == {str(site / name) for name in files}
    assert [each.partition(" -m ")[2].split()[0] for each in found.commands if " -m " in each] == [
        "ensurepip", "pip", "pip",
    ]  # fmt: skip


def test_diagnose_deletes_all_links_of_a_wheel_of_cuda_when_their_targets_are_gone(site: Path) -> None:
    wheel(site, "nvidia_cudnn_cu12")
    files = ["nvidia/cublas/lib/libcublasLt.so.12", "nvidia/cublas/include/cublas.h"]
    linked(site, "nvidia_cublas_cu12-12.9.1.4", files)
    shutil.rmtree(site / "pip")
    found = doctor.diagnose(site.parents[2], run=False)
    assert deleted(found.commands) == {str(site / name) for name in files}
    assert sum(each.endswith(" ensurepip") for each in found.commands) == 1


# --- copies that no program searches for ------------------------------------------------------------------


def test_diagnose_reports_a_lost_wheel_when_its_folder_was_renamed(site: Path) -> None:
    lib = wheel(site, "nvidia_cudnn_cu12")
    for name in ("cublas", "cuda_nvrtc"):
        (site / f"nvidia_{name}_cu12-12.9.0.1.dist-info").mkdir()
    (site / "nvidia").rename(site / "nvidia.bak")
    found = doctor.diagnose(site.parents[2], run=False)
    assert found.findings[0].code == "missing-library"
    assert str(lib) in found.findings[0].message
    assert found.exit_code() == 1
    assert again(site, "nvidia-cudnn-cu12==9.27.0.42") in found.commands
    assert again(site, "nvidia-cublas-cu12==12.9.0.1") in found.commands
    named = doctor.diagnose(site / "nvidia.bak", run=False)
    assert [each.folder for each in named.sets] == [str(site / "nvidia.bak/cudnn/lib")]


@pytest.mark.parametrize("name", ["stubs", "old"])
@pytest.mark.parametrize("package", ["nvidia_cudnn_cu12", ""])
def test_diagnose_accepts_a_folder_that_no_program_searches(site: Path, package: str, name: str) -> None:
    lib = wheel(site, "nvidia_cudnn_cu12")
    if not package:
        shutil.rmtree(site / "nvidia_cudnn_cu12-9.27.0.42.dist-info")
        name = "stubs"  # without pip's record another folder may be the one in use
    (lib / name).mkdir()
    shutil.copy(lib / "libcudnn_graph.so.9", lib / name)
    found = doctor.diagnose(site.parents[2], run=False)
    assert [each.folder for each in found.sets] == [str(lib)]


def test_diagnose_examines_a_copy_that_another_package_installed(site: Path) -> None:
    wheel(site, "nvidia_cudnn_cu12")
    shim = make_cudnn(site / "other/libs", "9.20.0", without=["ops"])
    record(site, "other-1.0", [str(path.relative_to(site)) for path in shim.parent.iterdir()])
    found = doctor.diagnose(site.parents[2], run=False)
    assert str(shim.parent) in [each.folder for each in found.sets]
    assert "missing-library" in {each.code for each in found.findings}
    lib = shim.parent
    assert found.commands[1:3] == (
        f"rm -rf {lib}/libcudnn_ext.so.9 {lib}/libcudnn_engines_tensor_ir.so.9",  # 9.20 has neither
        f"{site.parents[2]}/bin/python3.11 -m pip install --force-reinstall --no-deps --no-index "
        f"--find-links {site}/.cudnn-doctor other==1.0",
    )


# --- a wheel of the other set ------------------------------------------------------------------------------


@pytest.mark.parametrize("required", [False, True])
def test_fix_replaces_a_jit_wheel_unless_a_package_requires_the_full_one(site: Path, required: bool) -> None:
    lib = wheel(site)
    asked = doctor.Requirements(cuda=12, minimum=(9, 28))
    if required:
        asked = doctor.Requirements()
        write_metadata(site / "x-1.0.dist-info", ["nvidia-cudnn-cu12>=9.28"])
    found = doctor.diagnose(site.parents[2], asked, run=False)
    assert [each.folder for each in found.sets] == [str(lib)]
    assert any(" uninstall -y nvidia-cudnn-jit-cu12" in each for each in found.commands) is not required
    assert found.commands[-1].endswith("-m pip install 'nvidia-cudnn-cu12>=9.28'")


@pytest.mark.parametrize(
    ("specifiers", "expected"),
    [
        ([">=9.1", "<9.28", "<9.11"], [">=9.1", "<9.11"]),
        ([">=9.1", ">=9.12", "==9.20.*", "!=9.13"], [">=9.12", "==9.20.*", "!=9.13"]),
        ([">=9.1,<10", "<9.11", "<=9.9"], [">=9.1,<10", "<9.11", "<=9.9"]),
        ([], []),
    ],
)
def test_tightest_keeps_one_bound_of_a_kind(specifiers: list[str], expected: list[str]) -> None:
    assert versions.tightest(specifiers) == expected


# --- a site-packages of another version of Python ---------------------------------------------------------


def other_python(site: Path) -> Path:
    """Return a site-packages next to that of the environment's Python."""
    (site.parents[2] / "bin/python3").touch()
    folder = site.parents[1] / "python3.12/site-packages"
    folder.mkdir(parents=True)
    return folder


def test_diagnose_ignores_the_site_packages_of_a_python_that_does_not_exist(site: Path) -> None:
    lib = wheel(other_python(site), "nvidia_cudnn_cu13")
    (lib / "libcudnn_ops.so.9").unlink()
    alone = doctor.diagnose(site.parents[2], run=False)
    assert [each.code for each in alone.findings] == ["no-cudnn", "other-cudnn"]
    assert (alone.exit_code(), alone.commands) == (3, ())
    own = wheel(site, "nvidia_cudnn_cu12")
    both = doctor.diagnose(site.parents[2], run=False)
    assert [each.folder for each in both.sets] == [str(own)]
    assert "missing-library" not in {each.code for each in both.findings}
    shutil.rmtree(lib)
    lost = doctor.diagnose(site.parents[2], run=False)
    assert "missing-library" not in {each.code for each in lost.findings}


@pytest.mark.parametrize("below", ["", "nvidia"])
def test_diagnose_examines_such_a_site_packages_when_it_is_named(site: Path, below: str) -> None:
    other = other_python(site)
    (wheel(other, "nvidia_cudnn_cu12") / "libcudnn_ops.so.9").unlink()
    found = doctor.diagnose(other / below, run=False)
    assert found.findings[0].code == "missing-library"
    assert not any("python3.11" in each for each in found.commands)  # which installs into another folder
    assert any(f"-m zipfile -e {other}/" in each for each in found.commands)


def test_diagnose_examines_the_site_packages_of_each_python(site: Path) -> None:
    folders = [wheel(other_python(site), "nvidia_cudnn_cu12"), wheel(site, "nvidia_cudnn_cu12")]
    (site.parents[2] / "bin/python3.12").touch()
    found = doctor.diagnose(site.parents[2], run=False)
    assert sorted(each.folder for each in found.sets) == sorted(map(str, folders))
