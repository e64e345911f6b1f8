"""Answers by NumPy and plain loops, from the definitions in the docstrings and cuDNN's manual.

Each operation is written as its formula reads; `by_torch` has the same interface and shares none of this.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
from scipy import special

from tests.operations import each

from . import answer as read
from .answer import Arguments, Compute, Conv, Geometry, Operands, Values
from .attention import ATTENTION
from .causal_conv import CAUSAL
from .conv_fusions import fusions_by_loops
from .images import of_each_image, of_one_image
from .loops_over_time import ctc_loss, rnn
from .magnitude import answers
from .moments import moments
from .neighbours import NEIGHBOURS
from .rows import ROWS
from .sequences import SEQUENCES
from .tables import defined

# --- convolution: one term for each element of the window ---------------------------------------------------


def _places(geometry: Geometry, out: list[int]) -> list[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Each element of a window, and the elements of a padded image that it meets."""
    found = []
    for q in product(*map(range, geometry.window)):
        axes = zip(q, geometry.dilation, geometry.stride, out, strict=True)
        found.append((q, tuple(slice(i * d, i * d + s * (n - 1) + 1, s) for i, d, s, n in axes)))
    return found


def _padded(x: np.ndarray, geometry: Geometry, fill: float = 0.0) -> np.ndarray:
    return np.pad(x, [(0, 0), (0, 0), *geometry.padding], constant_values=fill)


def _cropped(padded: np.ndarray, shape: tuple[int, ...], geometry: Geometry) -> np.ndarray:
    inside = (slice(a, a + n) for n, (a, _) in zip(shape[2:], geometry.padding, strict=True))
    return padded[(..., *inside)].copy()


def _tap(q: tuple[int, ...], conv: Conv) -> tuple[Any, ...]:
    """The index of the element of w that meets place q of the window."""
    flipped = (k - 1 - i for i, k in zip(q, conv.geometry.window, strict=True))
    return (..., *(flipped if conv.flip else q))


def _group(array: np.ndarray, axis: int, group: int, groups: int) -> np.ndarray:
    """A view of the channels of one group."""
    size = array.shape[axis] // groups
    index = [slice(None)] * array.ndim
    index[axis] = slice(group * size, (group + 1) * size)
    return array[tuple(index)]


def _forward(x: np.ndarray, w: np.ndarray, arguments: Arguments) -> np.ndarray:
    conv = read.conv_parameters(w.shape[2:], arguments)
    out = conv.geometry.out(x.shape[2:])
    padded, y = _padded(x, conv.geometry), np.zeros((x.shape[0], w.shape[0], *out))
    for g in range(conv.groups):
        images, filters = _group(padded, 1, g, conv.groups), _group(w, 0, g, conv.groups)
        sums = _group(y, 1, g, conv.groups)
        for q, seen in _places(conv.geometry, out):
            sums += np.einsum("nc...,kc->nk...", images[(..., *seen)], filters[_tap(q, conv)])
    return y


def _by_input(w: np.ndarray, dy: np.ndarray, x_shape: tuple[int, ...], arguments: Arguments) -> np.ndarray:
    conv = read.conv_parameters(w.shape[2:], arguments)
    dx = _padded(np.zeros(x_shape), conv.geometry)
    for g in range(conv.groups):
        filters, incoming = _group(w, 0, g, conv.groups), _group(dy, 1, g, conv.groups)
        sums = _group(dx, 1, g, conv.groups)
        for q, seen in _places(conv.geometry, list(dy.shape[2:])):
            sums[(..., *seen)] += np.einsum("nk...,kc->nc...", incoming, filters[_tap(q, conv)])
    return _cropped(dx, x_shape, conv.geometry)


def _by_filter(x: np.ndarray, dy: np.ndarray, w_shape: tuple[int, ...], arguments: Arguments) -> np.ndarray:
    conv = read.conv_parameters(w_shape[2:], arguments)
    padded, dw = _padded(x, conv.geometry), np.zeros(w_shape)
    for g in range(conv.groups):
        images, incoming = _group(padded, 1, g, conv.groups), _group(dy, 1, g, conv.groups)
        sums = _group(dw, 0, g, conv.groups)
        for q, seen in _places(conv.geometry, list(dy.shape[2:])):
            sums[_tap(q, conv)] = np.einsum("nkp,ncp->kc", _flat(incoming), _flat(images[(..., *seen)]))
    return dw


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(*array.shape[:2], prod(array.shape[2:]))


