"""Facts about versions of cuDNN, engines and GPUs: the rows of facts.json, and those that a user adds.

`legal` applies them to problems. docs/facts.md describes the fields. The doctor reads the same file
through `cudnn_doctor.read.versions`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from cudnn_doctor.read.files import MAX_TEXT, contents, how_to_close, resource
from cudnn_doctor.read.versions import table, version_numbers, within

from ._config import config
from .errors import format_version, warn_caller

KINDS = (
    *("reject", "engine", "first_choice", "rewrite", "modes", "unordered"),
    *("first", "last", "also", "cost", "stored", "warn", "inform"),
)
EFFECTS = (
    *("wrong", "inaccurate", "crash", "hang", "unsupported", "unstated", "nondeterministic", "slow"),
    *("memory", "sanitizer"),
)
FULL = "full"


Arch = tuple[tuple[int, ...], tuple[int, ...]]
"""A range of compute capabilities: the first one, and the first one after it; ``()`` sets no limit."""


class FactsError(RuntimeError):
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
        """Why something is rejected: the message, what to do, and the name and the source of the row."""
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.message}{advice} (fact {self.name}{f', {self.source}' if self.source else ''})"


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
    own = f", {len(user_facts())} of {_read[0]}" if user_facts() or _read[0] else ""
    return f"{len(_rows())}{own}, hash {digest()}"


def forget() -> None:
    """Read the files again, and let each warning appear again."""
    for cached in (_rows, _of_operation, facts, digest, user_facts):
        cached.cache_clear()
    _read.clear()


def warn_if_late() -> None:
    """Warn if another file was named after the facts were read."""
    if _read and (given := os.fspath(config.facts or "")) not in _read:
        warn_caller(f"ct.config.facts was set too late: {_read[0] or 'no file'} was read for this process")
        _read[1:] = [given]


# --- the rows of a user ------------------------------------------------------------------------------------

_read: list[str] = []  # the file that was read, empty for none, and a later value of the setting


@lru_cache(maxsize=1)
def user_facts() -> tuple[Mapping[str, Any], ...]:
    """Return the rows of the file that ``CUDNN_CT_FACTS`` names, each with its ``line``; without one, none.

    Raises OSError if it cannot be read, and FactsError with the line of a row that is not a fact, or if it is
    not JSON or writable by everybody. `legal` checks operations and conditions.
    """
    if not (path := os.fspath(config.facts or "")):
        _read[:] = [path]
        return ()

    def check(status: os.stat_result) -> None:
        if os.name == "posix" and status.st_mode & stat.S_IWOTH:
            raise FactsError(f"{path} is world-writable and was not read; {how_to_close(path, status)}")

    try:
        text = contents(path, MAX_TEXT, check).decode("utf-8", "replace")
    except OSError as error:
        raise type(error)(f"CUDNN_CT_FACTS: {path} cannot be read: {error.strerror}") from None
    try:
        rows = tuple(_rows_in(text))
    except RecursionError:  # while it is decoded, or while a value is printed
        raise FactsError(f"{path} is nested too deeply: expected rows as in docs/facts.md") from None
    _read[:] = [path]
    return rows


def _rows_in(text: str) -> Iterator[dict[str, Any]]:
    """Yield the rows in the text of a file, each with its line."""
    twice: list[str] = []

    def noting_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        twice.extend(Counter(names) - Counter(set(names)))
        return dict(pairs)

    try:
        json.loads(text)
    except ValueError as error:
        raise FactsError(f"{config.facts} is not JSON: {error}") from None
    if not (head := re.match(r'\s*\{\s*"facts"\s*:\s*\[', text)):
        line = text.count("\n", 0, len(text) - len(text.lstrip())) + 1
        raise row_error(None, line, f'got no list "facts"; {_ALONE}')
    decoder, names, line = json.JSONDecoder(object_pairs_hook=noting_keys), set[str](), 1
    place, end = 0, head.end()
    while text[end] != "]":
        if text[end] in " \t\r\n,":
            end += 1
            continue
        line, place = line + text.count("\n", place, end), end
        row, end = decoder.raw_decode(text, place)
        wrong = f"keys are not unique: got {twice[0]!r} twice" if twice else why_not_a_fact(row)
        if wrong or row["name"] in names:
            another = "name is not unique: got that of an earlier fact, expected another"
            raise row_error(row, line, wrong or another)
        names.add(row["name"])
        yield {**row, "line": line}
    if (rest := text[end + 1 :].lstrip(" \t\r\n,")).rstrip() != "}":
        line = text.count("\n", 0, len(text) - len(rest)) + 1
        raise row_error(None, line, f"got {rest.partition(':')[0]}; {_ALONE}")


_ALONE = 'expected {"facts": [...]} alone'


def row_error(row: Any, line: int, wrong: str) -> FactsError:
    """Return the error of a row of a user, which names it if it has a name."""
    name = row.get("name") if isinstance(row, dict) else None
    return FactsError(f"{config.facts}: line {line}: {f'fact {name!r}: ' if name else ''}{wrong}")


def why_not_a_fact(row: Any) -> str:
    """Return what is wrong with the fields of a row; empty for a fact."""
    if not isinstance(row, dict):
        return f"a fact is not an object: got {type(row).__name__}"
    if missing := [name for name in _REQUIRED if name not in row]:
        return f"the fact lacks {', '.join(missing)}"
    for name, value in row.items():
        if name not in _FIELDS:
            return f"a fact has no field {name!r}; fields are {', '.join(_FIELDS)}"
        pattern, expected = _FIELDS[name]
        if not re.fullmatch(pattern, text := json.dumps(value), re.ASCII):
            return f"{name} has a wrong value: got {text}, expected {expected}"
    for name, kinds in _OF_KINDS.items():
        if row["kind"] in kinds and kinds != _ENGINES and name not in row:
            return f"the fact lacks {name}, which the kind {row['kind']} needs"
        if row["kind"] not in kinds and name in row:
            got = f"got {row[name]!r}, expected the kind {' or '.join(kinds)}"
            return f"{name} is not a field of the kind {row['kind']}: {got}"
    for name, lowest in (("cudnn", "9"), ("arch", "0")):  # this package loads no cuDNN before 9
        limits = [row.get(name, {}).get(*bound) for bound in (("from", lowest), ("before", "99"))]
        low, high = ((*version_numbers(limit), 0, 0)[:3] for limit in limits)
        if low >= high:
            return f"{name} is an empty range: got from {limits[0]} before {limits[1]}, expected a larger end"
    return ""


_ENGINES = ("engine",)
# The kinds that have a field which others do not; all but those of engines need it.
_OF_KINDS = {
    **dict.fromkeys(("engines", "engines_except", "algorithms", "with_notes", "without_notes"), _ENGINES),
    **dict.fromkeys(("knobs", "min_slices"), _ENGINES),
    "modes": ("modes",),
    "order": ("first", "last", "also", "cost"),
    "costs": ("cost",),
    "kernels": ("stored",),
}
_REQUIRED = ("name", "kind", "operations", "when", "effect", "message")
_TEXT = r'"(?:[^"\\]|\\.)+"'
_TEXTS, _NUMBERS = (rf"\[{one}(, {one})*\]" for one in (_TEXT, r"\d{1,18}"))
_VERSION, _CAPABILITY = (
    rf'\{{"(from|before)": "{one}"(, "(from|before)": "{one}")?\}}'
    for one in (r"(9|1\d)(\.\d{1,2}){0,2}", r"1?\d(\.\d)?")
)
_COST = r"\d{1,9}(\.\d{1,9})?(e-?\d{1,2})?"
_CHOICES = {"kind": KINDS, "effect": EFFECTS, "libraries": (FULL, "jit")}
# The JSON of each field as a pattern, and what it is in words.
_FIELDS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("name", "message"), (_TEXT, "a text")),
    "operations": (_TEXTS, 'names such as ["conv"]'),
    "when": (rf"\[\]|{_TEXTS}", 'names such as ["float32"], or []'),
    **dict.fromkeys(("advice", "source"), (rf'""|{_TEXT}', "a text")),
    **{name: (f'"({"|".join(ones)})"', f"one of {', '.join(ones)}") for name, ones in _CHOICES.items()},
    "kernels": (r'"[^"\\]+"', "a part of the names of kernels, in ASCII"),
    **dict.fromkeys(("engines", "engines_except"), (_NUMBERS, "numbers such as [4], or no such field")),
    **dict.fromkeys(("algorithms", "with_notes", "without_notes", "order", "modes"), (_TEXTS, "names")),
    "cudnn": (_VERSION, 'a range of versions such as {"from": "9.24"}'),
    "arch": (_CAPABILITY, 'a range of compute capabilities such as {"from": "9.0"}'),
    "knobs": (r'\{("\d{1,9}": \[-?\d+(, -?\d+)*\](, )?)+\}', 'such as {"24": [2, 12]}'),
    **dict.fromkeys(("found", "sizes"), (r"\{.*\}", "an object")),
    "costs": (
        rf"\{{({_TEXT}: \{{({_TEXT}: {_COST}(, )?)*\}}(, )?)+\}}",
        'such as {"engine 0": {"call": 9.5}}',
    ),
    "min_slices": (r"[2-9]|[1-9]\d{1,17}", "a number of at least 2"),
}
