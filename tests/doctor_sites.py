"""Copies of an installed cuDNN to break, and the doctor's report about them, from a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import cudnn_ct
from cudnn_doctor import libraryset
from cudnn_doctor.read.find import TOOLKITS
from tests.elf_files import make_elf

PACKAGE = Path(cudnn_ct.__file__).parents[1]


def read(folder: Path) -> libraryset.LibrarySet:
    """Read the cuDNN in a folder."""
    found = libraryset.read(str(folder))
    assert found is not None, f"no cuDNN 9 in {folder}"
    return found


@dataclass(frozen=True)
class Source:
    """A sound cuDNN as its wheel installs it: ``site`` holds ``nvidia/cudnn`` and its dist-info."""

    site: Path

    @property
    def libraries(self) -> Path:
        """Its folder of libraries."""
        return self.site / "nvidia/cudnn/lib"

    @cached_property
    def set(self) -> libraryset.LibrarySet:
        """Its libraries."""
        return read(self.libraries)

    @property
    def metadata(self) -> Path:
        """Its dist-info."""
        (folder,) = self.site.glob("nvidia_cudnn_cu*.dist-info")
        return folder

    def __str__(self) -> str:
        return f"{libraryset.write(self.set.version)} cu{self.set.cuda}"


class Site:
    """A copy of a source to break. Its files are hard links: never write into one."""

    def __init__(self, folder: Path, source: Source) -> None:
        self.source = source
        self.root = folder / "site-packages"
        self.lib = self.root / "nvidia/cudnn/lib"
        self.arguments: list[str] = []
        self.environ: dict[str, str] = {}
        self.prelude = ""
        self.target: Path = self.root
        self.lay(source)
        cuda = source.set.cuda
        nvrtc = f"nvrtc.so.{cuda if cuda > 11 else '11.2'}"
        for name in (f"cublas/lib/libcublasLt.so.{cuda}", nvrtc, f"nvrtc-builtins.so.{cuda}.0"):
            path = self.root / "nvidia" / (name if "/" in name else f"cuda_nvrtc/lib/lib{name}")
            self.write(path, make_elf(path.name))

    def lay(self, source: Source) -> None:
        """Install a wheel over existing files, as pip does."""
        for folder in (source.site / "nvidia/cudnn", source.metadata):
            for file in folder.rglob("*"):
                if file.is_file() and "__pycache__" not in file.parts:
                    target = self.root / file.relative_to(source.site)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.unlink(missing_ok=True)
                    os.link(file, target)

    def file(self, part: str) -> Path:
        """Return the library of a part."""
        return self.lib / f"libcudnn{'_' if part else ''}{part}.so.9"

    def write(self, path: Path, data: bytes | str) -> Path:
        """Replace a file, without changing the file that it was linked to."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        path.chmod(0o644)
        return path

    def take(self, part: str, other: Source) -> None:
        """Replace a library with that of another cuDNN."""
        self.file(part).unlink(missing_ok=True)
        os.link(other.libraries / self.file(part).name, self.file(part))

    def run(self, command: str) -> None:
        """Run a command in the folder of the libraries, with variables for the names of files."""
        names = {part or "shim": library.file for part, library in self.source.set.libraries.items()}
        names |= {"metadata": f"{self.root}/{self.source.metadata.name}", "package": self.source.set.package}
        subprocess.run(["sh", "-ec", command], cwd=self.lib, env={**os.environ, **names}, check=True)


@dataclass(frozen=True)
class Answer:
    """The result of the doctor: its exit code, its JSON, and its stderr."""

    exit_code: int
    report: dict[str, Any]
    stderr: str

    def codes(self, *severities: str) -> set[str]:
        """Return the codes of the findings of these severities; by default of errors and warnings."""
        wanted = severities or ("error", "warning")
        return {found["code"] for found in self.report["findings"] if found["severity"] in wanted}


def examine(
    target: Path | None,
    arguments: Iterable[str] = (),
    environ: dict[str, str] | None = None,
    prelude: str = "",
    command: Iterable[str] = (),  # which runs it
) -> Answer:
    """Run the command with --strict in a process that can import only the package under test."""
    start = "import sys; from cudnn_doctor.main import main\n"
    code = f"{start}{prelude}\nsys.exit(main(sys.argv[1:]))"
    command = [*command, sys.executable, "-S", "-W", "error", "-c", code, "--json", "--strict"]
    drop = {
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "CUDNN_PATH",
        *TOOLKITS,
        "CONDA_PREFIX",
        "CI",
        "CUDNN_CT_LIBRARY",
    }
    clean = {name: value for name, value in os.environ.items() if name not in drop}
    with tempfile.TemporaryDirectory() as folder:  # an installed package lies next to the installed cuDNN
        Path(folder).chmod(0o755)
        for name in ("cudnn_ct", "cudnn_doctor"):
            Path(folder, name).symlink_to(PACKAGE / name)
        done = subprocess.run(
            [*command, *arguments, *([str(target)] if target else [])],
            # No GPU even if one is present: an empty library takes the place of libcublasLt.
            env={**clean, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": folder, **(environ or {})},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert "Traceback" not in done.stderr, done.stderr
    return Answer(done.returncode, json.loads(done.stdout), done.stderr)
