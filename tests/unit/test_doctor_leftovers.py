"""The doctor on old versions, leftovers, shared environments, lost links, and read-only folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import cudnn_doctor as doctor
from cudnn_doctor import locate, pip, report
from cudnn_doctor.read import files as _files
from tests.elf_files import make_cudnn, make_elf
from tests.unit.test_doctor_metadata import write_metadata
from tests.unit.test_doctor_several import record


def codes(path: Path) -> list[str]:
    return [each.code for each in doctor.diagnose(path, run=False).findings if each.severity < 2]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The site-packages of a virtual environment with its Python."""
    folder = tmp_path / "venv/lib/python3.11/site-packages"
    folder.mkdir(parents=True)
    for name in ("bin/python3.11", "lib/python3.11/site-packages/pip/__init__.py", "pyvenv.cfg"):
        (tmp_path / "venv" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "venv" / name).touch()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that all users can enter."""
    (tmp_path / "lib").mkdir(mode=0o755)
    return tmp_path / "lib"


def installed(site: Path, version: str = "9.27.0") -> Path:
    """Write a cuDNN with the record of its wheel, and return its folder."""
    shim = make_cudnn(site / "nvidia/cudnn/lib", version)
    names = sorted(str(path.relative_to(site)) for path in shim.parent.iterdir())
    record(site, f"nvidia_cudnn_cu12-{version}.1", names)
    for name in ("cublas/lib/libcublasLt.so.12", "cuda_nvrtc/lib/libnvrtc.so.12"):
        path = site / "nvidia" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(make_elf(path.name))
    return shim.parent


# --- an old cuDNN -------------------------------------------------------------------------------------


def old(site: Path, package: str = "nvidia_cudnn_cu12") -> None:
    folder = site / "nvidia/cudnn/lib"
    folder.mkdir(parents=True)
    for name in ("libcudnn", "libcudnn_ops_infer"):
        constants = {"cudnn_ops_infer_version": 0x080907} if "_" in name else {}
        (folder / f"{name}.so.8").write_bytes(make_elf(f"{name}.so.8", constants=constants))
    record(site, f"{package}-8.9.7.29", [f"nvidia/cudnn/lib/{path.name}" for path in folder.iterdir()])


@pytest.mark.parametrize("package", ["nvidia_cudnn_cu12", "nvidia_cudnn_cu11"])
def test_old_wheel_is_replaced_by_the_python_of_its_environment(site: Path, package: str) -> None:
    old(site, package)
    (found,) = doctor.diagnose(site, run=False).findings
    python = site.parents[2] / "bin/python3.11"
    name = package.replace("_", "-")
    assert (found.code, found.fix) == ("old-cudnn", f"install {name}>=9,<10")
    assert found.commands == (f"{python} -m pip install '{name}>=9,<10'",)


@pytest.mark.parametrize(
    ("requirement", "fix"),
    [
        ("nvidia-cudnn-cu12>=9.3,<10", "install nvidia-cudnn-cu12>=9.3,<10"),
        ("nvidia-cudnn-cu12>=8.5", "install nvidia-cudnn-cu12>=8.5,>=9,<10"),
        (
            "nvidia-cudnn-cu12==8.9.2.26",
            "use separate environments: torch-2.1 needs nvidia-cudnn-cu12 ==8.9.2.26 and a program for "
            "cuDNN 9 needs nvidia-cudnn-cu12 >=9,<10",
        ),
    ],
)
def test_old_wheel_is_replaced_only_if_no_package_requires_it(site: Path, requirement: str, fix: str) -> None:
    old(site)
    write_metadata(site / "torch-2.1.dist-info", [requirement])
    (found,) = doctor.diagnose(site, run=False).findings
    assert found.fix == fix
    assert bool(found.commands) == fix.startswith("install")


def test_old_wheel_stays_if_a_package_can_use_no_other(site: Path) -> None:
    old(site)
    write_metadata(site / "ctranslate2-4.4.0.dist-info", [])
    (found,) = doctor.diagnose(site, run=False).findings
    assert found.fix.startswith(
        "use separate environments: ctranslate2-4.4.0 needs nvidia-cudnn-cu12 >=8,<9 and"
    )


def test_old_cudnn_of_no_package_may_stay(tmp_path: Path) -> None:
    (tmp_path / "libcudnn.so.8").write_bytes(make_elf("libcudnn.so.8"))
    (found,) = doctor.diagnose(tmp_path, run=False).findings
    assert found.commands == ()
    assert "may stay" in found.fix


# --- an interrupted pip -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["~vidia/cudnn/lib", "nvidia/~udnn/lib", "~-idia/lib"])
def test_folder_that_an_interrupted_pip_left_is_reported(site: Path, name: str) -> None:
    installed(site)
    assert codes(site) == []
    make_cudnn(site / name, without=["graph"])
    top = site / name[: name.index("/", name.index("~"))]
    for path in (site, site.parents[2]):
        (found,) = (each for each in doctor.diagnose(path, run=False).findings if each.severity < 2)
        assert (found.code, found.severity.word) == ("interrupted-pip", "warning")
        assert found.commands == (f"rm -rf '{top}'",)


def test_folder_that_an_interrupted_pip_left_is_not_examined_if_it_is_named(site: Path) -> None:
    installed(site)
    make_cudnn(site / "~vidia/cudnn/lib", without=["graph"])
    for path in (site / "~vidia", site / "~vidia/cudnn", site / "~vidia/cudnn/lib"):
        (found,) = doctor.diagnose(path, run=False).findings
        assert (found.code, found.severity.word) == ("interrupted-pip", "error")
        assert found.evidence["path"] == str(site / "~vidia")


def test_folder_with_a_tilde_is_examined_outside_of_a_site_packages(tmp_path: Path) -> None:
    make_cudnn(tmp_path / "~mine/lib")
    assert len(doctor.diagnose(tmp_path, run=False).sets) == 1
    assert "interrupted-pip" not in codes(tmp_path / "~mine/lib")


def test_folder_of_another_package_with_a_tilde_is_no_cudnn(site: Path) -> None:
    installed(site)
    (site / "~umpy/core").mkdir(parents=True)
    assert codes(site) == []


def test_leftover_of_this_machine_is_reported(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cudnn_doctor import locate

    installed(site)
    make_cudnn(site / "nvidia/~udnn/lib")
    located = locate.usual({}, [str(site)])
    assert [each.code for each in located.findings] == ["interrupted-pip"]


# --- environments that share packages -----------------------------------------------------------------


@pytest.fixture
def based(site: Path, tmp_path: Path) -> Path:
    """A virtual environment on that of ``site``, whose packages it shares."""
    packages = tmp_path / "based/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    text = f"home = {site.parents[2]}/bin\ninclude-system-site-packages = true\nversion = 3.11.7\n"
    (tmp_path / "based/pyvenv.cfg").write_text(text)
    return packages


def test_environment_shares_the_cudnn_of_its_base(site: Path, based: Path) -> None:
    folder = installed(site)
    (folder / "libcudnn_ops.so.9").unlink()
    for path in (based, based.parents[2]):
        (found,) = (each for each in doctor.diagnose(path, run=False).findings if each.severity < 1)
        assert (found.code, found.evidence["path"]) == ("missing-library", f"{folder}/libcudnn_ops.so.9")
        assert found.commands[0].startswith(f"{site.parents[2]}/bin/python3.11 -m pip install ")
    write_metadata(based / "torch-2.8.dist-info", ["nvidia-cudnn-cu12==9.10.2.21"])
    assert "consumer-mismatch" in codes(based)


def test_environment_prefers_its_own_cudnn(site: Path, based: Path) -> None:
    (installed(site) / "libcudnn_ops.so.9").unlink()
    own = installed(based)
    for path in (based, based.parents[2]):
        assert [each.folder for each in doctor.diagnose(path, run=False).sets] == [str(own)]
        assert codes(path) == []


@pytest.mark.parametrize(
    "settings",
    ["include-system-site-packages = false\nhome = HOME\n", "include-system-site-packages = true\n", ""],
)
def test_environment_without_shared_packages_has_none(site: Path, based: Path, settings: str) -> None:
    installed(site)
    (based.parents[2] / "pyvenv.cfg").write_text(settings.replace("HOME", f"{site.parents[2]}/bin"))
    assert codes(based) == ["no-cudnn"]


def test_base_of_the_system_has_the_folders_of_debian(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyvenv.cfg").write_text(
        "home = /usr/bin\nInclude = x\ninclude-system-site-packages = True\n"
    )
    monkeypatch.setattr(os.path, "isdir", lambda _: True)
    monkeypatch.setenv("HOME", "/home/u")
    assert locate.other_sites(str(tmp_path)) == [
        "/home/u/.local/lib/python3/site-packages",
        "/usr/local/lib/python3/dist-packages",
        "/usr/lib/python3/dist-packages",
        "/usr/lib64/python3/site-packages",
        "/usr/lib/python3/site-packages",
    ]


@pytest.mark.parametrize(
    "line", ["{site}", "# x\nimport os\n\n{site}  ", "../../../../venv/lib/python3.11/site-packages"]
)
def test_environment_has_the_folders_of_its_pth_files(site: Path, based: Path, line: str) -> None:
    folder = installed(site)
    (based.parents[2] / "pyvenv.cfg").write_text("home = /usr/bin\n")
    assert codes(based.parents[2]) == ["no-cudnn"]
    (based / "extra.pth").write_text(line.format(site=site))
    (folder / "libcudnn_ops.so.9").unlink()
    for path in (based, based.parents[2]):
        (found,) = (each for each in doctor.diagnose(path, run=False).findings if each.severity < 1)
        assert found.evidence["path"] == f"{folder}/libcudnn_ops.so.9"


def test_python_that_does_not_exist_is_in_no_command(site: Path) -> None:
    (installed(site) / "libcudnn_ops.so.9").unlink()
    python = site.parents[2] / "bin/python3.11"
    assert str(python) in doctor.diagnose(site, run=False).commands[0]
    python.unlink()
    python.symlink_to("/nonexistent/python3.11")
    commands = doctor.diagnose(site, run=False).commands
    assert not any(str(python) in command for command in commands)
    assert "-m pip download" in commands[0]


def test_commands_have_the_free_threaded_python(tmp_path: Path) -> None:
    site = tmp_path / "usr/local/lib/python3.13t/site-packages"
    site.mkdir(parents=True)
    (tmp_path / "usr/local/bin").mkdir()
    for name in ("python3", "python3.13", "python3.13t"):
        (tmp_path / "usr/local/bin" / name).touch()
    assert pip.of(str(site), str(tmp_path)).python == "/usr/local/bin/python3.13t"


# --- archives -----------------------------------------------------------------------------------------


def archive(folder: Path, version: str, **arguments: list[str]) -> None:
    """Write a cuDNN as NVIDIA's archives have it, over the present one."""
    make_cudnn(folder / "new", version, **arguments)
    for path in sorted((folder / "new").iterdir()):
        stem = path.name.partition(".so")[0]
        for name, target in (
            (path.name, f"{stem}.so.{version}"),
            (f"{stem}.so", path.name),
        ):
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(target)
        path.replace(folder / f"{stem}.so.{version}")
    (folder / "new").rmdir()


