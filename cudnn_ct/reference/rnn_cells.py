"""One step of each kind of recurrent cell, forward and backward, for gates of shape (B, gates, hidden)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ._cast import Float64
from .activation import sigmoid

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
