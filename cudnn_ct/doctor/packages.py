"""Check the installed packages: the files that pip wrote, requirements of a cuDNN, and known bad versions."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import string
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import _files
from .._bad_combinations import rows, within
from .finding import Finding, finding
from .libraryset import LibrarySet, write
from .records import OURS, Distribution, site_of
from .repair import Need, meets

__all__ = ["check_dependents", "check_records", "known_bad", "needs", "requirements"]

FEW = 3  # files that are reported one by one
SMALL = 1 << 20  # bytes: larger files are hashed only with --deep
_BASE64 = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
_HEAD = 256 << 10  # characters: the fields of METADATA precede a long description


def check_records(found: LibrarySet, deep: bool = False) -> Iterator[Finding]:
    """Compare every file with its record: the size, and the hash if the file is small or ``deep`` is set."""
    site = site_of(found.folder)
    inside = os.path.relpath(found.folder, site) + "/libcudnn"
    real = [owner for owner in found.owners if any(path.startswith(inside) for path in owner.record)]
    if len(real) > 1:
        text = f"{' and '.join(owner.label for owner in real)} install into {found.folder}"
        yield found.finding("two-owners", text, path=found.folder, owners=[owner.name for owner in real])
    for owner in found.stale:
        text = f"{owner.metadata} does not describe the files of {found.folder}"
        yield found.finding("stale-metadata", text, path=owner.metadata)
    missing = set(found.missing)
    for owner in found.owners:
        if owner.problem:
            yield found.finding("broken-record", owner.problem, package=owner.name)
        rows = ((os.path.join(site, path), *row) for path, row in owner.record.items())
        different = [each for row in rows for each in _check_file(found, owner, *row, missing, deep)]
        for code in ("altered-file", "missing-file"):
            alike = [each for each in different if each.code == code]
            yield from alike if len(alike) <= FEW else [_many(found, owner, alike)]
    known = {os.path.join(site, path) for owner in found.owners for path in owner.record}
    names = list(_files.cudnn_files(found.folder)) if real else []
    owned = {name.part: name.path for name in names if name.path in known}
    for name in names:
        if name.path not in known and not _files.equal(name.path, owned.get(name.part, "")):
            yield finding("unowned-library", f"{name.path} does not belong to a package", path=name.path)


def check_dependents(found: LibrarySet) -> Iterator[Finding]:
    """Report the installed packages that need another cuDNN."""
    have = {owner.name: owner.version for owner in found.owners}
    package, version = next(iter(have.items()), (found.package, write(found.version)))
    disk = write(found.version) if found.version else version
    for need in filter(lambda need: need.path, found.needs):
        if need.package in have or not need.package:
            good = meets(have.get(need.package, disk), need.versions)
        else:  # no package owns this cuDNN: compare with the package that would contain it
            good = not found.owners and need.package == found.package
        if not good:
            text, fix = f"{need}, not {package} {version}", {"consumer": need.consumer.rpartition("-")[0]}
            if not need.achievable:
                fix["reinstall"] = f"python -m pip install --upgrade {fix['consumer']}"
            shown: dict[str, Any] = {"needs": need.package + need.versions, "version": version}
            yield found.finding("consumer-mismatch", text, fix=fix, path=need.path, **shown)


def needs(found: LibrarySet, sites: Sequence[str] = (), shared: bool = True) -> Iterator[Need]:
    """List the requirements of the packages that use this cuDNN; all of them if ``shared``."""
    own = site_of(found.folder)
    for site in dict.fromkeys(filter(None, [own, *sites])):
        names = [name for name in _files.names_in(site) if re.match(r"[^~].*\.dist-info$", name)]
        other = any(map(OURS.match, names)) and (site != own or found.jit)
        if other or not (site == own or shared or _root(site) == _root(own)):
            continue  # its packages use another cuDNN
        for name in names:
            consumer = name.removesuffix(".dist-info").replace("_", "-").lower()
            for package, versions in _wanted(os.path.join(site, name), consumer, found):
                yield Need(package, versions, consumer, os.path.join(site, name))


def known_bad(
    found: LibrarySet, cublas: str = "", archs: Sequence[int] = (), gpus: int = 0
) -> Iterator[Finding]:
    """Report known defects of a version, alone or combined with a libcublasLt and GPUs."""
    for row in rows("bad"):
        lacks = ("cublas" in row and not cublas) or not found.version or gpus < row.get("gpus", 0)
        if lacks or ("arch" in row and not any(within(f"{a // 10}.{a % 10}", row["arch"]) for a in archs)):
            continue
        if within(write(found.version), row.get("cudnn", {})) and within(cublas, row.get("cublas", {})):
            shown = {name: row[name] for name in ("source", "advice")}
            yield finding("known-bad", row["message"], path=found.folder, cublas=cublas, **shown)


def requirements(metadata: str, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the cuDNN wheels that a METADATA requires in an environment, and their versions."""
    head = metadata[:_HEAD].partition("\n\n")[0]
    wheel = r"^Requires-Dist:\s*(nvidia[-_.]cudnn[-_.]cu\d+)\b\s*\(?([^;)\n]{0,200})\)?\s*(?:;(.*))?$"
    for name, versions, marker in re.findall(wheel, head, re.M | re.I)[:20]:
        if not marker or _applies(marker, environment):
            yield re.sub(r"[-_.]+", "-", name).lower(), versions.replace(" ", "")


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
    bits = int.from_bytes(digest, "big") << 2  # the module base64 is linked with libz, which may be broken
    return "sha256=" + "".join(_BASE64[bits >> shift & 63] for shift in range(252, -1, -6))


