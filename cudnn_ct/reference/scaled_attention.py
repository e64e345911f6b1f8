"""Scaled dot product attention of float8 operands."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..dtypes import as_dtype
from ..shapes import scaled_attention as rules
from ..shapes.scaled_attention import ScaledAttentionProblem, ScaledAttentionResult
from ._cast import Array, Float64, Outs, deliver, present, required, specs_of, specs_of_outs, wide

_LARGEST = {"float8_e4m3": 448.0, "float8_e5m2": 57344.0}


def scaled_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    descale_q: ArrayLike | None = None,
    descale_k: ArrayLike | None = None,
    descale_v: ArrayLike | None = None,
    descale_s: ArrayLike | None = None,
    scale_s: ArrayLike | None = None,
    scale_o: ArrayLike | None = None,
    scale: float | None = None,
    causal: bool | str = False,
    return_stats: bool = False,
    amax: bool = False,
    out_dtype: DTypeLike | None = None,
    out: Outs | None = None,
) -> ScaledAttentionResult[Array]:
    """Compute attention of float8 operands with scales. See :func:`cudnn_ct.scaled_attention`."""
    scales = (descale_q, descale_k, descale_v, descale_s, scale_s, scale_o)
    arrays = required(q=q, k=k, v=v) | present(**dict(zip(rules.SCALES, scales, strict=True)))
    slots = rules.scaled_attention_slots(out, return_stats, amax)
    parameters = return_stats, amax, scale, causal, out_dtype
    problem = rules.scaled_attention_problem(specs_of(arrays), specs_of_outs(slots), *parameters)
    values, stats = _computed(problem, arrays)
    largest = np.full(1, np.abs(values).max(initial=0))
    factor = _factors(problem, arrays)["scale_o"]
    results: list[tuple[Float64, np.dtype[Any]] | None] = [
        (values * factor, as_dtype(problem.y.dtype).numpy),
        (stats, np.dtype(np.float32)) if problem.stats else None,
        (largest, np.dtype(np.float32)) if problem.amax else None,
    ]
    places = iter(slots)
    made = [None if one is None else deliver(*one, 1, 0, next(places)) for one in results]
    assert made[0] is not None
    return ScaledAttentionResult(made[0], made[1], made[2])


def _computed(problem: ScaledAttentionProblem, arrays: dict[str, Array]) -> tuple[Float64, Float64]:
    """Return the result before ``scale_o``, and the statistics."""
    sizes, factors = problem.sizes, _factors(problem, arrays)
    group = sizes.heads // max(sizes.kv_heads, 1)
    queries, keys, values = (wide(arrays[name]) for name in "qkv")
    keys, values = (np.repeat(one, group, axis=1) for one in (keys, values))
    scores = problem.scale * factors["descale_q"] * factors["descale_k"] * (queries @ keys.swapaxes(2, 3))
    if problem.causal:
        allowed = np.arange(sizes.keys) <= np.arange(sizes.queries)[:, None]
        scores = np.where(allowed, scores, -np.inf)
    highest = scores.max(-1, initial=-np.inf, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(highest), 0, highest))
    sums = weights.sum(-1, keepdims=True)
    rounded = _rounded(weights * factors["scale_s"], problem.q.dtype)
    result = factors["descale_s"] * factors["descale_v"] * (rounded @ values) / sums
    stats = (highest + np.log(sums))[..., 0]
    return np.where(sums == 0, 0, result), stats


def _factors(problem: ScaledAttentionProblem, arrays: dict[str, Array]) -> dict[str, float]:
    weight = rules.WEIGHT_SCALE[problem.q.dtype]
    defaults = dict.fromkeys(rules.SCALES, 1.0) | {"scale_s": weight, "descale_s": 1 / weight}
    return {
        name: float(wide(arrays[name]).item()) if name in arrays else value
        for name, value in defaults.items()
    }


def _rounded(values: Float64, dtype: str) -> Float64:
    """Round positive numbers to float8, with those beyond its range saturated."""
    return wide(np.minimum(values, _LARGEST[dtype]).astype(as_dtype(dtype).numpy))
