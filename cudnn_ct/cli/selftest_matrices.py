"""The selftest's cases of products of matrices, normalisations of rows and attention."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from .. import reference
from ..shapes.checks import FLOATS
from ..shapes.specs import LAYOUTS
from .selftest_rows import EXACT, PRODUCTS, STRICT, SUMS, Case, Draw, Inputs, each_layout

ROW_NORMS = ("layer_norm", "rms_norm", "ada_layer_norm")  # whose parameters are not those of channels
FLOAT8 = {"float8_e4m3": 2e-2}  # the result is bfloat16
FLOAT8_RESULT = {"float8_e4m3": 0.2, "float8_e5m2": 0.4}  # of attention, which also rounds weights to float8
LARGE_MEAN = 1000  # deviations, which leaves the difference from it three digits of float32
LARGE = {"float32": 2e-3}


def matrix_cases() -> Iterator[Case]:
    """Yield products of matrices and their gradients, and normalisations of rows and theirs."""
    for name in ("matmul", "matmul_backward"):
        yield from each_layout(name, "", partial(_matrices, name), PRODUCTS, layouts=LAYOUTS[:1])
    strict = partial(_matrices, "matmul", precision="float32")
    yield from each_layout("matmul", "IEEE float32", strict, STRICT, ("float32",), LAYOUTS[:1])
    activated = partial(_matrices, "matmul", activation="silu")
    yield from each_layout("matmul", "bias, silu", activated, PRODUCTS, layouts=LAYOUTS[:1])
    yield from each_layout("matmul", "", partial(_matrices, "matmul"), EXACT, ("int8",), LAYOUTS[:1])
    yield from each_layout("scaled_matmul", "", _scaled, FLOAT8, tuple(FLOAT8), LAYOUTS[:1])
    for operation in ROW_NORMS:
        yield from _rows_of(operation)
    for operation in ("batch_norm_training", "instance_norm"):
        yield from each_layout(operation, "large mean", _large_images, LARGE, tuple(LARGE))


def _matrices(operation: str, draw: Draw, activation: str | None = None, **device: Any) -> Inputs:
    """Draw a batch of matrices and one that all of them are multiplied by."""
    a, b, dy = draw.floats(3, 16, 32), draw.floats(32, 24), draw.floats(3, 16, 24)
    if operation == "matmul_backward":
        return Inputs((dy, a, b), {"bias_gradient": True})
    epilogue = {} if activation is None else {"activation": activation, "bias": draw.floats(24)}
    return Inputs((a, b), epilogue, device)


def _scaled(draw: Draw) -> Inputs:
    return Inputs((draw.floats(16, 32), draw.floats(32, 48)), {"descale_a": np.full(1, 0.5, np.float32)})


def _rows_of(operation: str) -> Iterator[Case]:
    """Yield a normalisation of rows and its gradient; cuDNN has none of float64."""
    dtypes, layouts = FLOATS[:-1], LAYOUTS[:1]
    for name in (operation, f"{operation}_backward"):
        yield from each_layout(name, "", partial(_row_norm, name), SUMS, dtypes, layouts)
        large = partial(_row_norm, name, mean=LARGE_MEAN)
        yield from each_layout(name, "large mean", large, LARGE, tuple(LARGE), layouts)
        if name == operation:
            make = partial(_row_norm, name, training=False)
            yield from each_layout(name, "without statistics", make, SUMS, dtypes, layouts)


def _row_norm(operation: str, draw: Draw, mean: float = 0, **keywords: Any) -> Inputs:
    """Draw rows of 64 elements, the shortest for which cuDNN has all engines."""
    x, samples = draw.floats(4, 6, 64) + draw.dtype.type(mean), (4,) * operation.startswith("ada")
    scale = draw.rng.uniform(0.5, 2, (*samples, 64)).astype(draw.dtype)
    if not operation.endswith("_backward"):
        return Inputs((x, scale, scale[::-1].copy()), keywords)
    forward = getattr(reference, operation.removesuffix("_backward"))
    return Inputs((draw.floats(4, 6, 64), x, scale, *forward(x, scale)[1:]), keywords)


def _large_images(draw: Draw) -> Inputs:
    """Draw images whose mean is large next to their deviation."""
    x = draw.floats(4, 8, 5, 6) + draw.dtype.type(LARGE_MEAN)
    return Inputs((x, draw.parameter(8), draw.parameter(8)), {})


# --- attention ---------------------------------------------------------------------------------------------

HEADS = (2, 4, 40, 16)
ATTENTION: dict[str, dict[str, Any]] = {
    "": {},
    "causal": {"causal": True},
    "bottom right": {"causal": "bottom_right"},
    "window": {"window": (9, 3)},
    "lengths": {"lengths_q": [40, 17], "lengths_kv": [30, 40]},
}


def attention_cases() -> Iterator[Case]:
    """Yield attention and its gradient, zeros behind the lengths, and attention of float8."""
    for variant, keywords in ATTENTION.items():
        for gradient in (False, True):
            make = partial(_of_attention, keywords, gradient)
            name = "attention_backward" if gradient else "attention"
            yield from each_layout(name, variant, make, PRODUCTS, ("float16", "bfloat16"))
    yield from each_layout("clear_padding", "", _padded, PRODUCTS, ("float16", "bfloat16", "float32"))
    for variant, keywords in (("", {}), ("causal", {"causal": True})):
        make = partial(_of_scaled_attention, keywords)
        yield from each_layout(
            "scaled_attention", variant, make, FLOAT8_RESULT, tuple(FLOAT8_RESULT), LAYOUTS[:1]
        )


def _of_attention(keywords: dict[str, Any], gradient: bool, draw: Draw) -> Inputs:
    """Draw grouped heads of 40 queries and keys."""
    q, k, v = draw.floats(*HEADS), draw.floats(2, 2, 40, 16), draw.floats(2, 2, 40, 16)
    if not gradient:
        return Inputs((q, k, v), keywords)
    y, stats = reference.attention(q, k, v, return_stats=True, **keywords)
    return Inputs((draw.floats(*y.shape), q, k, v, y, stats), keywords)


def _padded(draw: Draw) -> Inputs:
    return Inputs((draw.floats(*HEADS),), {"lengths": [40, 17]})


def _of_scaled_attention(keywords: dict[str, Any], draw: Draw) -> Inputs:
    """Draw grouped heads of float8, and some of the scales."""
    q, k, v = draw.floats(*HEADS), draw.floats(2, 2, 40, 16), draw.floats(2, 2, 40, 16)
    scales = {"descale_q": np.full(1, 0.5, np.float32), "scale_o": np.full(1, 8, np.float32)}
    return Inputs((q, k, v), {**keywords, **scales, "return_stats": True, "amax": True})
