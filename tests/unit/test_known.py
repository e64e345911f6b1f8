"""Versions that are known to be bad, defects of problems, and engines that are slow or wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct import CudnnWarning
from cudnn_ct.facts import KINDS, Target
from cudnn_ct.graph.engines import Engine
from cudnn_ct.graph.rules import EngineRules
from cudnn_ct.legal import rules
from cudnn_ct.legal.conditions import applying
from cudnn_ct.legal.rules import engine_rules, warn
from cudnn_ct.legal.subjects import Norm, subjects_of
from cudnn_ct.shapes.conv import ConvProblem
from cudnn_ct.shapes.fused import FusedConv
from cudnn_ct.shapes.specs import TensorSpec
from cudnn_doctor.read.versions import defects, rows, table, version_numbers, within
from tests.conv_cases import packed_problem
from tests.conv_cases import packed_problem as conv
from tests.fusion_cases import training_problems

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


# --- engines that are ranked too high, and engines with wrong results --------------------------------------


HERE = Target(91900, "full", (9, 0))
SLOW_ON_POINTS = {28, 38, 48, 70}
POINTS = ((8, 64, 16, 56, 56), (128, 64, 1, 1, 1))


problem = partial(packed_problem, layout="nhwc")


def rules_of(problem: Any) -> EngineRules:
    return engine_rules(problem, HERE)


def erratum(engine: int, problem: Any) -> str:
    return rules_of(problem).why_wrong(Engine(engine), ())


def ranked_too_high(problem: Any) -> set[int]:
    return set(rules_of(problem).last)


@pytest.mark.parametrize(
    ("one", "behind"),
    [
        (problem(*POINTS, stride=2), True),
        (problem((8, 64, 56, 56), (128, 64, 1, 1)), True),
        (problem(*POINTS, stride=2, layout="nchw"), False),
        (problem(*POINTS, stride=2, dtype="float16"), False),
        (problem(*POINTS, stride=2, precision="float32"), False),
        (problem(*POINTS, stride=2, direction="backward_data"), False),
        (problem((8, 64, 56, 56), (128, 64, 3, 3)), False),
        (problem((8, 64, 8, 8), (16, 64, 1, 1), stride=2), False),
    ],
)
def test_ranked_too_high_has_slow_engines_for_points_in_tf32(one: ConvProblem, behind: bool) -> None:
    assert ranked_too_high(one) & SLOW_ON_POINTS == (SLOW_ON_POINTS if behind else set())


@pytest.mark.parametrize(
    ("one", "behind"),
    [
        (problem((8, 64, 14, 14), (64, 16, 3, 3), groups=4), False),
        (problem((64, 64, 56, 56), (64, 16, 3, 3), groups=4), False),
        (problem((8, 64, 14, 14), (64, 16, 3, 3), groups=4, precision="float32"), True),
        (problem((8, 64, 14, 14), (64, 64, 3, 3)), False),
        (problem((8, 64, 14, 14), (64, 16, 3, 3), groups=4, direction="backward_filter"), False),
        (problem((8, 64, 14, 14), (64, 64, 3, 3), direction="backward_data"), False),
        (problem((8, 60, 14, 14), (64, 60, 3, 3), direction="backward_filter"), False),
        (problem((8, 64, 14, 14), (64, 64, 3, 3), direction="backward_filter"), True),
    ],
)
def test_ranked_too_high_has_engine_0_without_tensor_cores_and_for_their_filters(
    one: ConvProblem, behind: bool
) -> None:
    assert (0 in ranked_too_high(one)) == behind


@pytest.mark.parametrize(
    ("one", "known"),
    [
        (problem((4, 60, 14, 14), (64, 60, 3, 3)), True),
        (problem((4, 64, 14, 14), (60, 64, 3, 3), direction="backward_data"), True),
        (problem((4, 64, 14, 14), (64, 64, 3, 3)), False),
        (problem((4, 64, 14, 14), (64, 16, 3, 3), groups=4, direction="backward_filter"), False),
        (problem((4, 16, 14, 14), (64, 4, 3, 3), groups=4), True),
        (problem((4, 64, 14, 14), (64, 1, 3, 3), groups=64), False),  # a filter for each channel, 8 at once
        (problem((4, 60, 14, 14), (60, 1, 3, 3), groups=60), True),
        (problem((4, 64, 14, 14), (128, 1, 3, 3), groups=64), True),
        (problem((4, 60, 14, 14), (64, 60, 3, 3), precision="float32"), False),  # no tensor cores
        (problem((64, 60, 112, 112), (64, 60, 3, 3)), False),  # larger than what was measured
    ],
)
def test_costs_are_for_channels_that_tensor_cores_pad(one: ConvProblem, known: bool) -> None:
    (subject,) = subjects_of(one)
    assert len(list(applying("cost", subject, Target(91900, capability=(9, 0))))) == known


@pytest.mark.parametrize(("groups", "stride", "behind"), [(32, 2, True), (32, 1, False), (1, 2, False)])
def test_ranked_too_high_has_engine_58_for_strided_groups(groups: int, stride: int, behind: bool) -> None:
    w = (1024, 1024 // groups, 3, 3)
    one = problem((32, 1024, 14, 14), w, groups=groups, stride=stride, direction="backward_data")
    assert (58 in ranked_too_high(one)) == behind


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_erratum_reads_the_layout_of_one_channel_from_the_other_tensors(layout: str) -> None:
    one = problem((8, 1, 28, 28), (64, 1, 3, 3), "float16", layout=layout, direction="backward_data")
    one = one._replace(y=TensorSpec.packed(one.y.shape, "float16", layout))
    assert bool(erratum(78, one)) == (layout == "nchw")


@pytest.mark.parametrize(
    ("engine", "direction", "arguments", "wrong"),
    [
        (5, "forward", {"padding": ((1, 0),)}, True),
        (5, "fused", {"padding": ((1, 0),)}, True),
        (5, "fused", {"padding": 1}, False),
        (5, "forward", {"padding": 1}, False),
        (5, "backward_data", {"padding": ((1, 0),)}, False),
        (78, "backward_data", {"padding": 1}, False),
        (78, "backward_data", {"padding": 1, "mode": "convolution"}, True),
        (78, "backward_data", {"stride": 9}, True),  # dy has one pixel
    ],
)
def test_erratum_names_engines_with_wrong_results(
    engine: int, direction: str, arguments: dict[str, Any], wrong: bool
) -> None:
    if direction == "fused":
        found = erratum(engine, FusedConv(problem((3, 8, 10), (8, 8, 3), **arguments)))
    else:
        found = erratum(engine, problem((3, 8, 10), (8, 8, 3), "float16", direction=direction, **arguments))
    assert bool(found) == wrong


@pytest.mark.parametrize(
    ("layout", "groups", "wrong"), [("nhwc", 2, True), ("nhwc", 1, False), ("nchw", 2, False)]
)
def test_erratum_of_engine_4_is_for_groups_of_one_filter(layout: str, groups: int, wrong: bool) -> None:
    w = (2, 4 // groups, 3)
    one = problem((2, 4, 8), w, layout=layout, groups=groups, direction="backward_filter")
    assert bool(erratum(4, one)) == wrong


@pytest.mark.parametrize(
    ("operand", "wrong"), [(None, False), ("x", True), ("w", True), ("y", True)], ids=["none", "x", "w", "y"]
)
def test_erratum_of_engine_78_is_for_any_operand_in_nchw(operand: str | None, wrong: bool) -> None:
    one = problem((3, 6, 8, 10), (9, 2, 3, 3), groups=3, layout="nhwc", direction="backward_data")
    if operand:
        spec = getattr(one, operand)
        one = one._replace(**{operand: TensorSpec.packed(spec.shape, spec.dtype, "nchw")})
    assert bool(erratum(78, one)) == wrong


@pytest.mark.parametrize(
    ("stride", "dilation", "wrong"), [(2, 2, True), ((2, 1), (1, 2), False), (2, 1, False), (1, 2, False)]
)
def test_training_rejects_data_gradients_with_stride_and_dilation(
    stride: Any, dilation: Any, wrong: bool
) -> None:
    found = training_problems(stride=stride, dilation=dilation, padding=2)
    rejected = {name for name, (_, one) in found.items() if erratum(1, one)}
    assert rejected == ({"data"} if wrong else set())


def test_training_obeys_the_facts_of_convolutions(plant: Callable[..., None]) -> None:
    plant(operations=["conv_backward_filter"], engines=[3], message="half of the sums")
    for name, (_, one) in training_problems().items():
        reasons = [erratum(number, one) for number in (3, 4)]
        assert reasons == (["half of the sums (fact planted)", ""] if name == "filter" else ["", ""])


@pytest.mark.parametrize(
    ("engine", "selects", "wrong"), [(8, True, True), (8, False, False), (7, True, False)]
)
def test_engine_8_is_rejected_where_a_selection_reads_a_convolution(
    engine: int, selects: bool, wrong: bool
) -> None:
    g = ct.Graph()
    y = g.conv(g.input((1, 8, 7, 9)), g.input((8, 8, 3, 3)), padding=1)
    result = g.select(y > 0.0, y, 0.5 * y) if selects else g.relu(y)
    assert bool(rules_of(g.define(result)).why_wrong(Engine(engine, ()), ())) == wrong


@pytest.mark.parametrize(
    ("channels", "kernels", "dtype", "wrong"),
    [
        (4, 4, "float16", {2}),
        (16, 12, "bfloat16", {2}),
        (8, 6, "float16", {2}),
        (2, 8, "float16", {1, 2}),
        (2, 8, "float32", {2}),
        (8, 16, "float16", set()),
    ],
)
def test_engines_are_rejected_where_operations_follow_filters_of_few_channels(
    channels: int, kernels: int, dtype: str, wrong: set[int]
) -> None:
    g = ct.Graph()
    shapes = (2, kernels, 5, 3), (2, channels, 6, 4)
    dy, x = (g.input(shape, dtype, layout="nhwc") for shape in shapes)
    dw = g.conv_backward_filter(dy, x, (kernels, channels, 2, 2))
    for result, expected in ((g.abs(dw), wrong), (dw, set())):
        rules = rules_of(g.define(result))
        assert {engine for engine in range(6) if rules.why_wrong(Engine(engine), ())} == expected


@pytest.mark.parametrize(("dilation", "wrong"), [(2, True), ((1, 2), True), (1, False)])
def test_graphs_reject_data_gradients_of_training_with_stride_and_dilation(
    dilation: Any, wrong: bool
) -> None:
    geometry: dict[str, Any] = {"stride": (1, 2), "dilation": dilation, "padding": 1}
    x, w = (2, 8, 9, 9), (8, 8, 3, 3)
    g = ct.Graph()
    dy = g.input(ct.conv_output_shape(x, w, **geometry), "float16", layout="nhwc")
    dx = g.conv_backward_data(dy, g.input(w, "float16", layout="nhwc"), x, **geometry)
    data = g.input(x, "float16", layout="nhwc")
    dz = g.relu_backward(dx, data)
    parts = g.bn_backward_weights(dz, data, *(g.input((1, 8, 1, 1)) for _ in range(3)))
    assert bool(rules_of(g.define(dz.output(), *parts.values())).why_wrong(Engine(1), ())) == wrong
