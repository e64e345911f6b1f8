"""Convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Never

from ..._config import config
from ..._hints import UNSET, corrected
from ...array import DeviceArray
from ...shapes.arithmetic import check_conv_dtypes
from ...shapes.specs import TensorSpec
from ...shapes.tensor import ReduceProblem
from ...typing import Algo, ArrayLike, ConvMode, Padding, PerAxis, Precision, Shape, StreamLike
from .._call import execute
from .._documented import documented
from .._operation import Operation
from ..reduce.reduce import IMPLEMENTATIONS as REDUCTIONS
from ..reduce.reduce import kept_axes
from .call import CONV, TRANSPOSED


@documented()
def conv(
    x: ArrayLike,
    w: ArrayLike,
    *more: Never,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: ConvMode = "cross_correlation",
    algo: Algo | None = None,
    precision: Precision | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    strict: bool = False,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Convolve: ``y = alpha * conv(x, w) + beta * out``.

    ``y[n, k, p] = sum over c, q of x[n, c, p * stride + q * dilation - before] * w[k, c, q]``, where p and q
    run over 1, 2 or 3 spatial axes and x is 0 outside its bounds.

    Parameters
    ----------
    x : device array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64 | int8
        Any strides; int8 must be contiguous and 16-byte aligned unless a legacy algorithm supports it. Any
        array with DLPack or ``__cuda_array_interface__`` is used in place.
    w : device array, shape (K, C / groups, *window), dtype of x
    padding : int, tuple of int, "valid" | "half" | "full", or ((before, after), ...)
        Zeros around x. ``"half"`` keeps the size for odd windows at stride 1, ``"full"`` has every overlap.
        If they differ between the two sides of an axis, x is copied first, as cuDNN's algorithms need it.
    stride : int or tuple of int
        Distance between windows on x.
    dilation : int or tuple of int
        Distance between the elements of a window.
    groups : int
        Number of groups that the channels of x are divided into, each with K / groups filters of its own.
    mode : {"cross_correlation", "convolution"}
        ``"convolution"`` flips the window.
    algo : str or Candidate, optional
        How the algorithm is selected. ``"heuristic"`` (the default of ``ct.config.algo``) takes the first
        candidate of cuDNN's heuristics. ``"autotune"`` times the candidates on these operands at the first
        call, ``"online"`` one of them after each later call. ``"guess_once"`` and ``"time_once"`` are words
        of Theano for these policies. The names ``"none"``, ``"small"``, ``"large"``, ``"fft"``,
        ``"fft_tiling"``, ``"winograd"``, ``"winograd_non_fused"``, ``"deterministic"`` and cuDNN's own are
        legacy algorithms;
        ``"engine 62 knobs 2=5,3=0"`` is an engine, as :func:`conv_algorithms` prints it. A row of its table
        is that candidate.
    precision : {"as_input_f32", "float32", "tf32", "as_input", "float16", "float64"}, optional
        Arithmetic of the sums. The default is float32 for half precision and the dtype of x otherwise, with
        TF32 for float32 if ``ct.config.allow_tf32``; ``"float32"`` is always IEEE arithmetic. Algorithms
        whose error exceeds the documented bound of the precision are rejected. Products of int8 are summed in
        int32, and accept the default only.
    deterministic : bool, optional
        Use only algorithms whose results are the same, bit for bit, from run to run.
    workspace_limit : int, optional
        Maximum bytes of workspace of an algorithm.
    strict : bool
        Raise if a named algorithm cannot compute the problem, instead of using ``"none"`` with a warning.
    alpha : float
        Factor of the result. For int8, factors need a float32 ``out``.
    out : device array, shape and dtype of the result, optional
        Destination of the result; any strides. It must not overlap an operand. For int8 it may be int32 or
        float32.

    Returns
    -------
    DeviceArray, shape (N, K, *out) of :func:`conv_output_shape`; or ``out`` as one
        In the layout and dtype of x; int32 for int8, unless ``out`` is float32.

    Raises
    ------
    ValueError
        Shapes or parameters do not match (the message has the numbers); an operand is closed or on another
        device; ``beta`` is given without ``out``; ``algo`` does not exist, does not support the direction,
        rank or dtype, or is a row of another problem.

    Notes
    -----
    A graph of one node, ``cudnnBackendExecute``, or ``cudnnConvolutionForward``: docs/algorithms.md describes
    the selection. If a candidate is rejected or its workspace cannot be allocated, the next one is used. The
    formula is that of cuDNN's manual for ``CUDNN_CROSS_CORRELATION``.

    Some algorithms sum in an order that varies from run to run: ``deterministic=True`` excludes them. Other
    algorithms differ in their order of sums, and autotuning may select a different one in another process.

    Examples
    --------
    >>> x = ct.asarray([[[1, 2, 4, 8]]], "float32")  # (N, C, W)
    >>> w = ct.asarray([[[1, -1]]], "float32")
    >>> ct.conv(x, w).numpy()
    array([[[-1., -2., -4.]]], dtype=float32)
    >>> ct.conv(x, w, mode="convolution", padding="full").numpy()
    array([[[ 1.,  1.,  2.,  4., -8.]]], dtype=float32)
    """
    if more or unknown or x is UNSET or w is UNSET:
        return corrected(conv, locals())
    params = (
        None, padding, stride, dilation, groups, mode, precision, algo,
        deterministic, workspace_limit, strict,
    )  # fmt: skip
    return execute(CONV["forward"], ("x", "w"), (x, w), params, alpha, beta, (out,), stream)[0]


