"""Environments with small wheels of cuDNN, in which pip runs.

The wheels have the names, the files and the metadata of the real ones, and libraries of a few hundred bytes,
so that pip can repair an environment in a second. tests/doctor_breakages.py breaks them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import cudnn_doctor as doctor
from cudnn_doctor.checks import Requirements
from tests import fast_pip
from tests.elf_files import NOT_JIT, make_cudnn, make_defining, make_elf, make_header

CU12, CU13 = "nvidia_cudnn_cu12", "nvidia_cudnn_cu13"
OLD, NEW, OTHER = f"{CU12}-9.10.2.21", f"{CU12}-9.27.0.42", f"{CU13}-9.28.0.1"
TORCH, TORCH_NEW, TORCH_13 = "torch-2.9.0", "torch-2.10.0", "torch_cu13-2.11.0"
BLAS12, NVRTC12, CUDART12 = (
    "nvidia_cublas_cu12-12.9.1.4", "nvidia_cuda_nvrtc_cu12-12.9.86", "nvidia_cuda_runtime_cu12-12.9.79",
)  # fmt: skip
BLAS13, NVRTC13 = "nvidia_cublas-13.1.0.3", "nvidia_cuda_nvrtc-13.1.80"
LIB = "nvidia/cudnn/lib"

CU11, JIT, TORCH_LIB = "nvidia_cudnn_cu11-9.10.2.21", "nvidia_cudnn_jit_cu12-9.27.0.42", "torch-2.6.0"
JIT_OLD, OTHER_OLD = "nvidia_cudnn_jit_cu12-9.20.0.48", f"{CU13}-9.20.0.48"  # their engines need libnvrtc
BLAS11, NVRTC11 = "nvidia_cublas_cu11-11.11.3.6", "nvidia_cuda_nvrtc_cu11-11.8.89"
JAX, JAX_NEW = "jax_cuda12_plugin-0.7.0", "jax_cuda12_plugin-0.8.0"
ORT, ORT_OLD = "onnxruntime_gpu-1.22.0", "onnxruntime_gpu-1.18.0"
FLOW, FLOW_OLD = "tensorflow-2.18.0", "tensorflow-2.17.0"
CT2, CT2_OLD = "ctranslate2-4.6.0", "ctranslate2-4.4.0"
# Packages that name the wheels of CUDA and cuDNN by extras of other packages.
TOOLKIT, TORCH_TOOLKIT = "cuda_toolkit-13.0.2", "torch-2.11.0"
JAX_13, JAX_USER = "jax_cuda13_plugin-0.10.2", "trainer-1.0"
CUDART13, BLAS13_NEW = "nvidia_cuda_runtime-13.0.96", "nvidia_cublas-13.5.0.1"

# The packages that each wheel requires.
WHEELS = {
    OLD: ["nvidia-cublas-cu12"],
    NEW: ["nvidia-cublas-cu12"],
    OTHER: ["nvidia-cublas", "nvidia-cuda-nvrtc"],
    CU11: ["nvidia-cublas-cu11"],
    JIT: ["nvidia-cublas-cu12"],
    JIT_OLD: ["nvidia-cublas-cu12"],
    OTHER_OLD: ["nvidia-cublas", "nvidia-cuda-nvrtc"],
    TORCH: ["nvidia-cudnn-cu12==9.10.2.21; platform_system == 'Linux'", "nvidia-cublas-cu12==12.9.1.4"],
    TORCH_NEW: ["nvidia-cudnn-cu12==9.27.0.42", "nvidia-cuda-runtime-cu12==12.9.79"],
    TORCH_13: ["nvidia-cudnn-cu13==9.28.0.1"],
    JAX: ["nvidia-cudnn-cu12<10.0,>=9.8; extra == 'with-cuda'"],
    JAX_NEW: ["nvidia-cudnn-cu12<10.0,>=9.20; extra == 'with-cuda'"],
    JAX_13: ["nvidia-cudnn-cu13<10.0,>=9.12; sys_platform == 'linux' and extra == 'with-cuda'"],
    JAX_USER: ["jax-cuda12-plugin[with_cuda]>=0.7"],
    ORT: ["nvidia-cudnn-cu12~=9.0; extra == 'cudnn'"],
    FLOW: ["nvidia-cudnn-cu12==9.3.0.75; extra == 'and-cuda'"],
    TORCH_TOOLKIT: [
        "cuda-toolkit[cublas,cudart,nvrtc]==13.0.2; platform_system == 'Linux'",
        "nvidia-cudnn-cu13==9.28.0.1; platform_system == 'Linux'",
    ],
    TOOLKIT: [
        f"{package}.*; (sys_platform == 'linux' or sys_platform == 'win32') and extra == '{extra}'"
        for extra, package in (
            ("cublas", "nvidia-cublas==13.1.0.3"),
            ("cudart", "nvidia-cuda-runtime==13.0.96"),
            ("nvrtc", "nvidia-cuda-nvrtc==13.1.80"),
        )
    ],
    BLAS12: ["nvidia-cuda-nvrtc-cu12"],
    BLAS13: ["nvidia-cuda-nvrtc"],
    BLAS13_NEW: ["nvidia-cuda-nvrtc"],
    **dict.fromkeys(  # noqa: RUF024
        [TORCH_LIB, NVRTC12, CUDART12, NVRTC13, CUDART13, BLAS11, NVRTC11, ORT_OLD, FLOW_OLD, CT2, CT2_OLD],
        [],
    ),
}
FILES = {
    BLAS11: ["cublas/lib/libcublasLt.so.11"],
    NVRTC11: ["cuda_nvrtc/lib/libnvrtc.so.11.2", "cuda_nvrtc/lib/libnvrtc-builtins.so.11.8"],
    BLAS12: ["cublas/lib/libcublasLt.so.12"],
    NVRTC12: ["cuda_nvrtc/lib/libnvrtc.so.12", "cuda_nvrtc/lib/libnvrtc-builtins.so.12.9"],
    CUDART12: ["cuda_runtime/lib/libcudart.so.12"],
    BLAS13: ["cu13/lib/libcublasLt.so.13"],
    BLAS13_NEW: ["cu13/lib/libcublasLt.so.13"],
    NVRTC13: ["cu13/lib/libnvrtc.so.13", "cu13/lib/libnvrtc-builtins.so.13.1"],
    CUDART13: ["cu13/lib/libcudart.so.13"],
}
# The folder, the parts that are left out, and the CUDA of each cuDNN.
SETS = {
    OLD: ("nvidia/cudnn", ["ext", "engines_tensor_ir"], 12),
    NEW: ("nvidia/cudnn", [], 12),
    OTHER: ("nvidia/cudnn", [], 13),
    CU11: ("nvidia/cudnn", ["ext", "engines_tensor_ir"], 11),
    JIT: ("nvidia/cudnn_jit", NOT_JIT, 12),
    JIT_OLD: ("nvidia/cudnn_jit", NOT_JIT, 12),
    OTHER_OLD: ("nvidia/cudnn", ["ext", "engines_tensor_ir"], 13),
    TORCH_LIB: ("torch", ["ext", "engines_tensor_ir"], 12),
}
# Libraries of the system that cuDNN is linked with, and the symbol versions that it needs.
LINKED = {"libc.so.6": ["GLIBC_2.27"], "libstdc++.so.6": ["GLIBCXX_3.4.22"], "libz.so.1": ["ZLIB_1.2.0"]}
SYSTEM = {
    "libc.so.6": ["GLIBC_2.2.5", "GLIBC_2.27", "GLIBC_2.36"],
    "libstdc++.so.6": ["GLIBCXX_3.4", "GLIBCXX_3.4.22"],
    "libz.so.1": ["ZLIB_1.2.0", "ZLIB_1.2.9"],
}
SYSTEM_LIB = "usr/lib/x86_64-linux-gnu"
CUDA11 = (BLAS11, NVRTC11)
CUDA12, CUDA13 = (BLAS12, NVRTC12), (BLAS13, NVRTC13)


AARCH64 = 183


def make_wheels(folder: Path, machine: int | None = None) -> Path:
    """Write all wheels to a folder, those for aarch64 to a folder in it, and return it."""
    if machine is None:
        make_wheels(folder / "aarch64", AARCH64)
    for label, needs in WHEELS.items():
        name, _, version = label.partition("-")
        info = f"{label}.dist-info"
        files = {f"{info}/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n"}
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        files[f"{info}/METADATA"] = (
            metadata
            + "".join(f"Provides-Extra: {each}\n" for each in re.findall(r"extra == '([\w-]+)'", str(needs)))
            + "".join(f"Requires-Dist: {each}\n" for each in needs)
        ).encode()
        files |= dict(_contents(folder / "files" / label, label, machine))
        record = "".join(f"{path},,{len(data)}\n" for path, data in files.items()) + f"{info}/RECORD,,\n"
        with zipfile.ZipFile(folder / f"{label}-py3-none-any.whl", "w") as wheel:
            for path, data in {**files, f"{info}/RECORD": record.encode()}.items():
                wheel.writestr(path, data)
    (folder / "system").mkdir()
    for name, versions in SYSTEM.items():
        (folder / "system" / name).write_bytes(make_defining(*versions, machine=machine))
    return folder


def _contents(folder: Path, label: str, machine: int | None) -> Iterator[tuple[str, bytes]]:
    name, _, build = label.partition("-")
    if label in SETS:
        place, without, cuda = SETS[label]
        version = "9.10.2" if label == TORCH_LIB else build.rpartition(".")[0]
        lib = make_cudnn(
            folder / "lib", version, without=without, cuda=cuda, system=LINKED, machine=machine
        ).parent
        make_header(folder / "include/cudnn_version.h", version)
        for file in (*lib.iterdir(), folder / "include/cudnn_version.h"):
            yield f"{place}/{file.relative_to(folder)}", file.read_bytes()
    elif label == CT2:
        yield (
            "ctranslate2.libs/libcudnn-74a4c495.so.9.1.0",
            make_elf("libcudnn-74a4c495.so.9.1.0", machine=machine),
        )
    yield f"{name}/version.py", f"__version__ = '{build}'\n".encode()
    for file in FILES.get(label, ()):
        yield f"nvidia/{file}", make_elf(os.path.basename(file), machine=machine)


# Installs libraries into an image as apt-get does into a system.
APT = """#!/bin/sh
[ -n "$PIP_FIND_LINKS" ] || exit 100
case "$*" in
    update) ;;
    *zlib1g) cp --remove-destination "$PIP_FIND_LINKS/system/libz.so.1" "$IMAGE" ;;
    *libstdc++6) cp --remove-destination "$PIP_FIND_LINKS/system/libstdc++.so.6" "$IMAGE" ;;
    *) exit 1 ;;
