"""Wheels whose files the sites are made of: those of this environment, and unpacked ones of other versions.

CUDNN_CT_TEST_CUDNNS lists the ``nvidia/cudnn/lib`` of the others, with their metadata in that site-packages.
Without it, operations that need another version are not drawn.
"""

from __future__ import annotations

import atexit
import base64
import csv
import functools
import hashlib
import importlib.metadata
import os
import re
import shutil
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from tests.doctor_drawn import files

CUDNN_NAMES = ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
COMPANIONS = {
    "12": ("nvidia-cublas-cu12", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12"),
    "13": ("nvidia-cublas", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime"),
}


# The extras of cuda-toolkit 13.0.2, as its published metadata has them.
TOOLKIT = {
    "cublas": "nvidia-cublas==13.1.0.3.*",
    "cudart": "nvidia-cuda-runtime==13.0.96.*",
    "nvrtc": "nvidia-cuda-nvrtc==13.0.88.*",
}
TOOLKIT_MARKER = "(sys_platform == 'linux' or sys_platform == 'win32') and extra == '{}'"


@dataclass(frozen=True)
class Wheel:
    """One wheel: its name, version, and files with their sources. Its libraries may be skeletons."""

    name: str
    version: str
    sources: tuple[tuple[str, Path], ...]
    metadata: str
    whole: bool = True
    renames: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def cuda(self) -> str:
        """The CUDA major version that the name has, or 13 for names without one."""
        found = re.search(r"-cu(\d+)$", self.name)
        return found.group(1) if found else "13"

    @property
    def key(self) -> tuple[int, ...]:
        """The version as numbers."""
        return tuple(int(part) for part in self.version.split("."))

    @property
    def info(self) -> str:
        """The name of the metadata folder."""
        return f"{self.name.replace('-', '_')}-{self.version}.dist-info"

    def libraries(self) -> list[str]:
        """Relative paths of the shared libraries."""
        return [path for path, _ in self.sources if ".so" in Path(path).name]

    def names(self) -> set[str]:
        """Names of the shared libraries."""
        return {Path(path).name for path in self.libraries()}

    def source(self, name: str) -> Path:
        """The file in the store that has this name."""
        return next(source for path, source in self.sources if Path(path).name == name)

    def lay(self, site: Path) -> None:
        """Write the files into a site-packages, over those that are there."""
        for path, source in self.sources:
            self.lay_file(source, site / path)

    def lay_file(self, source: Path, target: Path) -> None:
        """Write one file; the libraries of a wheel that is not whole become skeletons."""
        if self.whole or ".so" not in source.name:
            files.place(source, target)
        else:
            files.place(skeleton(source, self.renames), target)

    def install(self, site: Path) -> None:
        """Write the files and the metadata into a site-packages, as pip does."""
        self.lay(site)
        install_metadata(site, self.name, self.version, self.metadata, [path for path, _ in self.sources])


@functools.cache
def scratch() -> Path:
    """A folder for the skeletons of this process."""
    folder = Path(tempfile.mkdtemp(prefix="drawn-skeletons-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def skeleton(source: Path, renames: tuple[tuple[bytes, bytes], ...]) -> Path:
    """A skeleton of a library, which is written once."""
    target = scratch() / f"{abs(hash((source, renames)))}-{source.name}"
    part = target.with_name(f"{target.name}.{threading.get_ident()}")  # two threads may write it at once
    files.skeleton(source, part, dict(renames))
    os.replace(part, target)
    return target


@functools.cache
def hashed(path: str, identity: tuple[int, int, int]) -> str:
    """The hash of a file in the form of RECORD; ``identity`` renews it if the file is replaced."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return "sha256=" + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def install_metadata(site: Path, name: str, version: str, metadata: str, paths: list[str]) -> None:
    """Write a dist-info folder whose RECORD lists ``paths`` with their present sizes and hashes.

    Files of more than a megabyte get their hash only if a RECORD of this environment has it: hashing is slow.
    """
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    files.write(info / "METADATA", metadata.encode())
    files.write(info / "INSTALLER", b"pip\n")
    files.write(info / "WHEEL", b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    rows: list[tuple[str, str, int | str]] = []
    for path in [*paths, *(f"{info.name}/{each}" for each in ("METADATA", "INSTALLER", "WHEEL"))]:
        state = (site / path).stat()
        small = state.st_size <= 1 << 20
        identity = (state.st_ino, state.st_mtime_ns, state.st_size)
        rows.append(
            (path, hashed(str(site / path), identity) if small else real_hash(name, path), state.st_size)
        )
    rows.append((f"{info.name}/RECORD", "", ""))
    with (info / "RECORD").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows(rows)


def real_hash(name: str, path: str) -> str:
    """The hash that the RECORD of an installed or unpacked wheel has for a file, or an empty string."""
    return records().get((name, path), "")


@functools.cache
def records() -> dict[tuple[str, str], str]:
    """Hashes of this environment's wheels by name and path: only wheels with one known version have them."""
    found: dict[tuple[str, str], str] = {}
    for name in (*CUDNN_NAMES[:1], *COMPANIONS["12"]):
        try:
            record = importlib.metadata.distribution(name).read_text("RECORD") or ""
        except importlib.metadata.PackageNotFoundError:
            continue
        for row in csv.reader(record.splitlines()):
            if len(row) == 3:
                found[name, row[0]] = row[1]
    return found


def read_info(info: Path) -> Wheel:
    """Read an installed or unpacked wheel by its metadata folder."""
    name, version = info.name[: -len(".dist-info")].rsplit("-", 1)
    listed = csv.reader((info / "RECORD").read_text(encoding="utf-8").splitlines())
    paths = [row[0] for row in listed if row[0].startswith("nvidia/") and "__pycache__" not in row[0]]
    sources = tuple((path, info.parent / path) for path in paths if (info.parent / path).is_file())
    return Wheel(name.replace("_", "-"), version, sources, (info / "METADATA").read_text(encoding="utf-8"))


@functools.cache
def store() -> dict[str, tuple[Wheel, ...]]:
    """All wheels by name, the newest first."""
    infos = []
    for name in (*CUDNN_NAMES, *COMPANIONS["12"]):
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        infos.append(Path(str(found.locate_file(f"{name.replace('-', '_')}-{found.version}.dist-info"))))
    for folder in filter(None, os.environ.get("CUDNN_CT_TEST_CUDNNS", "").split(os.pathsep)):
        infos += sorted(Path(folder).absolute().parents[2].glob("nvidia_cudnn_cu*.dist-info"))
    wheels: dict[str, list[Wheel]] = {}
    for info in {each.name: each for each in reversed(infos)}.values():  # each version once
        wheel = read_info(info)
        wheels.setdefault(wheel.name, []).append(wheel)
    for wheel in cuda13(wheels):
        wheels.setdefault(wheel.name, []).append(wheel)
    wheels["cuda-toolkit"] = [toolkit()]
    return {name: tuple(sorted(each, key=lambda one: one.key, reverse=True)) for name, each in wheels.items()}


def toolkit() -> Wheel:
    """cuda-toolkit, which has only metadata."""
    lines = ["Metadata-Version: 2.1", "Name: cuda-toolkit", "Version: 13.0.2"]
    lines += [f"Requires-Dist: {pin}; {TOOLKIT_MARKER.format(extra)}" for extra, pin in TOOLKIT.items()]
    return Wheel("cuda-toolkit", "13.0.2", (), "\n".join([*lines, ""]))


def cuda13(wheels: dict[str, list[Wheel]]) -> list[Wheel]:
    """Wheels of CUDA 13 in their layout (nvidia/cu13/lib): skeletons of those of CUDA 12, renamed."""
    versions = {
        "nvidia-cublas-cu12": "13.2.0.9",
        "nvidia-cuda-nvrtc-cu12": "13.2.51",
        "nvidia-cuda-runtime-cu12": "13.2.51",
    }
    renames = (
        (b"libcublas.so.12", b"libcublas.so.13"),
        (b"libcublasLt.so.12", b"libcublasLt.so.13"),
        (b"libnvrtc.so.12", b"libnvrtc.so.13"),
        (b"libcudart.so.12", b"libcudart.so.13"),
        (b"libnvrtc-builtins.so.12.9", b"libnvrtc-builtins.so.13.2"),
    )
    found = []
    for name, version in versions.items():
        for wheel in wheels.get(name, [])[:1]:
            sources = []
            for path, source in wheel.sources:
                base = Path(path).name
                if ".so" not in base or ".alt" in base or "nvblas" in base:
                    continue
                for old, new in renames:
                    base = base.replace(old.decode(), new.decode())
                sources.append((f"nvidia/cu13/lib/{base}", source))
            new_name = name[: -len("-cu12")]
            metadata = f"Metadata-Version: 2.1\nName: {new_name}\nVersion: {version}\n"
            found.append(Wheel(new_name, version, tuple(sources), metadata, False, renames))
    return found


def cudnns() -> list[Wheel]:
    """All wheels of cuDNN."""
    return [wheel for name in CUDNN_NAMES for wheel in store().get(name, ())]


def companion(name: str) -> Wheel:
    """The wheel of a library of CUDA."""
    return store()[name][0]
