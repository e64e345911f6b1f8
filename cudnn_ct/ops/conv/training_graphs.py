"""Graphs of convolutions with parts of a batch normalisation: fused ones, and separate ones."""

from __future__ import annotations

from ... import algo_cache
from ...context import Context
from ...graph.operations import Graph
from ...plans.base import Plan, tensors_of
from ...plans.program import Program
from ...shapes.conv import ConvProblem
from ...shapes.norm import norm_samples
from ...shapes.specs import TensorSpec, equivalent_strides
from ...shapes.training_fusions import BatchNormFinalize, DataGradient, FilterGradient, StatisticsProblem
from .._formulas import Formulas, Matrix, NamedFormulas, matrix_of, pointwise, total
from .._graph_source import AlgoArguments, GraphSource, packed_source
from ..graph.native import Definition, defines
from ..graph.tensors import GraphTensor
from .candidates import SOURCE
from .graph import as_images, geometry_of, operands_of, packed_operands


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


# --- separate graphs, where no engine has the fused ones ---------------------------------------------------


def finalize_by_formulas(problem: BatchNormFinalize, context: Context) -> Program | None:
    """Return a plan of the statistics of a batch from its sums."""
    if not all("nchw" in spec.layouts for spec in tensors_of(problem).values()):
        return None
    one = NamedFormulas(problem, Matrix(1, problem.sums.size, "columns"), context)
    names = ("sums", "square_sums", "scale", "bias", "running_mean", "running_var")
    sums, squares, scale, bias, *running = one.read(*names).values()
    mean = one.write("mean", sums * (1 / problem.elements))
    variance = squares * (1 / problem.elements) - mean * mean
    inverse = one.write("invstd", pointwise("rsqrt", variance + problem.epsilon))
    one.write("eq_scale", inverse * scale)
    one.write("eq_bias", bias - mean * (inverse * scale))
    weight, unbiased = problem.momentum, problem.elements / (problem.elements - 1)
    one.write("next_mean", running[0] * (1 - weight) + mean * weight)
    one.write("next_var", running[1] * (1 - weight) + variance * (weight * unbiased))
    return one.program()


def filter_by_formulas(problem: FilterGradient, context: Context) -> Program | None:
    """Return a plan of the scaled data, and of the gradient of the filter."""
    if (matrix := _pixels(problem.x, problem.scale, problem.bias)) is None:
        return None
    one = NamedFormulas(problem, matrix, context, ("scale", "bias"))
    x, scale, bias = one.read("x", "scale", "bias").values()
    data = one.kept(pointwise("relu_fwd", x * scale + bias), problem.x.dtype)
    _convolve(one, problem.core, context, {"y": 0, "x": one.place(data), "w": 4})
    return one.program()


def data_by_formulas(problem: DataGradient, context: Context) -> Program | None:
    """Return a plan of the gradient of the convolution, and of those of the normalisation before it."""
    parameters = ("mean", "invstd", "scale", "bias")
    matrix = _pixels(problem.x, *(getattr(problem, name) for name in parameters))
    dz, x = problem.dz, problem.x
    if matrix is None or not dz.layouts or not equivalent_strides(x.shape, dz.strides, x.strides):
        return None
    one = NamedFormulas(problem, matrix, context, parameters)
    _convolve(one, problem.core, context, {"y": 0, "w": 1, "x": one.places["dz"]})
    data, slope, mean, inverse, scale, bias = one.read("x", "dz", *parameters).values()
    normal = (data - mean) * inverse
    gradient = one.write("dz", pointwise("relu_bwd", normal * scale + bias, slope))
    share = 1 / norm_samples(x.shape, "spatial")
    dscale, dbias = one.write("dscale", total(gradient * normal)), one.write("dbias", total(gradient))
    factor = one.write("eq_dz_scale", scale * inverse)
    of_x = one.write("eq_x_scale", factor * dscale * inverse * -share)
    one.write("eq_bias", of_x * mean * -1.0 - factor * dbias * share)
    return one.program()


def _pixels(x: TensorSpec, *parameters: TensorSpec) -> Matrix | None:
    """Return the matrix of pixels and channels; None if x does not have channels last."""
    shape = (1, x.shape[1], *(1 for _ in x.shape[2:]))
    vectors = [TensorSpec.packed(shape, spec.dtype) for spec in parameters if "nchw" in spec.layouts]
    matrix = matrix_of([x], vectors) if len(vectors) == len(parameters) else None
    return matrix if matrix and matrix.kept == "columns" and matrix.number == 1 else None


def _convolve(one: Formulas, core: ConvProblem, context: Context, places: dict[str, int]) -> None:
    """Add the convolution that the heuristics choose."""
    request = AlgoArguments("heuristic", None, None).request(core)
    chosen: Plan = algo_cache.select(core, SOURCE, context, request).plan
    one.step(chosen, tuple(places[name] for name in operands_of(core)))
