"""The doctor on roots of images whose linker searches folders that are named in files and libraries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import cudnn_doctor as doctor
from cudnn_doctor import search
from cudnn_doctor.report import text
from tests.doctor_breakages import wrong
from tests.elf_files import make_cudnn, make_elf, make_header

STORE = "nix/store"


def put(root: Path, folder: str, *names: str) -> None:
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name in names:
        (root / folder / name).write_bytes(make_elf(name))


def make_arch(root: Path) -> None:
    """Write an image of Arch Linux, whose CUDA is in /opt."""
    put(root, "etc/ld.so.conf.d")
    (root / "etc/ld.so.conf").write_text("# folders\ninclude /etc/ld.so.conf.d/*.conf\n")
    (root / "etc/ld.so.conf.d/cuda.conf").write_text("/opt/cuda/lib64 # comment\n/opt/cuda/extras\n")
    put(root, "opt/cuda/targets/x86_64-linux/lib", "libcublasLt.so.12", "libnvrtc.so.12")
    (root / "opt/cuda/lib64").symlink_to("targets/x86_64-linux/lib")
    make_cudnn(root / "usr/lib", "9.27.0", cuda=12)


def make_nix(root: Path) -> None:
    """Write an image of Nix, whose libraries name the folders of other packages."""
    for folder in ("etc", "usr"):
        (root / folder).mkdir(parents=True)
    put(root, f"{STORE}/b-cublas/lib", "libcublasLt.so.12")
    put(root, f"{STORE}/c-zlib/lib", "libz.so.1")
    runpath = f"/{STORE}/b-cublas/lib:/{STORE}/c-zlib/lib:$ORIGIN"
    make_cudnn(
        root / f"{STORE}/a-cudnn/lib",
        "9.27.0",
        cuda=12,
        system={"libz.so.1": []},
        runpath=runpath,
    )


def nix_without_usr(root: Path) -> None:
    make_nix(root)
    for folder in ("etc", "usr"):
        (root / folder).rmdir()


def nix_with_links(root: Path) -> None:
    """Link a folder in the runpath absolutely, inside the image."""
    make_nix(root)
    (root / f"{STORE}/b-cublas/lib").rename(root / f"{STORE}/b-real")
    (root / f"{STORE}/b-cublas/lib").symlink_to(f"/{STORE}/b-real")


def arch_with_relative_include(root: Path) -> None:
    make_arch(root)
    (root / "etc/ld.so.conf").write_text("include ld.so.conf.d/*.conf\n")


def arch_with_links(root: Path) -> None:
    make_arch(root)
    (root / "etc/ld.so.conf").rename(root / "usr/ld.so.conf")
    (root / "etc/ld.so.conf").symlink_to("/usr/ld.so.conf")


IMAGES = [
    make_arch,
    arch_with_relative_include,
    arch_with_links,
    make_nix,
    nix_without_usr,
    nix_with_links,
]


@pytest.mark.parametrize("make", IMAGES)
def test_doctor_follows_the_folders_of_an_image(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "root")
    found = doctor.diagnose(tmp_path / "root", run=False)
    assert (wrong(found), found.verdict) == (frozenset(), "sound")


def test_doctor_reads_no_folder_of_this_machine_for_an_image(tmp_path: Path) -> None:
    here, root = tmp_path / "here/lib", tmp_path / "root"
    put(here, ".", "libcublasLt.so.12")
    put(root, "etc/ld.so.conf.d")
    put(root, "usr")
    (root / "etc/ld.so.conf").write_text(f"{here}\n")
    make_cudnn(root / "opt/cudnn/lib", "9.27.0", cuda=12, runpath=f"{here}:$ORIGIN")
    assert {code for code, _ in wrong(doctor.diagnose(root, run=False))} == {"missing-cublaslt"}
    put(root, str(here).lstrip("/"), "libcublasLt.so.12")  # the same folder inside the image
    assert wrong(doctor.diagnose(root, run=False)) == frozenset()


def test_linker_conf_ends_for_circles_and_missing_files(tmp_path: Path) -> None:
    put(tmp_path, "etc/d")
    conf = "include /etc/ld.so.conf\ninclude d/* gone/*\n/a\nrelative\n/\n  /b/c  \ninclude\n"
    (tmp_path / "etc/ld.so.conf").write_text(conf)
    (tmp_path / "etc/d/x").write_text("include /etc/d/x\n/d\n")
    assert list(search.configured_folders(str(tmp_path))) == [
        f"{tmp_path}/{name}" for name in ("a", "b/c", "d")
    ]
    assert list(search.configured_folders(str(tmp_path / "gone"))) == []


@pytest.mark.parametrize(("version", "wrong_header"), [("8.9.7", True), ("9.27.0", False)])
def test_doctor_follows_the_alternatives_of_debian_to_the_header(
    tmp_path: Path, version: str, wrong_header: bool
) -> None:
    make_cudnn(tmp_path / "usr/lib/x86_64-linux-gnu", "9.27.0")
    own = tmp_path / "usr/include/x86_64-linux-gnu"
    make_header(own / f"cudnn_version_v{version[0]}.h", version)
    (own / "cudnn_v9.h").touch()
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    chosen = f"/usr/include/x86_64-linux-gnu/cudnn_version_v{version[0]}.h"  # inside the image
    (tmp_path / "etc/alternatives/cudnn_version_h").symlink_to(chosen)
    (tmp_path / "usr/include/cudnn_version.h").symlink_to("/etc/alternatives/cudnn_version_h")
    found = doctor.diagnose(tmp_path, run=False)
    told = [each for each in found.findings if each.code == "header-mismatch"]
    select = "update-alternatives --set libcudnn /usr/include/x86_64-linux-gnu/cudnn_v9.h"
    assert [each.commands for each in told] == [(select,)] * wrong_header


@pytest.mark.parametrize("mode", [0o755, 0o700, 0o750])
@pytest.mark.parametrize("private", ["opt", "opt/cudnn", "opt/cudnn/lib"])
def test_all_users_of_an_image_can_enter_the_folders_around_cudnn(
    tmp_path: Path, private: str, mode: int
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "usr").mkdir()
    make_cudnn(tmp_path / "opt/cudnn/lib", "9.27.0")
    (tmp_path / private).chmod(mode)
    told = [each for each in doctor.diagnose(tmp_path, run=False).findings if each.code == "private-file"]
    assert [each.commands for each in told] == [(f"chmod a+rX /{private}",)] * (mode != 0o755)


@pytest.mark.parametrize(("private", "reported"), [("opt/v/lib", 1), ("opt/v", 1), ("opt", 0)])
def test_all_users_can_enter_an_environment(tmp_path: Path, private: str, reported: int) -> None:
    site = tmp_path / "opt/v/lib/python3.11/site-packages"
    make_cudnn(site / "nvidia/cudnn/lib", "9.27.0")
    (site / "x-1.dist-info").mkdir()
    (tmp_path / private).chmod(0o700)
    told = [each for each in doctor.diagnose(site, run=False).findings if each.code == "private-file"]
    assert [each.evidence["path"] for each in told] == [str(tmp_path / private)] * reported


def test_commands_for_an_image_say_that_they_run_inside_it(tmp_path: Path) -> None:
    make_arch(tmp_path)
    (tmp_path / "usr/lib/libcudnn_ops.so.9").chmod(0o600)
    found = doctor.diagnose(tmp_path, run=False)
    (private,) = [each for each in found.findings if each.code == "private-file"]
    assert private.fix == "let all users read /usr/lib/libcudnn_ops.so.9 (inside the image)"
    assert "commands that repair it, inside the image:" in text(found)
