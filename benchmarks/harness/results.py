"""Records of measurements, and the files that store them.

A record is a dict with a ``section`` and an ``id``, which identify it. ``times`` has the time of each
contender, and ``errors`` the reason for each missing time. ``skipped`` is the reason if no contender was
timed. A file of rows has one record per line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]

WHOLE = '{\n "benchmark": '  # the start of a whole result; no line of a file of rows is a single bracket


class Results:
    """Records in memory and, with a path, in an append-only file."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        there = path if path is not None and path.exists() else None
        self.records = read(there) if there else []
        self._settled: dict[tuple[str, str], set[str]] = {}
        self._skipped: set[tuple[str, str]] = set()
        for record in self.records:
            self._note(record)
        if there and there.stat().st_size and not there.read_bytes().endswith(b"\n"):
            self._append("\n")  # the last line is incomplete

    def has(self, section: str, key: str, wanted: Sequence[str] = ()) -> bool:
        """Return whether a record was skipped, or has a time or an error of each wanted contender."""
        if (section, key) in self._skipped:
            return True
        settled = self._settled.get((section, key))
        return settled is not None and settled.issuperset(wanted)

    def add(self, record: Record) -> None:
        """Add a record, and append it to the file at once."""
        self.records.append(record)
        self._note(record)
        self._append(json.dumps(record, default=str) + "\n")

    def merged(self) -> list[Record]:
        """Return one record for each section and id."""
        return merged(self.records)

    def _note(self, record: Record) -> None:
        key = (record["section"], record["id"])
        self._settled.setdefault(key, set()).update(record.get("times", ()), record.get("errors", ()))
        if "skipped" in record:
            self._skipped.add(key)

    def _append(self, text: str) -> None:
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text)


def room_for(section: str, key: str, **facts: Any) -> Record:
    """Return a new record with empty fields for the results."""
    return {"section": section, "id": key, **facts, "times": {}, "first_ms": {}, "errors": {}}


def read(path: Path) -> list[Record]:
    """Read a file of rows, or a whole result. Skip incomplete lines."""
    text = path.read_text(encoding="utf-8")
    if text.startswith(WHOLE):
        return list(json.loads(text)["records"])
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return [record for record in found if isinstance(record, dict) and "section" in record]


def merged(records: Iterable[Record]) -> list[Record]:
    """Return one record for each section and id: the one with the most times, or the latest of equals."""
    best: dict[tuple[str, str], Record] = {}
    for record in records:
        key = (record["section"], record["id"])
        if key not in best or len(record.get("times", ())) >= len(best[key].get("times", ())):
            best[key] = record
    return list(best.values())


def of_section(records: list[Record], section: str) -> list[Record]:
    """Return the records of one section that have times."""
    return [record for record in records if record["section"] == section and record.get("times")]


GPU_TIME = "microseconds of GPU time per call, medians; ratios are ours / theirs"


def write_whole(
    path: Path, benchmark: str, records: list[Record], bars: Iterable[Record] = (), unit: str = GPU_TIME
) -> None:
    """Write all records to one JSON file, one record per line."""
    about = [record for record in records if record["section"] == "about"]
    head = {
        "about": [{k: v for k, v in one.items() if k not in ("section", "id")} for one in about],
        "unit": unit,
        "bars": list(bars),
    }
    lines = [f' "{key}": {json.dumps(value)}' for key, value in head.items()]
    body = ",\n".join("  " + json.dumps(record, default=str) for record in records)
    text = ",\n".join([WHOLE + json.dumps(benchmark), *lines, f' "records": [\n{body}\n ]'])
    path.write_text(text + "\n}\n", encoding="utf-8")


def explain(error: BaseException) -> str:
    """Return an error as text of at most 2000 characters."""
    return f"{type(error).__name__}: {error}"[:2000]
