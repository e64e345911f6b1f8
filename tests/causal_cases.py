"""Calls of causal convolutions and their gradients, as values that all tiers share."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from cudnn_ct._lib import load
from cudnn_ct.shapes.causal_conv import WIDTHS
from tests.layers import FLOATS, LayerCase, lying

CAUSAL = ("causal_conv1d", "causal_conv1d_backward")
FFT = ("fft_causal_conv1d", "fft_causal_conv1d_backward")
BACK_TO_BACK = ("b2b_causal_conv1d", "b2b_causal_conv1d_backward")

# Operations of libcudnn_ext, with a C function that each needs: they are newer than the others.
NEWER = {
    "causal_conv1d": "cudnnCausalConv1dForward",
    "fft_causal_conv1d": "cudnnFFTCausalConv1dForward",
    "b2b_causal_conv1d": "cudnnB2BCausalConv1dForward",
    "graph_aggregate": "cudnnGnnAggSimpleForward",
    "graph_attention": "cudnnGnnMhaGatV2Forward",
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


@st.composite
def back_to_back_cases(draw: st.DrawFn) -> LayerCase:
    """Two convolutions with gates, or their gradients."""
    operation, dtype = draw(st.sampled_from(BACK_TO_BACK)), draw(st.sampled_from(FLOATS))
    n, channels, length = draw(st.sampled_from((2, 1, 0))), draw(st.integers(1, 4)), draw(st.integers(0, 9))
    widths = draw(st.integers(2, 6)), draw(st.integers(2, 9))
    shapes = ((n, channels, 3, length), (channels, 3, widths[0]), (channels, widths[1]), (channels,))
    operands = tuple(lying(draw, shape, dtype, "floats") for shape in shapes)
    sequences = (n, channels, length)
    if operation == BACK_TO_BACK[0]:
        outs = {"out": lying(draw, sequences, dtype, "nan")} if draw(st.booleans()) else {}
        return LayerCase(operation, operands, {}, outs, terms={"y": 10.0, "mixed": 10.0})
    dy, mixed = (lying(draw, sequences, dtype, "floats") for _ in range(2))
    terms = dict.fromkeys(("dx", "dw_proj", "dw_mixer", "dskip_bias"), 30.0)
    return LayerCase(operation, (dy, *operands, mixed), {}, terms=terms)


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


def gated_operands(
    n: int, channels: int, length: int, widths: tuple[int, int], dtype: np.dtype, seed: int = 0
) -> dict[str, np.ndarray]:
    """Return the operands of two convolutions with gates, mixed sequences and dy, with normal elements."""
    rng = np.random.default_rng(seed)
    shapes = {
        "x": (n, channels, 3, length),
        "w_proj": (channels, 3, widths[0]),
        "w_mixer": (channels, widths[1]),
        "skip_bias": (channels,),
        "mixed": (n, channels, length),
        "dy": (n, channels, length),
    }
    drawn = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    for name, width in zip(("w_proj", "w_mixer"), widths, strict=True):
        drawn[name] /= np.sqrt(width)
    return {name: array.astype(dtype) for name, array in drawn.items()}
