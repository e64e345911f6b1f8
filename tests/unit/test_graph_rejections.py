"""Graphs that cuDNN computes wrong: ct.Graph rejects them, or copies their inputs before."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct.ops.graph.lower import coalesced, lowered, with_copies
from tests.facts.native import check_built as check
from tests.facts.native import check_layouts, rejection

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


# --- inputs that are copied before engines read them -------------------------------------------------------


GRADIENTS = ("relu", "tanh", "sigmoid", "elu", "gelu", "softplus", "swish")


def copies(build: Build) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype of the inputs of a graph that are copied."""
    g = ct.Graph()
    problem = g.define(build(g))
    changed = with_copies(problem)
    check_layouts(lowered(changed))
    pairs = zip(problem.memory, changed.memory, strict=True)
    return {old.name: (new.spec.shape, new.spec.dtype) for old, new in pairs if old != new}


def add(whole: tuple[int, ...], small: tuple[int, ...]) -> Build:
    return lambda g: g.relu(g.input(whole, name="x") + g.input(small, name="b"))


@pytest.mark.parametrize(
    ("whole", "small", "copied"),
    [
        ((5, 24), (24,), False),
        ((5, 24), (5, 1), False),
        ((5, 24), (1, 1), False),
        ((3, 5, 8), (3, 1, 8), False),
        ((3, 5, 8), (5, 8), False),
        ((3, 5, 8), (3, 1, 1), False),
        ((3, 5, 8), (1, 5, 1), True),
        ((2, 3, 5, 8), (2, 1, 5, 8), False),
        ((2, 3, 5, 8), (1, 3, 1, 1), True),
        ((2, 3, 5, 8), (1, 3, 1, 8), True),
        ((2, 3, 5, 8), (2, 1, 5, 1), True),
        ((2, 3, 4, 5, 8), (1, 3, 1, 5, 1), True),
    ],
)
def test_inputs_are_repeated_where_engines_broadcast_wrong(
    whole: tuple[int, ...], small: tuple[int, ...], copied: bool
) -> None:
    assert copies(add(whole, small)) == ({"b": (whole, "float32")} if copied else {})


def test_operands_are_repeated_until_one_is_whole() -> None:
    assert copies(add((5, 1), (1, 24))) == {"b": ((5, 24), "float32")}
    assert copies(add((2, 1, 4, 1), (1, 3, 1, 5))) == dict.fromkeys(("x", "b"), ((2, 3, 4, 5), "float32"))


def test_columns_that_the_graph_computes_are_computed_of_repeated_inputs() -> None:
    def scaled(shape: tuple[int, ...]) -> Build:
        return lambda g: g.input((5, 24)) * g.swish(g.exp(g.input(shape, name="b")))

    assert copies(scaled((5, 1))) == {"b": ((5, 24), "float32")}
    assert copies(scaled((1, 24))) == {}


@pytest.mark.parametrize("activation", GRADIENTS)
def test_gradients_of_activations_read_no_columns(activation: str) -> None:
    def gradient(dy: tuple[int, ...], x: tuple[int, ...]) -> Build:
        def build(g: ct.Graph) -> ct.GraphTensor:
            made: ct.GraphTensor = getattr(g, f"{activation}_backward")(g.input(dy), g.input(x))
            return made

        return build

    whole = (5, 24)
    for row in ((1, 24), (24,)):
        assert copies(gradient(whole, row)) == copies(gradient(row, whole)) == {}
    assert copies(gradient(whole, (1, 1))) == {}
    for small in ((5, 1), (1, 1)):
        assert copies(gradient(small, whole)) == {"input_0": (whole, "float32")}
    assert copies(gradient(whole, (5, 1))) == {"input_1": (whole, "float32")}


