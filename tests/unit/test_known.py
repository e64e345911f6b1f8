"""The table of versions that are known to be bad, and the defects of problems."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from cudnn_ct import CudnnWarning
from cudnn_ct._bad_combinations import defects, rows, version_numbers, within
from cudnn_ct.autotune import known
from cudnn_ct.ops.attention.known import DEFECTS as OF_ATTENTION
from cudnn_ct.ops.conv.known import _CONDITIONS, _OPERATIONS, DEFECTS
from cudnn_ct.ops.norm.known import DEFECTS as OF_NORMS
from cudnn_ct.ops.norm.known import NormNode, loses_variance
from cudnn_ct.shapes.conv import ConvProblem, conv_problem
from cudnn_ct.shapes.specs import TensorSpec

FIELDS = ["name", "operations", "cudnn", "arch", "when", "engines", "effect", "message", "advice", "source"]
OPTIONAL = {"arch", "engines"}
EFFECTS = {
    "wrong", "crash", "hang", "nondeterministic", "unsupported", "slow", "memory", "sanitizer", "unstated",
}  # fmt: skip
HOPPER = (9, 0)


def test_table_has_at_least_30_rows() -> None:
    assert len(rows("bad")) + len(rows("defects")) >= 30


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


@pytest.mark.parametrize("row", rows("bad"), ids=lambda row: row["source"].rpartition("/")[2])
def test_bad_combination_has_its_fields_in_order(row: dict[str, Any]) -> None:
    fields = ["cudnn", "cublas", "arch", "gpus", "message", "advice", "source"]
    assert list(row) == [name for name in fields if name in row]
    assert {"message", "advice", "source"} <= set(row)
    assert row["source"].startswith("https://")


def test_defects_are_sorted_and_have_unique_names() -> None:
    table = rows("defects")
    assert max(Counter(row["name"] for row in table).values()) == 1
    order = [
        (row["operations"], version_numbers(row["cudnn"].get("from", "0")), row["name"]) for row in table
    ]
    assert order == sorted(order)


def test_convolutions_know_the_conditions_of_their_rows() -> None:
    table = [row for row in rows("defects") if set(row["operations"]) & set(_OPERATIONS.values())]
    assert {text for row in table for text in row["when"]} <= set(_CONDITIONS)
    assert len(table) >= 5


def test_norms_know_the_conditions_of_their_rows() -> None:
    table = [row for row in rows("defects") if "layer_norm" in row["operations"]]
    assert {text for row in table for text in row["when"]} <= set(OF_NORMS.conditions)


@pytest.mark.parametrize(
    ("operation", "dtype", "version", "expected"),
    [
        ("layer_norm", "float32", 92700, True),
        ("layer_norm", "float32", 92800, True),
        ("layer_norm", "float32", 91900, False),
        ("layer_norm", "bfloat16", 92800, False),
        ("rms_norm", "float32", 92800, False),
    ],
)
def test_layer_norm_loses_the_variance_of_float32_in_measured_versions(
    operation: str, dtype: str, version: int, expected: bool
) -> None:
    assert loses_variance(NormNode(operation, dtype), version) == expected


def test_attention_knows_the_conditions_of_its_rows() -> None:
    table = [row for row in rows("defects") if set(row["operations"]) & {"attention", "attention_backward"}]
    texts = {text for row in table for text in row["when"]}
    assert texts == set(OF_ATTENTION.conditions)
    assert len(table) >= 26


@pytest.mark.parametrize(
    ("version", "inside"), [("9.7.1", False), ("9.8.0", True), ("9.14.1", True), ("9.15.0", False)]
)
def test_range_includes_its_start_and_excludes_its_end(version: str, inside: bool) -> None:
    assert within(version, {"from": "9.8", "before": "9.15"}) == inside
    assert ("conv3d-half" in {row["name"] for row in defects(version, "conv")}) == inside


def conv(x: tuple[int, ...], w: tuple[int, ...], dtype: str = "float32", **how: Any) -> ConvProblem:
    specs = TensorSpec.packed(x, dtype), TensorSpec.packed(w, dtype)
    return conv_problem("forward", *specs, **how)


VOLUME = (1, 4, 6, 6, 6)
DEPTHWISE = conv((1, 4, 6, 6), (4, 1, 3, 3), groups=4)


@pytest.mark.parametrize(
    ("problem", "version", "capability", "names"),
    [
        (conv(VOLUME, (4, 4, 3, 3, 3), "float16"), 91002, HOPPER, {"conv3d-half", "conv-memory"}),
        (conv(VOLUME, (4, 4, 3, 3, 3), "bfloat16"), 91500, HOPPER, {"conv-memory"}),
        (conv(VOLUME, (4, 4, 1, 1, 1), "float16"), 91002, HOPPER, {"conv-memory"}),
        (conv((1, 4, 6, 6), (4, 4, 3, 3), "float16"), 91002, HOPPER, {"conv-memory"}),
        (conv(VOLUME, (4, 4, 3, 3, 3)), 91002, HOPPER, {"conv3d-tf32", "conv-memory"}),
        (conv(VOLUME, (4, 4, 3, 3, 3), precision="float32"), 91002, HOPPER, {"conv-memory"}),
        (DEPTHWISE, 91002, (12, 0), {"conv-depthwise-compile", "conv-memory"}),
        (DEPTHWISE, 91002, HOPPER, {"conv-memory"}),
        (conv((1, 4, 6, 6), (4, 4, 3, 3)), 92301, (8, 6), {"conv-engine-5", "conv-memory"}),
        (conv((1, 4, 6, 6), (4, 4, 3, 3)), 92400, (8, 6), {"conv-memory"}),
        (
            conv((2**19, 4, 32, 32), (4, 1, 3, 3), groups=4),
            91100, HOPPER, {"conv-depthwise-64bit", "conv-memory"},
        ),
    ],
)  # fmt: skip
def test_defects_of_a_convolution(
    problem: ConvProblem, version: int, capability: tuple[int, int], names: set[str]
) -> None:
    assert {row["name"] for row in DEFECTS.rows(problem, version, capability)} == names


def test_only_the_engine_of_a_row_is_wrong() -> None:
    problem = conv((1, 4, 6, 6), (4, 4, 3, 3))
    assert "188318" in DEFECTS.wrong_engine(5, problem, 92301, (8, 6))
    assert DEFECTS.wrong_engine(6, problem, 92301, (8, 6)) == ""
    assert DEFECTS.wrong_engine(5, problem, 92301, HOPPER) == ""
    backward = problem._replace(direction="backward_data")
    assert DEFECTS.wrong_engine(5, backward, 92301, (8, 6)) == ""


def test_each_defect_warns_once_and_slow_ones_never(recwarn: pytest.WarningsRecorder) -> None:
    known.forget()
    problem = conv(VOLUME, (4, 4, 3, 3, 3), "float16")
    with pytest.warns(CudnnWarning, match=r"cuDNN 9.10.2 has a known defect: 3-D .*; use cuDNN 9.15"):
        DEFECTS.warn(problem, 91002, HOPPER)
    for _ in range(2):
        DEFECTS.warn(problem, 91002, HOPPER)
        DEFECTS.warn(DEPTHWISE, 91002, (12, 0))
        DEFECTS.warn(conv((1, 4, 6, 6), (4, 4, 3, 3)), 92301, (8, 6))  # its engine is avoided
    assert not recwarn.list
    known.forget()
