"""Pooling and its gradient."""

from __future__ import annotations

from typing import Any

from ..shapes.pooling import pool_output_shape, pool_problem
from ._call import Operation, execute
from ._fallback import of_problem
from .pooling_legacy import broadcast_gradient, gradient_in_c_order, padded_pooling, pooling

__all__ = ["pool", "pool_backward", "pool_output_shape"]

_IMPLEMENTATIONS = (
    of_problem(broadcast_gradient, aligned=True),
    of_problem(gradient_in_c_order),
    of_problem(pooling),
    of_problem(padded_pooling),
)
_POOL = Operation("a pooling", pool_problem, _IMPLEMENTATIONS)
_GRADIENT = Operation("the gradient of a pooling", pool_problem, _IMPLEMENTATIONS)


def pool(
    x: Any,
    *,
    window: Any,
    stride: Any = None,
    padding: Any = 0,
    mode: Any = "max",
    nan: Any = "propagate",
    alpha: float = 1,
    beta: float = 0,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Pool: ``alpha * (largest element, average or sum of each window) + beta * out``.

    Parameters
    ----------
    x : device array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64, for a maximum also int8
        1 to 3 spatial axes, any strides.
    window : int, one int per spatial axis, or "global", which is the whole image
    stride : int or one int per spatial axis, optional
        By default that of the window: windows lie side by side.
    padding : int, one int per axis, one pair (before, after) per axis, "valid", "half" or "full"
        Less than the window on each side. A maximum looks at the elements of x only; for averages and sums
        the padding is zeros.
    mode : {"max", "max_deterministic", "average_inc_pad", "average_exc_pad", "sum"}
        The averages count the padding, or do not; ``"average"`` is ``"average_inc_pad"``. The gradient of
        ``"max_deterministic"`` is the same in each run.
    nan : {"propagate", "not_propagate"}
        Whether a NaN is the largest element of its window.
    alpha, beta : float
    out : device array, shape and dtype of the result, optional
        Where the result goes; read only where beta is not 0, which needs it. It must not overlap x.
    stream : optional
        An address, or anything with ``__cuda_stream__``; by default that of ``ct.use``.

    Returns
    -------
    DeviceArray, shape (N, C, *out), dtype of x, as :func:`pool_output_shape` has it; or ``out``

    Raises
    ------
    TypeError
        An operand is not on the device, or there is no such pooling of its dtype.
    ValueError
        Shapes or parameters do not fit; the message has the numbers.
    NotSupportedError
        cuDNN has no way to compute it; the message says what each way was refused for.
    AllocationError
        Device memory ran out.

    Notes
    -----
    ``cudnnPoolingForward``; where padding differs between the two sides of an axis, on a padded copy, which
    ``"average_exc_pad"`` does not allow. cuDNN has no sums: they are averages times the size of the window.

    By cuDNN's manual the same bits from run to run, on GPUs of one architecture.

    Examples
    --------
    >>> x = ct.asarray([[[1, 5, 2, 4, 3]]], "float32")
    >>> ct.pool(x, window=2).numpy()
    array([[[5., 4.]]], dtype=float32)
    >>> ct.pool(x, window="global", mode="average").numpy()
    array([[[3.]]], dtype=float32)
    """
    return execute(_POOL, ("x",), (x,), (window, stride, padding, mode, nan), alpha, beta, (out,), stream)[0]


def pool_backward(
    x: Any,
    y: Any,
    dy: Any,
    *,
    window: Any,
    stride: Any = None,
    padding: Any = 0,
    mode: Any = "max",
    nan: Any = "propagate",
    alpha: float = 1,
    beta: float = 0,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Compute the gradient of :func:`pool` with regard to x: ``alpha * gradient + beta * out``.

    Parameters
    ----------
    x : device array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
    y : device array, shape :func:`pool_output_shape`, dtype of x
        What :func:`pool` gave for x.
    dy : device array, shape of y, dtype of x
    window, stride, padding, mode, nan
        Those of the pooling.
    alpha, beta, out, stream
        As in :func:`pool`; ``out`` has the shape of x.

    Returns
    -------
    DeviceArray, shape and dtype of x; or ``out``

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`pool`; ValueError also where pooling x does not give the shape of y and dy.

    Notes
    -----
    ``cudnnPoolingBackward``, on a padded copy as in :func:`pool`. Where several elements of a window are the
    largest, one of them gets the gradient: with ``"max_deterministic"`` always the same.

    With ``"max"`` cuDNN's manual promises no fixed order of the sums where windows overlap, so that results
    may vary from run to run, whatever ``ct.config.deterministic`` says; with the other modes they do not.

    Examples
    --------
    >>> x, dy = ct.asarray([[[1, 5, 2, 4]]], "float32"), ct.asarray([[[1, 10]]], "float32")
    >>> ct.pool_backward(x, ct.pool(x, window=2), dy, window=2).numpy()
    array([[[ 0.,  1.,  0., 10.]]], dtype=float32)
    """
    arguments = (window, stride, padding, mode, nan)
    return execute(_GRADIENT, ("x", "y", "dy"), (x, y, dy), arguments, alpha, beta, (out,), stream)[0]
