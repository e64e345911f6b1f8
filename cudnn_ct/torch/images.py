"""Operations on images of PyTorch, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .operators import call, is_wide_gelu

__all__ = [
    "affine_grid",
    "conv",
    "conv_bias_activation",
    "conv_transpose",
    "grid_sample",
    "lrn",
    "pool",
]

PerAxis = int | Sequence[int]
Padding = str | PerAxis | Sequence[tuple[int, int]]


def conv(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve, as :func:`torch.nn.functional.conv2d` for 1, 2 or 3 spatial axes.

    Parameters
    ----------
    x : tensor, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
    w : tensor, shape (K, C / groups, *window), dtype of x
    bias : tensor, shape (K,), dtype of x, optional
    stride, dilation : int or one int per spatial axis
    padding : int, one int per spatial axis, one pair (before, after) per axis, "valid" or "same"
    groups : int

    Returns
    -------
    tensor, shape (N, K, *out), dtype of x
        In the memory format of x: channels last stays channels last.

    Raises
    ------
    ValueError
        Shapes or parameters do not match, or operands are on several devices.
    TypeError
        The dtypes of operands differ.

    Notes
    -----
    :func:`cudnn_ct.conv`, and :func:`cudnn_ct.conv_bias_activation` with a bias. ``torch.backends.cudnn``
    decides on TF32, on determinism and, by ``benchmark``, on autotuning. Differentiable twice.

    Examples
    --------
    >>> x = torch.randn(8, 3, 32, 32, device="cuda")
    >>> w = torch.randn(16, 3, 3, 3, device="cuda", requires_grad=True)
    >>> cudnn_ct.torch.conv(x, w, padding=1).sum().backward()
    """
    geometry = (_padding(padding, w, dilation), _ints(stride), _ints(dilation), groups)
    if bias is None:
        return _conv(x, w, *geometry)
    return _fused_conv(x, w, bias, None, *geometry, "cross_correlation", "identity")


def conv_transpose(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    stride: PerAxis = 1,
    padding: PerAxis = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
    dilation: PerAxis = 1,
) -> Tensor:
    """Convolve transposed, as :func:`torch.nn.functional.conv_transpose2d` for 1, 2 or 3 spatial axes.

    Parameters
    ----------
    x : tensor, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
    w : tensor, shape (C, K / groups, *window), dtype of x
    bias : tensor, shape (K,), dtype of x, optional
        Added by torch.
    stride, padding, dilation : int or one int per spatial axis
    output_padding : int or one int per spatial axis, less than the stride
    groups : int

    Returns
    -------
    tensor, shape (N, K, *out), dtype of x

    Raises
    ------
    ValueError
        Shapes or parameters do not match.

    Notes
    -----
    :func:`cudnn_ct.conv_transpose`. Differentiable twice.
    """
    geometry = (_ints(padding), _ints(stride), _ints(dilation), groups)
    y: Tensor = _conv_transpose(x, w, *geometry, "cross_correlation", _ints(output_padding))
    return y if bias is None else y + bias.reshape(-1, *(1,) * (y.dim() - 2)).to(y.dtype)


