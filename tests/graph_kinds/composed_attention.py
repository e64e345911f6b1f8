"""Attention as products, masks and a softmax, for cuDNN below 9.21, whose SDPA node has no sub-graphs."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

from cudnn_ct.graph.operations import Graph, Tensor
from cudnn_ct.shapes.specs import Shape, packed_strides

from .attention import LOWEST, B, D, H, S
from .draft import Draft

__all__ = ["COMPOSED"]


def composed_attention(
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
    """Attention of single operations, for versions whose SDPA node has no sub-graphs: below 9.21.

    K is passed as (B, H, D, S): its axes are exchanged, its memory is not. The probabilities have the dtype
    of Q before the second product. Index and comparison nodes make the masks.
    """
    draft = Draft()
    offsets = [draft.input((B + 1, 1, 1, 1), "int64") for _ in range(2)] if ragged else [None, None]
    q_shape, kv_shape = (B, H, rows, D), (B, kv_heads, keys, D)
    layouts: list[Shape] = [packed_strides(q_shape), packed_strides(kv_shape)]
    if ragged:
        layouts = [(s * h * D, D, h * D, 1) for s, h in ((rows, H), (keys, kv_heads))]
    q = draft.input(q_shape, dtype, layouts[0], ragged=offsets[0])
    lengths: list[Tensor | None] = [None, None]
    if paged:
        container = (64, kv_heads, 64, D)
        pages = [draft.input((container[0], kv_heads, D, 64), dtype, (kv_heads * 64 * D, 64 * D, 1, D))]
        pages.append(draft.input(container, dtype))
    else:
        n, h, s, d = layouts[1]
        k = draft.input((B, kv_heads, D, keys), dtype, (n, h, d, s), ragged=offsets[1])
        v = draft.input(kv_shape, dtype, layouts[1], ragged=offsets[1])
    if padded or ragged or paged:
        lengths = [draft.input((B, 1, 1, 1), "int32") for _ in range(2)]
    if paged:
        tables = [draft.input((B, 1, keys // 64, 1), "int32") for _ in range(2)]
        size = keys * D
        k = draft.virtual((B, kv_heads, D, keys), dtype, (kv_heads * size, size, 1, D))
        v = draft.virtual(kv_shape, dtype)
        for container_of, table, loaded in zip(pages, tables, (k, v), strict=True):
            facts = {"sequence_desc": lengths[1], "page_table_desc": table}
            draft.add("paged_cache_load", container_desc=container_of, **facts, ydesc=loaded)
    overrides = {"gemm_m_override_desc": lengths[0], "gemm_n_override_desc": lengths[1]}
    padding = {"padding_value": 0.0} if lengths[0] else {}
    score = draft.matmul(q, k, draft.virtual((B, H, rows, keys)), **overrides, **padding)
    score = draft.pointwise("mul", score, draft.value(1 / sqrt(D)))
    if bias:
        score = draft.pointwise("add", score, draft.input((1, H, rows, keys), dtype))
    score = masked(draft, score, lengths, causal, window, bottom_right)
    powers, total = softmax(draft, score, stats)
    last = dtype if not dropout else "float32"
    weights = draft.pointwise("div", powers, total, dtype=last)
    if dropout:
        weights = draft.pointwise("mul", weights, draft.kept((B, H, rows, keys), dropout))
        weights = draft.pointwise("mul", weights, draft.value(1 / (1 - dropout)), dtype=dtype)
    o = draft.result(q_shape, dtype, layouts[0], ragged=offsets[0])
    draft.matmul(weights, v, o, gemm_m_override_desc=lengths[0], gemm_k_override_desc=lengths[1])
    results = draft.results
    draft.results = [o, *(one for one in results if one is not o)]
    return draft.graph()


def softmax(draft: Draft, score: Tensor, stats: bool) -> tuple[Tensor, Tensor]:
    """Add the exponentials of scores and their sums."""
    row = (*score.spec.shape[:3], 1)
    largest = draft.reduce("max", score, row)
    powers = draft.pointwise("exp", draft.pointwise("sub", score, largest))
    total = draft.reduce("add", powers, row)
    # Without the nodes of the statistics no engine exists; they are virtual if they are not wanted.
    written = draft.result(row, "float32") if stats else draft.virtual(row)
    draft.pointwise("add", largest, draft.pointwise("log", total), y=written)
    return powers, total


def masked(
    draft: Draft,
    score: Tensor,
    lengths: list[Tensor | None],
    causal: bool,
    window: int,
    bottom_right: bool,
) -> Tensor:
    """Add the masks to scores: padding, the future, and keys further back than the window."""
    rows, keys = score.spec.shape[2:]

    def indices(axis: int) -> Tensor:
        return draft.pointwise("gen_index", score, dtype="int32", axis=axis)

    def whole(mode: str, a: Tensor, b: Tensor) -> Tensor:
        return draft.pointwise(mode, a, b, dtype="int32", compute="int32")

    def keep(condition: Tensor) -> Tensor:
        return draft.pointwise("binary_select", score, draft.value(LOWEST), condition)

    def compare(mode: str, a: Tensor, b: Tensor) -> Tensor:
        return draft.pointwise(mode, a, b, dtype="bool", compute="bool")

    if lengths[0] is not None and lengths[1] is not None:
        inside = [
            compare("cmp_lt", indices(axis), length) for axis, length in zip((2, 3), lengths, strict=True)
        ]  # type: ignore[arg-type]
        score = keep(compare("logical_and", *inside))
    q_length = lengths[0] or draft.value(rows, "int32")
    kv_length = lengths[1] or draft.value(keys, "int32")
    if causal:
        row, column = indices(2), indices(3)
        if bottom_right:
            row = whole("sub", whole("add", row, kv_length), q_length)
        score = keep(compare("cmp_ge", row, column))
    if window:
        row, column = indices(2), indices(3)
        column = whole("add", column, draft.value(window, "int32"))
        if bottom_right:
            column = whole("add", whole("sub", column, kv_length), q_length)
        score = keep(compare("cmp_gt", column, row))
    return score


def composed_attention_backward(
    *,
    kv_heads: int = H,
    causal: bool = False,
    window: int = 0,
    padded: bool = False,
    dropout: float = 0.0,
    bias: bool = False,
    rows: int = S,
    keys: int = S,
    deterministic: bool = False,
    dtype: str = "bfloat16",
) -> Graph:
    """Gradients of attention of single operations; see :func:`composed_attention`.

    The sums of dO * O and, unless the graph is deterministic, of dQ in float32 are scratch memory. With fewer
    heads of K and V, their gradients are sums over the heads of a group.
    """
    draft = Draft()
    q_shape, kv_shape, row = (B, H, rows, D), (B, kv_heads, keys, D), (B, H, rows, 1)
    scores = (B, H, rows, keys)
    q = draft.input(q_shape, dtype)
    kt = draft.input((B, kv_heads, D, keys), dtype, (kv_heads * keys * D, keys * D, 1, D))
    vt = draft.input((B, kv_heads, D, keys), dtype, (kv_heads * keys * D, keys * D, 1, D))
    o, do = draft.input(q_shape, dtype), draft.input(q_shape, dtype)
    stats = draft.input(row, "float32")
    lengths: list[Tensor | None] = [None, None]
    if padded:
        lengths = [draft.input((B, 1, 1, 1), "int32") for _ in range(2)]
    by_rows = {"gemm_m_override_desc": lengths[0], "gemm_n_override_desc": lengths[1]}
    by_keys = {"gemm_m_override_desc": lengths[1], "gemm_k_override_desc": lengths[0]}
    scale = draft.value(1 / sqrt(D))
    kept = draft.kept(scores, dropout) if dropout else None
    sums = draft.reduce("add", draft.pointwise("mul", do, o), row)
    sums = draft.pointwise(
        "mul", sums, draft.value(1 - dropout), y=draft.tensor(row, "float32", scratch=True)
    )
    score = draft.matmul(q, kt, draft.virtual(scores), **by_rows)
    score = draft.pointwise("mul", score, scale)
    if bias:
        score = draft.pointwise("add", score, draft.input((1, H, rows, keys), dtype))
    if padded:
        score = masked(draft, score, lengths, False, 0, False)
    score = draft.pointwise("sub", score, stats)
    score = masked(draft, score, [None, None], causal, window, False)
    weights = draft.pointwise("exp", score)
    used = weights
    if kept is not None:
        used = draft.pointwise("mul", draft.pointwise("mul", weights, kept), draft.value(1 / (1 - dropout)))
    turned = (B, H, keys, rows)
    strides = (H * rows * keys, rows * keys, 1, keys)

    def gradient(of: Tensor, by: Tensor, result: Tensor) -> None:
        """Multiply transposed weights by a tensor, and add the heads of a group."""
        across = draft.virtual(turned, dtype, strides)
        draft.add("reshape", xdesc=of, ydesc=across)
        if kv_heads == H:
            draft.matmul(across, by, result, **by_keys)
        else:
            every = draft.matmul(across, by, draft.virtual((B, H, keys, D), dtype), **by_keys)
            draft.reduce("add", every, result.spec.shape, result)

    dq, dk, dv = (draft.result(shape, dtype) for shape in (q_shape, kv_shape, kv_shape))
    gradient(used, do, dv)
    slope = draft.matmul(do, vt, draft.virtual(scores), **by_rows)
    if kept is not None:
        slope = draft.pointwise("mul", slope, kept)
    slope = draft.pointwise("mul", draft.pointwise("sub", slope, sums), weights)
    if kept is not None:
        slope = draft.pointwise("mul", slope, draft.value(1 / (1 - dropout)))
    slope = draft.pointwise("mul", slope, scale)
    gradient(slope, q, dk)
    k = draft.virtual(kv_shape, dtype)
    draft.add("reshape", xdesc=kt, ydesc=k)
    by_columns = {"gemm_m_override_desc": lengths[0], "gemm_k_override_desc": lengths[1]}
    if deterministic:
        draft.matmul(slope, k, dq, **by_columns)
    else:
        whole = draft.matmul(slope, k, draft.tensor(q_shape, "float32", scratch=True), **by_columns)
        draft.pointwise("identity", whole, y=dq)
    return draft.graph()


COMPOSED: dict[str, Callable[[], Graph]] = {
    "attention": composed_attention,
    "attention stats": lambda: composed_attention(stats=True),
    "attention grouped heads": lambda: composed_attention(kv_heads=2, stats=True),
    "attention padded": lambda: composed_attention(padded=True, stats=True),
    "attention ragged": lambda: composed_attention(ragged=True, causal=True),
    "attention paged decode": lambda: composed_attention(paged=True, rows=1, keys=1024),
    "attention causal": lambda: composed_attention(causal=True, stats=True),
    "attention causal bottom right": lambda: composed_attention(causal=True, bottom_right=True, rows=128),
    "attention sliding window": lambda: composed_attention(causal=True, window=64, stats=True),
    "attention bias": lambda: composed_attention(bias=True),
    "attention dropout": lambda: composed_attention(dropout=0.1, stats=True),
    "attention backward": composed_attention_backward,
    "attention backward grouped heads": lambda: composed_attention_backward(kv_heads=2),
    "attention backward causal": lambda: composed_attention_backward(causal=True),
    "attention backward sliding window": lambda: composed_attention_backward(causal=True, window=64),
    "attention backward padded": lambda: composed_attention_backward(padded=True, causal=True),
    "attention backward dropout": lambda: composed_attention_backward(dropout=0.1),
    "attention backward bias": lambda: composed_attention_backward(bias=True),
    "attention backward deterministic": lambda: composed_attention_backward(deterministic=True, causal=True),
}
