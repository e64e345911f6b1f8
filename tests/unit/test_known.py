"""The table of versions that are known to be bad, and the defects of problems."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from cudnn_ct import CudnnWarning
from cudnn_ct.facts import KINDS, Target
from cudnn_ct.graph.engines import Engine
from cudnn_ct.legal import rules
from cudnn_ct.legal.conditions import applying
from cudnn_ct.legal.rules import engine_rules, warn
from cudnn_ct.legal.subjects import Norm, subjects_of
from cudnn_ct.shapes.conv import ConvProblem
from cudnn_doctor.read.versions import defects, rows, table, version_numbers, within
from tests.conv_cases import packed_problem as conv

FIELDS = [
    *(
        "name",
        "kind",
        "operations",
        "cudnn",
        "arch",
        "when",
        "engines",
        "effect",
        "message",
        "advice",
        "source",
    ),
    "libraries",
    "found",
]
OPTIONAL = {"arch", "engines", "libraries", "found"}
EFFECTS = {
    "wrong", "crash", "hang", "nondeterministic", "unsupported", "slow", "memory", "sanitizer", "unstated",
}  # fmt: skip
HOPPER = (9, 0)


def test_table_has_at_least_30_rows() -> None:
    assert len(rows("install")) + len(rows("defects")) >= 30


@pytest.mark.parametrize("row", rows("defects"), ids=lambda row: row["name"])
def test_defect_has_its_fields_in_order(row: dict[str, Any]) -> None:
    assert list(row) == [name for name in FIELDS if name in row]
    assert set(FIELDS) - set(row) <= OPTIONAL
    assert row["operations"]
    assert row["effect"] in EFFECTS
    assert row["source"].startswith(("https://", "measured on "))
    assert not row["message"].endswith(".")
    assert row["advice"]
    for bounds in (row["cudnn"], row.get("arch", {"from": "0"})):
        assert bounds
        assert list(bounds) == [bound for bound in ("from", "before") if bound in bounds]
        low, high = (version_numbers(bounds.get(bound, "")) for bound in ("from", "before"))
        assert not high or low < high


@pytest.mark.parametrize("row", rows("install"), ids=lambda row: row["source"].rpartition("/")[2])
def test_bad_combination_has_its_fields_in_order(row: dict[str, Any]) -> None:
    fields = ["name", "kind", "cudnn", "cublas", "arch", "gpus", "message", "advice", "source"]
    assert list(row) == [name for name in fields if name in row]
    assert {"message", "advice", "source"} <= set(row)
    assert row["source"].startswith("https://")


def test_facts_are_sorted_by_kind_and_have_unique_names() -> None:
    facts = table()
    assert max(Counter(row["name"] for row in facts).values()) == 1
    kinds = [row["kind"] for row in facts]
    assert kinds == sorted(kinds)
    assert set(kinds) <= {*KINDS, "install", "consumer"}


@pytest.mark.parametrize(
    ("operation", "version", "expected"),
    [
        ("layer_norm", 92700, True),
        ("layer_norm", 92800, True),
        ("layer_norm", 92000, True),  # it was not measured
        ("layer_norm", 91900, False),
        ("rms_norm", 92800, False),
    ],
)
def test_layer_norm_loses_the_variance_in_measured_versions(
    operation: str, version: int, expected: bool
) -> None:
    found = applying("rewrite", (operation, Norm()), Target(version))
    assert [fact.name for fact in found] == (["layer-norm-variance"] if expected else [])


@pytest.mark.parametrize(
    ("version", "inside"), [("9.7.1", False), ("9.8.0", True), ("9.14.1", True), ("9.15.0", False)]
)
def test_range_includes_its_start_and_excludes_its_end(version: str, inside: bool) -> None:
    assert within(version, {"from": "9.8", "before": "9.15"}) == inside
    assert ("conv3d-half" in {row["name"] for row in defects(version, "conv")}) == inside


VOLUME = (1, 4, 6, 6, 6)
DEPTHWISE = conv((1, 4, 6, 6), (4, 1, 3, 3), groups=4)


@pytest.mark.parametrize(
    ("problem", "version", "capability", "names"),
    [
        (conv(VOLUME, (4, 4, 3, 3, 3), "float16"), 91002, HOPPER, {"conv3d-half"}),
        (conv(VOLUME, (4, 4, 3, 3, 3), "bfloat16"), 91500, HOPPER, set()),
        (conv(VOLUME, (4, 4, 1, 1, 1), "float16"), 91002, HOPPER, set()),
        (conv((1, 4, 6, 6), (4, 4, 3, 3), "float16"), 91002, HOPPER, set()),
        (conv(VOLUME, (4, 4, 3, 3, 3)), 91002, HOPPER, {"conv3d-tf32"}),
        (conv(VOLUME, (4, 4, 3, 3, 3), precision="float32"), 91002, HOPPER, set()),
        (DEPTHWISE, 91002, (12, 0), {"conv-depthwise-compile"}),
        (DEPTHWISE, 91002, HOPPER, set()),
        (conv((1, 4, 6, 6), (4, 4, 3, 3)), 92301, (8, 6), {"conv-engine-5"}),
        (conv((1, 4, 6, 6), (4, 4, 3, 3)), 92400, (8, 6), set()),
        (
            conv((2**19, 4, 32, 32), (4, 1, 3, 3), groups=4),
            91100, HOPPER, {"conv-depthwise-64bit"},
        ),
    ],
)  # fmt: skip
def test_defects_of_a_convolution(
    problem: ConvProblem, version: int, capability: tuple[int, int], names: set[str]
) -> None:
    ((operation, subject),) = subjects_of(problem)
    target = Target(version, "full", capability)
    found = {
        fact.name
        for kind in ("reject", "engine", "rewrite", "warn")
        for fact in applying(kind, (operation, subject), target)
        if fact.source
    }
    assert found == names


def test_only_the_engine_of_a_row_is_wrong() -> None:
    problem = conv((1, 4, 6, 6), (4, 4, 3, 3))
    backward = problem._replace(direction="backward_data")

    def why(problem: ConvProblem, engine: int, capability: tuple[int, int], libraries: str = "full") -> str:
        return engine_rules(problem, Target(92301, libraries, capability)).why_wrong(
            Engine(engine), (), capability
        )

    assert "188318" in why(problem, 5, (8, 6))
    assert why(problem, 6, (8, 6)) == ""
    assert why(problem, 5, HOPPER) == ""
    assert why(problem, 5, (8, 6), "jit") == ""  # its engines have other numbers
    assert why(backward, 5, (8, 6)) == ""


def test_each_defect_warns_once(recwarn: pytest.WarningsRecorder) -> None:
    rules.forget()
    problem = conv((2**19, 4, 32, 32), (4, 1, 3, 3), groups=4)
    with pytest.warns(CudnnWarning, match=r"cuDNN 9.11.0 has a known defect: depthwise"):
        warn(problem, Target(91100, "full", HOPPER))
    with pytest.warns(CudnnWarning, match="compiled at run time"):
        warn(DEPTHWISE, Target(91002, "full", (12, 0)))
    for _ in range(2):
        warn(problem, Target(91100, "full", HOPPER))
        warn(DEPTHWISE, Target(91002, "full", (12, 0)))
        warn(conv((1, 4, 6, 6), (4, 4, 3, 3)), Target(92301, "full", (8, 6)))  # its engine is avoided
    assert not recwarn.list
    rules.forget()
