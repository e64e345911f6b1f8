"""Conditions of graphs: their dtypes, and logical operations as arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.ops.graph.lower import lowered
from cudnn_ct.ops.graph.rewrites import without_logic

Build = Callable[[ct.Graph, ct.GraphTensor], ct.GraphTensor]

CONDITIONS: dict[str, tuple[Build, Callable[[Any], Any], list[str]]] = {
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
