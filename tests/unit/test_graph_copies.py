"""Inputs of graphs that are copied before engines read them: repeated along axes, or converted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct.ops.graph.lower import lowered, with_copies
from tests.facts.native import check_layouts, rejection

Build = Callable[[ct.Graph], ct.GraphTensor]
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
