"""Problems drawn at random, among which the rows of facts.json find their examples and near misses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import cudnn_ct as ct
from cudnn_ct.errors import CudnnError
from cudnn_ct.graph.layouts import NATIVE
from cudnn_ct.legal.subjects import Norm, Subject, subjects_of
from cudnn_ct.ops.graph.lower import lowered
from cudnn_ct.shapes.attention import scaled_attention_problem
from cudnn_ct.shapes.attention_rules import attention_gradient_problem, attention_problem
from cudnn_ct.shapes.conv import ConvProblem, conv_problem
from cudnn_ct.shapes.fused import ConvParameters, FusedConv, ScaledConv
from cudnn_ct.shapes.matmul import matmul_problem, scaled_matmul_problem
from cudnn_ct.shapes.rnn import rnn_spec
from cudnn_ct.shapes.sequences import RNNProblem
from cudnn_ct.shapes.specs import TensorSpec
from tests.oracle.graph_draws import draw_graph

from .native import TARGET

SEED, COUNT = 1, 6_000


@cache
def pool(seed: int = SEED) -> dict[str, list[Any]]:
    """Return the subjects of random problems by the names of their operations."""
    found: dict[str, list[Any]] = {}
    rng = random.Random(seed)
    for family, count in _FAMILIES:
        for _ in range(count):
            try:
                subjects = tuple(family(rng))
            except (ValueError, TypeError, CudnnError):
                continue  # the draws do not fit together
            for operation, subject in subjects:
                found.setdefault(operation, []).append(subject)
    return found


def _convolutions(rng: random.Random) -> Iterator[Subject]:
    axes = rng.choice((1, 2, 2, 2, 3))
    groups = rng.choice((1, 1, 1, 2, 4, 32))
    thick, filters = rng.choice((1, 2, 4, 8, 16, 32, 64, 128)), rng.choice((1, 2, 4, 8, 16, 64, 128, 256))
    side = rng.choice((1, 3, 5, 7, 8, 14, 28, 56))
    window = rng.choice(((1,), (3,), (3,), (5,), (2,), (7,)))[0]
    dtype = rng.choice(("float32", "float32", "float64", "float16", "bfloat16", "int8"))
    x = (rng.choice((1, 2, 32, 64, 2**19)), groups * thick, *(side,) * axes)
    w = (groups * filters, thick, *(window,) * axes)
    layouts = rng.choice((("nchw",) * 3, ("nhwc",) * 3, tuple(rng.choice(("nchw", "nhwc")) for _ in "xwy")))
    specs = [TensorSpec.packed(shape, dtype, layout) for shape, layout in zip((x, w), layouts, strict=False)]
    pad = rng.choice((0, 1, 1, 2, [(1, 0)] * axes))
    conv = conv_problem(
        "forward",
        *specs,
        padding=pad,
        stride=rng.choice((1, 1, 2)),
        dilation=rng.choice((1, 1, 1, 2)),
        groups=groups,
        mode=rng.choice(("cross_correlation", "cross_correlation", "convolution")),
        precision=rng.choice((None, None, _PRECISIONS.get(dtype))),
    )
    conv = conv._replace(y=TensorSpec.packed(conv.y.shape, conv.y.dtype, layouts[2]))
    direction = rng.choice(("forward", "backward_data", "backward_filter"))
    yield from subjects_of(conv._replace(direction=direction))
    if rng.random() < 0.3:
        yield from subjects_of(_fused(rng, conv))


_PRECISIONS = {"float32": "float32", "float16": "float16", "bfloat16": "bfloat16"}


def _sized(rng: random.Random) -> Iterator[Subject]:
    """Yield convolutions of float32, in TF32 with one axis, or float64, of the sizes of networks, in NCHW."""
    channels, filters, side = rng.choice((64, 128)), rng.choice((64, 128, 256, 512)), rng.choice((14, 28, 56))
    axes, window = rng.choice((1, 2, 2, 3)), rng.choice((1, 3, 3))
    groups = rng.choice((1, 1, 1, 2, 32))
    side *= 64 if axes == 1 else 1
    x = (rng.choice((1, 8, 64)), channels * groups, *(side,) * axes)
    w = (filters * groups, channels if groups == 2 else channels * groups // groups, *(window,) * axes)
    dtype = rng.choice(("float32", "float64"))
    specs = (TensorSpec.packed(x, dtype), TensorSpec.packed(w, dtype))
    precision = "float32" if dtype == "float32" and axes > 1 else None
    stride = rng.choice((1, 1, 2))
    conv = conv_problem(
        "forward", *specs, padding=window // 2, stride=stride, groups=groups, precision=precision
    )
    yield from subjects_of(
        conv._replace(direction=rng.choice(("forward", "backward_data", "backward_filter")))
    )


def _fused(rng: random.Random, conv: ConvProblem) -> Any:
    activation = rng.choice(("relu", "tanh", "swish", "identity"))
    coefficient = rng.choice((0.0, 1.0, 1.5))
    if rng.random() < 0.5:
        return FusedConv(conv, activation=activation, coefficient=coefficient)
    channel = TensorSpec.packed((1, conv.y.shape[1], *[1] * (len(conv.y.shape) - 2)), conv.y.dtype)
    parameters = ConvParameters.of(conv)
    return ScaledConv(conv.x, conv.w, channel, channel, None, conv.y, parameters, activation, coefficient)


def _graphs(rng: random.Random) -> Iterator[Subject]:
    g, dtype = ct.Graph(), rng.choice(("float16", "bfloat16", "float32"))
    kind = rng.choice(("filter", "data", "forward", "pool", "product", "sum", "experts", "batch norm"))
    layout = "nhwc"
    channels, filters = rng.choice((1, 2, 4, 8, 10, 16)), rng.choice((4, 6, 8, 16))
    x, w = (2, channels, 9, 9), (filters, channels, 3, 3)
    geometry: dict[str, Any] = {"stride": rng.choice((1, 2)), "dilation": rng.choice((1, 2)), "padding": 2}
    y = ct.conv_output_shape(x, w, **geometry)
    made: Any
    if kind == "filter":
        made = g.conv_backward_filter(
            g.input(y, dtype, layout=layout), g.input(x, dtype, layout=layout), w, **geometry
        )
    elif kind in ("data", "batch norm"):
        dy = g.input(y, dtype, layout=layout)
        made = g.conv_backward_data(dy, g.input(w, dtype, layout=layout), x, **geometry)
    elif kind == "forward":
        made = g.conv(g.input(x, dtype, layout=layout), g.input(w, dtype, layout=layout), **geometry)
    elif kind == "pool":
        made = g.resample(g.input(x, dtype, layout=layout), rng.choice(("maxpool", "avgpool")), 2)
    elif kind == "product":
        m, k, n = (rng.choice((1, 8, 64, 128, 512, 4096)) for _ in "mkn")
        count = rng.choice(((), (), (2,)))
        made = g.input((*count, m, k), dtype) @ g.input((*count, k, n), dtype)
    elif kind == "sum":
        given = g.input((4, 6, 8), dtype)
        made = g.reduce(given, rng.choice(("add", "max")), rng.choice(((2,), (0,), (1, 2))))
    else:
        token = g.input((1, 256, 64), rng.choice((dtype, "float8_e4m3")))
        weight = g.input((4, 64, 128), token.dtype)
        offsets: Any = g.input((4, 1, 1), "int32")
        more: dict[str, Any] = {}
        if rng.random() < 0.3:
            more = {"mode": "gather", "token_index": g.input((1, 256, 1), "int32"), "top_k": 1}
        made = g.moe_grouped_matmul(token, weight, offsets, **more)
    if kind == "batch norm":
        data = g.input(x, dtype, layout=layout)
        parts = g.bn_backward_weights(
            g.relu_backward(made, data), data, *(g.input((1, channels, 1, 1)) for _ in range(3))
        )
        problem = g.define(*parts.values())
    else:
        after = rng.choice(("nothing", "abs", "select", "gelu", "tanh", "swish", "index"))
        made = {
            "nothing": lambda v: v,
            "abs": lambda v: g.abs(v),
            "select": lambda v: g.select(v > 0.0, v, 0.5 * v),
            "gelu": lambda v: g.gelu(v, approximate=False),
            "tanh": lambda v: g.tanh(v),
            "swish": lambda v: g.swish(v, beta=2.0),
            "index": lambda v: g.gen_index(v, rng.choice((len(v.shape) - 2, len(v.shape) - 1))) * v,
        }[after](made)
        problem = g.define(made)
    problem = problem._replace(tensor_cores=rng.random() < 0.7)
    yield from subjects_of(problem)


def _attention(rng: random.Random) -> Iterator[Subject]:
    batch, kv = rng.choice((1, 2)), rng.choice((1, 2))
    heads = kv * rng.choice((1, 1, 2))
    queries, keys = (rng.choice((1, 8, 64, 100, 128, 192, 1025, 4096, 33_280)) for _ in "qk")
    keys = rng.choice((1, keys, keys))
    head = rng.choice((64, 128, 192, 256))
    value_head = rng.choice((head, 32, 64, 128, 144, 256))
    dtype = rng.choice(("float16", "bfloat16", "float32"))
    packed = TensorSpec.packed
    specs = {
        "q": packed((batch, heads, queries, head), dtype),
        "k": packed((batch, kv, keys, head), dtype),
        "v": packed((batch, kv, keys, value_head), dtype),
    }
    if rng.random() < 0.2:
        specs["bias"] = packed((1, heads, queries, keys), dtype)
    if rng.random() < 0.2:
        specs |= dict.fromkeys(("lengths_q", "lengths_kv"), packed((batch,), "int32"))
    causal = rng.choice((False, True, "top_left", "bottom_right"))
    window = rng.choice((None, None, None, (3, None), (3, 0)))
    dropout, scale = rng.choice((0.0, 0.0, 0.1)), rng.choice((None, None, None, -1.0))
    longest = (queries, keys)
    if dropout:
        specs |= dict.fromkeys(("seed", "offset"), packed((1,), "int64"))
    if rng.random() < 0.3:
        tokens = {
            "q": (queries * batch, heads, head),
            "k": (keys * batch, kv, head),
            "v": (keys * batch, kv, value_head),
        }
        kept = {name: specs[name] for name in ("seed", "offset") if name in specs}
        specs = {name: packed(shape, dtype) for name, shape in tokens.items()} | kept
        specs |= {f"starts_{name}": packed((batch + 1,), "int32") for name in ("q", "k", "v", "y", "stats")}
        specs |= dict.fromkeys(("lengths_q", "lengths_kv"), packed((batch,), "int32"))
    if rng.random() < 0.5:
        yield from subjects_of(
            attention_problem(specs, (None, None), True, scale, causal, window, dropout, longest)
        )
        return
    rows = specs["q"].shape[:-1]
    y = packed((*rows, value_head), dtype)
    stats = packed(rows, "float32")
    if rng.random() < 0.3 and len(rows) == 3:
        stats = TensorSpec(rows, (rows[1] * rows[2], 1, rows[1]), "float32")
    given = {"dy": y, **specs, "y": y, "stats": stats}
    dbias = "bias" in specs and rng.random() < 0.7
    yield from subjects_of(
        attention_gradient_problem(given, (None,) * 4, dbias, scale, causal, window, dropout, longest)
    )


def _paged(rng: random.Random) -> Iterator[Subject]:
    packed = TensorSpec.packed
    specs = {
        "q": packed((2, 2, 8, 64), "float16"),
        "k": packed((8, 2, 16, 64), "float16"),
        "v": packed((8, 2, 16, 64), "float16"),
        "lengths_kv": packed((2,), "int32"),
        "page_table": packed((2, 4), "int32"),
    }
    yield from subjects_of(attention_problem(specs, (None, None), True, None, False, None, 0.0, (8, 64)))


def _float8(rng: random.Random) -> Iterator[Subject]:
    head, keys = rng.choice((64, 128, 192)), rng.choice((64, 4096))
    queries, causal = rng.choice((1, 64)), rng.choice((False, True))
    out_dtype = rng.choice((None, "bfloat16"))
    shape = (1, 2, queries, head)
    specs = {
        "q": TensorSpec.packed(shape, "float8_e4m3"),
        "k": TensorSpec.packed((1, 2, keys, head), "float8_e4m3"),
        "v": TensorSpec.packed((1, 2, keys, min(head, 128)), "float8_e4m3"),
    }
    amax = rng.choice((False, True))
    yield from subjects_of(
        scaled_attention_problem(specs, (None, None, None), False, amax, None, causal, out_dtype)
    )


def _products(rng: random.Random) -> Iterator[Subject]:
    dtype = rng.choice(("float32", "float16", "bfloat16", "float8_e4m3"))
    m, k, n = (rng.choice((1, 8, 64, 128, 256, 512, 4096)) for _ in "mkn")
    batch = rng.choice(((), (), (2,)))
    specs = {"a": TensorSpec.packed((*batch, m, k), dtype), "b": TensorSpec.packed((*batch, k, n), dtype)}
    if dtype == "float8_e4m3":
        yield from subjects_of(scaled_matmul_problem(specs, (None,), None, "bfloat16"))
        return
    if rng.random() < 0.5:
        specs["bias"] = TensorSpec.packed((n,), dtype)
    activation = rng.choice(("identity", "gelu", "relu"))
    yield from subjects_of(matmul_problem(specs, (None,), activation, 1.0, None, None))


def _norms(rng: random.Random) -> Iterator[Subject]:
    mode = rng.choice(("layer_norm", "rms_norm", "ada_layer_norm"))
    subject = Norm(rng.choice((64, 100, 128)), rng.random() < 0.5)
    yield f"{mode}{rng.choice(('', '_backward'))}", subject
    yield "norm_of_parameters_last", subject


def _layouts(rng: random.Random) -> Iterator[Subject]:
    """Yield graphs of poolings, convolutions, sums, conditions and copies in any layouts."""
    g, layout = ct.Graph(), rng.choice(("nchw", "nhwc"))
    kind = rng.choice(("pool", "indices", "conv", "sums", "logic", "reduction", "identity"))
    products = kind in ("reduction", "identity")
    x = g.input((4, 6, 8)) if products else g.input((2, 8, 6, 7), layout=layout)
    made: Any
    if kind == "pool":
        padding = rng.choice((0, ((1, 1), (0, 1))))
        mode = rng.choice(("maxpool", "avgpool", "avgpool_exclude_padding"))
        made = g.resample(rng.choice((x, g.abs(x))), mode, 3, padding=padding)
    elif kind == "indices":
        made = g.resample_with_indices(x, 2)
    elif kind == "conv":
        w = g.input((8, 8, 3, 3), layout=rng.choice(("nchw", "nhwc")))
        made = g.relu(g.conv(x, w))
    elif kind == "sums":
        y = g.conv(x, g.input((8, 8, 1, 1), layout=layout))
        sums = g.gen_stats(y)
        sums[0].output(dtype=rng.choice(("float32", "float16")))
        made = (y, *sums)
    elif kind == "reduction":
        rows = g.reduce(x, "add", (2,))
        made = rows.output(strides=rng.choice(((6, 1, 1), (12, 2, 1))))
    elif kind == "logic":
        both = rng.choice((g.logical_and(x > 0.0, x > 1.0), x > 0.0))
        made = g.select(both, x, 0.5 * x)
    else:
        product = x @ g.input((4, 8, 16))
        made = (g.identity(product).output(), g.reduce(product, "max", (2,)))
    problem = g.define(*(made if isinstance(made, tuple) else (made,)))
    yield from subjects_of(problem)
    yield NATIVE, lowered(problem, TARGET)


def _random_graphs(rng: random.Random) -> Iterator[Subject]:
    """Yield what the generator of random graphs draws, and its native form without the rewrites."""
    (g, outputs), _ = draw_graph(rng.randrange(2**31), 0, 0, small=True)
    problem = g.define(*outputs)
    yield from subjects_of(problem)
    yield NATIVE, lowered(problem, TARGET)


def _networks(rng: random.Random) -> Iterator[Subject]:
    direction = rng.choice(("unidirectional", "bidirectional"))
    mode, units = rng.choice(("rnn_relu", "rnn_tanh", "lstm", "gru")), rng.choice((16, 192, 320))
    spec = rnn_spec(mode, 8, units, direction=direction)
    yield from subjects_of(RNNProblem(spec, "packed", 3, 2, ragged=False, training=rng.random() < 0.5))


_FAMILIES = (
    (_convolutions, COUNT),
    (_graphs, 1_500),
    (_attention, 6_000),
    (_paged, 2),
    (_float8, 100),
    (_products, 4_000),
    (_sized, 1_500),
    (_norms, 200),
    (_random_graphs, 3_000),
    (_layouts, 300),
    (_networks, 100),
)
