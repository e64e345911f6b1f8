"""Graphs of cuDNN's nodes that graphs of ct.Graph and of operations become."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import testing
from cudnn_ct.graph.attributes import graph_from_json, graph_to_json
from cudnn_ct.graph.operations import Graph, Tensor, tensors_of_graph
from cudnn_ct.ops.conv.graph import as_images
from cudnn_ct.ops.conv.scaled import scaled_conv_graph
from cudnn_ct.ops.graph.lower import lowered
from cudnn_ct.ops.graph.rewrites import without_logic
from cudnn_ct.ops.matmul.source import matmul_graph
from cudnn_ct.shapes.conv import conv_problem
from cudnn_ct.shapes.fused import scaled_conv_problem
from cudnn_ct.shapes.matmul import matmul_problem
from cudnn_ct.shapes.specs import TensorSpec
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


# --- native graphs of operations that the builder defines --------------------------------------------------


def product(alpha: float, y: TensorSpec | None = None) -> Graph:
    specs = {
        "a": TensorSpec.packed((2, 8, 16), "float16"),
        "b": TensorSpec.packed((2, 16, 8), "float16"),
    }
    return matmul_graph(matmul_problem(specs, (y,), "relu", alpha, None, None))


@pytest.mark.parametrize("alpha", [0.0, -0.0])
def test_definition_distinguishes_the_signs_of_zero(alpha: float) -> None:
    product(-alpha)
    (factor,) = (one.value for one in tensors_of_graph(product(alpha)).values() if one.value is not None)
    assert math.copysign(1, factor) == math.copysign(1, alpha)


def test_definition_gives_tensors_without_memory_the_strides_of_the_result() -> None:
    y = TensorSpec((2, 8, 8), (256, 16, 1), "float16")
    virtual = [one.spec for one in tensors_of_graph(product(2.0, y)).values() if one.virtual]
    assert [spec.strides for spec in virtual] == [y.strides] * 2


@pytest.mark.parametrize("columns", [8, 16])  # of the shape of the result, or not
def test_definition_converts_weights_in_their_memory_order(columns: int) -> None:
    specs = {
        "a": TensorSpec.packed((2, 16, 16), "float16"),
        "b": TensorSpec((2, 16, columns), (512, 24, 1), "int8"),
        "b_scale": TensorSpec.packed((1, 1, columns), "float32"),
    }
    problem = matmul_problem(
        specs | {"b_scale": TensorSpec.packed((columns,), "float32")}, (None,), None, 1.0, None, None
    )
    graph = matmul_graph(problem._replace(b_scale=specs["b_scale"]))
    virtual = [one.spec for one in tensors_of_graph(graph).values() if one.virtual]
    assert TensorSpec((2, 16, columns), (512, 24, 1), "float16") in virtual


def test_definition_keeps_the_order_of_pointers() -> None:
    graph = product(1.0)
    assert [one.spec.shape for one in graph.operands] == [(2, 8, 16), (2, 16, 8), (2, 8, 8)]


def test_definition_takes_strides_beyond_31_bits() -> None:
    a, b = (TensorSpec.packed(shape, "float16") for shape in ((2, 2**16, 2**16), (1, 2**16, 8)))
    graph = matmul_graph(matmul_problem({"a": a, "b": b}, (None,), None, 1.0, None, None))
    assert graph.operands[0].spec == a


def test_definition_may_pad_sides_differently_unlike_a_graph_of_a_user() -> None:
    x, w = (TensorSpec.packed(shape, "float16", "nhwc") for shape in ((2, 8, 6, 6), (8, 8, 3, 3)))
    channels, padding = TensorSpec.packed((8,), "float16"), ((0, 1), (2, 1))
    conv = conv_problem("forward", x, w, padding=padding)
    (first, *_) = scaled_conv_graph(
        scaled_conv_problem(conv, {"x": x, "w": w, "scale": channels, "bias": channels}, "relu", 0)
    ).nodes
    assert (first.attributes["pre_paddings"], first.attributes["post_paddings"]) == ((0, 2), (1, 1))
    g = ct.Graph()
    y = g.conv(g.input(x.shape, layout="nhwc"), g.input(w.shape, layout="nhwc"), padding=padding)
    with pytest.raises(ct.NotSupportedError, match="differs between the two sides"):
        lowered(g.define(y))


def test_as_images_gives_vectors_and_one_spatial_axis_the_axes_of_images() -> None:
    x, w = TensorSpec.packed((2, 8, 6), "float16"), TensorSpec.packed((4, 8, 3), "float16")
    channels = TensorSpec.packed((4,), "float16")
    problem = scaled_conv_problem(
        conv_problem("forward", x, w), {"x": x, "w": w, "scale": channels, "bias": channels}, "relu", 0
    )
    images = as_images(problem)
    assert (images.x.shape, images.scale.shape) == ((2, 8, 1, 6), (1, 4, 1, 1))
    assert all("nhwc" in spec.layouts for spec in (images.x, images.w, images.y))


# --- conditions: their dtypes, and logical operations as arithmetic ----------------------------------------


Condition = Callable[[ct.Graph, ct.GraphTensor], ct.GraphTensor]

CONDITIONS: dict[str, tuple[Condition, Callable[[Any], Any], list[str]]] = {
    "comparison": (lambda g, x: x > 1.0, lambda x: x > 1, ["cmp_gt"]),
    "and": (
        lambda g, x: g.logical_and(x > 0.0, x < 2.0),
        lambda x: (x > 0) & (x < 2),
        ["cmp_gt", "cmp_lt", "min"],
    ),
    "or": (
        lambda g, x: g.logical_or(x < 1.0, x > 2.0),
        lambda x: (x < 1) | (x > 2),
        ["cmp_lt", "cmp_gt", "max"],
    ),
    "not": (lambda g, x: g.logical_not(x > 1.0), lambda x: x <= 1, ["cmp_gt", "cmp_eq"]),
    "not of a number": (lambda g, x: g.logical_not(x), lambda x: x == 0, ["cmp_eq"]),
    "and of numbers": (
        lambda g, x: g.logical_and(x, g.logical_not(x - 2.0)),
        lambda x: x == 2,
        ["sub", "cmp_eq", "cmp_neq", "min"],
    ),
    "or of a constant": (lambda g, x: g.logical_or(x, 5.0), lambda x: x == x, ["cmp_neq", "max"]),
}


@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize(
    ("dtype", "stored"),
    [("float16", "float16"), ("float32", "float32"), ("int8", "float32"), ("int32", "float32")],
)
def test_condition_is_stored_in_the_dtype_of_outputs(name: str, dtype: str, stored: str) -> None:
    build, wanted, modes = CONDITIONS[name]
    g = ct.Graph()
    x = g.input((4,), dtype)
    problem = g.define(build(g, x).output(), (x == 1.0).output(dtype="int8"))
    numbers = np.arange(4, dtype=dtype)
    for one in (problem, without_logic(problem)):
        found, others = ct.reference.graph(one, numbers)
        assert (found.dtype, others.dtype) == (stored, "int8")
        assert found.tolist() == wanted(numbers).tolist()
        assert others.tolist() == [0, 1, 0, 0]
    graph = lowered(problem)
    assert [one.attributes["mode"] for one in graph.nodes][:-1] == modes
    assert "bool" not in str(graph)


def test_logic_of_int32_has_whole_numbers_when_computed_in_int32() -> None:
    g = ct.Graph(intermediate_dtype="int32", compute_dtype="int32")
    x = g.input((4,), "int32")
    problem = without_logic(g.define(g.logical_or(x, 0)))
    assert [value.value for value in problem.values if value.role == "constant"] == [0, 0, 0]
    assert ct.reference.graph(problem, np.arange(4, dtype="int32")).tolist() == [0, 1, 1, 1]


def test_graphs_without_logic_stay_as_they_are() -> None:
    g = ct.Graph()
    problem = g.define(g.select(g.input((4,)) > 0.0, 1.0, 2.0))
    assert without_logic(problem) is problem


@pytest.mark.parametrize("stored", ["float32", "float16", "int8", "int32"])
def test_comparison_of_int32_converts_operands_to_the_compute_dtype(stored: str) -> None:
    numbers = 2**24 + np.arange(3, dtype="int32"), np.full(3, 2**24, "int32")
    for compute, wanted in (("float32", [0, 0, 1]), ("float64", [0, 1, 1]), ("int32", [0, 1, 1])):
        g = ct.Graph(compute_dtype=compute)
        problem = g.define((g.input((3,), "int32") > g.input((3,), "int32")).output(dtype=stored))
        assert ct.reference.graph(problem, *numbers).tolist() == wanted
        assert lowered(problem).nodes[0].attributes["math_prec"] == compute


def test_int32_is_exact_when_the_result_is_int32() -> None:
    g = ct.Graph()
    x = g.input((2,), "int32")
    big = np.array([2**24 + 1, 5], "int32")
    outputs = (
        g.identity(x).output(dtype="int32"),
        g.identity(x).output(dtype="float64"),
        g.mul(x, 1.0).output(dtype="int32"),
        g.select(x > 6, x, 7).output(dtype="int32"),
    )
    problem = g.define(*outputs)
    found = [one.tolist() for one in ct.reference.graph(problem, big)]
    assert found == [[2**24 + 1, 5], [2**24, 5], [2**24, 5], [2**24, 7]]
    modes = [one.attributes["math_prec"] for one in lowered(problem).nodes]
    assert modes == ["int32", "float32", "float32", "float32", "float32"]
