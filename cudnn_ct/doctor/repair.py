"""Choose the fix for a cuDNN: the same for all findings about it."""

from __future__ import annotations

import operator
import os
import re
from typing import TYPE_CHECKING, NamedTuple

from .. import _files
from .._bad_combinations import version_numbers
from .._libraries import dotted
from . import pip, records
from .finding import AGAIN, Fix

if TYPE_CHECKING:
    from .libraryset import LibrarySet


TOOLKIT = "cuda-toolkit"  # a package whose extras require the libraries of one CUDA

# The extras that require the libraries of CUDA, by the names of their wheels without a suffix.
EXTRAS = {"nvidia-cublas": "cublas", "nvidia-cuda-nvrtc": "nvrtc", "nvidia-cuda-runtime": "cudart"}


class Need(NamedTuple):
    """A requirement for a cuDNN."""

    package: str  # the wheel; empty if the version alone counts
    versions: str  # a specifier such as ``>=9.1,<10``
    consumer: str  # the package, with its version, or the flag that requires it
    path: str = ""  # its metadata
    built: bool = False  # whether it was built for such a cuDNN, which any package may provide
    optional: bool = False  # whether only a part of the package uses cuDNN

    @property
    def cuda(self) -> int:
        """The CUDA major version of the wheel; 0 if the version alone counts."""
        return int(self.package.rpartition("-cu")[2]) if self.package else 0

    @property
    def achievable(self) -> bool:
        """Whether a fix can meet it: not an undeclared requirement of a program for cuDNN 8."""
        return bool(self.package) or consistent([self.versions, ">=9"])

    def __str__(self) -> str:
        return f"{self.consumer} needs {self.package or 'cudnn'} {self.versions or '(any)'}"


def fix(found: LibrarySet) -> Fix:
    """Return the fix that installs this cuDNN again, in the version that all packages require."""
    have = {owner.name: owner.version for owner in found.owners}
    package, needs = target(found), [need for need in found.needs if need.achievable]
    specifiers = list(dict.fromkeys(need.versions for need in needs if need.versions))
    if divided(found):
        return Fix(f"use separate environments: {' and '.join(map(str, needs))}")
    unowned = f"{dotted(found.version)}.*" if found.version and not have else ""
    version = have.get(package, unowned if package == found.package else "")
    other = version and not package.startswith("nvidia-cudnn")  # such as torch, which may contain a cuDNN
    keep = bool(other or (version and all(meets(version, each) for each in specifiers)))
    site = records.site_of(found.folder)
    pin = package + (f"=={version}" if keep else ",".join(tightest(specifiers)))
    if not have and not found.stale and (keep or not needs):
        return AGAIN
    if not site:  # of an installer or of the system
        return Fix(f"install {pin}")
    required = any(need.path and need.package == package for need in needs)
    apart = required and found.jit != ("-jit-" in package)  # wheels of other sets have another folder
    manager = pip.of(site, found.root, found.windows)
    others = sorted(have) if have.keys() - {package} and not apart else []
    broken = {owner.name for owner in found.owners if owner.problem}  # pip cannot uninstall them
    delete = [pip.inside(path, found.root) for path in _removal(found, manager.loose)]
    text = f"install {pin}{' again' if package in have and keep else ''}"
    if others and set(others) != {package}:
        text += f" in place of {' and '.join(each for each in others if each != package)}"
    if manager.loose and other:
        return Fix(text)
    if not others and not delete:
        return Fix(text, manager.install(pin, keep))
    suffix = package.rpartition("-")[2]
    extras = EXTRAS if package.startswith("nvidia-cudnn") else ()  # others, such as torch, are kept
    wheels = [name + (f"-{suffix}" if int(suffix[2:]) < 13 else "") for name in extras]
    lacking = {wheel: companion(found, wheel) for wheel in wheels if not records.installed(site, wheel)}
    pins = dict.fromkeys(each for wheel, each in lacking.items() if each not in ("", wheel))
    commands = manager.replace(pin, delete, [each for each in others if each not in broken], keep, [*pins])
    blas = lacking.get(wheels[0], "") if wheels else ""
    if manager.loose and package not in have and blas:  # no pip adds what another CUDA needs
        if blas.startswith(TOOLKIT):  # which is only known after its installation
            text += f", and {wheels[0]} in the version of {blas}"
        else:
            commands += manager.install(blas)
    return Fix(text, commands)


