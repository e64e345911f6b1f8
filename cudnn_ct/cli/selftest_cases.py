"""The table of the selftest: small calls that NumPy computes too.

A row is a variant of an operation in a dtype and a layout; its inputs are drawn when it is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from .. import reference
from ..shapes.checks import FLOATS
from ..shapes.conv import conv_output_shape
from ..shapes.rnn import rnn_parameters, rnn_spec
from ..shapes.specs import LAYOUTS
from . import selftest_rows as rows
from .selftest_graphs import graph_cases
from .selftest_rows import (
    EXACT,
    PLAIN,
    PRODUCTS,
    ROUNDED,
    STRICT,
    SUMS,
    Case,
    Draw,
    Inputs,
    W,
    X,
    Y,
    each_layout,
    of_shapes,
)

# --- convolution -------------------------------------------------------------------------------------------

# For each variant: the shapes of x and w, and the geometry.
GEOMETRIES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "stride 2": (X, W, {"padding": 1, "stride": 2}),
    "dilation 2": (X, W, {"padding": 2, "dilation": 2}),
    "groups 2": ((2, 16, 9, 10), (16, 8, 3, 3), {"padding": 1, "groups": 2}),
    "flipped": (X, W, {"padding": 1, "mode": "convolution"}),
    "uneven padding": (X, W, {"padding": ((0, 1), (2, 1))}),
    "one axis": ((2, 8, 20), (8, 8, 3), {"padding": 1}),
    "three axes": ((2, 8, 5, 6, 7), (8, 8, 3, 3, 3), {"padding": 1}),
}


def _conv(
    operation: str, x: tuple[int, ...], w: tuple[int, ...], keywords: dict[str, Any], **device: Any
) -> Callable[[Draw], Inputs]:
    geometry = {name: value for name, value in keywords.items() if name != "activation"}
    y = conv_output_shape(x, w, **geometry)
    shapes = {"dy": y, "w": w, "x": y if operation == "conv_transpose" else x, "bias": w[:1]}
    shapes |= {"x_shape": x, "w_shape": w}
    return of_shapes(keywords, {name: shapes[name] for name in rows.required(operation)}, device)


def _convolutions() -> Iterator[Case]:
    directions = ("conv", "conv_backward_data", "conv_backward_filter")
    for operation in (*directions, "conv_transpose"):
        yield from each_layout(operation, "", _conv(operation, X, W, PLAIN), PRODUCTS)
    for operation in directions:
        for variant, row in GEOMETRIES.items():
            for dtype, layout in zip(("float32", "float16"), LAYOUTS, strict=True):
                yield Case(operation, variant, dtype, layout, PRODUCTS[dtype], _conv(operation, *row))
            if operation == "conv":
                yield Case(operation, variant, "int8", "nhwc", 0.0, _conv(operation, *row))
        strict = _conv(operation, X, W, PLAIN, precision="float32")
        yield from each_layout(operation, "IEEE float32", strict, STRICT, ("float32",))
        # The legacy calls too, which the heuristic choice uses only if no engine is supported.
        legacy = _conv(operation, X, W, PLAIN, algo="none", strict=True)
        yield from each_layout(operation, "algo none", legacy, PRODUCTS, ("float32",), LAYOUTS[:1])
    yield from each_layout("conv", "", _conv("conv", X, W, PLAIN), EXACT, ("int8",))
    yield from each_layout("conv", "to float32", _to_float32, EXACT, ("int8",))
    yield from each_layout("conv_backward_bias", "", of_shapes({}, {"dy": X}), PRODUCTS)
    for activation in ("relu", "identity"):
        fused = _conv("conv_bias_activation", X, W, PLAIN | {"activation": activation})
        yield from each_layout("conv_bias_activation", activation, fused, PRODUCTS)
    residual = of_shapes(PLAIN, {"x": X, "w": W, "bias": W[:1]}, residual=Y)
    yield from each_layout("conv_bias_activation", "residual, relu", residual, PRODUCTS)


def _to_float32(draw: Draw) -> Inputs:
    """Write int8 sums as float32 to memory that is filled with NaN."""
    out = np.full(Y, np.nan, np.float32)
    return Inputs((draw.floats(*X), draw.floats(*W)), PLAIN | {"out": out})


# --- layers ------------------------------------------------------------------------------------------------

IMAGE = (2, 8, 7, 9)
BATCH = (4, 8, 5, 6)


def _layers() -> Iterator[Case]:
    for mode in ("max", "max_deterministic", "average_inc_pad", "average_exc_pad", "sum"):
        geometry = {"window": 3, "stride": 2, "padding": 1, "mode": mode}
        yield from _pair("pool", mode, geometry, ROUNDED, lambda draw: draw.distinct(*IMAGE))
    for algo in ("accurate", "fast", "log"):
        yield from _pair("softmax", algo, {"algo": algo}, ROUNDED)
    yield from _pair("softmax", "instance", {"mode": "instance"}, ROUNDED)
    for mode in ("relu", "clipped_relu", "sigmoid", "tanh", "elu", "swish", "identity"):
        yield from _pair("activation", mode, {"mode": mode, "coefficient": 0.9}, ROUNDED)
    yield from _pair("lrn", "", {}, ROUNDED)
    yield from each_layout(
        "dropout", "and gradient", lambda draw: Inputs((draw.nonzero(*IMAGE),), {}), ROUNDED
    )
    yield from each_layout("ctc_loss", "", _ctc, SUMS, ("float32", "float16", "bfloat16"))
    for mode in ("spatial", "per_activation"):
        yield from each_layout("batch_norm_training", mode, _training({"mode": mode}), SUMS)
        for step in ("inference", "backward", "inference_backward"):
            name = f"batch_norm_{step}"
            yield from each_layout(name, mode, _by_name(name, {"mode": mode}, _batch), SUMS)
    yield from each_layout("batch_norm_training", "relu", _training({"activation": "relu"}), SUMS)
    yield from each_layout("affine_grid", "", _theta, ROUNDED, layouts=LAYOUTS[:1])
    dgrid = of_shapes({}, {"dgrid": (2, 4, 5, 2)})
    yield from each_layout("affine_grid_backward", "", dgrid, SUMS, layouts=LAYOUTS[:1])
    yield from each_layout("grid_sample", "", partial(_sample, gradient=False), ROUNDED)
    yield from each_layout("grid_sample_backward", "", partial(_sample, gradient=True), SUMS)
    yield from each_layout("spatial_transformer", "", partial(_transformer, gradient=False), SUMS, _WIDE)
    yield from each_layout(
        "spatial_transformer_backward", "", partial(_transformer, gradient=True), SUMS, _WIDE
    )


def _ctc(draw: Draw) -> Inputs:
    """Draw sequences of different lengths, one with equal adjacent labels."""
    labels, counts, steps = [1, 2, 2, 4, 3, 1, 4], [3, 1, 3], [9, 6, 7]
    return Inputs((draw.floats(9, 3, 5), labels, counts, steps), {})


_WIDE = ("float32", "float64")  # precise enough to put a grid between the same pixels


def _pair(
    operation: str,
    variant: str,
    keywords: dict[str, Any],
    tolerance: dict[str, float],
    x: Callable[[Draw], Any] = lambda draw: draw.floats(*IMAGE),
) -> Iterator[Case]:
    for name in (operation, f"{operation}_backward"):
        yield from each_layout(name, variant, _by_name(name, keywords, x), tolerance)


def _batch(draw: Draw) -> Any:
    return draw.floats(*BATCH)


def _training(keywords: dict[str, Any]) -> Callable[[Draw], Inputs]:
    """Draw a step of training that updates running statistics."""

    def make(draw: Draw) -> Inputs:
        operands, given = _by_name("batch_norm_training", keywords, _batch)(draw)[:2]
        running = {name: draw.parameter(*operands[1].shape) for name in ("running_mean", "running_var")}
        return Inputs(operands, given | running)

    return make


def _theta(draw: Draw) -> Inputs:
    theta = draw.rng.integers(-4, 5, (2, 2, 3)).astype(draw.dtype)
    return Inputs((theta, (2, 3, 7, 9)), {})


def _sample(draw: Draw, gradient: bool) -> Inputs:
    """Draw positions between pixels and outside the image, exact in all dtypes: gradients jump at pixels."""
    places = draw.rng.integers(-2, 9, (2, 4, 5, 2)) + draw.rng.choice((0.25, 0.5, 0.75), (2, 4, 5, 2))
    grid = (places / 4 - 1).astype(draw.dtype)
    x = draw.nonzero(2, 8, 9, 9)
    return Inputs((draw.nonzero(2, 8, 4, 5), x, grid) if gradient else (x, grid), {})


def _transformer(draw: Draw, gradient: bool) -> Inputs:
    theta = np.array([[[0.7, 0.11, 0.03], [-0.13, 0.81, 0.07]]] * 2).astype(draw.dtype)
    x = draw.floats(*IMAGE)
    return Inputs((draw.floats(*IMAGE), x, theta) if gradient else (x, theta), {})


# --- operations on tensors ---------------------------------------------------------------------------------


def _tensors() -> Iterator[Case]:
    yield from each_layout("add", "", _of_images(2), ROUNDED)
    for op in ("add", "mul", "min", "max"):
        yield from each_layout("op_tensor", op, _of_images(2, op=op), ROUNDED)
    yield from each_layout("scale", "", _of_images(1, alpha=0.5), ROUNDED)
    yield from each_layout("fill", "", lambda draw: Inputs((draw.floats(*IMAGE), 2), {}), ROUNDED)
    for layout in LAYOUTS:
        yield from each_layout("transform", f"to {layout}", _of_images(1, layout=layout), ROUNDED)
    for op in ("add", "max", "average"):
        yield from each_layout("reduce", op, _of_images(1, op=op, axis=(2, 3)), SUMS)
    indexed = {"op": "max", "axis": (2, 3)}
    make = _by_name("reduce_with_indices", indexed, lambda draw: draw.distinct(*IMAGE))
    yield from each_layout("reduce_with_indices", "max", make, ROUNDED)


def _of_images(count: int, **keywords: Any) -> Callable[[Draw], Inputs]:
    return of_shapes(keywords, dict.fromkeys("ab"[:count], IMAGE))


# --- recurrent networks ------------------------------------------------------------------------------------

# Rounding errors accumulate over the time steps.
STEPS = {"float16": 2e-2, "bfloat16": 1.6e-1, "float32": 1e-4, "float64": 1e-10}


def _recurrent() -> Iterator[Case]:
    """Yield RNNs, forward and backward, in strict float32; relu is not stable in half precision."""
    for mode in ("rnn_relu", "rnn_tanh", "lstm", "gru"):
        for direction in ("unidirectional", "bidirectional"):
            for dtype in ("float32", "float64") if mode == "rnn_relu" else FLOATS:
                make = partial(_network, mode, direction)
                yield Case("RNN", f"{mode}, {direction}", dtype, "nchw", STEPS[dtype], make)


def _network(mode: str, direction: str, draw: Draw) -> Inputs:
    """Draw three sequences of up to four time steps, states, and gradients of all results."""
    spec = rnn_spec(mode, 8, 16, 2, direction=direction, dtype=draw.dtype, precision="as_input_f32")
    count = 2 * spec.directions
    weights = [(0.3 * draw.floats(*row.shape)).astype(draw.dtype) for row in rnn_parameters(spec)]
    states = [draw.floats(count, 3, 16) for _ in range(2)]
    return Inputs((spec, draw.floats(4, 3, 8), weights, *states, draw.floats(4, 3, 16 * spec.directions)), {})


# --- operands by the names of parameters -------------------------------------------------------------------

# Parameters of a normalisation: one for each channel, or each element of an image. x, y, a and b are images.
PARAMETERS = ("scale", "bias", "mean", "var", "invstd")


def _by_name(
    operation: str, keywords: dict[str, Any], x: Callable[[Draw], Any] = lambda draw: draw.floats(*IMAGE)
) -> Callable[[Draw], Inputs]:
    """Draw the operands that an operation requires: x as given, y as its result, dy of the shape of y."""
    return lambda draw: Inputs(tuple(_operands(operation, keywords, draw, x(draw)).values()), keywords)


def _operands(operation: str, keywords: dict[str, Any], draw: Draw, x: Any) -> dict[str, Any]:
    per_channel = keywords.get("mode") != "per_activation"
    kept = (x.shape[1],) if per_channel else (1, *x.shape[1:])
    names = [name for name in rows.required(operation) if name not in keywords]
    found = {"x": x, "a": x, "b": np.flip(x).copy()}
    found |= {name: draw.parameter(*kept) for name in names if name in PARAMETERS}
    if "dy" in names:
        y, forward = x, operation.removesuffix("_backward")
        if forward != operation and hasattr(reference, forward):
            operands = _operands(forward, keywords, draw, x).values()
            y = getattr(reference, forward)(*operands, **keywords)
        y = y[0] if isinstance(y, tuple) else y
        found |= {"y": y, "dy": draw.floats(*y.shape)}
    return {name: found[name] for name in names}


def _without_rows(named: set[str]) -> Iterator[Case]:
    """Yield rows for each operation that ``named`` lacks and whose operands have the names above."""
    for name in reference.__all__:
        known = set(rows.required(name)) <= {"x", "y", "dy", "a", "b", *PARAMETERS}
        if known and name not in named and not name.startswith(rows.ROW_NORMS):
            yield from each_layout(name, "", _by_name(name, {}), SUMS)


# --- the table ---------------------------------------------------------------------------------------------


def cases() -> list[Case]:
    """Return all rows."""
    parts = (
        *(_convolutions, rows.fusion_cases, rows.causal_cases, graph_cases, _layers),
        *(rows.attention_cases, rows.matrix_cases, _recurrent, _tensors),
    )
    found = [case for part in parts for case in part()]
    return [*found, *_without_rows({case.operation for case in found})]


OPERATIONS = tuple(dict.fromkeys(case.operation for case in cases()))
