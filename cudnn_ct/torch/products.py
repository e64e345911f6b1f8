"""Products, attention and elementwise operations on tensors of PyTorch, with gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import NotSupportedError
from .operators import call, is_wide_gelu, no_tensor, recorded

__all__ = [
    "activation",
    "attention",
    "ctc_loss",
    "matmul",
    "softmax",
]


def matmul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    activation: str | None = None,
    alpha: float = 1.0,
) -> Tensor:
    """Multiply matrices, add and activate: ``act(alpha * (a @ b) + bias + residual)``.

    Parameters
    ----------
    a : tensor, shape (..., M, K), float16 | bfloat16 | float32 | float64
    b : tensor, shape (..., K, N), dtype of a
        A linear layer passes ``weight.T``.
    bias : tensor, shape (N,), dtype of a or float32, optional
    residual : tensor, shape and dtype of the result, optional
    activation : {"relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"}, optional
    alpha : float

    Returns
    -------
    tensor, shape (..., M, N), dtype of a

    Raises
    ------
    ValueError
        Shapes do not match.

    Notes
    -----
    :func:`cudnn_ct.matmul`. ``torch.backends.cuda.matmul.allow_tf32`` decides on TF32. The gradient of gelu
    and silu computes the product again.
    """
    if not is_wide_gelu(a, activation):
        return _matmul(a, b, bias, residual, activation, float(alpha))
    y = _matmul(a, b, bias, residual, None, float(alpha))
    return torch.nn.functional.gelu(y, approximate="tanh" if activation == "gelu_tanh" else "none")


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    *,
    causal: bool | str = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
) -> Tensor:
    """Compute attention, as :func:`torch.nn.functional.scaled_dot_product_attention`.

    Parameters
    ----------
    q : tensor, shape (B, H, Sq, D), float16 | bfloat16, or float32 without a gradient
    k : tensor, shape (B, Hkv, Skv, D), dtype of q
        With fewer heads than q, each serves ``H / Hkv`` adjacent heads.
    v : tensor, shape (B, Hkv, Skv, Dv), dtype of q
    bias : tensor, shape (B, H, Sq, Skv), dtype of q, float32 or bool, optional
        Each of the first three axes may have length 1. True where a query attends.
    causal : bool, "top_left" or "bottom_right"
    scale : float, optional
        By default ``1 / sqrt(D)``.
    window : (left, right), optional
        Keys that a query attends to on both sides; -1 is no limit.

    Returns
    -------
    tensor, shape (B, H, Sq, Dv), dtype of q

    Raises
    ------
    ValueError
        Shapes do not match.
    NotSupportedError
        A gradient of float32, and what :func:`cudnn_ct.attention` names.

    Notes
    -----
    :func:`cudnn_ct.attention`.
    """
    corner = {False: None, True: "top_left"}.get(causal, causal) if isinstance(causal, bool) else causal
    params = (None if scale is None else float(scale), corner, window)
    if recorded(q, k, v, bias):
        if q.dtype is torch.float32 and not torch.is_autocast_enabled():  # in the backward pass it were late
            raise NotSupportedError(
                "cuDNN has no engine for the gradients of attention of float32; convert q, k and v to half "
                "precision, or use torch.autocast"
            )
        y: Tensor = _attention(q, k, v, bias, *params)[0]
        return y
    return _attention_inference(q, k, v, bias, *params)


def ctc_loss(logits: Tensor, labels: Tensor, label_lengths: Tensor, input_lengths: Tensor) -> Tensor:
    """Compute the CTC loss of each sequence.

    Parameters
    ----------
    logits : tensor, shape (T, N, A), float16 | bfloat16 | float32 | float64
        Activations before softmax; the blank is symbol 0.
    labels : int32 tensor, shape (N, S), or the concatenated labels of all sequences
        In host memory or on the device. Labels and lengths on the device are read back to be checked.
    label_lengths, input_lengths : int32 tensor, shape (N,)

    Returns
    -------
    tensor, shape (N,), dtype of logits

    Raises
    ------
    ValueError
        Shapes or labels do not match.

    Notes
    -----
    :func:`cudnn_ct.ctc_loss`.
    """
    loss: Tensor = _ctc_loss(logits, labels, label_lengths, input_lengths)[0]
    return loss


def softmax(x: Tensor, dim: int | Sequence[int] = -1, *, log: bool = False) -> Tensor:
    """Compute the softmax over an axis or adjacent axes, or its logarithm.

    Parameters
    ----------
    x : tensor, float16 | bfloat16 | float32 | float64
    dim : int or sequence of adjacent ints
    log : bool

    Returns
    -------
    tensor, shape and dtype of x

    Raises
    ------
    ValueError
        ``dim`` is out of range.

    Notes
    -----
    :func:`cudnn_ct.softmax`.
    """
    try:
        rank = x.dim()
    except AttributeError:
        raise no_tensor("softmax", "x", x) from None
    if type(dim) is int:  # counted from the last axis, because vmap adds axes in front
        return _softmax(x, (dim - rank if dim >= 0 else dim,), "log" if log else "accurate")
    axes = (dim,) if isinstance(dim, int) else dim
    negative = tuple([axis - rank if axis >= 0 else axis for axis in axes])
    return _softmax(x, negative, "log" if log else "accurate")


def activation(x: Tensor, mode: str = "relu", *, coefficient: float = 0.0) -> Tensor:
    """Apply an activation to each element.

    Parameters
    ----------
    x : tensor, float16 | bfloat16 | float32 | float64
    mode : {"identity", "relu", "clipped_relu", "sigmoid", "tanh", "elu", "swish", "silu"}
    coefficient : float

    Returns
    -------
    tensor, shape and dtype of x

    Raises
    ------
    ValueError
        ``mode`` does not exist.

    Notes
    -----
    :func:`cudnn_ct.activation`.
    """
    return _activation(x, mode, float(coefficient))


_activation = call("activation")
_attention = call("attention")
_attention_inference = call("attention_inference")
_ctc_loss = call("ctc_loss")
_matmul = call("matmul")
_softmax = call("softmax")
