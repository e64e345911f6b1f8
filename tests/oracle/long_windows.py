"""Causal convolutions by FFT, by sums in NumPy, and the sizes that their errors are measured by."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from .answer import Arguments, Operands, Values

__all__ = ["LONG_WINDOWS", "LONG_WINDOW_SCALES"]

Array = np.ndarray
Table = Mapping[str, Callable[[Operands, Arguments], Values]]


def fft_causal_conv1d(operands: Operands, arguments: Arguments) -> Values:
    """The first weight meets the present time step."""
    x, w = operands["x"], operands["w"]
    y = np.zeros_like(x)
    for n, c in np.ndindex(*x.shape[:2]):
        y[n, c] = np.convolve(x[n, c], w[c])[: x.shape[2]]
    return {"y": y}


def fft_causal_conv1d_backward(operands: Operands, arguments: Arguments) -> Values:
    x, w, dy = operands["x"], operands["w"], operands["dy"]
    dx, dw = np.zeros_like(x), np.zeros_like(w)
    for n, c in np.ndindex(*x.shape[:2]):
        dx[n, c] = np.correlate(dy[n, c], w[c], "full")[w.shape[1] - 1 :]
        dw[c] += np.correlate(dy[n, c], x[n, c], "full")[x.shape[2] - 1 :][: w.shape[1]]
    return {"dx": dx, "dw": dw}


def _norm(array: Array) -> Array:
    """Return the Euclidean norm of each row."""
    return np.sqrt(np.square(array).sum(-1, keepdims=True))


def _scale(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """The error of a transform is relative to the norm of its sequence, and so is that of each result."""
    return {"y": _norm(operands["x"]) * _norm(operands["w"])}


def _gradient_scale(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    dy = _norm(operands["dy"])
    return {"dx": dy * _norm(operands["w"]), "dw": (dy * _norm(operands["x"])).sum(0)}


LONG_WINDOWS = {
    "fft_causal_conv1d": fft_causal_conv1d,
    "fft_causal_conv1d_backward": fft_causal_conv1d_backward,
}
LONG_WINDOW_SCALES = {
    "fft_causal_conv1d": _scale,
    "fft_causal_conv1d_backward": _gradient_scale,
}
