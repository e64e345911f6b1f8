"""Batch normalisation: training, inference, gradient."""

from __future__ import annotations

import ctypes
from typing import Any, Literal

from ... import context
from ..._bindings.enums import ErrQueryMode, Status
from ...array import DeviceArray
from ...array_creation import as_operand, full, zeros
from ...cuda import stream as streams
from ...errors import error_from_status
from ...shapes.norm import BatchNormGradients, BatchNormResult, check_norm_parameters, norm_parameter_shape
from ...shapes.norm_problem import norm_gradient, norm_inference, norm_training
from ...shapes.parse import as_bool
from ...shapes.specs import TensorSpec
from ...typing import ArrayLike, NormMode, StreamLike
from .._call import ONE, ZERO, Operation, execute, parse_scaling
from .._operands import byte_extent, refuse_overlap, stream_of
from .plans import GRADIENT, INFERENCE, TRAINING

__all__ = [
    "batch_norm_backward",
    "batch_norm_inference",
    "batch_norm_inference_backward",
    "batch_norm_overflow_detected",
    "batch_norm_training",
]

_RESULTS = ("out", "mean", "invstd", "running_mean", "running_var")

_TRAINING = Operation("a batch normalisation", norm_training, TRAINING, written=_RESULTS)
_INFERENCE = Operation("a batch normalisation", norm_inference, INFERENCE)
_GRADIENT = Operation("the gradient of a batch normalisation", norm_gradient, GRADIENT)
_OPERANDS = ("x", "scale", "bias")


def batch_norm_training(
    x: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    *,
    mode: NormMode = "spatial",
    epsilon: float = 1e-5,
    running_mean: ArrayLike | None = None,
    running_var: ArrayLike | None = None,
    momentum: float = 0.1,
    activation: Literal["relu"] | None = None,
    z: ArrayLike | None = None,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
) -> BatchNormResult[DeviceArray]:
    """Normalise a batch by its own mean and variance, then scale and shift it (Ioffe and Szegedy 2015).

    With ``mean`` and ``var`` (divided by the number of samples m, not m - 1) of the batch ::

        y = alpha * act(scale * (x - mean) / sqrt(var + epsilon) + bias + z) + beta * out
        running_mean = running_mean * (1 - momentum) + mean * momentum
        running_var = running_var * (1 - momentum) + m / (m - 1) * var * momentum

    Parameters
    ----------
    x : device array, 1 to 6 axes, shape (N, C, ...), float16 | bfloat16 | float32 | float64
        Any strides.
    scale, bias : device array, shape (C,) or (1, C, 1, ...); (1, C, ...) for "per_activation"
        float32 for half precision, else of the dtype of x.
    mode : {"spatial", "per_activation"}
        Whether a mean is over the batch and all that follows the channels, or over the batch alone.
    epsilon : float, at least 0
    running_mean, running_var : device array, shape and dtype of scale, both or neither, optional
        Updated in place, if there is a sample at all.
    momentum : float, 0 to 1
        The weight of this batch: cuDNN's ``exponentialAverageFactor``.
    activation : {"relu"}, optional
    z : device array, shape and dtype of x, optional
        A residual, added before the activation.
    alpha, beta : float
    out : device array, shape and dtype of x, optional
        Where y goes; read only where beta is not 0, which needs it. It must not overlap x or z.
    stream : optional
        An address, or anything with ``__cuda_stream__``; by default that of ``ct.use``.

    Returns
    -------
    BatchNormResult
        ``y``, DeviceArray of shape and dtype of x, or ``out`` as one; ``mean`` and
        ``invstd = 1 / sqrt(var + epsilon)``, DeviceArrays in the dtype of the parameters, with the axes of x,
        those that the mean is over of length 1. The mean of no samples is NaN.

    Raises
    ------
    TypeError
        An operand is not on the device, or of another dtype than is needed.
    ValueError
        Shapes or parameters do not fit; the message has the numbers. Also where only one of the running
        statistics is given, or a running variance is asked for of one sample, which has no unbiased variance.
    NotSupportedError
        cuDNN has no way to compute it; the message says what each way was refused for.
    ExecutionFailedError
        cuDNN refused a later part of the work when an earlier one had changed results, or a kernel failed.
    AllocationError
        Device memory ran out.

    Notes
    -----
    ``cudnnBatchNormalizationForwardTrainingEx``, in its persistent mode where cuDNN has it. Activation and
    residual are part of that call where cuDNN has that too (half precision, channels last, a multiple of 4
    channels), else calls of their own: ``cudnnAddTensor``, ``cudnnActivationForward``.

    The persistent mode may overflow, by cuDNN's manual, on large values that the others can take: results are
    then infinite or NaN. :func:`batch_norm_overflow_detected` reports it.

    By cuDNN's manual the same bits from run to run, on GPUs of one architecture.

    Examples
    --------
    >>> x = ct.asarray([[1], [3]], "float32")
    >>> scale, bias = ct.asarray([10], "float32"), ct.asarray([5], "float32")
    >>> y, mean, invstd = ct.batch_norm_training(x, scale, bias)
    >>> y.numpy()
    array([[-5.], [15.]], dtype=float32)
    >>> dx, dscale, dbias, _ = ct.batch_norm_backward(y, x, scale, mean, invstd)
    >>> dbias.numpy()
    array([10.], dtype=float32)
    """
    names, given = (_OPERANDS, (x, scale, bias)) if z is None else ((*_OPERANDS, "z"), (x, scale, bias, z))
    if alpha is not ONE or beta is not ZERO:
        alpha, beta = parse_scaling(alpha, beta, out)
    arguments = (mode, epsilon, momentum, activation, alpha != 1 or beta != 0)
    running = () if running_mean is None and running_var is None else (running_mean, running_var)
    outs = (out, None, None, *running)
    y, mean, invstd, *_ = execute(_TRAINING, names, given, arguments, alpha, beta, outs, stream)
    return BatchNormResult(y, mean, invstd)


