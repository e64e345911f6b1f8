"""Attention planned by the real cuDNN, without a GPU, for the device of `tests/devices`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudnn_ct.dtypes import as_dtype
from cudnn_ct.graph.candidates import first_engine
from cudnn_ct.graph.offline import Planner, target_of
from cudnn_ct.graph.pixels import pixels
from cudnn_ct.graph.recording import PlanRequest
from cudnn_ct.legal.rules import engine_rules
from cudnn_ct.ops._formulas import conversion_graph
from cudnn_ct.ops.attention.core import core_of
from cudnn_ct.ops.attention.scaled import SOURCE as FLOAT8_SOURCE
from cudnn_ct.ops.attention.source import ENGINES, selection_graph
from cudnn_ct.shapes.attention import (
    SCALES,
    AttentionProblem,
    ScaledAttentionProblem,
    scaled_attention_problem,
)
from cudnn_ct.shapes.attention_rules import attention_gradient_problem, attention_problem
from cudnn_ct.shapes.specs import TensorSpec
from tests import scaled_attention_cases
from tests.attention_cases import CASES, NO_GRADIENT, Case, case, operands_of
from tests.nightly import share

from .test_graph import DEVICE, in_child, parameter


@pytest.fixture(autouse=True)
def _can_plan(cudnn: int) -> None:
    if cudnn < 91002:
        pytest.skip("attention needs cuDNN 9.10.2")


def problem_of(given: Case, *, gradient: bool, dropout: float = 0.0, **more: Any) -> AttentionProblem:
    """Return the problem of a case with contiguous operands."""
    packed = TensorSpec.packed
    arrays, keywords, dy = operands_of(given)
    named = dict(zip("qkv", arrays, strict=True)) | keywords
    shapes = {name: (one.shape, one.dtype) for name, one in named.items() if isinstance(one, np.ndarray)}
    specs = {name: packed(shape, as_dtype(dtype).name) for name, (shape, dtype) in shapes.items()}
    longest = (0, 0)
    if given.packed:
        specs |= {f"starts_{name}": packed((given.batch + 1,), "int32") for name in (*"qkvy", "stats")}
        specs |= dict.fromkeys(("lengths_q", "lengths_kv"), packed((given.batch,), "int32"))
        longest = (256, 256)
    if dropout:
        specs |= dict.fromkeys(("seed", "offset"), packed((1,), "int64"))
    masks = given.keywords.get("causal", False), given.keywords.get("window")
    arguments = (given.keywords.get("scale"), *masks, dropout, longest)
    if not gradient:
        return attention_problem(specs, (None, None), True, *arguments)
    specs |= dict.fromkeys(("dy", "y"), packed(dy.shape, given.dtype)) | {"stats": packed(dy.shape[:-1])}
    dbias = bool(given.bias) and given.bias_dtype != "bool"
    return attention_gradient_problem(specs, (None,) * 4, dbias, *arguments, **more)


def engines_of(problem: AttentionProblem, planner: Planner, *, compiled: bool = True) -> list[str]:
    """Return the engines that cuDNN's first choice has for a problem, after it compiled the first of them."""
    core = core_of(problem, planner.library.version)
    wrong = engine_rules(core.problem, target_of(planner)).refusal((9, 0))
    assert not wrong, wrong
    (first, *_) = ENGINES.heuristics(core.problem)
    rows = [row for row in first(planner) if not row.rejected]
    for row in rows[:compiled]:
        ENGINES.plan(core.problem, row, planner)
    return [row.algorithm for row in rows]


def forward_problems() -> dict[str, AttentionProblem]:
    found = {name: problem_of(given, gradient=False) for name, given in CASES.items()}
    for head in (8, 40, 96, 128, 160, 192, 256):
        given = case(head=head, value_head=head, causal=True)
        found[f"heads of {head}"] = problem_of(given, gradient=False)
    found["dropout"] = problem_of(case(causal=True), gradient=False, dropout=0.1)
    return found


