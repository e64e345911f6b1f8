"""Environments with small wheels of cuDNN, ways to break them, and set-ups that are sound.

The wheels have the names, the files and the metadata of the real ones, and libraries of a few hundred bytes,
so that pip can repair an environment in a second. tests/unit/test_doctor_repair.py runs all commands.
"""

from __future__ import annotations

import os
import subprocess
import venv
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cudnn_ct import doctor
from cudnn_ct.doctor.requirements import Requirements
from tests.elf_files import make_cudnn, make_elf, make_header

CU12, CU13 = "nvidia_cudnn_cu12", "nvidia_cudnn_cu13"
OLD, NEW, OTHER = f"{CU12}-9.10.2.21", f"{CU12}-9.27.0.42", f"{CU13}-9.28.0.1"
TORCH, TORCH_NEW, TORCH_13 = "torch-2.9.0", "torch-2.10.0", "torch_cu13-2.11.0"
BLAS12, NVRTC12, CUDART12 = (
    "nvidia_cublas_cu12-12.9.1.4", "nvidia_cuda_nvrtc_cu12-12.9.86", "nvidia_cuda_runtime_cu12-12.9.79",
)  # fmt: skip
BLAS13, NVRTC13 = "nvidia_cublas-13.1.0.3", "nvidia_cuda_nvrtc-13.1.80"
LIB = "nvidia/cudnn/lib"

# The packages that each wheel requires.
WHEELS = {
    OLD: ["nvidia-cublas-cu12"],
    NEW: ["nvidia-cublas-cu12"],
    OTHER: ["nvidia-cublas", "nvidia-cuda-nvrtc"],
    TORCH: ["nvidia-cudnn-cu12==9.10.2.21; platform_system == 'Linux'", "nvidia-cublas-cu12==12.9.1.4"],
    TORCH_NEW: ["nvidia-cudnn-cu12==9.27.0.42", "nvidia-cuda-runtime-cu12==12.9.79"],
    TORCH_13: ["nvidia-cudnn-cu13==9.28.0.1"],
    BLAS12: ["nvidia-cuda-nvrtc-cu12"],
    NVRTC12: [],
    CUDART12: [],
    BLAS13: ["nvidia-cuda-nvrtc"],
    NVRTC13: [],
}
FILES = {
    BLAS12: ["cublas/lib/libcublasLt.so.12"],
    NVRTC12: ["cuda_nvrtc/lib/libnvrtc.so.12", "cuda_nvrtc/lib/libnvrtc-builtins.so.12.9"],
    CUDART12: ["cuda_runtime/lib/libcudart.so.12"],
    BLAS13: ["cu13/lib/libcublasLt.so.13"],
    NVRTC13: ["cu13/lib/libnvrtc.so.13", "cu13/lib/libnvrtc-builtins.so.13.1"],
}
CUDA12, CUDA13 = (BLAS12, NVRTC12), (BLAS13, NVRTC13)


def make_wheels(folder: Path) -> Path:
    """Write all wheels to a folder, and return it."""
    for label, needs in WHEELS.items():
        name, _, version = label.partition("-")
        info = f"{label}.dist-info"
        files = {f"{info}/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n"}
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        files[f"{info}/METADATA"] = (
            metadata + "".join(f"Requires-Dist: {each}\n" for each in needs)
        ).encode()
        files |= dict(_contents(folder / "files" / label, label))
        record = "".join(f"{path},,{len(data)}\n" for path, data in files.items()) + f"{info}/RECORD,,\n"
        with zipfile.ZipFile(folder / f"{label}-py3-none-any.whl", "w") as wheel:
            for path, data in {**files, f"{info}/RECORD": record.encode()}.items():
                wheel.writestr(path, data)
    return folder


def _contents(folder: Path, label: str) -> Iterator[tuple[str, bytes]]:
    name, _, build = label.partition("-")
    if name in (CU12, CU13):
        version = build.rpartition(".")[0]
        without = ["ext", "engines_tensor_ir"] if label == OLD else []
        lib = make_cudnn(folder / "lib", version, without=without, cuda=int(name[-2:])).parent
        make_header(folder / "include/cudnn_version.h", version)
        for file in (*lib.iterdir(), folder / "include/cudnn_version.h"):
            yield f"nvidia/cudnn/{file.relative_to(folder)}", file.read_bytes()
    elif name.startswith("torch"):
        yield f"{name}/version.py", f"__version__ = '{build}'\n".encode()
    for file in FILES.get(label, ()):
        yield f"nvidia/{file}", make_elf(os.path.basename(file))


