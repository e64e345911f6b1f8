"""Graphs of convolutions with parts of a batch normalisation, and their engines."""

from __future__ import annotations

from ...graph.operations import Graph
from ...shapes.training_fusions import BatchNormFinalize, DataGradient, FilterGradient, StatisticsProblem
from .._definition import Definition, defines
from .._graph_source import GraphSource
from .._reduced_source import packed_source
from ..graph.tensors import GraphTensor
from .graph import as_images, geometry_of, packed_operands


@defines
def statistics_graph(problem: StatisticsProblem) -> Graph:
    """Return the graph of a convolution with statistics; its operands have channels last."""
    g = Definition(as_images(problem))
    data = _scaled_relu(g) if problem.scale else g.given["x"]
    y = g.conv(data, g.given["w"], **geometry_of(problem.core))
    sums, square_sums = g.gen_stats(y)
    return g.graph(y=y, sums=sums, square_sums=square_sums)


@defines
def finalize_graph(problem: BatchNormFinalize) -> Graph:
    """Return the graph of one node that computes statistics from sums."""
    g = Definition(as_images(problem))
    made = g.bn_finalize(
        *(g.given[name] for name in ("sums", "square_sums", "scale", "bias")),
        running_mean=g.given["running_mean"],
        running_var=g.given["running_var"],
        momentum=problem.momentum,
        count=problem.elements,
        epsilon=problem.epsilon,
    )
    names = {
        "mean": "saved_mean",
        "invstd": "saved_inv_std",
        "next_mean": "updated_running_mean",
        "next_var": "updated_running_var",
    }
    return g.graph(**{name: made[names.get(name, name)] for name in ("eq_scale", "eq_bias", *names)})


@defines
def data_graph(problem: DataGradient) -> Graph:
    """Return the graph of the gradients of a convolution's data, a relu and a batch normalisation."""
    g = Definition(as_images(problem))
    x, mean, inverse, scale, bias = (g.given[name] for name in ("x", "mean", "invstd", "scale", "bias"))
    slope = g.conv_backward_data(g.given["dy"], g.given["w"], x.shape, **geometry_of(problem.core))
    dz = g.relu_backward(slope, (x - mean) * inverse * scale + bias)
    made = g.bn_backward_weights(dz, x, mean, inverse, scale)
    dscale, dbias, *factors = made.values()  # the factors of dz and x, and the term without them
    named = dict(zip(("eq_dz_scale", "eq_x_scale", "eq_bias"), factors, strict=True))
    return g.graph(dz=dz, dscale=dscale, dbias=dbias, **named)


@defines
def filter_graph(problem: FilterGradient) -> Graph:
    """Return the graph of the gradient of a filter whose data are scaled, shifted and cut at 0."""
    images = as_images(problem)
    g, geometry = Definition(images), geometry_of(problem.core)
    return g.graph(dw=g.conv_backward_filter(g.given["dy"], _scaled_relu(g), images.dw.shape, **geometry))


def _scaled_relu(g: Definition) -> GraphTensor:
    """Return ``relu(x * scale + bias)``."""
    return g.relu(g.given["x"] * g.given["scale"] + g.given["bias"])


STATISTICS_SOURCE = packed_source(GraphSource(statistics_graph), packed_operands)
FINALIZE_SOURCE = packed_source(GraphSource(finalize_graph), packed_operands)
DATA_SOURCE = packed_source(GraphSource(data_graph), packed_operands)
FILTER_SOURCE = packed_source(GraphSource(filter_graph), packed_operands)
