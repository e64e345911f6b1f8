"""Layer, RMS and adaptive layer normalisations as values that all tiers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct.shapes.layer_norm import DTYPES
from tests.layers import LayerCase, Tensor, lying

FORWARD = ("layer_norm", "rms_norm", "ada_layer_norm")
ROW_NORMS = tuple(f"{name}{step}" for name in FORWARD for step in ("", "_backward"))


@st.composite
def row_norm_cases(
    draw: st.DrawFn, *, rows: Sequence[int] = (2, 1, 3, 5, 0), columns: Sequence[int] = (4, 1, 3, 8, 64)
) -> LayerCase:
    """A normalisation of rows, or its gradient, of 1 to 5 axes, the last one or two of them normalised."""
    operation, dtype = draw(st.sampled_from(ROW_NORMS)), draw(st.sampled_from(DTYPES))
    adaptive = operation.startswith("ada")
    axes = draw(
        st.lists(st.sampled_from(columns), min_size=1, max_size=2).filter(lambda axes: np.prod(axes) < 99)
    )
    batch = draw(st.lists(st.sampled_from(rows), min_size=adaptive, max_size=3))
    if adaptive and np.prod(batch[1:]) == 1:  # cuDNN has no engine for samples of one row
        batch.append(2)
    shape = (*batch, *axes)
    wide = draw(st.sampled_from((dtype, "float32")))
    x = lying(draw, shape, dtype, "floats")
    scale = lying(draw, (*batch[:adaptive], *axes), wide, "floats")
    if operation.endswith("_backward"):
        return _backward(draw, operation, x, scale)
    bias = lying(draw, scale.shape, wide, "floats") if draw(st.booleans()) else None
    keywords: dict[str, Any] = {"epsilon": draw(st.sampled_from((1e-5, 1e-3, 0.5)))}
    if draw(st.booleans()):
        keywords["training"] = draw(st.booleans())
    outs = {"out": lying(draw, shape, dtype, "nan")} if draw(st.booleans()) else {}
    return LayerCase(operation, (x, scale, bias), keywords, outs, terms={"y": 4.0})


def _backward(draw: st.DrawFn, operation: str, x: Tensor, scale: Tensor) -> LayerCase:
    forward = getattr(ct.reference, operation.removesuffix("_backward"))
    moments = [
        lying(draw, moment.shape, "float32", moment) for moment in forward(x.array(), scale.array())[1:]
    ]
    dy = lying(draw, x.shape, x.dtype, "floats")
    keywords = {"bias_gradient": draw(st.booleans())} if operation == "rms_norm_backward" else {}
    outs = {"out": lying(draw, x.shape, x.dtype, "nan")} if draw(st.booleans()) else {}
    # Rows of one or a few elements have a large inverse deviation, which the difference of terms takes away.
    largest = [float(np.abs(one.array().astype(float)).max(initial=0)) for one in (dy, scale, moments[-1])]
    terms = {"dx": 8 * float(np.prod(largest)), "dscale": 50 * largest[0], "dbias": 50 * largest[0]}
    return LayerCase(operation, (dy, x, scale, *moments), keywords, outs, terms=terms)
