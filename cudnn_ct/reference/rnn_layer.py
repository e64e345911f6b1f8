"""One layer of a recurrent network in one direction over whole sequences, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..shapes.rnn import RNNSpec, rnn_parameters
from ._cast import Array, Float64
from .layers import sigmoid

# --- one step of each kind of recurrent cell, forward and backward, for gates of shape (B, gates, hidden) --

Clip = tuple[float, float] | None
Saved = tuple[Float64, ...]
Step = tuple[Float64, Float64, Saved]
Gradients = tuple[Float64, Float64, Float64, Float64]
Curve = Callable[[Float64], Float64]


class Cell(NamedTuple):
    """One step forward and backward.

    ``forward`` takes the contributions of the input and of the state to the gates, and h and c before the
    step; it returns h before its projection, c, and values for ``backward``. That takes these values and the
    gradients of h and c, and returns those of both contributions, of h past the gates, and of c.
    """

    forward: Callable[[Float64, Float64, Float64, Float64, Clip], Step]
    backward: Callable[[Saved, Float64, Float64, Clip], Gradients]


_ZERO = np.zeros(())


def _plain(curve: Curve, slope: Curve) -> Cell:
    """Return a cell with h' = curve(a + q)."""

    def forward(a: Float64, q: Float64, _h: Float64, c: Float64, _: Clip) -> Step:
        v = a[:, 0] + q[:, 0]
        return curve(v), c, (v,)

    def backward(saved: Saved, dh: Float64, dc: Float64, _: Clip) -> Gradients:
        da = (dh * slope(saved[0]))[:, None]
        return da, da, _ZERO, dc

    return Cell(forward, backward)


def _lstm_forward(a: Float64, q: Float64, _h: Float64, c: Float64, clip: Clip) -> Step:
    """c' = f * clip(c) + i * g, h' = o * tanh(clip(c')): cells are clipped where they are used."""
    i, f, g, o = np.moveaxis(a + q, 1, 0)
    i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
    new = f * _clipped(c, clip) + i * g
    return o * np.tanh(_clipped(new, clip)), new, (i, f, g, o, c, new)


def _lstm_backward(saved: Saved, dh: Float64, dc: Float64, clip: Clip) -> Gradients:
    i, f, g, o, c, new = saved
    t = np.tanh(_clipped(new, clip))
    dnew = dc + dh * o * (1 - t * t) * _clip_slope(new, clip)
    di, df, dg, do = dnew * g, dnew * _clipped(c, clip), dnew * i, dh * t
    da = np.stack([di * i * (1 - i), df * f * (1 - f), dg * (1 - g * g), do * o * (1 - o)], 1)
    return da, da, _ZERO, dnew * f * _clip_slope(c, clip)


def _clipped(c: Float64, clip: Clip) -> Float64:
    return np.clip(c, *clip) if clip else c


def _clip_slope(c: Float64, clip: Clip) -> Float64:
    return np.where((clip[0] <= c) & (c <= clip[1]), 1.0, 0.0) if clip else np.ones(())


def _gru_forward(a: Float64, q: Float64, h: Float64, c: Float64, _: Clip) -> Step:
    """n = tanh(a_n + r * q_n), h' = (1 - z) * n + z * h; r applies after the product with R."""
    r, z = sigmoid(a[:, 0] + q[:, 0]), sigmoid(a[:, 1] + q[:, 1])
    n = np.tanh(a[:, 2] + r * q[:, 2])
    return (1 - z) * n + z * h, c, (r, z, n, q[:, 2], h)


def _gru_backward(saved: Saved, dh: Float64, dc: Float64, _: Clip) -> Gradients:
    r, z, n, q, h = saved
    dn = dh * (1 - z) * (1 - n * n)
    dr, dz = dn * q * r * (1 - r), dh * (h - n) * z * (1 - z)
    return np.stack([dr, dz, dn], 1), np.stack([dr, dz, dn * r], 1), dh * z, dc


CELLS = {
    # At 0, cuDNN's slope of a relu is 1 in a recurrent network, and 0 in an activation.
    "rnn_relu": _plain(lambda v: np.maximum(v, 0), lambda v: np.where(v >= 0, 1.0, 0.0)),
    "rnn_tanh": _plain(np.tanh, lambda v: 1 - np.tanh(v) ** 2),
    "lstm": Cell(_lstm_forward, _lstm_backward),
    "gru": Cell(_gru_forward, _gru_backward),
}


# --- layers ------------------------------------------------------------------------------------------------


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