class Environment:
    """A Python environment of a layout with some of the wheels, each laid over the earlier ones."""

    def __init__(self, folder: Path, wheels: Path, labels: Sequence[str], layout: str = "venv") -> None:
        self.wheels, self.layout = wheels, layout
        self.root = self.target = folder
        if layout == "image":
            for name in ("etc", "usr/bin"):
                (folder / name).mkdir(parents=True)
            folder = folder / "opt/venv"
        elif layout == "odd name":
            self.target = folder = folder / "it's a venv"
        if layout == "target":
            self.site = folder / "libraries"
        else:
            venv.create(folder, symlinks=True)
            (self.site,) = folder.glob("lib/*/site-packages")
            import pip

            (self.site / "pip").symlink_to(Path(pip.__file__).parent)
        for label in labels:
            zipfile.ZipFile(wheels / f"{label}-py3-none-any.whl").extractall(self.site)

    def diagnose(self, asked: Requirements | None = None, deep: bool = False) -> doctor.Diagnosis:
        """Examine it; files are only read."""
        return doctor.diagnose(self.target, asked, run=False, deep=deep)

    def run(self, script: str, index: bool = True) -> int:
        """Run commands for a shell, with or without packages that pip can download; return the exit code."""
        offline = {
            "STORE": str(self.root.parent / "store"),
            "PIP_NO_INDEX": "1",
            "PIP_NO_CACHE_DIR": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        environ = {**os.environ, **offline, **({"PIP_FIND_LINKS": str(self.wheels)} if index else {})}
        if self.layout == "image":  # in which the paths start at its root
            script = script.replace("/opt/venv", f"{self.root}/opt/venv")
        done = subprocess.run(
            ["sh", "-ec", script], cwd=self.site, env=environ, capture_output=True, text=True
        )
        self.output = f"{script}\n{done.stdout}{done.stderr}"
        return done.returncode


@dataclass(frozen=True)
class Breakage:
    """One way to break an environment, and the code of the finding that names the cause."""

    name: str
    code: str
    damage: str  # a shell script, which runs in the site-packages
    labels: tuple[str, ...] = (NEW, *CUDA12)
    asked: Requirements = field(default_factory=Requirements)
    layouts: tuple[str, ...] = ()  # empty for all
    manual: bool = False  # commands cannot repair it


LAYOUTS = ("venv", "odd name", "image", "target")
IN_ENVIRONMENTS = LAYOUTS[:3]
IN_PLACE = ("venv", "odd name", "target")  # links of an image stay inside it


def _in_lib(script: str) -> str:
    return f"cd {LIB}; {script}"


_STALE = f"mkdir {OLD}.dist-info; echo {LIB}/libcudnn.so.9,,7 > {OLD}.dist-info/RECORD"
_RENAME = 'for f in {}*.dist-info; do mv "$f" "~${{f#?}}"; done'  # as pip does before it deletes it
_TORCH_AGAIN = f"cp -r {TORCH}.dist-info {TORCH_NEW}.dist-info; rm {TORCH_NEW}.dist-info/RECORD"
_STRAY = "libcudnn_engines_tensor_ir.so.9"
_OLDER = (OLD, *CUDA12)
_BOTH = (OLD, OTHER, *CUDA12, *CUDA13)

BREAKAGES = (
    # Two owners, and stale metadata.
    Breakage("wheels for CUDA 12 and 13", "two-owners", "", _BOTH, layouts=IN_ENVIRONMENTS),
    Breakage(
        "the same, laid in the other order",
        "two-owners",
        "",
        (OTHER, OLD, *CUDA12, *CUDA13),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage("both, and torch pins CUDA 12", "two-owners", "", (*_BOTH, TORCH), layouts=IN_ENVIRONMENTS),
    Breakage("both, and torch pins CUDA 13", "two-owners", "", (*_BOTH, TORCH_13), layouts=IN_ENVIRONMENTS),
    Breakage(
        "both, and one RECORD is unreadable",
        "broken-record",
        f"echo x > {OTHER}.dist-info/RECORD",
        _BOTH,
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage("metadata of the version before", "stale-metadata", "", (NEW, *_OLDER)),
    Breakage("metadata of the version after", "stale-metadata", "", (OLD, NEW, *CUDA12)),
    Breakage("metadata without files", "stale-metadata", _STALE),
    Breakage("an interrupted upgrade", "stale-metadata", _RENAME.format(CU12)),
    Breakage("an interrupted downgrade", "stale-metadata", _RENAME.format(OLD), (NEW, *_OLDER)),
    # Files of the set.
    *(
        Breakage(f"{part or 'libcudnn'} is gone", "missing-library", _in_lib(f"rm libcudnn{part}.so.9"))
        for part in (
            "",
            "_graph",
            "_ops",
            "_cnn",
            "_adv",
            "_ext",
            "_heuristic",
            "_engines_precompiled",
            "_engines_runtime_compiled",
            "_engines_tensor_ir",
        )
    ),
    Breakage("all libraries are gone", "missing-library", f"rm -r {LIB}"),
    Breakage("its folder is gone", "missing-library", "rm -r nvidia/cudnn"),
    Breakage("all of nvidia is gone", "missing-library", "rm -r nvidia"),
    Breakage("ops is empty", "damaged-library", _in_lib(": > libcudnn_ops.so.9")),
    Breakage(
        "graph is cut",
        "damaged-library",
        _in_lib("head -c 300 libcudnn_graph.so.9 > x; mv x libcudnn_graph.so.9"),
    ),
    Breakage(
        "libcudnn has its header alone",
        "damaged-library",
        _in_lib("head -c 64 libcudnn.so.9 > x; mv x libcudnn.so.9"),
    ),
    Breakage("cnn is a web page", "damaged-library", _in_lib("echo '<html>' > libcudnn_cnn.so.9")),
    Breakage(
        "adv is a Git LFS pointer",
        "damaged-library",
        _in_lib("echo version https://git-lfs > libcudnn_adv.so.9"),
    ),
    Breakage("ext is a folder", "damaged-library", _in_lib("rm libcudnn_ext.so.9; mkdir libcudnn_ext.so.9")),
    Breakage(
        "heuristic is a pipe",
        "damaged-library",
        _in_lib("rm libcudnn_heuristic.so.9; mkfifo libcudnn_heuristic.so.9"),
        layouts=("venv", "odd name", "image"),
    ),
    Breakage("adv is a dangling link", "broken-link", _in_lib("ln -sf gone libcudnn_adv.so.9")),
    Breakage(
        "cnn is a link to itself",
        "broken-link",
        _in_lib("rm libcudnn_cnn.so.9; ln -s libcudnn_cnn.so.9 libcudnn_cnn.so.9"),
    ),
    Breakage(
        "ops is for another processor",
        "foreign-machine",
        _in_lib(r"printf '\3\0' | dd of=libcudnn_ops.so.9 bs=1 seek=18 conv=notrunc"),
    ),
    Breakage(
        "ops is 32-bit",
        "foreign-machine",
        _in_lib(r"printf '\1' | dd of=libcudnn_ops.so.9 bs=1 seek=4 conv=notrunc"),
    ),
    Breakage("cnn has the name of ops", "wrong-library", _in_lib("cp libcudnn_cnn.so.9 libcudnn_ops.so.9")),
    Breakage("ops of another version", "mixed-versions", _in_lib("cp $other/libcudnn_ops.so.9 .")),
    Breakage("graph of another version", "mixed-versions", _in_lib("cp $other/libcudnn_graph.so.9 .")),
    Breakage(
        "adv and ops of another version",
        "mixed-versions",
        _in_lib("cp $other/libcudnn_adv.so.9 $other/libcudnn_ops.so.9 ."),
    ),
    Breakage(
        "a part with the version in its name",
        "missing-library",
        _in_lib("mv libcudnn_ops.so.9 libcudnn_ops.so.9.1.0"),
    ),
    Breakage("a byte after the end", "altered-file", _in_lib("echo >> libcudnn_ext.so.9")),
    Breakage(
        "a header of another version", "header-mismatch", f"sed -i s/27/26/ {LIB}/../include/cudnn_version.h"
    ),
    Breakage("a header is gone", "missing-file", f"rm {LIB}/../include/cudnn_version.h"),
    # Leftovers, alone and together with defects that a reinstallation repairs.
    Breakage("a leftover engine", "stray-library", _in_lib(f"cp $newer/{_STRAY} ."), _OLDER),
    Breakage(
        "a leftover engine, and ops is gone",
        "stray-library",
        _in_lib(f"cp $newer/{_STRAY} .; rm libcudnn_ops.so.9"),
        _OLDER,
    ),
    Breakage("a library of nobody", "unowned-library", _in_lib("cp libcudnn_ext.so.9 libcudnn_extra.so.9")),
    Breakage(
        "a library of nobody, and adv is empty",
        "unowned-library",
        _in_lib("cp libcudnn_ext.so.9 libcudnn_extra.so.9; : > libcudnn_adv.so.9"),
    ),
    Breakage("two files of cnn", "two-files", _in_lib("cp libcudnn_ext.so.9 libcudnn_cnn.so.9.99.0")),
    # Metadata.
    Breakage("RECORD is garbage", "broken-record", f"echo > {NEW}.dist-info/RECORD"),
    Breakage("RECORD is gone", "broken-record", f"rm {NEW}.dist-info/RECORD"),
    Breakage(
        "no metadata, and ops is gone",
        "missing-library",
        f"rm -r {NEW}.dist-info {LIB}/libcudnn_ops.so.9",
        manual=True,
    ),
    Breakage(
        "no metadata but that of torch, and ops is gone",
        "missing-library",
        f"rm -r {OLD}.dist-info {LIB}/libcudnn_ops.so.9",
        (OLD, TORCH, *CUDA12),
        layouts=IN_ENVIRONMENTS,
    ),
    # Access.
    Breakage("only its owner can read ops", "private-file", _in_lib("chmod 600 libcudnn_ops.so.9")),
    Breakage("only its owner can enter the folder", "private-file", f"chmod 700 {LIB}"),
    Breakage("any user can write adv", "world-writable", _in_lib("chmod o+w libcudnn_adv.so.9")),
    Breakage("any user can write the folder", "world-writable", f"chmod o+w {LIB}"),
    Breakage("any user can write all files", "world-writable", _in_lib("chmod o+w *")),
    # Requirements and consumers.
    Breakage(
        "torch pins an older version", "consumer-mismatch", "", (NEW, TORCH, *CUDA12), layouts=IN_ENVIRONMENTS
    ),
    Breakage(
        "torch pins a newer version",
        "consumer-mismatch",
        "",
        (*_OLDER, TORCH_NEW, CUDART12),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage(
        "torch pins another CUDA", "consumer-mismatch", "", (OTHER, TORCH, *CUDA13), layouts=IN_ENVIRONMENTS
    ),
    Breakage("torch pins CUDA 13", "consumer-mismatch", "", (*_OLDER, TORCH_13), layouts=IN_ENVIRONMENTS),
    Breakage(
        "torch pins a version, and ops is gone",
        "missing-library",
        _in_lib("rm libcudnn_ops.so.9"),
        (NEW, TORCH, *CUDA12),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage(
        "a newer version is required",
        "unexpected-version",
        "",
        _OLDER,
        Requirements(minimum=(9, 20)),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage(
        "an older version is required",
        "unexpected-version",
        "",
        asked=Requirements(maximum=(9, 20)),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage(
        "another CUDA is required",
        "unexpected-cuda",
        "",
        asked=Requirements(cuda=13),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage(
        "torch excludes the required version",
        "unexpected-version",
        "",
        (*_OLDER, TORCH),
        Requirements(minimum=(9, 28)),
        manual=True,
    ),
    Breakage(
        "torch excludes the required CUDA",
        "unexpected-cuda",
        "",
        (*_OLDER, TORCH),
        Requirements(cuda=13),
        manual=True,
    ),
    # Companion libraries.
    Breakage("no libcublasLt", "missing-cublaslt", "", (NEW, NVRTC12)),
    Breakage("no libcublasLt, and torch pins it", "missing-cublaslt", "", (OLD, TORCH, NVRTC12)),
    Breakage("libcublasLt is gone", "missing-cublaslt", "rm nvidia/cublas/lib/*"),
    Breakage("libcublasLt is empty", "damaged-library", ": > nvidia/cublas/lib/libcublasLt.so.12"),
    Breakage(
        "libcublasLt is cut",
        "damaged-library",
        "cd nvidia/cublas/lib; head -c 99 libcublasLt.so.12 > x; mv x libcublasLt.so.12",
    ),
    Breakage(
        "libcublasLt is a dangling link", "broken-link", "ln -sf gone nvidia/cublas/lib/libcublasLt.so.12"
    ),
    Breakage("no libnvrtc", "missing-nvrtc", "", (NEW, BLAS12)),
    Breakage("libnvrtc is empty", "damaged-library", ": > nvidia/cuda_nvrtc/lib/libnvrtc.so.12"),
    Breakage("no builtins of libnvrtc", "missing-nvrtc", "rm nvidia/cuda_nvrtc/lib/*builtins*"),
    Breakage(
        "builtins of another version",
        "missing-nvrtc",
        "cd nvidia/cuda_nvrtc/lib; mv *builtins* libnvrtc-builtins.so.12.4",
    ),
    Breakage("torch needs libcudart", "missing-cudart", "", (NEW, TORCH_NEW, *CUDA12)),
    Breakage(
        "libcudart is empty",
        "damaged-library",
        ": > nvidia/cuda_runtime/lib/libcudart.so.12",
        (NEW, TORCH_NEW, CUDART12, *CUDA12),
    ),
    Breakage("no libcublasLt for CUDA 13", "missing-cublaslt", "", (OTHER, NVRTC13)),
    Breakage("no libnvrtc for CUDA 13", "missing-nvrtc", "rm nvidia/cu13/lib/libnvrtc*", (OTHER, *CUDA13)),
)


@dataclass(frozen=True)
class Sound:
    """A set-up in which nothing is wrong."""

    name: str
    script: str = ""
    labels: tuple[str, ...] = (NEW, *CUDA12)
    asked: Requirements = field(default_factory=Requirements)
    layouts: tuple[str, ...] = LAYOUTS


_LINKS = "for f in *; do cp $f $f.27.0; done; ln -s libcudnn.so.9 libcudnn.so"
_ON_WINDOWS = "Requires-Dist: nvidia-cudnn-cu12==9.1; sys_platform == 'win32'"

SOUND = (
    Sound("as installed"),
    Sound("an older version", labels=_OLDER),
    Sound("for CUDA 13", labels=(OTHER, *CUDA13)),
    Sound("libraries of both CUDAs", labels=(NEW, *CUDA12, *CUDA13)),
    Sound("with torch", labels=(OLD, TORCH, *CUDA12)),
    Sound("with a newer torch", labels=(NEW, TORCH_NEW, CUDART12, *CUDA12)),
    Sound("with torch for CUDA 13", labels=(OTHER, TORCH_13, *CUDA13)),
    Sound("two metadata folders of torch", _TORCH_AGAIN, (OLD, TORCH, *CUDA12)),
    Sound("names with the full version", _in_lib(_LINKS)),
    Sound("a link with the short name", _in_lib("ln -s libcudnn.so.9 libcudnn.so")),
    Sound(
        "libraries that are links", f"mkdir $STORE; mv {LIB}/* $STORE; ln -s $STORE/* {LIB}", layouts=IN_PLACE
    ),
    Sound("its folder is a link", f"mv {LIB} $STORE; ln -s $STORE {LIB}", layouts=IN_PLACE),
    Sound("without metadata", f"rm -r {NEW}.dist-info"),
    Sound("without a header", f"rm -r {NEW}.dist-info nvidia/cudnn/include"),
    Sound("metadata without hashes and sizes", f"sed -i 's/,[0-9]*$/,/' {NEW}.dist-info/RECORD"),
    Sound("a metadata of another tool", f"mkdir {CU12}.egg-info x.dist-info; echo > x.dist-info/RECORD"),
    Sound(
        "a damaged METADATA",
        r"mkdir y-1.dist-info; printf '\377\0Requires-Dist: nvidia-cudnn-cu12==' > y-1.dist-info/METADATA",
    ),
    Sound(
        "a requirement that does not apply",
        f'mkdir z-1.dist-info; echo "{_ON_WINDOWS}" > z-1.dist-info/METADATA',
    ),
    Sound("other libraries next to it", _in_lib("cp libcudnn_ops.so.9 libother.so; : > notes.txt")),
    Sound(
        "an unneeded libcudart that is damaged",
        "mkdir -p nvidia/cuda_runtime/lib; : > nvidia/cuda_runtime/lib/libcudart.so.12",
    ),
    Sound("requirements that are met", asked=Requirements(minimum=(9, 20), maximum=(9, 27), cuda=12)),
)
