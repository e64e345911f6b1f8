"""One layer of a recurrent network in one direction over whole sequences, and back through time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..shapes.rnn import RNNSpec
from ..shapes.rnn_params import rnn_parameters
from ._cast import Array, Float64, wide
from .rnn_cells import CELLS, Saved

__all__ = ["Layer", "Pass", "flat_weights", "layer_backward", "layer_forward", "layers_of"]


class Layer(NamedTuple):
    """The parameters of a pseudo layer, or their gradients: one row for each gate.

    ``w`` is (gates, hidden, in), empty for skip input; ``r`` (gates, hidden, out); the biases are
    (gates, hidden), zero where there are none; ``p`` (projected, hidden), empty where there is no projection.
    """

    w: Float64
    r: Float64
    bw: Float64
    br: Float64
    p: Float64


class Pass(NamedTuple):
    """What a layer gives in one direction: outputs, last states, and what the way back needs.

    That is for each step, in the order of the run, and of the sequences that have it: which step, h before,
    the new h not yet projected, and what the cell saved.
    """

    y: Float64
    h: Float64
    c: Float64
    steps: list[tuple[int, Float64, Float64, Saved]]


def layers_of(spec: RNNSpec, weights: tuple[Array, ...]) -> list[Layer]:
    """The parameters, in the order of ``rnn_parameters``, by pseudo layer."""
    gates, hidden, out = len(spec.gates), spec.hidden_size, spec.output_size
    layers = []
    for pseudo_layer in range(spec.pseudo_layers):
        layer = pseudo_layer // spec.directions
        skips = layer == 0 and spec.input_mode == "skip"
        blank = Layer(
            np.zeros((gates, hidden, 0 if skips else spec.layer_input_size(layer))),
            np.zeros((gates, hidden, out)),
            np.zeros((gates, hidden)),
            np.zeros((gates, hidden)),
            np.zeros((spec.projection_size, hidden)),
        )
        for row, array in zip(rnn_parameters(spec), weights, strict=True):
            if row.pseudo_layer == pseudo_layer:
                _part(blank, spec, row.name, row.lin_layer_id)[...] = wide(array)
        layers.append(blank)
    return layers


def flat_weights(spec: RNNSpec, layers: list[Layer]) -> list[Float64]:
    """The parameters in the order of ``rnn_parameters``, from those by pseudo layer."""
    rows = rnn_parameters(spec)
    return [_part(layers[row.pseudo_layer], spec, row.name, row.lin_layer_id) for row in rows]


def _part(layer: Layer, spec: RNNSpec, name: str, lin_layer_id: int) -> Float64:
    """A view of the part of a layer that a parameter is."""
    letters = name.split(".")[1].split("_")[0]
    if letters == "P":
        return layer.p
    parts = {"W": layer.w, "R": layer.r, "bW": layer.bw, "bR": layer.br}
    return np.asarray(parts[letters][lin_layer_id % len(spec.gates)])


# Infinities and NaN are data like any other.
@np.errstate(all="ignore")
def layer_forward(
    spec: RNNSpec, layer: Layer, x: Float64, active: Array, h: Float64, c: Float64, backwards: bool
) -> Pass:
    """Run over sequences of which (T, B) ``active`` tells which steps exist.

    Where a step does not exist, the states stay as they are. So a sequence that is run backwards begins at
    its own last step, whatever its length.
    """
    forward, steps = CELLS[spec.mode].forward, []
    y, h, c = np.zeros((*active.shape, spec.output_size)), h.copy(), c.copy()
    for t in reversed(range(len(x))) if backwards else range(len(x)):
        now = active[t]
        h_before = h[now]
        a = np.einsum("gij,bj->bgi", layer.w, x[t, now]) if layer.w.size else x[t, now][:, None]
        q = np.einsum("gij,bj->bgi", layer.r, h_before)
        new_h, c[now], saved = forward(a + layer.bw, q + layer.br, h_before, c[now], spec.clip)
        h[now] = new_h @ layer.p.T if spec.projection_size else new_h
        y[t, now] = h[now]
        steps.append((t, h_before, new_h, saved))
    return Pass(y, h, c, steps)


@np.errstate(all="ignore")
def layer_backward(
    spec: RNNSpec, layer: Layer, done: Pass, x: Float64, active: Array, dy: Float64, dh: Float64, dc: Float64
) -> tuple[Float64, Float64, Float64, Layer]:
    """Go back through time: the gradients of the input, of the first states, and of the parameters."""
    backward = CELLS[spec.mode].backward
    dx, dh, dc, d = np.zeros(x.shape), dh.copy(), dc.copy(), Layer(*map(np.zeros_like, layer))
    for t, h_before, new_h, saved in reversed(done.steps):
        now = active[t]
        dout = dh[now] + dy[t, now]
        if spec.projection_size:
            d.p[...] += dout.T @ new_h
            dout = dout @ layer.p
        da, dq, past_q, dc[now] = backward(saved, dout, dc[now], spec.clip)
        d.bw[...] += da.sum(0)
        d.br[...] += dq.sum(0)
        d.r[...] += np.einsum("bgi,bj->gij", dq, h_before)
        dh[now] = np.einsum("bgi,gij->bj", dq, layer.r) + past_q
        if layer.w.size:
            d.w[...] += np.einsum("bgi,bj->gij", da, x[t, now])
            dx[t, now] = np.einsum("bgi,gij->bj", da, layer.w)
        else:
            dx[t, now] = da.sum(1)
    return dx, dh, dc, d
