"""Convolutions fused with other operations by NumPy, and the sizes that errors are measured by.

They are composed of the convolutions in the table of values that they are added to.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .answer import Arguments, Compute, Operands, Table, Values, absolute, activation_of
from .rows import CURVES

__all__ = ["FUSION_OPEN", "FUSION_ROUNDED", "FUSION_SCALES", "fusions_by_loops"]

Array = np.ndarray

UNDECIDED = 2.0**-18  # error of a value before a relu, relative to its terms, up to which its sign is open
SECOND_ORDER = 1 / 8  # largest relative error of a result whose square is summed


def _wide(parameter: Any, image: Array) -> Array:
    """Give a parameter of each channel the axes of an image."""
    return np.reshape(parameter, (1, -1, *(1,) * (image.ndim - 2)))


def _over_pixels(image: Array) -> Array:
    """Add the elements of each channel."""
    return np.array([image[:, channel].sum() for channel in range(image.shape[1])])


# --- values ------------------------------------------------------------------------------------------------


def fusions_by_loops(table: Table) -> dict[str, Compute]:
    """Return the fused operations, of the convolutions and activations of a table."""

    def scaled(operands: Operands, arguments: Arguments) -> Values:
        y = table["conv"](operands, arguments)["y"]
        y = y * _wide(operands["scale"], y) + _wide(operands["bias"], y)
        if operands.get("residual") is not None:
            y = y + operands["residual"]
        mode, coefficient = activation_of(arguments)
        return table["activation"]({"x": y}, {"mode": mode, "coefficient": coefficient})

    def statistics(operands: Operands, arguments: Arguments) -> Values:
        y = table["conv"]({**operands, "x": _data(operands)}, arguments)["y"]
        return {"y": y, "sums": _over_pixels(y), "square_sums": _over_pixels(y * y)}

    def filter_gradient(operands: Operands, arguments: Arguments) -> Values:
        return table["conv_backward_filter"]({**operands, "x": _data(operands)}, arguments)

    def data_gradient(operands: Operands, arguments: Arguments) -> Values:
        x = operands["x"]
        dz = table["conv_backward_data"](operands, {**arguments, "x_shape": x.shape})["dx"]
        dz = np.where(_before_relu(operands) > 0, dz, 0.0)
        normal = (x - _wide(operands["mean"], x)) * _wide(operands["invstd"], x)
        return _channel_gradients(operands, dz, dz * normal, dz)

    def of_float8(operands: Operands, arguments: Arguments) -> Values:
        v = _factor(operands, "descale_x", "descale_w") * table["conv"](operands, arguments)["y"]
        if operands.get("bias") is not None:
            v = v + _wide(operands["bias"], v)
        curve = CURVES.get(arguments.get("activation") or "")
        v = v if curve is None else np.vectorize(curve, otypes=[float])(v)
        found = {"y": _factor(operands, "scale") * v}
        return found | ({"amax": np.array([np.abs(v).max()])} if arguments.get("amax") else {})

    return {
        "scaled_conv": of_float8,
        "conv_scale_bias_activation": scaled,
        "conv_batch_norm_statistics": statistics,
        "batch_norm_finalize": finalize,
        "conv_backward_data_relu_batch_norm": data_gradient,
        "conv_backward_filter_scale_bias_relu": filter_gradient,
    }


def _factor(operands: Operands, *names: str) -> float:
    """Return the product of the scales that are given."""
    return prod(float(np.ravel(operands[name])[0]) for name in names if operands.get(name) is not None)


def _data(operands: Operands) -> Array:
    """Return what a convolution reads: x, or relu(x * scale + bias)."""
    x = operands["x"]
    if operands.get("scale") is None:
        return x
    z = x * _wide(operands["scale"], x) + _wide(operands["bias"], x)
    return np.where(z > 0, z, 0.0)


def _before_relu(operands: Operands) -> Array:
    """Return the normalised, scaled and shifted x."""
    x, mean, invstd, scale, bias = (operands[name] for name in ("x", "mean", "invstd", "scale", "bias"))
    return (x - _wide(mean, x)) * _wide(invstd * scale, x) + _wide(bias, x)


def _channel_gradients(operands: Operands, dz: Array, by_scale: Array, by_bias: Array) -> Values:
    """Return dz, and per-channel results from what is summed for dscale and dbias."""
    mean, invstd, scale = (np.ravel(operands[name]) for name in ("mean", "invstd", "scale"))
    dscale, dbias, count = _over_pixels(by_scale), _over_pixels(by_bias), dz.size / dz.shape[1]
    # dx = scale * invstd * (dz - dbias / count - (x - mean) * invstd * dscale / count)
    slope = -scale * invstd * invstd * dscale / count
    return {
        "dz": dz,
        "dscale": dscale,
        "dbias": dbias,
        "eq_dz_scale": scale * invstd,
        "eq_x_scale": slope,
        "eq_bias": -scale * invstd * dbias / count - slope * mean,
    }


def finalize(operands: Operands, arguments: Arguments) -> Values:
    """Compute statistics from sums, one channel after another."""
    names = ("sums", "square_sums", "scale", "bias", "running_mean", "running_var")
    count, epsilon = int(arguments["count"]), arguments.get("epsilon", 1e-5)
    momentum = arguments.get("momentum", 0.1)
    rows = []
    for total, squares, scale, bias, old_mean, old_var in zip(*(operands[n] for n in names), strict=True):
        mean = total / count
        var = (squares - total * mean) / count
        inverse = (var + epsilon) ** -0.5
        unbiased = (squares - total * mean) / (count - 1)
        running = (old_mean + momentum * (mean - old_mean), old_var + momentum * (unbiased - old_var))
        rows.append((scale * inverse, bias - mean * scale * inverse, mean, inverse, *running))
    fields = ("eq_scale", "eq_bias", "mean", "invstd", "running_mean", "running_var")
    return {name: np.array(column) for name, column in zip(fields, zip(*rows, strict=True), strict=True)}


# --- sizes of errors ---------------------------------------------------------------------------------------


def size_of_activation(before: Array, arguments: Arguments) -> Array:
    """Return the magnitude of an activation's own approximations; 0 for those without any."""
    mode, coefficient = activation_of(arguments)
    sizes = {
        "sigmoid": np.ones_like(before),
        "tanh": np.ones_like(before),
        "elu": abs(coefficient) + np.abs(before),
        "gelu": np.abs(before),
        "swish": np.abs(before),
    }
    return sizes.get(mode, np.zeros_like(before))


