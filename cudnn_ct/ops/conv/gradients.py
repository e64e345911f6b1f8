"""Gradients of convolutions with the parts of a batch normalisation."""

from __future__ import annotations

from functools import partial
from typing import Any, Never

from ..._hints import UNSET, corrected
from ...array import DeviceArray
from ...shapes.checks import Outs, Specs
from ...shapes.training_fusions import (
    ConvBatchNormGradients,
    DataGradient,
    FilterGradient,
    data_gradient,
    filter_gradient,
)
from ...typing import Algo, ArrayLike, OutLike, Padding, PerAxis, Shape, StreamLike
from .._algo_arguments import select_engine, without_factors
from .._call import execute, execute_as
from .._documented import documented
from .._fallback import by_engines
from .._operation import Operation
from .call import conv_of
from .training import conv_batch_norm_statistics
from .training_formulas import data_by_formulas, filter_by_formulas
from .training_graphs import DATA_SOURCE, FILTER_SOURCE


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
    if (
        more or unknown or dy is UNSET or w is UNSET or x is UNSET
        or mean is UNSET or invstd is UNSET or scale is UNSET or bias is UNSET
    ):  # fmt: skip
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
    if (
        more or unknown or dy is UNSET or x is UNSET
        or scale is UNSET or bias is UNSET or w_shape is UNSET
    ):  # fmt: skip
        return corrected(conv_backward_filter_scale_bias_relu, locals())
    given = {"dy": dy, "x": x, "scale": scale, "bias": bias}
    params = (w_shape, padding, stride, dilation, algo, deterministic, workspace_limit)
    return execute(FILTER, tuple(given), tuple(given.values()), params, outs=(out,), stream=stream)[0]


@without_factors
def _data(specs: Specs, outs: Outs, *geometry: Any, aligned: bool) -> DataGradient:
    shape = specs["x"].shape
    conv = conv_of("backward_data", specs["dy"], specs["w"], outs[0], geometry, shape=shape)
    return data_gradient(conv, specs, outs, aligned=aligned)


@without_factors
def _filter(specs: Specs, outs: Outs, w_shape: Any, *geometry: Any, aligned: bool) -> FilterGradient:
    conv = conv_of("backward_filter", specs["dy"], specs["x"], outs[0], geometry, shape=w_shape)
    return filter_gradient(conv, specs, aligned=aligned)


DATA = Operation(
    "the gradient of a convolution, a relu and a batch normalisation",
    _data,
    (by_engines(data_by_formulas, "engines_precompiled"),),
    select=partial(select_engine, source=DATA_SOURCE, replaced=True),
    written=("out", *(f"{name} of out" for name in ConvBatchNormGradients._fields[1:])),
)
FILTER = Operation(
    "the gradient of a convolution's filter with scaled data",
    _filter,
    (by_engines(filter_by_formulas, "engines_precompiled"),),
    select=partial(select_engine, source=FILTER_SOURCE, replaced=True),
)
