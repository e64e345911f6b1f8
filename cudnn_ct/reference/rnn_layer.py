"""One layer of a recurrent network in one direction over whole sequences, forward and backward."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..shapes.rnn import RNNSpec
from ..shapes.rnn_params import rnn_parameters
from ._cast import Array, Float64, wide
from .rnn_cells import CELLS, Saved


class Layer(NamedTuple):
    """The parameters of a pseudo layer, or their gradients.

    ``w`` is (gates, hidden, in), empty for skip input; ``r`` (gates, hidden, out); the biases are
    (gates, hidden), zero if the network has none; ``p`` (projected, hidden), empty without a projection.
    """

    w: Float64
    r: Float64
    bw: Float64
    br: Float64
    p: Float64


class Pass(NamedTuple):
    """Outputs and last states of a layer in one direction, and the values that the backward pass needs.

    For each step that was run, and the sequences that have it: the step, h before, the new h before its
    projection, and the values saved by the cell.
    """

    y: Float64
    h: Float64
    c: Float64
    steps: list[tuple[int, Float64, Float64, Saved]]


def layers_of(spec: RNNSpec, weights: tuple[Array, ...]) -> list[Layer]:
    """Return the parameters, given in the order of ``rnn_parameters``, by pseudo layer."""
    gates, hidden, out = len(spec.gates), spec.hidden_size, spec.output_size
    layers = []
    for pseudo_layer in range(spec.pseudo_layers):
        layer = pseudo_layer // spec.directions
        skips = layer == 0 and spec.input_mode == "skip"
        zeros = Layer(
            w=np.zeros((gates, hidden, 0 if skips else spec.layer_input_size(layer))),
            r=np.zeros((gates, hidden, out)),
            bw=np.zeros((gates, hidden)),
            br=np.zeros((gates, hidden)),
            p=np.zeros((spec.projection_size, hidden)),
        )
        layers.append(zeros)
    for part, array in zip(flat_weights(spec, layers), weights, strict=True):
        part[...] = wide(array)
    return layers


def flat_weights(spec: RNNSpec, layers: list[Layer]) -> list[Float64]:
    """Return views of the parameters of layers, in the order of ``rnn_parameters``."""
    found = []
    for row in rnn_parameters(spec):
        layer = layers[row.pseudo_layer]
        letters = row.name.split(".")[1].split("_")[0]
        parts = {"W": layer.w, "R": layer.r, "bW": layer.bw, "bR": layer.br}
        found.append(layer.p if letters == "P" else parts[letters][row.lin_layer_id % len(spec.gates)])
    return found


# Infinities and NaN are valid data.
@np.errstate(all="ignore")
def layer_forward(
    spec: RNNSpec, layer: Layer, x: Float64, active: Array, h: Float64, c: Float64, backwards: bool
) -> Pass:
    """Run over sequences; ``active``, shape (T, B), contains which steps exist.

    A step that does not exist leaves the states unchanged, so a backward direction starts at the last step
    of each sequence.
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
    """Return the gradients of the input, of the first states and of the parameters."""
    backward = CELLS[spec.mode].backward
    dx, dh, dc, d = np.zeros(x.shape), dh.copy(), dc.copy(), Layer(*map(np.zeros_like, layer))
    for t, h_before, new_h, saved in reversed(done.steps):
        now = active[t]
        dout = dh[now] + dy[t, now]
        if spec.projection_size:
            d.p[...] += dout.T @ new_h
            dout = dout @ layer.p
        da, dq, dh_past_q, dc[now] = backward(saved, dout, dc[now], spec.clip)
        d.bw[...] += da.sum(0)
        d.br[...] += dq.sum(0)
        d.r[...] += np.einsum("bgi,bj->gij", dq, h_before)
        dh[now] = np.einsum("bgi,gij->bj", dq, layer.r) + dh_past_q
        if layer.w.size:
            d.w[...] += np.einsum("bgi,bj->gij", da, x[t, now])
            dx[t, now] = np.einsum("bgi,gij->bj", da, layer.w)
        else:
            dx[t, now] = da.sum(1)
    return dx, dh, dc, d
