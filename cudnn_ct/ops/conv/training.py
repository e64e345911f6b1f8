"""Convolutions fused with the parts of a batch normalisation in training, and their gradients."""

from __future__ import annotations

from functools import partial
from typing import Any, Never

from ..._hints import UNSET, corrected
from ...array import DeviceArray
from ...shapes import training_fusions as rules
from ...shapes.specs import Outs, Specs
from ...shapes.training_fusions import BatchNormFinalizeResult, ConvBatchNormGradients, ConvStatisticsResult
from ...typing import Algo, ArrayLike, DTypeLike, OutLike, Padding, PerAxis, Shape, StreamLike
from .._call import execute, execute_as
from .._documented import documented
from .._graph_source import select_engine, without_factors
from .._implementations import by_engines
from .._operands import present
from .._operation import Operation
from . import training_graphs as graphs
from .call import conv_of
from .scaled import conv_scale_bias_activation


@documented(conv_scale_bias_activation)
def conv_batch_norm_statistics(
    x: ArrayLike,
    w: ArrayLike,
    *more: Never,
    scale: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    algo: Algo | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> ConvStatisticsResult[DeviceArray]:
    """Convolve, and sum the result and its squares for each channel: ``y = conv(relu(x * scale + bias), w)``.

    A batch normalisation of y takes its statistics from the sums (:func:`batch_norm_finalize`), so that y is
    not read again. ``scale`` and ``bias`` belong to the batch normalisation before the convolution.

    Parameters
    ----------
    w : device array, shape (K, C, *window), dtype of x
    scale : device array, shape (C,), dtype of x, optional
        Factor of each channel of x; ``eq_scale`` of :func:`batch_norm_finalize`.
    bias : device array, shape (C,), dtype of x, optional
        Added to each channel of x before the relu; given with ``scale``, or not.
    padding : int, tuple of int, "valid", "half" or "full"
        As in :func:`conv`, and the same on both sides of an axis.

    Returns
    -------
    ConvStatisticsResult
        ``y``, DeviceArray of shape (N, K, *out) and dtype of x; ``sums`` and ``square_sums``, float32
        DeviceArrays of shape (K,).

    Raises
    ------
    NotSupportedError
        cuDNN has no engine, as for ``scale`` in half precision with an odd number of channels.

    Notes
    -----
    A graph, ``cudnnBackendExecute``. Engines need channels last, so operands in another layout are copied
    first, on the device. In float16, with one or two spatial axes and numbers of channels and filters that
    are multiples of 8, engines need no compilation.

    Engines may add in an order that varies from run to run, which changes the last bits of sums:
    ``deterministic=True`` uses only engines whose bits were measured to be the same.

    Examples
    --------
    >>> x = ct.asarray([[[1, 2, 4, 8]]], "float32")
    >>> w = ct.asarray([[[1, -1]]], "float32")
    >>> y, sums, squares = ct.conv_batch_norm_statistics(x, w)
    >>> y.numpy(), sums.numpy(), squares.numpy()
    (array([[[-1., -2., -4.]]], dtype=float32), array([-7.], dtype=float32), array([21.], dtype=float32))
    """
    if more or unknown or x is UNSET or w is UNSET:
        return corrected(conv_batch_norm_statistics, locals())
    given = {"x": x, "w": w} | present(scale=scale, bias=bias)
    params = (padding, stride, dilation, algo, deterministic, workspace_limit)
    return execute_as(ConvStatisticsResult, STATISTICS, given, params, out, stream)


@documented(conv_scale_bias_activation)
def batch_norm_finalize(
    sums: ArrayLike,
    square_sums: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    running_mean: ArrayLike,
    running_var: ArrayLike,
    count: int,
    *more: Never,
    epsilon: float = 1e-5,
    momentum: float = 0.1,
    eq_dtype: DTypeLike = "float16",
    algo: Algo | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> BatchNormFinalizeResult[DeviceArray]:
    """Compute the statistics of a batch normalisation from sums, and its scale and bias for each channel.

    With ``mean = sums / count`` and ``var = square_sums / count - mean ** 2`` ::

        invstd = 1 / sqrt(var + epsilon)
        eq_scale = scale * invstd
        eq_bias = bias - mean * eq_scale
        running_mean = running_mean * (1 - momentum) + mean * momentum
        running_var = running_var * (1 - momentum) + count / (count - 1) * var * momentum

    Parameters
    ----------
    sums, square_sums : device array, shape (C,), float32
        Results of :func:`conv_batch_norm_statistics`.
    scale, bias : device array, shape (C,), float32
        Parameters of the batch normalisation.
    running_mean, running_var : device array, shape (C,), float32
        Running statistics. They are not changed: the results have the updated ones.
    count : int, at least 2
        Number of elements that each sum has: N times the pixels of an image.
    eq_dtype : dtype, float16 | float32
        Dtype of ``eq_scale`` and ``eq_bias``. The convolutions that take them need float16.
    algo : str or Candidate, optional
        How the engine is selected, as in :func:`conv_scale_bias_activation`.

    Returns
    -------
    BatchNormFinalizeResult
        ``eq_scale`` and ``eq_bias``, DeviceArrays of shape (C,) and ``eq_dtype``; ``mean``, ``invstd``,
        ``running_mean`` and ``running_var``, float32 DeviceArrays of shape (C,).

    Notes
    -----
    A graph of one node, ``cudnnBackendExecute``. The difference of the variance loses digits if the mean of
    a channel is many times its standard deviation.

    Examples
    --------
    >>> sums, squares = ct.asarray([4], "float32"), ct.asarray([16], "float32")
    >>> one, zero = ct.asarray([1], "float32"), ct.asarray([0], "float32")
    >>> done = ct.batch_norm_finalize(sums, squares, one, zero, zero, one, 4, epsilon=1, eq_dtype="float32")
    >>> done.mean.numpy(), done.invstd.numpy(), done.eq_bias.numpy()
    (array([1.], dtype=float32), array([0.5], dtype=float32), array([-0.5], dtype=float32))
    """
    if (
        more or unknown or sums is UNSET or square_sums is UNSET or scale is UNSET
        or bias is UNSET or running_mean is UNSET or running_var is UNSET or count is UNSET
    ):  # fmt: skip
        return corrected(batch_norm_finalize, locals())
    given = {"sums": sums, "square_sums": square_sums, "scale": scale, "bias": bias}
    given |= {"running_mean": running_mean, "running_var": running_var}
    params = (count, epsilon, momentum, eq_dtype, algo, deterministic, workspace_limit)
    return execute_as(BatchNormFinalizeResult, FINALIZE, given, params, out, stream)


@without_factors
def _statistics(specs: Specs, outs: Outs, *geometry: Any, aligned: bool) -> rules.StatisticsProblem:
    conv = conv_of("forward", specs["x"], specs["w"], outs[0], geometry)
    return rules.statistics_problem(conv, specs, outs, aligned=aligned)


STATISTICS = Operation(
    "a convolution with statistics",
    _statistics,
    select=partial(select_engine, source=graphs.STATISTICS_SOURCE),
    written=("out", "sums of out", "square_sums of out"),
)
FINALIZE = Operation(
    "the statistics of a batch normalisation",
    without_factors(rules.finalize_problem),
    (by_engines(graphs.finalize_by_formulas, "engines_precompiled"),),
    select=partial(select_engine, source=graphs.FINALIZE_SOURCE, replaced=True),
    written=("out", *(f"{name} of out" for name in BatchNormFinalizeResult._fields[1:])),
)


@documented(conv_batch_norm_statistics)
def conv_backward_data_relu_batch_norm(
    dy: ArrayLike,
    w: ArrayLike,
    x: ArrayLike,
    mean: ArrayLike,
    invstd: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    *more: Never,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    algo: Algo | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> ConvBatchNormGradients[DeviceArray]:
    """Compute the gradients of ``conv(relu(norm(x)), w)`` before the relu, and of the batch normalisation.

    With ``n = (x - mean) * invstd``, and sums over the batch and the pixels, whose number is m ::

        dz = conv_backward_data(dy, w) where n * scale + bias > 0, else 0
        dbias = sum(dz)        dscale = sum(dz * n)
        dx = scale * invstd * (dz - dbias / m - n * dscale / m)
           = dz * eq_dz_scale + x * eq_x_scale + eq_bias

    The last line is not computed here: its factors are results, and it takes one more pass over dz and x.

    Parameters
    ----------
    dy : device array, shape (N, K, *out), float16
    w : device array, shape (K, C, *window), float16
    x : device array, shape (N, C, *spatial), float16
        Input of the batch normalisation.
    mean, invstd : device array, shape (C,), float32
        Statistics of x, from :func:`batch_norm_finalize`.
    scale, bias : device array, shape (C,), float32
        Parameters of the batch normalisation.

    Returns
    -------
    ConvBatchNormGradients
        ``dz``, DeviceArray of shape and dtype of x; ``dscale``, ``dbias``, ``eq_dz_scale``, ``eq_x_scale``
        and ``eq_bias``, float32 DeviceArrays of shape (C,).

    Raises
    ------
    NotSupportedError
        cuDNN has no engine: it has them for one or two spatial axes, and numbers of channels and filters that
        are multiples of 8. Stride and dilation of one axis both exceed 1: its results would be wrong.

    Notes
    -----
    A graph, ``cudnnBackendExecute``. Engines need channels last, so operands in another layout are copied
    first, on the device.

    Engines may add in an order that varies from run to run, which changes the last bits of sums:
    ``deterministic=True`` uses only engines whose bits were measured to be the same.

    Examples
    --------
    >>> x, dy = ct.asarray([[[1, 3]] * 8], "float16"), ct.asarray([[[1, 5]] * 8], "float16")
    >>> w = ct.full((8, 8, 1), 0.25, "float16")
    >>> two, one, zero = (ct.full((8,), number) for number in (2, 1, 0))
    >>> step = ct.conv_backward_data_relu_batch_norm(dy, w, x, two, one, one, zero)
    >>> step.dz.numpy()[0, 0], float(step.dscale.numpy()[0])
    (array([ 0., 10.], dtype=float16), 10.0)
    """
    if more or unknown or any(one is UNSET for one in (dy, w, x, mean, invstd, scale, bias)):
        return corrected(conv_backward_data_relu_batch_norm, locals())
    given = {"dy": dy, "w": w, "x": x, "mean": mean, "invstd": invstd, "scale": scale, "bias": bias}
    params = (padding, stride, dilation, algo, deterministic, workspace_limit)
    return execute_as(ConvBatchNormGradients, DATA, given, params, out, stream)


@documented(conv_batch_norm_statistics)
def conv_backward_filter_scale_bias_relu(
    dy: ArrayLike,
    x: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    w_shape: Shape,
    *more: Never,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    algo: Algo | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Compute the gradient of ``conv(relu(x * scale + bias), w)`` with respect to w.

    The activation that the convolution read is computed again, so that it need not be kept.

    Parameters
    ----------
    dy : device array, shape (N, K, *out), float16
    x : device array, shape (N, C, *spatial), float16
    scale, bias : device array, shape (C,), float16
        ``eq_scale`` and ``eq_bias`` of :func:`batch_norm_finalize`.
    w_shape : tuple of int
        (K, C, *window).
    out : device array, shape of the result, float16, optional
        Destination of the result, with any strides. It must not overlap an operand.

    Returns
    -------
    DeviceArray, shape ``w_shape``, float16; or ``out`` as one

    Raises
    ------
    NotSupportedError
        cuDNN has no engine: it has them for one or two spatial axes and a multiple of 8 channels.

    Notes
    -----
    A graph, ``cudnnBackendExecute``. Engines need channels last, so operands in another layout are copied
    first, on the device.

    Engines may add in an order that varies from run to run, which changes the last bits of sums:
    ``deterministic=True`` uses only engines whose bits were measured to be the same.

    Examples
    --------
    >>> x, dy = ct.asarray([[[1, -2, 3]] * 8], "float16"), ct.asarray([[[1, 10, 100]] * 8], "float16")
    >>> one, half = ct.full((8,), 1, "float16"), ct.full((8,), 0.5, "float16")
    >>> ct.conv_backward_filter_scale_bias_relu(dy, x, one, half, (8, 8, 1)).numpy()[0, 0]
    array([351.5], dtype=float16)
    """
    if more or unknown or any(one is UNSET for one in (dy, x, scale, bias, w_shape)):
        return corrected(conv_backward_filter_scale_bias_relu, locals())
    given = {"dy": dy, "x": x, "scale": scale, "bias": bias}
    params = (w_shape, padding, stride, dilation, algo, deterministic, workspace_limit)
    return execute(FILTER, tuple(given), tuple(given.values()), params, outs=(out,), stream=stream)[0]


@without_factors
def _data(specs: Specs, outs: Outs, *geometry: Any, aligned: bool) -> rules.DataGradient:
    shape = specs["x"].shape
    conv = conv_of("backward_data", specs["dy"], specs["w"], outs[0], geometry, shape=shape)
    return rules.data_gradient(conv, specs, outs, aligned=aligned)


@without_factors
def _filter(specs: Specs, outs: Outs, w_shape: Any, *geometry: Any, aligned: bool) -> rules.FilterGradient:
    conv = conv_of("backward_filter", specs["dy"], specs["x"], outs[0], geometry, shape=w_shape)
    return rules.filter_gradient(conv, specs, aligned=aligned)


DATA = Operation(
    "the gradient of a convolution, a relu and a batch normalisation",
    _data,
    (by_engines(graphs.data_by_formulas, "engines_precompiled"),),
    select=partial(select_engine, source=graphs.DATA_SOURCE, replaced=True),
    written=("out", *(f"{name} of out" for name in ConvBatchNormGradients._fields[1:])),
)
FILTER = Operation(
    "the gradient of a convolution's filter with scaled data",
    _filter,
    (by_engines(graphs.filter_by_formulas, "engines_precompiled"),),
    select=partial(select_engine, source=graphs.FILTER_SOURCE, replaced=True),
)
