"""Batch normalisation: training, inference, gradient."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any, Literal, Never

from ... import context
from ..._bindings.enums import ErrQueryMode, Status
from ..._hints import UNSET, corrected, known_keywords
from ...array import DeviceArray
from ...array_creation import as_operand, full, zeros
from ...cuda import stream as streams
from ...errors import error_from_status
from ...shapes import norm as rules
from ...shapes.checks import as_bool, result_slots
from ...shapes.norm import BatchNormGradients, BatchNormResult
from ...shapes.specs import TensorSpec
from ...typing import ArrayLike, NormMode, OutLike, StreamLike
from .._call import ONE, ZERO, execute, execute_as, parse_scaling
from .._documented import documented
from .._implementations import along
from .._operands import present, results_of_calls, stream_of
from .._operation import Operation
from .plans import GRADIENT, INFERENCE, TRAINING

_RESULTS = ("out", "mean of out", "invstd of out", "running_mean", "running_var")
_GRADIENTS = ("out", "dscale of out", "dbias of out", "dz of out")

_TRAINING = Operation("a batch normalisation", rules.norm_training, TRAINING, written=_RESULTS)
_INFERENCE = Operation(
    "a batch normalisation", rules.norm_inference, INFERENCE, independent=partial(along, axes=(0,))
)
_GRADIENT = Operation(
    "the gradient of a batch normalisation", rules.norm_gradient, GRADIENT, written=_GRADIENTS
)
_OPERANDS = ("x", "scale", "bias")


@documented()
def batch_norm_training(
    x: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    *more: Never,
    mode: NormMode = "spatial",
    epsilon: float = 1e-5,
    running_mean: ArrayLike | None = None,
    running_var: ArrayLike | None = None,
    momentum: float = 0.1,
    activation: Literal["relu"] | None = None,
    residual: ArrayLike | None = None,
    alpha: float = 1,
    beta: float = 0,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> BatchNormResult[DeviceArray]:
    """Normalise a batch by its own mean and variance, then scale and shift it (Ioffe and Szegedy 2015).

    With ``mean`` and ``var`` (divided by the number of samples m, not m - 1) of the batch ::

        y = alpha * act(scale * (x - mean) / sqrt(var + epsilon) + bias + residual) + beta * out
        running_mean = running_mean * (1 - momentum) + mean * momentum
        running_var = running_var * (1 - momentum) + m / (m - 1) * var * momentum

    Parameters
    ----------
    x : device array, 1 to 6 axes, shape (N, C, ...), float16 | bfloat16 | float32 | float64
        Any strides.
    scale : device array, shape (C,) or (1, C, 1, ...); (1, C, ...) for "per_activation"
        float32 for half precision, else the dtype of x.
    bias : device array, shape and dtype of scale
    mode : {"spatial", "per_activation"}
        Mean over the batch and the axes after the channels, or over the batch alone.
    running_mean, running_var : device array, shape and dtype of scale, both or neither, optional
        Updated in place if the batch has samples. One sample has no unbiased variance and is rejected.
    activation : {"relu"}, optional
    residual : device array, shape and dtype of x, optional
        Added before the activation.

    Returns
    -------
    BatchNormResult
        ``y``, DeviceArray of shape and dtype of x; ``mean`` and ``invstd = 1 / sqrt(var + epsilon)``,
        DeviceArrays in the dtype of the parameters, with the axes of x and length 1 for reduced axes. The
        mean of an empty batch is NaN.

    Raises
    ------
    ExecutionFailedError
        cuDNN rejected a later part of the work after an earlier one had changed results, or a kernel failed.

    Notes
    -----
    ``cudnnBatchNormalizationForwardTrainingEx``, in its persistent mode if cuDNN supports it. Activation and
    residual are fused if cuDNN supports that too (half precision, channels last, a multiple of 4 channels);
    otherwise they are separate calls: ``cudnnAddTensor``, ``cudnnActivationForward``.

    By cuDNN's manual, the persistent mode may overflow for large values that other modes support: results are
    then infinite or NaN. :func:`batch_norm_overflow_detected` reports it.

    Examples
    --------
    >>> x = ct.asarray([[1], [3]], "float32")
    >>> scale, bias = ct.asarray([10], "float32"), ct.asarray([5], "float32")
    >>> y, mean, invstd = ct.batch_norm_training(x, scale, bias)
    >>> y.numpy()
    array([[-5.], [15.]], dtype=float32)
    """
    if more or unknown or x is UNSET or scale is UNSET or bias is UNSET:
        return corrected(batch_norm_training, locals())
    names = _OPERANDS if residual is None else (*_OPERANDS, "residual")
    given = (x, scale, bias) if residual is None else (x, scale, bias, residual)
    outs = result_slots(out, BatchNormResult._fields)
    if alpha is not ONE or beta is not ZERO:
        alpha, beta = parse_scaling(alpha, beta, outs[0])
    arguments = (mode, epsilon, momentum, activation, alpha != 1 or beta != 0)
    running = () if running_mean is None and running_var is None else (running_mean, running_var)
    outs = (*outs, *running)
    y, mean, invstd, *_ = execute(_TRAINING, names, given, arguments, alpha, beta, outs, stream)
    return BatchNormResult(y, mean, invstd)


@documented(batch_norm_training)
def batch_norm_inference(
    x: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    mean: ArrayLike,
    var: ArrayLike,
    *more: Never,
    mode: NormMode = "spatial",
    epsilon: float = 1e-5,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Compute ``alpha * (scale * (x - mean) / sqrt(var + epsilon) + bias) + beta * out``.

    Parameters
    ----------
    scale, bias : device array, shape of a statistic or, for ``"spatial"``, (C,)
        float32 or the dtype of x for half precision, otherwise the dtype of x.
    mean, var : device array, shape and dtype of scale
        Usually the running mean and variance of the training.

    Raises
    ------
    NotSupportedError
        The parameters are in half precision, the installed cuDNN has engines alone, and alpha is not 1 or
        beta is not 0, or ``ct.config.allow_runtime_compilation`` is off.

    Notes
    -----
    ``cudnnBatchNormalizationForwardInference``. With parameters in half precision, a graph of pointwise nodes
    if it takes the operands as they are; else that call on float32 copies of the parameters.

    Examples
    --------
    >>> x, scale, bias, mean, var = (
    ...     ct.asarray(values, "float32") for values in ([[7], [9]], [4], [1], [5], [4])
    ... )
    >>> ct.batch_norm_inference(x, scale, bias, mean, var).numpy()
    array([[5.], [9.]], dtype=float32)
    """
    if more or unknown or x is UNSET or scale is UNSET or bias is UNSET or mean is UNSET or var is UNSET:
        return corrected(batch_norm_inference, locals())
    names, given = ("x", "scale", "bias", "mean", "var"), (x, scale, bias, mean, var)
    return execute(_INFERENCE, names, given, (mode, epsilon), alpha, beta, (out,), stream)[0]


