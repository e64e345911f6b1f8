"""The doctor on files for Windows: DLLs, the layout of wheels, and the search rules of Windows.

`CUDNN_CT_TEST_WINDOWS` names a site-packages with the files of a wheel for Windows.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import cudnn_doctor as doctor
from cudnn_doctor import Requirements, binaries
from cudnn_doctor.read.elf import ElfError
from tests.pe_files import AMD64, ARM64, I386, make_cudnn, make_pe

SITE = "Users/me/venv/Lib/site-packages"
CU12, CU13, TORCH = "nvidia_cudnn_cu12-9.20.0.48", "nvidia_cudnn_cu13-9.21.0.5", "torch-2.9.0"


class Tree:
    """The files of a Windows system, with a virtual environment."""

    def __init__(self, root: Path, label: str = CU12) -> None:
        self.root, self.site = root, root / SITE
        for folder in ("Windows/System32", "Users", "Program Files", f"{SITE}/../../Scripts"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        (root / SITE / "../../Scripts/python.exe").resolve().touch()
        self.lib, self.version = self.site / "nvidia/cudnn/bin", label.split("-")[1].rpartition(".")[0]
        self.install(label)
        for name in ("cublas/bin/cublasLt64_12.dll", "cuda_nvrtc/bin/nvrtc64_120_0.dll"):
            self.write(self.site / "nvidia" / name, make_pe(os.path.basename(name)))

    def install(self, label: str) -> None:
        """Install a wheel over existing files, as pip does."""
        name, build = label.split("-")
        make_cudnn(self.lib, build.rpartition(".")[0], int(name[-2:]))
        info = self.site / f"{label}.dist-info"
        info.mkdir()
        header = self.lib.parent / "include/cudnn_version.h"
        numbers = zip(("MAJOR", "MINOR", "PATCHLEVEL"), build.split("."), strict=False)
        self.write(header, "".join(f"#define CUDNN_{part} {number}\n" for part, number in numbers).encode())
        files = [*self.lib.iterdir(), header]
        rows = [f"{file.relative_to(self.site).as_posix()},,{file.stat().st_size}\n" for file in files]
        (info / "RECORD").write_text("".join(rows))
        (info / "METADATA").write_text(f"Name: {name}\nRequires-Dist: nvidia-cublas-{name[-4:]}\n")

    def dll(self, part: str = "") -> Path:
        """Return the file of a part."""
        return self.lib / f"cudnn{'_' if part else ''}{part}64_9.dll"

    def write(self, path: Path, data: bytes) -> Path:
        """Write a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def edit(self, part: str, edit: Callable[[bytes], bytes]) -> None:
        """Change the bytes of a DLL."""
        self.dll(part).write_bytes(edit(self.dll(part).read_bytes()))

    def torch(self, needs: str) -> None:
        """Install a package that requires something."""
        folder = self.site / f"{TORCH}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: torch\nRequires-Dist: {needs}\n")


def codes(found: doctor.Diagnosis) -> set[str]:
    return {each.code for each in found.findings if each.severity.word != "note"}


def at(offset: int, data: bytes) -> Callable[[bytes], bytes]:
    return lambda old: old[:offset] + data + old[offset + len(data) :]


def named(name: str, **more: int) -> Callable[[bytes], bytes]:
    return lambda _: make_pe(name, **more)


def foreign(tree: Tree, part: str) -> None:
    make_cudnn(tree.root / "other", "9.19.0")
    shutil.copy(tree.root / "other" / tree.dll(part).name, tree.lib)


def system(tree: Tree, version: str, folder: str = "Windows/System32") -> None:
    make_cudnn(tree.root / folder, version)


def older_metadata(tree: Tree) -> None:
    shutil.copytree(tree.site / f"{CU12}.dist-info", tree.site / "nvidia_cudnn_cu12-9.1.0.70.dist-info")


def in_capitals(tree: Tree) -> None:
    shutil.rmtree(tree.site / f"{CU12}.dist-info")
    for file in list(tree.lib.iterdir()):
        file.rename(file.with_suffix(".DLL"))


