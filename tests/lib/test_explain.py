"""Explanations of rejected graphs by the real cuDNN, for GPUs that are only described."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct import facts, testing
from cudnn_ct._bindings.enums import Severity
from cudnn_ct._bindings.types import cudnnCallback_t
from cudnn_ct._lib import load
from cudnn_ct.errors import NotSupportedError
from cudnn_ct.graph.candidates import engine_candidates, engine_plan
from cudnn_ct.graph.explain import explain_graph, explanation_of_rejection
from cudnn_ct.graph.offline import Planner
from cudnn_ct.graph.operations import Graph
from cudnn_ct.graph.rules import EngineRules
from cudnn_ct.ops.conv.candidates import CONVOLUTIONS
from cudnn_ct.plans.base import unsupported
from tests.graph_kinds import KINDS
from tests.rejected_graphs import REJECTED, matmul

from .test_graph import DEVICE, IMAGES, in_child, problem

pytestmark = pytest.mark.usefixtures("can_plan")

SHARE = 0.9  # of the messages that must name the property to change
SENTENCES = 92800  # the first version whose lines name most properties of attention
OLDER = 0.65  # of the messages of older versions: 18 of 23 of 9.10.2, 25 of 26 of 9.19, 30 of 44 of 9.27


def described(sm: int) -> Planner:
    """The H200 with another compute capability, such as 75: not a GPU that was recorded."""
    description = json.loads(DEVICE.read_text(encoding="utf-8"))
    return Planner({**description, "deviceVer": sm * 10})


def message(graph: Graph, planner: Planner) -> str:
    """The message of the error for a rejected graph; empty if an engine supports it."""
    explanation = explanation_of_rejection(graph, planner, "graph")
    return "" if explanation is None else str(unsupported("graph", [], explanation))


@in_child
def test_messages_name_the_property_to_change_for_rejections_of_public_reports() -> None:
    version = load().version
    named, missed = 0, []
    for name, row in REJECTED.items():
        text = message(row.graph(), described(row.sm))
        if text and any(cause in text for cause in row.causes):
            named += 1
        elif text and "this version of cuDNN does not" not in text:
            missed.append((name, text))
    share = SHARE if version >= SENTENCES else OLDER
    assert named >= share * (named + len(missed)), missed
    if version >= SENTENCES:
        assert named + len(missed) >= 40


@in_child
def test_explain_names_the_compute_type_of_a_product() -> None:
    planner = described(90)
    explanation = explain_graph(matmul("bfloat16", "bfloat16", "bfloat16", "float16"), planner)
    assert explanation.supported == ()
    assert explanation.changes[0] == "the compute type must be float32 (is float16)"
    first = explanation.reasons[0]
    assert (first.must_change, bool(first.engines)) == ("graph", True)
    assert "the compute type is float16: the compute type must be float32" in str(explanation)
    assert "input_compute_type_match" in str([reason.line for reason in explanation.reasons])
    engines = [number for reason in explanation.reasons for number in reason.engines]
    assert len(engines) == len(set(engines)) > 5, "each engine has one reason"


@in_child
def test_explain_names_another_gpu_when_no_change_of_the_graph_helps() -> None:
    explanation = explain_graph(KINDS["attention"](), described(75))
    assert explanation.changes == ("the GPU must have compute capability 8.0 (has 7.5)",)
    assert explanation.reasons[0].must_change == "gpu"


@in_child
def test_explain_returns_the_engines_of_a_supported_graph() -> None:
    planner = Planner(DEVICE)
    graph = CONVOLUTIONS.graph_of(problem(**IMAGES))
    offered = {
        int(row.algorithm.split()[1])
        for row in engine_candidates(graph, EngineRules(), planner, ["a", "fallback"])
        if not row.rejected
    }
    explanation = explain_graph(graph, planner)
    assert set(explanation.supported) == offered
    assert explanation.changes == ()
    assert not {*explanation.supported} & {n for reason in explanation.reasons for n in reason.engines}
    assert "is supported by engines" in str(explanation)
    assert explanation_of_rejection(graph, planner, "graph") is None


class Counting:
    """A cuDNN that counts the calls of each function."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._library, name)


