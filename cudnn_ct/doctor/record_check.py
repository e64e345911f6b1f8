"""Compare the files of a cuDNN with the RECORD that pip wrote at installation."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .. import _files
from .finding import REINSTALL, Finding, finding
from .libraryset import LibrarySet

__all__ = ["Distribution", "RecordError", "check", "owners", "parse_record", "reinstall", "site_of"]

FEW = 3  # files that are reported one by one
SMALL = 1 << 20  # bytes: larger files are hashed only with --deep


class RecordError(Exception):
    """A RECORD cannot be parsed."""


@dataclass(frozen=True)
class Distribution:
    """An installed package that owns files of cuDNN."""

    name: str  # with the version, the name of its metadata folder
    version: str
    record: dict[str, tuple[str, int]]  # hash (algorithm=value) and size, or -1, by path in site-packages
    problem: str = ""  # why the record could not be read

    @property
    def label(self) -> str:
        """Its name and version."""
        return f"{self.name} {self.version}"


def site_of(folder: str) -> str:
    """Find the site-packages that contains a folder of libraries; empty if none does."""
    for _ in range(5):
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
        if any(name.endswith(".dist-info") for name in _files.names_in(folder)):
            return folder
    return ""


def owners(folder: str) -> list[Distribution]:
    """List the packages whose RECORD contains libraries of this folder."""
    site = site_of(folder)
    if not site:
        return []
    inside = os.path.relpath(folder, site)
    found = []
    for name in _files.names_in(site):
        if not name.endswith(".dist-info"):
            continue
        path, ours = os.path.join(site, name, "RECORD"), name.startswith("nvidia_cudnn_cu")
        record, problem = {}, ""
        try:
            text = _files.text_of(path)
            ours = ours or f"{inside}/libcudnn" in text
            record = parse_record(text) if ours else {}
        except (OSError, RecordError) as error:
            problem = f"{path}: {getattr(error, 'strerror', error)}"
        if ours:
            package, _, version = name.removesuffix(".dist-info").partition("-")
            found.append(Distribution(package.replace("_", "-"), version, record, problem))
    return found


def parse_record(text: str) -> dict[str, tuple[str, int]]:
    """Parse a RECORD, which has lines of path, hash and size; raise RecordError for other texts."""
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


def reinstall(found: list[Distribution], package: str) -> str:
    """Return the command that reinstalls these packages; if there are several, only ``package``."""
    names = sorted({owner.name for owner in found})
    if not names:
        return REINSTALL
    if len(names) > 1:
        return f"python -m pip uninstall -y {' '.join(names)} && python -m pip install {package}"
    return f"python -m pip install --force-reinstall --no-deps {names[0]}=={found[0].version}"


def check(found: LibrarySet, distributions: list[Distribution], deep: bool = False) -> Iterator[Finding]:
    """Compare every file with its record: the size, and the hash if the file is small or ``deep`` is set."""
    site = site_of(found.folder)
    inside = os.path.relpath(found.folder, site) + "/libcudnn"
    real = [owner for owner in distributions if any(path.startswith(inside) for path in owner.record)]
    if len(real) > 1:
        names = [owner.name for owner in real]
        both = " and ".join(owner.label for owner in real)
        fix = {"owners": " ".join(names), "package": found.package}
        text = f"{both} install into {found.folder}"
        yield finding("two-owners", text, path=found.folder, owners=names, fix=fix)
    missing = set(found.missing)
    for owner in distributions:
        if owner.problem:
            yield found.finding("broken-record", owner.problem, package=owner.name)
        rows = ((os.path.join(site, path), *row) for path, row in owner.record.items())
        different = [each for row in rows for each in _check_file(found, owner, *row, missing, deep)]
        for code in ("altered-file", "missing-file"):
            alike = [each for each in different if each.code == code]
            yield from alike if len(alike) <= FEW else [_many(found, owner, alike)]
    known = {os.path.join(site, path) for owner in distributions for path in owner.record}
    for name in _files.cudnn_files(found.folder) if real else ():
        if name.path not in known:
            yield finding("unowned-library", f"{name.path} does not belong to a package", path=name.path)


def _check_file(
    found: LibrarySet, owner: Distribution, path: str, expected: str, size: int, missing: set[str], deep: bool
) -> Iterator[Finding]:
    if not path.startswith(os.path.dirname(found.folder) + "/") or path.endswith((".py", ".pyc")):
        return  # its metadata, and files that Python writes
    shown: dict[str, Any] = {"path": path, "package": owner.label}
    try:
        have = os.stat(path).st_size
    except OSError:
        name = _files.library_name(path)
        if not name or name.part not in missing:
            yield found.finding("missing-file", f"{path} of {owner.label} does not exist", **shown)
        return
    if size >= 0 and have != size:
        text = f"{path} has {have:,} bytes, but {owner.label} installed {size:,}"
        yield found.finding("altered-file", text, size=have, expected=size, **shown)
    elif expected.startswith("sha256=") and (deep or have <= SMALL) and _hash(path) != expected:
        text = f"{path} differs from the file that {owner.label} installed"
        yield found.finding("altered-file", text, sha256=_hash(path), expected=expected, **shown)


def _many(found: LibrarySet, owner: Distribution, different: list[Finding]) -> Finding:
    """Combine the findings for many files of a package, as after a deletion or an overwrite."""
    paths, code = [each.evidence["path"] for each in different], different[0].code
    words = {"missing-file": "of {} do not exist", "altered-file": "differ from those that {} installed"}
    text = f"{len(paths)} files {words[code].format(owner.label)}, such as {paths[-1]}"
    return found.finding(code, text, files=paths, package=owner.label)


def _hash(path: str) -> str:
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        return error.strerror or "unreadable"
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
