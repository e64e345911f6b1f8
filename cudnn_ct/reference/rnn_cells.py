"""One step of each kind of recurrent cell, and back.

Forward takes ``a``, what the input gives to each gate, and ``q``, what the state gives, both with their
biases and of shape (B, gates, hidden), and the states h and c before the step. It gives the new h, not yet
projected, the new c, and what the way back needs. Backward takes that and the gradients of the new h and c.
It gives the gradients of ``a``, of ``q``, and of h and c before the step, of h without what passes by ``q``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ._cast import Float64
from .activation import CURVES

__all__ = ["CELLS", "Cell", "Clip", "Saved"]

Clip = tuple[float, float] | None
Saved = tuple[Float64, ...]


class Cell(NamedTuple):
    """The two ways through a step."""

    forward: Callable[[Float64, Float64, Float64, Float64, Clip], tuple[Float64, Float64, Saved]]
    backward: Callable[[Saved, Float64, Float64, Clip], tuple[Float64, Float64, Float64, Float64]]


_NOTHING = np.zeros(())


def _sigmoid(v: Float64) -> Float64:
    return np.asarray(CURVES["sigmoid"](v, 0))


Curve = Callable[[Float64], Float64]


def _plain(curve: Curve, slope: Curve) -> Cell:
    """h' = curve(a + q); the slope is a function of a + q."""

    def forward(a: Float64, q: Float64, _h: Float64, c: Float64, _: Clip) -> tuple[Float64, Float64, Saved]:
        given = a[:, 0] + q[:, 0]
        return curve(given), c, (given,)

    def backward(
        saved: Saved, dh: Float64, dc: Float64, _: Clip
    ) -> tuple[Float64, Float64, Float64, Float64]:
        da = (dh * slope(saved[0]))[:, None]
        return da, da, _NOTHING, dc

    return Cell(forward, backward)


def _lstm_forward(
    a: Float64, q: Float64, _h: Float64, c: Float64, clip: Clip
) -> tuple[Float64, Float64, Saved]:
    """c' = f * clip(c) + i * g, h' = o * tanh(clip(c')): cells are clipped where they are used."""
    i, f, g, o = np.moveaxis(a + q, 1, 0)
    i, f, g, o = _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)
    new = f * _held(c, clip) + i * g
    return o * np.tanh(_held(new, clip)), new, (i, f, g, o, c, new)


def _lstm_backward(
    saved: Saved, dh: Float64, dc: Float64, clip: Clip
) -> tuple[Float64, Float64, Float64, Float64]:
    i, f, g, o, c, new = saved
    t = np.tanh(_held(new, clip))
    dnew = dc + dh * o * (1 - t * t) * _free(new, clip)
    di, df, dg, do = dnew * g, dnew * _held(c, clip), dnew * i, dh * t
    da = np.stack([di * i * (1 - i), df * f * (1 - f), dg * (1 - g * g), do * o * (1 - o)], 1)
    return da, da, _NOTHING, dnew * f * _free(c, clip)


def _held(c: Float64, clip: Clip) -> Float64:
    return np.clip(c, *clip) if clip else c


def _free(c: Float64, clip: Clip) -> Float64:
    """1 where a cell is within the bounds, and 0 where it is held, so that nothing passes."""
    return np.where((clip[0] <= c) & (c <= clip[1]), 1.0, 0.0) if clip else np.ones(())


def _gru_forward(a: Float64, q: Float64, h: Float64, c: Float64, _: Clip) -> tuple[Float64, Float64, Saved]:
    """n = tanh(a_n + r * q_n), h' = (1 - z) * n + z * h; r has its say after the product with R."""
    r, z = _sigmoid(a[:, 0] + q[:, 0]), _sigmoid(a[:, 1] + q[:, 1])
    n = np.tanh(a[:, 2] + r * q[:, 2])
    return (1 - z) * n + z * h, c, (r, z, n, q[:, 2], h)


def _gru_backward(
    saved: Saved, dh: Float64, dc: Float64, _: Clip
) -> tuple[Float64, Float64, Float64, Float64]:
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
