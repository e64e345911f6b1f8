"""Graphs that cuDNN has engines for, by name: how each kind is put together.

Shapes are small, of the recorded H200. Operands are the inputs, then the results.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from math import sqrt
from typing import Any

from cudnn_ct.graph.operations import Graph, Node, Tensor, node
from cudnn_ct.shapes.specs import Shape, TensorSpec, packed_strides

__all__ = ["KINDS", "SINCE", "Draft"]

LOWEST = float("-inf")  # fills masked scores


class Draft:
    """A graph in the making: numbers its tensors, and collects nodes, inputs and results."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: list[Tensor] = []
        self.results: list[Tensor] = []
        self._numbers = count(1)

    def tensor(self, shape: Shape, dtype: str, strides: Shape | None = None, **facts: Any) -> Tensor:
        spec = TensorSpec(shape, strides or packed_strides(shape), dtype)
        return Tensor(next(self._numbers), spec, **facts)

    def input(
        self, shape: Shape, dtype: str = "bfloat16", strides: Shape | None = None, **facts: Any
    ) -> Tensor:
        self.inputs.append(self.tensor(shape, dtype, strides, **facts))
        return self.inputs[-1]

    def result(
        self, shape: Shape, dtype: str = "bfloat16", strides: Shape | None = None, **facts: Any
    ) -> Tensor:
        self.results.append(self.tensor(shape, dtype, strides, **facts))
        return self.results[-1]

    def virtual(self, shape: Shape, dtype: str = "float32", strides: Shape | None = None) -> Tensor:
        return self.tensor(shape, dtype, strides, virtual=True)

    def value(self, number: float, dtype: str = "float32", rank: int = 4) -> Tensor:
        """A tensor that is passed by value."""
        return self.tensor((1,) * rank, dtype, value=number)

    def add(self, row: str, **attributes: Any) -> None:
        self.nodes.append(
            node(row, **{name: value for name, value in attributes.items() if value is not None})
        )

    def pointwise(
        self,
        mode: str,
        x: Tensor,
        b: Tensor | None = None,
        t: Tensor | None = None,
        *,
        y: Tensor | None = None,
        dtype: str = "float32",
        compute: str | None = None,
        **attributes: Any,
    ) -> Tensor:
        """Add an elementwise node; its result is virtual, of the larger shape, unless it is given."""
        if y is None:
            largest = max((one for one in (x, b) if one), key=lambda one: one.spec.size)
            y = self.virtual(largest.spec.shape, dtype, largest.spec.strides)
        self.add(
            "pointwise",
            mode=mode,
            math_prec=compute or "float32",
            xdesc=x,
            bdesc=b,
            tdesc=t,
            ydesc=y,
            **attributes,
        )
        return y

    def reduce(self, operator: str, x: Tensor, shape: Shape, y: Tensor | None = None) -> Tensor:
        y = y or self.virtual(shape)
        self.add("reduction", operator=operator, comp_type="float32", xdesc=x, ydesc=y)
        return y

    def matmul(self, a: Tensor, b: Tensor, c: Tensor, compute: str = "float32", **attributes: Any) -> Tensor:
        self.add("matmul", comp_type=compute, adesc=a, bdesc=b, cdesc=c, **attributes)
        return c

    def graph(self) -> Graph:
        return Graph(tuple(self.nodes), (*self.inputs, *self.results))


def transposed(tensor: Tensor) -> tuple[Shape, Shape]:
    """Return shape and strides of a tensor with its last two axes exchanged."""
    shape, strides, _ = tensor.spec
    return (*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2])