def conv_bias_activation(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    activation: str = "relu",
    coefficient: float = 0.0,
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve, add and activate in one call: ``act(conv(x, w) + residual + bias)``.

    Parameters
    ----------
    x, w, bias, stride, padding, dilation, groups
        As in :func:`conv`.
    residual : tensor, shape and dtype of the result, optional
    activation : {"relu", "clipped_relu", "sigmoid", "tanh", "elu", "gelu", "swish", "silu", "identity"}
    coefficient : float
        Ceiling of ``"clipped_relu"``, alpha of ``"elu"``.

    Returns
    -------
    tensor, shape (N, K, *out), dtype of x

    Raises
    ------
    ValueError
        Shapes or parameters do not match.

    Notes
    -----
    :func:`cudnn_ct.conv_bias_activation`. The gradients of relu, sigmoid and tanh need the result
    only; gradients of other activations compute the convolution again.
    """
    geometry = (_padding(padding, w, dilation), _ints(stride), _ints(dilation), groups)
    fused = "identity" if is_wide_gelu(x, activation) else activation
    params = (*geometry, "cross_correlation", fused, float(coefficient))
    y: Tensor = _fused_conv(x, w, bias, residual, *params)
    return y if fused == activation else torch.nn.functional.gelu(y)


def pool(
    x: Tensor,
    window: PerAxis,
    *,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    mode: str = "max",
) -> Tensor:
    """Compute the largest element, the average or the sum of each window.

    Parameters
    ----------
    x : tensor, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
    window : int or one int per spatial axis
    stride : int or one int per spatial axis, optional
        By default that of the window.
    padding : int or one int per spatial axis
    mode : {"max", "max_deterministic", "average_inc_pad", "average_exc_pad", "sum"}

    Returns
    -------
    tensor, shape (N, C, *out), dtype of x

    Raises
    ------
    ValueError
        Shapes or parameters do not match.

    Notes
    -----
    :func:`cudnn_ct.pool`. With ``torch.use_deterministic_algorithms`` a maximum is ``"max_deterministic"``.
    """
    return _pool(x, _ints(window), None if stride is None else _ints(stride), _ints(padding), mode)


def lrn(x: Tensor, size: int = 5, *, alpha: float = 1e-4, beta: float = 0.75, k: float = 2.0) -> Tensor:
    """Normalise over neighbouring channels.

    Parameters
    ----------
    x : tensor, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
    size : int
        Number of channels. An even number has one more channel after a channel than before it, and that of
        :func:`torch.nn.functional.local_response_norm` one more before it.
    alpha, beta, k : float

    Returns
    -------
    tensor, shape and dtype of x

    Raises
    ------
    ValueError
        Parameters are out of range.

    Notes
    -----
    :func:`cudnn_ct.lrn`.
    """
    return _lrn(x, size, float(alpha), float(beta), float(k))


def affine_grid(theta: Tensor, shape: Sequence[int]) -> Tensor:
    """Compute a grid, as :func:`torch.nn.functional.affine_grid` with ``align_corners=True``.

    Parameters
    ----------
    theta : tensor, shape (N, 2, 3), float16 | bfloat16 | float32 | float64
    shape : (N, C, H, W)

    Returns
    -------
    tensor, shape (N, H, W, 2), dtype of theta

    Raises
    ------
    ValueError
        Shapes do not match.

    Notes
    -----
    :func:`cudnn_ct.affine_grid`.
    """
    return _affine_grid(theta, tuple(shape))


def grid_sample(x: Tensor, grid: Tensor) -> Tensor:
    """Sample images, as :func:`torch.nn.functional.grid_sample` with ``align_corners=True``.

    Parameters
    ----------
    x : tensor, shape (N, C, H, W), float16 | bfloat16 | float32 | float64
    grid : tensor, shape (N, H_out, W_out, 2), dtype of x

    Returns
    -------
    tensor, shape (N, C, H_out, W_out), dtype of x

    Raises
    ------
    ValueError
        Shapes do not match.

    Notes
    -----
    :func:`cudnn_ct.grid_sample`. cuDNN has no deterministic gradient: with
    ``torch.use_deterministic_algorithms`` the backward pass raises.
    """
    return _grid_sample(x, grid)


def _ints(value: PerAxis) -> tuple[int, ...]:
    """Return one number for all axes, or one for each."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)  # type: ignore[return-value]


def _padding(padding: Padding, w: Tensor, dilation: PerAxis) -> tuple[int, ...]:
    """Return a number for each axis, or two, for both sides of each."""
    if isinstance(padding, str):
        if padding == "valid":
            return (0,)
        if padding != "same":
            raise ValueError(f"padding must be numbers, 'valid' or 'same': got {padding!r}")
        window = w.shape[2:]
        steps = _ints(dilation) * (len(window) if isinstance(dilation, int) else 1)
        spans = [step * (size - 1) for step, size in zip(steps, window, strict=True)]
        return tuple(side for span in spans for side in (span // 2, span - span // 2))
    if isinstance(padding, int):
        return (padding,)
    pairs: Sequence[Any] = padding
    if pairs and isinstance(pairs[0], list | tuple):
        return tuple(side for pair in pairs for side in pair)
    return tuple(pairs)


_affine_grid = call("affine_grid")
_conv = call("conv")
_conv_transpose = call("conv_transpose")
_fused_conv = call("conv_bias_activation")
_grid_sample = call("grid_sample")
_lrn = call("lrn")
_pool = call("pool")
