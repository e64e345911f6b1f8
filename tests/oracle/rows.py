"""Products of matrices and normalisations of rows by loops, and the sizes that errors are measured by."""

from __future__ import annotations

from itertools import product
from math import erf, prod
from typing import Any

import numpy as np

from .answer import Arguments, Operands, Values, absolute
from .tables import defined

__all__ = [
    "PRODUCT_SCALES",
    "ROWS",
    "ROW_OPEN",
    "ROW_ROUNDED",
    "SAFE_CANCELLATION",
    "matrices",
    "row_views",
    "spread_of",
    "unbroadcast",
]

# E[x ** 2] / (var + epsilon) up to which the mean of differences has correct digits in float32.
SAFE_CANCELLATION = 4e8


def spread_of(ratio: np.ndarray) -> np.ndarray:
    """Return the relative size of the error of a variance, for the ratio of the mean and the deviation.

    A mean has the error u * mean(abs(x)). A mean of squared differences from it has the square of that error,
    next to its own rounding; one that is updated for each element (Welford) has it to the first power.
    """
    return 1 + ratio / 2 + 64 * 2.0**-24 * ratio**2


# --- products ----------------------------------------------------------------------------------------------


def matrices(a: Any, b: Any, dy: Any = None) -> tuple[Any, Any, Any]:
    """Give vectors the axes that they lack; arrays and tensors have the same indices."""
    if b.ndim == 1:
        b, dy = b[:, None], None if dy is None else dy[..., None]
    if a.ndim == 1:
        a, dy = a[None], None if dy is None else dy[..., None, :]
    return a, b, dy


