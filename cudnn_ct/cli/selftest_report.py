"""The results of a selftest as a table, as JSON and as a JUnit report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

from .table import Column

__all__ = ["COLUMNS", "FAILED", "OK", "SKIPPED", "Outcome", "as_dict", "as_junit", "cells", "count"]

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
SCHEMA = 1  # increased when a key is removed or changes its meaning

COLUMNS: tuple[Column, ...] = (
    ("op", False), ("dtype", False), ("layout", False), ("algorithm", False),
    ("error", True), ("tolerance", True), ("verdict", False), ("", False),
)  # fmt: skip


class Outcome(NamedTuple):
    """The result of one row.

    ``error`` is the largest difference divided by the largest element; None if nothing was compared.
    ``detail`` has the failure, or the details of a check.
    """

    name: str
    verdict: str
    dtype: str = ""
    layout: str = ""
    algorithm: str = ""
    error: float | None = None
    tolerance: float | None = None
    detail: str = ""
    seconds: float = 0.0


def cells(row: Outcome) -> list[str]:
    """Return the cells of ``COLUMNS``."""
    numbers = ("-" if number is None else f"{number:.1e}" for number in (row.error, row.tolerance))
    return [row.name, row.dtype, row.layout, row.algorithm, *numbers, row.verdict, row.detail]


def as_dict(rows: Sequence[Outcome], **about: Any) -> dict[str, Any]:
    """Return all values for JSON. An infinite or NaN error is None; its row has failed."""
    counts = {verdict: count(rows, verdict) for verdict in (OK, FAILED, SKIPPED)}
    return {"schema": SCHEMA, **about, **counts, "rows": [_plain(row) for row in rows]}


def count(rows: Sequence[Outcome], verdict: str) -> int:
    """Count the rows with a verdict."""
    return sum(row.verdict == verdict for row in rows)


def as_junit(rows: Sequence[Outcome], reason: str = "") -> bytes:
    """Format a JUnit report; ``reason``, why no operation was run, becomes a skipped test."""
    skipped = count(rows, SKIPPED) + bool(reason)
    numbers = {"tests": len(rows) + bool(reason), "failures": count(rows, FAILED), "skipped": skipped}
    suite = ElementTree.Element(
        "testsuite",
        {"name": "cudnn-ct selftest", "errors": "0", **{name: str(n) for name, n in numbers.items()}},
        time=f"{sum(row.seconds for row in rows):.3f}",
    )
    for row in rows:
        name = " ".join(filter(None, (row.name, row.dtype, row.layout)))
        case = ElementTree.SubElement(
            suite, "testcase", classname="cudnn_ct.selftest", name=name, time=f"{row.seconds:.3f}"
        )
        if row.verdict == FAILED:
            ElementTree.SubElement(case, "failure", message=_printable(row.detail)).text = _numbers(row)
        elif row.verdict == SKIPPED:
            ElementTree.SubElement(case, "skipped", message=_printable(row.detail))
    if reason:
        case = ElementTree.SubElement(suite, "testcase", classname="cudnn_ct.selftest", name="operations")
        ElementTree.SubElement(case, "skipped", message=_printable(reason))
    ElementTree.indent(suite)
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)) + b"\n"


def _plain(row: Outcome) -> dict[str, Any]:
    finite = row.error is not None and row.error < float("inf")
    return row._asdict() | {"error": row.error if finite else None, "seconds": round(row.seconds, 4)}


def _numbers(row: Outcome) -> str:
    return f"algorithm: {_printable(row.algorithm)}; error {row.error}, tolerance {row.tolerance}"


def _printable(words: str) -> str:
    """Replace the characters that XML does not allow: a message may quote any text."""
    return "".join(c if c.isprintable() else " " for c in words)
