"""Aggregation and attention of graphs on a GPU, against float64: dtypes, reductions, heads and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.shapes.gnn import ACTIVATIONS, EXTREMES, REDUCTIONS
from tests.gnn_cases import DTYPES, aggregate_operands, attention_operands, graph_of

from .conftest import own_stream, place
from .ext import agree, answer, require

SMOOTH = ("sigmoid", "tanh", "elu")  # slopes that may be those of rounded vectors


def cast(arrays: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    kind = as_dtype(dtype).numpy
    return {name: one.astype(kind) if one.dtype == np.float64 else one for name, one in arrays.items()}


def lists(graph: dict[str, np.ndarray]) -> dict[str, list[int]]:
    return {name: one.tolist() for name, one in graph.items()}


def check_aggregate(
    graph: dict[str, np.ndarray], features: dict[str, np.ndarray], dtype: str, op: Any
) -> None:
    features = cast(features, dtype)
    placed = {name: place(one) for name, one in (graph | features).items()}
    what = f"{op} of {dtype}, {', '.join(f'{name} {one.spec}' for name, one in placed.items())}"
    result = ct.graph_aggregate(**placed, op=op)
    wanted = answer("graph_aggregate", features, op=op, **lists(graph))
    agree(f"y, {what}", result.y, wanted["y"], dtype)
    dy = np.random.default_rng(9).standard_normal(wanted["y"].value.shape).astype(features_dtype(features))
    shapes = {f"{name}_shape": features[name].shape for name in ("x", "edges") if name in features}
    gradients = ct.graph_aggregate_backward(
        place(dy),
        placed["offsets"],
        placed["indices"],
        result.positions,
        placed.get("order"),
        **shapes,
        op=op,
    )
    if op in EXTREMES:
        check_extremes(gradients, graph, features, dy, op)
        return
    wanted = answer("graph_aggregate_backward", {"dy": dy}, op=op, **shapes, **lists(graph))
    for name, one in gradients._asdict().items():
        assert (one is None) == (name not in wanted), name
        if one is not None:
            agree(f"{name}, {what}", one, wanted[name], dtype)


def features_dtype(features: dict[str, np.ndarray]) -> np.dtype:
    return next(iter(features.values())).dtype


def check_extremes(gradients: Any, graph: Any, features: Any, dy: np.ndarray, op: str) -> None:
    """The gradient arrives at elements that are extremes; of equal ones, any may have it."""
    order = graph.get("order", np.arange(len(graph["indices"])))
    begin = 0
    for name, rows in (("x", graph["indices"]), ("edges", order)):
        if name not in features:
            continue
        values, found = features[name].astype(np.float64), getattr(gradients, f"d{name}").numpy()
        allowed, total = np.zeros(values.shape, bool), np.zeros(values.shape[1])
        for v in range(len(graph["offsets"]) - 1):
            among = rows[graph["offsets"][v] : graph["offsets"][v + 1]]
            best = values[among].max(0) if op == "max" else values[among].min(0)
            allowed[among] |= values[among] == best
            total += dy[v, begin : begin + values.shape[1]].astype(np.float64)
        assert not found[~allowed].any(), f"d{name} of {op} has elements that are not extremes"
        error = np.abs(found.astype(np.float64).sum(0) - total)
        assert (error <= 0.02 * np.abs(dy.astype(np.float64)).sum(0).max()).all(), (name, op, error)
        begin += values.shape[1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_aggregation_agrees_with_float64(op: str, dtype: str) -> None:
    require("graph_aggregate")
    rng = np.random.default_rng(0)
    for columns in ((8, 0, 0), (0, 3, 0), (5, 3, 2), (33, 0, 7), (128, 64, 0), (1, 1, 1)):
        graph = graph_of(rng, 40, 30, 9)
        features = aggregate_operands(rng, graph, 30, columns)
        check_aggregate(graph, features, dtype, op)
        check_aggregate({name: graph[name] for name in ("offsets", "indices")}, features, dtype, op)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_aggregation_of_each_dtype_of_indices_agrees_with_float64(dtype: Any) -> None:
    require("graph_aggregate")
    rng = np.random.default_rng(1)
    graph = graph_of(rng, 1000, 77, 30, dtype)
    check_aggregate(graph, aggregate_operands(rng, graph, 77, (16, 4, 0)), "float32", "mean")


def test_large_graph_agrees_with_float64() -> None:
    """More destinations than the axes of a grid of blocks, which end at 65,535."""
    require("graph_aggregate")
    rng = np.random.default_rng(2)
    graph = graph_of(rng, 70_000, 50_000, 3)
    x = rng.standard_normal((50_000, 2)).astype(np.float32)
    y, _ = ct.graph_aggregate(place(graph["offsets"]), place(graph["indices"]), place(x))
    wanted = np.add.reduceat(x.astype(np.float64)[graph["indices"]], graph["offsets"][:-1])
    np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-5, atol=1e-5)
    dy = rng.standard_normal(y.shape).astype(np.float32)
    found = ct.graph_aggregate_backward(
        place(dy), place(graph["offsets"]), place(graph["indices"]), x_shape=x.shape
    )
    wanted = np.zeros(x.shape)
    np.add.at(wanted, graph["indices"], np.repeat(dy.astype(np.float64), np.diff(graph["offsets"]), axis=0))
    assert found.dx is not None
    np.testing.assert_allclose(found.dx.numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_aggregation_on_other_streams_and_in_replays_agrees_with_float64() -> None:
    require("graph_aggregate")
    rng = np.random.default_rng(3)
    graph = graph_of(rng, 40, 30, 9)
    features = cast(aggregate_operands(rng, graph, 30, (8, 3, 0)), "float32")
    wanted = answer("graph_aggregate", features, op="sum", **lists(graph))["y"]
    with ct.use(stream=own_stream()):
        placed = {name: place(one) for name, one in (graph | features).items()}
        out = place(np.full(wanted.value.shape, np.nan, np.float32))
        for turn in range(4):
            ct.graph_aggregate(**placed, out=(out,))
            agree(f"y of call {turn}", out, wanted, "float32")


def check_attention(
    graph: dict[str, np.ndarray], operands: dict[str, np.ndarray], dtype: str, **keywords: Any
) -> None:
    operands = cast(operands, dtype)
    placed = {name: place(one) for name, one in (graph | operands).items()}
    what = f"{dtype}, {keywords}, {', '.join(operands)}"
    result = ct.graph_attention(**placed, **keywords)
    wanted = answer("graph_attention", operands, **lists(graph), **keywords)
    for name, one in result._asdict().items():
        agree(f"{name}, {what}", one, wanted[name], dtype)
    if dtype != "float32" and keywords.get("activation") in SMOOTH:
        return
    dy = np.random.default_rng(9).standard_normal(wanted["y"].value.shape).astype(operands["x"].dtype)
    saved = {"scores": result.scores, "activated": result.activated}
    gradients = ct.graph_attention_backward(place(dy), **placed, **saved, **keywords)
    hosts = {"dy": dy, **{name: one.numpy() for name, one in saved.items()}}
    wanted = answer("graph_attention_backward", operands | hosts, **lists(graph), **keywords)
    for name, one in gradients._asdict().items():
        assert (one is None) == (name not in wanted), name
        if one is not None:
            agree(f"{name}, {what}", one, wanted[name], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_attention_agrees_with_float64(activation: str, dtype: str) -> None:
    require("graph_attention")
    rng = np.random.default_rng(4)
    for heads, features in ((1, 8), (2, 6), (4, 64), (8, 256), (3, 3)):
        graph = graph_of(rng, 40, 30, 9)
        operands = attention_operands(rng, graph, 30, features, heads)
        operands["w"] /= np.sqrt(features / heads)
        for concat in (True, False):
            check_attention(graph, operands, dtype, heads=heads, concat=concat, activation=activation)
    plain = {name: one for name, one in operands.items() if name not in ("edges", "mask")}
    check_attention({name: graph[name] for name in ("offsets", "indices")}, plain, dtype, heads=3)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_attention_of_each_dtype_of_indices_agrees_with_float64(dtype: Any) -> None:
    require("graph_attention")
    rng = np.random.default_rng(5)
    graph = graph_of(rng, 300, 77, 40, dtype)
    check_attention(graph, attention_operands(rng, graph, 77, 32, 4), "float32", heads=4)


def test_same_nodes_may_be_sources_and_destinations() -> None:
    require("graph_attention")
    rng = np.random.default_rng(6)
    graph = graph_of(rng, 30, 30, 9)
    operands = attention_operands(rng, graph, 30, 16, 2)
    check_attention(graph, operands | {"target": operands["x"]}, "float32", heads=2)