def _wanted(folder: str, consumer: str, found: LibrarySet) -> Iterator[tuple[str, str]]:
    try:
        metadata = _files.text_of(os.path.join(folder, "METADATA"))
    except OSError:
        return
    arm = any(library.elf.machine == 183 for library in found.sound)
    python = re.search(r"/python(3\.\d+)/", folder)
    environment = {
        **_LINUX,
        "platform_machine": "aarch64" if arm else "x86_64",
        "python_version": python[1] if python else f"3.{sys.version_info.minor}",
    }
    yield from requirements(metadata, environment)
    name, _, version = consumer.rpartition("-")
    for row in rows("consumer"):
        if row["name"] == name and within(version, row):
            built = [("", row.get("versions", ""))]
            if "extra" in row:  # other wheels may replace those that it was built with
                built = list(requirements(metadata, {**environment, "extra": row["extra"]}))
            for _, versions in built:  # the last number is that of the wheel
                yield "", re.sub(r"(\d+\.\d+\.\d+)\.\d+", r"\1", versions)


def _root(site: str) -> str:
    """Return the root of the environment that a site-packages belongs to, or /usr for that of the system."""
    root = re.sub(r"/lib(64)?/python3[^/]*/(site|dist)-packages$", "", site)
    try:
        system = "include-system-site-packages = true" in _files.text_of(f"{root}/pyvenv.cfg")
    except OSError:
        system = root.endswith(("/usr", "/usr/local", "/.local"))
    return "/usr" if system or not site else root


def _applies(marker: str, environment: Mapping[str, str]) -> bool:
    """Evaluate the marker of a requirement; one that cannot be read does not apply."""

    def holds(left: str, symbol: str, right: str) -> bool:
        left, right = (environment.get(word, word.strip("'\"")) for word in (left, right))
        if "in" in symbol:
            return (left in right) == (symbol == "in")
        return meets(left, symbol + right) if left[:1].isdigit() else (left == right) == (symbol == "==")

    def truth(node: ast.expr) -> bool:
        if isinstance(node, ast.BoolOp):
            return (all if isinstance(node.op, ast.And) else any)(map(truth, node.values))
        return isinstance(node, ast.Constant) and node.value is True

    text = _COMPARISON.sub(lambda each: str(holds(*each.groups())), marker[:1000])
    try:
        return truth(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


_COMPARISON = re.compile(r"""(\w+|'[^']*'|"[^"]*")\s*(not in|in|[<>=!~]=?=?)\s*(\w+|'[^']*'|"[^"]*")""")
_LINUX = {
    "os_name": "posix", "sys_platform": "linux", "platform_system": "Linux", "extra": "",
    "implementation_name": "cpython", "platform_python_implementation": "CPython",
}  # fmt: skip
