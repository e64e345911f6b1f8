"""The selftest's cases of convolutions fused with other operations, and of causal ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ..shapes.checks import FLOATS
from ..shapes.specs import LAYOUTS
from .selftest_rows import PRODUCTS, SUMS, Case, Draw, Inputs, each_layout

X, W = (2, 8, 9, 10), (8, 8, 3, 3)  # the shapes of convolutions
PLAIN: dict[str, Any] = {"padding": 1}


def fusion_cases() -> Iterator[Case]:
    """Yield convolutions with scale and bias, of float8, and the fusions of training."""
    yield from each_layout("conv_scale_bias_activation", "residual, relu", _scaled, PRODUCTS, FLOATS[:-1])
    yield from each_layout("scaled_conv", "bias, relu", _float8, FLOAT8, tuple(FLOAT8))
    for operation in TRAINING_FUSIONS:
        make = partial(_of_training, operation)
        yield from each_layout(operation, "", make, TRAINING, FLOATS[:1])


def causal_cases() -> Iterator[Case]:
    """Yield few causal convolutions: cuDNN compiles a kernel for each, in about five seconds."""
    nchw, nhwc = LAYOUTS[:1], LAYOUTS[1:]
    rows = (("", "bfloat16", nchw), ("", "float32", nhwc), ("_backward", "float32", nchw))
    for step, dtype, layout in rows:
        make = partial(_causal, gradient=bool(step))
        yield from each_layout(f"causal_conv1d{step}", "silu", make, SUMS, (dtype,), layout)
    for length, width, step in ((512, 128, ""), (512, 128, "_backward"), (2**15, 2**15, "_backward")):
        make = partial(_by_fft, length=length, width=width, gradient=bool(step))
        yield from each_layout(f"fft_causal_conv1d{step}", f"width {width}", make, SUMS, ("float32",), nchw)
    for step in ("", "_backward"):
        make = partial(_back_to_back, gradient=bool(step))
        yield from each_layout(f"b2b_causal_conv1d{step}", "", make, SUMS, ("float32",), nchw)


def _causal(draw: Draw, *, gradient: bool) -> Inputs:
    operands = draw.floats(2, 8, 40), draw.floats(8, 4), draw.floats(8)
    dy = (draw.floats(2, 8, 40),) * gradient
    return Inputs((*dy, *operands), {"activation": "silu"})


def _by_fft(draw: Draw, *, length: int, width: int, gradient: bool) -> Inputs:
    x, w = draw.floats(2, 3, length), draw.floats(3, width)
    return Inputs((*(draw.floats(2, 3, length),) * gradient, x, w), {})


def _back_to_back(draw: Draw, *, gradient: bool) -> Inputs:
    operands = draw.floats(2, 8, 3, 40), draw.floats(8, 3, 4), draw.floats(8, 7), draw.floats(8)
    if not gradient:
        return Inputs(operands, {})
    return Inputs((draw.floats(2, 8, 40), *operands, draw.floats(2, 8, 40)), {})


TRAINING_FUSIONS = (
    "conv_batch_norm_statistics",
    "batch_norm_finalize",
    "conv_backward_data_relu_batch_norm",
    "conv_backward_filter_scale_bias_relu",
)
FLOAT8 = {"float8_e4m3": 2e-2, "float8_e5m2": 2e-2}  # the result is bfloat16
TRAINING = {"float16": 4e-3}  # the sums have the elements of y before or after they are rounded


def _of_training(operation: str, draw: Draw) -> Inputs:
    """Draw operands of convolutions between batch normalisations; no value is 0 before a relu."""
    x, w, dy = draw.floats(*X), draw.floats(*W), draw.floats(X[0], W[0], *X[2:])
    scale, bias = (draw.parameter(X[1]) for _ in range(2))
    if operation == "batch_norm_finalize":
        mean, elements = draw.rng.standard_normal(X[1]).astype(np.float32), 100
        sums = (mean * elements, (scale + mean * mean) * elements)
        return Inputs((*sums, scale, bias, mean, scale, elements), {})
    if operation == "conv_batch_norm_statistics":
        return Inputs((x, w), PLAIN | {"scale": scale.astype(x.dtype), "bias": bias.astype(x.dtype)})
    if operation == "conv_backward_filter_scale_bias_relu":
        return Inputs((dy, x, scale.astype(x.dtype), bias.astype(x.dtype), W), PLAIN)
    whole = draw.rng.integers(-4, 5, X).astype(x.dtype)
    mean, one, zero = (np.full(X[1], number, np.float32) for number in (0.25, 1, 0))
    return Inputs((dy, w, whole, mean, one, scale, zero), PLAIN)


def _float8(draw: Draw) -> Inputs:
    """Draw images and filters of float8 with 16 channels, and some of the scales."""
    x, w = draw.floats(2, 16, 9, 10), draw.floats(32, 16, 3, 3)
    half, bias = np.full(1, 0.5, np.float32), draw.floats(32).astype(np.float32)
    return Inputs((x, w), PLAIN | {"descale_x": half, "bias": bias, "activation": "relu", "amax": True})


def _scaled(draw: Draw) -> Inputs:
    scale, bias = draw.parameter(W[0]), draw.floats(W[0])
    operands = draw.floats(*X), draw.floats(*W), scale, bias
    return Inputs(operands, PLAIN | {"residual": draw.floats(X[0], W[0], *X[2:])})
