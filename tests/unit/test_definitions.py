"""Native graphs of operations that the builder defines."""

from __future__ import annotations

import math

import pytest

import cudnn_ct as ct
from cudnn_ct.graph.operations import Graph, tensors_of_graph
from cudnn_ct.ops.conv.graph import as_images
from cudnn_ct.ops.conv.scaled import scaled_conv_graph
from cudnn_ct.ops.graph.lower import lowered
from cudnn_ct.ops.matmul.source import matmul_graph
from cudnn_ct.shapes.conv import conv_problem
from cudnn_ct.shapes.fused import scaled_conv_problem
from cudnn_ct.shapes.matmul import matmul_problem
from cudnn_ct.shapes.specs import TensorSpec


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
