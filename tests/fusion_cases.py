"""Convolutions fused with other operations, as values that all tiers share."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct.ops.conv.training_graphs import DATA_SOURCE, FILTER_SOURCE, STATISTICS_SOURCE
from cudnn_ct.shapes.arithmetic import FLOAT8
from cudnn_ct.shapes.conv import conv_problem
from cudnn_ct.shapes.specs import Shape, TensorSpec
from cudnn_ct.shapes.training_fusions import data_gradient, filter_gradient, statistics_problem
from cudnn_ct.typing import Layout
from tests.layers import LayerCase, Tensor, lying

FUSIONS = (
    "conv_batch_norm_statistics",
    "conv_backward_data_relu_batch_norm",
    "conv_backward_filter_scale_bias_relu",
    "batch_norm_finalize",
)
SUMS = dict.fromkeys(("sums", "square_sums", "dscale", "dbias", "eq_x_scale", "eq_bias", "running_var"), 1e3)


@st.composite
def training_fusion_cases(draw: st.DrawFn) -> LayerCase:
    """A call of :data:`FUSIONS`, with numbers of channels that cuDNN has engines for."""
    operation = draw(st.sampled_from(FUSIONS))
    channels, filters = draw(st.sampled_from((8, 16))), draw(st.sampled_from((8, 16)))
    if operation == "batch_norm_finalize":
        return _finalize(draw, channels)
    batch, axes = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    size, window = draw(st.integers(3, 5)), draw(st.integers(1, 2))
    geometry = {name: draw(st.integers(*ends)) for name, ends in GEOMETRY.items()}
    x, w = (batch, channels, *[size] * axes), (filters, channels, *[window] * axes)
    y = ct.conv_output_shape(x, w, **geometry)  # type: ignore[arg-type]
    data, dy = lying(draw, x, "float16"), lying(draw, y, "float16")
    filters_of = lying(draw, w, "float16")
    factors = [
        Tensor((channels,), "float16", _choice(draw, channels, options))
        for options in ((-2, -1, 1, 2), SHIFTS)
    ]
    if operation == "conv_backward_filter_scale_bias_relu":
        outs = {"out": lying(draw, w, "float16", "nan")} if draw(st.booleans()) else {}
        return LayerCase(operation, (dy, data, *factors), {"w_shape": w, **geometry}, outs)
    if operation == "conv_batch_norm_statistics":
        outs = {"out": lying(draw, y, "float16", "nan")} if draw(st.booleans()) else {}
        if draw(st.booleans()):
            outs |= dict(zip(("scale", "bias"), factors, strict=True))
        return LayerCase(operation, (data, filters_of), geometry, outs, terms=SUMS)
    if geometry["stride"] > 1:
        geometry["dilation"] = 1  # both are rejected
    y = ct.conv_output_shape(x, w, **geometry)  # type: ignore[arg-type]
    dy = lying(draw, y, "float16")
    # No value before the relu is near 0, where the slope jumps: x is an integer, and the mean is not.
    mean = Tensor((channels,), "float32", _choice(draw, channels, (-0.75, 0.25, 1.25)))
    invstd = Tensor((channels,), "float32", _choice(draw, channels, (0.5, 1.0)))
    wide = [one._replace(dtype="float32") for one in factors]
    outs = {"out": lying(draw, x, "float16", "nan")} if draw(st.booleans()) else {}
    return LayerCase(operation, (dy, filters_of, data, mean, invstd, *wide), geometry, outs, terms=SUMS)


@st.composite
def float8_conv_cases(draw: st.DrawFn) -> LayerCase:
    """A call of `scaled_conv` with operands of any layout and view, whose sums are small integers."""
    axes, groups = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    channels, filters = draw(st.sampled_from((16, 32))), groups * draw(st.sampled_from((16, 32)))
    size, window = draw(st.integers(2, 4)), draw(st.integers(1, 2))
    geometry: dict[str, Any] = {name: draw(st.integers(*ends)) for name, ends in GEOMETRY.items()}
    if draw(st.booleans()):
        geometry["padding"] = ((0, 1),) * axes
    geometry |= {"dilation": 1, "groups": groups}
    x, w = (draw(st.integers(0, 2)), groups * channels, *[size] * axes), (filters, channels, *[window] * axes)
    operands = tuple(lying(draw, shape, draw(st.sampled_from(FLOAT8))) for shape in (x, w))
    dtype = draw(st.sampled_from(("float32", "bfloat16", "float16")))
    keywords = {
        "activation": draw(st.sampled_from((None, "relu", "silu", "gelu_tanh"))),
        "amax": groups == 1 and draw(st.booleans()),
        "out_dtype": dtype,
        **geometry,
    }
    outs: dict[str, Tensor] = {}
    for name in ("descale_x", "descale_w", "scale"):
        if draw(st.booleans()):
            outs[name] = Tensor((1,), "float32", np.asarray([draw(st.sampled_from((0.5, 2.0)))]))
    if draw(st.booleans()):
        outs["bias"] = lying(draw, (filters,), draw(st.sampled_from((dtype, "float32"))))
    if draw(st.booleans()):
        outs["out"] = lying(draw, ct.conv_output_shape(x, w, **geometry), dtype, "nan")
    return LayerCase("scaled_conv", operands, keywords, outs, terms={"y": 100.0})


GEOMETRY = {"padding": (0, 1), "stride": (1, 2), "dilation": (1, 2)}
SCALES = (-2, -1, 1, 2)
SHIFTS = (-1, 0, 1, 2)


def _choice(draw: st.DrawFn, count: int, options: tuple[float, ...]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(draw(st.integers(0, 99))).choice(options, count)


def _finalize(draw: st.DrawFn, channels: int) -> LayerCase:
    rng, count = np.random.default_rng(draw(st.integers(0, 99))), draw(st.sampled_from((2, 7, 1000)))
    mean, var = rng.standard_normal(channels), rng.uniform(0.5, 2, channels)
    values = [
        mean * count,
        (var + mean * mean) * count,
        *(rng.standard_normal(channels) for _ in range(3)),
        rng.uniform(0.5, 2, channels),
    ]
    keywords = {
        "count": count,
        "epsilon": draw(st.sampled_from((1e-5, 1e-3))),
        "momentum": draw(st.sampled_from((0.1, 0.5, 1.0))),
        "eq_dtype": draw(st.sampled_from(("float16", "float32"))),
    }
    operands = tuple(Tensor((channels,), "float32", value) for value in values)
    terms = dict.fromkeys(("eq_scale", "eq_bias", "invstd", "running_var"), 50.0)
    return LayerCase("batch_norm_finalize", operands, keywords, terms=terms)


# --- problems -----------------------------------------------------------------------------------------------


IMAGES, WINDOW = (2, 64, 12, 12), (32, 64, 3, 3)


def channels(count: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec.packed((count,), dtype)


def training_problems(
    dtype: str = "float16",
    *,
    x: Shape = IMAGES,
    w: Shape = WINDOW,
    layout: Layout = "nhwc",
    aligned: bool = True,
    **geometry: Any,
) -> dict[str, tuple[Any, Any]]:
    """Return the source and the problem of each fusion that takes the dtype."""
    data, filters = (TensorSpec.packed(shape, dtype, layout) for shape in (x, w))
    forward = conv_problem("forward", data, filters, **geometry)
    weights = dict.fromkeys(("scale", "bias"), channels(x[1], dtype))
    own: dict[str, tuple[Any, Any]] = {
        "statistics": (STATISTICS_SOURCE, statistics_problem(forward, {}, (None,) * 3, aligned=aligned)),
        "prologue": (STATISTICS_SOURCE, statistics_problem(forward, weights, (None,) * 3, aligned=aligned)),
    }
    if dtype != "float16":
        return own
    names = ("mean", "invstd", "scale", "bias")
    wide = {"x": data} | dict.fromkeys(names, channels(x[1]))
    of_data = conv_problem("backward_data", forward.y, filters, shape=x, **geometry)
    of_filter = conv_problem("backward_filter", forward.y, data, shape=w, **geometry)
    own["data"] = (DATA_SOURCE, data_gradient(of_data, wide, (None,) * 6, aligned=aligned))
    own["filter"] = (FILTER_SOURCE, filter_gradient(of_filter, weights, aligned=aligned))
    return own
