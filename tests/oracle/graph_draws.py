"""Random graphs: a structure by the number of the graph, shapes by the number of the variant.

Structures are those that cuDNN documents: pointwise chains, products of matrices and convolutions with what
precedes and follows them, reductions, normalisations, pooling and attention, and pairs of these kinds. Their
operands are broadcast from either side, have other dtypes, serve two operations, or are computed; results may
have gaps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import cudnn_ct as ct

__all__ = ["FAMILIES", "draw_graph"]

DTYPES = ("float16", "bfloat16", "float32")
SMOOTH = ("tanh", "sigmoid", "gelu", "swish", "softplus", "elu", "relu", "abs", "neg", "sin", "cos", "erf")
POSITIVE = ("sqrt", "rsqrt", "log", "reciprocal")
TWO = ("add", "sub", "mul", "maximum", "minimum", "add_square")
SLOPES = ("relu", "tanh", "sigmoid", "gelu", "swish", "elu", "softplus")
SMOOTH_SLOPES = SLOPES[1:]  # where x is computed, rounding decides on the slope of relu
STEPS = ("one", "one", "two", "two", "number", "positive", "select", "gradient", "gradient", "clip", "index")
SMALL = (1, 2, 3, 5, 7, 9, 12, 17, 20)


class Draw:
    """Choices of a structure and of its shapes, from two generators, and the graph that they make.

    Structures of ``odd`` sizes have short axes and axes of odd lengths; those that are ``mixed`` have
    operands of several dtypes.
    """

    def __init__(self, seed: int, number: int, variant: int, *, small: bool) -> None:
        self.structure = np.random.default_rng([seed, number])
        self.shapes = np.random.default_rng([seed, number, variant, 1])
        self.small = small
        self.dtype = str(self.structure.choice(DTYPES))
        self.odd, self.mixed = self.flip(0.35), self.flip(0.25)
        self.graph = ct.Graph()
        self.text: list[str] = ["odd"] * self.odd
        self.given: list[ct.GraphTensor] = []

    def choice(self, options: Any) -> Any:
        """Choose a part of the structure."""
        return options[int(self.structure.integers(len(options)))]

    def flip(self, chance: float = 0.5) -> bool:
        return bool(self.structure.random() < chance)

    def length(self, *options: int) -> int:
        """Choose a length; graphs for the fakes have short axes."""
        options = SMALL if self.odd else options
        found = options[int(self.shapes.integers(len(options)))]
        return min(found, 8) if self.small else found

    def input(
        self, shape: tuple[int, ...], dtype: str | None = None, layout: Any = None, *, strides: Any = None
    ) -> ct.GraphTensor:
        """Return a new input, or one that the graph has if it is like the new one."""
        dtype = dtype or (self.choice(DTYPES) if self.mixed and self.flip(0.3) else self.dtype)
        if self.flip(0.1):
            for one in self.given:
                if one.shape == shape and one.dtype == dtype and layout is None and strides is None:
                    self.text.append("again")
                    return one
        made = self.graph.input(shape, dtype, layout=layout, strides=strides)
        self.given.append(made)
        return made

    def is_input(self, x: ct.GraphTensor) -> bool:
        return any(one is x for one in self.given)

    def like(self, x: ct.GraphTensor, *, layout: Any = None) -> ct.GraphTensor:
        """Return an operand that broadcasts to x: of its shape, or with axes of length 1."""
        rank = len(x.shape)
        kind = self.choice(("whole", "last" if layout is None else "channel", "one", "axis", "any"))
        if layout is None and rank > 2 and self.flip(0.1):  # its last two axes are exchanged in memory
            rows, columns = x.shape[-2:]
            self.text.append("exchanged")
            ones, size = (1,) * (rank - 2), rows * columns
            return self.input((*ones, rows, columns), strides=(*(size for _ in ones), 1, rows))
        kept = [self.flip() for _ in range(rank)] if kind == "any" else [kind == "whole"] * rank
        if kind in ("last", "channel", "axis"):
            axis = 1 if layout is not None else rank - 1
            kept[self.choice(range(rank)) if kind == "axis" else axis] = True
        shape = tuple(n if keep else 1 for n, keep in zip(x.shape, kept, strict=True))
        made = self.input(shape, layout=layout if all(kept) or self.flip() else None)
        self.text.append("".join("k" if keep else "1" for keep in kept))
        if self.flip(0.15):
            self.text.append("computed")
            made = getattr(self.graph, self.choice(SMOOTH))(made)
        return made

    def pointwise(self, x: ct.GraphTensor, steps: int, layout: Any = None) -> ct.GraphTensor:
        """Add pointwise operations after x."""
        for _ in range(steps):
            x, name = self._step(x, self.choice(STEPS), layout)
            self.text.append(name)
        return x

    def _step(self, x: ct.GraphTensor, kind: str, layout: Any) -> tuple[ct.GraphTensor, str]:
        g = self.graph
        if kind == "one":
            name = self.choice(SMOOTH)
            return getattr(g, name)(x), name
        if kind == "two":
            name, other = self.choice(TWO), self.like(x, layout=layout)
            operands = (other, x) if self.flip(0.4) else (x, other)
            return getattr(g, name)(*operands), name
        if kind == "number":
            number = float(self.choice((0.5, 1.5, -2.0, 0.25)))
            return (x * number, "* number") if self.flip() else (x + number, "+ number")
        if kind == "positive":
            name = self.choice(POSITIVE)
            return getattr(g, name)(g.abs(x) + 1.0), name
        if kind == "gradient":
            return self.gradient(x, layout)
        if kind == "clip":
            return g.relu(x, lower=float(self.choice((0.0, -0.5, 0.25))), upper=0.75), "clip"
        if kind == "index":
            axis = self.choice(range(len(x.shape)))
            return g.gen_index(x, axis) * x * 0.125, f"index {axis}"
        condition = self.input(x.shape, layout=layout) > self.input(x.shape, layout=layout)
        return g.select(condition, x, x * 0.5), "select"

    def gradient(self, x: ct.GraphTensor, layout: Any) -> tuple[ct.GraphTensor, str]:
        """Add the gradient of an activation at x, or at an operand that is broadcast to it."""
        other = self.like(x, layout=layout)
        if self.flip(0.3):
            name = self.choice(SMOOTH_SLOPES)
            return getattr(self.graph, f"{name}_backward")(other, x), f"{name}_backward of x"
        name = self.choice(SLOPES if self.is_input(other) else SMOOTH_SLOPES)
        return getattr(self.graph, f"{name}_backward")(x, other), f"{name}_backward"

    def stored(self, y: ct.GraphTensor) -> ct.GraphTensor:
        """Give a result gaps between its rows, or another dtype."""
        if self.flip(0.06) and len(y.shape) > 1 and "channels" not in self.text:
            self.text.append("gaps")
            steps, step = [], 1
            for n in reversed(y.shape):
                steps.append(step)
                step = n * step + (3 if len(steps) == 1 else 0)
            return y.output(strides=tuple(reversed(steps)))
        return y.output(dtype=self.choice(DTYPES)) if self.mixed and self.flip(0.3) else y


def _chain(d: Draw) -> Any:
    rank = d.choice((2, 3, 4))
    layout = d.choice(("nhwc", None)) if rank == 4 else None
    shape = (*(d.length(8, 16, 33, 64) for _ in range(rank - 1)), d.length(32, 64, 128))
    if rank == 4:
        shape = (d.length(1, 4, 8), d.length(16, 32, 64), d.length(7, 14), d.length(7, 16))
    x = d.input(shape, layout=layout)
    y = d.pointwise(x, int(d.structure.integers(1, 6)), layout)
    return (y if layout else d.stored(y)) if y is not x else d.graph.identity(x)


def _slope(d: Draw) -> Any:
    shape = (d.length(16, 64, 100), d.length(32, 64, 128))
    name, x = d.choice(SLOPES), d.input(shape)
    other = d.like(x) if d.flip() else d.input(shape)
    if not d.is_input(other):
        name = d.choice(SMOOTH_SLOPES)
    d.text.append(f"{name}_backward")
    return d.stored(getattr(d.graph, f"{name}_backward")(*((x, other) if d.flip() else (other, x))))


def _matmul(d: Draw) -> Any:
    m, n, k = d.length(16, 64, 128, 200), d.length(32, 64, 256), d.length(32, 64, 128)
    batched = d.choice(("none", "both", "broadcast"))
    batch = () if batched == "none" else (d.length(1, 3, 4),)
    d.text.append(f"matmul {batched}")
    a = d.input((*batch, m, k))
    of_b = (*(batch if batched == "both" else ()), k, n)
    turned = len(of_b) == 2 and d.flip(0.3)
    b = d.input(of_b, strides=(1, k) if turned else None)
    if d.flip(0.3):
        a = d.pointwise(a, 1)
        d.text.append("before")
    if d.flip(0.15):
        b = getattr(d.graph, d.choice(SMOOTH))(b)
        d.text.append("before b")
    y = d.pointwise(a @ b, int(d.structure.integers(0, 5)))
    if d.flip(0.2):
        d.text.append("reduced")
        return y.output(), d.graph.reduce(y, d.choice(("add", "max", "amax")), -1)
    return d.stored(y)


def _two_dtypes(d: Draw) -> Any:
    """Return a product of half precision and float32 that the graph computes an operand of."""
    d.odd = True
    m, n, k = (d.length() for _ in "mnk")
    half, computed = d.choice(("float16", "bfloat16")), d.choice(("a", "b", "ab"))
    dtypes = (half, "float32") if d.flip() else ("float32", half)
    made = []
    for name, shape, dtype in zip("ab", ((m, k), (k, n)), dtypes, strict=True):
        one = d.input(shape, dtype, strides=(1, shape[0]) if d.flip() else None)
        made.append(getattr(d.graph, d.choice(SMOOTH))(one) if name in computed else one)
    d.text.append(f"matmul of {' and '.join(dtypes)}, computed {computed}")
    return d.pointwise(made[0] @ made[1], int(d.structure.integers(0, 2)))


def _images(d: Draw) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Return shapes of images and filters; channels of odd sizes are 4 modulo 8, or fewer, or odd."""
    d.text.append("channels")
    few = (4, 12, 20, 8, 2, 3) if d.odd else (16, 32, 64)
    channels, kernels = (int(few[int(d.shapes.integers(len(few)))]) for _ in "xw")
    if d.small:
        channels, kernels = min(channels, 8), min(kernels, 8)
    window, pixel = d.choice((1, 2, 3)), d.flip(0.1)
    size = max(d.length(7, 14, 16), window)
    x = (d.length(1, 2, 8), channels, size, max(d.length(7, 12), window))
    if pixel:  # the result has one
        d.text.append("pixel")
        return (*x[:2], window, window), (kernels, channels, window, window), {"padding": 0, "stride": 1}
    return (
        x,
        (kernels, channels, window, window),
        {"padding": window // 2, "stride": d.choice((1, 1, 2))},
    )


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
    steps = int(d.structure.integers(0, 3))
    if d.flip():
        d.text.append(f"conv data {w[2]} stride {geometry['stride']}")
        dx = d.graph.conv_backward_data(d.input(y, layout=layout), d.input(w, layout=layout), x, **geometry)
        if d.flip(0.4):
            dx, name = d.gradient(dx, layout)
            d.text.append(name)
        return d.pointwise(dx, steps, layout)
    d.text.append(f"conv filter {w[2]} stride {geometry['stride']}")
    dy, source = d.input(y, layout=layout), d.input(x, layout=layout)
    if d.flip(0.15):
        source = d.pointwise(source, 1, layout)
        d.text.append("before")
    dw = d.graph.conv_backward_filter(dy, source, w, **geometry)
    return d.pointwise(dw, steps, layout).output(layout=layout)


def _conv_of_two_dtypes(d: Draw) -> Any:
    """Return a convolution, or one of its gradients, of two dtypes."""
    x, w, geometry = _images(d)
    y = ct.conv_output_shape(x, w, **geometry)
    first = d.choice(DTYPES)
    dtypes = first, d.choice([dtype for dtype in DTYPES if dtype != first])
    kind, layout = d.choice(("conv", "data", "filter")), d.choice(("nhwc", "nhwc", "nchw"))
    shapes = {"conv": (x, w), "data": (y, w), "filter": (y, x)}[kind]
    operands = [d.input(shape, dtype, layout=layout) for shape, dtype in zip(shapes, dtypes, strict=True)]
    d.text.append(f"{kind} {w[2]} stride {geometry['stride']} of {' and '.join(dtypes)}")
    if kind == "conv":
        made = d.graph.conv(*operands, **geometry)
    elif kind == "data":
        made = d.graph.conv_backward_data(*operands, x, **geometry)
    else:
        made = d.graph.conv_backward_filter(*operands, w, **geometry)
    return d.pointwise(made, int(d.structure.integers(0, 3)), layout).output(layout=layout)


def _reduction(d: Draw) -> Any:
    shape = (d.length(4, 16), d.length(64, 100), d.length(128, 256))
    op, axes = (
        d.choice(("add", "max", "min", "amax", "average", "norm1", "norm2")),
        d.choice((0, 1, 2, (1, 2))),
    )
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
    d.mixed = False  # operands have one dtype
    if d.dtype == "float32":
        d.dtype = "bfloat16"
    heads, group, size = d.choice((2, 4)), d.choice((1, 2)), d.choice((32, 64))
    batch, rows, keys = d.length(1, 2), d.length(64, 100, 128), d.length(64, 128, 160)
    q = d.input((batch, heads, rows, size))
    k, v = (d.input((batch, heads // group, keys, size)) for _ in range(2))
    d.text.append("attention")
    return d.graph.sdpa_with_stats(q, k, v)


def _pair(d: Draw) -> Any:
    """Return an operation on the result of one of another kind."""
    g, m, n, k = d.graph, d.length(16, 64, 100), d.length(32, 64, 128), d.length(32, 64)
    first = d.choice(("matmul", "norm", "reduce", "chain"))
    second = d.choice(("matmul", "norm", "reduce", "chain"))
    d.text.append(f"{first} then {second}")

    def norm(x: ct.GraphTensor) -> ct.GraphTensor:
        return g.rms_norm(x, d.input(x.shape[-1:], "float32"))

    x = d.input((m, k)) @ d.input((k, n)) if first == "matmul" else d.input((m, n))
    if first == "norm":
        x = norm(x)
    elif first == "reduce":
        x = g.reduce(x, "add", -1)
    elif first == "chain":
        x = d.pointwise(x, 2)
    if second == "matmul":
        return x @ d.input((x.shape[-1], k))
    if second == "norm":
        return norm(x)
    return g.reduce(x, "amax", 0) if second == "reduce" else d.pointwise(x, 1)


FAMILIES: dict[str, tuple[Callable[[Draw], Any], int]] = {  # and how often each is drawn
    "chain": (_chain, 5),
    "slope": (_slope, 2),
    "matmul": (_matmul, 6),
    "two_dtypes": (_two_dtypes, 2),
    "conv": (_conv, 5),
    "conv_gradient": (_conv_gradient, 3),
    "conv_of_two_dtypes": (_conv_of_two_dtypes, 1),
    "reduction": (_reduction, 2),
    "norm": (_norm, 4),
    "pooling": (_pooling, 1),
    "attention": (_attention, 1),
    "pair": (_pair, 2),
}


def draw_graph(
    seed: int, number: int, variant: int, *, small: bool = False, family: str | None = None
) -> tuple[Any, str]:
    """Return the value of a random graph, and its structure as text; ``family`` restricts the draw."""
    d = Draw(seed, number, variant, small=small)
    name = d.choice([name for name, (_, weight) in FAMILIES.items() for _ in range(weight)])
    name = family or name
    made = FAMILIES[name][0](d)
    outputs = made if isinstance(made, tuple) else (made,)
    return (d.graph, outputs), f"{d.dtype}: {', '.join(d.text) or name}"
