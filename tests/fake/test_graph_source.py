"""Operations whose candidates are the engines of one graph: an invented one, on the fakes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import algo_cache
from cudnn_ct.autotune.request import request
from cudnn_ct.errors import NotSupportedError
from cudnn_ct.graph.candidates import EngineRules
from cudnn_ct.ops._call import execute
from cudnn_ct.ops._graph_source import GraphSource, check_engine_name
from cudnn_ct.ops._operation import Operation, Select
from cudnn_ct.ops.activation import activation_graph
from cudnn_ct.plans.base import Candidate
from cudnn_ct.shapes.specs import ActivationSpec, TensorSpec
from tests.strategies import own, shifted

from .cudnn import FakeCudnn
from .test_conv import images


class Clipping(NamedTuple):
    """The problem y = max(x, 0)."""

    x: TensorSpec
    y: TensorSpec
    scaled: str = ""
    aligned: bool = True

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        return (self.y,)

    @property
    def result(self) -> TensorSpec:
        return self.y

    @property
    def plain(self) -> Clipping:
        return self._replace(scaled="", aligned=True)


def rules_of(problem: Clipping) -> EngineRules:
    wrong = "wrong for 5 rows" if problem.x.shape[0] == 5 else ""
    return EngineRules(why_wrong=lambda engine, notes: wrong)


SOURCE = GraphSource(lambda problem: activation_graph(ActivationSpec("relu"), problem.x, problem.y), rules_of)


def make(specs: Any, outs: Any, algo: Any, *, scaled: str, aligned: bool) -> Clipping:
    return Clipping(specs["x"], outs[0] or specs["x"], scaled, aligned)


def select(problem: Clipping, params: tuple[Any, ...]) -> Select:
    wanted = request(params[0], False, None, False, problem, check_engine_name)
    return lambda context: algo_cache.select(problem, SOURCE, context, wanted)


OPERATION = Operation("a clipping", make, select=select)


def clip(x: ct.DeviceArray, algo: Any = "heuristic", out: ct.DeviceArray | None = None) -> Candidate:
    """Clip an array, check the result, and return the selected candidate."""
    (y,) = execute(OPERATION, ("x",), (x,), (algo,), outs=(out,))
    np.testing.assert_array_equal(y.numpy(), np.maximum(x.numpy(), 0))
    plan = ct.last_plan()
    assert plan is not None
    assert plan.candidate is not None
    return plan.candidate


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
    with pytest.raises(ValueError, match="algo is unknown: got 'fft', expected 'heuristic', 'autotune' or"):
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


def test_graph_source_gives_the_error_of_each_heuristic_mode(fake: FakeCudnn) -> None:
    fake.engines = False
    with pytest.raises(NotSupportedError) as caught:
        clip(images(2, 3, 4, 4))
    for mode in ("b", "a", "fallback"):
        assert f"engines of heuristics {mode}" in str(caught.value)
