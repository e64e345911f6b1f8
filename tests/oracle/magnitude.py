"""The sizes that errors are measured by, and the elements that the documentation leaves open.

A scale is the sum of the absolute values that were added, or the rounding of the operands times how much it
is amplified. `SCALES` has a function for each operation: it takes the table of the functions that compute
values (a sum of absolute terms is the same operation on absolute operands), operands, arguments and the
values found.
`OPEN` has masks of elements that are not to be compared, with the reason next to each.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from cudnn_ct import _lib
from tests.operations import each

from . import answer as read
from .answer import Answer, Arguments, Geometry, Operands, Scale, Solver, Table, Values
from .attention import ATTENTION_ROUNDED, ATTENTION_SCALES
from .causal_conv import CAUSAL_SCALES
from .conv_fusions import FUSION_OPEN, FUSION_ROUNDED, FUSION_SCALES, size_of_activation
from .images import of_each_image, of_one_image
from .moments import Statistics, batch_statistics, open_constants
from .neighbours import NEIGHBOUR_OPEN, NEIGHBOUR_SCALES
from .rows import PRODUCT_SCALES, ROW_OPEN, ROW_ROUNDED
from .sequences import SEQUENCE_SCALES
from .tables import private

EXACT = ("indices",)  # results that are positions

SAFE_EXPONENT = 80.0  # exp of this, and a sum of thousands of them, is finite in float32
SAFE_SQUARE = 1e18  # the square of this is finite in float32, and that of its inverse not 0


def answers(values: Table) -> dict[str, Solver]:
    """Complete functions that compute values to ones that return answers."""
    return {name: _solver(name, values) for name in values}


def _solver(name: str, values: Table) -> Solver:
    def solve(operands: Operands, arguments: Arguments) -> dict[str, Answer]:
        with np.errstate(all="ignore"):
            found = values[name](operands, arguments)
            scales = SCALES[name](values, operands, arguments, found)
            open_ = OPEN.get(name)
            masks = {} if open_ is None else open_(values, operands, arguments, found)
            rounded = ROUNDED[name](values, operands, arguments, found) if name in ROUNDED else {}
            return {
                key: _answer(key, value, scales[key], masks.get(key), rounded.get(key))
                for key, value in found.items()
            }

    return solve


def _answer(name: str, value: np.ndarray, scale: Any, mask: Any, rounded: Any) -> Answer:
    size = np.broadcast_to(np.asarray(scale, np.float64), value.shape)
    size = np.maximum(np.where(np.isfinite(size), size, 0.0), np.abs(value))
    size = np.zeros(value.shape) if name in EXACT else np.where(np.isfinite(value), size, 0.0)
    if mask is not None:
        mask = np.broadcast_to(np.asarray(mask, bool), value.shape)
    return Answer(value, size, name in EXACT, mask, rounded)


# --- convolutions: sums of products -----------------------------------------------------------------------


def _linear(name: str) -> Scale:
    """The scale of an operation that is linear in each of its operands."""

    def scale(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
        return table[name](read.absolute(operands), arguments)

    return scale


def _fused(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    plain = {**arguments, "activation": "identity"}
    before = table["conv_bias_activation"](operands, plain)["y"]
    for factor in ("alpha1", "alpha2"):
        plain[factor] = abs(arguments.get(factor, 1))
    sums = table["conv_bias_activation"](read.absolute(operands), plain)["y"]
    mode, coefficient = read.activation_of(arguments)
    # Fast approximations of tanh and exp have absolute errors; the slopes are at most 1.2.
    steep = max(1.0, abs(coefficient)) if mode == "elu" else 1.2
    return {"y": size_of_activation(before, arguments) + sums * steep}


def _not_finite(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """Padding and algorithms decide how often infinity meets 0, and whether the sum is infinite or NaN."""
    return {name: ~np.isfinite(value) for name, value in values.items()}


def _fused_not_finite(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    before = table["conv_bias_activation"](operands, {**arguments, "activation": "identity"})
    return _not_finite(table, operands, arguments, before)


# --- functions of single elements -------------------------------------------------------------------------


def _activation(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    x, y = operands["x"], np.abs(values["y"])
    mode, coefficient = read.activation_of(arguments, "mode")
    slope = coefficient * x if mode == "swish" else x
    if mode in ("sigmoid", "swish"):
        return {"y": y * (1 + np.abs(slope))}
    if mode == "tanh":  # an engine that is compiled at run time was off by 9e-6 on an H200
        by_graph = _lib.load().why_missing("cudnnActivationForward")
        return {"y": np.full_like(y, 8.0 if by_graph else 1.0)}
    if mode == "elu":  # coefficient * (exp(x) - 1), as its definition has it
        return {"y": np.where(x > 0, y, abs(coefficient))}
    return {"y": y}


def _activation_backward(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    x, dy = operands["x"], np.abs(operands["dy"])
    mode, coefficient = read.activation_of(arguments, "mode")
    if mode == "sigmoid":
        return {"dx": dy * np.abs(operands["y"])}
    if mode == "tanh":
        return {"dx": dy * (1 + operands["y"] ** 2)}
    if mode == "elu":  # of y, which was rounded, or of x
        return {"dx": dy * max(1.0, abs(coefficient))}
    if mode == "swish":
        return {"dx": dy * (1 + np.abs(coefficient * x))}
    return {"dx": np.abs(values["dx"])}


def _open_slopes(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """At NaN, nothing says which slope it is."""
    return {"dx": np.isnan(operands["x"])}


def _op_tensor(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    a, b = operands["a"], operands.get("b")
    first, op = np.abs(arguments.get("alpha1", 1) * a), read.named(arguments.get("op"), "add")
    if op == "not":
        return {"y": 1 + first}
    if op == "add" and b is not None:
        return {"y": first + np.abs(arguments.get("alpha2", 1) * b)}
    return {"y": np.abs(values["y"])}


def _itself(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    return {name: np.abs(value) for name, value in values.items()}


# --- pooling ----------------------------------------------------------------------------------------------


def _pool(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    if read.pool_mode(arguments) == "max":
        return _itself(table, operands, arguments, values)
    return table["pool"](read.absolute(operands), arguments)


def _pool_backward(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    return table["pool_backward"]({**operands, "dy": np.abs(operands["dy"])}, arguments)


def windows(x: np.ndarray, geometry: Geometry, fill: float) -> np.ndarray:
    """Return every window of a padded image, with the axes of the window last."""
    padded = np.pad(x, [(0, 0), (0, 0), *geometry.padding], constant_values=fill)
    axes = tuple(range(2, x.ndim))
    view = sliding_window_view(padded, geometry.window, axis=axes)
    return view[(slice(None), slice(None), *(slice(None, None, s) for s in geometry.stride))]


def _open_maxima(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """The maximum of only NaN or -inf; NaN under a window as large as the image (docs/layer-calls.md)."""
    x = operands["x"]
    if read.pool_mode(arguments) != "max" or not x.size:
        return {}
    geometry, axes = read.pool_geometry(x.shape, arguments), tuple(range(x.ndim, 2 * x.ndim - 2))
    seen = windows(x, geometry, -np.inf)
    mask = (np.isnan(seen) | (seen == -np.inf)).all(axes)
    if tuple(geometry.window) == x.shape[2:]:
        mask |= np.isnan(seen).any(axes)
    return {"y": mask}


def _open_ties(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """Equal maxima of a window, any of which may get the gradient, and windows with NaN or only -inf."""
    x = operands["x"]
    if read.pool_mode(arguments) != "max" or not x.size:
        return {}
    geometry, axes = read.pool_geometry(x.shape, arguments), tuple(range(x.ndim, 2 * x.ndim - 2))
    seen = windows(x, geometry, -np.inf)
    largest = seen.max(axes, keepdims=True)
    equal = seen == largest
    undecided = np.isnan(largest) | (largest == -np.inf)
    flagged = np.where(undecided, True, equal & (equal.sum(axes, keepdims=True) > 1))
    mask = np.pad(np.zeros(x.shape, bool), [(0, 0), (0, 0), *geometry.padding])
    out = geometry.out(x.shape[2:])
    for place in product(*map(range, geometry.window)):
        moves = zip(place, geometry.stride, out, strict=True)
        mask[(..., *(slice(o, o + s * (n - 1) + 1, s) for o, s, n in moves))] |= flagged[(..., *place)]
    inside = (slice(a, a + n) for n, (a, _) in zip(x.shape[2:], geometry.padding, strict=True))
    return {"dx": mask[(..., *inside)]}


# --- softmax ----------------------------------------------------------------------------------------------


def _softmax(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    x, y, axes = operands["x"], values["y"], read.softmax_axes(np.ndim(operands["x"]), arguments)
    if not x.size:
        return {"y": y}
    algo = read.named(arguments.get("algo"), "accurate")
    largest = x.max(axes, keepdims=True)
    shifted = np.abs(x) if algo == "fast" else np.abs(x - largest)
    if algo == "log":
        weight = np.exp(y)
        size = 1 + shifted + np.abs(largest) + np.abs(y)
    else:
        weight, size = y, y * (1 + shifted)
    shifted = np.where(weight == 0, 0, shifted)  # exp of -inf is exactly 0
    mean = (np.where(weight == 0, 0, weight) * shifted).sum(axes, keepdims=True)
    return {"y": size + (mean if algo == "log" else y * mean)}


def _softmax_backward(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    y, dy, axes = operands["y"], np.abs(operands["dy"]), read.softmax_axes(np.ndim(operands["y"]), arguments)
    if read.named(arguments.get("algo"), "accurate") == "log":
        return {"dx": dy + np.exp(y) * (1 + np.abs(y)) * dy.sum(axes, keepdims=True)}
    y = np.abs(y)
    return {"dx": y * (dy + (dy * y).sum(axes, keepdims=True))}


def _open_exponentials(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """Rows whose maximum is infinite; for "fast", exponentials that float32 does not hold."""
    x, axes = operands["x"], read.softmax_axes(np.ndim(operands["x"]), arguments)
    if not x.size:
        return {}
    largest = x.max(axes, keepdims=True)
    mask = np.isinf(largest)
    if read.named(arguments.get("algo"), "accurate") == "fast":
        mask |= np.abs(largest) > SAFE_EXPONENT
    return {"y": mask}


# --- batch normalisation ----------------------------------------------------------------------------------


def _norm_training(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    at = Statistics(operands, arguments, values["mean"], values["invstd"])
    y = at.scale * (at.parts + at.normal * at.spread) + at.bias
    if operands.get("residual") is not None:
        y = y + np.abs(operands["residual"])
    found = {
        "y": y,
        "mean": at.average(np.abs(at.x)),
        "invstd": at.invstd * at.spread,
    }
    if operands.get("running_mean") is not None:
        momentum, shape = arguments.get("momentum", 0.1), np.shape(operands["running_mean"])
        m = at.x.size // max(1, int(np.prod(at.shape)))
        square = at.spread / at.invstd**2
        square = square * (m / (m - 1) if m > 1 else 1)
        for name, update in (("running_mean", found["mean"]), ("running_var", square)):
            kept = np.abs(operands[name]) * (1 - momentum)
            found[name] = kept + (update * momentum).reshape(shape)
    return found


def _norm_inference(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    invstd = 1 / np.sqrt(operands["var"] + arguments.get("epsilon", 1e-5))
    at = Statistics(operands, arguments, operands["mean"], invstd)
    return {"y": at.scale * at.parts + at.bias}


def _norm_inference_backward(
    table: Table, operands: Operands, arguments: Arguments, values: Values
) -> Values:
    invstd = 1 / np.sqrt(operands["var"] + arguments.get("epsilon", 1e-5))
    at, dy = Statistics(operands, arguments, operands["mean"], invstd), np.abs(operands["dy"])
    shape = np.shape(operands["scale"])
    return {
        "dx": at.scale * dy * at.invstd,
        "dscale": at.total(dy * at.parts).reshape(shape),
        "dbias": at.total(dy).reshape(shape),
    }


def _of_gradient(operands: Operands, arguments: Arguments, values: Values) -> tuple[Statistics, np.ndarray]:
    """Return the statistics that a gradient is computed with, and the size of dz."""
    mean, invstd = operands.get("mean"), operands.get("invstd")
    if mean is None:
        mean, invstd = batch_statistics(operands["x"], arguments)
    return Statistics(operands, arguments, mean, invstd), np.abs(values.get("dz", operands["dy"]))


def _norm_backward(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    at, dz = _of_gradient(operands, arguments, values)
    normal, parts = at.normal, at.parts * (at.spread if operands.get("mean") is None else 1)
    shape = np.shape(operands["scale"])
    crossed = parts * at.average(dz * normal) + normal * at.average(dz * parts)
    found = {
        "dx": at.scale * at.invstd * (dz + at.average(dz) + crossed),
        "dscale": at.total(dz * parts).reshape(shape),
        "dbias": at.total(dz).reshape(shape),
    }
    if "dz" in values:
        found["dz"] = dz
    return found


def _norm_rounded(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """Only y is rounded to the dtype of x, and the sum with a residual before it."""
    at = Statistics(operands, arguments, values["mean"], values["invstd"])
    y = at.scale * at.normal + at.bias
    return {"y": y if operands.get("residual") is None else y + np.abs(operands["residual"])}


def _norm_backward_rounded(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    at, dz = _of_gradient(operands, arguments, values)
    inner = dz + at.average(dz) + at.normal * at.average(dz * at.normal)
    return {"dx": at.scale * at.invstd * inner}


def _of_images(scale: Scale, combine: Callable[[Any], Any]) -> Scale:
    """Scales, or open elements, of an instance normalisation, by the batch normalisation of one image."""

    def of_images(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
        found = scale(
            table,
            of_one_image(operands, np.concatenate),
            arguments,
            of_one_image(values, np.concatenate),
        )
        return of_each_image(found, np.shape(operands["x"]), combine)

    return of_images


# --- reductions -------------------------------------------------------------------------------------------


def _reduce(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """Sums of magnitudes. Equal factors are rounded alike, so the errors of a product add up."""
    found = _itself(table, operands, arguments, values)
    op = read.named(arguments.get("op"), "add")
    if op in ("add", "average"):
        found["y"] = table["reduce"](read.absolute(operands), arguments)["y"]
    elif op.startswith("mul"):
        found["y"] = found["y"] * np.sqrt(max(operands["x"].size, 1))
    return found


def _open_reductions(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """Extremes of nothing but infinity, positions of equal elements, squares that float32 lacks."""
    x, op = operands["x"], read.named(arguments.get("op"), "add")
    axes = read.axes_of(arguments.get("axis"), x.ndim)
    if not x.size or not axes:
        return {}
    if op == "norm2":
        largest = np.abs(x).max(axes)
        mask = (largest > SAFE_SQUARE) | ((largest < 1 / SAFE_SQUARE) & (largest > 0))
    elif op in ("min", "max", "amax"):
        some = np.isnan(x).any(axes)
        worst = {"min": np.inf, "max": -np.inf}.get(op, np.nan)
        mask = ((x == worst) | np.isnan(x)).all(axes) & ~np.isnan(x).all(axes)
        if read.propagates(arguments):
            mask = (x == worst).all(axes)
        if arguments.get("indices"):
            extreme = np.nanmin(np.where(np.isnan(x), np.inf, x), axes, keepdims=True)
            if op == "max":
                extreme = np.nanmax(np.where(np.isnan(x), -np.inf, x), axes, keepdims=True)
            tied = (x == extreme).sum(axes) > 1
            shape = values["y"].shape
            return {"y": mask.reshape(shape), "indices": (mask | tied | some).reshape(shape)}
    else:
        return {}
    return {"y": mask.reshape(values["y"].shape)}


# --- local response normalisation -------------------------------------------------------------------------


def _lrn_parts(x: np.ndarray, arguments: Arguments) -> tuple[np.ndarray, np.ndarray]:
    """Return ``base ** -lrn_beta``, and by how much rounding is amplified in it."""
    n, before, after = read.window_of_channels(arguments)
    a, beta, k = read.lrn_factors(arguments)
    squares = np.pad(x**2, [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)])
    sums = sliding_window_view(squares, n, axis=1).sum(-1)
    base = k + a / n * sums
    amplified = (k + abs(a) / n * sums) / np.abs(base) + np.abs(np.log(np.abs(base)))
    return base, 1 + beta * amplified


def _lrn(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    if not values["y"].size:
        return values
    return {"y": np.abs(values["y"]) * _lrn_parts(operands["x"], arguments)[1]}


def _lrn_backward(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    if not values["dx"].size:
        return values
    n, before, after = read.window_of_channels(arguments)
    a, beta, _ = read.lrn_factors(arguments)
    x, y, dy = (np.abs(operands[name]) for name in ("x", "y", "dy"))
    base, amplified = _lrn_parts(operands["x"], arguments)
    terms = np.pad(dy * y / np.abs(base) * amplified, [(0, 0), (after, before), *[(0, 0)] * (x.ndim - 2)])
    # A window that moves over the channels keeps the errors of the terms that have left it.
    sums = sliding_window_view(terms, n, axis=1).sum(-1).max(1, keepdims=True)
    return {"dx": dy * np.abs(base) ** -beta * amplified + 2 * abs(a) * beta / n * x * sums}


# --- sampling: the error of a place moves weight between pixels -------------------------------------------


class _Places:
    """The places of a grid in one axis of an image, in pixels, and the sizes of their errors.

    ``u`` in the arguments is the unit roundoff that the grid is computed with, by default that of float32.
    """

    def __init__(self, coordinates: np.ndarray, sizes: np.ndarray, pixels: int, arguments: Arguments) -> None:
        self.place = (coordinates + 1) / 2 * (pixels - 1)
        self.error = (sizes + np.abs(coordinates) + 1) * (pixels - 1) / 2 + np.abs(self.place)
        self.near = 8 * arguments.get("u", 2.0**-24) * self.error
        self.first = np.floor(np.clip(self.place, -8, pixels + 8)) - 1
        self.pixels = pixels

    def neighbours(self) -> Any:
        """Yield pixels that may take part, their weights, and the errors of those."""
        for step in range(4):
            pixel = self.first + step
            distance = np.abs(self.place - pixel)
            inside = (pixel >= 0) & (pixel < self.pixels)
            weight = np.where(inside, np.maximum(0, 1 - distance), 0)
            near = inside & np.isfinite(distance) & (distance <= 1 + self.near)
            error = np.where(near, self.error, 0)
            yield np.clip(np.nan_to_num(pixel), 0, self.pixels - 1).astype(int), weight, error

    @property
    def undecided(self) -> np.ndarray:
        """Whether a place may be on either side of a pixel's centre, where the slope changes."""
        in_reach = (self.place >= -1 - self.near) & (self.place <= self.pixels + self.near)
        at_centre = ~(np.abs(self.place - np.round(self.place)) > self.near)
        return np.isnan(self.place) | (np.isfinite(self.place) & in_reach & at_centre)