def companion(found: LibrarySet, wheel: str) -> str:
    """Return the requirement that installs a library of CUDA in the version that all packages require.

    It names cuda-toolkit if only the extras of the required one have the version. Empty if no version suits.
    """
    name, _, suffix = wheel.partition("-cu1")
    cuda = int(f"1{suffix}") if suffix else 13
    kits = [
        need
        for need in found.others
        if EXTRAS.get(name) in re.split(r"[\[\],]", need.package)[1:]
        and consistent([need.versions, f">={cuda},<{cuda + 1}"])
    ]
    needs = kits or [need for need in found.others if need.package == wheel]
    specifiers = list(dict.fromkeys(need.versions for need in needs))
    pin = (kits[0].package if kits else wheel) + ",".join(filter(None, specifiers))
    return pin if consistent(specifiers) else ""


def divided(found: LibrarySet) -> bool:
    """Return whether no cuDNN can meet all requirements, so that no command may replace it."""
    specifiers = [need.versions for need in found.needs if need.achievable]
    return not target(found) or not consistent(specifiers)


def target(found: LibrarySet) -> str:
    """Choose the required wheel, else the installed one for the CUDA on disk; empty if two are required."""
    wanted = {need.package for need in found.needs if need.package}
    names = [owner.name for owner in found.owners or found.stale]
    usual = found.package if found.package in names or not names else names[0]
    return "" if len(wanted) > 1 else next(iter(wanted), usual)


def meets(version: str, specifier: str) -> bool:
    """Return whether a version meets a specifier such as ``>=9.1,<10``."""
    # Clauses that cannot be parsed count as met, to avoid false alarms.
    return all(_one(version, clause.strip()) for clause in specifier.split(",") if clause.strip())


def consistent(specifiers: list[str]) -> bool:
    """Return whether a version can meet all specifiers."""
    # If one can, one of their bounds does, or a version shortly after a bound.
    bounds = ["0", "9", *re.findall(r"\d+(?:\.\d+)*", " ".join(specifiers))]
    candidates = [*bounds, *(f"{bound}.99999" for bound in bounds)]
    return any(all(meets(version, each) for each in specifiers) for version in candidates)


def tightest(specifiers: list[str]) -> list[str]:
    """Drop the bounds that another one of the same kind implies, such as <9.28 next to <9.11."""
    bounds = [re.fullmatch(r"(<|>=)([\d.]+)", each) for each in specifiers]
    numbers = [(bound[1], version_numbers(bound[2])) if bound else ("", ()) for bound in bounds]
    best = {symbol: [n for s, n in numbers if s == symbol] for symbol in ("<", ">=")}
    kept = {("<", min(best["<"], default=())), (">=", max(best[">="], default=())), ("", ())}
    return [each for each, number in zip(specifiers, numbers) if number in kept]


def _removal(found: LibrarySet, loose: bool) -> list[str]:
    """List the files that pip does not delete: metadata, and libraries that no other metadata records."""
    recorded = {path for owner in found.owners for path in owner.record}
    paths = [owner.metadata for owner in found.owners if owner.metadata and (owner.problem or loose)]
    for owner in found.stale:
        site = os.path.dirname(owner.metadata)
        left = (os.path.join(site, path) for path in owner.record if recorded and path not in recorded)
        # A record may contain any path.
        ours = (path for path in left if _files.library_name(path) and os.path.dirname(path) == found.folder)
        paths += [owner.metadata, *filter(os.path.lexists, ours)]
    site = records.site_of(found.folder)
    in_wheel = os.path.relpath(found.folder, site or "/") in records.WHEEL_FOLDERS
    if loose or (in_wheel and any(owner.problem for owner in found.owners)):  # pip deletes none of them
        # They may be links to those of another folder, which must not be overwritten.
        majors = sorted({9, *(name.major for name in _files.cudnn_files(found.folder) if name.major)})
        paths += [os.path.join(found.folder, "../include")]
        if not _files.dangling(found.folder, found.root):  # rm -f fails below a link in a circle
            paths += [os.path.join(found.folder, f"libcudnn*.so.{major}") for major in majors]
    return [*paths, *(path for path in found.leftovers if path not in paths)]


def _one(version: str, clause: str) -> bool:
    match = re.fullmatch(r"(===|==|!=|~=|<=|>=|<|>)\s*v?(\d+(?:\.\d+)*)(\.\*)?", clause)
    if not match:
        return True
    symbol, text, star = match.groups()
    have, wanted = version_numbers(version), version_numbers(text)
    if symbol == "~=":
        return have[: len(wanted) - 1] == wanted[:-1] and have >= wanted
    size = len(wanted) if star else max(len(have), len(wanted))
    have, wanted = ((numbers + (0,) * size)[:size] for numbers in (have, wanted))
    return bool(_COMPARE[symbol](have, wanted))


_COMPARE = {
    "==": operator.eq, "===": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge,
    "<": operator.lt, ">": operator.gt,
}  # fmt: skip
