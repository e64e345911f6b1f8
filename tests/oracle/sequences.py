"""Long windows and gated causal convolutions by sums in NumPy, and the sizes that errors are measured by."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .answer import Arguments, Compute, Operands, Table, Values, absolute
from .causal_conv import causal_conv1d, causal_conv1d_backward
from .tables import defined

__all__ = ["SEQUENCES", "SEQUENCE_SCALES"]

Array = np.ndarray


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


def _projected(operands: Operands) -> list[Array]:
    """Return the gate and both factors of the product."""
    x, w = operands["x"], operands["w_proj"]
    return [causal_conv1d({"x": x[:, :, i], "w": w[:, i]}, {})["y"] for i in range(3)]


def b2b_causal_conv1d(operands: Operands, arguments: Arguments) -> Values:
    gate, a, b = _projected(operands)
    skipped = operands["skip_bias"].reshape(-1, 1) * (a * b)
    mixed = causal_conv1d({"x": a * b, "w": operands["w_mixer"]}, {})["y"] + skipped
    return {"y": gate * mixed, "mixed": mixed}


def b2b_causal_conv1d_backward(operands: Operands, arguments: Arguments) -> Values:
    dy, x, w, skip_bias = (operands[name] for name in ("dy", "x", "w_proj", "skip_bias"))
    gate, a, b = _projected(operands)
    dmixed = dy * gate
    through = causal_conv1d_backward({"x": a * b, "w": operands["w_mixer"], "dy": dmixed}, {})
    dproduct = through["dx"] + skip_bias.reshape(-1, 1) * dmixed
    parts = [
        causal_conv1d_backward({"x": x[:, :, i], "w": w[:, i], "dy": one}, {})
        for i, one in enumerate((dy * operands["mixed"], dproduct * b, dproduct * a))
    ]
    return {
        "dx": np.stack([part["dx"] for part in parts], 2),
        "dw_proj": np.stack([part["dw"] for part in parts], 1),
        "dw_mixer": through["dw"],
        "dskip_bias": (dmixed * a * b).sum((0, 2)),
    }


def _norm(array: Array) -> Array:
    """Return the Euclidean norm of each row."""
    return np.sqrt(np.square(array).sum(-1, keepdims=True))


def _scale(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """The error of a transform is relative to the norm of its sequence, and so is that of each result."""
    return {"y": _norm(operands["x"]) * _norm(operands["w"])}


def _gradient_scale(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    dy = _norm(operands["dy"])
    return {"dx": dy * _norm(operands["w"]), "dw": (dy * _norm(operands["x"])).sum(0)}


def _chain(compute: Compute) -> Callable[..., Values]:
    """Return a scale: the sum of all absolute terms, twice since kernels may round what is in between."""

    def scale(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
        return {name: 2 * size for name, size in compute(absolute(operands), arguments).items()}

    return scale


SEQUENCES = defined(globals())
SEQUENCE_SCALES = {
    "fft_causal_conv1d": _scale,
    "fft_causal_conv1d_backward": _gradient_scale,
    "b2b_causal_conv1d": _chain(b2b_causal_conv1d),
    "b2b_causal_conv1d_backward": _chain(b2b_causal_conv1d_backward),
}
