"""Facts about versions of cuDNN, engines and GPUs: the rows of facts.json, and those that a user adds.

`legal` applies them to problems. docs/facts.md describes the fields. The doctor reads the same file
through `cudnn_doctor.read.versions`.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from cudnn_doctor.read.files import MAX_TEXT, contents, how_to_close, resource
from cudnn_doctor.read.versions import table, version_numbers, within

from ._config import config
from .errors import format_version

KINDS = (
    *("reject", "engine", "first_choice", "rewrite", "modes", "unordered"),
    *("first", "last", "also", "stored", "warn", "inform"),
)
EFFECTS = (
    *("wrong", "inaccurate", "crash", "hang", "unsupported", "unstated", "nondeterministic", "slow"),
    *("memory", "sanitizer"),
)
FULL = "full"


Arch = tuple[tuple[int, ...], tuple[int, ...]]
"""A range of compute capabilities: the first one, and the first one after it; ``()`` sets no limit."""


class FactsError(ValueError):
    """The file that ``CUDNN_CT_FACTS`` names is unsafe or malformed."""


class Target(NamedTuple):
    """A cuDNN, its set of libraries, and a GPU, for which facts are selected."""

    version: int
    libraries: str = FULL
    # None stands for all GPUs, (0, 0) for an unknown one, to which no fact about some GPUs applies.
    capability: tuple[int, int] | None = None


class Fact(NamedTuple):
    """A row of facts.json that applies to an operation; ``when`` are names in `legal.conditions`."""

    name: str
    kind: str
    when: tuple[str, ...]
    effect: str
    message: str
    advice: str
    source: str
    arch: Arch
    row: Mapping[str, Any]

    @property
    def reason(self) -> str:
        """Why something is rejected: the message, what to do, and the source of the row."""
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.message}{advice}{f' ({self.source})' if self.source else ''}"


@lru_cache(maxsize=512)
def facts(kind: str, operation: str, target: Target) -> tuple[Fact, ...]:
    """Return the rows of a kind about an operation that apply to a target, the user's rows first."""
    version, libraries, gpu = target
    rows = _of_operation(kind, operation, version, libraries)
    return tuple(fact for fact in rows if gpu is None or on_gpu(gpu, fact.arch))


def on_gpu(capability: tuple[int, int], arch: Arch) -> bool:
    """Return whether a GPU is in a range of compute capabilities; an unknown one, (0, 0), is in no range."""
    low, high = arch
    return (not low or capability >= low) and (not high or (0, 0) < capability < high)


@lru_cache(maxsize=512)
def _of_operation(kind: str, operation: str, version: int, libraries: str) -> tuple[Fact, ...]:
    text = format_version(version)
    return tuple(
        _fact(row)
        for row in _rows()
        if row["kind"] == kind
        and (operation in row["operations"] or "all" in row["operations"])
        and row.get("libraries", libraries) == libraries
        and within(text, row.get("cudnn", {}))
    )


def _fact(row: Mapping[str, Any]) -> Fact:
    low, high = (version_numbers(row.get("arch", {}).get(bound, "")) for bound in ("from", "before"))
    texts = {name: row.get(name, "") for name in ("message", "advice", "source")}
    when = tuple(row["when"])
    return Fact(row["name"], row["kind"], when, row["effect"], **texts, arch=(low, high), row=row)


_ignored: dict[str, bool] = {}  # for measurements: a name, and whether the fact would have applied


def ignore(names: Collection[str]) -> None:
    """Ignore the facts of these names, and no others; raise ValueError for other names."""
    if unknown := set(names) - {row["name"] for row in _rows()}:
        raise ValueError(f"names are not those of facts: got {', '.join(sorted(unknown))}")
    _ignored.clear()
    _ignored.update(dict.fromkeys(names, False))


def ignores(name: str) -> bool:
    """Return whether the fact of a name, which holds for a problem, is ignored, and note that it held."""
    if name in _ignored:
        _ignored[name] = True
        return True
    return False


def ignored_that_held() -> set[str]:
    """Return the names of ignored facts that held for a problem since the last call."""
    found = {name for name, held in _ignored.items() if held}
    _ignored.update(dict.fromkeys(found, False))
    return found


@lru_cache(maxsize=1)
def _rows() -> tuple[Mapping[str, Any], ...]:
    return (*user_facts(), *(row for row in table() if row["kind"] in KINDS))


@lru_cache(maxsize=1)
def digest() -> str:
    """Return a short hash of all facts; choices that were made with other facts are not reused."""
    text = resource("cudnn_ct/facts.json") + json.dumps([*map(dict, user_facts())])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def summary() -> str:
    """Return the number of facts and their hash, and the file of a user, in one line."""
    try:
        own = f", {len(user_facts())} of {config.facts}" if config.facts else ""
        return f"{len(_rows())}{own}, hash {digest()}"
    except (FactsError, OSError) as error:
        return f"unusable: {error}"


def forget() -> None:
    """Read the files again, and let each warning appear again."""
    for cached in (_rows, _of_operation, facts, digest, user_facts):
        cached.cache_clear()