# --- attention, as one operation (cuDNN >= 9.13; sub-graphs and dropout >= 9.21) ----------------------------

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
        inner = Draft()
        inner._numbers = draft._numbers
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
        more |= {
            "subgraph": Graph(tuple(inner.nodes), ()),
            "subgraph_input_uid": first.uid,
            "subgraph_output_uid": last.uid,
        }
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
        inner = Draft()
        inner._numbers = draft._numbers
        first = inner.virtual((B, H, S, S))
        last = band(inner, first, "cmp_ge")
        more |= {
            "subgraph": Graph(tuple(inner.nodes), ()),
            "subgraph_input_uid": first.uid,
            "subgraph_output_uid": last.uid,
        }
    dq, dk, dv = (draft.result(shape, dtype) for shape in (q_shape, kv_shape, kv_shape))
    draft.add(
        "sdpa_backward",
        **{
            "qdesc": q,
            "kdesc": k,
            "vdesc": v,
            "odesc": o,
            "doddesc": do,
            "statsdesc": stats,
            "dqdesc": dq,
            "dkdesc": dk,
            "dvdesc": dv,
        },
        scaledesc=draft.value(1 / sqrt(D)),
        **more,
    )
    return draft.graph()


# --- attention, as products, masks and softmax (cuDNN >= 9.0) -----------------------------------------------


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
            draft.add(
                "paged_cache_load",
                container_desc=container_of,
                sequence_desc=lengths[1],
                page_table_desc=table,
                ydesc=loaded,
            )
    overrides = {"gemm_m_override_desc": lengths[0], "gemm_n_override_desc": lengths[1]}
    padding = {"padding_value": 0.0} if lengths[0] else {}
    score = draft.matmul(q, k, draft.virtual((B, H, rows, keys)), **overrides, **padding)
    score = draft.pointwise("mul", score, draft.value(1 / sqrt(D)))
    if bias:
        score = draft.pointwise("add", score, draft.input((1, H, rows, keys), dtype))
    score = masked(draft, score, lengths, causal, window, bottom_right)
    row = (B, H, rows, 1)
    largest = draft.reduce("max", score, row)
    powers = draft.pointwise("exp", draft.pointwise("sub", score, largest))
    total = draft.reduce("add", powers, row)
    # Without the nodes of the statistics no engine exists; they are virtual if they are not wanted.
    written = draft.result(row, "float32") if stats else draft.virtual(row)
    draft.pointwise("add", largest, draft.pointwise("log", total), y=written)
    last = dtype if not dropout else "float32"
    weights = draft.pointwise("div", powers, total, dtype=last)
    if dropout:
        seed, offset = (draft.input((1, 1, 1, 1), "int64") for _ in range(2))
        kept = draft.virtual((B, H, rows, keys))
        draft.add(
            "rng",
            distribution="bernoulli",
            bernoulli_dist_probability=1 - dropout,
            seed=seed,
            offset_desc=offset,
            ydesc=kept,
        )
        weights = draft.pointwise("mul", weights, kept)
        weights = draft.pointwise("mul", weights, draft.value(1 / (1 - dropout)), dtype=dtype)
    o = draft.result(q_shape, dtype, layouts[0], ragged=offsets[0])
    draft.matmul(weights, v, o, gemm_m_override_desc=lengths[0], gemm_k_override_desc=lengths[1])
    results = draft.results
    draft.results = [o, *(one for one in results if one is not o)]
    return draft.graph()


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
    kept = None
    if dropout:
        seed, offset = (draft.input((1, 1, 1, 1), "int64") for _ in range(2))
        kept = draft.virtual(scores)
        draft.add(
            "rng",
            distribution="bernoulli",
            bernoulli_dist_probability=1 - dropout,
            seed=seed,
            offset_desc=offset,
            ydesc=kept,
        )
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


# --- norms -------------------------------------------------------------------------------------------------

ROWS, CHANNELS = 512, 1024


