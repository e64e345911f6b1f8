"""The doctor follows the search of the dynamic linker: its path, preloaded libraries, RUNPATH, hwcaps."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import cudnn_doctor as doctor
from cudnn_doctor import companions, search
from tests.doctor_sites import read
from tests.elf_files import make_cudnn, make_elf, make_functions

MonkeyPatch = pytest.MonkeyPatch


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The folder of a cuDNN."""
    return make_cudnn(tmp_path / "own/lib").parent


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The folder of another version."""
    return make_cudnn(tmp_path / "other/lib", "9.19.0").parent


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("/x;{other}", "remove {other} from it"),
        ("{other}//:/x", "remove {other}// from it"),
        (":/x", "remove the empty entry from it"),
        ("/x;", "remove the empty entry from it"),
        ("../lib", "remove ../lib (the folder {other}) from it"),
    ],
)
def test_search_path_may_name_another_cudnn_in_every_spelling(
    own: Path, other: Path, monkeypatch: MonkeyPatch, path: str, advice: str
) -> None:
    monkeypatch.chdir(other)
    findings = search.check_competition(read(own), {"LD_LIBRARY_PATH": path.format(other=other)})
    (shadowed,) = [each for each in findings if each.code == "shadowed"]
    assert shadowed.evidence["path"] == str(other)
    assert shadowed.fix == f"unset LD_LIBRARY_PATH, or {advice.format(other=other)}"


@pytest.mark.parametrize("place", ["own", "path"])
def test_libraries_for_newer_processors_replace_those_of_the_folder(
    own: Path, other: Path, tmp_path: Path, place: str
) -> None:
    folder = (own if place == "own" else tmp_path / "path") / "glibc-hwcaps/x86-64-v2"
    folder.mkdir(parents=True)
    os.rename(other / "libcudnn_ops.so.9", folder / "libcudnn_ops.so.9")
    environ = {"LD_LIBRARY_PATH": str(tmp_path / "path")}
    (shadowed,) = [each for each in search.check_competition(read(own), environ) if each.code == "shadowed"]
    assert shadowed.evidence["path"] == str(folder)
    assert [each.folder for each in doctor.diagnose(own, run=False).sets] == [str(own)]
    assert [each.folder for each in doctor.diagnose(own.parent, run=False).sets] == [str(own)]
    file = folder / "libcudnn_ops.so.9"
    assert (shadowed.fix == f"delete {file}") == (place == "own")
    assert shadowed.commands == (f"rm -f {file}",) * (place == "own")


def make_archive(lib: Path) -> None:
    """Give the files of a cuDNN 9.27.0 their full names, and add the links of an archive."""
    for file in sorted(lib.iterdir()):
        file.rename(lib / f"{file.name}.27.0")
        file.symlink_to(f"{file.name}.27.0")


@pytest.mark.parametrize("name", ["libcudnn.so.9", "libcudnn_ops.so.9"])
@pytest.mark.parametrize("gone", [False, True])
def test_a_link_to_another_version_is_set_back(own: Path, other: Path, name: str, gone: bool) -> None:
    make_archive(own)
    (own / name).unlink()
    (own / name).symlink_to(f"{name}.19.0")
    if not gone:
        (own / f"{name}.19.0").write_bytes((other / name).read_bytes() + b"x")
    found = doctor.diagnose(own, run=False)
    assert found.findings[0].code == "wrong-link"
    assert found.findings[0].message == f"{own / name} is a link to {name}.19.0, and not to {name}.27.0"
    for command in found.commands:
        subprocess.run(["sh", "-ec", command], check=True)
    assert doctor.diagnose(own, run=False).verdict == "sound"


def test_a_file_of_another_version_is_kept_while_the_version_is_uncertain(own: Path, other: Path) -> None:
    for folder, minor in ((own, 27), (other, 19)):
        for file in sorted(folder.iterdir()):
            os.rename(file, own / f"{file.name}.{minor}.0")
    both = [each for each in doctor.diagnose(own, run=False).findings if each.code == "two-files"]
    assert both
    assert not any(each.commands for each in both)


def test_a_link_of_cuda_to_another_version_is_set_back(tmp_path: Path) -> None:
    lib = make_cudnn(tmp_path / "lib", cuda=12).parent
    for version in ("12.9.1.4", "13.1.0.3"):
        (lib / f"libcublasLt.so.{version}").write_bytes(make_elf(f"libcublasLt.so.{version[:2]}"))
    link = lib / "libcublasLt.so.12"
    link.symlink_to("libcublasLt.so.13.1.0.3")
    found = doctor.diagnose(lib, run=False)
    assert found.findings[0].message.endswith(
        "a link to libcublasLt.so.13.1.0.3, and not to libcublasLt.so.12.9.1.4"
    )
    assert found.commands == (f"ln -sfn {link.name}.9.1.4 {link}",)
    subprocess.run(found.commands[0].split(), check=True)
    assert doctor.diagnose(lib, run=False).verdict == "sound"


def preload(root: Path, name: str, exports: bool) -> Path:
    path = root / name
    path.write_bytes(make_elf(path.name, constants={"cudnnCreate": 0, "cudnnDestroy": 0} if exports else {}))
    return path


def test_preloaded_libraries_may_define_functions_of_cudnn(own: Path, other: Path, tmp_path: Path) -> None:
    shim, tool = preload(tmp_path, "shim.so", True), preload(tmp_path, "tool.so", False)
    found = read(own)
    for words, fixes in (
        (f"{shim}", ["unset LD_PRELOAD"]),
        (f"{tool}:{shim}", [f"remove {shim} from LD_PRELOAD"]),
        (f"{other}/libcudnn_ops.so.9", ["unset LD_PRELOAD"]),
        ("libcudnn_ops.so.9", ["unset LD_PRELOAD"]),  # found in LD_LIBRARY_PATH
        (f"{tool} {own}/libcudnn.so.9 /gone/libcudnn.so.9 libcudnn_gone.so.9", []),
    ):
        findings = list(search.check_preloads(found, {"LD_PRELOAD": words, "LD_LIBRARY_PATH": str(other)}))
        assert [each.fix for each in findings] == fixes, words


def test_the_file_of_preloaded_libraries_is_that_of_the_image(tmp_path: Path) -> None:
    make_cudnn(tmp_path / "usr/lib")
    preload(make_cudnn(tmp_path / "opt/lib", "9.19.0").parent, "shim.so", True)
    (tmp_path / "etc").mkdir()
    for line, names in (
        ("# /opt/lib/shim.so", 0),
        ("/opt/lib/shim.so # x", 1),
        ("/opt/lib/libcudnn_ops.so.9, /opt/lib/shim.so", 2),
    ):
        (tmp_path / "etc/ld.so.preload").write_text(line)
        codes = [each for each in doctor.diagnose(tmp_path, run=False).findings if each.code == "preloaded"]
        assert len(codes) >= names
        assert all(each.fix.endswith(" from /etc/ld.so.preload") for each in codes)
        assert bool(codes) == bool(names)


@pytest.mark.parametrize(
    ("runpath", "lost"),
    [
        ("$ORIGIN", False),
        ("/x:${ORIGIN}", False),
        ("$ORIGIN/../lib", False),
        ("", True),
        ("/nowhere", True),
        ("$ORIGIN/..", True),
    ],
)
def test_libraries_must_search_their_own_folder(tmp_path: Path, runpath: str, lost: bool) -> None:
    found = read(make_cudnn(tmp_path / "lib", runpath=runpath).parent)
    codes = [each.code for each in search.check_run_paths(found, {})]
    assert codes == ["lost-runpath"] * lost
    assert not list(search.check_run_paths(found, {"LD_LIBRARY_PATH": found.folder}))
    root = tmp_path / "image"
    (root / "etc").mkdir(parents=True)
    make_cudnn(root / "usr/lib/x86_64-linux-gnu", runpath=runpath)  # which the linker searches always
    (root / "usr/lib64").mkdir()
    assert "lost-runpath" not in {each.code for each in doctor.diagnose(root, run=False).findings}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The site-packages of a cuDNN 9.20 for CUDA 12 with the libraries of CUDA."""
    make_cudnn(tmp_path / "site/nvidia/cudnn/lib", "9.20.0", cuda=12, without=["ext", "engines_tensor_ir"])
    (tmp_path / "site/nvidia_cuda_nvrtc_cu12-12.9.86.dist-info").mkdir()
    for name in ("cublas/lib/libcublasLt.so.12", "cuda_nvrtc/lib/libnvrtc.so.12"):
        write_companion(tmp_path / "site/nvidia" / name)
    builtins = tmp_path / "site/nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.9"
    builtins.write_bytes(make_elf(builtins.name))
    return tmp_path / "site"


