"""Graphs of cuDNN's nodes that graphs of ct.Graph become, where cuDNN computes the direct form wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct import testing
from cudnn_ct.graph.attributes import graph_from_json, graph_to_json
from cudnn_ct.graph.operations import Graph, Tensor, tensors_of_graph
from cudnn_ct.ops.graph.lower import lowered
from tests.facts.native import check_layouts
from tests.tensor_cases import REDUCTIONS

Build = Callable[[ct.Graph, Any, Any], Any]


def lowered_graph(build: Build, shape: tuple[int, ...] = (8, 8)) -> Graph:
    g = ct.Graph()
    x, w = g.input(shape, "float16"), g.input(shape, "float16")
    return lowered(g.define(build(g, x, w), (x + w).output()))


def shared(graph: Graph) -> list[int | None]:
    return [one.same_memory_as for one in tensors_of_graph(graph).values() if one.same_memory_as]


# --- inputs with several uses -------------------------------------------------------------------------------

USES: dict[str, tuple[Build, int]] = {
    "both operands": (lambda g, x, w: x @ x, 2),
    "an operand and the epilogue": (lambda g, x, w: (x @ w) + x, 2),
    "both operands and the epilogue": (lambda g, x, w: (x @ x) * x, 2),
    "an operand and the other prologue": (lambda g, x, w: g.exp(x) @ x, 2),
    "both prologues": (lambda g, x, w: g.exp(x) @ g.sin(x), 2),
    "twice in one prologue": (lambda g, x, w: (x * g.sigmoid(x)) @ w, 2),
    "no product": (lambda g, x, w: x * g.sigmoid(x) + w, 0),
}


@pytest.mark.parametrize("name", USES)
def test_each_use_of_an_input_by_a_product_has_a_tensor(name: str) -> None:
    build, count = USES[name]
    graph = lowered_graph(build)
    operands = {one.uid for one in graph.operands}
    assert len(shared(graph)) == count  # x + w is a use, too
    assert set(shared(graph)) <= operands
    assert len(graph.operands) == 4
    for one in graph.nodes:
        if one.row == "matmul":
            a, b = (one.attributes[name] for name in ("adesc", "bdesc"))
            assert isinstance(a, Tensor)
            assert isinstance(b, Tensor)
            assert a.uid != b.uid


def test_elementwise_operations_are_computed_for_each_operand_of_a_product() -> None:
    graph = lowered_graph(lambda g, x, w: (lambda h: h @ h + h)(g.exp(g.abs(x) + w)))
    modes = [one.attributes.get("mode", one.row) for one in graph.nodes]
    assert modes == [*["abs"] * 3, *["add"] * 3, *["exp"] * 3, "matmul", "add", "add"]


def test_images_and_filters_of_one_memory_have_two_tensors() -> None:
    g = ct.Graph()
    x = g.input((4, 4, 3, 3), "float16", layout="nhwc")
    graph = lowered(g.define(g.conv(x, x, padding=1) + x))
    assert shared(graph) == [1, 1]


def test_tensors_with_the_memory_of_another_are_kept_as_json() -> None:
    graph = lowered_graph(lambda g, x, w: x @ x)
    assert graph_from_json(graph_to_json(graph)) == graph


# --- clipped relus ------------------------------------------------------------------------------------------

CLIPS: dict[str, tuple[dict[str, float], list[tuple[str, float | None]]]] = {
    "none": ({"slope": 0.5}, [("relu_fwd", None)]),
    "upper": ({"upper": 6.0}, [("relu_fwd", None), ("min", 6.0)]),
    "lower": ({"lower": 0.5}, [("max", 0.5)]),
    "both": ({"lower": 0.5, "upper": 6.0}, [("max", 0.5), ("min", 6.0)]),
    "slope and upper": ({"upper": 1.0, "slope": 0.1}, [("relu_fwd", None), ("min", 1.0)]),
    "all": (
        {"lower": 0.5, "upper": 6.0, "slope": 0.1},
        [("sub", 0.5), ("relu_fwd", None), ("add", 0.5), ("min", 6.0)],
    ),
}


@pytest.mark.parametrize("name", CLIPS)
def test_clipped_relu_next_to_a_product_has_no_clips(name: str) -> None:
    clips, expected = CLIPS[name]
    g = ct.Graph()
    x, w = g.input((8, 16), "float16"), g.input((16, 8), "float16")
    graph = lowered(g.define(g.relu(x @ w, **clips)))
    steps = [one.attributes for one in graph.nodes if one.row == "pointwise"]
    numbers = [getattr(one.get("bdesc"), "value", None) for one in steps]
    assert [(one["mode"], number) for one, number in zip(steps, numbers, strict=True)] == expected
    assert not any("relu_lower_clip" in one or "relu_upper_clip" in one for one in steps)
    slopes = [one["relu_lower_clip_slope"] for one in steps if "relu_lower_clip_slope" in one]
    assert slopes == ([clips["slope"]] if "slope" in clips else [])


def test_clipped_relu_without_a_product_is_one_node() -> None:
    g = ct.Graph()
    (one,) = lowered(g.define(g.relu(g.input((8, 16)), lower=0.5, upper=6.0))).nodes
    assert (one.attributes["relu_lower_clip"], one.attributes["relu_upper_clip"]) == (0.5, 6.0)


# --- indices ------------------------------------------------------------------------------------------------


def test_index_along_the_first_of_three_axes_is_computed_with_two() -> None:
    g = ct.Graph()
    x = g.input((33, 2, 4))
    (index, _) = lowered(g.define(x + g.gen_index(x, 0))).nodes
    assert index.attributes["axis"] == 1
    assert index.attributes["xdesc"].spec.shape == (1, 33, 8)  # type: ignore[attr-defined]


def test_index_along_the_first_of_three_axes_is_rejected_if_axes_cannot_be_merged() -> None:
    for axis, shape in ((0, (33, 2, 4)), (0, (1, 2, 4)), (1, (1, 2, 4)), (0, (2, 4))):
        g = ct.Graph()
        x = g.input(shape)
        graph = lowered(g.define(x + g.gen_index(x, axis) + g.input((shape[-2], 1))))
        rejected = shape[0] == 33
        check_layouts(graph, "wrong indices along the first of three axes" if rejected else "")


# --- reductions of single elements --------------------------------------------------------------------------


@pytest.mark.parametrize("op", REDUCTIONS)
def test_reduction_of_axes_of_length_1_is_elementwise(op: Any) -> None:
    g = ct.Graph()
    y = g.input((4, 8, 16)) @ g.input((1, 16, 1))
    graph = lowered(g.define(g.reduce(y, op, -1), y))
    expected = {"mul_no_zeros": ["cmp_eq", "add"], "amax": ["abs"], "norm1": ["abs"], "norm2": ["abs"]}
    modes = [one.attributes["mode"] for one in graph.nodes if one.row == "pointwise"]
    assert modes == expected.get(op, ["mul"])
    assert "reduction" not in [one.row for one in graph.nodes]


def test_reduction_of_a_longer_axis_stays_a_reduction() -> None:
    g = ct.Graph()
    y = g.input((4, 8, 16)) @ g.input((1, 16, 1))
    assert [one.row for one in lowered(g.define(g.reduce(y, "add", (1, 2)))).nodes] == ["matmul", "reduction"]


def test_rewrites_follow_from_facts() -> None:
    """A cuDNN that is out of the range of a fact gets the node itself."""
    g = ct.Graph()
    product = g.input((2, 8, 8)) @ g.input((2, 8, 8))
    problem = g.define(g.relu(product, lower=0.5))

    def modes() -> list[Any]:
        return [one.attributes.get("mode") for one in lowered(problem).nodes]

    assert "max" in modes()
    with testing.without_facts("graph-clips"):
        assert "max" not in modes()
        assert "relu_fwd" in modes()