def batch_norm_inference(
    x: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    mean: ArrayLike,
    var: ArrayLike,
    *,
    mode: NormMode = "spatial",
    epsilon: float = 1e-5,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Compute ``alpha * (scale * (x - mean) / sqrt(var + epsilon) + bias) + beta * out``.

    Parameters
    ----------
    x : device array, 1 to 6 axes, shape (N, C, ...), float16 | bfloat16 | float32 | float64
        Any strides.
    scale, bias, mean, var : device array, shape (C,) or (1, C, 1, ...); (1, C, ...) for "per_activation"
        float32 for half precision, else of the dtype of x. ``mean`` and ``var`` usually are the
        running statistics of the training.
    mode, epsilon, alpha, beta, out, stream
        As in :func:`batch_norm_training`.

    Returns
    -------
    DeviceArray, shape and dtype of x; or ``out`` as one

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`batch_norm_training`.

    Notes
    -----
    ``cudnnBatchNormalizationForwardInference``. A batch too large for one call is computed in parts.

    Each element is computed by itself: the same bits from run to run.

    Examples
    --------
    >>> x, scale, bias, mean, var = (
    ...     ct.asarray(values, "float32") for values in ([[7], [9]], [4], [1], [5], [4])
    ... )
    >>> ct.batch_norm_inference(x, scale, bias, mean, var).numpy()
    array([[5.], [9.]], dtype=float32)
    """
    names, given = ("x", "scale", "bias", "mean", "var"), (x, scale, bias, mean, var)
    return execute(_INFERENCE, names, given, (mode, epsilon), alpha, beta, (out,), stream)[0]


def batch_norm_backward(
    dy: ArrayLike,
    x: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike | None = None,
    invstd: ArrayLike | None = None,
    *,
    mode: NormMode = "spatial",
    epsilon: float = 1e-5,
    activation: Literal["relu"] | None = None,
    y: ArrayLike | None = None,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
) -> BatchNormGradients[DeviceArray]:
    """Compute the gradients of :func:`batch_norm_training` (Ioffe and Szegedy 2015).

    With ``n`` for ``(x - mean) * invstd``, sums and means over the samples, and ``dz`` for ``dy`` where the
    activation let something through, ``dy`` without activation ::

        dbias = sum(dz)        dscale = sum(dz * n)
        dx = alpha * scale * invstd * (dz - mean(dz) - n * mean(dz * n)) + beta * out

    Parameters
    ----------
    dy : device array, shape and dtype of x
    x : device array, 1 to 6 axes, shape (N, C, ...), float16 | bfloat16 | float32 | float64
        Any strides.
    scale : device array, shape (C,) or (1, C, 1, ...); (1, C, ...) for "per_activation"
        float32 for half precision, else of the dtype of x.
    mean, invstd : device array, as scale, both or neither, optional
        What the forward step gave. Without them cuDNN reckons them from x with ``epsilon``, at a cost.
    y : device array, shape and dtype of x, optional
        What the forward step gave, not scaled; needed for an activation, which was off where it is 0.
    mode, epsilon, activation
        As in :func:`batch_norm_training`.
    alpha, beta, out, stream
        As there, for dx.

    Returns
    -------
    BatchNormGradients
        ``dx``, DeviceArray of shape and dtype of x, or ``out`` as one; ``dscale`` and ``dbias``, as scale;
        ``dz``, as x: the gradient of the residual, None without activation, where it is ``dy``.

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`batch_norm_training`; ValueError also where only one of ``mean`` and ``invstd`` is given,
        or an activation without ``y``.

    Notes
    -----
    ``cudnnBatchNormalizationBackwardEx`` or ``cudnnBatchNormalizationBackward``, in the persistent mode where
    cuDNN has it, which may overflow as in :func:`batch_norm_training`. With an activation,
    ``cudnnActivationBackward`` comes first; nothing that a fused forward step keeps is needed for it.

    By cuDNN's manual the same bits from run to run, on GPUs of one architecture.

    Examples
    --------
    >>> x, dy = ct.asarray([[1], [3], [5]], "float32"), ct.asarray([[0], [0], [6]], "float32")
    >>> dx, dscale, dbias, dz = ct.batch_norm_backward(dy, x, ct.asarray([1], "float32"))
    >>> dbias.numpy(), dscale.numpy()
    (array([6.], dtype=float32), array([7.3484554], dtype=float32))
    """
    names, given = ["x", "dy", "scale"], [x, dy, scale]
    for name, array in (("mean", mean), ("invstd", invstd), ("y", None if activation is None else y)):
        if array is not None:
            names.append(name)
            given.append(array)
    arguments = (mode, epsilon, activation)
    outs = (out, None, None) if activation is None else (out, None, None, None)
    dx, dscale, dbias, *dz = execute(
        _GRADIENT, tuple(names), tuple(given), arguments, alpha, beta, outs, stream
    )
    return BatchNormGradients(dx, dscale, dbias, dz[0] if dz else None)


def batch_norm_inference_backward(
    dy: ArrayLike,
    x: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike,
    var: ArrayLike,
    *,
    mode: NormMode = "spatial",
    epsilon: float = 1e-5,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
) -> BatchNormGradients[DeviceArray]:
    """Compute the gradients of :func:`batch_norm_inference`, whose mean and variance are constants.

    They are those of a network that is trained further with its statistics as they are, with sums over the
    samples ::

        dbias = sum(dy)        dscale = sum(dy * (x - mean) / sqrt(var + epsilon))
        dx = alpha * scale * dy / sqrt(var + epsilon) + beta * out

    Parameters
    ----------
    dy : device array, shape and dtype of x
    x : device array, 1 to 6 axes, shape (N, C, ...), float16 | bfloat16 | float32 | float64
        Any strides.
    scale, mean, var : device array, shape (C,) or (1, C, 1, ...); (1, C, ...) for "per_activation"
        float32 for half precision, else of the dtype of x.
    mode, epsilon, alpha, beta, out, stream
        As in :func:`batch_norm_inference`, the last four for dx.

    Returns
    -------
    BatchNormGradients
        ``dx``, DeviceArray of shape and dtype of x, or ``out`` as one; ``dscale`` and ``dbias``, as scale;
        ``dz`` is None.

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`batch_norm_inference`.

    Notes
    -----
    ``cudnnBatchNormalizationForwardInference`` of dy, with a mean and a bias of zero, is dx. The sums are
    those of :func:`batch_norm_backward`, whose own dx is not used. It is several calls, and takes memory of
    its own, so it cannot be captured into a CUDA graph.

    By cuDNN's manual the same bits from run to run, on GPUs of one architecture.

    Examples
    --------
    >>> x, dy, scale, mean, var = (
    ...     ct.asarray(values, "float32") for values in ([[7], [9]], [[1], [1]], [1], [5], [4])
    ... )
    >>> gradients = ct.batch_norm_inference_backward(dy, x, scale, mean, var)
    >>> gradients.dscale.numpy(), gradients.dx.numpy().ravel()
    (array([3.], dtype=float32), array([0.5, 0.5], dtype=float32))
    """
    where = stream_of(x, "x", stream)
    at: dict[str, Any] = {"mode": mode, "stream": where}
    given = {"x": x, "scale": scale, "mean": mean, "var": var}
    x, scale, center, variance = (as_operand(array, name, where) for name, array in given.items())
    check_norm_parameters(x.spec, mode, scale=scale.spec, mean=center.spec, var=variance.spec)
    if out is not None:
        read, written = (x, center), as_operand(out, "out", where, written=True)
        refuse_overlap(read, (written,), [byte_extent(array.spec) for array in (*read, written)])
    none = zeros(variance.shape, variance.dtype, stream=where)
    one = full(variance.shape, 1, variance.dtype, stream=where)
    # What one becomes, with a scale of one, is 1 / sqrt(var + epsilon).
    sample = full(norm_parameter_shape(x.shape, mode), 1, variance.dtype, stream=where)
    inverse = batch_norm_inference(sample, one, none, none, variance, epsilon=epsilon, **at)
    invstd = inverse.view_as(TensorSpec.packed(variance.shape, variance.dtype))  # where that is (C,)
    # The sums first: what is wrong with an operand is told before anything goes to out.
    _, dscale, dbias, _ = batch_norm_backward(dy, x, scale, center, invstd, **at)
    dx = batch_norm_inference(
        dy, scale, none, none, variance, epsilon=epsilon, alpha=alpha, beta=beta, out=out, **at
    )
    return BatchNormGradients(dx, dscale, dbias, None)


def batch_norm_overflow_detected(*, wait: bool = False, stream: StreamLike | None = None) -> bool | None:
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
    where = streams.resolve_stream(stream)
    previous = streams.set_device(where.device)
    try:
        ctx, status = context.current(where), ctypes.c_int()
        how = ErrQueryMode.BLOCKING if as_bool(wait, "wait") else ErrQueryMode.NONBLOCKING
        ctx.library.cudnnQueryRuntimeError(ctx.handle, ctypes.byref(status), how, None)
    finally:
        streams.restore_device(previous)
    known = {Status.SUCCESS: False, Status.RUNTIME_FP_OVERFLOW: True, Status.RUNTIME_IN_PROGRESS: None}
    if status.value not in known:
        raise error_from_status(status.value, "cudnnQueryRuntimeError", version=ctx.library.version)
    return known[Status(status.value)]
