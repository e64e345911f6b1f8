"""Attention as one operation: cuDNN >= 9.13; its sub-graphs and dropout need 9.21."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

from cudnn_ct.graph.operations import Graph, Tensor

from .draft import Draft

__all__ = ["ATTENTION"]

LOWEST = float("-inf")  # fills masked scores
B, H, S, D = 2, 8, 256, 64


def attention(
    *,
    kv_heads: int = H,
    stats: bool = False,
    causal: bool = False,
    window: int = 0,
    bottom_right: bool = False,
    padded: bool = False,
    ragged: bool = False,
    bias: bool = False,
    dropout: float = 0.0,
    paged: bool = False,
    rows: int = S,
    keys: int = S,
    dtype: str = "bfloat16",
) -> Graph:
    """softmax(scale * Q K' + bias, masked) V with one SDPA node.

    Masks and the bias are a sub-graph between two virtual float32 tensors of the shape of the scores.
    """
    draft = Draft()
    offsets = [draft.input((B + 1, 1, 1, 1), "int64") for _ in range(2)] if ragged else [None, None]
    q_shape, kv_shape = (B, H, rows, D), (B, kv_heads, keys, D)
    heads = (None, None)
    if ragged:  # (total tokens, H, D), in the order B, S, H, D
        heads = tuple((s * h * D, D, h * D, 1) for s, h in ((rows, H), (keys, kv_heads)))  # type: ignore[assignment]
    if paged:  # containers of (blocks, H, tokens of a block, D)
        kv_shape = (64, kv_heads, 64, D)
    q = draft.input(q_shape, dtype, heads[0], ragged=offsets[0])
    k = draft.input(kv_shape, dtype, heads[1], ragged=offsets[1])
    v = draft.input(kv_shape, dtype, heads[1], ragged=offsets[1])
    lengths: dict[str, Tensor] = {}
    if padded or ragged or paged:
        lengths = {name: draft.input((B, 1, 1, 1), "int32") for name in ("seq_len_qdesc", "seq_len_kvdesc")}
    more: dict[str, Any] = dict(lengths)
    if paged:
        for name in ("page_table_kdesc", "page_table_vdesc"):
            more[name] = draft.input((B, 1, keys // 64, 1), "int32")
    if dropout:
        for name in ("dropout_seed_desc", "dropout_offset_desc"):
            more[name] = draft.input((1, 1, 1, 1), "int64")
        more["dropout_probability"] = dropout
    scores = (B, H, rows, keys)
    if causal or window or bias:
        inner = draft.inner()
        first = last = inner.virtual(scores)
        if bias:
            last = inner.pointwise("add", last, draft.input((1, H, rows, keys), dtype))
        corner = lengths if bottom_right and lengths else {}
        if bottom_right and not lengths:
            corner = {
                "seq_len_qdesc": inner.value(rows, "int32"),
                "seq_len_kvdesc": inner.value(keys, "int32"),
            }
        if causal:
            last = band(inner, last, "cmp_ge", **corner)
        if window:
            left = window - keys + rows if bottom_right else window
            last = band(inner, last, "cmp_gt", left_bound_desc=inner.value(left))
        more |= inner.subgraph(first, last)
    o = draft.result(q_shape, dtype, heads[0], ragged=offsets[0])
    if stats:
        more["statsdesc"] = draft.result((B, H, rows, 1), "float32")
    scale = draft.value(1 / sqrt(D))
    draft.add("sdpa_forward", qdesc=q, kdesc=k, vdesc=v, odesc=o, scaledesc=scale, **more)
    return draft.graph()


def band(draft: Draft, x: Tensor, mode: str, **bounds: Any) -> Tensor:
    """Add a band mask: "cmp_ge" keeps row >= column (causal), "cmp_gt" keeps column + left bound > row."""
    y = draft.virtual(x.spec.shape)
    draft.add(
        "diagonal_band_mask", xdesc=x, ydesc=y, bdesc=draft.value(LOWEST), comparison_mode=mode, **bounds
    )
    return y


def attention_backward(
    *, kv_heads: int = H, causal: bool = False, padded: bool = False, dtype: str = "bfloat16"
) -> Graph:
    """dQ, dK and dV with one SDPA node; ``stats`` are those of the forward pass."""
    draft = Draft()
    q_shape, kv_shape = (B, H, S, D), (B, kv_heads, S, D)
    q, k, v = (draft.input(shape, dtype) for shape in (q_shape, kv_shape, kv_shape))
    o, do = draft.input(q_shape, dtype), draft.input(q_shape, dtype)
    stats = draft.input((B, H, S, 1), "float32")
    more: dict[str, Any] = {}
    if padded:
        more = {name: draft.input((B, 1, 1, 1), "int32") for name in ("seq_len_qdesc", "seq_len_kvdesc")}
    if causal:
        inner = draft.inner()
        first = inner.virtual((B, H, S, S))
        last = band(inner, first, "cmp_ge")
        more |= inner.subgraph(first, last)
    dq, dk, dv = (draft.result(shape, dtype) for shape in (q_shape, kv_shape, kv_shape))
    given = {"qdesc": q, "kdesc": k, "vdesc": v, "odesc": o, "doddesc": do, "statsdesc": stats}
    results = {"dqdesc": dq, "dkdesc": dk, "dvdesc": dv}
    draft.add("sdpa_backward", **given, **results, scaledesc=draft.value(1 / sqrt(D)), **more)
    return draft.graph()


ATTENTION: dict[str, Callable[[], Graph]] = {
    "sdpa": attention,
    "sdpa stats": lambda: attention(stats=True),
    "sdpa grouped heads": lambda: attention(kv_heads=2, stats=True),
    "sdpa float16": lambda: attention(dtype="float16"),
    "sdpa padded": lambda: attention(padded=True),
    "sdpa ragged": lambda: attention(ragged=True),
    "sdpa paged decode": lambda: attention(paged=True, rows=1, keys=1024),
    "sdpa causal": lambda: attention(causal=True, stats=True),
    "sdpa causal bottom right": lambda: attention(causal=True, bottom_right=True, rows=128),
    "sdpa sliding window": lambda: attention(causal=True, window=64),
    "sdpa bias": lambda: attention(bias=True),
    "sdpa dropout": lambda: attention(dropout=0.1, stats=True),
    "sdpa backward": attention_backward,
    "sdpa backward grouped heads": lambda: attention_backward(kv_heads=2),
    "sdpa backward padded": lambda: attention_backward(padded=True),
    "sdpa backward causal": lambda: attention_backward(causal=True),
}
