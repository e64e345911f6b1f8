"""Convolutions fused with other operations, planned by the real cuDNN for a described GPU."""

from __future__ import annotations

from typing import Any

import pytest

from cudnn_ct.graph.gpus import description_of
from cudnn_ct.graph.offline import Planner
from cudnn_ct.ops.conv.scaled import FLOAT8_SOURCE
from cudnn_ct.ops.conv.scaled import SOURCE as SCALED_SOURCE
from cudnn_ct.ops.conv.training_graphs import FINALIZE_SOURCE
from cudnn_ct.shapes.conv import conv_problem
from cudnn_ct.shapes.fused import (
    ACTIVATIONS,
    Float8Conv,
    ScaledConv,
    float8_conv_problem,
    scaled_conv_problem,
)
from cudnn_ct.shapes.specs import Shape, TensorSpec
from cudnn_ct.shapes.training_fusions import finalize_problem
from cudnn_ct.typing import Layout
from tests.fusion_cases import IMAGES, WINDOW, channels, training_problems
from tests.nightly import share

from .test_graph import DEVICE, in_child
from .test_graph_operations import engines_missing, why_not_planned

pytestmark = pytest.mark.usefixtures("can_plan")

HOPPER = (9, 0)


def scaled(
    dtype: str = "float16",
    *,
    x: Shape = IMAGES,
    w: Shape = WINDOW,
    wide: str = "float32",
    z: bool = False,
    layout: Layout = "nhwc",
    activation: str = "relu",
    aligned: bool = True,
    **conv: Any,
) -> ScaledConv:
    data, filters = (TensorSpec.packed(shape, dtype, layout) for shape in (x, w))
    problem = conv_problem("forward", data, filters, **conv)
    specs = dict.fromkeys(("scale", "bias"), TensorSpec.packed(w[:1], wide))
    specs |= {"residual": problem.y} if z else {}
    return scaled_conv_problem(problem, specs, activation, 1.5, aligned=aligned)


def scaled_problems() -> dict[str, ScaledConv]:
    found = {
        f"{dtype} {one}": scaled(dtype, wide=wide, z=True, padding=1)
        for dtype in ("float16", "bfloat16", "float32")
        for one, wide in (("own", dtype), ("wide", "float32"))
    }
    found |= {name: scaled(activation=name) for name in ACTIVATIONS}
    found["channels first"] = scaled(layout="nchw", z=True)
    found["misaligned"] = scaled(aligned=False)
    found["uneven padding"] = scaled(padding=((1, 0), (0, 1)))
    found["without tensor cores"] = scaled("float32", precision="float32")
    found["one axis"] = scaled(x=(2, 3, 30), w=(5, 3, 3), stride=2)
    found["three axes"] = scaled("bfloat16", x=(2, 8, 9, 9, 9), w=(8, 8, 3, 3, 3))
    found["groups"] = scaled(w=(32, 16, 3, 3), groups=4)
    found["depthwise"] = scaled(w=(64, 1, 3, 3), groups=64)
    found["odd channels"] = scaled("float32", x=(2, 7, 11, 11), w=(9, 7, 3, 3), dilation=2)
    found["stem"] = scaled(x=(2, 3, 32, 32), w=(64, 3, 7, 7), padding=3, stride=2)
    found["pixel"] = scaled(x=(1, 64, 1, 1), w=(64, 64, 1, 1))
    return found


@in_child
def test_convolutions_with_scale_and_bias_become_plans() -> None:
    planner, problems = Planner(DEVICE), scaled_problems()
    if planner.library.version < 91900:  # 9.10.2 has no engine for it
        del problems["without tensor cores"]
    without = {name: why_not_planned(SCALED_SOURCE, one, planner) for name, one in share(problems.items(), 8)}
    assert {name: reason for name, reason in without.items() if reason} == {}


# --- float8 ---------------------------------------------------------------------------------------------


def float8(
    dtypes: str = "e4m3 e4m3 bfloat16",
    *,
    x: Shape = IMAGES,
    w: Shape = WINDOW,
    given: tuple[str, ...] = ("descale_x", "descale_w"),
    amax: bool = False,
    activation: str | None = None,
    layout: Layout = "nhwc",
    aligned: bool = True,
    **geometry: Any,
) -> Float8Conv:
    first, second, result = (one if one[0] != "e" else f"float8_{one}" for one in dtypes.split())
    specs = {"x": TensorSpec.packed(x, first, layout), "w": TensorSpec.packed(w, second, layout)}
    specs |= {name: channels(w[0] if name == "bias" else 1) for name in given}
    outs = (None, None) if amax else (None,)
    return float8_conv_problem(specs, outs, activation, result, aligned=aligned, **geometry)


