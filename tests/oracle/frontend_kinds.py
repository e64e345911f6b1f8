"""Graphs for ct.Graph and nvidia-cudnn-frontend: the kinds of tests/graph_kinds, in variants.

Each function defines a graph and returns its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cudnn_ct as ct

__all__ = ["KINDS"]

Made = Any  # a tensor of a graph, or a tuple of them
Kind = Callable[[ct.Graph], Made]


def matmul(
    g: ct.Graph, dtype: str, m: int, n: int, k: int, *steps: str, batch: int = 0, shared: bool = False
) -> Made:
    """a @ b, then what ``steps`` name: a bias, a residual, a number, an activation or a reduction."""
    sizes = (batch,) if batch else ()
    y = g.input((*sizes, m, k), dtype) @ g.input((*(() if shared else sizes), k, n), dtype)
    for step in steps:
        if step == "bias":
            y = y + g.input((n,), dtype)
        elif step == "residual":
            y = y + g.input((*sizes, m, n), dtype)
        elif step == "half":
            y = y * 0.5
        elif step in ("max", "add"):
            return y.output(), g.reduce(y, step, -1)  # type: ignore[arg-type]
        elif step == "gelu tanh":
            y = g.gelu(y, approximate=True)
        else:
            y = getattr(g, step)(y)
    return y


def conv(
    g: ct.Graph, dtype: str, x: tuple[int, ...], w: tuple[int, ...], *steps: str, **geometry: Any
) -> Made:
    layout = "nchw" if dtype == "float32" else "nhwc"
    y = g.conv(g.input(x, dtype, layout=layout), g.input(w, dtype, layout=layout), **geometry)  # type: ignore[arg-type]
    for step in steps:
        if step in ("bias", "scale"):
            other = g.input((1, w[0], 1, 1), dtype)
            y = y + other if step == "bias" else y * other
        elif step == "residual":
            y = y + g.input(y.shape, dtype, layout=layout)  # type: ignore[arg-type]
        elif step == "stats":
            return y.output(), *g.gen_stats(y)
        else:
            y = getattr(g, step)(y)
    return y


def conv_data(g: ct.Graph, dtype: str, x: tuple[int, ...], w: tuple[int, ...], **geometry: Any) -> Made:
    y = ct.conv_output_shape(x, w, **geometry)
    dy, filters = g.input(y, dtype, layout="nhwc"), g.input(w, dtype, layout="nhwc")
    return g.conv_backward_data(dy, filters, x, **geometry)


def conv_filter(g: ct.Graph, dtype: str, x: tuple[int, ...], w: tuple[int, ...], **geometry: Any) -> Made:
    y = ct.conv_output_shape(x, w, **geometry)
    dy, images = g.input(y, dtype, layout="nhwc"), g.input(x, dtype, layout="nhwc")
    return g.conv_backward_filter(dy, images, w, **geometry).output(layout="nhwc")


def _layout_and_weight(mode: str, shape: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
    """Return the layout of x in a normalisation, and the shape of its scale."""
    if mode in ("layer_norm", "rms_norm"):
        return (None if len(shape) < 4 else "nhwc"), shape[-1:]
    return (None, (shape[0], 1, shape[2])) if len(shape) == 3 else ("nhwc", (1, shape[1], 1, 1))


def norm(g: ct.Graph, mode: str, dtype: str, shape: tuple[int, ...], *, training: bool = True) -> Made:
    layout, weight = _layout_and_weight(mode, shape)
    x, scale = g.input(shape, dtype, layout=layout), g.input(weight, "float32")
    bias = None if mode == "rms_norm" else g.input(weight, "float32")
    if training:
        made = g.norm(x, scale, bias, mode=mode)  # type: ignore[arg-type]
        return tuple(one for one in (made.y, made.mean, made.inv_variance) if one is not None)
    return g.rms_norm(x, scale) if bias is None else g.layer_norm(x, scale, bias)


def norm_backward(g: ct.Graph, mode: str, dtype: str, shape: tuple[int, ...]) -> Made:
    layout, weight = _layout_and_weight(mode, shape)
    stats = (
        (*shape[:-1], 1) if len(shape) < 4 else (shape[0] if mode == "instance_norm" else 1, shape[1], 1, 1)
    )
    dy, x = (g.input(shape, dtype, layout=layout) for _ in range(2))
    scale, mean = g.input(weight, "float32"), None if mode == "rms_norm" else g.input(stats, "float32")
    inverse = g.input(stats, "float32")
    made = g.norm_backward(dy, x, scale, mean, inverse, mode=mode, bias_gradient=mode != "rms_norm")  # type: ignore[arg-type]
    return tuple(one for one in made if one is not None)


def chain(g: ct.Graph, dtype: str, shape: tuple[int, ...], *steps: str) -> Made:
    """Elementwise operations of one tensor; those of two take another one."""
    x = g.input(shape, dtype)
    for step in steps:
        if step in ("add", "sub", "mul", "maximum", "minimum", "add_square"):
            x = getattr(g, step)(x, g.input(shape, dtype))
        elif step == "select":
            x = g.select(x > g.input(shape, dtype), x, x * 0.5)
        elif step == "positive":
            x = g.abs(x) + 1.0
        elif step.endswith("_backward"):
            x = getattr(g, step)(g.input(shape, dtype), x)
        else:
            x = getattr(g, step)(x)
    return x


def reduction(g: ct.Graph, dtype: str, op: str, shape: tuple[int, ...], axes: Any, before: str = "") -> Made:
    x = g.input(shape, dtype)
    return g.reduce(getattr(g, before)(x) if before else x, op, axes)  # type: ignore[arg-type]


def attention(
    g: ct.Graph,
    dtype: str,
    sizes: tuple[int, ...],
    *,
    stats: bool = False,
    padded: bool = False,
    bias: bool = False,
    **masks: Any,
) -> Made:
    """Attention of (batch, heads, heads of keys, queries, keys, depth)."""
    batch, heads, kv_heads, rows, keys, depth = sizes
    if bias:
        masks["bias"] = g.input((1, heads, rows, keys), dtype, name="bias")
    q = g.input((batch, heads, rows, depth), dtype)
    k, v = (g.input((batch, kv_heads, keys, depth), dtype) for _ in range(2))
    if padded:
        masks |= {name: g.input((batch, 1, 1, 1), "int32", name=name) for name in ("seq_len_q", "seq_len_kv")}
    return g.sdpa_with_stats(q, k, v, **masks) if stats else g.sdpa(q, k, v, **masks)


def attention_backward(
    g: ct.Graph, dtype: str, sizes: tuple[int, ...], *, padded: bool = False, bias: bool = False, **masks: Any
) -> Made:
    batch, heads, kv_heads, rows, keys, depth = sizes
    if bias:
        masks |= {"bias": g.input((1, heads, rows, keys), dtype, name="bias"), "dbias": True}
    if padded:
        masks |= {name: g.input((batch, 1, 1, 1), "int32", name=name) for name in ("seq_len_q", "seq_len_kv")}
    q = g.input((batch, heads, rows, depth), dtype)
    k, v = (g.input((batch, kv_heads, keys, depth), dtype) for _ in range(2))
    o, do = (g.input(q.shape, dtype) for _ in range(2))
    stats = g.input((batch, heads, rows, 1), "float32")
    made = g.sdpa_backward(do, q, k, v, o, stats, **masks)
    return tuple(one for one in made if one is not None)


def _kinds() -> Iterator[tuple[str, Kind]]:
    for dtype in ("float16", "bfloat16", "float32"):
        for steps in ((), ("bias", "gelu"), ("bias", "residual", "relu")):
            yield f"matmul {' '.join(steps)} {dtype}", partial(_matmul_of(steps), dtype=dtype)
    for steps in (("bias", "gelu tanh"), ("bias", "swish"), ("half", "tanh"), ("max",), ("bias", "sigmoid")):
        yield f"matmul {' '.join(steps)}", partial(_matmul_of(steps), dtype="bfloat16")
    wide = {"batch": 4}
    yield "matmul batched", lambda g: matmul(g, "bfloat16", 128, 64, 96, "bias", **wide)
    yield "matmul one b for all", lambda g: matmul(g, "bfloat16", 128, 64, 96, "relu", batch=4, shared=True)
    yield "matmul odd rows", lambda g: matmul(g, "float16", 57, 72, 40, "bias", "elu")
    x, w, tall = (4, 32, 14, 12), (64, 32, 3, 3), (64, 32, 1, 1)
    for dtype in ("float16", "bfloat16", "float32"):
        yield f"conv {dtype}", _conv_of(dtype, x, w, padding=1)
        yield f"conv bias relu {dtype}", _conv_of(dtype, x, w, "bias", "relu", padding=1)
    half = "float16"
    all_steps = ("scale", "bias", "residual", "relu")
    yield "conv scale bias residual relu", _conv_of(half, x, w, *all_steps, padding=1)
    yield "conv 1 x 1 gelu", _conv_of(half, x, tall, "bias", "gelu")
    yield "conv stride 2 swish", _conv_of(half, x, w, "bias", "swish", padding=1, stride=2)
    yield "conv dilated", _conv_of(half, x, w, padding=2, dilation=2)
    yield "conv statistics", _conv_of(half, x, w, "stats", padding=1)
    for dtype in (half, "bfloat16"):
        yield f"conv data {dtype}", lambda g, dtype=dtype: conv_data(g, dtype, x, w, padding=1)
        yield f"conv filter {dtype}", lambda g, dtype=dtype: conv_filter(g, dtype, x, w, padding=1)
    yield "conv data stride 2", lambda g: conv_data(g, half, (4, 32, 16, 16), w, padding=1, stride=2)
    yield "conv filter stride 2", lambda g: conv_filter(g, half, (4, 32, 16, 16), w, padding=1, stride=2)
    for mode in ("layer_norm", "rms_norm"):
        for dtype in ("bfloat16", "float32"):
            yield f"{mode} {dtype}", partial(norm, mode=mode, dtype=dtype, shape=(128, 256))
            yield f"{mode} backward {dtype}", partial(norm_backward, mode=mode, dtype=dtype, shape=(128, 256))
        rows: dict[str, Any] = {"dtype": "bfloat16", "shape": (96, 512)}
        yield f"{mode} inference", partial(norm, mode=mode, training=False, **rows)
        yield f"{mode} of three axes", partial(norm, mode=mode, dtype=half, shape=(4, 33, 128))
    images: dict[str, Any] = {"dtype": half, "shape": (4, 32, 14, 12)}
    yield "instance norm", partial(norm, mode="instance_norm", **images)
    yield "instance norm backward", partial(norm_backward, mode="instance_norm", **images)
    yield "batch norm", partial(norm, mode="batch_norm", **images)
    yield "batch norm backward", partial(norm_backward, mode="batch_norm", **images)
    samples: dict[str, Any] = {"dtype": "bfloat16", "shape": (4, 64, 256)}
    yield "ada layer norm", partial(norm, mode="ada_layer_norm", **samples)
    yield "ada layer norm backward", partial(norm_backward, mode="ada_layer_norm", **samples)
    for steps in (
        ("add", "relu"),
        ("mul", "sub", "tanh"),
        ("positive", "sqrt", "log"),
        ("positive", "rsqrt", "exp"),
        ("select", "swish"),
        ("gelu", "add_square"),
        ("maximum", "sigmoid", "minimum", "softplus"),
        ("sin", "cos", "erf"),
        ("gelu_backward",),
        ("swish_backward",),
        ("relu_backward", "mul"),
        ("tanh_backward",),
        ("elu_backward",),
    ):
        dtype = "float32" if len(steps) > 2 else half
        yield f"elementwise {' '.join(steps)}", partial(_chain_of(steps), dtype=dtype)
    for op in ("add", "max", "min", "amax", "average", "norm1", "norm2"):
        yield f"reduction {op}", partial(reduction, dtype="float32", op=op, shape=(32, 64, 128), axes=2)
    yield "reduction of half precision", lambda g: reduction(g, half, "add", (64, 256), 1, "abs")
    yield "reduction of rows", lambda g: reduction(g, half, "add", (64, 256), 0)
    plain, grouped = (2, 4, 4, 128, 128, 64), (2, 8, 2, 96, 160, 64)
    for dtype in (half, "bfloat16"):
        facts: dict[str, Any] = {"dtype": dtype, "sizes": plain}
        yield f"attention {dtype}", partial(attention, **facts)
        yield f"attention causal {dtype}", partial(attention, causal=True, stats=True, **facts)
        yield f"attention backward {dtype}", partial(attention_backward, **facts)
        yield f"attention backward causal {dtype}", partial(attention_backward, causal=True, **facts)
    yield "attention grouped heads", partial(attention, dtype=half, sizes=grouped, stats=True)
    yield "attention one head of keys", partial(attention, dtype=half, sizes=(2, 8, 1, 64, 64, 128))
    fewer = (2, 4, 2, 96, 160, 64)
    corner: dict[str, Any] = {"dtype": half, "sizes": fewer, "causal": "bottom_right"}
    both: dict[str, Any] = {"dtype": half, "sizes": plain, "window": (17, 9)}
    for name, masks in (
        ("window", {"dtype": half, "sizes": plain, "causal": True, "window": (16, 0)}),
        ("window of both sides", both),
        ("bottom right", corner),
        ("bottom right window", {**corner, "window": (40, 0)}),
        ("bias", {"dtype": half, "sizes": plain, "bias": True}),
        ("bias causal", {"dtype": half, "sizes": plain, "bias": True, "causal": True}),
    ):
        yield f"attention {name}", partial(attention, stats=True, **masks)
        yield f"attention backward {name}", partial(attention_backward, **masks)
    yield "attention backward padded", partial(attention_backward, dtype=half, sizes=plain, padded=True)
    yield "attention padded", partial(attention, dtype=half, sizes=plain, padded=True, stats=True)
    yield "attention scale", partial(attention, dtype=half, sizes=plain, scale=0.3)
    pairs = (2, 8, 2, 128, 128, 64)
    yield "attention backward grouped heads", partial(attention_backward, dtype=half, sizes=pairs)


def _matmul_of(steps: tuple[str, ...]) -> Callable[..., Made]:
    return lambda g, dtype: matmul(g, dtype, 128, 192, 64, *steps)


def _conv_of(dtype: str, x: tuple[int, ...], w: tuple[int, ...], *steps: str, **geometry: Any) -> Kind:
    return lambda g: conv(g, dtype, x, w, *steps, **geometry)


def _chain_of(steps: tuple[str, ...]) -> Callable[..., Made]:
    return lambda g, dtype: chain(g, dtype, (16, 24, 128), *steps)


KINDS: dict[str, Kind] = dict(_kinds())
