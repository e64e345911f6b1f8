"""Convolutions with factors, bias and activation in one graph: of each channel, and of float8 operands."""

from __future__ import annotations

from typing import Any, Never

from ..._hints import UNSET, corrected
from ...algo_cache import CandidateSource
from ...array import DeviceArray
from ...errors import NotSupportedError
from ...graph.operations import Graph
from ...plans.wrappers import zero_results
from ...shapes.arithmetic import WITHOUT_AMAX
from ...shapes.checks import as_bool
from ...shapes.conv import GEOMETRY
from ...shapes.fused import Float8Conv, ScaledConv, ScaledConvResult, float8_conv_problem, scaled_conv_problem
from ...shapes.specs import Outs, Specs
from ...typing import (
    Algo,
    ArrayLike,
    DTypeLike,
    FusedActivation,
    MatmulActivation,
    OutLike,
    Padding,
    PerAxis,
    Precision,
    StreamLike,
)
from .._call import execute, execute_as
from .._documented import documented
from .._graph_source import GraphSource, packed_source, select_engine, without_factors
from .._operands import present
from .._operation import Operation, Select
from ..graph.native import Definition, defines, graph_with_epilogue
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
        call, ``"online"`` one of them after each later call. The name of an engine, such as ``"engine 4"`` or
        ``"engine 4 knobs 24=3"``, selects it.
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


# --- float8 images and filters -----------------------------------------------------------------------------


@defines
def float8_conv_graph(problem: Float8Conv) -> Graph:
    """Return the graph of a problem whose operands are contiguous with channels last."""
    g = Definition(as_images(problem))
    y = g.conv(g.given["x"], g.given["w"], **geometry_of(problem.core))
    return graph_with_epilogue(g, problem, y)


FLOAT8_SOURCE = packed_source(GraphSource(float8_conv_graph), packed_operands)


MULTIPLE = 16  # kernels load and write 16 bytes, which are 16 channels, at once


@documented(conv_scale_bias_activation)
def scaled_conv(
    x: ArrayLike,
    w: ArrayLike,
    *more: Never,
    descale_x: ArrayLike | None = None,
    descale_w: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    activation: MatmulActivation | None = None,
    amax: bool = False,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    out_dtype: DTypeLike | None = None,
    algo: Algo | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> ScaledConvResult[DeviceArray]:
    """Convolve float8 images with float8 filters and scales, add and activate.

    As a formula ::

        v = act(descale_x * descale_w * conv(x, w) + bias)        y = scale * v

    ``amax`` is the largest magnitude of v, from which the scale of the next step follows. The convolution is
    that of :func:`conv`.

    Parameters
    ----------
    x : device array, shape (N, C, *spatial), float8_e4m3 | float8_e5m2
        The channels of each group, C / groups, are a multiple of 16.
    w : device array, shape (K, C / groups, *window), float8_e4m3 | float8_e5m2
        The filters of each group, K / groups, are a multiple of 16.
    descale_x, descale_w, scale : device array of one element, float32, optional
        Factors, which are read on the device.
    bias : device array, shape (K,), dtype of the result or float32, optional
        Added to each channel; in half precision or float32 if the result is float8.
    activation : {"identity", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"}, optional
        ``"gelu"`` is that with erf, ``"gelu_tanh"`` its approximation by tanh; ``"swish"`` is ``"silu"``.
    amax : bool
        Whether the largest magnitude is computed; not supported with several groups.
    out_dtype : dtype, optional
        bfloat16 by default; float16, float32, float8_e4m3 or float8_e5m2.

    Returns
    -------
    ScaledConvResult
        ``y``, DeviceArray of shape (N, K, *out) of :func:`conv_output_shape`, in the layout of x; ``amax``,
        float32 DeviceArray of shape (1,), or None.

    Raises
    ------
    NotSupportedError
        The channels or filters of a group are not a multiple of 16; ``amax`` is computed with several groups;
        the sums of the convolution have no terms; or cuDNN has no engine, as on GPUs before Ada and Hopper.

    Notes
    -----
    A graph, ``cudnnBackendExecute``. Engines need channels last, so operands in another layout are copied
    first, on the device. Gradients are not supported. Values beyond the range of float8 are saturated or
    become NaN or infinite as cuDNN's conversion does; choose ``scale`` so that there are none.

    Examples
    --------
    >>> x = ct.full((1, 16, 4, 4), 2, "float8_e4m3", layout="nhwc")
    >>> w = ct.full((32, 16, 3, 3), 1, "float8_e4m3", layout="nhwc")
    >>> half = ct.asarray([0.5], "float32")
    >>> y, amax = ct.scaled_conv(x, w, descale_x=half, amax=True, out_dtype="float32")
    >>> y.shape, float(amax.numpy()[0])
    ((1, 32, 2, 2), 144.0)
    """
    if more or unknown or x is UNSET or w is UNSET:
        return corrected(scaled_conv, locals())
    optional = present(bias=bias, descale_x=descale_x, descale_w=descale_w, scale=scale)
    given = {"x": x, "w": w} | optional
    absent = "" if as_bool(amax, "amax") else WITHOUT_AMAX
    params = (
        padding, stride, dilation, groups, activation, out_dtype, algo, deterministic, workspace_limit,
    )  # fmt: skip
    return execute_as(ScaledConvResult, FLOAT8_CONV, given, params, out, stream, absent)


@without_factors
def _float8_problem(specs: Specs, outs: Outs, *params: Any, aligned: bool) -> Float8Conv:
    *geometry, activation, out_dtype = params
    named = dict(zip(GEOMETRY, geometry, strict=True))
    return float8_conv_problem(specs, outs, activation, out_dtype, aligned=aligned, **named)


def _select_float8(problem: Float8Conv, params: tuple[Any, ...]) -> Select:
    groups = problem.parameters.groups
    channels, filters = problem.w.shape[1], problem.w.shape[0] // groups
    if problem.y.size and problem.amax and groups > 1:
        raise NotSupportedError(
            f"cuDNN has no engine for amax of a convolution of float8 with groups: got groups {groups}; "
            'compute it of a float32 result with ct.reduce(y, op="amax")'
        )
    if problem.y.size and (channels % MULTIPLE or filters % MULTIPLE):
        raise NotSupportedError(
            f"convolutions of float8 need channels and filters in multiples of {MULTIPLE}: each group has "
            f"{channels} channels and {filters} filters; pad with zeros"
        )
    return select(problem, params, FLOAT8_SOURCE)


FLOAT8_CONV = Operation(
    "a convolution of float8", _float8_problem, select=_select_float8, written=("out", "amax of out")
)
