"""Calls of ``cudnn_ct.torch`` with the same in torch, shared by the tests on the fakes and on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

import cudnn_ct.torch as ctt

__all__ = ["CASES", "Case", "Programs", "flat"]

DOUBLE, SINGLE, HALF = torch.float64, torch.float32, torch.float16


class Programs:
    """A backend of torch.compile that runs programs as they are, and keeps the operators of each."""

    def __init__(self) -> None:
        torch._dynamo.reset()
        self.operators: list[set[str]] = []

    def __call__(self, graph: Any, operands: Any) -> Any:
        self.operators.append({str(node.target) for node in graph.graph.nodes})
        return graph

    def have(self, operator: str) -> list[bool]:
        """Return whether each program calls an operator."""
        return [f"cudnn_ct.{operator}.default" in names for names in self.operators]


def flat(found: Any) -> torch.Tensor:
    """Return a result of a recurrent network as one tensor."""
    y, states = found
    data = y.data if isinstance(y, torch.nn.utils.rnn.PackedSequence) else y
    return torch.cat([one.flatten() for one in (data, *(states if isinstance(states, tuple) else (states,)))])


class Case(NamedTuple):
    """A call: its operator, ours and torch's function of the operands, and their shapes.

    ``twice`` is whether the gradient has a gradient. Operands in ``constant`` need none.
    """

    operator: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype = DOUBLE
    twice: bool = False
    variant: str = ""

    def __str__(self) -> str:
        return f"{self.operator}-{self.variant}" if self.variant else self.operator

    def operands(self, device: str, seed: int = 0) -> list[torch.Tensor]:
        """Return random operands that require gradients, the same on every device."""
        generator = torch.Generator().manual_seed(seed)
        made = (torch.randn(shape, generator=generator, dtype=DOUBLE) for shape in self.shapes)
        return [one.to(device, self.dtype).requires_grad_() for one in made]


def _act(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    return {"relu": F.relu, "gelu": F.gelu, "tanh": torch.tanh, "silu": F.silu, "identity": lambda x: x}[name]


def _fused(x: Any, w: Any, b: Any, z: Any, *, kind: str) -> Any:
    return _act(kind)(F.conv2d(x, w, b, padding=(1, 0), stride=(2, 1), groups=2) + z)


def _our_fused(x: Any, w: Any, b: Any, z: Any, *, kind: str) -> Any:
    return ctt.conv_bias_activation(x, w, b, z, activation=kind, padding=(1, 0), stride=(2, 1), groups=2)


def _batch_norm(x: Any, scale: Any, bias: Any, z: Any) -> Any:
    return F.relu(F.batch_norm(x, None, None, scale, bias, True) + z)


def _our_batch_norm(x: Any, scale: Any, bias: Any, z: Any) -> Any:
    return ctt.batch_norm(x, None, None, scale, bias, True, activation="relu", residual=z)


def _inference(function: Callable[..., Any], x: Any, scale: Any, bias: Any) -> Any:
    mean, var = torch.full_like(scale, 0.5), torch.full_like(scale, 2.0)
    return function(x, mean, var, scale, bias, False)


def _product(a: Any, b: Any, bias: Any, residual: Any, *, kind: str) -> Any:
    return _act(kind)(a @ b + bias + residual)


def _our_product(a: Any, b: Any, bias: Any, residual: Any, *, kind: str) -> Any:
    return ctt.matmul(a, b, bias, residual, activation=kind)


def _attention(q: Any, k: Any, v: Any, **keywords: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **keywords)


def _lrn(x: Any) -> Any:  # torch divides alpha by the number of channels, as cuDNN
    return F.local_response_norm(x, 5, 1e-2, 0.75, 2.0)


def _states(found: Any) -> Any:
    """Return the output and the last states of a network as one tensor."""
    return torch.cat([one.flatten() for one in found if one is not None])


def _our_lstm(x: Any, h: Any, c: Any, *weights: Any) -> Any:
    return _states(ctt.rnn(x, weights, h, c, bidirectional=True, batch_first=True))


def _lstm(x: Any, h: Any, c: Any, *weights: Any) -> Any:
    return _states(torch.lstm(x, (h, c), weights, True, 2, 0.0, False, True, True))


def _our_gru(x: Any, h: Any, *weights: Any) -> Any:
    return _states(ctt.rnn(x, weights, h, mode="gru"))


def _gru(x: Any, h: Any, *weights: Any) -> Any:
    return _states(torch.gru(x, h, weights, False, 2, 0.0, False, False, False))


X, W, Y = (2, 4, 5, 6), (6, 2, 3, 2), (2, 6, 3, 5)
QKV = ((2, 4, 16, 8), (2, 2, 16, 8), (2, 2, 16, 8))
GEOMETRY: dict[str, Any] = {"padding": (1, 0), "stride": (2, 1), "groups": 2}
LSTM = [one for size in (3, 8) for one in [(16, size), (16, 4), (16,), (16,)] * 2]  # two directions
PRODUCT = ((2, 3, 4), (4, 5), (5,), (2, 3, 5))

CASES = [
    Case("conv", partial(ctt.conv, **GEOMETRY), partial(F.conv2d, **GEOMETRY), (X, W), twice=True),
    Case("conv", partial(ctt.conv, padding="same"), partial(F.conv1d, padding="same"),
         ((2, 4, 9), (6, 4, 4)), variant="1d-same", twice=True),
    Case("conv", partial(ctt.conv, padding=1, dilation=2), partial(F.conv3d, padding=1, dilation=2),
         ((1, 2, 5, 4, 6), (3, 2, 2, 2, 2), (3,)), variant="3d-bias", twice=True),
    Case("conv_transpose", partial(ctt.conv_transpose, output_padding=(1, 0), **GEOMETRY),
         partial(F.conv_transpose2d, output_padding=(1, 0), **GEOMETRY), (Y, W, (4,)), twice=True),
    *(
        Case("conv_bias_activation", partial(_our_fused, kind=kind), partial(_fused, kind=kind),
             (X, W, (6,), Y), variant=kind, twice=kind in ("relu", "identity"))
        for kind in ("relu", "tanh", "silu", "gelu", "identity")
    ),
    Case("activation", partial(ctt.activation, mode="relu"), F.relu, ((3, 4),), twice=True),
    Case("pool", partial(ctt.pool, window=(2, 3), stride=(2, 1), padding=(1, 1)),
         partial(F.max_pool2d, kernel_size=(2, 3), stride=(2, 1), padding=(1, 1)), (X,)),
    Case("pool", partial(ctt.pool, window=2, padding=1, mode="average_exc_pad"),
         partial(F.avg_pool2d, kernel_size=2, padding=1, count_include_pad=False), (X,),
         variant="average", twice=True),
    Case("softmax", partial(ctt.softmax, dim=1), partial(F.softmax, dim=1), (X,)),
    Case("softmax", partial(ctt.softmax, dim=-1, log=True), partial(F.log_softmax, dim=-1), ((3, 7),),
         variant="log"),
    Case("lrn", partial(ctt.lrn, alpha=1e-2), _lrn, (X,)),
    Case("batch_norm_training", _our_batch_norm, _batch_norm, (X, (4,), (4,), X)),
    Case("batch_norm_inference", partial(_inference, ctt.batch_norm), partial(_inference, F.batch_norm),
         (X, (4,), (4,))),
    Case("instance_norm", ctt.instance_norm,
         lambda x, scale, bias: F.instance_norm(x, None, None, scale, bias), (X, (4,), (4,))),
    Case("group_norm", lambda x, scale, bias: ctt.group_norm(x, 2, scale, bias),
         lambda x, scale, bias: F.group_norm(x, 2, scale, bias), (X, (4,), (4,))),
    Case("layer_norm", ctt.layer_norm, lambda x, w, b: F.layer_norm(x, w.shape, w, b),
         ((3, 4, 8), (8,), (8,)), SINGLE),
    Case("rms_norm", partial(ctt.rms_norm, eps=1e-5), lambda x, w: F.rms_norm(x, w.shape, w, 1e-5),
         ((3, 4, 8), (8,)), SINGLE),
    *(
        Case("matmul", partial(_our_product, kind=kind), partial(_product, kind=kind), PRODUCT,
             dtype=SINGLE, variant=kind)
        for kind in ("relu", "gelu", "silu")
    ),
    Case("attention", partial(ctt.attention, causal=True), partial(_attention, is_causal=True), QKV, HALF),
    Case("attention", ctt.attention, lambda q, k, v, bias: _attention(q, k, v, attn_mask=bias),
         (*QKV, (1, 4, 16, 16)), HALF, variant="bias"),
    Case("lstm", _our_lstm, _lstm, ((2, 5, 3), (4, 2, 4), (4, 2, 4), *LSTM)),
    Case("rnn", _our_gru, _gru, ((5, 2, 3), (2, 2, 4), (12, 3), (12, 4), (12, 4), (12, 4))),
    Case("affine_grid", partial(ctt.affine_grid, shape=(2, 1, 3, 4)),
         partial(F.affine_grid, size=(2, 1, 3, 4), align_corners=True), ((2, 2, 3),), twice=True),
    Case("grid_sample", ctt.grid_sample, partial(F.grid_sample, align_corners=True), (X, (2, 3, 3, 2))),
]  # fmt: skip