def _places(operands: Operands, arguments: Arguments, sizes: Any = None) -> tuple[_Places, _Places]:
    grid, (height, width) = operands["grid"], operands["x"].shape[2:]
    sizes = np.zeros_like(grid) if sizes is None else sizes
    rows = _Places(grid[..., 1], sizes[..., 1], height, arguments)
    return rows, _Places(grid[..., 0], sizes[..., 0], width, arguments)


def _sampled(x: np.ndarray, rows: _Places, columns: _Places) -> np.ndarray:
    batch, total = np.arange(x.shape[0])[:, None, None], 0.0
    for i, wy, ey in rows.neighbours():
        for j, wx, ex in columns.neighbours():
            weight = (wy * wx + wy * ex + ey * wx)[:, None]
            pixel = np.moveaxis(np.abs(x)[batch, :, i, j], -1, 1)
            total = total + np.where(weight > 0, weight * pixel, 0)
    return np.asarray(total)


def _grid_sample(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    if not values["y"].size:
        return {"y": values["y"]}
    return {"y": _sampled(operands["x"], *_places(operands, arguments))}


def _lost_places(operands: Operands) -> np.ndarray:
    """Return which places are NaN, or infinite in an axis of one pixel."""
    grid, sizes = operands["grid"], np.array(operands["x"].shape[:1:-1])
    return (np.isnan(grid) | (np.isinf(grid) & (sizes == 1))).any(-1)


def _open_pixels(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """Pixels that are not finite, with a weight that may be 0; places without a pixel."""
    size = _grid_sample(table, operands, arguments, values)["y"]
    lost = _lost_places(operands)[:, None]
    return {"y": ~np.isfinite(size) | ~np.isfinite(values["y"]) | lost}


def _scattered(x: np.ndarray, dy: np.ndarray, rows: _Places, columns: _Places) -> tuple[Any, Any]:
    """Return the sizes of both gradients of sampling."""
    batch, dx, slopes = np.arange(x.shape[0])[:, None, None], np.zeros(x.shape), [0.0, 0.0]
    size = np.abs(np.moveaxis(dy, 1, -1))
    for i, wy, ey in rows.neighbours():
        for j, wx, ex in columns.neighbours():
            weight = (wy * wx + wy * ex + ey * wx)[..., None]
            np.add.at(np.moveaxis(dx, 1, -1), (batch, i, j), weight * size)
            moved = (size * np.abs(x)[batch, :, i, j]).sum(-1)
            slopes[0] = slopes[0] + moved * (wy + ey) * (ex > 0)
            slopes[1] = slopes[1] + moved * (wx + ex) * (ey > 0)
    halves = ((columns.pixels - 1) / 2, (rows.pixels - 1) / 2)
    return dx, np.stack([slope * half for slope, half in zip(slopes, halves, strict=True)], -1)


def _grid_sample_backward(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    if not operands["dy"].size or not operands["x"].size:
        return _itself(table, operands, arguments, values)
    dx, dgrid = _scattered(operands["x"], operands["dy"], *_places(operands, arguments))
    return {"dx": dx, "dgrid": dgrid}


def _undecided(rows: _Places, columns: _Places) -> np.ndarray:
    return np.stack([columns.undecided, rows.undecided], -1)


def _open_corners(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """The slope at the centre of a pixel, which differs between its sides; places without a pixel."""
    lost = _lost_places(operands)[..., None]
    mask = _undecided(*_places(operands, arguments)) | ~np.isfinite(values["dgrid"]) | lost
    return {"dgrid": mask, "dx": ~np.isfinite(values["dx"]) | lost.any((1, 2), keepdims=True)}


def _affine_grid_backward(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    return {"dtheta": _theta_sizes(np.abs(operands["dgrid"]))}


def _theta_sizes(dgrid: np.ndarray) -> np.ndarray:
    """Coordinates are at most 1."""
    sums = dgrid.sum((1, 2))
    return np.repeat(sums[:, :, None], 3, 2)


def _affine_grid(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    size = np.abs(operands["theta"]).sum(-1)[:, None, None]
    return {"y": np.broadcast_to(size, values["y"].shape)}


def _transformer_places(table: Table, operands: Operands, arguments: Arguments) -> tuple[_Places, _Places]:
    x, theta = operands["x"], operands["theta"]
    shape = read.transformed_shape(x.shape, arguments)
    grid = table["affine_grid"]({"theta": theta}, {"shape": shape})["y"]
    sizes = np.broadcast_to(np.abs(theta).sum(-1)[:, None, None], grid.shape)
    return _places({"x": x, "grid": grid}, arguments, sizes)


def _spatial_transformer(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    if not values["y"].size:
        return {"y": values["y"]}
    return {"y": _sampled(operands["x"], *_transformer_places(table, operands, arguments))}


def _spatial_transformer_backward(
    table: Table, operands: Operands, arguments: Arguments, values: Values
) -> Values:
    if not operands["dy"].size or not operands["x"].size:
        return _itself(table, operands, arguments, values)
    places = _transformer_places(table, operands, arguments)
    dx, dgrid = _scattered(operands["x"], operands["dy"], *places)
    return {"dx": dx, "dtheta": _theta_sizes(dgrid)}


def _open_transforms(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """Transforms that put a place on the centre of a pixel, where the slope changes."""
    if not operands["dy"].size:
        return {}
    mask = _undecided(*_transformer_places(table, operands, arguments)).any((1, 2))
    return {"dtheta": np.repeat(mask[:, :, None], 3, 2)}


# --- sequences --------------------------------------------------------------------------------------------


def _ctc_loss(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """Logarithms of probabilities are added at each step, and rounded at each."""
    probabilities = operands["logits"]
    if read.named(arguments.get("normalization"), "softmax") == "softmax":
        shifted = probabilities - probabilities.max(-1, keepdims=True, initial=-np.inf)
        probabilities = np.exp(shifted) / np.exp(shifted).sum(-1, keepdims=True)
    sizes = {name: np.abs(value) for name, value in values.items()}
    for n, (labels, steps) in enumerate(read.ctc_targets(operands, arguments)):
        p = probabilities[:steps, n]
        logs = np.abs(np.log(p[:, sorted({0, *labels})]))
        largest = np.where(np.isfinite(logs), logs, 0).max(-1)
        largest = np.where(
            largest > 87, largest + 2e3, largest
        )  # exponentials are subnormal, with few digits
        total = (1 + largest).sum() * (1 + np.sqrt(steps))
        sizes["loss"][n] = total
        occupied = np.abs(p - values["gradient"][:steps, n])
        rounds_to_1 = p.max(-1, keepdims=True) > 1 - 1e-7  # the gradients of a step are differences from it
        sizes["gradient"][:steps, n] = (p + occupied) * (1 + total) + rounds_to_1
    return sizes


def _open_alignments(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """Sequences whose labels have the probability 0, or of which the logits are not finite."""
    masks = {name: np.zeros(value.shape, bool) for name, value in values.items()}
    for n, target in enumerate(read.ctc_targets(operands, arguments)):
        lost = np.isinf(values["loss"][n]) and not target.impossible
        if lost or not np.isfinite(operands["logits"][: target.steps, n]).all():
            masks["gradient"][: target.steps, n] = True
            masks["loss"][n] = not lost
    return masks


def _rnn(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """The change of a result under two random relative changes of all operands."""
    rng, sizes = np.random.default_rng(0), {}
    weights = read.rnn_weights(operands, arguments)

    def moved(array: Any) -> Any:
        return array * (1 + 1e-7 * rng.uniform(-1, 1, array.shape)) if _is_float(array) else array

    shifts = dict.fromkeys(values, 0.0)
    for _ in range(2):
        others = {name: moved(array) for name, array in operands.items() if name != "weights"}
        others["weights"] = {name: moved(array) for name, array in weights.items()}
        for name, other in table["RNN"](others, arguments).items():
            shifts[name] = max(shifts[name], _largest(other - values[name]))
    largest = {name: _largest(value) for name, value in values.items()}
    network = read.rnn_network(operands, arguments)
    if network.mode == "rnn_relu":  # results may be 0 although the sums have terms
        without_signs = {name: np.abs(one) if _is_float(one) else one for name, one in operands.items()}
        without_signs["weights"] = {name: np.abs(one) for name, one in weights.items()}
        for name, sums in table["RNN"](without_signs, arguments).items():
            largest[name] = max(largest[name], _largest(sums))
    else:  # 1 - y**2 of a saturated unit is small, and its error is that of 1
        incoming = sum(
            _largest(operands[name]) for name in ("dy", "dhy", "dcy") if _is_float(operands.get(name))
        )
        inputs = max(
            1.0, *(_largest(operands[name]) for name in ("x", "h0") if _is_float(operands.get(name)))
        )
        for name in largest:
            if name.startswith("d"):
                largest[name] = max(largest[name], incoming * inputs)
    for name, value in values.items():
        sizes[name] = np.full(value.shape, largest[name] + 4e7 * shifts[name])
    past = np.ones(values["y"].shape, bool)
    for steps in read.places_of_steps(network):
        for place in steps:
            past[place] = False
    sizes["y"][past] = 0
    return sizes


def _is_float(array: Any) -> bool:
    return getattr(getattr(array, "dtype", None), "kind", "") == "f"


def _largest(array: np.ndarray) -> float:
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


LINEAR = (
    *("conv", "conv_backward_data", "conv_backward_filter", "conv_backward_bias", "conv_transpose"),
    "add",
)
SCALES: dict[str, Scale] = {
    **{name: _linear(name) for name in LINEAR},
    **dict.fromkeys(("scale", "fill", "transform", "dropout", "dropout_backward"), _itself),
    **private(globals(), "activation", "activation_backward", "op_tensor", "reduce", "pool", "pool_backward"),
    **private(globals(), "softmax", "softmax_backward"),
    **private(globals(), "lrn", "lrn_backward", "affine_grid", "affine_grid_backward"),
    **private(globals(), "grid_sample", "grid_sample_backward", "ctc_loss"),
    **private(globals(), "spatial_transformer", "spatial_transformer_backward"),
    "conv_bias_activation": _fused,
    "batch_norm_training": _norm_training,
    "batch_norm_inference": _norm_inference,
    "batch_norm_backward": _norm_backward,
    "batch_norm_inference_backward": _norm_inference_backward,
    "instance_norm": _of_images(_norm_training, lambda scales: scales.sum(0)),
    "instance_norm_backward": _of_images(_norm_backward, lambda scales: scales.sum(0)),
    "RNN": _rnn,
    **PRODUCT_SCALES,
    **ATTENTION_SCALES,
    **FUSION_SCALES,
    **CAUSAL_SCALES,
    **SEQUENCE_SCALES,
    **NEIGHBOUR_SCALES,
    **each("scale"),
}

OPEN: dict[str, Scale] = {
    **dict.fromkeys(("conv", "conv_backward_data", "conv_backward_filter", "conv_transpose"), _not_finite),
    "conv_bias_activation": _fused_not_finite,
    "activation_backward": _open_slopes,
    "pool": _open_maxima,
    "pool_backward": _open_ties,
    "softmax": _open_exponentials,
    **dict.fromkeys(("batch_norm_training", "batch_norm_backward"), open_constants),
    **dict.fromkeys(
        ("instance_norm", "instance_norm_backward"), _of_images(open_constants, lambda masks: masks.any(0))
    ),
    "reduce": _open_reductions,
    "grid_sample": _open_pixels,
    "grid_sample_backward": _open_corners,
    "spatial_transformer_backward": _open_transforms,
    "ctc_loss": _open_alignments,
    **NEIGHBOUR_OPEN,
    **ROW_OPEN,
    **FUSION_OPEN,
    **each("open"),
}

# Magnitudes of what is rounded to the dtype of the result, if they are smaller than the scales.
ROUNDED: dict[str, Scale] = {
    "batch_norm_training": _norm_rounded,
    "batch_norm_backward": _norm_backward_rounded,
    "instance_norm": _of_images(_norm_rounded, lambda sizes: sizes.sum(0)),
    "instance_norm_backward": _of_images(_norm_backward_rounded, lambda sizes: sizes.sum(0)),
    **ROW_ROUNDED,
    **ATTENTION_ROUNDED,
    **FUSION_ROUNDED,
    **each("rounded"),
}