def conv(operands: Operands, arguments: Arguments) -> Values:
    return {"y": _forward(operands["x"], operands["w"], arguments)}


def conv_backward_data(operands: Operands, arguments: Arguments) -> Values:
    x_shape = tuple(map(int, arguments["x_shape"]))
    return {"dx": _by_input(operands["w"], operands["dy"], x_shape, arguments)}


def conv_backward_filter(operands: Operands, arguments: Arguments) -> Values:
    w_shape = tuple(map(int, arguments["w_shape"]))
    return {"dw": _by_filter(operands["x"], operands["dy"], w_shape, arguments)}


def conv_backward_bias(operands: Operands, arguments: Arguments) -> Values:
    return {"db": _flat(operands["dy"]).sum((0, 2))}


def conv_transpose(operands: Operands, arguments: Arguments) -> Values:
    x, w = operands["x"], operands["w"]
    return {"y": _by_input(w, x, read.conv_transpose_output_shape(x.shape, w.shape, arguments), arguments)}


def conv_bias_activation(operands: Operands, arguments: Arguments) -> Values:
    y = arguments.get("alpha1", 1) * _forward(operands["x"], operands["w"], arguments)
    if operands.get("residual") is not None:
        y = y + arguments.get("alpha2", 1) * operands["residual"]
    if operands.get("bias") is not None:
        y = y + operands["bias"].reshape(1, -1, *[1] * (y.ndim - 2))
    return {"y": _act(y, *read.activation_of(arguments), True)}


# --- functions of single elements ---------------------------------------------------------------------------


def _act(x: np.ndarray, mode: str, coefficient: float, propagate: bool) -> np.ndarray:
    if mode in ("relu", "clipped_relu"):
        y = np.where(x > 0, x, 0.0)
        if mode == "clipped_relu":
            y = np.where(y > coefficient, coefficient, y)
        return np.where(np.isnan(x), np.nan if propagate else 0.0, y)
    if mode == "sigmoid":
        return special.expit(x)
    if mode == "tanh":
        return np.tanh(x)
    if mode == "elu":
        return np.where(x > 0, x, coefficient * np.expm1(np.minimum(x, 0)))
    if mode == "swish":
        return x * special.expit(coefficient * x)
    if mode == "gelu":
        return x * special.ndtr(x)
    return x.copy()


def activation(operands: Operands, arguments: Arguments) -> Values:
    return {"y": _act(operands["x"], *read.activation_of(arguments, "mode"), read.propagates(arguments))}


def activation_backward(operands: Operands, arguments: Arguments) -> Values:
    x, y, dy = operands["x"], operands["y"], operands["dy"]
    mode, coefficient = read.activation_of(arguments, "mode")
    if mode == "relu":
        return {"dx": np.where(x > 0, dy, 0.0)}
    if mode == "clipped_relu":
        return {"dx": np.where((x > 0) & (x <= coefficient), dy, 0.0)}  # docs/layer-calls.md
    if mode == "sigmoid":
        return {"dx": dy * y * (1 - y)}
    if mode == "tanh":
        return {"dx": dy * (1 - y**2)}
    if mode == "elu":  # docs/layer-calls.md: the slope at 0 is 1
        return {"dx": np.where(x >= 0, dy, dy * coefficient * np.exp(np.minimum(x, 0)))}
    if mode == "swish":
        s = special.expit(coefficient * x)
        return {"dx": dy * (s + coefficient * x * s * (1 - s))}
    return {"dx": dy.copy()}


def op_tensor(operands: Operands, arguments: Arguments) -> Values:
    op = read.named(arguments.get("op"), "add")
    a = arguments.get("alpha1", 1) * operands["a"]
    if op == "not":
        return {"y": 1 - a}
    if op == "sqrt":
        return {"y": np.sqrt(a)}
    b = np.broadcast_to(arguments.get("alpha2", 1) * operands["b"], a.shape)
    if op == "add":
        return {"y": a + b}
    if op == "mul":
        return {"y": a * b}
    if read.propagates(arguments):
        return {"y": np.minimum(a, b) if op == "min" else np.maximum(a, b)}
    return {"y": np.fmin(a, b) if op == "min" else np.fmax(a, b)}