def write_companion(path: Path, *, stub: bool = False) -> None:
    """Write a library of CUDA with the function that each version has, or a stub with another one."""
    function = companions.OPENED[path.name.partition(".")[0]].function
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(make_functions(path.name, {f"{function}{'_v2' * stub}": b"\xc3"}))


@pytest.mark.parametrize("slashes", ["", "//"])
@pytest.mark.parametrize("nested", [False, True])
def test_companions_remove_the_folder_of_a_libnvrtc_without_builtins(
    site: Path, tmp_path: Path, slashes: str, nested: bool
) -> None:
    folder = site / "nvidia/cuda_nvrtc/lib" if nested else tmp_path / "path"
    if nested:
        (folder / "libnvrtc-builtins.so.12.9").unlink()
    write_companion(folder / "libnvrtc.so.12")
    environ = {"LD_LIBRARY_PATH": f"{folder}{slashes}:/nonexistent"}
    (missing,) = companions.check(read(site / "nvidia/cudnn/lib"), environ)
    assert missing.code == "missing-nvrtc"
    if nested:  # the wheel lacks them, whatever leads to it
        assert "nvidia-cuda-nvrtc-cu12==12.9.86" in " ".join(missing.commands)
    else:
        assert (missing.fix, missing.commands) == (f"remove {folder} from LD_LIBRARY_PATH", ())


@pytest.mark.parametrize("name", ["libcublasLt.so.12", "libnvrtc.so.12"])
def test_companions_report_a_stub(site: Path, tmp_path: Path, name: str) -> None:
    found = read(site / "nvidia/cudnn/lib")
    assert list(companions.check(found, {})) == []
    write_companion(tmp_path / "path" / name, stub=True)
    wrong, *_ = companions.check(found, {"LD_LIBRARY_PATH": str(tmp_path / "path")})
    function = companions.OPENED[name.partition(".")[0]].function
    assert wrong.code == "wrong-library"
    assert wrong.message == f"{tmp_path}/path/{name} lacks the function {function}"
    assert "remove the folder from it" in wrong.fix