def _scaled_scale(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    plain = {**arguments, "activation": "identity"}
    before = table["conv_scale_bias_activation"](operands, plain)["y"]
    terms = table["conv_scale_bias_activation"](absolute(operands), plain)["y"]
    steep = max(1.2, abs(arguments.get("coefficient", 0)) if arguments.get("activation") == "elu" else 0)
    # An engine that is compiled at run time approximates tanh: in float32 it was off by 5e-6 on an H200.
    coarse = 8 if arguments.get("activation") == "tanh" else 1
    return {"y": coarse * size_of_activation(before, arguments) + steep * terms}


def _float8_scale(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    plain = {**arguments, "activation": None, "amax": False}
    given = {**operands, "scale": None}
    before, terms = (table["scaled_conv"](one, plain)["y"] for one in (given, absolute(given)))
    own = {"sigmoid": 1.0, "tanh": 1.0}.get(arguments.get("activation") or "")
    v = 1.2 * terms + (np.abs(before) if own is None else own)
    sizes = {"y": abs(_factor(operands, "scale")) * v, "amax": np.array([v.max()])}
    return {name: sizes[name] for name in values}


def _scaled_rounded(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """Nothing is rounded to half precision but the result; approximate activations have some 11 bits."""
    plain = {**arguments, "activation": "identity"}
    return {"y": size_of_activation(table["conv_scale_bias_activation"](operands, plain)["y"], arguments)}


def _scaled_open(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    plain = {**arguments, "activation": "identity"}
    return {"y": ~np.isfinite(table["conv_scale_bias_activation"](operands, plain)["y"])}


def _size_of_data(operands: Operands) -> Array:
    """Return the absolute terms of what a convolution reads; 0 where the relu has no slope."""
    x = np.abs(operands["x"])
    if operands.get("scale") is None:
        return x
    return x * _wide(np.abs(operands["scale"]), x) + _wide(np.abs(operands["bias"]), x)


def _sums_of(y: Array, size: Array) -> Values:
    """Return the sizes of y and its sums for an error of y that is proportional to a size."""
    squares = size * (2 * np.abs(y) + SECOND_ORDER * size)
    return {"y": size, "sums": _over_pixels(size), "square_sums": _over_pixels(squares)}


def _statistics_scale(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    terms = {"x": _size_of_data(operands), "w": np.abs(operands["w"])}
    return _sums_of(values["y"], table["conv"](terms, arguments)["y"])


def _statistics_rounded(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """The activation is rounded before the convolution, and y before or after it is summed."""
    if operands.get("scale") is None:
        return _sums_of(values["y"], np.abs(values["y"]))
    terms = {"x": _size_of_data(operands), "w": np.abs(operands["w"])}
    return _sums_of(values["y"], table["conv"](terms, arguments)["y"] + np.abs(values["y"]))


def _filter_scale(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    terms = {"x": _size_of_data(operands), "dy": np.abs(operands["dy"])}
    return table["conv_backward_filter"](terms, arguments)


def _data_sizes(operands: Operands, size: Array) -> Values:
    """Return the sizes of all gradients for an error of dz that is proportional to a size."""
    known = absolute(operands)
    x, mean, invstd, scale = (known[name] for name in ("x", "mean", "invstd", "scale"))
    normal = (x + _wide(mean, x)) * _wide(invstd, x)
    found = _channel_gradients({**known, "scale": -scale}, size, size * normal, size)
    # The signs of the scale and of the mean are such that all terms are added.
    found["eq_bias"] = found["eq_bias"] + 2 * found["eq_x_scale"] * np.ravel(mean)
    return {name: np.abs(one) for name, one in found.items()}


def _data_scale(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    shape = {**arguments, "x_shape": operands["x"].shape}
    terms = table["conv_backward_data"](absolute(operands), shape)["dx"]
    return _data_sizes(operands, np.where(_before_relu(operands) > 0, terms, 0.0))


def _data_rounded(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """The gradient before the relu is rounded before or after it is summed."""
    return {
        **_data_sizes(operands, np.abs(values["dz"])),
        "eq_dz_scale": np.zeros_like(values["eq_dz_scale"]),
    }


def _data_open(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """Values so close to 0 before the relu that their sign depends on rounding, and the sums of those."""
    known = absolute(operands)
    x, mean, invstd, scale, bias = (known[name] for name in ("x", "mean", "invstd", "scale", "bias"))
    terms = (x + _wide(mean, x)) * _wide(invstd * scale, x) + _wide(bias, x)
    open_ = np.abs(_before_relu(operands)) <= UNDECIDED * terms
    channels = np.array([open_[:, channel].any() for channel in range(x.shape[1])])
    return {"dz": open_, **dict.fromkeys(("dscale", "dbias", "eq_x_scale", "eq_bias"), channels)}


def _finalize_scale(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    count, momentum = int(arguments["count"]), arguments.get("momentum", 0.1)
    mean, inverse = np.abs(values["mean"]), values["invstd"]
    scale, bias, old_mean, old_var = (
        np.abs(operands[name]) for name in ("scale", "bias", "running_mean", "running_var")
    )
    cancelled = np.abs(operands["square_sums"]) / count + mean**2  # terms of the variance
    invstd = inverse * (1 + cancelled * inverse**2)
    return {
        "eq_scale": scale * invstd,
        "eq_bias": bias + mean * scale * invstd,
        "mean": mean,
        "invstd": invstd,
        "running_mean": old_mean * (1 + momentum) + mean * momentum,
        "running_var": old_var * (1 + momentum) + count / (count - 1) * cancelled * momentum,
    }


FUSION_SCALES: dict[str, Any] = {
    "scaled_conv": _float8_scale,
    "conv_scale_bias_activation": _scaled_scale,
    "conv_batch_norm_statistics": _statistics_scale,
    "batch_norm_finalize": _finalize_scale,
    "conv_backward_data_relu_batch_norm": _data_scale,
    "conv_backward_filter_scale_bias_relu": _filter_scale,
}
FUSION_ROUNDED: dict[str, Any] = {
    "conv_scale_bias_activation": _scaled_rounded,
    "conv_batch_norm_statistics": _statistics_rounded,
    "conv_backward_data_relu_batch_norm": _data_rounded,
}
FUSION_OPEN: dict[str, Any] = {
    "conv_scale_bias_activation": _scaled_open,
    "conv_backward_data_relu_batch_norm": _data_open,
}