def norm(mode: str, phase: str = "training", dtype: str = "bfloat16", *, bias: bool = True) -> Graph:
    """A norm of rows (N, C, 1, 1); mean and inverse deviation are (N, 1, 1, 1) float32."""
    draft = Draft()
    shape, weight, row = (ROWS, CHANNELS, 1, 1), (1, CHANNELS, 1, 1), (ROWS, 1, 1, 1)
    if mode == "ada_layer_norm":  # one scale and bias for each of the samples (B, S, C)
        shape, weight, row = (4, 128, CHANNELS), (4, 1, CHANNELS), (4, 128, 1)
    if mode == "instance_norm":
        shape, weight, row = (8, 32, 28, 28), (1, 32, 1, 1), (8, 32, 1, 1)
    strides = packed_strides(shape, "nhwc") if mode == "instance_norm" else None
    x = draft.input(shape, dtype, strides)
    scale = draft.input(weight, "float32")
    more: dict[str, Any] = {}
    if bias:
        more["bias_desc"] = draft.input(weight, "float32")
    y = draft.result(shape, dtype, strides)
    if phase == "training":
        if mode != "rms_norm":
            more["mean_desc"] = draft.result(row, "float32")
        more["inv_variance_desc"] = draft.result(row, "float32")
    epsilon = draft.value(1e-5, rank=len(shape))
    draft.add(
        "norm_forward",
        mode=mode,
        phase=phase,
        xdesc=x,
        scale_desc=scale,
        epsilon_desc=epsilon,
        ydesc=y,
        **more,
    )
    return draft.graph()


def norm_backward(mode: str, dtype: str = "bfloat16", *, bias: bool = True) -> Graph:
    """Gradients of a norm: dx, dscale and dbias from dy, x, scale and the statistics of the forward pass."""
    draft = Draft()
    shape, weight, row = (ROWS, CHANNELS, 1, 1), (1, CHANNELS, 1, 1), (ROWS, 1, 1, 1)
    if mode == "ada_layer_norm":
        shape, weight, row = (4, 128, CHANNELS), (4, 1, CHANNELS), (4, 128, 1)
    if mode == "instance_norm":
        shape, weight, row = (8, 32, 28, 28), (1, 32, 1, 1), (8, 32, 1, 1)
    strides = packed_strides(shape, "nhwc") if mode == "instance_norm" else None
    dy, x = draft.input(shape, dtype, strides), draft.input(shape, dtype, strides)
    scale = draft.input(weight, "float32")
    mean = draft.input(row, "float32") if mode != "rms_norm" else None
    deviation = draft.input(row, "float32")
    dx, dscale = draft.result(shape, dtype, strides), draft.result(weight, "float32")
    dbias = draft.result(weight, "float32") if bias else None
    draft.add(
        "norm_backward",
        mode=mode,
        xdesc=x,
        dydesc=dy,
        scale_desc=scale,
        mean_desc=mean,
        inv_variance_desc=deviation,
        dxdesc=dx,
        dscale_desc=dscale,
        dbias_desc=dbias,
    )
    return draft.graph()


KINDS: dict[str, Callable[[], Graph]] = {
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
    "layer norm": lambda: norm("layer_norm"),
    "layer norm inference": lambda: norm("layer_norm", "inference"),
    "layer norm float32": lambda: norm("layer_norm", dtype="float32"),
    "RMS norm": lambda: norm("rms_norm", bias=False),
    "RMS norm bias": lambda: norm("rms_norm"),
    "RMS norm inference": lambda: norm("rms_norm", "inference", bias=False),
    "instance norm": lambda: norm("instance_norm"),
    "ada layer norm": lambda: norm("ada_layer_norm"),
    "layer norm backward": lambda: norm_backward("layer_norm"),
    "layer norm backward float32": lambda: norm_backward("layer_norm", "float32"),
    "RMS norm backward": lambda: norm_backward("rms_norm", bias=False),
    "RMS norm backward bias": lambda: norm_backward("rms_norm"),
    "instance norm backward": lambda: norm_backward("instance_norm"),
    "ada layer norm backward": lambda: norm_backward("ada_layer_norm"),
}

# The first version that has engines for a kind, if it is not the oldest that plans without a GPU.
SINCE: dict[str, int] = {
    **dict.fromkeys((name for name in KINDS if name.startswith("sdpa")), 91500),
    **dict.fromkeys((name for name in KINDS if name.startswith("sdpa backward")), 92800),
    **dict.fromkeys(
        (f"sdpa {name}" for name in ("causal", "causal bottom right", "sliding window", "bias", "dropout")),
        92100,
    ),
}
