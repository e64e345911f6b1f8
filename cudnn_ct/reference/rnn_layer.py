"""One layer of a recurrent network in one direction over whole sequences, forward and backward."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..shapes.rnn import RNNSpec
from ..shapes.rnn_params import rnn_parameters
from ._cast import Array, Float64
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
    """Inputs, outputs and last states of a layer in one direction, and the values that its gradient needs.

    For each step that was run, and the sequences that have it: the step, h before, the new h before its
    projection, and the values saved by the cell.
    """

    x: Float64
    y: Float64
    h: Float64
    c: Float64
    steps: list[tuple[int, Float64, Float64, Saved]]


def layers_of(spec: RNNSpec, flat: Float64) -> list[Layer]:
    """Return the parameters of each pseudo layer as views of an array of all weights."""
    gates, hidden = len(spec.gates), spec.hidden_size
    layers = []
    for pseudo_layer in range(spec.pseudo_layers):
        parts: dict[str, Float64] = {}
        for row in rnn_parameters(spec):  # those of one letter are adjacent
            letter = row.name.split(".")[1].split("_")[0]
            if row.pseudo_layer == pseudo_layer and letter not in parts:
                count = 1 if letter == "P" else gates
                end = row.offset + count * row.size
                parts[letter] = flat[row.offset : end].reshape(count, *row.shape)
        layers.append(
            Layer(
                w=parts.get("W", np.zeros((gates, hidden, 0))),
                r=parts["R"],
                bw=parts.get("bW", np.zeros((gates, hidden))),
                br=parts.get("bR", np.zeros((gates, hidden))),
                p=parts.get("P", np.zeros((1, 0, hidden)))[0],
            )
        )
    return layers


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
    return Pass(x, y, h, c, steps)


@np.errstate(all="ignore")
def layer_backward(
    spec: RNNSpec, layer: Layer, d: Layer, done: Pass, active: Array, dy: Float64, dh: Float64, dc: Float64
) -> tuple[Float64, Float64, Float64]:
    """Return the gradients of the input and of the first states, and add those of the parameters to ``d``."""
    backward = CELLS[spec.mode].backward
    x, dx, dh, dc = done.x, np.zeros(done.x.shape), dh.copy(), dc.copy()
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
    return dx, dh, dc
