"""Check a cuDNN against requirements: a version, a CUDA version, GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .._libraries import dotted
from .checks import coverage
from .finding import Finding, finding
from .libraryset import LibrarySet, read_library, write

__all__ = ["REAL", "Requirements", "check", "check_arch", "lacks_code"]

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
        """Return which two requirements contradict each other; empty if none do."""
        low, high, exact = self.minimum, self.maximum, self.expect
        pairs = (
            (low, high, "--min", "--max"),
            (low, exact, "--min", "--expect"),
            (exact, high, "--expect", "--max"),
        )
        for lower, upper, first, second in pairs:
            shared = min(len(lower), len(upper))
            if lower[:shared] > upper[:shared]:
                return f"{first} {dotted(lower)} and {second} {dotted(upper)} contradict each other"
        return ""


def check(found: LibrarySet, asked: Requirements) -> Iterator[Finding]:
    """Report the requirements that the libraries do not meet."""
    yield from _check_version(found, asked)
    if asked.cuda and found.cuda != asked.cuda:
        have = f"is for CUDA {found.cuda}" if found.cuda else "has an unknown CUDA version"
        text = f"the cuDNN of {found.folder} {have}, not for CUDA {asked.cuda}"
        fix = {"old": found.package, "package": f"nvidia-cudnn-cu{asked.cuda}"}
        yield finding(
            "unexpected-cuda", text, path=found.folder, cuda=found.cuda, expected=asked.cuda, fix=fix
        )
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
        yield finding("no-gpu-code", message, fix={"advice": found.reinstall}, **shown)
    elif any(have <= arch for have in ptx):
        message = f"{where} has no machine code for compute capability {arch / 10:.1f}, "
        message += f"only PTX of {max(ptx) / 10:.1f}"
        yield finding("jit-for-gpu", message, fix={"package": found.package}, **shown)
    else:
        dropped = 50 <= arch < min(sass)  # 9.11 dropped all GPUs before 7.5; CUDA 13 came later
        package = "'nvidia-cudnn-cu12<9.11'" if dropped else f"--upgrade {found.package}"
        advice = f"python -m pip install {package}"
        message = f"{where} has no code for compute capability {arch / 10:.1f}"
        yield finding("no-gpu-code", message, fix={"advice": advice}, **shown)


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
    return next((f"{each.message}; {each.fix}" for each in lacking), "")


# The compute capabilities of existing GPUs, for reports.
REAL = frozenset({50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121})


def _check_version(found: LibrarySet, asked: Requirements) -> Iterator[Finding]:
    have = found.version or ()
    for wanted, words, specifier, meets in (
        (asked.expect, "is not", "=={}.*", have[: len(asked.expect)] == asked.expect),
        (asked.minimum, "is older than", ">={}", have[: len(asked.minimum)] >= asked.minimum),
        (asked.maximum, "is newer than", "=={}.*", have[: len(asked.maximum)] <= asked.maximum),
    ):
        if wanted and not (have and meets):
            version, expected = write(found.version), dotted(wanted)
            text = f"cuDNN {version} of {found.folder} {words} {expected}"
            fix = {"package": f"'{found.package}{specifier.format(expected)}'"}
            yield finding(
                "unexpected-version", text, path=found.folder, version=version, expected=expected, fix=fix
            )