def add(operands: Operands, arguments: Arguments) -> Values:
    return {"y": operands["a"] + operands["b"]}


def scale(operands: Operands, arguments: Arguments) -> Values:
    """The result of ct.scale, whose alpha is its own."""
    return {"y": operands["x"] * arguments["alpha"]}


def fill(operands: Operands, arguments: Arguments) -> Values:
    return {"y": np.full(np.shape(operands["x"]), float(arguments["value"]))}


def transform(operands: Operands, arguments: Arguments) -> Values:
    return {"y": np.array(operands["x"], np.float64)}


# --- reductions: one loop over the elements of the result ---------------------------------------------------


def reduce(operands: Operands, arguments: Arguments) -> Values:
    x, op = operands["x"], read.named(arguments.get("op"), "add")
    axes = read.axes_of(arguments.get("axis"), x.ndim)
    keep = tuple(axis for axis in range(x.ndim) if axis not in axes)
    shape = tuple(x.shape[axis] for axis in keep)
    rows = np.transpose(x, (*keep, *axes)).reshape(prod(shape), prod(x.shape[axis] for axis in axes))
    found = [_reduced(row, op, read.propagates(arguments)) for row in rows]
    if arguments.get("keepdims"):
        shape = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
    values = {"y": np.array([value for value, _ in found], np.float64).reshape(shape)}
    if arguments.get("indices"):
        values["indices"] = np.array([place for _, place in found], np.int64).reshape(shape)
    return values


def _reduced(row: np.ndarray, op: str, propagate: bool) -> tuple[float, int]:
    """The result for the elements of one row, and where in it the extreme is."""
    if op in ("min", "max", "amax"):
        row = np.abs(row) if op == "amax" else row
        bad = np.isnan(row)
        if bad.all() or (bad.any() and propagate):
            return np.nan, int(np.argmax(bad))
        kept = np.where(bad, np.inf if op == "min" else -np.inf, row)
        place = int(np.argmin(kept) if op == "min" else np.argmax(kept))
        return float(row[place]), place
    if op == "mul_no_zeros":
        return float(np.prod(row[row != 0])), 0
    if op == "average":
        return float(np.sum(row) / row.size), 0
    if op == "norm1":
        return float(np.abs(row).sum()), 0
    if op == "norm2":
        return float(np.sqrt((row**2).sum())), 0
    return float(np.prod(row) if op == "mul" else np.sum(row)), 0


# --- pooling ------------------------------------------------------------------------------------------------


def _counts(shape: tuple[int, ...], geometry: Geometry, mode: str) -> np.ndarray:
    """The divisor of the sum of each window."""
    out = geometry.out(shape[2:])
    if mode == "sum":
        return np.ones(out)
    if mode == "average_inc_pad":
        return np.full(out, float(prod(geometry.window)))
    inside = _padded(np.ones((1, 1, *shape[2:])), geometry)[0, 0]
    return sum(inside[seen] for _, seen in _places(geometry, out))  # type: ignore[return-value]


def pool(operands: Operands, arguments: Arguments) -> Values:
    x, mode = operands["x"], read.pool_mode(arguments)
    geometry = read.pool_geometry(x.shape, arguments)
    out = geometry.out(x.shape[2:])
    if mode != "max":
        padded, y = _padded(x, geometry), np.zeros((*x.shape[:2], *out))
        for _, seen in _places(geometry, out):
            y += padded[(..., *seen)]
        return {"y": y / _counts(x.shape, geometry, mode)}
    padded, y = _padded(x, geometry, -np.inf), np.full((*x.shape[:2], *out), -np.inf)
    larger = np.maximum if read.propagates(arguments) else np.fmax
    for _, seen in _places(geometry, out):
        y = larger(y, padded[(..., *seen)])
    return {"y": y}


