"""Normalisations, products, attention and sequences of arrays of JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..shapes.checks import as_float
from .operators import apply, apply_whole, known, operand

__all__ = [
    "attention",
    "batch_norm_inference",
    "batch_norm_training",
    "ctc_loss",
    "grid_sample",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "matmul",
    "rms_norm",
]

Array = Any


# --- normalisations ----------------------------------------------------------------------------------------


def batch_norm_training(
    x: Array,
    scale: Array,
    bias: Array,
    residual: Array | None = None,
    *,
    epsilon: float = 1e-5,
    activation: str | None = None,
) -> tuple[Array, Array, Array]:
    """Normalise a batch by its own statistics, and apply a residual and relu.

    Parameters
    ----------
    x : array, shape (N, C, ...), float16 | bfloat16 | float32 | float64
    scale, bias : array, shape (C,)
        float32 for half precision, else the dtype of x.
    residual : array, shape and dtype of x, optional
        Added before the activation.
    epsilon : float
    activation : {"relu"}, optional

    Returns
    -------
    y : array, shape and dtype of x
    mean, var : array, shape (C,)
        Statistics of the batch, for running statistics; they have no gradients. ``var`` divides by the
        number of elements, and is 1 / invstd**2 - epsilon, where invstd is a result of cuDNN.

    Raises
    ------
    ValueError, TypeError, NotSupportedError
        As in :func:`cudnn_ct.jax.conv`.

    Notes
    -----
    :func:`cudnn_ct.batch_norm_training`.
    """
    scale, epsilon = operand(scale, "scale"), as_float(known(epsilon, "epsilon"), "epsilon")
    extra = operand(residual, "residual", optional=True)
    operands = (operand(x, "x"), scale, operand(bias, "bias"), extra)
    y, mean, invstd = apply_whole("batch_norm_training", operands, epsilon=epsilon, activation=activation)
    mean, invstd = (jax.lax.stop_gradient(one).reshape(scale.shape) for one in (mean, invstd))
    return y, mean, jnp.maximum(invstd**-2 - epsilon, 0)


def batch_norm_inference(
    x: Array, scale: Array, bias: Array, mean: Array, var: Array, *, epsilon: float = 1e-5
) -> Array:
    """Normalise by given statistics.

    Parameters
    ----------
    x, scale, bias, epsilon
        As in :func:`batch_norm_training`.
    mean, var : array, shape and dtype of scale
        Without gradients.

    Returns
    -------
    array, shape and dtype of x

    Raises
    ------
    ValueError, TypeError, NotSupportedError
        As in :func:`cudnn_ct.jax.conv`.

    Notes
    -----
    :func:`cudnn_ct.batch_norm_inference`.
    """
    statistics = (jax.lax.stop_gradient(operand(one, name)) for one, name in ((mean, "mean"), (var, "var")))
    operands = (operand(x, "x"), operand(scale, "scale"), operand(bias, "bias"), *statistics)
    return apply("batch_norm_inference", operands, epsilon=epsilon)


def group_norm(x: Array, scale: Array, bias: Array, *, groups: int = 1, epsilon: float = 1e-5) -> Array:
    """Normalise groups of channels of each image.

    Parameters
    ----------
    x, scale, bias, epsilon
        As in :func:`batch_norm_training`.
    groups : int
        It divides C.

    Returns
    -------
    array, shape and dtype of x

    Raises
    ------
    ValueError, TypeError, NotSupportedError
        As in :func:`cudnn_ct.jax.conv`.

    Notes
    -----
    :func:`cudnn_ct.group_norm`.
    """
    return apply("group_norm", _norm(x, scale, bias), groups=groups, epsilon=epsilon)


def instance_norm(x: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5) -> Array:
    """Normalise each channel of each image.

    Parameters
    ----------
    x, scale, bias, epsilon
        As in :func:`batch_norm_training`.

    Returns
    -------
    array, shape and dtype of x

    Raises
    ------
    ValueError, TypeError, NotSupportedError
        As in :func:`cudnn_ct.jax.conv`.

    Notes
    -----
    :func:`cudnn_ct.instance_norm`.
    """
    return apply("instance_norm", _norm(x, scale, bias), epsilon=epsilon)


def layer_norm(x: Array, scale: Array, bias: Array | None = None, *, epsilon: float = 1e-5) -> Array:
    """Normalise the last axes: as many as scale has.

    Parameters
    ----------
    x : array, shape (..., *rows), float16 | bfloat16 | float32
    scale, bias : array, shape (*rows,), float32 or dtype of x
    epsilon : float

    Returns
    -------
    array, shape and dtype of x

    Raises
    ------
    ValueError, TypeError, NotSupportedError
        As in :func:`cudnn_ct.jax.conv`.

    Notes
    -----
    :func:`cudnn_ct.layer_norm`.
    """
    return apply("layer_norm", _norm(x, scale, bias, optional=True), epsilon=epsilon)


def rms_norm(x: Array, scale: Array, bias: Array | None = None, *, epsilon: float = 1e-5) -> Array:
    """Divide the last axes by their root mean square.

    Parameters
    ----------
    x, scale, bias, epsilon
        As in :func:`layer_norm`.

    Returns
    -------
    array, shape and dtype of x

    Raises
    ------
    ValueError, TypeError, NotSupportedError
        As in :func:`cudnn_ct.jax.conv`.

    Notes
    -----
    :func:`cudnn_ct.rms_norm`.
    """
    return apply("rms_norm", _norm(x, scale, bias, optional=True), epsilon=epsilon)


# --- products, attention, sequences, sampling --------------------------------------------------------------


def matmul(
    a: Array,
    b: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    *,
    activation: str | None = None,
    alpha: float = 1.0,
) -> Array:
    """Multiply matrices: ``act(alpha * a @ b + bias + residual)``.

    Parameters
    ----------
    a : array, shape (..., M, K), float16 | bfloat16 | float32 | float64
    b : array, shape (..., K, N), dtype of a
    bias : array, shape (N,), dtype of a, optional
    residual : array, shape and dtype of the result, optional
    activation : str, optional
        As in :func:`cudnn_ct.matmul`.
    alpha : float

    Returns
    -------
    array, shape (..., M, N), dtype of a

    Raises
    ------
    ValueError, TypeError, NotSupportedError
        As in :func:`cudnn_ct.jax.conv`.

    Notes
    -----
    :func:`cudnn_ct.matmul`.
    """
    extra = (operand(bias, "bias", optional=True), operand(residual, "residual", optional=True))
    operands = (operand(a, "a"), operand(b, "b"), *extra)
    return apply("matmul", operands, activation=activation, alpha=alpha)


def attention(
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None = None,
    *,
    scale: float | None = None,
    causal: str | bool | None = None,
    window: Sequence[int] | None = None,
) -> Array:
    """Compute scaled dot product attention.

    Parameters
    ----------
    q : array, shape (B, H, Sq, D), float16 | bfloat16, or float32 without a gradient
    k, v : array, shape (B, Hkv, Skv, D), dtype of q
    bias : array, broadcasts to (B, H, Sq, Skv), dtype of q, optional
    scale : float, optional
        By default 1 / sqrt(D).
    causal : {"top_left", "bottom_right"} or bool, optional
        As in :func:`cudnn_ct.attention`.
    window : pair of ints, optional
        As in :func:`cudnn_ct.attention`.

    Returns
    -------
    array, shape (B, H, Sq, D), dtype of q

    Raises
    ------
    ValueError, TypeError, NotSupportedError
        As in :func:`cudnn_ct.jax.conv`.

    Notes
    -----
    :func:`cudnn_ct.attention`.
    """
    operands = (operand(q, "q"), operand(k, "k"), operand(v, "v"), operand(bias, "bias", optional=True))
    corner = {False: None, True: "top_left"}[causal] if isinstance(causal, bool | np.bool_) else causal
    return apply("attention", operands, scale=scale, causal=corner, window=window)


def ctc_loss(logits: Array, labels: Array, label_lengths: Array, input_lengths: Array) -> Array:
    """Compute the CTC loss of each sequence.

    Parameters
    ----------
    logits : array, shape (T, N, A), float16 | bfloat16 | float32 | float64
        Before the softmax; label 0 is the blank.
    labels : array, shape (N, L), int32 | int64
    label_lengths, input_lengths : array, shape (N,), int32 | int64

    Returns
    -------
    array, shape (N,), dtype of logits

    Raises
    ------
    ValueError, TypeError, NotSupportedError
        As in :func:`cudnn_ct.jax.conv`.

    Notes
    -----
    :func:`cudnn_ct.ctc_loss`. XLA does not capture it in command buffers.
    """
    integers = ((labels, "labels"), (label_lengths, "label_lengths"), (input_lengths, "input_lengths"))
    return apply("ctc_loss", (operand(logits, "logits"), *(operand(*one) for one in integers)))


def grid_sample(x: Array, grid: Array) -> Array:
    """Sample images at the places of a grid, bilinearly.

    Parameters
    ----------
    x : array, shape (N, C, H, W), float16 | float32 | float64
    grid : array, shape (N, *out, 2), dtype of x
        Coordinates from -1 to 1.

    Returns
    -------
    array, shape (N, C, *out), dtype of x

    Raises
    ------
    ValueError, TypeError, NotSupportedError
        As in :func:`cudnn_ct.jax.conv`.

    Notes
    -----
    :func:`cudnn_ct.grid_sample`.
    """
    return apply("grid_sample", (operand(x, "x"), operand(grid, "grid")))


# --- arguments ---------------------------------------------------------------------------------------------


def _norm(x: Array, scale: Array, bias: Array | None, *, optional: bool = False) -> tuple[Array, ...]:
    return operand(x, "x"), operand(scale, "scale"), operand(bias, "bias", optional=optional)