@documented(conv)
def conv_backward_data(
    dy: ArrayLike,
    w: ArrayLike,
    x_shape: Shape,
    *more: Never,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: ConvMode = "cross_correlation",
    algo: Algo | None = None,
    precision: Precision | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    strict: bool = False,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Differentiate a convolution by its input: ``dx = alpha * conv'(dy, w) + beta * out``.

    ``dx[n, c, i] = sum of dy[n, k, p] * w[k, c, q]`` over all k, p and q with
    ``p * stride + q * dilation - before = i``. The parameters are those of the forward convolution.

    Parameters
    ----------
    dy : device array, shape (N, K, *out), float16 | bfloat16 | float32 | float64
        Gradient with regard to the output.
    w : device array, shape (K, C / groups, *window), dtype of dy
    x_shape : tuple of int
        (N, C, *spatial): with a stride, inputs of several sizes have outputs of one size.

    Returns
    -------
    DeviceArray, shape ``x_shape``; or ``out`` as one
        In the layout of dy.

    Notes
    -----
    ``cudnnBackendExecute`` or ``cudnnConvolutionBackwardData``. Some algorithms add in an order that varies
    from run to run; ``deterministic=True`` excludes them.

    Examples
    --------
    >>> w = ct.asarray([[[1, -1]]], "float32")
    >>> dy = ct.asarray([[[1, 2, 4]]], "float32")
    >>> ct.conv_backward_data(dy, w, (1, 1, 4)).numpy()
    array([[[ 1.,  1.,  2., -4.]]], dtype=float32)
    """
    if more or unknown or dy is UNSET or w is UNSET or x_shape is UNSET:
        return corrected(conv_backward_data, locals())
    params = (
        x_shape, padding, stride, dilation, groups, mode, precision, algo,
        deterministic, workspace_limit, strict,
    )  # fmt: skip
    return execute(CONV["backward_data"], ("dy", "w"), (dy, w), params, alpha, beta, (out,), stream)[0]


@documented(conv, conv_backward_data)
def conv_backward_filter(
    dy: ArrayLike,
    x: ArrayLike,
    w_shape: Shape,
    *more: Never,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: ConvMode = "cross_correlation",
    algo: Algo | None = None,
    precision: Precision | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    strict: bool = False,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Differentiate a convolution by its filters: ``dw = alpha * conv'(dy, x) + beta * out``.

    ``dw[k, c, q] = sum over n, p of dy[n, k, p] * x[n, c, p * stride + q * dilation - before]``. The
    parameters are those of the forward convolution; ``beta=1`` with ``out`` accumulates.

    Parameters
    ----------
    x : device array, shape (N, C, *spatial), dtype of dy
    w_shape : tuple of int
        (K, C / groups, *window): with a stride, windows of several sizes have outputs of one size.

    Returns
    -------
    DeviceArray, shape ``w_shape``; or ``out`` as one
        In the layout of x.

    Notes
    -----
    ``cudnnBackendExecute`` or ``cudnnConvolutionBackwardFilter``. Some algorithms add in an order that varies
    from run to run; ``deterministic=True`` excludes them.

    Examples
    --------
    >>> x = ct.asarray([[[1, 2, 4, 8]]], "float32")
    >>> dy = ct.asarray([[[1, 0, 1]]], "float32")
    >>> ct.conv_backward_filter(dy, x, (1, 1, 2)).numpy()
    array([[[ 5., 10.]]], dtype=float32)
    """
    if more or unknown or dy is UNSET or x is UNSET or w_shape is UNSET:
        return corrected(conv_backward_filter, locals())
    params = (
        w_shape, padding, stride, dilation, groups, mode, precision, algo,
        deterministic, workspace_limit, strict,
    )  # fmt: skip
    return execute(CONV["backward_filter"], ("dy", "x"), (dy, x), params, alpha, beta, (out,), stream)[0]


@documented()
def conv_backward_bias(
    dy: ArrayLike,
    *more: Never,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Differentiate a convolution by a bias per channel: ``db = alpha * (sum of dy) + beta * out``.

    Parameters
    ----------
    dy : device array, shape (N, K, *out), float16 | bfloat16 | float32 | float64

    Returns
    -------
    DeviceArray, shape (K,); or ``out`` as one
        The sum over all axes except the second.

    Notes
    -----
    ``cudnnConvolutionBackwardBias``, or a reduction as :func:`reduce` selects it: that call is slow with
    channels last, and does not support bfloat16.

    Sums by a graph may differ in their last bits from run to run; with ``ct.config.deterministic``, only sums
    are used whose bits were measured to be the same.

    Examples
    --------
    >>> ct.conv_backward_bias(ct.asarray([[[1, 2], [3, 4]]], "float32")).numpy()
    array([3., 7.], dtype=float32)
    """
    if more or unknown or dy is UNSET:
        return corrected(conv_backward_bias, locals())
    return execute(_BIAS_GRADIENT, ("dy",), (dy,), (), alpha, beta, (out,), stream)[0]


@documented(conv)
def conv_transpose(
    x: ArrayLike,
    w: ArrayLike,
    *more: Never,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: ConvMode = "cross_correlation",
    output_padding: PerAxis = 0,
    algo: Algo | None = None,
    precision: Precision | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    strict: bool = False,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Convolve transposed: ``alpha * conv_transpose(x, w) + beta * out``, the adjoint map of :func:`conv`.

    ``conv_transpose(x, w, ...)`` is ``conv_backward_data(x, w, y_shape, ...)`` for the shape that
    :func:`conv_transpose_output_shape` returns. The parameters are those of the convolution that maps the
    result to x.

    Parameters
    ----------
    x : device array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
    w : device array, shape (C, K / groups, *window), dtype of x
    output_padding : int or tuple of int
        Amount added to the smallest possible size of the result; less than the stride.

    Returns
    -------
    DeviceArray, shape (N, K, *out); or ``out`` as one

    Notes
    -----
    ``cudnnBackendExecute`` or ``cudnnConvolutionBackwardData``, like :func:`conv_backward_data`. Some
    algorithms add in an order that varies from run to run; ``deterministic=True`` excludes them.

    Examples
    --------
    >>> x = ct.asarray([[[1, 2]]], "float32")
    >>> w = ct.asarray([[[1, 10, 100]]], "float32")
    >>> ct.conv_transpose(x, w, stride=2).numpy()
    array([[[  1.,  10., 102.,  20., 200.]]], dtype=float32)
    """
    if more or unknown or x is UNSET or w is UNSET:
        return corrected(conv_transpose, locals())
    params = (
        output_padding, padding, stride, dilation, groups, mode, precision, algo,
        deterministic, workspace_limit, strict,
    )  # fmt: skip
    return execute(TRANSPOSED, ("x", "w"), (x, w), params, alpha, beta, (out,), stream)[0]


def _bias_gradient(specs: dict[str, TensorSpec], outs: Sequence[TensorSpec | None]) -> ReduceProblem:
    dy, (out,) = specs["dy"], outs
    check_conv_dtypes("backward_bias", {"dy": dy.dtype})
    if not 3 <= len(dy.shape) <= 5:
        raise ValueError(f"dy has shape {dy.shape}; expected (N, K, *out) with 1 to 3 spatial axes")
    result = out or TensorSpec.packed(dy.shape[1:2], dy.dtype)
    if result.shape != dy.shape[1:2] or result.dtype != dy.dtype:
        raise ValueError(f"out is {result}; the gradient is {dy.dtype}[{dy.shape[1]}]")
    axes = (0, *range(2, len(dy.shape)))
    return ReduceProblem(dy, result, None, axes, "add", True, config.deterministic)


_BIAS_GRADIENT = Operation("the gradient of a bias", _bias_gradient, REDUCTIONS, independent=kept_axes)