def run(commands: tuple[str, ...]) -> None:
    for command in commands:
        assert os.system(command) == 0


LATER = ["ext", "engines_tensor_ir"]  # libraries that cuDNN 9.20 does not have


@pytest.mark.parametrize(
    ("first", "second"), [("9.20.0", "9.27.0"), ("9.27.0", "9.20.0"), ("9.26.0", "9.27.0")]
)
def test_archive_over_another_version_is_repaired_by_one_run_of_the_commands(
    folder: Path, first: str, second: str
) -> None:
    for version in (first, second):
        archive(folder, version, without=LATER if version == "9.20.0" else [])
    before = doctor.diagnose(folder, run=False)
    assert {each.code for each in before.findings} >= {"two-files"}
    run(before.commands)
    assert codes(folder) == []
    assert all(path.exists() for path in folder.iterdir())  # no link leads to a deleted file


def test_links_to_a_file_that_is_deleted_are_set_right(folder: Path) -> None:
    archive(folder, "9.27.0")
    other = "libcudnn_ops.so.9.26.0"
    (folder / other).write_bytes(
        make_elf("libcudnn_ops.so.9", constants={"cudnn_ops_infer_version": 0x091A00})
    )
    (folder / "libcudnn_ops.so").unlink()
    (folder / "libcudnn_ops.so").symlink_to(other)
    (folder / "libcudnn_ops.so.9.26").symlink_to(other)
    run(doctor.diagnose(folder, run=False).commands)
    assert not (folder / other).exists()
    assert not (folder / "libcudnn_ops.so.9.26").is_symlink()
    assert (folder / "libcudnn_ops.so").resolve().name == "libcudnn_ops.so.9.27.0"
    assert codes(folder) == []


