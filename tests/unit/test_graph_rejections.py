"""Graphs that ct.Graph rejects because cuDNN computes them wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct.ops.graph.lower import coalesced
from tests.facts.native import check_built as check
from tests.facts.native import rejection

Build = Callable[[ct.Graph], Any]


def images(g: ct.Graph, layout: Any = "nhwc", channels: int = 8) -> ct.GraphTensor:
    return g.input((2, channels, 6, 7), layout=layout)


@pytest.mark.parametrize(
    ("layout", "channels", "message"),
    [("nhwc", 8, ""), ("nhwc", 1, ""), ("nchw", 8, "indices"), ("nchw", 1, "indices")],
)
def test_pooling_with_indices_needs_channels_last(layout: Any, channels: int, message: str) -> None:
    message = message and "does not write the indices of a pooling unless all tensors have the layout"
    check(lambda g: g.resample_with_indices(images(g, layout, channels), 2), message)


def test_pooling_with_indices_is_rejected_when_an_output_has_another_layout() -> None:
    def build(g: ct.Graph) -> Any:
        y, indices = g.resample_with_indices(images(g), 2)
        return y, indices.output(layout="nchw")

    check(build, "does not write the indices")
    check(lambda g: g.resample_with_indices(images(g, "nchw"), 2)[0])  # no node writes the indices


@pytest.mark.parametrize("mode", ["avgpool", "avgpool_exclude_padding", "maxpool"])
def test_pooling_of_computed_operands_is_rejected(mode: Any) -> None:
    computed: list[Build] = [
        lambda g: g.resample(g.abs(images(g)), mode, 2),
        lambda g: g.resample(g.abs(images(g)).output(), mode, 2),
        lambda g: g.resample(g.tanh_backward(images(g), images(g)), mode, 2),
        lambda g: g.resample(g.select(images(g) > 0.0, images(g), 1.0), mode, 2),
    ]
    for build in computed:
        check(build, "pools operands that the graph computes wrong")
    check(lambda g: g.abs(g.resample(images(g), mode, 2)))


@pytest.mark.parametrize(
    ("layout", "mode", "padding", "message"),
    [
        ("nchw", "avgpool", ((1, 1), (0, 1)), r"got padding \(1, 0\) and \(1, 1\); pass"),
        ("nchw", "avgpool", ((1, 1), (1, 0)), ""),
        ("nchw", "avgpool_exclude_padding", ((1, 1), (0, 1)), ""),
        ("nhwc", "avgpool", ((1, 1), (0, 1)), ""),
    ],
)
def test_average_pooling_is_rejected_when_more_padding_follows(
    layout: Any, mode: Any, padding: Any, message: str
) -> None:
    check(lambda g: g.resample(images(g, layout), mode, 3, padding=padding), message)


def test_tensor_in_memory_is_rejected_when_it_is_bool() -> None:
    g = ct.Graph()
    with rejection(r"input cannot be bool: cuDNN reads .* pass int8, uint8 or"):
        g.input((3,), "bool")
    x = g.input((3,))
    with rejection("output 'cmp_gt_0' cannot be bool"):
        (x > 0.0).output(dtype="bool")
    other = ct.Graph(intermediate_dtype="bool")
    with rejection("output 'cmp_eq_0' cannot be bool"):
        other.define(other.input((3,), "int8") == 0.0)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "float32"])
@pytest.mark.parametrize("size", [(6, 7), (4, 6, 7)], ids=["images", "volumes"])
def test_sums_of_channels_are_rejected_when_they_are_not_float32(
    size: tuple[int, ...], dtype: str, place: int
) -> None:
    def build(g: ct.Graph) -> Any:
        x, w = g.input((2, 8, *size), "float16", layout="nhwc"), (8, 8, *(1,) * len(size))
        y = g.conv(x, g.input(w, "float16", layout="nhwc"))
        sums = g.gen_stats(y)
        sums[place].output(dtype=dtype)
        return y, *sums

    check(build, "" if dtype == "float32" else rf"gen_stats adds in float32.*: got {dtype}\[1, 8, 1, 1")


@pytest.mark.parametrize("activation", ["relu", "swish", "gelu"])
def test_norm_and_gradient_of_an_activation_are_rejected_together(activation: str) -> None:
    def build(g: ct.Graph, *, gradient: bool = True) -> Any:
        x, w = g.input((16, 64)), g.input((64,))
        y = g.layer_norm(x, w, w)
        return getattr(g, f"{activation}_backward")(y, x) if gradient else getattr(g, activation)(y)

    check(build, "ends the process when it compiles a norm")
    check(lambda g: build(g, gradient=False))


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_norm_and_product_are_rejected_together(rank: int) -> None:
    """The rows of such a norm become images of one pixel, whose last axes the product would take."""

    def build(g: ct.Graph, *, first: bool = True) -> Any:
        x, w = g.input((2, 3, 16, 16)[-rank:]), g.input((16,))
        return g.rms_norm(x, w) @ x if first else g.rms_norm(x @ x, w)

    for first in (True, False):
        check(partial(build, first=first), "matmul cannot be in one graph with a norm")


def test_rows_of_products_are_not_merged_next_to_a_norm() -> None:
    g = ct.Graph()
    x = g.input((2, 3, 4, 16, 16))
    problem = coalesced(g.define(g.rms_norm(x, g.input((16,))) @ x))
    assert problem.values[problem.outputs[0]].spec.shape == (24, 16, 16)


@pytest.mark.parametrize("kind", ["conv", "data", "filter"])
@pytest.mark.parametrize("dtypes", [("float16", "bfloat16"), ("bfloat16", "float16"), ("float16", "float16")])
def test_convolutions_of_both_half_precisions(kind: str, dtypes: tuple[str, str]) -> None:
    """One engine accepts them, and computes wrong results."""

    def build(g: ct.Graph) -> Any:
        x, w = (2, 8, 6, 7), (16, 8, 1, 1)
        shapes = {"conv": (x, w), "data": ((2, 16, 6, 7), w), "filter": ((2, 16, 6, 7), x)}[kind]
        first, second = (
            g.input(shape, dtype, layout="nhwc") for shape, dtype in zip(shapes, dtypes, strict=True)
        )
        if kind == "conv":
            return g.relu(g.conv(first, second))
        if kind == "data":
            return g.relu(g.conv_backward_data(first, second, x))
        return g.relu(g.conv_backward_filter(first, second, w))

    check(build, "wrong convolutions of float16 and bfloat16" if len(set(dtypes)) > 1 else "")


@pytest.mark.parametrize(
    ("layouts", "size", "message"),
    [
        (("nhwc", "nhwc", None), 6, ""),
        (("nhwc", "nhwc", "nchw"), 3, ""),  # of one pixel: the same memory
        (("nhwc", "nchw", None), 6, "have one layout"),
        (("nchw", "nchw", None), 3, "have the layout nhwc"),
    ],
)
def test_fused_convolutions_have_one_layout(layouts: Any, size: int, message: str) -> None:
    def build(g: ct.Graph) -> Any:
        x, w = g.input((2, 8, size, size), layout=layouts[0]), g.input((8, 8, 3, 3), layout=layouts[1])
        y = g.relu(g.conv(x, w))
        return y.output(layout=layouts[2]) if layouts[2] else y

    check(build, message)


@pytest.mark.parametrize(("layout", "message"), [("nchw", "have the layout nhwc"), ("nhwc", "")])
@pytest.mark.parametrize("direction", ["data", "filter"])
def test_fused_gradients_of_one_pixel_are_channels_last(direction: str, layout: Any, message: str) -> None:
    def build(g: ct.Graph) -> Any:
        if direction == "data":
            dy, w = g.input((2, 8, 1, 1), layout=layout), g.input((8, 8, 3, 1), layout=layout)
            return g.cos(g.conv_backward_data(dy, w, (2, 8, 1, 1), padding=(1, 0)))
        dy, x = (g.input((2, 8, 3, 3), layout=layout) for _ in range(2))
        return g.cos(g.conv_backward_filter(dy, x, (8, 8, 1, 1)))

    check(build, message)


@pytest.mark.parametrize(
    ("columns", "strides", "right"),
    [(8, (8, 1), True), (6, (6, 1), False), (8, (11, 1), False), (6, (1, 64), True), (1, (1, 1), False)],
)
def test_bytes_that_become_operands_of_products_are_words(columns: int, strides: Any, right: bool) -> None:
    def build(g: ct.Graph) -> Any:
        w = g.input((64, columns), "int8", strides=strides)
        return g.matmul(g.input((16, 64), "float16"), w * 0.5)

    check(build, "" if right else "must be multiples of 4")


def test_results_of_reductions_have_no_gaps() -> None:
    def build(g: ct.Graph) -> Any:
        y = g.reduce(g.matmul(g.input((3, 16, 8)), g.input((3, 8, 4))), axes=1)
        return y.output(strides=(8, 8, 1))

    check(build, "writes between the elements")


def test_a_bias_of_a_filter_gradient_is_rejected() -> None:
    def build(g: ct.Graph) -> Any:
        dy, x = (g.input((2, 8, n, n), layout="nhwc") for n in (4, 6))
        return g.conv_backward_filter(dy, x, (8, 8, 3, 3)) + g.input((1, 8, 1, 1), layout="nhwc")

    check(build, "is broadcast to")
