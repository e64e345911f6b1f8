"""A convolution with a factor and a bias for each channel, residual and activation in one."""

from __future__ import annotations

from typing import Any, Never

from ..._hints import UNSET, corrected
from ...algo_cache import CandidateSource
from ...array import DeviceArray
from ...errors import NotSupportedError
from ...graph.operations import Graph
from ...plans.wrappers import zero_results
from ...shapes.checks import Outs, Specs
from ...shapes.fused import ScaledConv, scaled_conv_problem
from ...typing import Algo, ArrayLike, FusedActivation, Padding, PerAxis, Precision, StreamLike
from .._algo_arguments import select_engine, without_factors
from .._call import execute
from .._definition import Definition, defines
from .._documented import documented
from .._graph_source import GraphSource
from .._operands import present
from .._operation import Operation, Select
from .._reduced_source import packed_source
from .call import conv_of
from .fused import conv_bias_activation
from .graph import activation_step, as_images, geometry_of, packed_operands


@documented(conv_bias_activation)
def conv_scale_bias_activation(
    x: ArrayLike,
    w: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    *more: Never,
    residual: ArrayLike | None = None,
    activation: FusedActivation = "relu",
    coefficient: float = 0,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    algo: Algo | None = None,
    precision: Precision | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Convolve, scale each channel, add and activate: ``y = act(conv(x, w) * scale + bias + residual)``.

    This is a convolution with a folded batch normalisation of statistics ``mean`` and ``var``, if
    ``scale = gamma / sqrt(var + epsilon)`` and ``bias = beta - mean * scale``.

    Parameters
    ----------
    x : device array, shape (N, C, *spatial), float16 | bfloat16 | float32
    scale : device array, shape (K,), dtype of x or float32
        Factor of each channel of the convolution.
    bias : device array, shape (K,), dtype of x or float32
        Added to each channel after the factor.
    algo : str or Candidate, optional
        How the engine is selected. ``"heuristic"`` (the default of ``ct.config.algo``) takes the first
        candidate of cuDNN's heuristics. ``"autotune"`` times the candidates on these operands at the first
        call, ``"online"`` one of them after each later call.
        ``"engine 4"`` or ``"engine 4 knobs 24=3"`` is an engine.
    precision : {"as_input_f32", "tf32", "float32"}, optional
        Arithmetic of the products, which are summed in float32. float32 operands are multiplied in TF32 if
        ``ct.config.allow_tf32``; ``"float32"`` excludes tensor cores, without which cuDNN has no engine for
        bfloat16 and for three spatial axes.

    Returns
    -------
    DeviceArray, shape (N, K, *out) of :func:`conv_output_shape`; or ``out`` as one

    Raises
    ------
    NotSupportedError
        cuDNN has no engine, as version 9.19 for bfloat16 with one channel in each group; or the sums of the
        convolution have no terms.

    Notes
    -----
    A graph, ``cudnnBackendExecute``: the result is rounded once. Engines need channels last, so operands in
    another layout are copied first, on the device. gelu is that with erf. cuDNN has no engine for float64 and
    for a flipped filter.

    Examples
    --------
    >>> x = ct.asarray([[[1, 2, 4, 8]]], "float32")
    >>> w = ct.asarray([[[1, -1]]], "float32")
    >>> scale, bias = ct.asarray([-2], "float32"), ct.asarray([-3], "float32")
    >>> ct.conv_scale_bias_activation(x, w, scale, bias).numpy()
    array([[[0., 1., 5.]]], dtype=float32)
    """
    if more or unknown or x is UNSET or w is UNSET or scale is UNSET or bias is UNSET:
        return corrected(conv_scale_bias_activation, locals())
    given = {"x": x, "w": w, "scale": scale, "bias": bias} | present(residual=residual)
    params = (
        padding, stride, dilation, groups, precision, activation, coefficient,
        algo, deterministic, workspace_limit,
    )  # fmt: skip
    return execute(SCALED, tuple(given), tuple(given.values()), params, outs=(out,), stream=stream)[0]


@defines
def scaled_conv_graph(problem: ScaledConv) -> Graph:
    """Return the graph of a problem whose operands are contiguous with channels last."""
    g = Definition(as_images(problem))
    y = g.conv(g.given["x"], g.given["w"], **geometry_of(problem.core))
    y = y * g.given["scale"] + g.given["bias"]
    if problem.z:
        y = y + g.given["z"]
    if problem.activation != "identity":
        step = activation_step(problem.activation, problem.coefficient)
        y = g._apply("pointwise", {"x": y}, **step)["y"]
    return g.graph(y=y)


SOURCE = packed_source(GraphSource(scaled_conv_graph), packed_operands)
"""The engines of a graph with channels last."""


@without_factors
def _problem(specs: Specs, outs: Outs, *params: Any, aligned: bool) -> ScaledConv:
    *geometry, precision, activation, coefficient = params
    conv = conv_of("forward", specs["x"], specs["w"], outs[0], geometry, precision)
    return scaled_conv_problem(conv, specs, activation, coefficient, aligned=aligned)


def select(problem: Any, params: tuple[Any, ...], source: CandidateSource = SOURCE) -> Select:
    """Return the function that selects an engine in a thread; the last ``params`` are `AlgoArguments`."""
    empty = None if problem.y.size else zero_results(problem.results)
    selected = select_engine(problem, params, source, empty)
    if problem.y.size and not (problem.x.size and problem.w.size):
        raise NotSupportedError(f"the sums of a {problem} have no terms")
    return selected


SCALED = Operation("a convolution with scale and bias", _problem, select=select)
