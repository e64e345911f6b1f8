"""Batch normalisations as values that all tiers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct.shapes.norm import NORM_MODES, norm_parameter_dtype, norm_parameter_shape, norm_samples
from tests.layers import FLOATS, LayerCase, Tensor, lying, scales_and_out


@st.composite
def norm_cases(
    draw: st.DrawFn,
    *,
    dtypes: Sequence[str] = FLOATS,
    batches: Sequence[int] = (2, 3, 1, 4, 0),
    channels: Sequence[int] = (1, 2, 3, 4),
) -> LayerCase:
    """A step of training or inference, or a gradient, of 1 to 6 axes."""
    rank, dtype = draw(st.sampled_from((4, 2, 3, 5, 1, 6))), draw(st.sampled_from(dtypes))
    some = draw(st.tuples(*[st.integers(1, 3)] * 4))
    shape = (draw(st.sampled_from(batches)), draw(st.sampled_from(channels)), *some)[:rank]
    keywords: dict[str, Any] = {
        "mode": draw(st.sampled_from(sorted(NORM_MODES, reverse=True))),
        "epsilon": draw(st.sampled_from((1e-5, 1e-3, 0.5))),
    }
    scales, outs = scales_and_out(draw, shape, dtype)
    x = lying(draw, shape, dtype, draw(st.sampled_from(("floats", "integers"))))
    step = draw(st.sampled_from((_training, _inference, _backward)))
    return step(draw, x, keywords | scales, outs)


def _training(draw: st.DrawFn, x: Tensor, keywords: dict[str, Any], outs: dict[str, Tensor]) -> LayerCase:
    mode, activation = keywords["mode"], draw(st.sampled_from((None, "relu")))
    if norm_samples(x.shape, mode) != 1 and draw(st.booleans()):
        keywords = keywords | {"momentum": draw(st.sampled_from((0.1, 0, 1)))}
        running = {"running_mean": "floats", "running_var": "positive"}
        outs = outs | {name: _parameter(draw, x, mode, values) for name, values in running.items()}
    if draw(st.booleans()):
        outs = outs | {"residual": lying(draw, x.shape, x.dtype)}
    operands = (x, _parameter(draw, x, mode), _parameter(draw, x, mode))
    return LayerCase("batch_norm_training", operands, keywords | {"activation": activation}, outs)


def _inference(draw: st.DrawFn, x: Tensor, keywords: dict[str, Any], outs: dict[str, Tensor]) -> LayerCase:
    """Inference, or its gradient, which has dy instead of a bias."""
    forward = draw(st.booleans())
    unscaled = (keywords.get("alpha", 1), keywords.get("beta", 0)) == (1, 0)
    dtype = x.dtype if forward and unscaled and draw(st.booleans()) else ""  # parameters in half precision
    scale, bias, mean = (_parameter(draw, x, keywords["mode"], dtype=dtype) for _ in range(3))
    var = _parameter(draw, x, keywords["mode"], "positive", dtype)
    if forward:
        return LayerCase("batch_norm_inference", (x, scale, bias, mean, var), keywords, outs)
    dy = lying(draw, x.shape, x.dtype, "floats")
    return LayerCase("batch_norm_inference_backward", (dy, x, scale, mean, var), keywords, outs)


def _backward(draw: st.DrawFn, x: Tensor, keywords: dict[str, Any], outs: dict[str, Tensor]) -> LayerCase:
    mode, scale = keywords["mode"], _parameter(draw, x, keywords["mode"])
    relu = {"activation": "relu"} if draw(st.booleans()) else {}
    forward = {name: keywords[name] for name in ("mode", "epsilon")} | relu
    array = scale.array()
    step = ct.reference.batch_norm_training(x.array(), array, np.zeros_like(array), **forward)
    saved: tuple[Tensor | None, ...] = (None, None)
    if draw(st.booleans()):
        saved = tuple(_parameter(draw, x, mode, values) for values in (step.mean, step.invstd))
    if relu:
        outs = outs | {"y": lying(draw, x.shape, x.dtype, step.y)}
    dy = lying(draw, x.shape, x.dtype)
    largest = (np.abs(values).max(initial=0) for values in (array, step.invstd, dy.array()))
    terms = abs(keywords["alpha"]) * float(np.prod([float(one) for one in largest]))
    operands = (dy, x, scale, *saved)
    return LayerCase("batch_norm_backward", operands, keywords | relu, outs, terms={"dx": terms})


def _parameter(draw: st.DrawFn, x: Tensor, mode: str, values: Any = "floats", dtype: str = "") -> Tensor:
    """A parameter for x, in some view; with one axis or with those of x."""
    shape, dtype = norm_parameter_shape(x.shape, mode), dtype or norm_parameter_dtype(x.dtype)
    if mode == "spatial" and len(shape) > 1 and draw(st.booleans()):
        shape = shape[1:2]
        values = values.reshape(shape) if isinstance(values, np.ndarray) else values
    return lying(draw, shape, dtype, values)
