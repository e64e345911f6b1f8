"""Rows and bodies of recurrent networks: their weights are one array, and a gradient runs them again."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

import cudnn_ct

from ..gradients.row import Param, Row
from ..reference.rnn import rnn, rnn_backward
from ..shapes.rnn import RNNSpec, rnn_spec
from ..shapes.rnn_params import rnn_parameters
from ..shapes.specs import TensorSpec

__all__ = ["NETWORKS", "ON_CPU", "ON_GPU", "network_results", "spec_of_network"]

PARAMS = {
    "mode": Param("str", "lstm"),
    "hidden_size": Param("int"),
    "num_layers": Param("int", 1),
    "direction": Param("str", "unidirectional"),
    "bias": Param("str", "double_bias"),
    "projection_size": Param("int", 0),
    "lengths": Param("int", None, optional=True),  # a tuple with the steps of each sequence
}


def _rows(name: str, cells: tuple[str, ...]) -> dict[str, Row]:
    """Return the forward and the backward row of networks with or without cells."""
    states = tuple(f"{cell}0" for cell in ("h", *cells))
    given = ("dy", *(f"d{cell}y" for cell in ("h", *cells)))
    forward = Row("rnn", ("x", "w", *states), ("y", *(f"{one}y" for one in ("h", *cells))), PARAMS, states)
    found = ("dx", "dw", *(f"d{one}" for one in states))
    backward = Row("rnn_backward", ("x", "w", *states, *given), found, PARAMS, states)
    return {name: forward, f"{name}_backward": backward}


NETWORKS: dict[str, Row] = {**_rows("lstm", ("c",)), **_rows("rnn", ())}


def spec_of_network(x: TensorSpec, params: Mapping[str, Any]) -> RNNSpec:
    """Check the parameters of a network for an input, and return it as a value."""
    keywords = {one: params[one] for one in PARAMS if one != "lengths"}
    if len(x.shape) != 3:
        raise ValueError(f"x has the wrong number of axes: got shape {x.shape}, expected (T, B, input size)")
    return rnn_spec(input_size=x.shape[2], dtype=x.dtype, **keywords)


def network_results(
    name: str, params: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> tuple[TensorSpec, ...]:
    """Check the operands of a network, and return its results."""
    x, w = specs["x"], specs["w"]
    spec = spec_of_network(x, params)
    steps, batch, _ = x.shape
    size = sum(row.size for row in rnn_parameters(spec))
    if w.shape != (size,):
        raise ValueError(f"w has the wrong shape: got {w.shape}, expected {(size,)} for {spec}")
    shapes = {
        "y": (steps, batch, spec.directions * spec.output_size),
        "h": (spec.pseudo_layers, batch, spec.output_size),
        "c": (spec.pseudo_layers, batch, spec.hidden_size),
    }
    for one in ("h0", "c0"):
        if one in specs and specs[one].shape != shapes[one[0]]:
            raise ValueError(
                f"{one} has the wrong shape: got {specs[one].shape}, expected {shapes[one[0]]} for {spec}"
            )
    if name.endswith("_backward"):
        own = {"dx": x.shape, "dw": w.shape, "dh0": shapes["h"], "dc0": shapes["c"]}
    else:
        own = {"y": shapes["y"], "hy": shapes["h"], "cy": shapes["c"]}
    return tuple(TensorSpec.packed(own[one], x.dtype) for one in NETWORKS[name].results)


# --- the GPU -----------------------------------------------------------------------------------------------


@lru_cache(64)
def _network(spec: RNNSpec) -> Any:
    """Return the network of the package."""
    names = ("direction", "bias", "projection_size", "dtype")
    sizes = (spec.mode, spec.input_size, spec.hidden_size, spec.num_layers)
    return cudnn_ct.RNN(*sizes, **{name: getattr(spec, name) for name in names})


def _forward(
    x: Any,
    w: Any,
    h0: Any = None,
    c0: Any = None,
    *,
    lengths: Any = None,
    out: Any,
    stream: Any,
    **params: Any,
) -> None:
    network = _network(spec_of_network(x.spec, params))
    network.forward(x, w, h0, c0, lengths=lengths, out=out, stream=stream)


def _backward(
    x: Any, w: Any, h0: Any = None, c0: Any = None, *, dy: Any, dhy: Any, dcy: Any = None,
    lengths: Any = None, out: Any, stream: Any, **params: Any,
) -> None:  # fmt: skip
    """Run the network again: the reserve of a forward pass belongs to the package, and XLA cannot keep it."""
    network = _network(spec_of_network(x.spec, params))
    reserve = network.forward(x, w, h0, c0, lengths=lengths, training=True, stream=stream).reserve
    dx, dw, *states = out
    network.backward_data(dy, reserve, dhy, dcy, out=(dx, *states), stream=stream)
    network.backward_weights(reserve, out=dw, stream=stream)


ON_GPU = {
    f"{name}{end}": call
    for name in ("lstm", "rnn")
    for end, call in (("", _forward), ("_backward", _backward))
}


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
