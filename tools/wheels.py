"""Find other versions of cuDNN: in folders, or as wheels that pip downloads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from cudnn_ct import _lib
from cudnn_ct.cli.output import say
from cudnn_ct.errors import CudnnError
from cudnn_doctor import libraryset
from cudnn_doctor.read import files as _files
from cudnn_doctor.read.versions import version_numbers

SHIM = "libcudnn.so.9"
PLACES = ("", "lib", "lib64", "nvidia/cudnn/lib")  # below a path that names a cuDNN
SECONDS = 1800.0  # of a download: 700 MB


class Cudnn(NamedTuple):
    """A cuDNN on disk."""

    version: tuple[int, ...]
    library: str  # the path of its libcudnn.so.9

    @property
    def name(self) -> str:
        """The version as text."""
        return ".".join(map(str, self.version))


def find_all(wanted: Sequence[str], download: str | None) -> list[Cudnn]:
    """Return the cuDNNs that were named, oldest first.

    A name is a path, or a version that is installed or in the folder ``download``, into which pip downloads
    it otherwise. Raises click.UsageError if a name is neither, and CudnnError if the download fails.
    """
    found = {cudnn.library: cudnn for cudnn in (_find(name, download) for name in wanted)}
    return sorted(found.values())


def _find(name: str, download: str | None) -> Cudnn:
    if os.path.exists(name):
        cudnn = _at(name)
        if cudnn is None:
            raise click.UsageError(f"{name} does not contain a readable {SHIM}")
        return cudnn
    if not re.fullmatch(r"9(\.\d+){0,3}", name, re.ASCII):
        raise click.UsageError(
            f"{name} is neither an existing path nor a version such as 9.10.2: name the folder of its "
            f"{SHIM}, or a version of cuDNN 9"
        )
    installed = _at(_lib.load().path)
    if installed is not None and _is(installed, name):
        return installed
    if download is None:
        raise click.UsageError(
            f"cuDNN {name} is not installed: name the folder of its {SHIM}, or let pip download it with "
            "--download DIR"
        )
    for folder in sorted(Path(download).glob("*")):
        cudnn = _at(str(folder))
        if cudnn is not None and _is(cudnn, name):
            return cudnn
    return _downloaded(name, Path(download))


def _is(cudnn: Cudnn, name: str) -> bool:
    """Return whether a cuDNN has a version; ``name`` may leave out numbers, or have that of the wheel."""
    numbers = version_numbers(name)[:3]
    return cudnn.version[: len(numbers)] == numbers


def _at(path: str) -> Cudnn | None:
    """Return the cuDNN that a path names; None if there is none."""
    start = path if os.path.isdir(path) else os.path.dirname(path)
    for place in PLACES:
        folder = os.path.join(start, place).rstrip("/")
        if os.path.isfile(os.path.join(folder, SHIM)):
            found = libraryset.read(folder)
            if found and found.version:
                version = version_numbers(libraryset.write(found.version))
                return Cudnn(version, os.path.join(_files.real(folder), SHIM))
    return None


def _downloaded(name: str, folder: Path) -> Cudnn:
    """Download a wheel with pip and unpack it."""
    cuda = _lib.load().cuda_version // 1000
    package = f"nvidia-cudnn-cu{cuda}"
    numbers = name.count(".")
    requirement = f"{package}=={name}{'' if numbers == 3 else '.*'}"
    say(f"downloading {requirement} into {folder}", err=True)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as parts:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        try:
            done = subprocess.run(
                [*command, "--dest", parts, requirement], stderr=subprocess.PIPE, text=True, timeout=SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CudnnError(f"pip did not download {requirement}: {error}") from None
        wheels = list(Path(parts).glob("*.whl"))
        if done.returncode or not wheels:
            words = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise CudnnError(f"pip did not download {requirement}: {words}")
        target = folder / wheels[0].name.partition("-py3")[0]
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extractall(target)
    cudnn = _at(str(target))
    if cudnn is None:
        raise CudnnError(f"{target}, the wheel of {requirement}, does not contain a readable {SHIM}")
    return cudnn