def shout(path: Path) -> None:
    """Write the names of all files of a folder in capitals."""
    for file in list(path.iterdir()):
        file.rename(file.with_name(file.name.upper()))


def newest(tree: Tree, version: str, without: str = "") -> None:
    """Replace the libraries by those of a version with all parts."""
    shutil.rmtree(tree.site / f"{CU12}.dist-info")
    shutil.rmtree(tree.lib.parent / "include")
    make_cudnn(tree.lib, version)
    if without:
        tree.dll(without).unlink()


def toolkit_13(tree: Tree, folder: str) -> None:
    """Replace the wheels by an archive of cuDNN for CUDA 13, and a toolkit."""
    shutil.rmtree(tree.site)
    tree.lib = tree.root / "Program Files/NVIDIA/CUDNN/v9.21/bin/13.0/x64"
    make_cudnn(tree.lib, "9.20.0", 13)
    for name in ("cublasLt64_13.dll", "nvrtc64_130_0.dll"):
        path = tree.root / "Program Files/NVIDIA GPU Computing Toolkit/CUDA/v13.0" / folder / name
        tree.write(path, make_pe(name))


BLAS, HEADER = "nvidia/cublas/bin/cublasLt64_12.dll", "../include/cudnn_version.h"
TOOLKIT = "Program Files/NVIDIA GPU Computing Toolkit/CUDA/v12.9/bin"
OTHER_HEADER = b"#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 1\n#define CUDNN_PATCHLEVEL 0\n"