esac
"""


class Environment:
    """A Python environment of a layout with some of the wheels, each laid over the earlier ones."""

    def __init__(self, folder: Path, wheels: Path, labels: Sequence[str], layout: str = "venv") -> None:
        self.wheels, self.layout = wheels / layout if layout == "aarch64" else wheels, layout
        wheels, is_image = self.wheels, layout in ("image", "aarch64")
        self.system = folder / SYSTEM_LIB.replace("x86_64", "aarch64" if layout == "aarch64" else "x86_64")
        self.root = self.target = folder
        if is_image:
            for path in (folder / "etc", folder / "usr/bin", self.system):
                path.mkdir(parents=True)
            (folder / "lib").symlink_to("usr/lib")
            for file in (wheels / "system").iterdir():
                shutil.copy(file, self.system)
            (folder / "usr/bin/apt-get").write_text(APT)
            (folder / "usr/bin/apt-get").chmod(0o755)
            folder = folder / "opt/venv"
        elif layout == "odd name":
            self.target = folder = folder / "it's a venv"
        if layout == "target":
            self.site = folder / "libraries"
        else:
            venv.create(folder, symlinks=True)
            (self.site,) = folder.glob("lib/*/site-packages")
            if layout != "no pip":  # as uv creates it
                import pip

                (self.site / "pip").symlink_to(Path(pip.__file__).parent)
        for label in labels:
            zipfile.ZipFile(wheels / f"{label}-py3-none-any.whl").extractall(self.site)

    def unmet(self) -> set[str]:
        """Return the installed packages of NVIDIA that a package requires, with or without an extra."""
        folders = list(self.site.glob("*.dist-info"))
        installed = {folder.name.partition("-")[0].replace("_", "-") for folder in folders}
        texts = [file.read_text(errors="replace") for file in self.site.glob("*.dist-info/METADATA")]
        return set(re.findall(r"Requires-Dist: (nvidia-[\w-]+)", "\n".join(texts))) - installed

    def diagnose(self, asked: Requirements | None = None, deep: bool = False) -> doctor.Diagnosis:
        """Examine it; files are only read."""
        return doctor.diagnose(self.target, asked, run=False, deep=deep)

    def run(self, script: str, index: bool = True, fast: bool = False) -> int:
        """Run commands for a shell, with or without packages that pip can download; return the exit code.

        If they are ``fast``, a process that has already imported pip runs those of pip.
        """
        offline = {
            "STORE": str(self.root.parent / "store"),
            "IMAGE": str(self.system),
            "PATH": f"{self.root}/usr/bin:{os.environ['PATH']}",
            "PIP_NO_INDEX": "1",
            "PIP_NO_CACHE_DIR": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        environ = {**os.environ, **offline, **({"PIP_FIND_LINKS": str(self.wheels)} if index else {})}
        if self.layout in ("image", "aarch64"):  # in which the paths start at its root
            script = script.replace("/opt/venv", f"{self.root}/opt/venv")
        if fast and (ran := fast_pip.run(script, self.site, environ)):
            code, printed = ran
            self.output = f"{script}\n{printed}"
            return code
        done = subprocess.run(
            ["sh", "-ec", script], cwd=self.site, env=environ, capture_output=True, text=True
        )
        self.output = f"{script}\n{done.stdout}{done.stderr}"
        return done.returncode


LAYOUTS = ("venv", "odd name", "image", "target", "aarch64")  # the last is an image for that processor
IN_ENVIRONMENTS = ("venv", "odd name", "image", "aarch64")
IN_PLACE = ("venv", "odd name", "target")  # links of an image stay inside it
