"""Calls of causal convolutions and their gradients, as values that all tiers share."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from cudnn_ct._lib import load
from cudnn_ct.shapes.causal_conv import WIDTHS
from tests.layers import FLOATS, LayerCase, lying

CAUSAL = ("causal_conv1d", "causal_conv1d_backward")
FFT = ("fft_causal_conv1d", "fft_causal_conv1d_backward")

# Operations of libcudnn_ext, with a C function that each needs: they are newer than the others.
NEWER = {
    "causal_conv1d": "cudnnCausalConv1dForward",
    "fft_causal_conv1d": "cudnnFFTCausalConv1dForward",
}


@st.composite
def causal_cases(draw: st.DrawFn) -> LayerCase:
    """A convolution or its gradients; sequences may be shorter than the window, or have no elements."""
    operation, dtype = draw(st.sampled_from(CAUSAL)), draw(st.sampled_from(FLOATS))
    shape = (draw(st.sampled_from((2, 1, 3, 0))), draw(st.integers(1, 5)), draw(st.integers(0, 9)))
    width = draw(st.sampled_from(WIDTHS[:8]))
    weights = lying(draw, (shape[1], width), dtype, "floats")
    bias = draw(st.none() | st.just(lying(draw, shape[1:2], dtype, "floats")))
    operands = (lying(draw, shape, dtype, "floats"), weights, bias)
    keywords = {"activation": draw(st.sampled_from((None, "silu")))}
    outs = {"out": lying(draw, shape, dtype, "nan")} if draw(st.booleans()) else {}
    if operation == CAUSAL[0]:
        return LayerCase(operation, operands, keywords, outs)
    operands = (lying(draw, shape, dtype, "floats"), *operands)
    return LayerCase(operation, operands, keywords, outs, terms={"dw": 10.0, "dbias": 10.0})


@st.composite
def fft_cases(draw: st.DrawFn) -> LayerCase:
    """A convolution by FFT or its gradients: a window that divides the length, or as long as the sequence."""
    operation, dtype = draw(st.sampled_from(FFT)), draw(st.sampled_from(FLOATS))
    width, times = draw(st.sampled_from(((128, 1), (128, 3), (256, 2), (8192, 1))))
    shape = (draw(st.sampled_from((2, 1, 0))), draw(st.integers(1, 3)), width * times)
    operands = (lying(draw, shape, dtype, "floats"), lying(draw, (shape[1], width), dtype, "floats"))
    outs = {"out": lying(draw, shape, dtype, "nan")} if draw(st.booleans()) else {}
    if operation == FFT[0]:
        return LayerCase(operation, operands, {}, outs)
    return LayerCase(operation, (lying(draw, shape, dtype, "floats"), *operands), {}, outs)


def unavailable(name: str) -> str:
    """Return why this cuDNN lacks an operation, in words that follow a name; empty if it has it."""
    function = NEWER.get(name.removesuffix("_backward"))
    return load().why_missing(function) if function else ""


def operands_of(
    n: int, channels: int, length: int, width: int, dtype: np.dtype, seed: int = 0
) -> dict[str, np.ndarray]:
    """Return x, w, bias and dy with normal elements."""
    rng = np.random.default_rng(seed)
    shapes = {"x": (n, channels, length), "w": (channels, width), "bias": (channels,)}
    drawn = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    drawn |= {"w": drawn["w"] / np.sqrt(width), "dy": rng.standard_normal(shapes["x"])}
    return {name: array.astype(dtype) for name, array in drawn.items()}


def fft_operands(
    n: int, channels: int, length: int, width: int, dtype: np.dtype, seed: int = 0
) -> dict[str, np.ndarray]:
    """Return x, w and dy of a convolution by FFT, with normal elements."""
    arrays = operands_of(n, channels, length, width, dtype, seed)
    return {name: arrays[name] for name in ("x", "w", "dy")}
