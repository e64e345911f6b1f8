"""Convolutions, pooling, softmax and activations of arrays of JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..shapes.checks import as_bool, as_float, per_axis
from ..shapes.conv import Pairs, pad_pairs
from .operators import apply, known, operand

__all__ = [
    "activation",
    "conv",
    "conv_bias_activation",
    "conv_transpose",
    "lrn",
    "pool",
    "softmax",
]

Array = Any
PerAxis = int | Sequence[int]
Padding = str | PerAxis | Sequence[tuple[int, int]]


def conv(
    x: Array,
    w: Array,
    *,
    padding: Padding = "valid",
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Array:
    """Convolve (cross-correlate), as :func:`cudnn_ct.conv`.

    Parameters
    ----------
    x : array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
        In any layout; half precision is asked for with the channels last in memory.
    w : array, shape (K, C / groups, *window), dtype of x
    padding : "valid" | "half" | "full", int, one int per axis, or a pair (before, after) per axis
    stride, dilation : int or one int per spatial axis
    groups : int

    Returns
    -------
    array, shape (N, K, *out), dtype of x

    Raises
    ------
    ValueError, TypeError, NotSupportedError
        When JAX traces: shapes, dtypes or parameters do not match.

    Notes
    -----
    Differentiable any number of times.
    """
    x, w = operand(x, "x"), operand(w, "w")
    return apply("conv", (x, w), **_geometry(w, padding, stride, dilation, groups))


def conv_bias_activation(
    x: Array,
    w: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    *,
    activation: str = "relu",
    coefficient: float = 0.0,
    padding: Padding = "valid",
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Array:
    """Convolve, add and activate in one call: ``act(conv(x, w) + residual + bias)``.

    Parameters
    ----------
    x, w, padding, stride, dilation, groups
        As in :func:`conv`.
    bias : array, shape (K,), dtype of x, optional
    residual : array, shape and dtype of the result, optional
    activation : {"relu", "clipped_relu", "sigmoid", "tanh", "elu", "gelu", "swish", "silu", "identity"}
    coefficient : float
        As in :func:`activation`.

    Returns
    -------
    array, shape (N, K, *out), dtype of x

    Raises
    ------
    ValueError, TypeError, NotSupportedError
        As in :func:`conv`.

    Notes
    -----
    :func:`cudnn_ct.conv_bias_activation`. The gradients of relu, sigmoid and tanh need the result
    only; gradients of other activations compute the convolution again.
    """
    x, w = operand(x, "x"), operand(w, "w")
    operands = (x, w, operand(bias, "bias", optional=True), operand(residual, "residual", optional=True))
    geometry = _geometry(w, padding, stride, dilation, groups)
    return apply("conv_bias_activation", operands, activation=activation, coefficient=coefficient, **geometry)


def conv_transpose(
    x: Array,
    w: Array,
    *,
    padding: PerAxis = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    output_padding: PerAxis = 0,
) -> Array:
    """Convolve transposed: the gradient of a convolution in its image.

    Parameters
    ----------
    x : array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
    w : array, shape (C, K / groups, *window), dtype of x
    padding, stride, dilation, groups
        As in :func:`conv`.
    output_padding : int or one int per spatial axis, less than the stride

    Returns
    -------
    array, shape (N, K, *out), dtype of x

    Raises
    ------
    ValueError, TypeError, NotSupportedError
        As in :func:`conv`.

    Notes
    -----
    :func:`cudnn_ct.conv_transpose`.
    """
    x, w = operand(x, "x"), operand(w, "w")
    geometry = _geometry(w, padding, stride, dilation, groups)
    more = per_axis(known(output_padding, "output_padding"), max(x.ndim - 2, 1), "output_padding", 0)
    return apply("conv_transpose", (x, w), **geometry, output_padding=more)


def pool(
    x: Array,
    window: PerAxis,
    *,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    mode: str = "max",
) -> Array:
    """Compute the largest element, the average or the sum of each window.

    Parameters
    ----------
    x : array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
    window : int or one int per spatial axis
    stride : int or one int per spatial axis, optional
        By default that of the window.
    padding : "valid" | "half" | "full", int, one int per axis, or a pair (before, after) per axis
    mode : {"max", "max_deterministic", "average_inc_pad", "average_exc_pad", "sum"}

    Returns
    -------
    array, shape (N, C, *out), dtype of x

    Raises
    ------
    ValueError, TypeError, NotSupportedError
        As in :func:`conv`.

    Notes
    -----
    :func:`cudnn_ct.pool`.
    """
    x = operand(x, "x")
    windows = per_axis(known(window, "window"), max(x.ndim - 2, 1), "window", 1)
    pads = _flat(pad_pairs(known(padding, "padding"), windows, (1,) * len(windows)))
    return apply("pool", (x,), window=windows, stride=stride, padding=pads, mode=mode)


def softmax(x: Array, axis: int | Sequence[int] = -1, *, log: bool = False) -> Array:
    """Compute the softmax over an axis or adjacent axes, or its logarithm.

    Parameters
    ----------
    x : array, float16 | bfloat16 | float32 | float64
    axis : int or sequence of adjacent ints
    log : bool

    Returns
    -------
    array, shape and dtype of x

    Raises
    ------
    ValueError
        ``axis`` is out of range.

    Notes
    -----
    :func:`cudnn_ct.softmax`.
    """
    algo = "log" if as_bool(known(log, "log"), "log") else "accurate"
    return apply("softmax", (operand(x, "x"),), axis=axis, algo=algo)


def activation(x: Array, mode: str = "relu", *, coefficient: float = 0.0) -> Array:
    """Apply an activation to each element.

    Parameters
    ----------
    x : array, float16 | bfloat16 | float32 | float64
    mode : {"identity", "relu", "clipped_relu", "sigmoid", "tanh", "elu", "swish", "silu"}
    coefficient : float
        Ceiling of ``"clipped_relu"``, alpha of ``"elu"``, beta of ``"swish"``, for which 0 stands for 1.

    Returns
    -------
    array, shape and dtype of x

    Raises
    ------
    ValueError
        ``mode`` does not exist.

    Notes
    -----
    :func:`cudnn_ct.activation`. XLA fuses its own activations with their neighbours.
    """
    x = operand(x, "x")
    flat = x if x.ndim else x.reshape(1)  # vmap adds samples to the first axis
    return apply("activation", (flat,), mode=mode, coefficient=coefficient).reshape(x.shape)


def lrn(x: Array, n: int = 5, *, alpha: float = 1e-4, beta: float = 0.75, k: float = 2.0) -> Array:
    """Normalise over neighbouring channels.

    Parameters
    ----------
    x : array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
    n : int
        Number of channels.
    alpha, beta, k : float

    Returns
    -------
    array, shape and dtype of x

    Raises
    ------
    ValueError
        Parameters are out of range.

    Notes
    -----
    :func:`cudnn_ct.lrn`.
    """
    numbers = {"lrn_alpha": (alpha, "alpha"), "lrn_beta": (beta, "beta"), "k": (k, "k")}
    params = {one: as_float(known(*given), given[1]) for one, given in numbers.items()}
    return apply("lrn", (operand(x, "x"),), n=n, **params)


# --- arguments ---------------------------------------------------------------------------------------------


def _geometry(w: Array, padding: Any, stride: Any, dilation: Any, groups: int) -> dict[str, Any]:
    """Return the parameters of a convolution, for each axis."""
    window = tuple(w.shape[2:]) or (1,)  # the call checks the shape of w
    dilations = per_axis(known(dilation, "dilation"), len(window), "dilation", 1)
    return {
        "padding": _flat(pad_pairs(known(padding, "padding"), window, dilations)),
        "stride": per_axis(known(stride, "stride"), len(window), "stride", 1),
        "dilation": dilations,
        "groups": groups,
    }


def _flat(pairs: Pairs) -> tuple[int, ...]:
    """Return one number for each axis, or two if they differ on one."""
    even = all(before == after for before, after in pairs)
    return tuple(before for before, _ in pairs) if even else tuple(n for pair in pairs for n in pair)