BROKEN: dict[str, tuple[str, Callable[[Tree], object]]] = {
    **{
        f"{part or 'cudnn64_9.dll'} is gone": ("missing-library", lambda t, p=part: t.dll(p).unlink())
        for part in ("", "graph", "ops", "cnn", "adv", "heuristic", "engines_precompiled")
    },
    "runtime_compiled is gone": ("missing-library", lambda t: t.dll("engines_runtime_compiled").unlink()),
    "all are gone": ("missing-library", lambda t: shutil.rmtree(t.lib)),
    "ops is empty": ("damaged-library", lambda t: t.edit("ops", lambda _: b"")),
    "adv is cut": ("damaged-library", lambda t: t.edit("adv", lambda old: old[:4100])),
    "graph has its header alone": ("damaged-library", lambda t: t.edit("graph", lambda old: old[:64])),
    "cnn is cut in its headers": ("damaged-library", lambda t: t.edit("cnn", lambda old: old[:300])),
    "the signature is cut": ("damaged-library", lambda t: t.edit("cnn", lambda old: old[:-1])),
    "ops is a web page": ("damaged-library", lambda t: t.edit("ops", lambda _: b"<html>")),
    "ops is a Git LFS pointer": (
        "damaged-library",
        lambda t: t.edit("ops", lambda _: b"version https://git-lfs"),
    ),
    "ops is a library of Linux": (
        "damaged-library",
        lambda t: t.edit("ops", lambda _: b"\x7fELF" + bytes(999)),
    ),
    "ops is zeros": ("damaged-library", lambda t: t.edit("ops", lambda old: bytes(len(old)))),
    "ops points outside": (
        "damaged-library",
        lambda t: t.edit("ops", at(64 + 24 + 112, b"\xff\xff\xff\x7f")),
    ),
    "cudnn is 32-bit": (
        "foreign-machine",
        lambda t: t.edit("", named("cudnn64_9.dll", machine=I386, magic=0x10B)),
    ),
    "cnn is for ARM": ("foreign-machine", lambda t: t.edit("cnn", named("cudnn_cnn64_9.dll", machine=ARM64))),
    "cnn has the name of ops": ("wrong-library", lambda t: shutil.copy(t.dll("cnn"), t.dll("ops"))),
    "graph of another version": ("mixed-versions", lambda t: foreign(t, "graph")),
    "ops of another version": ("mixed-versions", lambda t: foreign(t, "ops")),
    "heuristic of another version": ("unresolved-symbols", lambda t: foreign(t, "heuristic")),
    "engines of another version": ("unresolved-symbols", lambda t: foreign(t, "engines_precompiled")),
    "tensor_ir of 9.24 is gone": ("missing-library", lambda t: newest(t, "9.24.0", "engines_tensor_ir")),
    "tensor_ir of 9.23.2 is gone": ("missing-library", lambda t: newest(t, "9.23.2", "engines_tensor_ir")),
    "ext of 9.23.2 is gone": ("missing-library", lambda t: newest(t, "9.23.2", "ext")),
    "ops is gone, and the others are in capitals": (
        "missing-library",
        lambda t: (t.dll("ops").unlink(), shout(t.lib)),
    ),
    "ops in capitals is cut": (
        "damaged-library",
        lambda t: (t.edit("ops", lambda old: old[:4100]), shout(t.lib)),
    ),
    "a toolkit without cublasLt": ("missing-cublaslt", lambda t: toolkit_13(t, "elsewhere")),
    "another version in System32 in capitals": (
        "shadowed-on-windows",
        lambda t: (system(t, "9.1.0"), shout(t.root / "Windows/System32"), shout(t.root / "Windows")),
    ),
    "a leftover engine": (
        "stray-library",
        lambda t: t.write(t.dll("engines_tensor_ir"), make_pe("cudnn_engines_tensor_ir64_9.dll")),
    ),
    "an unrecorded library": ("unowned-library", lambda t: t.write(t.dll("extra"), make_pe("x.dll"))),
    "a byte behind the end": ("altered-file", lambda t: t.edit("cnn", lambda old: old + b"x")),
    "a header of another version": ("header-mismatch", lambda t: t.write(t.lib / HEADER, OTHER_HEADER)),
    "a header is gone": ("missing-file", lambda t: (t.lib / HEADER).unlink()),
    "two wheels": ("two-owners", lambda t: t.install(CU13)),
    "metadata of an older version": ("stale-metadata", older_metadata),
    "RECORD is garbage": ("broken-record", lambda t: t.write(t.site / f"{CU12}.dist-info/RECORD", b"x")),
    "torch pins another version": (
        "consumer-mismatch",
        lambda t: t.torch("nvidia-cudnn-cu12==9.1; os_name == 'nt'"),
    ),
    "no cublasLt": ("missing-cublaslt", lambda t: shutil.rmtree(t.site / "nvidia/cublas")),
    "no nvrtc": ("missing-nvrtc", lambda t: shutil.rmtree(t.site / "nvidia/cuda_nvrtc")),
    "cublasLt is cut": ("damaged-library", lambda t: t.write(t.site / BLAS, make_pe("x")[:200])),
    "cublasLt is for ARM": ("foreign-machine", lambda t: t.write(t.site / BLAS, make_pe("x", machine=ARM64))),
    "another version in System32": ("shadowed-on-windows", lambda t: system(t, "9.1.0")),
    "another version in Windows": ("shadowed-on-windows", lambda t: system(t, "9.1.0", "Windows")),
    "another version next to python.exe": (
        "shadowed-on-windows",
        lambda t: system(t, "9.1.0", "Users/me/venv/Scripts"),
    ),
    "the same version in System32": ("shadowed-on-windows", lambda t: system(t, "9.20.0")),
}


@pytest.mark.parametrize("case", BROKEN)
def test_doctor_names_the_cause_in_a_windows_tree(tmp_path: Path, case: str) -> None:
    tree = Tree(tmp_path / "C")
    code, damage = BROKEN[case]
    damage(tree)
    found = doctor.diagnose(tree.root)
    assert code in codes(found), found.findings
    assert found.exit_code(doctor.Severity.WARNING) == 1
    for command in found.commands:
        install = r"C:\Users\me\venv\Scripts\python.exe -m pip install "
        assert command.startswith((install, r"del C:\Users\me\venv\Lib")), command


