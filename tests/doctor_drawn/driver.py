"""A libcuda.so.1 for a drawn site, whose cuInit returns a chosen status."""

from __future__ import annotations

import functools
import platform
import struct
import subprocess
from ctypes import CDLL
from pathlib import Path

from tests.doctor_drawn import files
from tests.elf_files import make_functions

# Functions with which libraries of cuDNN are linked; without them these cannot be opened.
LINKED = (
    "cuGetErrorString", "cuModuleGetFunction", "cuModuleLoadData", "cuModuleUnload",
    "cuTensorMapEncodeIm2col", "cuTensorMapEncodeTiled",
)  # fmt: skip


def write(path: Path, status: int = 0, version: int = 12080) -> None:
    """Write the library, for x86-64; it has no GPU."""

    def stores(number: int) -> bytes:  # mov dword [rdi], number; xor eax, eax; ret
        return b"\xc7\x07" + struct.pack("<I", number) + b"\x31\xc0\xc3"

    codes = {"cuInit": b"\xb8" + struct.pack("<I", status) + b"\xc3"}
    codes.update(cuDriverGetVersion=stores(version), cuDeviceGetCount=stores(0))
    codes.update(dict.fromkeys(LINKED, b"\xb8" + struct.pack("<I", status) + b"\xc3"))
    files.write(path, make_functions("libcuda.so.1", codes))


@functools.cache
def installed() -> bool:
    """Whether this machine has a driver, in place of which none can be drawn."""
    try:
        CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@functools.cache
def drawable() -> bool:
    """Whether the library has code for this machine."""
    return platform.machine() == "x86_64"


def like_wsl(folder: Path) -> list[str]:
    """A command before that of the doctor, which shows it the device and the folder of WSL, over its own."""
    (folder / "dev").mkdir(parents=True, exist_ok=True)
    (folder / "dev/dxg").touch()
    over = 'mount -t overlay o -o "lowerdir=$0/{}:{}" {}'
    mounts = " && ".join(
        over.format(*names) for names in (("lib", "/usr/lib", "/usr/lib"), ("dev", "/dev", "/dev"))
    )
    return ["unshare", "-m", "sh", "-c", f'{mounts} && exec "$@"', str(folder)]


@functools.cache
def mountable(folder: Path) -> bool:
    """Whether this user may mount folders over others."""
    (folder / "lib").mkdir(parents=True, exist_ok=True)
    done = subprocess.run([*like_wsl(folder), "test", "-e", "/dev/dxg"], capture_output=True, check=False)
    return done.returncode == 0
