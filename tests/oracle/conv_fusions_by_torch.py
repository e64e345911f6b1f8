"""Convolutions fused with other operations by PyTorch; gradients by autograd through the whole chain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from .answer import Arguments, activation_of
from .rows_by_torch import CURVES, times

__all__ = ["fusions_by_torch"]

Tensors = dict[str, Any]
Torch = Callable[[Tensors, Arguments], Tensors]


def fusions_by_torch(convolve: Any, act: Any) -> dict[str, Torch]:
    """Return the fused operations, of ``convolve(x, w, arguments)`` and ``act(x, mode, coefficient)``."""

    def scaled(operands: Tensors, arguments: Arguments) -> Tensors:
        y = convolve(operands["x"], operands["w"], arguments)
        y = torch.addcmul(_wide(operands["bias"], y), y, _wide(operands["scale"], y))
        y = y if operands.get("residual") is None else y + operands["residual"]
        return {"y": act(y, *activation_of(arguments))}

    def statistics(operands: Tensors, arguments: Arguments) -> Tensors:
        y = convolve(_activated(operands), operands["w"], arguments)
        axes = (0, *range(2, y.ndim))
        return {"y": y, "sums": y.sum(axes), "square_sums": y.square().sum(axes)}

    def filter_gradient(operands: Tensors, arguments: Arguments) -> Tensors:
        shape = [int(n) for n in arguments["w_shape"]]
        w = torch.zeros(shape, dtype=torch.float64, device=operands["x"].device, requires_grad=True)
        (dw,) = torch.autograd.grad(convolve(_activated(operands), w, arguments), w, operands["dy"])
        return {"dw": dw}

    def data_gradient(operands: Tensors, arguments: Arguments) -> Tensors:
        x, mean, invstd = (operands[name] for name in ("x", "mean", "invstd"))
        scale, bias = (operands[name].detach().clone().requires_grad_() for name in ("scale", "bias"))
        normal = (x - _wide(mean, x)) * _wide(invstd, x)
        z = normal * _wide(scale, x) + _wide(bias, x)
        y = convolve(functional.relu(z), operands["w"], arguments)
        dz, dscale, dbias = torch.autograd.grad(y, (z, scale, bias), operands["dy"])
        # The gradient of x is linear in dz, x and 1: its factors are those of a batch normalisation.
        count, steep = x.numel() / x.shape[1], scale.detach() * invstd
        by_x = -steep * invstd * dscale / count
        found = {"dz": dz, "dscale": dscale, "dbias": dbias, "eq_dz_scale": steep, "eq_x_scale": by_x}
        return {**found, "eq_bias": -(steep * dbias / count + by_x * mean)}

    def of_float8(operands: Tensors, arguments: Arguments) -> Tensors:
        """The convolution of the dequantised operands."""
        x, w = (times(operands, f"descale_{name}", operands[name]) for name in "xw")
        v = convolve(x, w, arguments)
        v = v if operands.get("bias") is None else v + _wide(operands["bias"], v)
        v = CURVES.get(arguments.get("activation") or "", lambda y: y)(v)
        found = {"y": times(operands, "scale", v)}
        return found | ({"amax": v.abs().max().reshape(1)} if arguments.get("amax") else {})

    return {
        "scaled_conv": of_float8,
        "conv_scale_bias_activation": scaled,
        "conv_batch_norm_statistics": statistics,
        "batch_norm_finalize": _finalize,
        "conv_backward_data_relu_batch_norm": data_gradient,
        "conv_backward_filter_scale_bias_relu": filter_gradient,
    }


def _wide(parameter: Any, image: Any) -> Any:
    return parameter.reshape(1, -1, *(1,) * (image.ndim - 2))


def _activated(operands: Tensors) -> Any:
    x = operands["x"]
    if operands.get("scale") is None:
        return x
    return functional.relu(x * _wide(operands["scale"], x) + _wide(operands["bias"], x))


def _finalize(operands: Tensors, arguments: Arguments) -> Tensors:
    count, momentum = int(arguments["count"]), float(arguments.get("momentum", 0.1))
    mean = operands["sums"] / count
    var = operands["square_sums"] / count - mean.square()
    invstd = torch.rsqrt(var + float(arguments.get("epsilon", 1e-5)))
    eq_scale = operands["scale"] * invstd
    return {
        "eq_scale": eq_scale,
        "eq_bias": operands["bias"] - mean * eq_scale,
        "mean": mean,
        "invstd": invstd,
        "running_mean": torch.lerp(operands["running_mean"], mean, momentum),
        "running_var": torch.lerp(operands["running_var"], var * count / (count - 1), momentum),
    }