@in_child
def test_planning_sets_no_callback_unless_a_graph_is_explained() -> None:
    planner = Planner(DEVICE)
    planner.library = counting = Counting(load())  # type: ignore[assignment]
    graph = CONVOLUTIONS.graph_of(problem(**IMAGES))
    (row,) = engine_candidates(graph, EngineRules(), planner, ["a"], first=1)
    engine_plan(graph, EngineRules(), row, planner, "graph")
    assert "cudnnBackendFinalize" in counting.calls
    assert not [name for name in counting.calls if "Callback" in name]
    rejected = matmul("bfloat16", "int8", "bfloat16")
    for times in (1, 1):  # the second error has the explanation of the first
        with pytest.raises(NotSupportedError, match="they must have one dtype") as caught:
            raise unsupported("graph", [], explanation_of_rejection(rejected, planner, "graph"))
        assert caught.value.reasons[0].must_change == "graph"
        assert counting.calls.count("cudnnSetCallback") == 2 * times


@in_child
def test_explain_restores_the_callback_of_the_process() -> None:
    planner = Planner(DEVICE)
    library, seen = load(), []
    mine = cudnnCallback_t(lambda level, data, debug, text: seen.append(level))
    library.cudnnSetCallback(1 << Severity.WARNING, None, mine)
    try:
        graph = matmul("bfloat16", "int8", "bfloat16")
        explain_graph(graph, planner, changes=False)
        during = len(seen)
        engine_candidates(graph, EngineRules(), planner)
        assert len(seen) > during
    finally:
        library.cudnnSetCallback(0, None, cudnnCallback_t())


def test_explain_plans_in_a_child_process_for_a_described_gpu() -> None:
    explanation = ct.explain(matmul("bfloat16", "bfloat16", "bfloat16", "float16"), device=str(DEVICE))
    assert explanation.problem.startswith("a graph of matmul on NVIDIA H200, cuDNN 9.")
    assert "the compute type must be float32" in explanation.changes[0]
    assert explanation.reasons[0].engines
    description = json.loads(DEVICE.read_text(encoding="utf-8"))
    wanted = problem(**IMAGES)._replace(direction="forward")
    assert ct.explain(wanted, device=description).supported
    with pytest.raises(ValueError, match=r"unknown GPU: got 'nowhere\.json'"):
        ct.explain(wanted, device="nowhere.json")


def product_of_integers() -> tuple[ct.Graph, Any]:
    graph = ct.Graph(compute_dtype="float16")
    return graph, graph.input((64, 64), "bfloat16") @ graph.input((64, 64), "bfloat16")


def test_description_of_a_device_that_is_wrong_is_named(cudnn: object) -> None:
    graph = ct.Graph()
    x = graph.input((8, 8), "float16")
    with pytest.raises(ValueError, match="cuDNN rejected device as a description of a device"):
        ct.explain(graph, x @ x, device={"deviceVer": "unknown"})


def test_engines_that_facts_reject_do_not_support_a_graph(
    cudnn: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = ct.Graph()
    product = graph.input((64, 64), "float16") @ graph.input((64, 64), "float16")
    first, *others = ct.explain(graph, product, device="h200").supported
    row = {"name": "mine", "kind": "engine", "operations": ["matmul"], "when": [], "engines": [first]}
    path = tmp_path / "facts.json"
    path.write_text(json.dumps({"facts": [{**row, "effect": "wrong", "message": "sums are wrong"}]}))
    monkeypatch.setattr(ct.config, "facts", str(path))
    facts.forget()
    testing.reset()
    try:
        explanation = ct.explain(graph, product, device="h200")
    finally:
        monkeypatch.undo()
        facts.forget()
        testing.reset()
    assert explanation.supported == tuple(others)
    assert explanation.reasons[0][:3] == ((first,), "graph", "sums are wrong (fact mine)")


@pytest.mark.nightly
def test_explain_takes_a_graph_with_its_outputs_and_its_value() -> None:
    graph, product = product_of_integers()
    explanation = ct.explain(graph, product, device="h200")
    assert explanation.supported == ()
    assert "the compute type must be float32" in explanation.changes[0]
    assert explanation.changes[1].startswith("input_0, input_1 and matmul_0 must be float16")
    assert ct.explain(graph.define(product), device="h200") == explanation
    with pytest.raises(ValueError, match="graph has no outputs"):
        ct.explain(graph, device="h200")


@pytest.mark.nightly
def test_explain_takes_a_built_graph() -> None:
    with ct.record_plans(shapes_only=True):
        graph = ct.Graph()
        x = graph.input((1, 64, 64), "bfloat16")
        built = graph.build(graph.relu(x @ graph.input((1, 64, 64), "bfloat16")))
    explanation = ct.explain(built, device="a100")
    assert explanation.supported
    assert "NVIDIA A100-SXM4-80GB" in explanation.problem
    rejected = ct.explain(built, device="t4")
    assert rejected.supported == ()
    assert rejected.reasons
