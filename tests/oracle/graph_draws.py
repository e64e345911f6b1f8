"""Random graphs: a structure by the number of the graph, shapes by the number of the variant.

Structures are those that cuDNN documents: pointwise chains, products of matrices and convolutions with what
precedes and follows them, reductions, normalisations, pooling and attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import cudnn_ct as ct

__all__ = ["draw_graph"]

DTYPES = ("float16", "bfloat16", "float32")
SMOOTH = ("tanh", "sigmoid", "gelu", "swish", "softplus", "elu", "relu", "abs", "neg", "sin", "cos", "erf")
POSITIVE = ("sqrt", "rsqrt", "log", "reciprocal")
TWO = ("add", "sub", "mul", "maximum", "minimum", "add_square")
SLOPES = ("relu", "tanh", "sigmoid", "gelu", "swish", "elu", "softplus")


class Draw:
    """Choices of a structure and of its shapes, from two generators, and the graph that they make."""

    def __init__(self, seed: int, number: int, variant: int, *, small: bool) -> None:
        self.structure = np.random.default_rng([seed, number])
        self.shapes = np.random.default_rng([seed, number, variant, 1])
        self.small = small
        self.dtype = str(self.structure.choice(DTYPES))
        self.graph = ct.Graph()
        self.text: list[str] = []

    def choice(self, options: Any) -> Any:
        """Choose a part of the structure."""
        return options[int(self.structure.integers(len(options)))]

    def flip(self, chance: float = 0.5) -> bool:
        return bool(self.structure.random() < chance)

    def length(self, *options: int) -> int:
        """Choose a length; graphs for the fakes have short axes."""
        found = options[int(self.shapes.integers(len(options)))]
        return min(found, 8) if self.small else found

    def input(self, shape: tuple[int, ...], dtype: str | None = None, layout: Any = None) -> ct.GraphTensor:
        return self.graph.input(shape, dtype or self.dtype, layout=layout)

    def like(self, x: ct.GraphTensor, *, layout: Any = None) -> ct.GraphTensor:
        """Return an input that broadcasts to x: of its shape, or with axes of length 1."""
        rank = len(x.shape)
        kinds = ["whole", "last" if layout is None else "channel", "one", "axis"]
        kind = self.choice(kinds)
        if layout is None and rank > 2 and self.flip(0.1):  # its last two axes are exchanged in memory
            rows, columns = x.shape[-2:]
            self.text.append("exchanged")
            ones, size = (1,) * (rank - 2), rows * columns
            return self.graph.input(
                (*ones, rows, columns), self.dtype, strides=(*(size for _ in ones), 1, rows)
            )
        if kind == "whole":
            return self.input(x.shape, layout=layout)
        shape = [1] * rank
        if kind != "one":
            axis = 1 if layout is not None else rank - 1
            axis = self.choice(range(rank)) if kind == "axis" else axis
            shape[axis] = x.shape[axis]
        return self.input(tuple(shape))

    def pointwise(self, x: ct.GraphTensor, steps: int, layout: Any = None) -> ct.GraphTensor:
        """Add pointwise operations after x."""
        g = self.graph
        for _ in range(steps):
            kind = self.choice(("one", "one", "two", "two", "number", "positive", "select"))
            name = ""
            if kind == "one":
                name = self.choice(SMOOTH)
                x = getattr(g, name)(x)
            elif kind == "two":
                name = self.choice(TWO)
                x = getattr(g, name)(x, self.like(x, layout=layout))
            elif kind == "number":
                number = float(self.choice((0.5, 1.5, -2.0, 0.25)))
                x, name = (x * number, "* number") if self.flip() else (x + number, "+ number")
            elif kind == "positive":
                name = self.choice(POSITIVE)
                x = getattr(g, name)(g.abs(x) + 1.0)
            else:
                condition = self.input(x.shape, layout=layout) > self.input(x.shape, layout=layout)
                x, name = g.select(condition, x, x * 0.5), "select"
            self.text.append(name)
        return x


def _chain(d: Draw) -> Any:
    rank = d.choice((2, 3, 4))
    layout = d.choice(("nhwc", None)) if rank == 4 else None
    shape = (*(d.length(8, 16, 33, 64) for _ in range(rank - 1)), d.length(32, 64, 128))
    if rank == 4:
        shape = (d.length(1, 4, 8), d.length(16, 32, 64), d.length(7, 14), d.length(7, 16))
    x = d.input(shape, layout=layout)
    y = d.pointwise(x, int(d.structure.integers(1, 6)), layout)
    return y if y is not x else d.graph.identity(x)


def _slope(d: Draw) -> Any:
    shape = (d.length(16, 64, 100), d.length(32, 64, 128))
    name = d.choice(SLOPES)
    d.text.append(f"{name}_backward")
    return getattr(d.graph, f"{name}_backward")(d.input(shape), d.input(shape))


def _matmul(d: Draw) -> Any:
    m, n, k = d.length(16, 64, 128, 200), d.length(32, 64, 256), d.length(32, 64, 128)
    batched = d.choice(("none", "both", "broadcast"))
    batch = () if batched == "none" else (d.length(1, 3, 4),)
    d.text.append(f"matmul {batched}")
    a = d.input((*batch, m, k))
    b = d.input((*(batch if batched == "both" else ()), k, n))
    if d.flip(0.2):
        a = d.pointwise(a, 1)
        d.text.append("before")
    y = d.pointwise(a @ b, int(d.structure.integers(0, 5)))
    if d.flip(0.2):
        d.text.append("reduced")
        return y.output(), d.graph.reduce(y, d.choice(("add", "max", "amax")), -1)
    return y


def _images(d: Draw) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    channels, kernels = d.length(16, 32, 64), d.length(16, 32, 64)
    size, window = d.length(7, 14, 16), d.choice((1, 3))
    x = (d.length(1, 2, 8), channels, size, d.length(7, 12))
    return x, (kernels, channels, window, window), {"padding": window // 2, "stride": d.choice((1, 1, 2))}


def _conv(d: Draw) -> Any:
    x, w, geometry = _images(d)
    d.text.append(f"conv {w[2]} stride {geometry['stride']}")
    layout = d.choice(("nhwc", "nhwc", "nchw"))
    source = d.input(x, layout=layout)
    if d.flip(0.15):
        source = d.pointwise(source, 1, layout)
        d.text.append("before")
    y = d.graph.conv(source, d.input(w, layout=layout), **geometry)
    return d.pointwise(y, int(d.structure.integers(0, 5)), layout)


def _conv_gradient(d: Draw) -> Any:
    x, w, geometry = _images(d)
    y = ct.conv_output_shape(x, w, **geometry)
    layout = d.choice(("nhwc", "nhwc", "nchw"))
    if d.flip():
        d.text.append(f"conv data {w[2]} stride {geometry['stride']}")
        dx = d.graph.conv_backward_data(d.input(y, layout=layout), d.input(w, layout=layout), x, **geometry)
        return d.pointwise(dx, int(d.structure.integers(0, 3)), layout)
    d.text.append(f"conv filter {w[2]} stride {geometry['stride']}")
    operands = d.input(y, layout=layout), d.input(x, layout=layout)
    return d.graph.conv_backward_filter(*operands, w, **geometry).output(layout=layout)


def _reduction(d: Draw) -> Any:
    shape = (d.length(4, 16), d.length(64, 100), d.length(128, 256))
    op, axes = d.choice(("add", "max", "min", "amax", "avg", "norm1", "norm2")), d.choice((0, 1, 2, (1, 2)))
    x = d.pointwise(d.input(shape), int(d.structure.integers(0, 3)))
    d.text.append(f"reduce {op} {axes}")
    y = d.graph.reduce(x, op, axes)
    return d.pointwise(y, 1) if d.flip(0.3) else y


def _norm(d: Draw) -> Any:
    mode = d.choice(("layer_norm", "rms_norm", "instance_norm", "batch_norm"))
    d.text.append(mode)
    g, rows = d.graph, mode in ("layer_norm", "rms_norm")
    shape: tuple[int, ...] = (d.length(16, 64, 100), d.length(64, 128, 256))
    if rows and d.flip(0.3):
        shape = (d.length(2, 3, 8), *shape)
    if not rows:
        shape = (d.length(2, 8), d.length(16, 32), d.length(8, 14), d.length(8, 16))
    layout = None if rows else "nhwc"
    weight = (shape[-1],) if rows else (1, shape[1], 1, 1)
    x = d.input(shape, layout=layout)
    scale = d.input(weight, "float32")
    biased = mode != "rms_norm" or d.flip()
    if d.flip(0.3):
        d.text.append("backward")
        stats = (*shape[:-1], 1) if rows else (shape[0] if mode == "instance_norm" else 1, shape[1], 1, 1)
        mean = None if mode == "rms_norm" else d.input(stats, "float32")
        inverse, dy = d.input(stats, "float32"), d.input(shape, layout=layout)
        gradients = g.norm_backward(dy, x, scale, mean, inverse, mode=mode, bias_gradient=biased)
        return tuple(one for one in gradients if one is not None)
    bias = d.input(weight, "float32") if biased else None
    if rows and d.flip():
        d.text.append("inference")
        plain = bias is None or mode == "rms_norm"
        norm = g.rms_norm(x, scale, bias) if plain else g.layer_norm(x, scale, bias)  # type: ignore[arg-type]
        return d.pointwise(norm, 1) if d.flip(0.3) else norm
    results = g.norm(x, scale, bias, mode=mode)
    return tuple(one for one in results if one is not None)


def _pooling(d: Draw) -> Any:
    shape = (d.length(1, 4), d.length(16, 32), d.length(12, 16), d.length(12, 17))
    mode = d.choice(("maxpool", "avgpool", "avgpool_exclude_padding"))
    window, stride, padding = d.choice(((2, 2, 0), (3, 2, 1), (3, 1, 1)))
    d.text.append(f"{mode} {window}")
    x = d.input(shape, layout="nhwc")
    y = d.graph.resample(x, mode, window, stride=stride, padding=padding)
    return d.pointwise(y, int(d.structure.integers(0, 2)), "nhwc")


def _attention(d: Draw) -> Any:
    if d.dtype == "float32":
        d.dtype = "bfloat16"
    heads, group, size = d.choice((2, 4)), d.choice((1, 2)), d.choice((32, 64))
    batch, rows, keys = d.length(1, 2), d.length(64, 100, 128), d.length(64, 128, 160)
    q = d.input((batch, heads, rows, size))
    k, v = (d.input((batch, heads // group, keys, size)) for _ in range(2))
    d.text.append("attention")
    return d.graph.sdpa_with_stats(q, k, v)


FAMILIES: tuple[tuple[Callable[[Draw], Any], int], ...] = (
    (_chain, 5),
    (_slope, 1),
    (_matmul, 6),
    (_conv, 5),
    (_conv_gradient, 3),
    (_reduction, 2),
    (_norm, 4),
    (_pooling, 1),
    (_attention, 1),
)


def draw_graph(seed: int, number: int, variant: int, *, small: bool = False) -> tuple[Any, str]:
    """Return the value of a random graph, and its structure as text."""
    d = Draw(seed, number, variant, small=small)
    families = [family for family, weight in FAMILIES for _ in range(weight)]
    family = d.choice(families)
    made = family(d)
    outputs = made if isinstance(made, tuple) else (made,)
    return (d.graph, outputs), f"{d.dtype}: {', '.join(d.text) or family.__name__.strip('_')}"
