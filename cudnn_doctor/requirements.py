"""Check a cuDNN against requirements: a version, a CUDA version, GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from .checks import coverage
from .finding import Finding, Fix, finding
from .libraryset import LibrarySet, read_library, write
from .read.versions import Need, consistent, dotted, meets

NEEDED = ("ops", "cnn", "adv")  # libraries with device code that every operation or its fallback uses


@dataclass(frozen=True)
class Requirements:
    """Requirements for a cuDNN; unset ones are not checked."""

    expect: tuple[int, ...] = ()  # a version of one to three numbers; (9, 27) means any 9.27
    minimum: tuple[int, ...] = ()
    maximum: tuple[int, ...] = ()
    cuda: int = 0  # the CUDA major version
    archs: tuple[int, ...] = ()  # compute capabilities that must be supported: 86 is 8.6
    driver: bool = False  # whether there must be a driver
    gpu: bool = False

    def contradiction(self) -> str:
        """Return which requirements contradict each other; empty if none do."""
        versions = [need.versions for need in self.needs]
        return "" if consistent(versions) else f"the versions {' and '.join(versions)} exclude each other"

    @property
    def needs(self) -> tuple[Need, ...]:
        """The wheels that it allows."""
        upper = (*self.maximum[:-1], self.maximum[-1] + 1) if self.maximum else ()
        bounds = ((self.expect, "=={}.*"), (self.minimum, ">={}"), (upper, "<{}"))
        versions = [specifier.format(dotted(bound)) for bound, specifier in bounds if bound]
        package = f"nvidia-cudnn-cu{self.cuda}" if self.cuda else ""
        return tuple(Need(package, each, "this check") for each in versions or [""] * bool(package))


def check(found: LibrarySet, asked: Requirements) -> Iterator[Finding]:
    """Report the requirements that the libraries do not meet."""
    version, path = write(found.version), found.folder
    for expected in (need.versions for need in asked.needs if need.versions):
        if not found.version or not meets(version, expected):
            text = f"cuDNN {version} of {path} does not meet the requirement {expected}"
            yield found.finding("unexpected-version", text, path=path, version=version, expected=expected)
    if asked.cuda and found.cuda != asked.cuda:
        have = f"is for CUDA {found.cuda}" if found.cuda else "has an unknown CUDA version"
        text = f"the cuDNN of {found.folder} {have}, not for CUDA {asked.cuda}"
        shown: dict[str, Any] = {"path": found.folder, "cuda": found.cuda, "expected": asked.cuda}
        yield found.finding("unexpected-cuda", text, **shown)
    for arch in asked.archs:
        yield from check_arch(found, arch)


def check_arch(found: LibrarySet, arch: int) -> Iterator[Finding]:
    """Check that all libraries have code for a GPU."""
    sass, ptx = coverage(found)
    where = f"cuDNN {write(found.version)} of {found.folder}"
    shown: dict[str, Any] = {
        "path": found.folder,
        "compute_capability": f"{arch / 10:.1f}",
        "covered": sorted(sass & REAL),
    }
    if arch in sass:
        return
    if not sass:
        message = f"{where} has device code for unknown GPUs"
        yield finding("no-gpu-code", message, repair=found.repair, **shown)
        return
    jit = any(have <= arch for have in ptx)
    message = f"{where} has no {'machine ' * jit}code for compute capability {arch / 10:.1f}"
    message += f", only PTX of {max(ptx) / 10:.1f}" if jit else ""
    yield finding(
        "jit-for-gpu" if jit else "no-gpu-code", message, repair=_suited(found, arch, sass), **shown
    )


@lru_cache(maxsize=16)
def lacks_code(libraries: tuple[tuple[str, str], ...], arch: int) -> str:
    """Return why a cuDNN has no code for a GPU, in one line; empty if it has, or if its code cannot be read.

    ``libraries`` has the names and paths of the libraries of one folder. Only those that every operation
    needs are read, in milliseconds; the engines have 500 MB.
    """
    parts = {name: read_library(path, part=name) for name, path in libraries if name in NEEDED}
    found = LibrarySet(os.path.dirname(libraries[0][1]), parts)
    if all(library.code.runs_on(arch) for library in found.sound if library.code):
        return ""
    lacking = (each for each in check_arch(found, arch) if each.code == "no-gpu-code")
    return next((f"{each.message}; {each.advice}" for each in lacking), "")


# The compute capabilities of existing GPUs, for reports.
REAL = frozenset({50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121})


def _suited(found: LibrarySet, arch: int, sass: frozenset[int]) -> Fix:
    if arch < 50:
        return Fix("cuDNN 9 supports no GPU of compute capability below 5.0")
    codes = [library.code for library in found.sound if library.code]
    zeroed = {have for code in codes for have in code.zeroed if have <= arch and have // 10 == arch // 10}
    if zeroed or any(code.blank for code in codes):  # the same version has code for this GPU
        return found.repair
    major, minor, _ = found.version or (9, 0, 0)
    need = Need("", f">={major}.{minor + 1}", f"compute capability {arch / 10:.1f}")
    if arch < min(sass):  # 9.11 dropped all GPUs before 7.5; CUDA 13 came later
        need = need._replace(package="nvidia-cudnn-cu12", versions="<9.11")
    return replace(found, needs=(*found.needs, need)).repair
