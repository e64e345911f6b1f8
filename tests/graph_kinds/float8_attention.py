"""Attention of float8 as products and a softmax, with the scales and largest magnitudes that cuDNN needs."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

from cudnn_ct.graph.operations import Graph
from cudnn_ct.shapes.specs import packed_strides

from .attention import B, D, H, S
from .composed_attention import masked, softmax
from .draft import Draft

__all__ = ["FLOAT8"]


def float8_attention(
    *,
    kv_heads: int = H,
    stats: bool = False,
    causal: bool = False,
    dtype: str = "float8_e4m3",
    result: str = "",
) -> Graph:
    """Attention of single operations: the scores are scaled twice, the weights and the result three times.

    The largest weight and the largest magnitude of the result are float32 numbers.
    """
    draft = Draft()
    one = (1, 1, 1, 1)
    q_shape, kv_shape = (B, H, S, D), (B, kv_heads, S, D)
    n, h, s, d = packed_strides(kv_shape)
    q = draft.input(q_shape, dtype)
    k = draft.input((B, kv_heads, D, S), dtype, (n, h, d, s))
    v = draft.input(kv_shape, dtype)
    of_q, of_k, of_v, of_weights, weights_scale, result_scale = (
        draft.input(one, "float32") for _ in range(6)
    )
    score = draft.matmul(q, k, draft.virtual((B, H, S, S)))
    for factor in (draft.value(1 / sqrt(D)), of_q, of_k):
        score = draft.pointwise("mul", score, factor)
    score = masked(draft, score, [None, None], causal, 0, False)
    powers, total = softmax(draft, score, stats)
    weights = draft.pointwise("div", powers, total)
    draft.reduce("amax", weights, one, draft.result(one, "float32"))
    weights = draft.pointwise("mul", weights, weights_scale, dtype=dtype)
    value = draft.matmul(weights, v, draft.virtual(q_shape))
    for factor in (of_weights, of_v):
        value = draft.pointwise("mul", value, factor)
    draft.pointwise("mul", value, result_scale, y=draft.result(q_shape, result or dtype))
    draft.reduce("amax", value, one, draft.result(one, "float32"))
    return draft.graph()


FLOAT8: dict[str, Callable[[], Graph]] = {
    "attention float8": float8_attention,
    "attention float8 e5m2": lambda: float8_attention(dtype="float8_e5m2", stats=True),
    "attention float8 causal": lambda: float8_attention(causal=True, stats=True, kv_heads=2),
}
