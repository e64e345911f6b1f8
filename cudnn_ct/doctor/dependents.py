"""Check which cuDNN the installed packages need, and find combinations that are known to be bad."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterator

from .. import _files
from .._bad_combinations import rows, version_numbers, within
from .finding import Finding, finding
from .libraryset import LibrarySet, write
from .record_check import Distribution, site_of

__all__ = ["check", "known_bad", "meets", "requirements"]

_HEAD = 256 << 10  # characters: the fields of METADATA precede a long description


def check(found: LibrarySet, owners: list[Distribution]) -> Iterator[Finding]:
    """Report the installed packages that need another cuDNN."""
    site = site_of(found.folder)
    have = {owner.name: owner.version for owner in owners}
    package, version = next(iter(have.items()), (found.package, write(found.version)))
    for name in _files.names_in(site) if site else ():
        if not name.endswith(".dist-info"):
            continue
        consumer = name.removesuffix(".dist-info").replace("_", "-").lower()
        for requirement, wanted in _wanted(os.path.join(site, name), consumer):
            if requirement in have:
                good = meets(have[requirement], wanted)
            elif requirement == "cudnn":
                good = _as_built(version, wanted)
            else:  # no package owns this cuDNN: compare with the package that would contain it
                good = not owners and requirement == found.package
            if not good:
                wheel = f"{package}=={wanted}.*" if requirement == "cudnn" else f"{requirement}{wanted}"
                fix = {"requirement": wheel, "consumer": consumer.rpartition("-")[0]}
                text = f"{consumer} needs {requirement} {wanted or '(any)'}, not {package} {version}"
                where, needs = os.path.join(site, name), f"{requirement}{wanted}"
                yield finding("consumer-mismatch", text, path=where, needs=needs, version=version, fix=fix)


def known_bad(
    found: LibrarySet, cublas: str = "", archs: tuple[int, ...] = (), gpus: int = 0
) -> Iterator[Finding]:
    """Report known defects of a version, alone or combined with a libcublasLt and GPUs."""
    for row in rows("bad"):
        lacks = ("cublas" in row and not cublas) or not found.version or gpus < row.get("gpus", 0)
        if lacks or ("arch" in row and not any(within(f"{a // 10}.{a % 10}", row["arch"]) for a in archs)):
            continue
        if within(write(found.version), row.get("cudnn", {})) and within(cublas, row.get("cublas", {})):
            shown = {name: row[name] for name in ("source", "advice")}
            yield finding("known-bad", row["message"], path=found.folder, cublas=cublas, **shown)


def requirements(metadata: str) -> Iterator[tuple[str, str]]:
    """Yield the cuDNN wheels that a METADATA requires without an extra, and their versions."""
    head = metadata[:_HEAD].partition("\n\n")[0]
    for name, versions, marker in re.findall(
        r"^Requires-Dist:\s*(nvidia[-_.]cudnn[-_.]cu\d+)\b\s*\(?([^;)\n]*)\)?\s*(?:;(.*))?$",
        head,
        re.M | re.I,
    ):
        if "extra" not in marker:
            yield re.sub(r"[-_.]+", "-", name).lower(), versions.replace(" ", "")


def meets(version: str, specifier: str) -> bool:
    """Return whether a version meets a specifier such as ``>=9.1,<10``.

    Clauses that cannot be parsed count as met, to avoid false alarms.
    """
    return all(_one(version, clause.strip()) for clause in specifier.split(",") if clause.strip())


def _wanted(folder: str, consumer: str) -> Iterator[tuple[str, str]]:
    try:
        yield from requirements(_files.text_of(os.path.join(folder, "METADATA")))
    except OSError:
        return
    name, _, version = consumer.rpartition("-")
    for row in rows("consumer"):
        if row["name"] == name and within(version, row):
            yield "cudnn", row["cudnn"]


def _one(version: str, clause: str) -> bool:
    match = re.fullmatch(r"(===|==|!=|~=|<=|>=|<|>)\s*v?(\d+(?:\.\d+)*)(\.\*)?", clause)
    if not match:
        return True
    symbol, text, star = match.groups()
    wanted = version_numbers(text)
    have = version_numbers(version)
    if star or symbol == "~=":
        same = (
            have[: len(wanted)] == wanted
            if star
            else have[: len(wanted) - 1] == wanted[:-1] and have >= wanted
        )
        return same is (symbol != "!=")
    size = max(len(have), len(wanted))
    have += (0,) * (size - len(have))
    wanted += (0,) * (size - len(wanted))
    return bool(_COMPARE[symbol](have, wanted))


_COMPARE = {
    "==": operator.eq, "===": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge,
    "<": operator.lt, ">": operator.gt,
}  # fmt: skip


def _as_built(version: str, built: str) -> bool:
    """Apply cuDNN's rule: the same major version, and the same or a newer minor version."""
    have, wanted = version_numbers(version), version_numbers(built)
    return have[:1] == wanted[:1] and have[: len(wanted)] >= wanted