# --- the rows of a user ------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def user_facts() -> tuple[Mapping[str, Any], ...]:
    """Return the rows of the file that ``CUDNN_CT_FACTS`` names, each with its ``line``; without one, none.

    Raises OSError if it cannot be read, and FactsError with the line of a row that is not a fact, or if it is
    not JSON or writable by everybody. `legal` checks operations and conditions.
    """
    if not (path := config.facts):
        return ()

    def check(status: os.stat_result) -> None:
        if os.name == "posix" and status.st_mode & stat.S_IWOTH:
            raise FactsError(f"{path} is world-writable and was not read; {how_to_close(path, status)}")

    try:
        text = contents(path, MAX_TEXT, check).decode("utf-8", "replace")
    except OSError as error:
        raise type(error)(f"CUDNN_CT_FACTS: {path} cannot be read: {error.strerror}") from None
    try:
        content = json.loads(text)
    except ValueError as error:
        raise FactsError(f"{path} is not JSON: {error}") from None
    rows = content.get("facts") if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise FactsError(f'{path}: line 1: got no list "facts"; expected {{"facts": [...]}}')
    found = []
    for number, row in enumerate(rows):
        line, wrong = _line_of(text, row, number), why_not_a_fact(row)
        if wrong:
            raise FactsError(f"{path}: line {line}: {wrong}")
        found.append({**row, "line": line})
    return tuple(found)


def why_not_a_fact(row: Any) -> str:
    """Return what is wrong with the fields of a row; empty for a fact."""
    if not isinstance(row, dict):
        return f"a fact is not an object: got {type(row).__name__}"
    for name, kinds in _FIELDS.items():
        if name in row and not isinstance(row[name], kinds):
            return f"{name} has the wrong type: got {type(row[name]).__name__}"
    if missing := [name for name in _REQUIRED if name not in row]:
        return f"the fact lacks {', '.join(missing)}"
    if extra := sorted(set(row) - set(_FIELDS)):
        return f"a fact has no field {extra[0]!r}; fields are {', '.join(_FIELDS)}"
    if row["kind"] not in KINDS:
        return f"kind is unknown: got {row['kind']!r}, expected one of {', '.join(KINDS)}"
    if row["effect"] not in EFFECTS:
        return f"effect is unknown: got {row['effect']!r}, expected one of {', '.join(EFFECTS)}"
    if (needed := _NEEDED.get(row["kind"])) and not row.get(needed):
        return f"the fact lacks {needed}, which the kind {row['kind']} needs"
    return _why_not_values(row)


def _why_not_values(row: Mapping[str, Any]) -> str:
    """Return which field has values that would never apply; empty if none has."""
    for name, kind in _ELEMENTS.items():
        if wrong := [one for one in row.get(name, ()) if not isinstance(one, kind) or isinstance(one, bool)]:
            return f"{name} has an element of the wrong type: got {wrong[0]!r}, expected {kind.__name__}"
    for name in ("cudnn", "arch"):
        for bound, version in row.get(name, {}).items():
            is_version = isinstance(version, str) and version_numbers(version)
            if bound not in ("from", "before") or not is_version:
                got = f"{bound!r}: {version!r}"
                return f'{name} has a wrong bound: got {got}, expected such as "from": "9.24"'
    for knob, values in row.get("knobs", {}).items():
        are_ints = isinstance(values, list) and all(type(one) is int for one in values)
        if not knob.isdecimal() or not are_ints:
            return f'knobs are wrong: got {knob!r}: {values!r}, expected such as "24": [2, 12]'
    if row["kind"] == "stored" and (row["operations"] != ["all"] or row["when"]):
        got = f"{row['operations']} and {row['when']}"
        return f"operations and when of the kind stored are wrong: got {got}, expected ['all'] and []"
    if "kernels" in row and (row["kind"] != "stored" or not row["kernels"].isascii()):
        got = f"{row['kernels']!r} in a fact of the kind {row['kind']}"
        return f"kernels is not the name of kernels in a fact of the kind stored: got {got}"
    if row.get("libraries", FULL) not in (FULL, "jit"):
        return f"libraries are unknown: got {row['libraries']!r}, expected 'full' or 'jit'"
    return ""


# The field without which a row of a kind has no effect.
_NEEDED = {"modes": "modes", "first": "order", "last": "order", "also": "order", "stored": "kernels"}
_ELEMENTS: dict[str, type] = {
    **dict.fromkeys(("operations", "when"), str),
    **dict.fromkeys(("engines", "engines_except"), int),
    **dict.fromkeys(("algorithms", "with_notes", "without_notes", "order", "modes"), str),
}
_REQUIRED = ("name", "kind", "operations", "when", "effect", "message")
_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("name", "kind", "effect", "message", "advice", "source", "libraries", "kernels"), str),
    **dict.fromkeys(_ELEMENTS, list),
    **dict.fromkeys(("cudnn", "arch", "found", "sizes", "knobs"), dict),
    "min_slices": int,
}


def _line_of(text: str, row: Any, number: int) -> int:
    """Return the line of a row: that of its name, or of the row with this number."""
    name = row.get("name") if isinstance(row, dict) else None
    at = text.find(json.dumps(name)) if isinstance(name, str) else -1
    if at < 0:
        places = [place for place, char in enumerate(text) if char == "{"]
        at = places[number + 1] if number + 1 < len(places) else 0
    return text.count("\n", 0, at) + 1
