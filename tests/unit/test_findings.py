"""Engines that are ranked too high, and engines with wrong results, for problems as values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct.facts import Target
from cudnn_ct.graph.engines import Engine
from cudnn_ct.graph.rules import EngineRules
from cudnn_ct.legal.rules import engine_rules
from cudnn_ct.shapes.conv import ConvProblem
from cudnn_ct.shapes.fused import FusedConv
from cudnn_ct.shapes.specs import TensorSpec
from tests.conv_cases import packed_problem
from tests.fusion_cases import training_problems

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
    ],
)
def test_ranked_too_high_has_slow_engines_for_points_in_tf32(one: ConvProblem, behind: bool) -> None:
    assert ranked_too_high(one) & SLOW_ON_POINTS == (SLOW_ON_POINTS if behind else set())


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
        assert reasons == (["half of the sums", ""] if name == "filter" else ["", ""])


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
