"""Random calls that promise equal bits from run to run: a pure function of a seed and a number.

Sums over many elements, and results of few elements, are where kernels split a sum between blocks and add the
parts in an order that varies. So axes are long here, where those of `draw` are short. A call is asked to be
deterministic by its argument or by ``ct.config``; a quarter of the calls are those of `draw` that promise
equal bits in their docstrings without being asked.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from math import ceil, prod
from typing import Any, NamedTuple

import cudnn_ct as ct
from tests.operations import each

from .draw import RECIPES, Call, Where, draw
from .operands import Tensor
from .recipes import FLOATS, HALF, Derived, Recipe, Source, length, long_image

__all__ = ["GRAPHS", "LARGE", "Asked", "Case", "GraphCase", "draw_case", "operations"]

LARGEST = {"gpu": 2**22, "fakes": 2**10}  # elements of an operand
PROMISE = "the same bits from run to run"  # of docstrings, without any condition
OPS = ("add", "add", "average", "norm1", "norm2", "max", "min", "amax", "mul", "mul_no_zeros")


class GraphCase(NamedTuple):
    """A graph to build: the kind, its operands, and the numbers that the kind takes."""

    kind: str
    operands: dict[str, Tensor]
    arguments: dict[str, Any]


class Case(NamedTuple):
    """A call or a graph, and how it is asked to be deterministic: "argument", "config" or "docstring"."""

    operation: str
    asked: str
    call: Call | None = None
    graph: GraphCase | None = None

    def __str__(self) -> str:
        return f"{self.operation} by {self.asked}: {self.call or self.graph}"


Asked = tuple[str, ...]


def operations(device: str) -> list[str]:
    """The operations to draw from: large ones, those of docstrings as "docstring", and graphs."""
    return [*LARGE, *GRAPHS, *["docstring"] * (len(LARGE) + len(GRAPHS) // 2)]


def draw_case(seed: int, number: int, device: str, only: Sequence[str] = ()) -> Case:
    """Draw a case; ``device`` is "gpu" or "fakes", ``only`` are operations to draw from."""
    source = Source(f"determinism {seed}:{number}")
    operation = source.choice(list(only) or operations(device))
    most = LARGEST[device]
    if operation in GRAPHS:
        return Case(operation, source.choice(("argument", "config")), graph=GRAPHS[operation](source, most))
    if operation == "docstring":
        return _of_docstring(source, seed, number, device)
    recipe = LARGE[operation](source, most)
    layouts = [_order(source, 5)] * 2 if source.chance(0.5) else []
    operands = {}
    for name, (shape, dtype, values) in recipe.operands.items():
        order = layouts[0] if layouts else _order(source, 5)
        order = tuple(axis for axis in order if axis < len(shape))
        if recipe.order and len(recipe.order) == len(shape):
            order = recipe.order if source.chance(0.5) else tuple(range(len(shape)))
        if operation.startswith("layer") or operation.startswith("rms"):
            order = ()
        operands[name] = Tensor(shape, dtype, values, order, seed=source.randrange(2**32))
    asked = "argument" if "deterministic" in _parameters(operation) and source.chance(0.5) else "config"
    arguments = recipe.arguments | ({"deterministic": True} if asked == "argument" else {})
    return Case(operation, asked, _call((seed, number, operation), operands, arguments, recipe.derived))


def _call(drawn: tuple[int, int, str], operands: Any, arguments: dict[str, Any], derived: Any) -> Call:
    """Return a call of (seed, number, operation) without memory for results, on the default stream."""
    return Call(*drawn, operands, arguments, None, derived, "", (), {}, "", Where(), {})


def _of_docstring(source: Source, seed: int, number: int, device: str) -> Case:
    """A call of `draw` that promises equal bits without an argument; the running statistics are left out."""
    names = [name for name in RECIPES if PROMISE in _documented(name)]
    call = draw(seed, number, device, [source.choice(sorted(names))])
    while call.written or call.rejected or "workspace_limit" in call.arguments:
        call = draw(seed, source.randrange(2**31), device, [source.choice(sorted(names))])
    arguments = {
        name: value for name, value in call.arguments.items() if name not in ("algo", "deterministic")
    }
    operands = {
        name: tensor._replace(still=(), flipped=(), origin="own") for name, tensor in call.operands.items()
    }
    drawn = _call((seed, number, call.operation), operands, arguments, call.derived)
    return Case(call.operation, "docstring", drawn)


def _documented(operation: str) -> str:
    doc = inspect.getdoc(getattr(ct, operation, None)) or ""
    return "" if "vary from run to run" in doc else doc


def _parameters(operation: str) -> Sequence[str]:
    return list(inspect.signature(getattr(ct, operation)).parameters)


def _order(source: Source, most: int) -> tuple[int, ...]:
    kind = source.choice(("nchw", "nchw", "nhwc", "permuted"))
    if kind == "nhwc":
        return (0, *range(2, most), 1)
    return tuple(source.sample(range(most), most)) if kind == "permuted" else tuple(range(most))


# --- calls -------------------------------------------------------------------------------------------------


def _reduce(source: Source, most: int) -> Recipe:
    """Long rows, long columns, whole arrays, images to their channels, and any axes."""
    kind, dtype, op = source.choice(REDUCTIONS), source.choice(FLOATS), source.choice(OPS)
    long = length(source, min(4096, most), most)
    short = length(source, 1, max(1, min(2048, most // long)))
    shape, axes = {
        "rows": ((short, long), (1,)),
        "columns": ((long, short), (0,)),
        "whole": ((long,), (0,)) if source.chance(0.5) else ((short, long), (0, 1)),
        "few": ((long // 2 or 1, source.choice((1, 2, 3))), (0,)),
        "rows of more axes": ((short, _side(long), _side(long)), source.choice(((1, 2), (2,), (0, 2)))),
        "images": (long_image(source, most), source.choice(((0, 2, 3), (2, 3), (0,), (1,), (0, 2)))),
    }[kind]
    shape = tuple(max(1, n) for n in shape)
    values = "positive" if op.startswith("mul") else source.choice(("normal", "normal", "unit"))
    if op.startswith("mul") and prod(shape[axis] for axis in axes) > 512:
        op = "add"  # such a product is infinite or 0
    arguments = {"op": op, "axis": axes, "keepdims": source.chance(0.5)}
    return Recipe({"x": (shape, dtype, values)}, arguments)


REDUCTIONS = ("rows", "rows", "columns", "whole", "few", "rows of more axes", "images")


def _side(n: int) -> int:
    return max(1, ceil(n**0.5))


def _conv_backward_bias(source: Source, most: int) -> Recipe:
    return Recipe({"dy": (long_image(source, most), source.choice(FLOATS), "normal")}, {})


def _matmul_backward(source: Source, most: int) -> Recipe:
    """Long sums of the gradients: many rows, b shared by a batch, and a bias."""
    most //= 4
    rows, terms, columns = length(source, 1, min(most, 2**16)), *(length(source, 1, 512) for _ in "kn")
    terms, columns = (max(1, min(n, most // rows)) for n in (terms, columns))
    batch = source.choice(((), (), (3,), (16,)))
    rows = max(1, rows // prod(batch))
    shared = () if source.chance(0.6) else tuple(source.choice((n, 1)) for n in batch)
    dtype = source.choice(FLOATS)
    operands = {
        "dy": ((*batch, rows, columns), dtype, "normal"),
        "a": ((*batch, rows, terms), dtype, "normal"),
        "b": ((*shared, terms, columns), dtype, "normal"),
    }
    return Recipe(operands, {"bias_gradient": source.chance(0.7)})


def _row_norm(mode: str) -> Callable[[Source, int], Recipe]:
    names = {"layer_norm": ("mean", "invstd"), "rms_norm": ("invrms",)}[mode]

    def drawn(source: Source, most: int) -> Recipe:
        columns = source.choice((64, 100, 128, 768, 1024, 4096, 8192, 16384))
        columns = min(columns, most)
        rows = length(source, 1, max(1, min(2**14, most // columns // 2)))
        dtype = source.choice(FLOATS[:3])
        wide = source.choice((dtype, "float32"))
        arguments = {"epsilon": 1e-5}
        operands = {"dy": ((rows, columns), dtype, "normal"), "x": ((rows, columns), dtype, "normal")}
        operands["scale"] = ((columns,), wide, "normal")
        operands |= dict.fromkeys(names, ((rows, 1), "float32", "normal"))
        derived = {name: Derived(mode, name, arguments) for name in names}
        more = {"bias_gradient": True} if mode == "rms_norm" and source.chance(0.5) else {}
        return Recipe(operands, more, derived=derived)

    return drawn


def _batch_norm(operation: str) -> Callable[[Source, int], Recipe]:
    def drawn(source: Source, most: int) -> Recipe:
        shape, dtype = long_image(source, most // 2), source.choice(FLOATS)
        shape = (max(2, shape[0]), *shape[1:])
        wide = "float32" if dtype in HALF else dtype
        arguments: dict[str, Any] = {"epsilon": 1e-5}
        images = operation.startswith("batch")
        if images:
            arguments["mode"] = source.choice(("spatial", "spatial", "per_activation"))
        full = images and arguments["mode"] == "per_activation"
        parameters = (1, *shape[1:]) if full else shape[1:2]
        operands = {"x": (shape, dtype, "normal"), "scale": (parameters, wide, "normal")}
        if operation.endswith("backward"):
            operands = {"dy": (shape, dtype, "normal"), **operands}
            if operation == "batch_norm_inference_backward":
                operands |= {"mean": (parameters, wide, "normal"), "var": (parameters, wide, "positive")}
        else:
            operands["bias"] = (parameters, wide, "normal")
        return Recipe(operands, arguments)

    return drawn


def _conv(operation: str) -> Callable[[Source, int], Recipe]:
    """Gradients whose sums are long: many images and pixels for filters, many filters for data."""

    def drawn(source: Source, most: int) -> Recipe:
        channels, filters = (min(source.choice((1, 3, 8, 16, 64, 128)), most // 32) for _ in "cf")
        groups = source.choice((1, 1, 1, min(channels, filters)))
        channels, filters = (max(groups, n // groups * groups) for n in (channels, filters))
        window, dtype = source.choice((1, 1, 3, 3, 5)), source.choice(FLOATS)
        side = max(
            window, min(source.choice((7, 14, 28, 56)), int((most // 4 // max(channels, filters)) ** 0.5))
        )
        images = max(1, min(source.choice((1, 2, 8, 32)), most // 4 // (max(channels, filters) * side**2)))
        stride, padding = source.choice((1, 1, 2)), source.choice((0, window // 2))
        out = (side + 2 * padding - window) // stride + 1
        x, w = (images, channels, side, side), (filters, channels // groups, window, window)
        y = (images, filters, out, out)
        arguments: dict[str, Any] = {"padding": padding, "stride": stride, "dilation": 1, "groups": groups}
        if dtype == "float32" and source.chance(0.5):
            arguments["precision"] = "float32"
        shapes = {
            "conv": {"x": x, "w": w},
            "conv_backward_data": {"dy": y, "w": w},
            "conv_backward_filter": {"dy": y, "x": x},
        }[operation]
        more = {"conv_backward_data": {"x_shape": x}, "conv_backward_filter": {"w_shape": w}}.get(
            operation, {}
        )
        operands = {name: (shape, dtype, "normal") for name, shape in shapes.items()}
        return Recipe(operands, arguments | more)

    return drawn


def _attention_backward(source: Source, most: int) -> Recipe:
    kv, group, batch = source.choice((1, 2)), source.choice((1, 1, 2, 4)), source.choice((1, 2))
    longest = 16 if most < 2**16 else 1024
    queries, keys = (min(longest, source.choice((2, 64, 100, 128, 300, 512, 1024))) for _ in "qk")
    head = source.choice((8, 32, 64, 72, 128)) if most >= 2**16 else 8
    value_head = source.choice((head, head, 64)) if most >= 2**16 else 8
    dtype, kind = source.choice(HALF), source.choice(("", "", "bias", "padded", "packed"))
    causal = source.choice((False, True, "top_left"))
    arguments: dict[str, Any] = {"causal": causal}
    lengths = [[source.randint(1, n) for _ in range(batch)] for n in (queries, keys)]
    q, k = (batch, kv * group, queries, head), (batch, kv, keys, head)
    v, y = (*k[:-1], value_head), (*q[:-1], value_head)
    if kind == "padded":
        arguments |= {"lengths_q": lengths[0], "lengths_kv": lengths[1]}
    if kind == "packed":
        (rows, columns), n = (sum(each) for each in lengths), batch
        q, k, v, y = ((m, s[1], s[3]) for m, s in ((rows, q), (columns, k), (columns, v), (rows, y)))
        for name, each in zip(("offsets_q", "offsets_kv"), lengths, strict=True):
            arguments[name] = [sum(each[:at]) for at in range(n + 1)]
    shapes = {"dy": y, "q": q, "k": k, "v": v, "y": y}
    operands = {name: (shape, dtype, "normal") for name, shape in shapes.items()}
    if kind == "bias":
        operands["bias"] = ((source.choice((1, batch)), q[1], queries, keys), dtype, "normal")
    operands["stats"] = (y[:-1], "float32", "normal")
    derived = {
        name: Derived("attention", name, arguments | {"return_stats": True}) for name in ("y", "stats")
    }
    if kind == "bias" and source.chance(0.5):
        arguments = arguments | {"dbias": True}
    return Recipe(operands, arguments, derived=derived, order=(0, 2, 1, 3))


LARGE: dict[str, Callable[[Source, int], Recipe]] = {
    "reduce": _reduce,
    "conv_backward_bias": _conv_backward_bias,
    "matmul_backward": _matmul_backward,
    "layer_norm_backward": _row_norm("layer_norm"),
    "rms_norm_backward": _row_norm("rms_norm"),
    **{
        name: _batch_norm(name)
        for name in (
            "batch_norm_training",
            "batch_norm_backward",
            "batch_norm_inference_backward",
        )
    },
    **each("large"),
    **{name: _batch_norm(name) for name in ("instance_norm", "instance_norm_backward")},
    **{name: _conv(name) for name in ("conv", "conv_backward_data", "conv_backward_filter")},
    "attention_backward": _attention_backward,
}


# --- graphs ------------------------------------------------------------------------------------------------

GRAPH_OPS = ("add", "add", "add", "average", "norm1", "norm2", "max", "min", "amax")


def _product(source: Source, most: int) -> GraphCase:
    """A reduction behind a product, which may be wider than a tile of its engine."""
    most //= 4
    longest = 2048 if most >= 2**16 else 32
    rows, terms, columns = (length(source, 1, longest) for _ in "mkn")
    terms = max(1, min(terms, 512, most // max(rows, columns)))
    batch = source.choice(((), (), (3,)))
    dtype = source.choice(("float16", "bfloat16", "float32"))
    operands = _tensors(source, {"a": (*batch, rows, terms), "b": (*batch, terms, columns)}, dtype)
    rank = len(batch) + 2
    axes = source.choice(((rank - 1,), (rank - 1,), (rank - 2,), (rank - 2, rank - 1), tuple(range(rank))))
    after = source.choice(("", "", "relu", "square", "scale"))
    facts = {"op": source.choice(GRAPH_OPS), "axes": axes, "after": after, "both": source.chance(0.3)}
    return GraphCase("product", operands, facts)


def _rows(source: Source, most: int) -> GraphCase:
    """A reduction behind elementwise operations: rows of 4,096 and more, and columns."""
    long = length(source, min(4096, most), min(most, 2**17))
    short = length(source, 1, max(1, most // long))
    dtype = source.choice(("float16", "bfloat16", "float32"))
    shape, axes = source.choice((((short, long), (1,)), ((short, long), (1,)), ((long, short), (0,))))
    axes = source.choice((axes, axes, (0, 1)))
    facts = {"op": source.choice(GRAPH_OPS), "axes": axes, "after": source.choice(("", "square", "scale"))}
    return GraphCase("rows", _tensors(source, {"x": shape}, dtype), facts | {"both": source.chance(0.3)})


def _convolution(source: Source, most: int) -> GraphCase:
    """Statistics of a convolution, or a reduction of it, with channels last."""
    side = source.choice((7, 14, 28, 56)) if most >= 2**16 else 4
    channels, filters = (source.choice((8, 16, 32, 64, 128)) if most >= 2**16 else 8 for _ in "cf")
    images = max(1, min(source.choice((1, 4, 16)), most // 4 // (max(channels, filters) * side**2)))
    window = source.choice((1, 3))
    dtype = source.choice(("float16", "bfloat16", "float32"))
    shapes = {"x": (images, channels, side, side), "w": (filters, channels, window, window)}
    kind = source.choice(("stats", "stats", "filter", "add"))
    if kind == "filter":
        shapes["w"] = (images, filters, side, side)
    facts = {"kind": kind, "padding": window // 2, "window": window}
    return GraphCase("convolution", _tensors(source, shapes, dtype, (0, 2, 3, 1)), facts)


def _norm(source: Source, most: int) -> GraphCase:
    columns = source.choice((64, 128, 768, 4096)) if most >= 2**16 else 64
    rows = length(source, 2, max(2, min(8192, most // columns)))
    dtype = source.choice(("float16", "bfloat16", "float32"))
    operands = _tensors(source, {"dy": (rows, columns), "x": (rows, columns)}, dtype)
    operands |= _tensors(source, {"scale": (columns,), "mean": (rows, 1)}, "float32")
    operands |= _tensors(source, {"invstd": (rows, 1)}, "float32", values="positive")
    return GraphCase("norm", operands, {"mode": "layer_norm"})


def _tensors(
    source: Source, shapes: dict[str, Any], dtype: str, order: tuple[int, ...] = (), values: str = "normal"
) -> dict[str, Tensor]:
    return {
        name: Tensor(tuple(shape), dtype, values, order, seed=source.randrange(2**32))
        for name, shape in shapes.items()
    }


GRAPHS: dict[str, Callable[[Source, int], GraphCase]] = {
    "graph product": _product,
    "graph rows": _rows,
    "graph convolution": _convolution,
    "graph norm": _norm,
}
