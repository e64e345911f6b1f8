"""Causal convolutions by NumPy, and the sizes that their errors are measured by."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .answer import Arguments, Operands, Table, Values, absolute, named
from .tables import defined

__all__ = ["CAUSAL", "CAUSAL_SCALES"]

Array = np.ndarray


def _windows(x: Array, before: int, after: int) -> Array:
    """Return the elements around each time step, in their order, along one more axis."""
    padded = np.pad(x, [(0, 0), (0, 0), (before + 1, after)])  # one window more, also for no time step
    return sliding_window_view(padded, before + after + 1, axis=2)[:, :, 1:]


def _sums(operands: Operands) -> Array:
    w, bias = operands["w"], operands.get("bias")
    y = np.einsum("nctk,ck->nct", _windows(operands["x"], w.shape[1] - 1, 0), w)
    return y if bias is None else y + bias.reshape(-1, 1)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _is_silu(arguments: Arguments) -> bool:
    return named(arguments.get("activation"), "identity") != "identity"


def causal_conv1d(operands: Operands, arguments: Arguments) -> Values:
    sums = _sums(operands)
    return {"y": sums * _sigmoid(sums) if _is_silu(arguments) else sums}


def _through_windows(operands: Operands, gradient: Array) -> Values:
    """Return the gradients of all operands for that of the sums."""
    x, w = operands["x"], operands["w"]
    lags = w.shape[1] - 1
    dx = np.einsum("nctk,ck->nct", _windows(gradient, 0, lags), w[:, ::-1])
    dw = np.einsum("nct,nctk->ck", gradient, _windows(x, lags, 0))
    values = {"dx": dx, "dw": dw}
    return values if operands.get("bias") is None else {**values, "dbias": gradient.sum((0, 2))}


def causal_conv1d_backward(operands: Operands, arguments: Arguments) -> Values:
    gradient = operands["dy"]
    if _is_silu(arguments):
        sums = _sums(operands)
        curve = _sigmoid(sums)
        gradient = gradient * (curve + sums * curve * _sigmoid(-sums))
    return _through_windows(operands, gradient)


def _scale(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """The slope of silu is at most 1.1."""
    return {"y": (1.1 if _is_silu(arguments) else 1) * _sums(absolute(operands))}


def _gradient_scale(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """The slope of silu is at most 1.1, and changes by at most half of the error of a sum."""
    known = absolute(operands)
    amplified = 1.1 + _sums(known) / 2 if _is_silu(arguments) else 1
    return _through_windows(known, known["dy"] * amplified)


CAUSAL = defined(globals())
CAUSAL_SCALES = {"causal_conv1d": _scale, "causal_conv1d_backward": _gradient_scale}