def pool_backward(operands: Operands, arguments: Arguments) -> Values:
    """Give the gradient of a maximum to the first of equal elements in C order."""
    x, dy, mode = operands["x"], operands["dy"], read.pool_mode(arguments)
    geometry = read.pool_geometry(x.shape, arguments)
    out = geometry.out(x.shape[2:])
    dx = _padded(np.zeros(x.shape), geometry)
    if mode != "max":
        share = dy / _counts(x.shape, geometry, mode)
        for _, seen in _places(geometry, out):
            dx[(..., *seen)] += share
        return {"dx": _cropped(dx, x.shape, geometry)}
    padded, largest = _padded(x, geometry, -np.inf), pool(operands, arguments)["y"]
    waiting = np.ones(dy.shape, bool)
    for _, seen in _places(geometry, out):
        here = padded[(..., *seen)]
        takes = waiting & ((here == largest) | (np.isnan(here) & np.isnan(largest)))
        dx[(..., *seen)] += np.where(takes, dy, 0.0)
        waiting &= ~takes
    return {"dx": _cropped(dx, x.shape, geometry)}


# --- softmax ------------------------------------------------------------------------------------------------


def softmax(operands: Operands, arguments: Arguments) -> Values:
    x = operands["x"]
    axes = read.softmax_axes(x.ndim, arguments)
    if not x.size:
        return {"y": x.copy()}
    shifted = x - x.max(axes, keepdims=True)
    powers = np.exp(shifted)
    total = powers.sum(axes, keepdims=True)
    if read.named(arguments.get("algo"), "accurate") == "log":
        return {"y": shifted - np.log(total)}
    return {"y": powers / total}


def softmax_backward(operands: Operands, arguments: Arguments) -> Values:
    y, dy = operands["y"], operands["dy"]
    axes = read.softmax_axes(y.ndim, arguments)
    if read.named(arguments.get("algo"), "accurate") == "log":
        return {"dx": dy - np.exp(y) * dy.sum(axes, keepdims=True)}
    return {"dx": y * (dy - (dy * y).sum(axes, keepdims=True))}


# --- batch normalisation: one channel, or one place, after another ------------------------------------------


class _Channels:
    """The elements that share a mean: row i of a matrix has those of parameter i."""

    def __init__(self, x: np.ndarray, arguments: Arguments) -> None:
        self.shape, self.parameters = x.shape, read.norm_shape(x.shape, arguments)
        axes = read.norm_axes(x.ndim, arguments)
        self.order = (*(axis for axis in range(x.ndim) if axis not in axes), *axes)
        self.samples = prod(x.shape[axis] for axis in axes)

    def rows(self, array: np.ndarray) -> np.ndarray:
        return np.transpose(array, self.order).reshape(prod(self.parameters), self.samples)

    def column(self, parameter: Any) -> np.ndarray:
        return np.asarray(parameter, np.float64).reshape(-1, 1)

    def image(self, rows: np.ndarray) -> np.ndarray:
        moved = rows.reshape([self.shape[axis] for axis in self.order])
        return np.ascontiguousarray(np.transpose(moved, np.argsort(self.order)))


def batch_norm_training(operands: Operands, arguments: Arguments) -> Values:
    at = _Channels(operands["x"], arguments)
    rows, m = at.rows(operands["x"]), at.samples
    mean, var = moments(rows)
    invstd = 1 / np.sqrt(var + arguments.get("epsilon", 1e-5))
    y = at.column(operands["scale"]) * (rows - mean) * invstd + at.column(operands["bias"])
    if operands.get("residual") is not None:
        y = y + at.rows(operands["residual"])
    if arguments.get("activation") is not None:
        y = _act(y, "relu", 0, True)
    found = {
        "y": at.image(y),
        "mean": mean.reshape(at.parameters),
        "invstd": invstd.reshape(at.parameters),
    }
    if operands.get("running_mean") is not None:
        weight = arguments.get("momentum", 0.1) if m else 0.0
        for name, update in (("running_mean", mean), ("running_var", var * m / max(1, m - 1))):
            old = np.asarray(operands[name], np.float64)
            new = (update * weight).reshape(old.shape) if m else 0.0
            found[name] = old * (1 - weight) + new
    return found


def batch_norm_inference(operands: Operands, arguments: Arguments) -> Values:
    at = _Channels(operands["x"], arguments)
    scale, bias, mean, var = (at.column(operands[name]) for name in ("scale", "bias", "mean", "var"))
    std = np.sqrt(var + arguments.get("epsilon", 1e-5))
    return {"y": at.image(scale * (at.rows(operands["x"]) - mean) / std + bias)}


