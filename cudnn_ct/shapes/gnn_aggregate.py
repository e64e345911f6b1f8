"""Aggregation of the features of neighbours in a graph: its problem and its shapes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, Literal, NamedTuple

from .checks import Outs, Specs, one_dtype, packed_result
from .gnn_graph import FEATURES, check_rows, graph_sizes
from .layer import problem_class
from .parse import as_choice
from .specs import Shape, T, TensorSpec, check_shape

GraphReduction = Literal["sum", "mean", "max", "min"]
REDUCTIONS: tuple[GraphReduction, ...] = ("sum", "mean", "max", "min")
EXTREMES = ("max", "min")
WITHOUT_POSITIONS = "op is not max or min"  # why a result has no positions


class GraphAggregateResult(NamedTuple, Generic[T]):
    """The aggregated features; for maxima and minima also their positions, which the gradient reads."""

    y: T
    positions: T | None


class GraphAggregateGradients(NamedTuple, Generic[T]):
    """Gradients of the features of nodes, of edges and of those that are appended; None for absent ones."""

    dx: T | None
    dedges: T | None
    dconcat: T | None


@problem_class("aggregation of neighbours", "y positions")
class GraphAggregateProblem(NamedTuple):
    """An aggregation; features that are not given are None."""

    offsets: TensorSpec
    indices: TensorSpec
    order: TensorSpec | None
    x: TensorSpec | None
    edges: TensorSpec | None
    concat: TensorSpec | None
    y: TensorSpec
    positions: TensorSpec | None
    op: GraphReduction


@problem_class("gradient of an aggregation of neighbours", "dx dedges dconcat")
class GraphAggregateGradientProblem(NamedTuple):
    """The gradients of an aggregation; those of features that are not given have no columns."""

    offsets: TensorSpec
    indices: TensorSpec
    order: TensorSpec | None
    positions: TensorSpec | None
    dy: TensorSpec
    dx: TensorSpec
    dedges: TensorSpec
    dconcat: TensorSpec
    op: GraphReduction


def graph_reduction(op: Any) -> GraphReduction:
    """Return the name of a reduction of neighbours."""
    return as_choice(op, REDUCTIONS, "op")


def graph_aggregate_problem(specs: Specs, outs: Outs, op: Any) -> GraphAggregateProblem:
    """Validate the operands of an aggregation; ``outs`` are y and, for maxima and minima, positions."""
    graph = graph_sizes(specs["offsets"], specs["indices"], specs.get("order"))
    features = {name: specs[name] for name in ("x", "edges", "concat") if name in specs}
    if not features.keys() & {"x", "edges"}:
        raise TypeError("x and edges are both None: expected features of nodes or of edges")
    dtype = one_dtype("graph_aggregate", FEATURES, **{name: spec.dtype for name, spec in features.items()})
    rows = {"x": None, "edges": graph.edges, "concat": graph.destinations}
    columns = {name: check_rows(name, spec, rows[name]) for name, spec in features.items()}
    chosen = graph_reduction(op)
    y = packed_result((graph.destinations, sum(columns.values())), dtype, outs[0], "out")
    positions = None
    if chosen in EXTREMES:
        reduced = (graph.destinations, sum(columns.values()) - columns.get("concat", 0))
        positions = packed_result(reduced, graph.dtype, outs[1], "positions of out")
    x, edges, concat = (features.get(name) for name in ("x", "edges", "concat"))
    arrays = (specs["offsets"], specs["indices"], specs.get("order"))
    return GraphAggregateProblem(*arrays, x, edges, concat, y, positions, chosen)


def graph_aggregate_gradient_problem(
    specs: Specs, outs: Outs, op: Any, x_shape: Any, edges_shape: Any
) -> GraphAggregateGradientProblem:
    """Validate the operands of the gradients of an aggregation; ``outs`` are dx, dedges and dconcat."""
    graph = graph_sizes(specs["offsets"], specs["indices"], specs.get("order"))
    dy, positions, chosen = specs["dy"], specs.get("positions"), graph_reduction(op)
    dtype = one_dtype("graph_aggregate_backward", FEATURES, dy=dy.dtype)
    shapes = gradient_shapes(graph.destinations, graph.edges, dy.shape, x_shape, edges_shape)
    if (positions is not None) != (chosen in EXTREMES):
        wanted = "the positions of graph_aggregate" if chosen in EXTREMES else "None"
        given = "None" if positions is None else str(positions)
        raise ValueError(f"positions does not match op={chosen!r}: got {given}, expected {wanted}")
    if positions is not None:
        reduced = (graph.destinations, shapes[0][1] + shapes[1][1])
        if positions.shape != reduced or positions.dtype != graph.dtype:
            expected = f"{graph.dtype}{list(reduced)}"
            raise ValueError(f"positions has a wrong shape or dtype: got {positions}, expected {expected}")
    names = ("out", "dedges of out", "dconcat of out")
    dx, dedges, dconcat = (packed_result(*row) for row in zip(shapes, (dtype,) * 3, outs, names, strict=True))
    arrays = (specs["offsets"], specs["indices"], specs.get("order"), positions, dy)
    return GraphAggregateGradientProblem(*arrays, dx, dedges, dconcat, chosen)


def gradient_shapes(
    destinations: int,
    edges: int,
    dy_shape: Iterable[int],
    x_shape: Iterable[int] | None,
    edges_shape: Iterable[int] | None,
) -> tuple[Shape, Shape, Shape]:
    """Return the shapes of the gradients of x, edges and concat; absent features have no columns.

    >>> gradient_shapes(3, 7, (3, 12), (5, 8), None)
    ((5, 8), (7, 0), (3, 4))
    """
    if x_shape is None and edges_shape is None:
        raise TypeError("x_shape and edges_shape are both None: expected the shape of either")
    x = (0, 0) if x_shape is None else check_shape(x_shape, "x_shape")
    of_edges = (edges, 0) if edges_shape is None else check_shape(edges_shape, "edges_shape")
    for name, shape in (("x_shape", x), ("edges_shape", of_edges)):
        if len(shape) != 2:
            raise ValueError(f"{name} is wrong: got {shape}, expected two axes")
    if of_edges[0] != edges:
        raise ValueError(f"edges_shape is wrong: got {of_edges}, expected ({edges}, features)")
    dy, reduced = check_shape(dy_shape, "dy_shape"), x[1] + of_edges[1]
    if len(dy) != 2 or dy[0] != destinations or dy[1] < reduced:
        raise ValueError(f"dy has a wrong shape: got {dy}, expected ({destinations}, {reduced} or more)")
    return x, of_edges, (destinations, dy[1] - reduced)
