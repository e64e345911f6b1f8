"""Nodes of the fake's graphs: pointwise modes, products of matrices, reductions, pooling, moved elements.

What a node computes is written here by loops and single formulas, apart from `cudnn_ct.reference`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from cudnn_ct._bindings.enums import BackendNormMode, PointwiseMode, ReduceTensorOp, ResampleMode

Tensors = tuple[dict[int, int], dict[int, np.ndarray]]


def elementwise(function: Callable[..., float]) -> Callable[..., np.ndarray]:
    """Return a function of arrays; elements that nothing uses may have any value."""
    return np.errstate(all="ignore")(np.vectorize(function, otypes=[np.float64]))


def gelu(x: float) -> float:
    return 0.5 * x * math.erfc(-x / math.sqrt(2))


def gelu_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def softplus(x: float, beta: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(beta * x))) / beta


def slope(function: Callable[[float], float]) -> Callable[[float], float]:
    """Return the derivative by central differences of fourth order."""
    h = 1e-3

    def derivative(x: float) -> float:
        near, far = function(x + h) - function(x - h), function(x + 2 * h) - function(x - 2 * h)
        return (8 * near - far) / (12 * h)

    return derivative


def sigmoid(x: float) -> float:
    return 0.5 * (1 + math.tanh(x / 2))


ONE: dict[str, Callable[[float], float]] = {
    "ABS": abs,
    "CEIL": math.ceil,
    "COS": math.cos,
    "EXP": math.exp,
    "FLOOR": math.floor,
    "LOG": lambda x: math.log(x) if x > 0 else -math.inf if x == 0 else math.nan,
    "NEG": lambda x: -x,
    "RSQRT": lambda x: x**-0.5 if x > 0 else math.inf if x == 0 else math.nan,
    "SIN": math.sin,
    "SQRT": lambda x: x**0.5 if x >= 0 else math.nan,
    "TAN": math.tan,
    "ERF": math.erf,
    "RECIPROCAL": lambda x: 1 / x if x else math.inf,
    "GELU_FWD": gelu,
    "GELU_APPROX_TANH_FWD": gelu_tanh,
    "LOGICAL_NOT": lambda x: x == 0,
}
TWO: dict[str, Callable[[float, float], float]] = {
    "ADD_SQUARE": lambda x, b: x + b**2,
    "DIV": lambda x, b: x / b if b else math.nan if not x else math.copysign(math.inf, x),
    "MAX": max,
    "MIN": min,
    "MOD": math.fmod,
    "MUL": lambda x, b: x * b,
    "POW": lambda x, b: x**b,
    "SUB": lambda x, b: x - b,
    "ATAN2": math.atan2,
    "FLOOR_MOD": lambda x, b: x % b,
    "CMP_EQ": lambda x, b: x == b,
    "CMP_NEQ": lambda x, b: x != b,
    "CMP_GT": lambda x, b: x > b,
    "CMP_GE": lambda x, b: x >= b,
    "CMP_LT": lambda x, b: x < b,
    "CMP_LE": lambda x, b: x <= b,
    "LOGICAL_AND": lambda x, b: bool(x) and bool(b),
    "LOGICAL_OR": lambda x, b: bool(x) or bool(b),
}
SLOPES: dict[str, Callable[[float], float]] = {
    "TANH_BWD": slope(math.tanh),
    "SIGMOID_BWD": slope(sigmoid),
    "GELU_BWD": slope(gelu),
    "GELU_APPROX_TANH_BWD": slope(gelu_tanh),
}
REDUCE: dict[str, Callable[[np.ndarray], float]] = {
    "ADD": math.fsum,
    "MUL": math.prod,
    # Extremes pass over NaN; of nothing else, they are what the search begins with.
    "MIN": lambda v: min((x for x in v if x == x), default=math.inf),
    "MAX": lambda v: max((x for x in v if x == x), default=-math.inf),
    "AMAX": lambda v: max((abs(x) for x in v if x == x), default=0.0),
    "AVG": lambda v: math.fsum(v) / len(v),
    "NORM1": lambda v: math.fsum(map(abs, v)),
    "NORM2": lambda v: math.sqrt(math.fsum(x * x for x in v)),
    "MUL_NO_ZEROS": lambda v: math.prod(x for x in v if x),
}


class MoreNodes:
    """A part of the fake's graphs, computed in float64."""

    def _other_node(self: Any, node: dict[str, list[Any]], *tensors: Any) -> bool:
        """Compute a node that is neither an activation, a normalisation nor a convolution, if it is one."""
        for prefix, compute in _NODES.items():
            if any(name.startswith(prefix) for name in node):
                found = {name.removeprefix(prefix): value for name, value in node.items()}
                with np.errstate(all="ignore"):
                    compute(self, found, *tensors)
                return True
        return False

    def _shape(self: Any, tensor: int) -> tuple[int, ...]:
        return tuple(self._attributes(tensor)["TENSOR_DIMENSIONS"])

    def _other_pointwise(
        self: Any, mode: str, function: dict[str, list[Any]], node: dict[str, list[Any]], *tensors: Any
    ) -> np.ndarray:
        """The result of a mode that the legacy calls lack."""

        def read(name: str) -> np.ndarray:
            found: np.ndarray = self._read(node[f"OPERATION_POINTWISE_{name}DESC"][0], *tensors)
            return found

        def number(name: str, default: float) -> float:
            return float(function.get(f"POINTWISE_{name}", [default])[0])

        x = read("X")
        if mode == "GEN_INDEX":
            index: np.ndarray = np.indices(x.shape)[function["POINTWISE_AXIS"][0]]
            return index.astype(np.float64)
        if mode == "BINARY_SELECT":
            return np.where(read("T") != 0, x, read("B"))
        if mode == "SOFTPLUS_FWD":
            beta = number("SOFTPLUS_BETA", 1)
            return elementwise(lambda v: softplus(v, beta))(x)
        if mode in ONE:
            return elementwise(ONE[mode])(x)
        if mode in TWO:
            return elementwise(TWO[mode])(x, read("B"))
        swish, plus = number("SWISH_BETA", 1), number("SOFTPLUS_BETA", 1)
        low, high = number("RELU_LOWER_CLIP", 0), number("RELU_UPPER_CLIP", math.inf)
        leak, alpha = number("RELU_LOWER_CLIP_SLOPE", 0), number("ELU_ALPHA", 1)
        if mode == "RELU_FWD":
            return elementwise(lambda v: min(v, high) if v > low else low + leak * (v - low))(x)
        slopes = SLOPES | {
            "RELU_BWD": lambda v: leak if v <= low else float(v < high),
            "ELU_BWD": lambda v: 1.0 if v > 0 else alpha * math.exp(v),
            "SOFTPLUS_BWD": lambda v: sigmoid(plus * v),
            "SWISH_BWD": slope(lambda v: v * sigmoid(swish * v)),
        }
        dx: np.ndarray = read("DY") * elementwise(slopes[mode])(x)
        return dx

    def _image_norm_node(self: Any, node: dict[str, list[Any]], *tensors: Any) -> bool:
        """Compute a batch or an instance normalisation; return whether the node is one."""
        forward = "OPERATION_NORM_FWD_MODE" in node
        prefix = "OPERATION_NORM_FWD_" if forward else "OPERATION_NORM_BWD_"
        found = {name.removeprefix(prefix): value[0] for name, value in node.items()}
        mode = BackendNormMode(found["MODE"]).name
        if mode not in ("BATCH_NORM", "INSTANCE_NORM"):
            return False
        axes = (0, 2, 3) if mode == "BATCH_NORM" else (2, 3)
        x, scale = (self._read(found[name], *tensors) for name in ("XDESC", "SCALE_DESC"))
        if forward:
            epsilon, bias = (self._read(found[f"{name}_DESC"], *tensors) for name in ("EPSILON", "BIAS"))
            mean = x.mean(axes, keepdims=True)
            inverse = (x.var(axes, keepdims=True) + epsilon) ** -0.5
            written = {"MEAN": mean, "INV_VARIANCE": inverse}
            self._write(found["YDESC"], (x - mean) * inverse * scale + bias, *tensors)
        else:
            dy = self._read(found["DYDESC"], *tensors)
            mean, inverse = (self._read(found[f"{name}_DESC"], *tensors) for name in ("MEAN", "INV_VARIANCE"))
            normal, g = (x - mean) * inverse, dy * scale
            sums = g.mean(axes, keepdims=True) + normal * (g * normal).mean(axes, keepdims=True)
            self._write(found["DXDESC"], inverse * (g - sums), *tensors)
            written = {"DSCALE": (dy * normal).sum((0, 2, 3)), "DBIAS": dy.sum((0, 2, 3))}
        for name, values in written.items():
            if f"{name}_DESC" in found:
                shape = self._shape(found[f"{name}_DESC"])
                self._write(found[f"{name}_DESC"], values.reshape(shape), *tensors)
        return True

    def _matmul_node(self: Any, node: dict[str, list[Any]], *tensors: Any) -> None:
        a, b = (self._read(node[name][0], *tensors) for name in ("ADESC", "BDESC"))
        self._write(node["CDESC"][0], np.einsum("...mk,...kn->...mn", a, b), *tensors)

    def _reduction_node(self: Any, node: dict[str, list[Any]], *tensors: Any) -> None:
        x, shape = self._read(node["XDESC"][0], *tensors), self._shape(node["YDESC"][0])
        operator = ReduceTensorOp(self._attributes(node["DESC"][0])["REDUCTION_OPERATOR"][0]).name
        result = np.empty(shape)
        for place in np.ndindex(shape):
            where = tuple(slice(None) if n == 1 else at for at, n in zip(place, shape, strict=True))
            result[place] = REDUCE[operator](x[where].ravel())
        self._write(node["YDESC"][0], result, *tensors)

    def _resample_node(self: Any, node: dict[str, list[Any]], *tensors: Any) -> None:
        x, shape = self._read(node["XDESC"][0], *tensors), self._shape(node["YDESC"][0])
        found = {k.removeprefix("RESAMPLE_"): v for k, v in self._attributes(node["DESC"][0]).items()}
        mode = ResampleMode(found["MODE"][0]).name
        result, indices = np.empty(shape), np.zeros(shape)
        for place in np.ndindex(shape):
            if mode == "BILINEAR":
                corners = [self._neighbours(o, n) for o, n in zip(place[2:], x.shape[2:], strict=True)]
                result[place] = math.fsum(x[(*place[:2], *at)] for at in product(*corners)) / 4
                continue
            values = []
            for number, tap in enumerate(product(*map(range, found["WINDOW_DIMS"]))):
                at = [
                    o * s + t - p
                    for o, s, t, p in zip(
                        place[2:], found["STRIDES"], tap, found["PRE_PADDINGS"], strict=True
                    )
                ]
                inside = all(0 <= i < n for i, n in zip(at, x.shape[2:], strict=True))
                values.append((x[(*place[:2], *at)] if inside else None, number))
            real = [(value, -number) for value, number in values if value is not None]
            if mode == "MAXPOOL":
                # The engines of the JIT wheel skip NaN, whatever they are asked for.
                result[place], negative = max([one for one in real if one[0] == one[0]] or real)
                indices[place] = -negative
            else:
                count = len(real) if mode == "AVGPOOL_EXCLUDE_PADDING" else len(values)
                result[place] = math.fsum(value for value, _ in real) / count
        self._write(node["YDESC"][0], result, *tensors)
        if "IDXDESC" in node:
            self._write(node["IDXDESC"][0], indices, *tensors)

    def _resample_gradient_node(self: Any, node: dict[str, list[Any]], *tensors: Any) -> None:
        dy, shape = self._read(node["DYDESC"][0], *tensors), self._shape(node["DXDESC"][0])
        found = {k.removeprefix("RESAMPLE_"): v for k, v in self._attributes(node["DESC"][0]).items()}
        mode = ResampleMode(found["MODE"][0]).name
        chosen = self._read(node["IDXDESC"][0], *tensors) if mode == "MAXPOOL" else None
        taps, result = [*product(*map(range, found["WINDOW_DIMS"]))], np.zeros(shape)
        for place in np.ndindex(dy.shape):
            geometry = [*zip(place[2:], found["STRIDES"], found["PRE_PADDINGS"], strict=True)]
            at = [tuple(o * s + t - p for (o, s, p), t in zip(geometry, tap, strict=True)) for tap in taps]
            inside = [all(0 <= i < n for i, n in zip(one, shape[2:], strict=True)) for one in at]
            if chosen is not None:
                result[(*place[:2], *at[int(chosen[place])])] += dy[place]
                continue
            count = sum(inside) if mode == "AVGPOOL_EXCLUDE_PADDING" else len(taps)
            for one, real in zip(at, inside, strict=True):
                if real:
                    result[(*place[:2], *one)] += dy[place] / count
        self._write(node["DXDESC"][0], result, *tensors)

    def _neighbours(self: Any, place: int, length: int) -> tuple[int, int]:
        """Return the elements whose mean is at a place of an axis with twice the length."""
        return place // 2, min((place + 1) // 2, length - 1)

    def _stats_node(self: Any, node: dict[str, list[Any]], *tensors: Any) -> None:
        x = self._read(node["XDESC"][0], *tensors)
        flat = np.moveaxis(x, 1, 0).reshape(x.shape[1], -1)
        for name, values in (("SUMDESC", flat), ("SQSUMDESC", flat * flat)):
            if name in node:
                sums = [math.fsum(row) for row in values]
                self._write(node[name][0], np.reshape(sums, (1, -1, *(1,) * (x.ndim - 2))), *tensors)

    def _finalize_node(self: Any, node: dict[str, list[Any]], *tensors: Any) -> None:
        def read(name: str) -> np.ndarray:
            found: np.ndarray = self._read(node[f"{name}_DESC"][0], *tensors)
            return found

        count, epsilon, weight = (
            float(read(name).reshape(())) for name in ("ACCUM_COUNT", "EPSILON", "EXP_AVERATE_FACTOR")
        )
        mean = read("Y_SUM") / count
        var = read("Y_SQ_SUM") / count - mean**2
        inverse = (var + epsilon) ** -0.5
        old_mean, old_var = read("PREV_RUNNING_MEAN"), read("PREV_RUNNING_VAR")
        written = {
            "EQ_SCALE": read("SCALE") * inverse,
            "EQ_BIAS": read("BIAS") - mean * read("SCALE") * inverse,
            "SAVED_MEAN": mean,
            "SAVED_INV_STD": inverse,
            "UPDATED_RUNNING_MEAN": old_mean + weight * (mean - old_mean),
            "UPDATED_RUNNING_VAR": old_var + weight * (var * count / (count - 1) - old_var),
        }
        for name, values in written.items():
            self._write(node[f"{name}_DESC"][0], values, *tensors)

    def _norm_weights_node(self: Any, node: dict[str, list[Any]], *tensors: Any) -> None:
        names = ("X", "DY", "MEAN", "INVSTD", "BN_SCALE")
        x, dy, mean, inverse, scale = (self._read(node[f"{name}_DESC"][0], *tensors) for name in names)
        axes = (0, *range(2, x.ndim))
        normal = (x - mean) * inverse
        products, sums = dy * normal, dy
        slope = scale * inverse  # dx = slope * (dy - sums / terms - normal * products / terms)
        of_mean, of_normal = (one.mean(axes, keepdims=True) for one in (sums, products))
        written = {
            "DBN_SCALE_DESC": products.sum(axes, keepdims=True),
            "DBN_BIAS_DESC": sums.sum(axes, keepdims=True),
            "EQ_DY_SCALE_DESC": slope,
            "EQ_X_SCALE_DESC": -slope * of_normal * inverse,
            "EQ_BIAS": slope * (of_normal * inverse * mean - of_mean),
        }
        for name, values in written.items():
            self._write(node[name][0], values, *tensors)

    def _reshape_node(self: Any, node: dict[str, list[Any]], *tensors: Any) -> None:
        x = self._read(node["XDESC"][0], *tensors)
        self._write(node["YDESC"][0], x.reshape(self._shape(node["YDESC"][0])), *tensors)

    def _transpose_node(self: Any, node: dict[str, list[Any]], *tensors: Any) -> None:
        x = self._read(node["XDESC"][0], *tensors)
        self._write(node["YDESC"][0], np.transpose(x, node["PERMUTATION"]), *tensors)

    def _slice_node(self: Any, node: dict[str, list[Any]], *tensors: Any) -> None:
        x, bounds = self._read(node["XDESC"][0], *tensors), ("START_INDICES", "LIMIT_INDICES", "STRIDES")
        where = tuple(slice(*one) for one in zip(*(node[name] for name in bounds), strict=True))
        self._write(node["YDESC"][0], x[where], *tensors)

    def _concat_node(self: Any, node: dict[str, list[Any]], *tensors: Any) -> None:
        parts = [self._read(one, *tensors) for one in node["INPUT_DESCS"]]
        self._write(node["OUTPUT_DESC"][0], np.concatenate(parts, node["AXIS"][0]), *tensors)