SOUND: dict[str, Callable[[Tree], object]] = {
    "as installed": lambda t: None,
    "no metadata": lambda t: shutil.rmtree(t.site / f"{CU12}.dist-info"),
    "torch pins this version": lambda t: t.torch("nvidia-cudnn-cu12==9.20.0.48"),
    "torch pins another one on Linux": lambda t: t.torch("nvidia-cudnn-cu12==9.1; sys_platform == 'linux'"),
    "other DLLs": lambda t: t.write(t.lib / "other.dll", b""),
    "an older major version": lambda t: t.write(
        t.root / "Windows/System32/cudnn64_8.dll", make_pe("cudnn64_8.dll")
    ),
    "names in capitals": in_capitals,
    "a toolkit": lambda t: shutil.move(t.site / "nvidia/cublas/bin", t.root / TOOLKIT),
    "names in capitals with metadata": lambda t: shout(t.lib),
    "some names in capitals": lambda t: t.dll("ops").rename(t.lib / "CUDNN_OPS64_9.dll"),
    "libraries of CUDA in capitals": lambda t: [shout(t.site / "nvidia/cublas/bin")],
    "a folder of the toolkit in capitals": lambda t: (
        shutil.move(t.site / "nvidia/cublas/bin", t.root / TOOLKIT),
        (t.root / "Program Files").rename(t.root / "PROGRAM FILES"),
    ),
    "a venv without Scripts": lambda t: shutil.rmtree(t.site / "../../Scripts"),
}


@pytest.mark.parametrize("case", SOUND)
def test_doctor_finds_nothing_in_a_sound_windows_tree(tmp_path: Path, case: str) -> None:
    tree = Tree(tmp_path / "C")
    SOUND[case](tree)
    found = doctor.diagnose(tree.root)
    assert (codes(found), found.verdict) == (set(), "sound"), found.findings
    (cudnn,) = (each for each in found.sets if each.folder == str(tree.lib))
    assert (cudnn.version, cudnn.cuda, cudnn.windows) == ((9, 20, 0), 12, True)


@pytest.mark.parametrize("folder", ["bin", "bin/x64"])
def test_doctor_finds_the_libraries_of_a_toolkit_for_cuda_13(tmp_path: Path, folder: str) -> None:
    tree = Tree(tmp_path / "C")
    toolkit_13(tree, folder)
    found = doctor.diagnose(tree.root)
    assert (codes(found), [each.cuda for each in found.sets]) == (set(), [13])


@pytest.mark.parametrize(("version", "required"), [("9.20.0", False), ("9.22.0", False), ("9.24.0", True)])
def test_doctor_requires_the_libraries_that_a_version_ships(
    tmp_path: Path, version: str, required: bool
) -> None:
    tree = Tree(tmp_path / "C")
    newest(tree, version, "" if version == "9.20.0" else "engines_tensor_ir")
    assert ("missing-library" in codes(doctor.diagnose(tree.root))) is required


def test_requirements_apply_to_a_windows_tree(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "C")
    found = doctor.diagnose(tree.root, Requirements(minimum=(9, 21), cuda=13))
    assert codes(found) == {"unexpected-version", "unexpected-cuda"}


def test_commands_quote_for_the_shell_of_windows(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "C")
    (tree.root / "Users/me").rename(tree.root / "Users/my name")
    (tree.root / "Users/my name/venv/Lib/site-packages/nvidia/cudnn/bin/cudnn_ops64_9.dll").unlink()
    (command,) = doctor.diagnose(tree.root).commands
    python = r'"C:\Users\my name\venv\Scripts\python.exe"'
    assert command == f"{python} -m pip install --force-reinstall --no-deps nvidia-cudnn-cu12==9.20.0.48"


# --- the reader --------------------------------------------------------------------------------------------


