"""Format a diagnosis as text, and explain codes."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from . import checks, requirements
from .diagnosis import Diagnosis
from .finding import Severity, codes
from .libraryset import LibrarySet, write
from .terminal import printable

WIDTH = 100
FEW = 5  # messages of one code that are shown without --verbose
_COLOURS = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.NOTE: "36"}
_INDENT = " " * 9


def text(diagnosis: Diagnosis, colour: bool = False, verbose: bool = False) -> str:
    """Format as text: the verdict, what was verified, then the findings, in their order."""

    def paint(words: str, code: str) -> str:
        return f"\033[{code}m{words}\033[0m" if colour else words

    shade = {"sound": "32", "suspicious": "33"}.get(diagnosis.verdict, "31")
    lines = [paint(printable(verdict(diagnosis)), f"1;{shade}")]
    if diagnosis.verdict == "sound":
        lines.append(f"verified: {printable(verified(diagnosis))}")
    # Findings of one code are shown together, with their cause once.
    for (severity, code), group in groupby(diagnosis.findings, lambda each: (each.severity, each.code)):
        first, *others = group
        word = paint(f"{severity.word:<8}", f"1;{_COLOURS[severity]}")
        lines += ["", f"{word} {paint(code, '1')}: {printable(first.message)}"]
        shown = others if verbose else others[: FEW - 1]
        lines += [_INDENT + printable(other.message) for other in shown]
        if others[len(shown) :]:
            lines.append(f"{_INDENT}and {len(others) - len(shown)} more, which --verbose lists")
        if severity != Severity.NOTE or verbose:
            lines += _wrapped(first.cause)
            fixes = dict.fromkeys(each.fix for each in (first, *others))
            lines += [f"{_INDENT}fix: {printable(fix)}" for fix in fixes]
    for found in diagnosis.sets:
        lines += _defects(found, diagnosis.known_defects(found), verbose)
    if diagnosis.ignored:
        lines += ["", f"ignored: {', '.join(diagnosis.ignored)}"]
    if diagnosis.commands:
        image = any(found.root != "/" for found in diagnosis.sets)
        locked = next(
            (str(each.evidence.get("path", "")) for each in diagnosis.findings if each.code == "read-only"),
            "",
        )
        where = ", inside the image:" if image else ":"
        where = f", after {printable(locked)} can be written:" if locked else where
        lines += [
            "",
            f"commands that repair it{where}",
            *(f"  {printable(each)}" for each in diagnosis.commands),
        ]
    if verbose:
        lines += ["", "checked:", *(f"  {printable(line)}" for line in _checked(diagnosis))]
    return "\n".join(lines)


def verdict(diagnosis: Diagnosis) -> str:
    """Format the verdict in one line."""
    if not diagnosis.sets:
        return f"{diagnosis.subject or repr('')}: no cuDNN was examined"
    first = diagnosis.sets[0]
    built = " JIT" if first.jit else ""
    built += f" for CUDA {first.cuda}" if first.cuda else ""
    more = f" and {len(diagnosis.sets) - 1} more" if len(diagnosis.sets) > 1 else ""
    counts = ", ".join(
        f"{number} {severity.word}{'s' if number > 1 else ''}"
        for severity in Severity
        if (number := diagnosis.count(severity))
    )
    tail = f" ({counts})" if counts else ""
    return f"cuDNN {write(first.version)}{built} in {first.folder}{more}: {diagnosis.verdict}{tail}"


def verified(diagnosis: Diagnosis) -> str:
    """Return in one line which checks ran."""
    libraries = sum(len(found.libraries) for found in diagnosis.sets)
    done = [f"{libraries} libraries read"] if libraries else []
    recorded = sum(len(owner.record) for found in diagnosis.sets for owner in found.owners)
    if recorded:
        how = "size and hash" if diagnosis.details.get("deep") else "size"
        done.append(f"{recorded} files compared with their RECORD by {how}")
    if diagnosis.tiers.get("child") == "done":
        done.append("cuDNN loaded and its own checks passed")
    devices = diagnosis.details.get("driver", {}).get("devices", [])
    done += [f"handle created on {device['name']}" for device in devices if not device["status"]]
    covered = filter(None, dict.fromkeys(map(_gpus, diagnosis.sets)))
    done += [f"code for compute capability {gpus}" for gpus in covered]
    return ", ".join(done) or "nothing"


def explanation(name: str) -> str:
    """Return the page of a code."""
    code = codes()[name]
    lines = [f"{code.name} ({code.severity.word})", "", *textwrap.wrap(code.cause, WIDTH), ""]
    lines += textwrap.wrap(f"Fix: {code.general_fix}", WIDTH)
    return "\n".join([*lines, *(f"  {command}" for command in code.general_commands)])


def _defects(found: LibrarySet, rows: list[dict[str, Any]], verbose: bool) -> Iterator[str]:
    """Yield the known defects of a version in single operations; only their number unless ``verbose``."""
    if not rows:
        return
    numbers = Counter(row["operations"][0] for row in rows)
    counts = ", ".join(f"{name} {number}" for name, number in numbers.items())
    rest = "" if verbose else "; --verbose lists them"
    yield ""
    yield f"known defects of cuDNN {write(found.version)} in single operations: {counts}{rest}"
    for row in rows if verbose else ():
        arch = row.get("arch", {})
        limits = [f"{bound} {arch[bound]}" for bound in ("from", "before") if bound in arch]
        conditions = [*row["when"], *([f"compute capability {' '.join(limits)}"] if limits else [])]
        text = f" ({'; '.join(conditions)})" if conditions else ""
        yield f"  {row['effect']}: {', '.join(row['operations'])}{text}"
        yield from _wrapped(f"{row['message']}; {row['advice']}")
        yield f"{_INDENT}{row['source']}"


def _wrapped(words: str) -> list[str]:
    return textwrap.wrap(words, WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)


def _checked(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield what was read and run, and the GPUs for which each cuDNN has code."""
    for found in diagnosis.sets:
        yield f"cuDNN {write(found.version)} in {found.folder}"
        for library in found.libraries.values():
            facts = [write(library.version)] if library.version else []
            facts += [f"CUDA {found.majors[library.name]}"] if library.name in found.majors else []
            yield f"  {library.file}: {str(library.error) if library.error else ', '.join(facts) or 'read'}"
        yield from (f"  {len(owner.record)} files of {owner.label}" for owner in found.owners)
        yield from (f"  requirement: {need}" for need in (*found.needs, *found.others))
        yield f"  GPUs: {_gpus(found) or 'unknown'}"
    for tier, state in diagnosis.tiers.items():
        yield f"{tier}: {state}"


def _gpus(found: LibrarySet) -> str:
    sass, ptx = checks.coverage(found)
    real = [f"{arch / 10:.1f}" for arch in sorted(sass & requirements.REAL)]
    newer = [f"PTX for GPUs newer than {max(ptx) / 10:.1f}"] if ptx else []
    return ", ".join(real + newer)