# The modes of pointwise nodes that `graphs` computes itself have other names.
OTHER_MODES = {*ONE, *TWO, *SLOPES, "GEN_INDEX", "BINARY_SELECT", "SOFTPLUS_FWD"} | {
    "RELU_BWD", "ELU_BWD", "SOFTPLUS_BWD", "SWISH_BWD",
}  # fmt: skip
assert {mode.name for mode in PointwiseMode} >= OTHER_MODES

_NODES: dict[str, Callable[..., None]] = {
    "OPERATION_MATMUL_": MoreNodes._matmul_node,
    "OPERATION_REDUCTION_": MoreNodes._reduction_node,
    "OPERATION_RESAMPLE_FWD_": MoreNodes._resample_node,
    "OPERATION_RESAMPLE_BWD_": MoreNodes._resample_gradient_node,
    "OPERATION_GENSTATS_": MoreNodes._stats_node,
    "OPERATION_BN_FINALIZE_": MoreNodes._finalize_node,
    "OPERATION_BN_BWD_WEIGHTS_": MoreNodes._norm_weights_node,
    "OPERATION_RESHAPE_": MoreNodes._reshape_node,
    "OPERATION_TRANSPOSE_": MoreNodes._transpose_node,
    "OPERATION_SLICE_": MoreNodes._slice_node,
    "OPERATION_CONCAT_": MoreNodes._concat_node,
}
