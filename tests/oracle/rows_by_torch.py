"""Products of matrices and normalisations of rows by PyTorch; gradients by autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from .answer import Arguments
from .tables import defined

Tensors = dict[str, Any]

CURVES: dict[str, Callable[[Any], Any]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda y: functional.gelu(y, approximate="tanh"),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def matmul(operands: Tensors, arguments: Arguments) -> Tensors:
    y = arguments.get("alpha", 1) * torch.matmul(operands["a"], operands["b"])
    if operands.get("b_scale") is not None:
        y = y * operands["b_scale"]
    for name in ("bias", "residual"):
        if operands.get(name) is not None:
            y = y + operands[name]
    return {"y": CURVES.get(arguments.get("activation") or "", lambda y: y)(y)}


def scaled_matmul(operands: Tensors, arguments: Arguments) -> Tensors:
    """The product of the dequantised operands."""
    a, b = (times(operands, name, operands[name[-1]]) for name in ("descale_a", "descale_b"))
    v = matmul({**operands, "a": a, "b": b}, arguments)["y"]
    found = {"y": times(operands, "scale", v)}
    return found | ({"amax": v.abs().max().reshape(1)} if arguments.get("amax") else {})


def times(operands: Tensors, name: str, x: Any) -> Any:
    return x if operands.get(name) is None else x * operands[name].reshape(())


def matmul_backward(operands: Tensors, arguments: Arguments) -> Tensors:
    leaves = [operands[name].detach().requires_grad_() for name in ("a", "b")]
    y = arguments.get("alpha", 1) * torch.matmul(*leaves)
    names = ["da", "db"]
    if arguments.get("bias_gradient"):
        leaves.append(
            torch.zeros_like(y[(0,) * (y.ndim - 1)] if y.numel() else y.sum(tuple(range(y.ndim - 1))))
        )
        leaves[-1] = leaves[-1].detach().requires_grad_()
        y, names = y + leaves[-1], [*names, "dbias"]
    found = torch.autograd.grad(y, leaves, operands["dy"])
    return dict(zip(names, found, strict=True))


def _normalised(mode: str, x: Any, scale: Any, bias: Any, epsilon: float) -> tuple[Any, Any, Any]:
    adaptive = mode == "ada_layer_norm"
    count = scale.ndim - adaptive
    axes = tuple(range(x.ndim - count, x.ndim))
    if mode == "rms_norm":
        mean, moment = torch.zeros((), dtype=x.dtype, device=x.device), x.square().mean(axes, keepdim=True)
    else:
        moment, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    inverse = torch.rsqrt(moment + epsilon)
    wide = (*scale.shape[:adaptive], *(1,) * (x.ndim - scale.ndim), *scale.shape[adaptive:])
    y = (x - mean) * inverse * scale.reshape(wide)
    return (y if bias is None else y + bias.reshape(wide)), mean, inverse


def _of(mode: str) -> tuple[Any, Any]:
    def forward(operands: Tensors, arguments: Arguments) -> Tensors:
        given = (operands["x"], operands["scale"], operands.get("bias"))
        y, mean, inverse = _normalised(mode, *given, float(arguments.get("epsilon", 1e-5)))
        if not arguments.get("training", True):
            return {"y": y}
        return (
            {"y": y, "invrms": inverse} if mode == "rms_norm" else {"y": y, "mean": mean, "invstd": inverse}
        )

    def backward(operands: Tensors, arguments: Arguments) -> Tensors:
        """The gradients by the given statistics, as constants and as functions of x."""
        x, scale, dy = (operands[name] for name in ("x", "scale", "dy"))
        rms, adaptive = mode == "rms_norm", mode == "ada_layer_norm"
        inverse = operands["invrms" if rms else "invstd"]
        mean = torch.zeros_like(inverse) if rms else operands["mean"]
        count = scale.ndim - adaptive
        axes = tuple(range(x.ndim - count, x.ndim))
        wide = (*scale.shape[:adaptive], *(1,) * (x.ndim - scale.ndim), *scale.shape[adaptive:])
        normal, inner = (x - mean) * inverse, dy * scale.reshape(wide)
        parts = [inner, -normal * (inner * normal).mean(axes, keepdim=True)]
        parts += [] if rms else [-inner.mean(axes, keepdim=True).expand_as(inner)]
        summed = tuple(range(int(adaptive), x.ndim - count))
        sums = [(dy * normal), dy]
        dscale, dbias = (one.sum(summed) if summed else one for one in sums)
        found = {"dx": inverse * torch.stack(parts).sum(0), "dscale": dscale.reshape(scale.shape)}
        if not rms or arguments.get("bias_gradient"):
            found["dbias"] = dbias.reshape(scale.shape)
        return found

    return forward, backward


ROWS = defined(globals(), "matmul", "matmul_backward", "scaled_matmul")
for _mode in ("layer_norm", "rms_norm", "ada_layer_norm"):
    ROWS[_mode], ROWS[f"{_mode}_backward"] = _of(_mode)