@documented(batch_norm_training)
def batch_norm_backward(
    dy: ArrayLike,
    x: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike | None = None,
    invstd: ArrayLike | None = None,
    *more: Never,
    mode: NormMode = "spatial",
    epsilon: float = 1e-5,
    activation: Literal["relu"] | None = None,
    y: ArrayLike | None = None,
    alpha: float = 1,
    beta: float = 0,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> BatchNormGradients[DeviceArray]:
    """Compute the gradients of :func:`batch_norm_training` (Ioffe and Szegedy 2015).

    With ``n`` for ``(x - mean) * invstd``, sums and means over the samples, and ``dz`` for ``dy`` where the
    activation is not 0, or ``dy`` without activation ::

        dbias = sum(dz)        dscale = sum(dz * n)
        dx = alpha * scale * invstd * (dz - mean(dz) - n * mean(dz * n)) + beta * out

    Parameters
    ----------
    mean, invstd : device array, shape and dtype of scale, both or neither, optional
        Results of the training step. Without them, cuDNN computes them from x and ``epsilon``, which takes
        time.
    y : device array, shape and dtype of x, optional
        The unscaled result of the training step, required for an activation.

    Returns
    -------
    BatchNormGradients
        ``dx``, DeviceArray of shape and dtype of x; ``dscale`` and ``dbias``, like scale; ``dz``, like x: the
        gradient of the residual. It is None without activation, because it is ``dy``.

    Notes
    -----
    ``cudnnBatchNormalizationBackwardEx`` or ``cudnnBatchNormalizationBackward``, in the persistent mode if
    cuDNN supports it, which may overflow as in :func:`batch_norm_training`. With an activation,
    ``cudnnActivationBackward`` runs first; it needs y only, also after a fused forward pass.

    Examples
    --------
    >>> x, dy = ct.asarray([[1], [3], [5]], "float32"), ct.asarray([[0], [0], [6]], "float32")
    >>> dx, dscale, dbias, dz = ct.batch_norm_backward(dy, x, ct.asarray([1], "float32"))
    >>> dbias.numpy(), dscale.numpy()
    (array([6.], dtype=float32), array([7.3484554], dtype=float32))
    """
    if more or unknown or dy is UNSET or x is UNSET or scale is UNSET:
        return corrected(batch_norm_backward, locals())
    given: dict[str, Any] = {"x": x, "dy": dy, "scale": scale}
    if mean is not None or invstd is not None:
        given |= present(mean=mean, invstd=invstd)
    params, absent = (mode, epsilon, activation), rules.WITHOUT_DZ
    if activation is not None:
        given, absent = given | present(y=y), ""
    kind: type[BatchNormGradients[DeviceArray]] = BatchNormGradients
    return execute_as(kind, _GRADIENT, given, params, out, stream, absent, alpha=alpha, beta=beta)


@documented(batch_norm_inference)
def batch_norm_inference_backward(
    dy: ArrayLike,
    x: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike,
    var: ArrayLike,
    *more: Never,
    mode: NormMode = "spatial",
    epsilon: float = 1e-5,
    alpha: float = 1,
    beta: float = 0,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> BatchNormGradients[DeviceArray]:
    """Compute the gradients of :func:`batch_norm_inference`, whose mean and variance are constants.

    They train a network further while its statistics stay constant. Sums are over the samples ::

        dbias = sum(dy)        dscale = sum(dy * (x - mean) / sqrt(var + epsilon))
        dx = alpha * scale * dy / sqrt(var + epsilon) + beta * out

    Parameters
    ----------

    Returns
    -------
    BatchNormGradients
        ``dx``, DeviceArray of shape and dtype of x; ``dscale`` and ``dbias``, like scale; ``dz`` is None.

    Notes
    -----
    ``cudnnBatchNormalizationForwardInference`` of dy, with a mean and a bias of zero, is dx. The sums are
    those of :func:`batch_norm_backward`, whose dx is not used. Several calls allocate memory, so they cannot
    be captured into a CUDA graph.

    Examples
    --------
    >>> x, dy, scale, mean, var = (
    ...     ct.asarray(values, "float32") for values in ([[7], [9]], [[1], [1]], [1], [5], [4])
    ... )
    >>> gradients = ct.batch_norm_inference_backward(dy, x, scale, mean, var)
    >>> gradients.dscale.numpy(), gradients.dx.numpy().ravel()
    (array([3.], dtype=float32), array([0.5, 0.5], dtype=float32))
    """
    if more or unknown or dy is UNSET or x is UNSET or scale is UNSET or mean is UNSET or var is UNSET:
        return corrected(batch_norm_inference_backward, locals())
    where = stream_of(dy, "dy", stream, (x, scale, mean, var, out))
    at: dict[str, Any] = {"mode": mode, "stream": where}
    given = {"dy": dy, "x": x, "scale": scale, "mean": mean, "var": var}
    operands = [as_operand(array, name, where) for name, array in given.items()]
    dy, x, scale, center, variance = operands
    rules.check_norm_parameters(x.spec, mode, scale=scale.spec, mean=center.spec, var=variance.spec)
    outs = result_slots(out, BatchNormGradients._fields, absent=rules.WITHOUT_DZ)
    expected = dict(zip(_GRADIENTS, (x.spec, scale.spec, scale.spec), strict=False))
    dx_out, *sums = results_of_calls(outs, expected, operands, where)
    alpha, beta = parse_scaling(alpha, beta, dx_out)
    none = zeros(variance.shape, variance.dtype, stream=where)
    one = full(variance.shape, 1, variance.dtype, stream=where)
    # The result for x = 1, scale = 1 and a mean of 0 is 1 / sqrt(var + epsilon).
    sample = full(rules.norm_parameter_shape(x.shape, mode), 1, variance.dtype, stream=where)
    inverse = batch_norm_inference(sample, one, none, none, variance, epsilon=epsilon, **at)
    invstd = inverse.view_as(TensorSpec.packed(variance.shape, variance.dtype))  # where that is (C,)
    # The sums come first: they reject wrong operands before anything is written to out.
    _, dscale, dbias, _ = batch_norm_backward(dy, x, scale, center, invstd, out=(None, *sums), **at)
    dx = batch_norm_inference(
        dy, scale, none, none, variance, epsilon=epsilon, alpha=alpha, beta=beta, out=dx_out, **at
    )
    return BatchNormGradients(dx, dscale, dbias, None)


@known_keywords
def batch_norm_overflow_detected(
    *more: Never, wait: bool = False, stream: StreamLike | None = None, **unknown: Never
) -> bool | None:
    """Return whether a persistent kernel of this thread reported an overflow since the previous call.

    Parameters
    ----------
    wait : bool
        Wait for the pending work on the stream; by default the call does not wait.
    stream : optional
        As in :func:`batch_norm_training`.

    Returns
    -------
    bool or None
        None while work is pending and no overflow is known.

    Raises
    ------
    CudnnError
        A kernel failed with another error.

    Notes
    -----
    ``cudnnQueryRuntimeError``. The report belongs to a handle, not to a call. Kernels are known to report an
    overflow although results are right; infinite or NaN results are the better sign.

    Examples
    --------
    >>> ct.batch_norm_overflow_detected(wait=True)
    False
    """
    if more or unknown:
        return corrected(batch_norm_overflow_detected, locals())
    where = streams.resolve_stream(stream)
    with streams.on_device(where.device):
        ctx, status = context.current(where), ctypes.c_int()
        how = ErrQueryMode.BLOCKING if as_bool(wait, "wait") else ErrQueryMode.NONBLOCKING
        ctx.library.cudnnQueryRuntimeError(ctx.handle, ctypes.byref(status), how, None)
    known = {Status.SUCCESS: False, Status.RUNTIME_FP_OVERFLOW: True, Status.RUNTIME_IN_PROGRESS: None}
    if status.value not in known:
        raise error_from_status(status.value, "cudnnQueryRuntimeError", version=ctx.library.version)
    return known[Status(status.value)]