@pytest.mark.parametrize("name", ["libcudnn_ops.so.9", "libcudnn_ops.so", "libcudnn.so.9"])
@pytest.mark.parametrize("kind", ["folder", "empty", "page"])
def test_folder_or_damaged_file_in_place_of_a_link_is_linked_again(
    folder: Path, name: str, kind: str
) -> None:
    """Docker makes a folder for a file that is mounted and does not exist."""
    archive(folder, "9.27.0")
    (folder / name).unlink()
    if kind == "folder":
        (folder / name).mkdir()
    else:
        (folder / name).write_text("" if kind == "empty" else "<html>")
    found = doctor.diagnose(folder, run=False)
    assert {each.code for each in found.findings if each.severity < 2} == {"damaged-library"}
    run(found.commands)
    assert (folder / name).resolve() == folder / f"{name.partition('.')[0]}.so.9.27.0"
    assert codes(folder) == []


@pytest.mark.parametrize("end", ["", "\n"])
def test_all_links_that_became_text_files_are_linked_again(folder: Path, end: str) -> None:
    archive(folder, "9.27.0")
    links = {path: os.readlink(path) for path in folder.iterdir() if path.is_symlink()}
    for path, target in links.items():
        path.unlink()
        path.write_text(target + end)
    (found,) = (each for each in doctor.diagnose(folder, run=False).findings if each.severity < 1)
    assert found.code == "lost-link"
    assert found.message.startswith(f"{len(links)} files of {folder} are texts in place of links")
    assert sorted(found.evidence["links"]) == sorted(path.name for path in links)
    run(found.commands)
    assert {path: os.readlink(path) for path in links} == links
    assert codes(folder) == []