def test_column_next_to_an_index_is_repeated_for_a_gradient_alone() -> None:
    def of_index(g: ct.Graph) -> tuple[ct.GraphTensor, ct.GraphTensor]:
        x = g.input((5, 7))
        return g.gen_index(x, 1) * x, g.input((5, 1), name="column")

    assert copies(lambda g: g.swish_backward(*of_index(g))) == {"column": ((5, 7), "float32")}
    assert copies(lambda g: g.add(*of_index(g))) == {}


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("activation", GRADIENTS)
def test_gradients_of_activations_behind_convolutions_read_channels_last(
    activation: str, layout: Any
) -> None:
    x, w = (2, 16, 6, 5), (8, 16, 3, 3)

    def build(g: ct.Graph) -> ct.GraphTensor:
        dy = g.input((2, 8, 4, 3), "float16", layout="nhwc")
        dx = g.conv_backward_data(dy, g.input(w, "float16", layout="nhwc"), x)
        small = g.input((1, 16, 1, 1), "float16", layout=layout, name="small")
        made: ct.GraphTensor = getattr(g, f"{activation}_backward")(dx, small)
        return made

    assert copies(build) == ({} if layout == "nhwc" else {"small": (x, "float16")})


def test_inputs_that_other_operations_read_too_are_not_repeated() -> None:
    def build(g: ct.Graph) -> ct.GraphTensor:
        b = g.input((5, 1))
        return g.tanh_backward(g.input((5, 24)), b) * g.reduce(b, "add", 0)

    with rejection(r"float32\[.*\] .* is broadcast to"):
        copies(build)


def test_inputs_of_whole_numbers_are_not_repeated() -> None:
    with rejection("is broadcast to"):
        copies(lambda g: g.input((3, 5, 8)) + g.input((1, 5, 1), "int8"))


def test_equal_graphs_with_different_zeros_keep_them() -> None:
    for zero in (0.0, -0.0):
        g = ct.Graph()
        y = g.input((3, 5, 8)) * g.input((1, 5, 1)) * zero
        constants = [one.value for one in with_copies(g.define(y)).values if one.role == "constant"]
        assert [str(one) for one in constants] == [str(zero)]


# --- conversions --------------------------------------------------------------------------------------------


def product(
    a: str, b: str, terms: int, *, computed: str = "a", a_strides: Any = None, b_strides: Any = None
) -> Build:
    def build(g: ct.Graph) -> ct.GraphTensor:
        left = g.input((5, terms), a, strides=a_strides, name="a")
        right = g.input((terms, 8), b, strides=b_strides, name="b")
        left = g.relu(left) if "a" in computed else left
        right = g.relu(right) if "b" in computed else right
        return left @ right

    return build


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("terms", [16, 17])
def test_rows_of_half_words_are_converted_before_products_in_float32(half: str, terms: int) -> None:
    odd = terms % 2 == 1
    wide = (5, terms), "float32"
    assert copies(product(half, "float32", terms)) == ({"a": wide} if odd else {})
    assert copies(product(half, half, terms)) == {}
    assert copies(product("float32", half, terms)) == {}
    assert copies(product("float32", half, terms, computed="b")) == {}  # its rows have 8 elements
    columns = product("float32", half, terms, computed="b", b_strides=(1, terms))
    assert copies(columns) == ({"b": ((terms, 8), "float32")} if odd else {})
    both = product("float32", half, terms, computed="ab", b_strides=(1, terms))
    assert copies(both) == ({"b": ((terms, 8), "float32")} if odd else {})
    assert copies(product(half, "float32", terms, a_strides=(1, 5))) == {"a": wide}  # columns of 5


def test_channels_of_half_words_are_converted_before_convolutions_in_float32() -> None:
    def build(g: ct.Graph) -> ct.GraphTensor:
        x = g.input((1, 5, 6, 6), "float16", layout="nhwc", name="x")
        return g.conv(g.relu(x), g.input((8, 5, 1, 1), layout="nhwc"))

    assert copies(build) == {"x": ((1, 5, 6, 6), "float32")}