def gradient_problems() -> dict[str, AttentionProblem]:
    found = {
        name: problem_of(given, gradient=True) for name, given in CASES.items() if name not in NO_GRADIENT
    }
    for head in (8, 40, 128, 192, 256):
        given = case(head=head, value_head=head, causal=True, queries=128, keys=128)
        found[f"heads of {head}"] = problem_of(given, gradient=True)
    found["deterministic"] = problem_of(case(), gradient=True, deterministic=True)
    found["dropout"] = problem_of(case(causal=True), gradient=True, dropout=0.1)
    return found


# Problems whose graphs have different nodes; compiling one takes half a second.
PLANNED = ("bottom right window", "bias of heads", "packed, causal", "heads of 256", "dropout")


@parameter("every", 3, 1)
@in_child
def test_cudnn_has_engines_of_attention(every: int) -> None:
    """All that are examined at night become plans."""
    planner = Planner(DEVICE)
    for problems in (forward_problems(), gradient_problems()):
        for name, problem in share(problems.items(), every):
            assert engines_of(problem, planner, compiled=every == 1 or name in PLANNED), name


@pytest.mark.nightly
@in_child
def test_cudnn_plans_masks_and_cleared_rows() -> None:
    planner = Planner(DEVICE)
    for dtype in ("float16", "bfloat16", "float32"):
        for rows, head in ((1, 8), (77, 40), (2048, 128)):
            first_engine(PlanRequest(selection_graph(rows, head, dtype)), planner)
    for dtype in ("float16", "bfloat16"):
        for count, channels in ((3, 1024), (1, 2), (1, 77)):
            mask, bias = pixels(count, channels, "int8"), pixels(count, channels, dtype)
            first_engine(PlanRequest(conversion_graph(mask, bias, "log")), planner)


# --- float8 ------------------------------------------------------------------------------------------------


def float8_problem(
    given: scaled_attention_cases.Case, *, stats: bool = True, amax: bool = True
) -> ScaledAttentionProblem:
    """Return the problem of a case with contiguous operands."""
    packed = TensorSpec.packed
    specs = {
        "q": packed((given.batch, given.heads, given.queries, given.head), given.dtype),
        "k": packed((given.batch, given.kv_heads, given.keys, given.head), given.dtype),
        "v": packed((given.batch, given.kv_heads, given.keys, given.value_head), given.dtype),
    }
    specs |= {name: packed((1,), "float32") for name in SCALES if name in given.scaled}
    outs = (None,) * (1 + stats + amax)
    return scaled_attention_problem(specs, outs, stats, amax, given.scale, given.causal, given.out_dtype)


def float8_engines_of(problem: ScaledAttentionProblem, planner: Any, *, compiled: bool = True) -> list[str]:
    """Return the engines for a problem, after cuDNN compiled the first of them."""
    rows = [row for find in FLOAT8_SOURCE.heuristics(problem) for row in find(planner) if not row.rejected]
    for row in rows[:compiled]:
        FLOAT8_SOURCE.plan(problem, row, planner)
    return [row.algorithm for row in rows]


@pytest.mark.nightly
@in_child
def test_cudnn_plans_attention_of_float8() -> None:
    planner = Planner(DEVICE)
    if planner.library.version < 91400:
        return
    for place, (name, given) in enumerate(scaled_attention_cases.CASES.items()):
        assert float8_engines_of(float8_problem(given), planner, compiled=place % 4 == 0), name
    plain = scaled_attention_cases.CASES["plain"]
    for stats, amax in ((False, False), (True, False), (False, True)):
        assert float8_engines_of(float8_problem(plain, stats=stats, amax=amax), planner)


@in_child
def test_cudnn_has_no_engine_for_attention_of_float8_that_is_rejected() -> None:
    """A newer version with engines for these should accept them."""
    planner = Planner(DEVICE)
    problem = float8_problem(scaled_attention_cases.CASES["plain"])
    packed = TensorSpec.packed
    q, y = packed((2, 4, 1, 64), problem.q.dtype), packed((2, 4, 64, 64), "bfloat16")
    one_query = problem._replace(q=q, y=q, stats=packed((2, 4, 1), "float32"))
    short = {name: packed((2, 4, 64, 24), problem.q.dtype) for name in "qkvy"}
    for rejected in (one_query, problem._replace(y=y), problem._replace(**short)):
        assert not float8_engines_of(rejected, planner), rejected
