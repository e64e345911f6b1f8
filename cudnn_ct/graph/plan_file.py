"""The file format of compiled plans: a header with a hash, the key, facts, and cuDNN's JSON of a plan.

A file is a sequence of entries: one in a file of the store, many in an export. An entry is::

    {"format": "cudnn_ct plan 1", "size": 76311, "sha256": "..."}
    {"key": "...", "facts": {...}}
    cuDNN's JSON of the plan; empty for the choice of an engine

``size`` and ``sha256`` are those of all that follows the first line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, NamedTuple

FORMAT = "cudnn_ct plan 1"
DEVICE, DESCRIPTION = "device", "description"  # origins of an entry
MAX_HEADER = 1024  # bytes


class StoredPlan(NamedTuple):
    """A compiled plan, or the choice of an engine for a problem."""

    key: str  # all that it depends on: versions, the GPU, the graph or problem with strides and attributes
    facts: dict[str, Any]  # the candidate as JSON, and its ``origin``: the device that selected it
    text: bytes = b""  # cuDNN's JSON of the plan; empty for a choice

    @property
    def from_device(self) -> bool:
        """Whether a device of the kind in the key selected the engine; older entries do not say so."""
        return self.facts.get("origin") == DEVICE


def encode(entry: StoredPlan) -> bytes:
    """Return the bytes of an entry."""
    facts = json.dumps({"key": entry.key, "facts": entry.facts}, allow_nan=False)
    body = facts.encode() + b"\n" + entry.text
    header = {"format": FORMAT, "size": len(body), "sha256": sha256(body).hexdigest()}
    return json.dumps(header).encode() + b"\n" + body


def decode(content: bytes) -> Iterator[StoredPlan | str]:
    """Yield entries, or why they must not be used; raise ValueError if a header is missing."""
    place = 0
    while place < len(content):
        line, found, _ = content[place : place + MAX_HEADER].partition(b"\n")
        size, digest, written_by = _header(line) if found else (None, "", "")
        if size is None:
            raise ValueError(f"expected an entry of {FORMAT!r} at byte {place}: got {bytes(line[:40])!r}")
        place += len(line) + 1
        body = content[place : place + size]
        place += size
        if written_by != FORMAT:
            yield f"the format is {written_by!r}, expected {FORMAT!r}"
        elif len(body) != size or sha256(body).hexdigest() != digest:
            yield "the hash does not match: the file is damaged or was changed"
        else:
            yield _entry(body)


def _header(line: bytes) -> tuple[int | None, str, str]:
    """Return the size, the hash and the format of an entry; the size is None if the line is not a header."""
    try:
        header = json.loads(line)
        size, digest, written_by = header["size"], header["sha256"], header["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, "", ""
    right = type(size) is int and size >= 0 and isinstance(digest, str) and isinstance(written_by, str)
    return (size if right else None), digest, written_by


def _entry(body: bytes) -> StoredPlan | str:
    line, _, text = body.partition(b"\n")
    try:
        found = json.loads(line)
        key, facts = found["key"], found["facts"]
        json.dumps(facts, allow_nan=False)
        key.encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "the entry is malformed"
    if not isinstance(facts, dict):
        return "the entry is malformed"
    return StoredPlan(key, facts, text)