def batch_norm_backward(operands: Operands, arguments: Arguments) -> Values:
    at, x = _Channels(operands["x"], arguments), operands["x"]
    rows, dz, scale = at.rows(x), at.rows(operands["dy"]), at.column(operands["scale"])
    if operands.get("mean") is None:
        mean, var = moments(rows)
        invstd = 1 / np.sqrt(var + arguments.get("epsilon", 1e-5))
    else:
        mean, invstd = at.column(operands["mean"]), at.column(operands["invstd"])
    found = {}
    if arguments.get("activation") is not None:
        dz = np.where(at.rows(operands["y"]) > 0, dz, 0.0)
        found["dz"] = at.image(dz)
    normal, shape = (rows - mean) * invstd, np.shape(operands["scale"])
    dbias, dscale = dz.sum(1, keepdims=True), (dz * normal).sum(1, keepdims=True)
    m = np.float64(at.samples)
    found["dx"] = at.image(scale * invstd * (dz - dbias / m - normal * dscale / m))
    found["dscale"], found["dbias"] = dscale.reshape(shape), dbias.reshape(shape)
    return found


def batch_norm_inference_backward(operands: Operands, arguments: Arguments) -> Values:
    at, shape = _Channels(operands["x"], arguments), np.shape(operands["scale"])
    rows, dy = at.rows(operands["x"]), at.rows(operands["dy"])
    scale, mean, var = (at.column(operands[name]) for name in ("scale", "mean", "var"))
    std = np.sqrt(var + arguments.get("epsilon", 1e-5))
    return {
        "dx": at.image(scale * dy / std),
        "dscale": (dy * (rows - mean) / std).sum(1).reshape(shape),
        "dbias": dy.sum(1).reshape(shape),
    }


def _of_images(function: Compute) -> Compute:
    """An instance normalisation by the batch normalisation of one image."""

    def compute(operands: Operands, arguments: Arguments) -> Values:
        found = function(of_one_image(operands, np.concatenate), arguments)
        return of_each_image(found, operands["x"].shape, lambda values: values.sum(0))

    return compute


# --- local response normalisation ---------------------------------------------------------------------------


def _bases(x: np.ndarray, arguments: Arguments) -> np.ndarray:
    n, before, after = read.window_of_channels(arguments)
    a, _, k = read.lrn_factors(arguments)
    base, channels = np.full(x.shape, float(k)), x.shape[1]
    for c in range(channels):
        for i in range(max(0, c - before), min(channels, c + after + 1)):
            base[:, c] += a / n * x[:, i] ** 2
    return base


def lrn(operands: Operands, arguments: Arguments) -> Values:
    _, beta, _ = read.lrn_factors(arguments)
    return {"y": operands["x"] * _bases(operands["x"], arguments) ** -beta}


def lrn_backward(operands: Operands, arguments: Arguments) -> Values:
    x, y, dy = operands["x"], operands["y"], operands["dy"]
    n, before, after = read.window_of_channels(arguments)
    a, beta, _ = read.lrn_factors(arguments)
    base = _bases(x, arguments)
    dx = dy * base**-beta
    for c in range(x.shape[1]):  # y[c] depends on x[i]
        for i in range(max(0, c - before), min(x.shape[1], c + after + 1)):
            dx[:, i] -= 2 * a * beta / n * x[:, i] * dy[:, c] * y[:, c] / base[:, c]
    return {"dx": dx}


# --- spatial transformers: pixel by pixel -------------------------------------------------------------------


def _coordinates(pixels: int) -> np.ndarray:
    """Coordinates from -1 at the first pixel to 1 at the last; -1 for a single one."""
    return np.array([-1 + 2 * i / (pixels - 1) if pixels > 1 else -1.0 for i in range(pixels)])


def affine_grid(operands: Operands, arguments: Arguments) -> Values:
    theta, (height, width) = operands["theta"], [int(n) for n in arguments["shape"]][-2:]
    grid = np.zeros((theta.shape[0], height, width, 2))
    for i, y in enumerate(_coordinates(height)):
        for j, x in enumerate(_coordinates(width)):
            grid[:, i, j] = theta[:, :, 0] * x + theta[:, :, 1] * y + theta[:, :, 2]
    return {"y": grid}


