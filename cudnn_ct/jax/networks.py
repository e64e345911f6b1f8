"""Bodies of recurrent networks, whose rows are those of `gradients.table`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

import cudnn_ct

from ..gradients.table import NETWORKS, PARAMS, body, spec_of_network
from ..reference.rnn import rnn, rnn_backward
from ..shapes.rnn import RNNSpec, rnn_parameters
from ..shapes.specs import TensorSpec

__all__ = ["ON_CPU", "ON_GPU"]


def _on_gpu(name: str, *, x: Any, **given: Any) -> None:
    params = {one: given.pop(one, None) for one in PARAMS}
    body(cudnn_ct.RNN, name, x.spec, params)(x=x, **given)


ON_GPU: dict[str, Callable[..., None]] = {name: partial(_on_gpu, name) for name in NETWORKS}


# --- the CPU -----------------------------------------------------------------------------------------------


def _host(x: Any, w: Any, params: Mapping[str, Any]) -> tuple[RNNSpec, list[Any]]:
    spec = spec_of_network(TensorSpec.packed(x.shape, str(x.dtype)), params)
    return spec, [row.view(w) for row in rnn_parameters(spec)]


def _host_forward(
    x: Any, w: Any, h0: Any = None, c0: Any = None, *, lengths: Any = None, **params: Any
) -> tuple[Any, ...]:
    spec, weights = _host(x, w, params)
    y, hy, cy = rnn(x, weights, spec, h0=h0, c0=c0, lengths=lengths)
    return (y, hy) if cy is None else (y, hy, cy)


def _host_backward(
    x: Any, w: Any, h0: Any = None, c0: Any = None, *, dy: Any, dhy: Any, dcy: Any = None,
    lengths: Any = None, **params: Any,
) -> tuple[Any, ...]:  # fmt: skip
    spec, weights = _host(x, w, params)
    gradients = {"dhy": dhy, "dcy": dcy}
    found = rnn_backward(x, weights, spec, dy, **gradients, h0=h0, c0=c0, lengths=lengths)
    dx, dh0, dc0, dweights = found
    dw = np.zeros_like(w)
    for row, gradient in zip(rnn_parameters(spec), dweights, strict=True):
        row.view(dw)[...] = gradient
    return (dx, dw, dh0) if dc0 is None else (dx, dw, dh0, dc0)


ON_CPU = {
    f"{name}{end}": call
    for name in ("lstm", "rnn")
    for end, call in (("", _host_forward), ("_backward", _host_backward))
}
