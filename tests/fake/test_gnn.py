"""Aggregation and attention of graphs on the fakes: copies and saved results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError
from tests.gnn_cases import aggregate_operands, attention_operands, graph_of
from tests.strategies import own, shifted

from .cudnn import FakeCudnn

HEADS = 2


def graph(dtype: Any = np.int32) -> dict[str, np.ndarray]:
    return graph_of(np.random.default_rng(0), 3, 5, dtype=dtype)


def aggregated(given: dict[str, np.ndarray], columns: tuple[int, int, int] = (4, 2, 1)) -> dict[str, Any]:
    features = aggregate_operands(np.random.default_rng(1), given, 5, columns)
    return given | {name: one.astype(np.float32) for name, one in features.items()}


def attended(given: dict[str, np.ndarray]) -> dict[str, Any]:
    operands = attention_operands(np.random.default_rng(1), given, 5, 6, HEADS)
    return given | {name: one.astype(np.float32) for name, one in operands.items()}


def same(got: Any, wanted: Any) -> None:
    for result, expected in zip(got, wanted, strict=True):
        assert (result is None) == (expected is None)
        if result is not None:
            assert result.numpy().dtype == expected.dtype
            np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
def test_aggregation_and_its_gradient_agree_with_the_reference(fake: FakeCudnn, op: Any, dtype: Any) -> None:
    arrays = aggregated(graph(dtype))
    result = ct.graph_aggregate(**{name: own(one) for name, one in arrays.items()}, op=op)
    wanted = ct.reference.graph_aggregate(**arrays, op=op)
    same(result, wanted)
    dy, order = np.ones_like(wanted.y), arrays["order"]
    shapes: dict[str, Any] = {f"{name}_shape": arrays[name].shape for name in ("x", "edges")}
    placed = [own(one) for one in (dy, arrays["offsets"], arrays["indices"])]
    gradients = ct.graph_aggregate_backward(*placed, result.positions, own(order), **shapes, op=op)
    hosts = (dy, arrays["offsets"], arrays["indices"], wanted.positions, order)
    same(gradients, ct.reference.graph_aggregate_backward(*hosts, **shapes, op=op))


def test_absent_features_have_no_gradient(fake: FakeCudnn) -> None:
    given = graph()
    offsets, indices, dy = own(given["offsets"]), own(given["indices"]), ct.full((3, 2), 1)
    found = ct.graph_aggregate_backward(dy, offsets, indices, x_shape=(5, 2))
    assert (found.dedges, found.dconcat) == (None, None)
    found = ct.graph_aggregate_backward(dy, offsets, indices, edges_shape=(len(given["indices"]), 1))
    assert found.dx is None
    assert found.dconcat is not None


def test_features_are_copied_if_they_are_strided_or_misaligned(fake: FakeCudnn) -> None:
    arrays = aggregated(graph())
    wanted = ct.reference.graph_aggregate(**arrays)
    placed = {name: own(shifted(one, 1)) for name, one in arrays.items()}  # the fake rejects misaligned ones
    same(ct.graph_aggregate(**placed), wanted)
    placed["x"] = own(np.repeat(arrays["x"], 2, 1))[:, ::2]
    same(ct.graph_aggregate(**placed), wanted)
    assert "cudnnTransformTensor" in fake.names()


def test_strided_indices_are_rejected(fake: FakeCudnn) -> None:
    arrays = {name: own(one) for name, one in aggregated(graph()).items()}
    doubled = own(np.repeat(graph()["indices"], 2))[::2]
    with pytest.raises(ValueError, match=r"indices is not contiguous: got the strides \(2,\); pass a copy"):
        ct.graph_aggregate(**arrays | {"indices": doubled})


@pytest.mark.parametrize("concat", [True, False])
def test_attention_and_its_gradients_agree_with_the_reference(fake: FakeCudnn, concat: bool) -> None:
    arrays, keywords = attended(graph()), {"heads": HEADS, "concat": concat}
    placed = {name: own(one) for name, one in arrays.items()}
    result = ct.graph_attention(**placed, **keywords)
    wanted = ct.reference.graph_attention(**arrays, **keywords)
    same(result, wanted)
    dy = np.ones_like(wanted.y)
    saved = {"scores": result.scores, "activated": result.activated}
    gradients = ct.graph_attention_backward(own(dy), **placed, **saved, **keywords)
    hosts = {"scores": wanted.scores, "activated": wanted.activated}
    same(gradients, ct.reference.graph_attention_backward(dy, **arrays, **hosts, **keywords))
    assert gradients.dedges is not None
    without = {name: one for name, one in placed.items() if name != "edges"}
    assert ct.graph_attention_backward(own(dy), **without, **saved, **keywords).dedges is None


def test_gradients_of_half_precision_are_float32(fake: FakeCudnn) -> None:
    arrays = attended(graph())
    placed = {
        name: own(one.astype(np.float16) if one.dtype == np.float32 and name != "mask" else one)
        for name, one in arrays.items()
    }
    y, scores, activated = ct.graph_attention(**placed, heads=HEADS)
    assert [str(one.dtype) for one in (y, scores, activated)] == ["float16", "float32", "float16"]
    found = ct.graph_attention_backward(y, **placed, scores=scores, activated=activated, heads=HEADS)
    assert {str(one.dtype) for one in found if one is not None} == {"float32"}


def test_graphs_without_edges_have_results_of_zeros(fake: FakeCudnn) -> None:
    offsets, indices = ct.zeros((4,), "int32"), ct.zeros((0,), "int32")
    x, target, w = ct.full((5, 2), 1), ct.full((3, 2), 1), ct.full((2,), 1)
    assert not ct.graph_aggregate(offsets, indices, x).y.numpy().any()
    assert not ct.graph_attention(offsets, indices, x, target, w).y.numpy().any()
    assert not ct.graph_aggregate_backward(target, offsets, indices, x_shape=(5, 2)).dx.numpy().any()
    assert not [name for name in fake.names() if "Gnn" in name]
    for keywords in ({"op": "max"}, {"concat": target}):
        with pytest.raises(NotSupportedError, match="needs an edge for max, min and concat: got 0 edges"):
            ct.graph_aggregate(offsets, indices, x, **keywords)


def test_graphs_without_destinations_have_empty_results(fake: FakeCudnn) -> None:
    offsets, indices = ct.zeros((1,), "int32"), ct.zeros((0,), "int32")
    y, positions = ct.graph_aggregate(offsets, indices, ct.zeros((5, 2)), op="max")
    assert y.shape == (0, 2)
    assert positions.shape == (0, 2)


def test_leaky_relu_has_the_slope_of_positive_numbers_at_zero() -> None:
    """As cuDNN 9.28 computes it on an H200: gradients of a node add up to zero if its slopes are equal."""
    graph, x, target, w = ([0, 2], [0, 1]), np.array([[1.0], [3.0]]), np.array([[-1.0]]), np.ones(1)
    _, scores, activated = ct.reference.graph_attention(*graph, x, target, w)
    np.testing.assert_array_equal(activated, [[0], [2]])
    found = ct.reference.graph_attention_backward(np.ones((1, 1)), *graph, x, target, w, scores, activated)
    np.testing.assert_allclose(found.dtarget, 0, atol=1e-12)