def test_pe_reads_exports_imports_and_constants(tmp_path: Path) -> None:
    imports = {"cudnn_graph64_9.dll": ["cudnnA", "cudnnB"], "KERNEL32.dll": ["Sleep"]}
    (tmp_path / "x.dll").write_bytes(make_pe("x.dll", {"cudnn_ops_infer_version": 7, "b": 1}, imports))
    read = binaries.read_dll(str(tmp_path / "x.dll"))
    assert (read.machine, read.soname, read.needed) == (62, "x.dll", ("cudnn_graph64_9.dll", "kernel32.dll"))
    assert read.constant("cudnn_ops_infer_version") == 7
    assert (set(read.symbols.exports), read.symbols.undefined) == (
        {"b", "cudnn_ops_infer_version"},
        {"cudnnA", "cudnnB"},
    )


@pytest.mark.parametrize("offset", range(0, 340, 4))
def test_pe_reads_hostile_headers_without_other_errors(tmp_path: Path, offset: int) -> None:
    path, sound = tmp_path / "x.dll", make_pe("x.dll", {"a": 1}, {"cudnn64_9.dll": ["b"]})
    for value in (0, 0xFFFFFFFF, 0x7FFFFFFF, len(sound)):
        path.write_bytes(at(offset, struct.pack("<I", value))(sound))
        try:
            assert binaries.read_dll(str(path)).symbols is not None
        except ElfError as error:
            assert error.path == str(path)


@pytest.mark.parametrize("size", [0, 1, 2, 63, 64, 90, 300, 340, 4096, -17, -1])
def test_pe_names_a_truncated_file(tmp_path: Path, size: int) -> None:
    (tmp_path / "x.dll").write_bytes(make_pe("x.dll", {"a": 1})[:size])
    with pytest.raises(ElfError) as caught:
        binaries.read_dll(str(tmp_path / "x.dll"))
    assert caught.value.kind in ("empty", "truncated", "malformed", "foreign")


def test_pe_reports_other_machines(tmp_path: Path) -> None:
    for machine, expected in ((AMD64, 62), (ARM64, 183)):
        (tmp_path / "x.dll").write_bytes(make_pe("x.dll", machine=machine))
        assert binaries.read_dll(str(tmp_path / "x.dll")).machine == expected


# --- the files of a real wheel -----------------------------------------------------------------------------


REAL = [Path(site) for site in os.environ.get("CUDNN_CT_TEST_WINDOWS", "").split(":") if site]


@pytest.mark.parametrize("site", REAL, ids=lambda site: site.parent.name)
def test_doctor_reads_the_files_of_a_wheel_for_windows(site: Path) -> None:
    found = doctor.diagnose(site, deep=True, run=False)
    assert codes(found) <= {"missing-cublaslt", "missing-nvrtc"}
    (cudnn,) = found.sets
    assert (cudnn.windows, cudnn.missing) == (True, [])
    assert cudnn.version
    assert cudnn.cuda in (12, 13)
    assert cudnn.libraries["ops"].code
    assert found.commands == ()  # pip of this system would install libraries of this system


@pytest.mark.parametrize("site", REAL, ids=lambda site: site.parent.name)
def test_doctor_notices_broken_files_of_a_wheel_for_windows(site: Path, tmp_path: Path) -> None:
    """Without a RECORD: each part is removed, cut, and replaced with that of another version."""
    lib = site / "nvidia/cudnn/bin"
    others = [each / "nvidia/cudnn/bin" for each in REAL if each != site]
    for number, name in enumerate(sorted(os.listdir(lib))):
        for kind in ("missing-library", "damaged-library", *("other" for _ in others[:1])):
            copy = tmp_path / f"{number}{kind}"
            copy.mkdir()
            for file in lib.iterdir():
                if file.name != name:
                    os.link(file, copy / file.name)
            if kind == "damaged-library":
                with (lib / name).open("rb") as file:
                    (copy / name).write_bytes(file.read((lib / name).stat().st_size // 2))
            elif kind == "other" and not (others[0] / name).exists():
                continue
            elif kind == "other":
                os.link(others[0] / name, copy / name)
            given = codes(doctor.diagnose(copy, run=False))
            wanted = {kind} if kind != "other" else {"mixed-versions", "unresolved-symbols", "stray-library"}
            assert given & wanted, (kind, name, given)
