"""Operations whose candidates are the engines of one graph: an invented one, on the fakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import NotSupportedError
from cudnn_ct.facts import Target
from cudnn_ct.graph import candidates
from cudnn_ct.graph.candidates import engine_candidates
from cudnn_ct.graph.rules import EngineRules, Named, Rejection
from cudnn_ct.ops._call import execute
from cudnn_ct.ops._graph_source import GraphSource, check_engine_name
from cudnn_ct.ops.activation import activation_graph
from cudnn_ct.plans.base import Candidate
from cudnn_ct.shapes.specs import ActivationSpec, TensorSpec
from tests.strategies import own, shifted

from .cudnn import FakeCudnn
from .test_conv import images
from .test_selection import Doubling, operation


class Clipping(Doubling):
    """The problem y = max(x, 0)."""


def rules_of(problem: Clipping, target: Target) -> EngineRules:
    wrong = Rejection("wrong for 5 rows", engines=tuple(range(200)))
    return EngineRules(rejections=(wrong,) if problem.x.shape[0] == 5 else ())


SOURCE = GraphSource(lambda problem: activation_graph(ActivationSpec("relu"), problem.x, problem.y), rules_of)


OPERATION = operation(SOURCE, "a clipping", Clipping, check_engine_name)


def clip(x: ct.DeviceArray, algo: Any = "heuristic", out: ct.DeviceArray | None = None) -> Candidate:
    """Clip an array, check the result, and return the selected candidate."""
    (y,) = execute(OPERATION, ("x",), (x,), (algo,), outs=(out,))
    np.testing.assert_array_equal(y.numpy(), np.maximum(x.numpy(), 0))
    return ct.last_plan().candidate


@pytest.fixture(autouse=True)
def _engines(fake: FakeCudnn) -> None:
    fake.engines = True


@pytest.mark.parametrize("algo", ["heuristic", "autotune", "engine 0", "graph engine 0"])
def test_graph_source_runs_the_engine_of_a_graph(algo: str) -> None:
    for _ in range(2):
        assert clip(images(2, 3, 4, 4), algo).algorithm == "engine 0"


def test_graph_source_copies_misaligned_operands_and_counts_the_copies(fake: FakeCudnn) -> None:
    fake.engine_workspace = 100
    x = np.arange(-8, 8, dtype="float32").reshape(1, 1, 4, 4)
    for offset in (0, 1, 3, 4):
        out = own(shifted(np.full_like(x, np.nan), offset))
        row = clip(own(shifted(x, offset)), out=out)
        assert row.workspace == 100 if offset % 4 == 0 else row.workspace >= 100 + 2 * x.nbytes


def test_graph_source_rejects_names_that_are_not_engines() -> None:
    with pytest.raises(
        ValueError, match="algo is unknown: got 'fft', expected 'heuristic', 'autotune', 'online' or"
    ):
        clip(images(2, 3, 4, 4), "fft")
    with pytest.warns(
        ct.CudnnWarning, match=r"algo='engine 7' fell back to graph engine 0 .*: cuDNN does not"
    ):
        assert clip(images(2, 3, 4, 4), "engine 7").algorithm == "engine 0"


def test_graph_source_rejects_candidates_that_are_wrong_or_not_engines() -> None:
    engine = Candidate("graph", "engine 0", "fma", 0, True)
    assert clip(images(2, 3, 4, 4), engine).algorithm == "engine 0"
    for row in (engine._replace(backend="legacy"), engine._replace(relayout=(("x", "nhwc"),))):
        with pytest.raises(NotSupportedError, match="expected an engine of a graph"):
            clip(images(2, 3, 4, 4), row)
    for algo in ("heuristic", "autotune", engine):
        with pytest.raises(NotSupportedError, match="wrong for 5 rows"):
            clip(images(5, 3, 4, 4), algo)


@pytest.mark.parametrize("first", [("engine 7", "engine 0"), ("engine 7",), ()])
def test_graph_source_takes_the_first_named_engine_without_heuristics(
    monkeypatch: pytest.MonkeyPatch, first: tuple[str, ...]
) -> None:
    """An engine that cuDNN does not support for the problem is skipped."""
    here, spec = context.current(streams.default_stream(0)), TensorSpec.packed((2, 3, 4, 4))
    graph = activation_graph(ActivationSpec("relu"), spec, spec)
    asked, heuristic_configs = [], candidates.heuristic_configs

    def counted(*arguments: Any) -> Any:
        asked.append(arguments)
        return heuristic_configs(*arguments)

    monkeypatch.setattr(candidates, "heuristic_configs", counted)
    rows = engine_candidates(graph, EngineRules(first=tuple(map(Named, first))), here, ["b"], first=1)
    assert [row.algorithm for row in rows] == ["engine 0"]
    assert bool(asked) == ("engine 0" not in first)
    every = engine_candidates(graph, EngineRules(first=tuple(map(Named, first))), here)
    assert [row.algorithm for row in every if not row.rejected] == ["engine 0"]


def test_named_engines_count_and_remain_when_the_heuristics_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    here, spec = context.current(streams.default_stream(0)), TensorSpec.packed((2, 3, 4, 4))
    graph = activation_graph(ActivationSpec("relu"), spec, spec)
    named = Candidate("graph", "engine 9", "fma", 0, True)
    monkeypatch.setattr(candidates, "engine_by_name", lambda *_: named)
    rules = EngineRules(first=(Named("engine 9", ((9, 0), (9, 1))),))
    assert engine_candidates(graph, rules, here, ["b"], most=1) == [named]
    assert len(engine_candidates(graph, rules, here, ["b"], most=2)) == 2

    def fail(*_: object) -> None:
        raise NotSupportedError("no engine")

    with monkeypatch.context() as patch:
        patch.setattr(candidates, "heuristic_configs", fail)
        assert engine_candidates(graph, rules, here, ["b"]) == [named]
    monkeypatch.setattr(candidates, "compute_capability", lambda _: (8, 0))  # they were measured on another
    assert "engine 9" not in [row.algorithm for row in engine_candidates(graph, rules, here, ["b"])]


@pytest.mark.parametrize(
    ("shape", "activation", "expected"),
    [
        ((4096, 64, 4096), "gelu", ("engine 7 knobs 24=22",)),
        ((4096, 128, 4096), "gelu", ("engine 4 knobs 24=42", "engine 7 knobs 24=22")),
        ((4096, 512, 4096), "gelu", ()),
        ((256, 64, 4096), "gelu", ()),
        ((4096, 64, 4096), "gelu_tanh", ()),
    ],
)
def test_products_with_exact_gelu_name_their_first_engine(
    shape: tuple[int, int, int], activation: Any, expected: tuple[str, ...]
) -> None:
    m, k, n = shape
    with ct.record_plans(shapes_only=True) as recorded:
        ct.matmul(ct.zeros((m, k), "bfloat16"), ct.zeros((k, n), "bfloat16"), activation=activation)
        g = ct.Graph()
        product = g.input((m, k), "bfloat16") @ g.input((k, n), "bfloat16")
        g.build(g.gelu(product, approximate=activation == "gelu_tanh")).prepare()
    names = [tuple(one.engine for one in wanted.rules.first) for wanted in recorded.requests.values()]
    assert names == [expected, expected]


def test_graph_source_gives_the_error_of_each_heuristic_mode(fake: FakeCudnn) -> None:
    fake.engines = False
    with pytest.raises(NotSupportedError) as caught:
        clip(images(2, 3, 4, 4))
    for mode in ("b", "a", "fallback"):
        assert f"engines of heuristics {mode}" in str(caught.value)


def test_rejections_have_reasons_and_successes_cost_no_call(fake: FakeCudnn) -> None:
    clip(images(2, 3, 4, 4))
    assert "cudnnSetCallback" not in {name for name, _ in fake.calls}
    fake.engines = False
    x = images(2, 3, 4, 4, 4)
    with pytest.raises(NotSupportedError) as caught:
        clip(x)
    assert caught.value.reasons
    assert "reason: " in str(caught.value)
    explained = [name for name, _ in fake.calls].count("cudnnSetCallback")
    assert explained == 2
    with pytest.raises(NotSupportedError):
        clip(x)
    assert [name for name, _ in fake.calls].count("cudnnSetCallback") == explained


def test_explain_calls_an_operation_and_returns_its_reasons_or_its_algorithm(fake: FakeCudnn) -> None:
    found = ct.explain(clip, images(2, 3, 4, 4))
    assert "is supported by graph engine 0" in str(found)
    fake.engines = False
    found = ct.explain(clip, images(2, 3, 4, 4, 5))
    assert "is not supported" in str(found)
    assert found.reasons