def unbroadcast(array: Any, shape: tuple[int, ...]) -> Any:
    """Sum over the axes along which an operand of a shape was broadcast."""
    array = array.sum(tuple(range(array.ndim - len(shape)))) if array.ndim > len(shape) else array
    for axis, length in enumerate(shape):
        if length == 1 and array.shape[axis] != 1:
            array = array.sum(axis)[(slice(None),) * axis + (None,)]
    return array


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Add one term after another."""
    first, second, _ = matrices(a, b)
    batch = np.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    y = np.zeros((*batch, first.shape[-2], second.shape[-1]))
    for k in range(first.shape[-1]):
        y += first[..., :, k, None] * second[..., None, k, :]
    if b.ndim == 1:
        y = y[..., 0]
    return y[..., 0, :] if a.ndim == 1 and b.ndim > 1 else y[..., 0] if a.ndim == 1 else y


CURVES = {
    "relu": lambda v: max(v, 0.0) if v == v else v,
    "gelu": lambda v: v * (1 + erf(v / 2**0.5)) / 2,
    "gelu_tanh": lambda v: v * (1 + np.tanh((2 / np.pi) ** 0.5 * (v + 0.044715 * v**3))) / 2,
    "silu": lambda v: v / (1 + np.exp(-v)),
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "tanh": np.tanh,
}


def _sums(operands: Operands, arguments: Arguments, factor: float) -> np.ndarray:
    b = operands["b"] if operands.get("b_scale") is None else operands["b"] * operands["b_scale"]
    y = factor * _product(operands["a"], b)
    for name in ("bias", "residual"):
        if operands.get(name) is not None:
            y = y + operands[name]
    return y


def matmul(operands: Operands, arguments: Arguments) -> Values:
    y = _sums(operands, arguments, arguments.get("alpha", 1))
    curve = CURVES.get(arguments.get("activation") or "")
    if curve is not None:
        with np.errstate(all="ignore"):
            y = np.asarray(np.vectorize(curve, otypes=[float])(y)) if y.size else y
    return {"y": y}


def _scaled(operands: Operands, arguments: Arguments, factor: float) -> np.ndarray:
    """Return a product of float8 before its activation."""
    for name in ("descale_a", "descale_b"):
        factor *= 1.0 if operands.get(name) is None else float(np.ravel(operands[name])[0])
    return _sums(operands, arguments, factor)


def scaled_matmul(operands: Operands, arguments: Arguments) -> Values:
    v = _scaled(operands, arguments, 1.0)
    curve = CURVES.get(arguments.get("activation") or "")
    v = v if curve is None else np.asarray(np.vectorize(curve, otypes=[float])(v))
    found = {"y": v if operands.get("scale") is None else float(np.ravel(operands["scale"])[0]) * v}
    return found | ({"amax": np.abs(v).max(keepdims=True).reshape(1)} if arguments.get("amax") else {})


def matmul_backward(operands: Operands, arguments: Arguments) -> Values:
    a, b, dy = matrices(operands["a"], operands["b"], operands["dy"])
    alpha = arguments.get("alpha", 1)
    da = unbroadcast(_product(dy, np.swapaxes(b, -1, -2)), a.shape)
    db = unbroadcast(_product(np.swapaxes(a, -1, -2), dy), b.shape)
    found = {"da": alpha * da.reshape(operands["a"].shape), "db": alpha * db.reshape(operands["b"].shape)}
    if arguments.get("bias_gradient"):
        given = operands["dy"]
        found["dbias"] = given.reshape(prod(given.shape[:-1]), given.shape[-1]).sum(0)
    return found


def _matmul_scale(table: Any, operands: Operands, arguments: Arguments, values: Values) -> Values:
    sums = _sums(absolute(operands), arguments, abs(arguments.get("alpha", 1)))
    plain = _sums(operands, arguments, arguments.get("alpha", 1))
    # An engine that is compiled at run time approximates tanh: in float32 it was off by 7e-6 on an H200.
    curve = arguments.get("activation") or ""
    own = {"sigmoid": 1.0, "tanh": 8.0, "gelu_tanh": 8 * np.abs(plain)}.get(curve, np.abs(plain))
    return {"y": 1.2 * sums + own}


def _scaled_scale(table: Any, operands: Operands, arguments: Arguments, values: Values) -> Values:
    sums, plain = _scaled(absolute(operands), arguments, 1.0), _scaled(operands, arguments, 1.0)
    own = {"sigmoid": 1.0, "tanh": 1.0}.get(arguments.get("activation") or "")
    v = 1.2 * sums + (np.abs(plain) if own is None else own)
    scale = 1.0 if operands.get("scale") is None else np.abs(np.ravel(operands["scale"])[0])
    sizes = {"y": scale * v, "amax": v.max(keepdims=True).reshape(1)}
    return {name: sizes[name] for name in values}


def _backward_scale(table: Any, operands: Operands, arguments: Arguments, values: Values) -> Values:
    positive = {**arguments, "alpha": abs(arguments.get("alpha", 1))}
    return matmul_backward(absolute(operands), positive)


# --- normalisations ----------------------------------------------------------------------------------------


def row_views(mode: str, x: Any, scale: Any) -> tuple[tuple[int, int, int], tuple[int, ...]]:
    """Return (samples, rows, columns) of x, and the shape of the statistics."""
    adaptive = mode == "ada_layer_norm"
    kept = len(scale.shape) - adaptive
    samples, columns = x.shape[0] if adaptive else 1, prod(x.shape[len(x.shape) - kept :])
    rows = prod(x.shape[adaptive : len(x.shape) - kept])
    return (samples, rows, columns), (*x.shape[: len(x.shape) - kept], *(1,) * kept)


def _of(mode: str) -> Any:
    """Return the forward pass and the gradient of a mode, one row after another, their scales and roundings.

    Errors grow like the ratio of mean and deviation, not like its square, as those of the difference of two
    means of squares do.
    """

    def forward(operands: Operands, arguments: Arguments) -> Values:
        x, scale, bias = operands["x"], operands["scale"], operands.get("bias")
        shape, statistics = row_views(mode, x, scale)
        samples, rows, columns = shape
        flat, scales = x.reshape(shape), scale.reshape(samples, columns)
        biases = np.zeros((samples, columns)) if bias is None else bias.reshape(samples, columns)
        y, means, inverses = np.zeros(shape), np.zeros(shape[:2]), np.zeros(shape[:2])
        for n, r in product(range(samples), range(rows)):
            row = flat[n, r]
            mean = 0.0 if mode == "rms_norm" else row.sum() / columns
            inverse = 1 / np.sqrt(((row - mean) ** 2).sum() / columns + arguments.get("epsilon", 1e-5))
            y[n, r] = (row - mean) * inverse * scales[n] + biases[n]
            means[n, r], inverses[n, r] = mean, inverse
        found = {"y": y.reshape(x.shape)}
        if not arguments.get("training", True):
            return found
        if mode == "rms_norm":
            return found | {"invrms": inverses.reshape(statistics)}
        return found | {"mean": means.reshape(statistics), "invstd": inverses.reshape(statistics)}

    def backward(operands: Operands, arguments: Arguments) -> Values:
        x, scale = operands["x"], operands["scale"]
        shape, _ = row_views(mode, x, scale)
        samples, rows, columns = shape
        flat, dys, scales = x.reshape(shape), operands["dy"].reshape(shape), scale.reshape(samples, columns)
        rms = mode == "rms_norm"
        inverses = operands["invrms" if rms else "invstd"].reshape(shape[:2])
        means = np.zeros(shape[:2]) if rms else operands["mean"].reshape(shape[:2])
        dx, dscale, dbias = np.zeros(shape), np.zeros((samples, columns)), np.zeros((samples, columns))
        for n, r in product(range(samples), range(rows)):
            normal = (flat[n, r] - means[n, r]) * inverses[n, r]
            inner = dys[n, r] * scales[n]
            centre = 0.0 if rms else inner.sum() / columns
            dx[n, r] = inverses[n, r] * (inner - centre - normal * ((inner * normal).sum() / columns))
            dscale[n] += dys[n, r] * normal
            dbias[n] += dys[n, r]
        found = {"dx": dx.reshape(x.shape), "dscale": dscale.reshape(scale.shape)}
        if not rms or arguments.get("bias_gradient"):
            found["dbias"] = dbias.reshape(scale.shape)
        return found

    def forward_sizes(operands: Operands, arguments: Arguments) -> tuple[Values, Values]:
        """Return the scales of the results, and the magnitudes that are rounded to their dtypes."""
        full = forward(operands, {**arguments, "training": True})
        inverse, mean = full["invrms" if mode == "rms_norm" else "invstd"], full.get("mean", np.zeros(()))
        x, scale = np.abs(operands["x"]), np.abs(operands["scale"])
        wide = _beside(mode, x, scale)
        axes = tuple(axis for axis, n in enumerate(inverse.shape) if axis >= x.ndim - _count(mode, scale))
        average = x.mean(axes, keepdims=True)
        spread = spread_of(average * inverse)
        normal = np.abs(operands["x"] - mean) * inverse
        # A mean has some roundings of its terms, however small it is itself.
        centre = 0.0 if mode == "rms_norm" else average / 16
        y = wide(scale) * (normal * (1 + spread) + (np.maximum(x, np.abs(mean)) / 2 + centre) * inverse)
        bias = 0 if operands.get("bias") is None else wide(np.abs(operands["bias"]))
        sizes = {"y": y + bias, "mean": average, "invstd": inverse * spread, "invrms": inverse}
        return sizes, {"y": wide(scale) * normal + bias}

    def forward_scale(table: Any, operands: Operands, arguments: Arguments, values: Values) -> Values:
        sizes, _ = forward_sizes(operands, arguments)
        return {name: sizes[name] for name in values}

    def forward_rounded(table: Any, operands: Operands, arguments: Arguments, values: Values) -> Values:
        return forward_sizes(operands, arguments)[1]

    def backward_sizes(operands: Operands, arguments: Arguments) -> tuple[Values, Values]:
        rms = mode == "rms_norm"
        x, scale, dy = (np.abs(operands[name]) for name in ("x", "scale", "dy"))
        inverse = operands["invrms" if rms else "invstd"]
        mean = np.zeros(()) if rms else operands["mean"]
        wide = _beside(mode, x, scale)
        axes = tuple(range(x.ndim - _count(mode, scale), x.ndim))
        inner, normal = dy * wide(scale), np.abs(operands["x"] - mean) * inverse
        parts = normal + np.maximum(x, np.abs(mean)) * inverse / 2
        summed = tuple(range(mode == "ada_layer_norm", x.ndim - len(axes)))
        centre = inner + inner.mean(axes, keepdims=True)
        crossed = parts * (inner * normal).mean(axes, keepdims=True)
        crossed = crossed + normal * (inner * parts).mean(axes, keepdims=True)
        sizes = {"dx": inverse * (centre + crossed), "dscale": (dy * parts).sum(summed)}
        rounded = {
            "dx": inverse * (centre + normal * (inner * normal).mean(axes, keepdims=True)),
            "dscale": (dy * normal).sum(summed),
        }
        return sizes | {"dbias": dy.sum(summed)}, rounded

    def backward_scale(table: Any, operands: Operands, arguments: Arguments, values: Values) -> Values:
        sizes, _ = backward_sizes(operands, arguments)
        return {name: sizes[name] for name in values}

    def backward_rounded(table: Any, operands: Operands, arguments: Arguments, values: Values) -> Values:
        return backward_sizes(operands, arguments)[1]

    return (forward, backward), (forward_scale, backward_scale), (forward_rounded, backward_rounded)


def _count(mode: str, scale: np.ndarray) -> int:
    return scale.ndim - (mode == "ada_layer_norm")


def _beside(mode: str, x: np.ndarray, scale: np.ndarray) -> Any:
    """Return a function that gives a parameter the axes of x."""
    count = _count(mode, scale)
    shape = (
        *scale.shape[: scale.ndim - count],
        *(1,) * (x.ndim - scale.ndim),
        *scale.shape[scale.ndim - count :],
    )
    return lambda parameter: parameter.reshape(shape)


def _open_rows(table: Any, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """Rows of which the mean has fewer correct digits in float32 than the variance needs."""
    x, inverse = operands["x"], values.get("invstd")
    if inverse is None or not x.size:
        return {}
    axes = tuple(axis for axis, (n, kept) in enumerate(zip(x.shape, inverse.shape, strict=True)) if n != kept)
    cancelled = (x**2).mean(axes, keepdims=True) * inverse**2 if axes else x**2 * inverse**2
    return {
        name: np.broadcast_to(cancelled > SAFE_CANCELLATION, values[name].shape) for name in ("y", "invstd")
    }


MODES = ("layer_norm", "rms_norm", "ada_layer_norm")
ROWS = defined(globals(), "matmul", "matmul_backward", "scaled_matmul")
PRODUCT_SCALES: dict[str, Any] = {
    "matmul": _matmul_scale,
    "matmul_backward": _backward_scale,
    "scaled_matmul": _scaled_scale,
}
ROW_ROUNDED: dict[str, Any] = {}
for _mode in MODES:
    for _name, _value, _scale, _rounded in zip((_mode, f"{_mode}_backward"), *_of(_mode), strict=True):
        ROWS[_name], PRODUCT_SCALES[_name], ROW_ROUNDED[_name] = _value, _scale, _rounded
ROW_OPEN: dict[str, Any] = {"layer_norm": _open_rows, "ada_layer_norm": _open_rows}