@pytest.mark.parametrize("text", ["libcudnn_ops.so.9.99", "no library", "x" * 300, "libcudnn_ops.so.9\0", ""])
def test_text_that_names_no_library_here_is_damage(folder: Path, text: str) -> None:
    shim = make_cudnn(folder)
    (folder / "libcudnn_cnn.so.9").write_text(text)
    assert "damaged-library" in codes(shim)


# --- folders that cannot be written -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read_only", "reason"), [(True, "is on a read-only file system"), (False, "this user cannot write")]
)
def test_folder_that_cannot_be_written_is_named_before_commands(
    site: Path, monkeypatch: pytest.MonkeyPatch, read_only: bool, reason: str
) -> None:
    folder = installed(site)
    (folder / "libcudnn_ops.so.9").unlink()
    assert "read-only" not in [each.code for each in doctor.diagnose(site, run=False).findings]
    real = os.access
    flags = os.ST_RDONLY if read_only else 0
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and real(path, mode))
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((0,) * 8 + (flags, 255)))
    found = doctor.diagnose(site, run=False)
    (note,) = (each for each in found.findings if each.code == "read-only")
    assert note.message == f"the commands change {site}, which {reason}"
    assert f"commands that repair it, after {site} can be written:" in report.text(found)


def test_folder_that_cannot_be_written_is_no_matter_without_commands(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(site)
    monkeypatch.setattr(_files, "why_not_writable", lambda _: "which this user cannot write")
    assert "read-only" not in [each.code for each in doctor.diagnose(site, run=False).findings]


# --- links into a repository --------------------------------------------------------------------------------


def test_link_to_an_object_with_a_hash_for_a_name_is_not_followed(folder: Path, tmp_path: Path) -> None:
    """The other libraries are missing next to the link: no cuDNN is where it leads to."""
    shim = make_cudnn(folder, "9.27.0")
    stored = tmp_path / "objects" / "SHA256E-s129240--5"
    stored.parent.mkdir()
    os.rename(shim, stored)
    for path in folder.iterdir():
        path.unlink()
    shim.symlink_to(stored)
    found = doctor.diagnose(folder, run=False).findings
    assert found[0].code == "missing-library"
    assert str(folder) in found[0].message
    assert "internal-error" not in [each.code for each in found]


def test_successor_replaces_an_old_cudnn_when_a_package_needs_it_only_in_a_part(site: Path) -> None:
    old(site)
    write_metadata(site / "cupy_cuda12x-13.6.0.dist-info", [])
    (found, *_) = doctor.diagnose(site, run=False).findings
    assert found.code == "old-cudnn"
    assert "nvidia-cudnn-cu12" in " ".join(found.commands)
