"""Holds the files of a cuDNN against what pip wrote down when it installed them."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from . import files
from .checks import missing_parts
from .finding import REINSTALL, Finding, finding
from .libraryset import LibrarySet

__all__ = ["Distribution", "RecordError", "check", "owners", "parse_record", "reinstall", "site_of"]

SMALL = 1 << 20  # bytes: what is not larger is hashed always, what is larger with --deep


class RecordError(Exception):
    """A RECORD is not a list of files."""


@dataclass(frozen=True)
class Distribution:
    """An installed package that brought files of cuDNN.

    Attributes
    ----------
    name, version : str
        As its folder of metadata says.
    record : dict
        For each path relative to site-packages its hash (algorithm=value) and size; -1 for unknown.
    problem : str
        Why the record could not be read; empty when it could.
    """

    name: str
    version: str
    record: dict[str, tuple[str, int]]
    problem: str = ""


def site_of(folder: str) -> str:
    """Find the site-packages that a folder of libraries lies in; empty when it lies in none."""
    for _ in range(5):
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
        if any(name.endswith(".dist-info") for name in files.names_in(folder)):
            return folder
    return ""


def owners(folder: str) -> list[Distribution]:
    """List the packages that list libraries of this folder among their files."""
    site = site_of(folder)
    if not site:
        return []
    inside = os.path.relpath(folder, site)
    found = []
    for name in files.names_in(site):
        if not name.endswith(".dist-info"):
            continue
        try:
            text = files.text_of(os.path.join(site, name, "RECORD"))
        except OSError as error:
            if name.startswith("nvidia_cudnn_cu"):
                found.append(_distribution(name, {}, f"{site}/{name}/RECORD: {error.strerror}"))
            continue
        if f"{inside}/libcudnn" not in text and not name.startswith("nvidia_cudnn_cu"):
            continue
        try:
            found.append(_distribution(name, parse_record(text)))
        except RecordError as error:
            found.append(_distribution(name, {}, f"{site}/{name}/RECORD: {error}"))
    return found


def parse_record(text: str) -> dict[str, tuple[str, int]]:
    """Read a RECORD: lines of path, hash and size.

    Raises
    ------
    RecordError
        When it is not such a list.
    """
    record = {}
    try:
        for number, row in enumerate(csv.reader(text.splitlines(), strict=True), 1):
            if not row:
                continue
            if len(row) != 3 or not row[0]:
                raise RecordError(f"line {number} has {len(row)} fields")
            if row[2] and not re.fullmatch(r"\d{1,18}", row[2], re.ASCII):
                raise RecordError(f"line {number} has the size {row[2][:20]!r}")
            record[row[0]] = (row[1], int(row[2] or -1))
    except csv.Error as error:
        raise RecordError(str(error)) from None
    if not record:
        raise RecordError("is empty")
    return record


def reinstall(found: list[Distribution]) -> str:
    """Write the command that installs the files of these packages again."""
    names = sorted({owner.name for owner in found})
    if not names:
        return REINSTALL
    if len(names) > 1:
        return f"python -m pip uninstall -y {' '.join(names)} && python -m pip install {names[0]}"
    return f"python -m pip install --force-reinstall --no-deps {names[0]}=={found[0].version}"


def check(found: LibrarySet, distributions: list[Distribution], deep: bool = False) -> Iterator[Finding]:
    """Compare every file with its record: size, and hash where the file is small or ``deep`` is set."""
    site = site_of(found.folder)
    inside = os.path.relpath(found.folder, site) + "/libcudnn"
    real = [owner for owner in distributions if any(path.startswith(inside) for path in owner.record)]
    if len(real) > 1:
        names = [owner.name for owner in real]
        both = " and ".join(f"{owner.name} {owner.version}" for owner in real)
        yield finding(
            "two-owners",
            f"{both} install into {found.folder}",
            path=found.folder,
            owners=names,
            fix={"owners": " ".join(names), "package": f"nvidia-cudnn-cu{found.cuda or 12}"},
        )
    said = {part.name for part in missing_parts(found)}
    for owner in distributions:
        if owner.problem:
            yield finding(
                "broken-record", owner.problem, package=owner.name, fix={"reinstall": found.reinstall}
            )
        for path, (expected, size) in owner.record.items():
            yield from _check_file(found, os.path.join(site, path), owner, expected, size, said, deep)
    known = {os.path.join(site, path) for owner in distributions for path in owner.record}
    for name in files.cudnn_files(found.folder) if real else ():
        if name.path not in known:
            yield finding(
                "unowned-library",
                f"{name.path} is in no list of a package",
                path=name.path,
                fix={"path": name.path},
            )


def _check_file(
    found: LibrarySet, path: str, owner: Distribution, expected: str, size: int, said: set[str], deep: bool
) -> Iterator[Finding]:
    if not path.startswith(os.path.dirname(found.folder) + "/") or path.endswith((".py", ".pyc")):
        return  # its metadata, and what Python writes itself
    again = {"reinstall": found.reinstall}
    package = f"{owner.name} {owner.version}"
    try:
        have = os.stat(path).st_size
    except OSError:
        match = files.CUDNN_FILE.fullmatch(os.path.basename(path))
        if not match or (match["part"] or "") not in said:
            yield finding(
                "missing-file", f"{path} of {package} is gone", path=path, package=package, fix=again
            )
        return
    if have == 0 == size:
        return
    if size >= 0 and have != size:
        yield finding(
            "altered-file",
            f"{path} has {have:,} bytes, and {package} installed {size:,}",
            path=path,
            size=have,
            expected=size,
            package=package,
            fix=again,
        )
    elif expected.startswith("sha256=") and (deep or have <= SMALL) and _hash(path) != expected:
        yield finding(
            "altered-file",
            f"{path} has another content than {package} installed",
            path=path,
            sha256=_hash(path),
            expected=expected,
            package=package,
            fix=again,
        )


def _hash(path: str) -> str:
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        return error.strerror or "unreadable"
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _distribution(folder: str, record: dict[str, tuple[str, int]], problem: str = "") -> Distribution:
    name, _, version = folder.removesuffix(".dist-info").partition("-")
    return Distribution(name.replace("_", "-"), version, record, problem)
