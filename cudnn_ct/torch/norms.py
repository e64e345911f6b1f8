"""Normalisations of tensors of PyTorch, with gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from .operators import call, no_tensor, recorded

__all__ = ["batch_norm", "instance_norm", "layer_norm", "rms_norm"]


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Normalise a batch, as :func:`torch.nn.functional.batch_norm`, and apply a residual and relu.

    Parameters
    ----------
    x : tensor, shape (N, C, ...), float16 | bfloat16 | float32 | float64
    running_mean, running_var : tensor, shape (C,)
        Updated in place in training, both or neither; needed otherwise.
    weight, bias : tensor, shape (C,)
        float32 for half precision, else the dtype of x, as the running statistics. Without training, all four
        may have the dtype of x.
    training : bool
        Whether the statistics are those of the batch.
    momentum : float
    eps : float
    activation : {"relu"}, optional
    residual : tensor, shape and dtype of x, optional
        Added before the activation.

    Returns
    -------
    tensor, shape and dtype of x

    Raises
    ------
    ValueError
        Shapes do not match, or running statistics are missing.

    Notes
    -----
    :func:`cudnn_ct.batch_norm_training`, which fuses residual and relu if cuDNN does, and
    :func:`cudnn_ct.batch_norm_inference`, after which torch applies them.
    """
    if training:
        running = (running_mean, running_var)
        y: Tensor = _batch_norm_training(x, weight, bias, residual, *running, eps, momentum, activation)[0]
        return y
    if running_mean is None or running_var is None:
        raise ValueError("running_mean and running_var are needed without training: got None")
    if activation not in (None, "relu"):
        raise ValueError(f"activation must be 'relu' or None: got {activation!r}")
    parameters = [weight, bias, running_mean, running_var]
    if recorded(x, *parameters):
        dtype = getattr(x, "dtype", None)  # the operator rejects other objects
        wide = dtype if dtype is torch.float64 else torch.float32  # gradients take no half precision
        parameters = [one if one.dtype is wide else one.to(wide) for one in parameters]
    y = _batch_norm_inference(x, *parameters, eps)
    y = y if residual is None else y + residual
    return y if activation is None else y.relu()


def instance_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float = 1e-5) -> Tensor:
    """Normalise each channel of each image, as :func:`torch.nn.functional.instance_norm`.

    Parameters
    ----------
    x : tensor, shape (N, C, ...), float16 | bfloat16 | float32 | float64
    weight, bias : tensor, shape (C,)
        float32 for half precision, else the dtype of x.
    eps : float

    Returns
    -------
    tensor, shape and dtype of x

    Raises
    ------
    ValueError
        Shapes do not match.

    Notes
    -----
    :func:`cudnn_ct.instance_norm`.
    """
    y: Tensor = _instance_norm(x, weight, bias, eps)[0]
    return y


def group_norm(x: Tensor, groups: int, weight: Tensor, bias: Tensor, *, eps: float = 1e-5) -> Tensor:
    """Normalise groups of channels of each image, as :func:`torch.nn.functional.group_norm`.

    Parameters
    ----------
    x : tensor, shape (N, C, ...), float16 | bfloat16 | float32 | float64
    groups : int
        It divides C.
    weight, bias : tensor, shape (C,)
        float32 for half precision, else the dtype of x.
    eps : float

    Returns
    -------
    tensor, shape and dtype of x

    Raises
    ------
    ValueError
        Shapes do not match.

    Notes
    -----
    :func:`cudnn_ct.group_norm`.
    """
    y: Tensor = _group_norm(x, weight, bias, groups, eps)[0]
    return y


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, eps: float = 1e-5) -> Tensor:
    """Normalise the last axes, as :func:`torch.nn.functional.layer_norm`.

    Parameters
    ----------
    x : tensor, shape (..., *axes), float16 | bfloat16 | float32
    weight : tensor, shape (*axes,), dtype of x or float32
        Its shape states which axes are normalised.
    bias : tensor, shape and dtype of weight, optional
    eps : float

    Returns
    -------
    tensor, shape and dtype of x

    Raises
    ------
    ValueError
        Shapes do not match.

    Notes
    -----
    :func:`cudnn_ct.layer_norm`.
    """
    try:
        x = x.contiguous()  # the copy of torch takes less time than that of cuDNN
    except AttributeError:
        raise no_tensor("layer_norm", "x", x) from None
    if recorded(x, weight, bias):
        y: Tensor = _layer_norm(x, weight, bias, eps)[0]
        return y
    return _layer_norm_inference(x, weight, bias, eps)


def rms_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, eps: float = 1e-5) -> Tensor:
    """Divide the last axes by their root mean square, as :func:`torch.nn.functional.rms_norm`.

    Parameters
    ----------
    x, weight, bias, eps
        As in :func:`layer_norm`.

    Returns
    -------
    tensor, shape and dtype of x

    Raises
    ------
    ValueError
        Shapes do not match.

    Notes
    -----
    :func:`cudnn_ct.rms_norm`.
    """
    try:
        x = x.contiguous()
    except AttributeError:
        raise no_tensor("rms_norm", "x", x) from None
    if recorded(x, weight, bias):
        y: Tensor = _rms_norm(x, weight, bias, eps)[0]
        return y
    return _rms_norm_inference(x, weight, bias, eps)


_batch_norm_inference = call("batch_norm_inference")
_batch_norm_training = call("batch_norm_training")
_group_norm = call("group_norm")
_instance_norm = call("instance_norm")
_layer_norm = call("layer_norm")
_layer_norm_inference = call("layer_norm_inference")
_rms_norm = call("rms_norm")
_rms_norm_inference = call("rms_norm_inference")
