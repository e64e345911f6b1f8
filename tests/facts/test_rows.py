"""Each row of facts.json applies to an example, not to near misses, and not outside of its range."""

from __future__ import annotations

from typing import Any

import pytest

from cudnn_ct.facts import KINDS, Target, facts, why_not_a_fact
from cudnn_ct.legal.conditions import applying, conditions_of
from cudnn_ct.legal.rows import FAMILIES, why_unknown
from cudnn_doctor.read.versions import table, version_numbers

from .pool import pool

FACTS = [row for row in table() if row["kind"] in KINDS]
OF_PROBLEMS = [row for row in FACTS if not {"all", "convolution"} & set(row["operations"])]
NEWEST = "9.28.1"

# Conditions that hold for no problem, because this package makes none, or that only values decide; and those
# that another condition of their row implies.
NEVER = {
    *("MXFP8", "a gradient of the sink", "a serialized plan in forward compatibility mode"),
}
ALWAYS = {
    *("large queries and keys", "strongly negative scores", "a CUDA graph"),
    "a mean that is large next to the deviation",
}
IMPLIED = {
    ("attention-empty-sequence", "packed sequences"),
    ("attention-empty-sequence", "an empty sequence"),
    ("attention-fp8-scaling", "FP8"),
    ("attention-fp8-scaling", "current scaling"),
    ("pool-serialization", "max pooling"),
    ("attention-window-9.14", "float16 or bfloat16"),
    ("attention-paged-gradient", "a cache of keys and values"),
}


def number(text: str) -> int:
    major, minor, patch = (*version_numbers(text), 0, 0)[:3]
    return major * 10_000 + minor * 100 + patch


def inside(row: dict[str, Any]) -> Target:
    """Return a target in the ranges of a row."""
    version = number(row.get("cudnn", {}).get("from", "9.0"))
    capability = (*version_numbers(row.get("arch", {}).get("from", "9.0")), 0)[:2]
    return Target(version, row.get("libraries", "full"), capability)


def applies(row: dict[str, Any], operation: str, subject: Any, target: Target) -> bool:
    return row["name"] in {fact.name for fact in applying(row["kind"], (operation, subject), target)}


@pytest.mark.parametrize("row", FACTS, ids=lambda row: row["name"])
def test_row_is_a_fact(row: dict[str, Any]) -> None:
    assert why_not_a_fact(row) == ""
    assert why_unknown(row, conditions_of) == ""


@pytest.mark.parametrize("row", [row for row in FACTS if "found" in row], ids=lambda row: row["name"])
def test_measured_fault_holds_for_older_versions_that_were_not_measured(row: dict[str, Any]) -> None:
    """The version of the first measurement is not where a fault begins."""
    assert set(row["found"]) - {"not_in"} == {"cudnn", "gpu"}
    first, right = row.get("cudnn", {}).get("from", ""), row["found"].get("not_in")
    if row["effect"] != "slow":  # engines to time in addition are those of the measured version
        assert first == (f"9.{version_numbers(right)[1] + 1}" if right else "")


@pytest.mark.parametrize("version", [91801, 92101, 92401, 92601, 92700])
def test_jit_engine_that_was_measured_once_is_rejected_in_all_versions(version: int) -> None:
    """The settings and the workspace of these engines are the same in all of them."""
    names = {fact.name for fact in facts("engine", "conv", Target(version, "jit", (9, 0)))}
    assert {"conv-nchw-jit", "conv-nchw-jit-4", "conv-channels-jit-2"} <= names


@pytest.mark.parametrize("row", OF_PROBLEMS, ids=lambda row: row["name"])
def test_row_applies_to_an_example_in_its_ranges_only(row: dict[str, Any]) -> None:
    if NEVER & set(row["when"]) or row["name"] == "attention-paged-gradient":
        return
    target = inside(row)
    examples = (
        (operation, subject)
        for operation in row["operations"]
        for subject in pool().get(operation, ())
        if applies(row, operation, subject, target)
    )
    operation, subject = next(examples, ("", None))
    assert operation, "no example among random problems"
    outside = []
    bounds, arch = row.get("cudnn", {}), row.get("arch", {})
    if bounds.get("from", "9.0") != "9.0":  # older versions are not supported
        outside.append(target._replace(version=number(bounds["from"]) - 1))
    outside += [target._replace(version=number(bounds["before"]))] if "before" in bounds else []
    outside += [target._replace(capability=(4, 0))] if "from" in arch else []
    outside += [target._replace(capability=version_numbers(arch["before"]))] if "before" in arch else []
    other = "jit" if row.get("libraries") == "full" else "full"
    outside += [target._replace(libraries=other)] if "libraries" in row else []
    for place in outside:
        assert not applies(row, operation, subject, place), place


@pytest.mark.parametrize("row", OF_PROBLEMS, ids=lambda row: row["name"])
def test_each_condition_of_a_row_decides_for_some_problem(row: dict[str, Any]) -> None:
    names = [name for name in row["when"] if name not in NEVER | ALWAYS]
    for name in names:
        if (row["name"], name) in IMPLIED or NEVER & set(row["when"]):
            continue
        others = [other for other in row["when"] if other != name]
        assert any(
            not conditions_of(FAMILIES[operation])[name](subject)
            and all(conditions_of(FAMILIES[operation])[other](subject) for other in others)
            for operation in row["operations"]
            for subject in pool().get(operation, ())
        ), f"{name!r} follows from the other conditions"


def test_every_condition_is_used() -> None:
    used = {(FAMILIES[name], text) for row in FACTS for name in row["operations"] for text in row["when"]}
    for family in set(FAMILIES.values()):
        assert {(family, name) for name in conditions_of(family)} <= used