def float8_problems() -> dict[str, Float8Conv]:
    results = ("bfloat16", "float16", "float32", "e4m3", "e5m2")
    found = {
        f"to {result}, amax {amax}": float8(f"e4m3 e4m3 {result}", amax=amax)
        for result in results
        for amax in (False, True)
    }
    found |= {f"{pair} amax": float8(f"{pair} float32", amax=True) for pair in ("e4m3 e5m2", "e5m2 e5m2")}
    every = ("bias", "descale_x", "descale_w", "scale")
    found["all scales, relu"] = float8("e4m3 e4m3 e4m3", given=every, activation="relu", amax=True)
    found["no scales"] = float8("e4m3 e4m3 float32", given=(), amax=True)
    found |= {name: float8(activation=name) for name in ("gelu", "gelu_tanh", "silu", "sigmoid", "tanh")}
    found["channels first"] = float8(layout="nchw", padding=1)
    found["misaligned"] = float8(aligned=False, amax=True)
    found["uneven padding"] = float8(padding=((1, 0), (0, 1)), amax=True)
    found["strided, dilated"] = float8(stride=2, dilation=2, padding=2)
    found["groups"] = float8(x=(2, 64, 9, 9), w=(32, 32, 3, 3), groups=2, given=every)
    found["one axis"] = float8(x=(2, 16, 30), w=(32, 16, 3), stride=2, amax=True)
    found["three axes"] = float8(x=(2, 16, 5, 6, 7), w=(16, 16, 3, 3, 3), amax=True)
    found["pixel"] = float8(x=(1, 16, 1, 1), w=(16, 16, 1, 1))
    return found


@pytest.mark.nightly
@in_child
def test_convolutions_of_float8_become_plans() -> None:
    planner = Planner(DEVICE)
    without = {name: why_not_planned(FLOAT8_SOURCE, one, planner) for name, one in float8_problems().items()}
    assert {name: reason for name, reason in without.items() if reason} == {}


@pytest.mark.nightly
@in_child
def test_convolutions_of_float8_have_engines_from_ada_on() -> None:
    for gpu, expected in (("a100", False), ("l4", True), ("b200", True)):
        planner = Planner(description_of(gpu))
        found = [not engines_missing(FLOAT8_SOURCE, one, planner) for one in float8_problems().values()]
        assert found == [expected] * len(found), gpu


@in_child
def test_convolutions_of_float8_that_are_rejected_have_no_engine() -> None:
    planner = Planner(DEVICE)
    for problem in (float8(w=(64, 1, 3, 3), groups=64), float8(w=(32, 32, 3, 3), groups=2, amax=True)):
        assert "no engine" in why_not_planned(FLOAT8_SOURCE, problem, planner)


# --- training ----------------------------------------------------------------------------------------------


GEOMETRIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "padded": {"padding": 1},
    "channels first": {"layout": "nchw", "padding": 1},
    "misaligned": {"aligned": False},
    "point, strided": {"w": (32, 64, 1, 1), "stride": 2},
    "dilated": {"dilation": 2, "padding": 2},
    "one axis": {"x": (2, 16, 30), "w": (8, 16, 3), "padding": 1},
    "eight channels": {"x": (1, 8, 7, 9), "w": (24, 8, 3, 3)},
}


@pytest.mark.nightly
@in_child
def test_fusions_of_training_become_plans() -> None:
    planner = Planner(DEVICE)
    without = {}
    for geometry, given in GEOMETRIES.items():
        for name, (source, problem) in training_problems(**given).items():
            without[f"{name} {geometry}"] = why_not_planned(source, problem, planner)
    for dtype in ("bfloat16", "float32"):
        for name, (source, problem) in training_problems(dtype).items():
            without[f"{name} {dtype}"] = why_not_planned(source, problem, planner)
    for eq_dtype in ("float16", "float32"):
        for count in (1, 8, 1000):
            names = ("sums", "square_sums", "scale", "bias", "running_mean", "running_var")
            specs = dict.fromkeys(names, channels(count))
            one = finalize_problem(specs, (None,) * 6, 100, 1e-5, 0.1, eq_dtype)
            without[f"finalize {eq_dtype} {count}"] = why_not_planned(FINALIZE_SOURCE, one, planner)
    assert {name: reason for name, reason in without.items() if reason} == {}


@in_child
def test_fusions_of_training_without_engines_are_rejected() -> None:
    """The docstrings name these limits."""
    planner = Planner(DEVICE)
    for given in ({"x": (2, 12, 9, 9), "w": (8, 12, 3, 3)}, {"x": (1, 8, 5, 5, 5), "w": (8, 8, 3, 3, 3)}):
        problems = training_problems(**given)
        for name in ("data", "filter"):
            assert "no engine" in why_not_planned(*problems[name], planner)
    source, problem = training_problems(x=(2, 3, 9, 9), w=(8, 3, 3, 3))["prologue"]
    assert "no engine" in why_not_planned(source, problem, planner)


@in_child
def test_fusions_of_training_obey_the_errata() -> None:
    planner = Planner(DEVICE)
    wrong: dict[str, Any] = {"x": (2, 16, 30), "w": (8, 16, 3), "stride": 2, "dilation": 2}
    problems = training_problems(**wrong)
    assert "where stride and dilation of an axis exceed 1" in why_not_planned(*problems.pop("data"), planner)
    assert [why_not_planned(*one, planner) for one in problems.values()] == [""] * 3
    for stride, dilation in (((2, 1), (1, 2)), (2, 1), (1, 2)):
        data = training_problems(stride=stride, dilation=dilation, padding=2)["data"]
        assert why_not_planned(*data, planner) == ""
