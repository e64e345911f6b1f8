"""A rejected operation explains itself, whatever its source of candidates is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct import algo_cache, explanations
from cudnn_ct.errors import NotSupportedError
from cudnn_ct.facts import Fact
from cudnn_ct.graph import explain
from cudnn_ct.legal import rules

from .cudnn import FakeCudnn
from .host import Host

CALLS: dict[str, Callable[[], Any]] = {
    "matmul": lambda: ct.matmul(ct.zeros((2, 8, 16), "float16"), ct.zeros((2, 16, 8), "float16")),
    "layer_norm": lambda: ct.layer_norm(ct.zeros((4, 64), "float16"), ct.zeros(64, "float16")),
    "wide layer_norm": lambda: ct.layer_norm(ct.zeros((4, 64), "float16"), ct.zeros(64)),
    "attention": lambda: ct.attention(*[ct.zeros((1, 2, 8, 64), "float16")] * 3),
    "conv": lambda: ct.conv_scale_bias_activation(
        ct.zeros((1, 8, 6, 6)), ct.zeros((8, 8, 3, 3)), ct.zeros(8), ct.zeros(8)
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_rejected_operation_asks_for_the_reasons_of_its_graph(
    fake: FakeCudnn, host: Host, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(explain, "explanation_of_rejection", lambda graph, *_: asked.append(graph))
    monkeypatch.setattr(
        algo_cache.Selection, "_planned", lambda *_: (_ for _ in ()).throw(NotSupportedError("no"))
    )
    fake.engines = True
    with pytest.raises(NotSupportedError):
        CALLS[name]()
    assert [type(graph).__name__ for graph in asked] == ["Graph"]


@pytest.fixture
def crash(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let a fact about a crash hold for each problem, and return the graphs that cuDNN is asked about."""
    asked: list[Any] = []
    fact = Fact("name", "reject", (), "crash", "it ends the process", "", "", (None, None), {})
    monkeypatch.setattr(rules, "_holding", lambda kind, *_: iter([fact] if kind == "reject" else []))
    for module in (explain, explanations):
        monkeypatch.setattr(module, "explain_graph", lambda graph, *_, **__: asked.append(graph))
    return asked


def test_operation_that_ends_the_process_is_not_asked_for_its_reasons(
    fake: FakeCudnn, crash: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        algo_cache.Selection, "_planned", lambda *_: (_ for _ in ()).throw(NotSupportedError("no"))
    )
    fake.engines = True
    with pytest.raises(NotSupportedError) as rejected:
        CALLS["matmul"]()
    assert rejected.value.explanation is None
    assert not crash


def test_graph_that_ends_the_process_is_explained_by_its_fact(fake: FakeCudnn, crash: list[Any]) -> None:
    fake.engines = True
    g = ct.Graph()
    found = ct.explain(g, g.relu(g.input((2, 8), "float16")))
    assert [str(reason) for reason in found.reasons] == ["it ends the process (fact name)"]
    assert not crash