def affine_grid_backward(operands: Operands, arguments: Arguments) -> Values:
    dgrid = operands["dgrid"]
    _, height, width, _ = dgrid.shape
    dtheta = np.zeros((dgrid.shape[0], 2, 3))
    for i, y in enumerate(_coordinates(height)):
        for j, x in enumerate(_coordinates(width)):
            for part, factor in enumerate((x, y, 1.0)):
                dtheta[:, :, part] += dgrid[:, i, j] * factor
    return {"dtheta": dtheta}


def _corners(place: np.ndarray, sizes: tuple[int, int]) -> list[tuple[int, int, float, float, float]]:
    """The pixels (row, column) around a place (x, y), their weights, and the slopes of those by x and y."""
    height, width = sizes
    if not np.isfinite(place).all():
        return []
    column, row = (place[0] + 1) / 2 * (width - 1), (place[1] + 1) / 2 * (height - 1)
    left, top = int(np.floor(column)), int(np.floor(row))
    found = []
    for i, wy, sy in ((top, top + 1 - row, -1.0), (top + 1, row - top, 1.0)):
        for j, wx, sx in ((left, left + 1 - column, -1.0), (left + 1, column - left, 1.0)):
            if 0 <= i < height and 0 <= j < width:
                found.append((i, j, wy * wx, sx * wy * (width - 1) / 2, sy * wx * (height - 1) / 2))
    return found


def grid_sample(operands: Operands, arguments: Arguments) -> Values:
    x, grid = operands["x"], operands["grid"]
    y = np.zeros((*x.shape[:2], *grid.shape[1:3]))
    for n, p, q in np.ndindex(*grid.shape[:3]):
        for i, j, weight, _, _ in _corners(grid[n, p, q], x.shape[2:]):
            y[n, :, p, q] += weight * x[n, :, i, j]
    return {"y": y}


def grid_sample_backward(operands: Operands, arguments: Arguments) -> Values:
    x, grid, dy = operands["x"], operands["grid"], operands["dy"]
    dx, dgrid = np.zeros(x.shape), np.zeros(grid.shape)
    for n, p, q in np.ndindex(*grid.shape[:3]):
        for i, j, weight, by_x, by_y in _corners(grid[n, p, q], x.shape[2:]):
            dx[n, :, i, j] += weight * dy[n, :, p, q]
            passed = (x[n, :, i, j] * dy[n, :, p, q]).sum()
            dgrid[n, p, q] += (by_x * passed, by_y * passed)
    return {"dx": dx, "dgrid": dgrid}


def _transformed(operands: Operands, arguments: Arguments) -> dict[str, Any]:
    shape = read.transformed_shape(operands["x"].shape, arguments)
    return {**operands, "grid": affine_grid(operands, {"shape": shape})["y"]}


def spatial_transformer(operands: Operands, arguments: Arguments) -> Values:
    return grid_sample(_transformed(operands, arguments), {})


def spatial_transformer_backward(operands: Operands, arguments: Arguments) -> Values:
    found = grid_sample_backward(_transformed(operands, arguments), {})
    return {"dx": found["dx"], **affine_grid_backward({"dgrid": found["dgrid"]}, {})}


# --- dropout, with its mask as an operand -------------------------------------------------------------------


def dropout(operands: Operands, arguments: Arguments) -> Values:
    mask, factor = read.kept(operands, arguments)
    return {"y": np.where(mask, operands["x"] * factor, 0.0)}


def dropout_backward(operands: Operands, arguments: Arguments) -> Values:
    mask, factor = read.kept(operands, arguments)
    return {"dx": np.where(mask, operands["dy"] * factor, 0.0)}


VALUES: dict[str, Compute] = {
    **defined(globals()),
    "instance_norm": _of_images(batch_norm_training),
    "instance_norm_backward": _of_images(batch_norm_backward),
    "ctc_loss": ctc_loss,
    "RNN": rnn,
    **CAUSAL,
    **SEQUENCES,
    **NEIGHBOURS,
    **ROWS,
    **ATTENTION,
    **each("by_loops"),
}
VALUES |= fusions_by_loops(VALUES)

ANSWERS = answers(VALUES)
