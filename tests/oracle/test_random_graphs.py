"""The script of random graphs: it runs on the fakes, and its bounds tell wrong results from rounding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

import cudnn_ct as ct
from cudnn_ct import facts
from cudnn_ct.errors import NotSupportedError
from cudnn_ct.graph.engines import Engine
from cudnn_ct.graph.layouts import wrong_conversions
from cudnn_ct.graph.offline import target_of
from cudnn_ct.legal.rules import engine_rules
from cudnn_ct.ops.graph import built
from cudnn_ct.ops.graph.lower import lowered, with_copies
from cudnn_ct.shapes.graph.problem import GraphProblem
from tests.facts.native import check_layouts

from . import random_graphs
from .graph_bounds import bounds, wrong_elements
from .graph_draws import draw_graph
from .without import take_out


def test_random_graphs_are_right_on_the_fakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.json"
    assert random_graphs.main(["--graphs", "12", "--variants", "1", "--fakes", "--json", str(rows)]) == 0
    assert "0 wrong, 0 errors, 0 crashes" in capsys.readouterr().out
    assert rows.read_text().count('"structure"') == 12


def test_findings_are_printed_with_the_command_that_repeats_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"graph": 3, "variant": 1, "structure": "float16: matmul", "status": "wrong", "text": "y[0] is 2"}
    monkeypatch.setattr(random_graphs, "_run", lambda *_: [row])
    assert random_graphs.main(["--seed", "7", "--graphs", "1"]) == 1
    printed = capsys.readouterr().out
    assert "python -m tests.oracle.random_graphs --seed 7 --graph 3 --variant 1" in printed
    assert "1 wrong" in printed


@pytest.mark.parametrize("number", range(20))
def test_bounds_allow_rounding_and_no_more(number: int) -> None:
    (graph, outputs), _ = draw_graph(0, number, 0, small=True)
    problem = graph.define(*outputs)
    arrays = random_graphs.drawn(problem)
    exact: Any = ct.reference.graph(problem, *arrays)
    results = exact if isinstance(exact, tuple) else (exact,)
    for place, got, (value, bound) in zip(problem.outputs, results, bounds(problem, arrays), strict=True):
        dtype = problem.values[place].spec.dtype
        assert not wrong_elements(got, value, bound, dtype).any()
        size = np.abs(value).max() + 1
        moved = (got.astype(np.float64) + 0.3 * size).astype(got.dtype)
        assert wrong_elements(moved, value, bound, dtype).mean() > 0.9


def test_bilinear_resampling_of_graphs_agrees_with_scipy() -> None:
    """A pixel of y is at half its index in x, and pixels behind the last one equal the last one."""
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 4)).astype("f")
    g = ct.Graph()
    y: Any = ct.reference.graph(g.define(g.resample(g.input(x.shape), "bilinear")), x)
    at = np.meshgrid(np.arange(10) / 2, np.arange(8) / 2, indexing="ij")
    for image, result in zip(x.reshape(-1, 5, 4), y.reshape(-1, 10, 8), strict=True):
        expected = ndimage.map_coordinates(image.astype(np.float64), at, order=1, mode="nearest")
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


# --- what has been wrong ------------------------------------------------------------------------------------

FOUND: dict[str, Callable[[GraphProblem, set[str]], bool]] = {
    "a filter of few channels": lambda problem, kinds: (
        "conv_backward_filter" in kinds
        and bool(engine_rules(problem, target_of(None)).why_wrong(Engine(2), ()))
    ),
    "a gradient behind a convolution": lambda problem, kinds: (
        bool(kinds & {"conv_forward", "conv_backward_data"}) and "pointwise_backward" in kinds
        and with_copies(problem) is not problem
    ),
    "rows of half words": lambda problem, _: bool(list(wrong_conversions(lowered(problem)))),
    "an index and the gradient at a column": lambda problem, kinds: (
        kinds == {"pointwise", "pointwise_backward"}
        and any(one.attribute("mode") == "gen_index" for one in problem.nodes)
        and with_copies(problem) is not problem
    ),
    "a broadcast": lambda problem, kinds: (
        kinds == {"pointwise"} and with_copies(problem) is not problem
    ),
}  # fmt: skip


def test_random_graphs_are_of_the_kinds_that_have_been_wrong() -> None:
    counts = dict.fromkeys(FOUND, 0)
    for number in range(200):
        (graph, outputs), _ = draw_graph(0, number, 0)
        problem = graph.define(*outputs)
        kinds = {one.kind for one in problem.nodes}
        for name, applies in FOUND.items():
            try:
                counts[name] += applies(problem, kinds)
            except NotSupportedError:
                continue
    assert min(counts.values()) >= 2, counts


def test_unguarded_graphs_reach_engines_without_copies() -> None:
    g = ct.Graph()
    problem = g.define(g.input((3, 5, 8)) + g.input((1, 5, 1)))
    with pytest.raises(NotSupportedError, match="is broadcast to"):
        check_layouts(lowered(problem))
    try:
        take_out(random_graphs._guards())
        check_layouts(lowered(problem))
        assert built.ENGINES.core_of(problem) is problem
        g = ct.Graph()
        data, filters = (g.input((4, 10, 8, 8), "float16") for _ in "yx")
        problem = g.define(g.relu(g.conv_backward_filter(data, filters, (10, 10, 1, 1))))
        assert {one.fact for one in engine_rules(problem, target_of(None)).rejections} <= {"pre-turing"}
    finally:
        facts.ignore(())
