"""Random calls of public operations: a pure function of a seed and a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import ceil, prod
from typing import Any, NamedTuple

from tests.operations import each

from .jitted import JIT, can_jit
from .operands import Tensor, restrided
from .recipes import FLOAT8, FLOATS, HALF, Derived, Recipe, Source, centre, gradient_of
from .tables import private

__all__ = ["RECIPES", "SHARED", "Call", "Where", "draw", "operations"]

SHARED = 9  # calls in a row of one problem, if its kernels are compiled

# Element types that a library has arrays of; arrays of jax cannot be written and have no strides.
ORIGINS = {
    "gpu": ("own", "own", "own", "torch", "torch", "torch", "interface", "cupy", "numba", "jax"),
    "fakes": ("own", "foreign"),
}
LACKS = dict.fromkeys(("cupy", "numba", "interface"), ("bfloat16", *FLOAT8)) | {"jax": FLOAT8}


class Where(NamedTuple):
    """The circumstances of a call.

    Attributes
    ----------
    stream : str
        Which stream it runs on, and how the call is told: a key of a device's ``STREAMS``.
    late : bool
        Whether arrays of torch are still being written on torch's current stream when the call is made.
    captured : bool
        Whether the result is that of the second launch of a CUDA graph.
    """

    stream: str = "default"
    late: bool = False
    captured: bool = False


class Call(NamedTuple):
    """One drawn call; ``number`` and ``seed`` reproduce it.

    ``more`` has the memory for each result after the first, None for new memory; it is empty for an ``out``
    that is not a tuple. A call that is ``rejected`` has to raise NotSupportedError. ``plan`` is the function
    that prepares a plan for the call, or "jax.jit" for a call inside of that.
    """

    seed: int
    number: int
    operation: str
    operands: dict[str, Tensor]
    arguments: dict[str, Any]
    out: Tensor | None
    derived: dict[str, Derived]
    alias: str
    written: tuple[str, ...]
    factors: dict[str, float]
    plan: str
    where: Where
    more: dict[str, Tensor | None]
    rejected: bool = False

    @property
    def plain(self) -> Call:
        """The same call on aligned contiguous arrays of our own, on the default stream."""
        operands = {name: tensor.contiguous for name, tensor in self.operands.items()}
        out = self.out and self.out.contiguous
        more = {name: one and one.contiguous for name, one in self.more.items()}
        return self._replace(operands=operands, out=out, alias="", plan="", where=Where(), more=more)

    def __str__(self) -> str:
        parts = [f"{name}={tensor}" for name, tensor in self.operands.items()]
        parts += [f"{name}={value!r}" for name, value in (self.arguments | self.factors).items()]
        parts += [f"out={self.out}"] * (self.out is not None) + [f"out is {self.alias}"] * bool(self.alias)
        parts += [f"{name} of out={one}" for name, one in self.more.items() if one]
        return f"{self.operation}({', '.join(parts)}) {self.plan} {self.where}"


def draw(seed: int, number: int, device: str, only: Sequence[str] = (), shared: int = 1) -> Call:
    """Draw a call; ``device`` is "gpu" or "fakes", ``only`` are the operations to draw from.

    cuDNN takes far longer to compile the kernels of a problem than to run them. On a GPU, ``shared`` calls in
    a row are therefore one problem, with other values, in other memory and on other streams, for operations
    whose kernels are compiled. This also finds plans that keep a part of the call that they were made for.
    """
    first = number - number % shared if device == "gpu" else number
    names = list(only or operations(device))
    call = _drawn(seed, first, device, names)
    if first == number:
        return call
    if call.operation in COMPILED:
        return _again(call, number)
    return _drawn(seed, number, device, [name for name in names if name not in COMPILED])


def _again(call: Call, number: int) -> Call:
    """The same problem with other values, on another stream."""
    source = Source(f"{call.seed}:{number} again")

    def other(tensor: Tensor) -> Tensor:
        return tensor._replace(seed=source.randrange(2**32))

    operands = {name: other(tensor) for name, tensor in call.operands.items()}
    more = {name: one and other(one) for name, one in call.more.items()}
    where = call.where if call.where.captured else _where(source, "gpu", capturable=False)
    facts = {"operands": operands, "out": call.out and other(call.out), "more": more, "where": where}
    return call._replace(number=number, **facts)


def _drawn(seed: int, number: int, device: str, names: Sequence[str]) -> Call:
    source = Source(f"{seed}:{number}")
    operation = source.choice(names)
    recipe = RECIPES[operation](source)
    uniform = source.chance(0.5)  # in one half of the calls all operands have one layout
    layouts = [_layout(source, 5) for _ in range(2)] if uniform else []
    operands = {}
    for name, (shape, dtype, values) in recipe.operands.items():
        operands[name] = _tensor(source, shape, dtype, values, device, layouts, name in recipe.written)
    out, alias, factors = None, "", {}
    if recipe.out is not None and source.chance(0.4):
        out = _tensor(source, *recipe.out, "normal", device, layouts, True)
    elif recipe.alias and source.chance(0.15):
        alias = source.choice(recipe.alias)
        operands[alias] = _writable(operands[alias], device)
    more: dict[str, Tensor | None] = {}
    if recipe.more and source.chance(0.4):
        for name, (shape, dtype) in recipe.more.items():
            tensor = _tensor(source, shape, dtype, "integers", device, layouts, True)
            more[name] = tensor if source.chance(0.6) else None
    if recipe.scaled and source.chance(0.3):
        factors["alpha"] = source.choice((0.5, -2.0, 3.0, 0.0))
    if recipe.scaled and out is not None and source.chance(0.4):
        factors["beta"] = source.choice((1.0, -0.5, 2.0))
    if recipe.order and source.chance(0.5):
        operands = {name: _in_order(tensor, recipe.order) for name, tensor in operands.items()}
        out = out and _in_order(out, recipe.order)
    copied = any(tensor.origin in ("negated", "jax") for tensor in operands.values())
    copied |= bool(UPLOADED & set(recipe.arguments))
    capturable = out is not None and not recipe.more and not copied  # nothing may be allocated
    where = _where(source, device, capturable)
    plan = recipe.plan if source.chance(0.2) and not alias else ""
    simple = not (plan or alias or factors or more or out or recipe.written or recipe.rejected)
    if simple and source.chance(0.06) and can_jit(operation, operands, recipe.arguments):
        plan, where = JIT, Where()
    elif plan:
        operands = {n: t._replace(still=(), flipped=()) for n, t in operands.items()}
    return Call(
        *(seed, number, operation, operands, recipe.arguments, out),
        *(recipe.derived, alias, recipe.written, factors, plan, where, more, recipe.rejected),
    )


# Arguments that are copied to the device in each call.
UPLOADED = {"lengths", "lengths_q", "offsets_q", "page_table", "seed"}


def _in_order(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    """Return a tensor that is contiguous in an order of axes, if it has that rank and strides."""
    if len(tensor.shape) != len(order) or tensor.origin == "jax":
        return tensor
    return tensor._replace(order=order, gaps=(1,) * len(order), still=(), flipped=(), start=0)


def _where(source: Source, device: str, capturable: bool) -> Where:
    if device == "fakes":
        return Where(source.choice(("default", "default", "address", "use")))
    stream = source.choice(("default", "default", "torch", "address", "use", "current"))
    captured = stream == "torch" and capturable and source.chance(0.3)
    return Where(stream, not captured and source.chance(0.1), captured)


def _layout(source: Source, most: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """An order of the axes and gaps between elements, for shapes of any rank up to ``most``."""
    kind = source.choice(("nchw", "nchw", "nhwc", "nhwc", "permuted", "sliced", "both"))
    order, gaps = tuple(range(most)), (1,) * most
    if kind == "nhwc":
        order = (0, *range(2, most), 1)
    if kind in ("permuted", "both"):
        order = tuple(source.sample(range(most), most))
    if kind in ("sliced", "both"):
        gaps = tuple(source.choice((1, 1, 2, 3)) for _ in range(most))
    return order, gaps


def _tensor(
    source: Source,
    shape: tuple[int, ...],
    dtype: str,
    values: str,
    device: str,
    layouts: list[Any],
    written: bool,
) -> Tensor:
    rank = len(shape)
    order, gaps = layouts[source.chance(0.05)] if layouts and rank <= 5 else _layout(source, max(rank, 5))
    order, gaps = tuple(axis for axis in order if axis < rank), gaps[:rank]
    start = source.choice((0, 0, 0, 0, 1, 2, 3, source.randrange(8)))
    origin = source.choice([one for one in ORIGINS[device] if dtype not in LACKS.get(one, ())])
    tensor = Tensor(shape, dtype, values, order, gaps, (), (), start, origin, source.randrange(2**32))
    if not written:
        tensor = restrided(source, tensor)
    if origin == "torch" and dtype in ("float32", "float64") and not written and source.chance(0.1):
        tensor = tensor._replace(origin="negated", start=0)
    if origin == "jax":
        tensor = tensor.contiguous._replace(origin="jax")
    return _writable(tensor, device) if written else tensor


def _writable(tensor: Tensor, device: str) -> Tensor:
    origin = tensor.origin if tensor.origin not in ("jax", "negated") else "torch"
    return tensor._replace(origin=origin, still=(), flipped=())


# --- recipes -----------------------------------------------------------------------------------------------


def _numbers(source: Source, dtype: str) -> str:
    if dtype in HALF:
        return source.choice(("normal", "normal", "integers", "positive", "unit"))
    return source.choice(("normal", "normal", "integers", "positive", "large", "tiny"))


class _Geometry(NamedTuple):
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    dtype: str
    arguments: dict[str, Any]


def _geometry(source: Source) -> _Geometry:
    axes = source.choice((1, 2, 2, 2, 2, 3))
    groups = source.choice((1, 1, 1, 1, 2, 3))
    thick, filters = (source.choice((1, 2, 3, 4, 8, 8, 16, 24)) for _ in range(2))
    if source.chance(0.1):  # depthwise
        groups, thick, filters = source.choice((4, 8, 16)), 1, source.choice((1, 2))
    longest = {1: 24, 2: 14, 3: 6}[axes]
    window = tuple(min(source.choice((1, 1, 2, 3, 3, 3, 4, 5, 7)), longest) for _ in range(axes))
    if source.chance(0.5):
        window = (window[0],) * axes
    dilation, stride = ((1,) * axes if source.chance(0.7) else _tuple(source, axes, 1, 2) for _ in range(2))
    uneven = tuple((source.randint(0, 2), source.randint(0, 2)) for _ in range(axes))
    even = source.choice((0, source.randint(0, 2), _tuple(source, axes, 0, 2), "valid", "half", "full"))
    padding = uneven if source.chance(0.2) else even
    reach = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
    pairs = _pairs(padding, window, dilation)
    spatial = []
    for r, (before, after) in zip(reach, pairs, strict=True):
        spatial.append(source.randint(max(1, r - before - after), max(longest, r)))
    batch = 0 if source.chance(0.01) else source.randint(1, 3)
    out = [
        (n + before + after - r) // s + 1
        for n, r, s, (before, after) in zip(spatial, reach, stride, pairs, strict=True)
    ]
    dtype = source.choice(FLOATS)
    arguments: dict[str, Any] = {"padding": padding, "stride": stride, "dilation": dilation, "groups": groups}
    if source.chance(0.2):
        arguments["mode"] = "convolution"
    arguments |= _choice(source, dtype)
    x, y = (batch, groups * thick, *spatial), (batch, groups * filters, *out)
    return _Geometry(x, (groups * filters, thick, *window), y, dtype, arguments)


def _pairs(padding: Any, window: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
    """The padding before and after each axis."""
    reach = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
    if isinstance(padding, str):
        sides = {"valid": lambda r: 0, "half": lambda r: r // 2, "full": lambda r: r - 1}[padding]
        return [(sides(r), sides(r)) for r in reach]
    each = (padding,) * len(reach) if isinstance(padding, int) else padding
    return [(p, p) if isinstance(p, int) else p for p in each]


def _tuple(source: Source, axes: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(source.randint(low, high) for _ in range(axes))


def _choice(source: Source, dtype: str) -> dict[str, Any]:
    """Draw the policy, the precision and the limits of a convolution."""
    chosen: dict[str, Any] = {}
    if source.chance(0.4):
        policies = ("heuristic", "guess_once", "autotune", "time_once", "none")
        chosen["algo"] = source.choice(policies)
    if dtype == "float32" and source.chance(0.6):
        chosen["precision"] = source.choice(("float32", "float32", "tf32"))
    if dtype in HALF and source.chance(0.2):
        chosen["precision"] = source.choice(("float32", "as_input"))
    if source.chance(0.1):
        chosen["deterministic"] = True
    if source.chance(0.05):
        chosen["workspace_limit"] = source.choice((0, 2**20))
    return chosen


def _planned_conv(operation: str, source: Source) -> Recipe:
    g = _geometry(source)
    values = _numbers(source, g.dtype)
    operands, shape, out = {
        "conv": ({"x": g.x, "w": g.w}, {}, g.y),
        "conv_backward_data": ({"w": g.w, "dy": g.y}, {"x_shape": g.x}, g.x),
        "conv_backward_filter": ({"x": g.x, "dy": g.y}, {"w_shape": g.w}, g.w),
    }[operation]
    given = {name: (shape, g.dtype, values) for name, shape in operands.items()}
    return Recipe(given, shape | g.arguments, (out, g.dtype), plan="conv_plan")


def _conv_backward_bias(source: Source) -> Recipe:
    shape, dtype = source.images(12), source.choice(FLOATS)
    return Recipe({"dy": (shape, dtype, _numbers(source, dtype))}, {}, ((shape[1],), dtype))


def _conv_transpose(source: Source) -> Recipe:
    g = _geometry(source)
    while prod(_smallest(g)) <= 0:
        g = _geometry(source)
    values = _numbers(source, g.dtype)
    arguments = dict(g.arguments)
    if source.chance(0.3):
        arguments["output_padding"] = tuple(source.randrange(s) for s in arguments["stride"])
    return Recipe({"x": (g.y, g.dtype, values), "w": (g.w, g.dtype, values)}, arguments, None)


def _smallest(g: _Geometry) -> list[int]:
    """The smallest spatial shape whose convolution has the shape of y; 0 instead of a negative length."""
    pairs = _pairs(g.arguments["padding"], g.w[2:], g.arguments["dilation"])
    axes = zip(g.y[2:], g.w[2:], g.arguments["stride"], g.arguments["dilation"], pairs, strict=True)
    return [max((n - 1) * s + (k - 1) * d + 1 - sum(pair), 0) for n, k, s, d, pair in axes]


FUSED = ("relu", "clipped_relu", "sigmoid", "tanh", "elu", "gelu", "swish", "identity")


def _fused_activation(source: Source, modes: Sequence[str]) -> dict[str, Any]:
    mode = source.choice(modes)
    if mode in ("clipped_relu", "elu", "swish"):
        return {"activation": mode, "coefficient": source.choice((0.5, 1.0, 3.0))}
    return {"activation": mode}


def _conv_bias_activation(source: Source) -> Recipe:
    g = _geometry(source)
    operands = {"x": (g.x, g.dtype, "normal"), "w": (g.w, g.dtype, "normal")}
    operands["bias"] = ((g.w[0],), g.dtype, "normal")
    arguments = g.arguments | _fused_activation(source, FUSED)
    if source.chance(0.5):
        operands["residual"] = (g.y, g.dtype, "normal")
        arguments["alpha2"] = source.choice((1, 1, 0.5, -2.0))
    arguments["alpha1"] = source.choice((1, 1, 1, 0.5, -2.0))
    plan = "conv_bias_activation_plan"
    return Recipe(operands, arguments, (g.y, g.dtype), scaled=False, plan=plan)


# --- convolutions fused with batch normalisation ---


def _per_channel(source: Source, image: tuple[int, ...], channels: int) -> tuple[int, ...]:
    """The shape of a parameter of each channel, in either form."""
    return (1, channels, *(1,) * (len(image) - 2)) if source.chance(0.2) else (channels,)


def _conv_scale_bias_activation(source: Source) -> Recipe:
    g = _geometry(source)
    while g.dtype == "float64":
        g = _geometry(source)
    wide, per_channel = source.choice((g.dtype, "float32")), _per_channel(source, g.y, g.w[0])
    operands = {"x": (g.x, g.dtype, "normal"), "w": (g.w, g.dtype, "normal")}
    operands |= dict.fromkeys(("scale", "bias"), (per_channel, wide, "normal"))
    if source.chance(0.5):
        operands["residual"] = (g.y, g.dtype, "normal")
    arguments = {name: value for name, value in g.arguments.items() if name != "mode"}
    arguments |= _fused_activation(source, ("relu", *FUSED))
    if "algo" in arguments:
        arguments["algo"] = source.choice(("heuristic", "autotune"))
    if arguments.get("precision") == "as_input":  # which sums in half precision
        arguments["precision"] = "as_input_f32"
    return Recipe(operands, arguments, (g.y, g.dtype), scaled=False)


def _training_geometry(source: Source, counts: Sequence[int], axes: int, dtype: str) -> _Geometry:
    """A convolution without groups whose padding is even, with numbers of channels and filters."""
    channels, filters, longest = source.choice(counts), source.choice(counts), {1: 20, 2: 11, 3: 5}[axes]
    window = tuple(source.choice((1, 1, 2, 3, 3, 5)) for _ in range(axes))
    dilation, stride = ((1,) * axes if source.chance(0.7) else _tuple(source, axes, 1, 2) for _ in range(2))
    padding = source.choice((0, 1, source.randint(0, 2), _tuple(source, axes, 0, 2), "valid", "half", "full"))
    spatial, out = [], []
    pairs = _pairs(padding, window, dilation)
    for k, d, s, (before, after) in zip(window, dilation, stride, pairs, strict=True):
        reach = (k - 1) * d + 1
        spatial.append(source.randint(max(1, reach - before - after), max(longest, reach)))
        out.append((spatial[-1] + before + after - reach) // s + 1)
    arguments: dict[str, Any] = {"padding": padding, "stride": stride, "dilation": dilation}
    if source.chance(0.3):
        arguments["algo"] = source.choice(("heuristic", "autotune"))
    if source.chance(0.1):
        arguments["deterministic"] = True
    batch = source.randint(1, 3)
    x, w, y = (batch, channels, *spatial), (filters, channels, *window), (batch, filters, *out)
    return _Geometry(x, w, y, dtype, arguments)


def _gradient_geometry(source: Source) -> _Geometry:
    """A convolution whose gradients cuDNN 9.19 has engines for; one of ten has none, on a GPU."""
    counts, axes = ((3, 5, 12), 2) if source.chance(0.05) else ((8, 8, 16, 24, 32), source.choice((1, 2, 2)))
    return _training_geometry(source, counts, 3 if source.chance(0.05) else axes, "float16")


def _conv_batch_norm_statistics(source: Source) -> Recipe:
    eights = source.chance(0.6)
    counts = (8, 8, 16, 24, 32) if eights else (1, 2, 3, 4, 5, 8, 10, 16)
    dtype = source.choice(("float16",) if eights else FLOATS[:3])
    g = _training_geometry(source, counts, source.choice((1, 2, 2) if eights else (1, 2, 3)), dtype)
    operands = {"x": (g.x, dtype, "normal"), "w": (g.w, dtype, "normal")}
    if source.chance(0.5):
        operands |= dict.fromkeys(("scale", "bias"), (g.x[1:2], dtype, "normal"))
    more = dict.fromkeys(("sums", "square_sums"), (g.w[:1], "float32"))
    return Recipe(operands, g.arguments, (g.y, dtype), scaled=False, more=more)


def _batch_norm_finalize(source: Source) -> Recipe:
    channels, eq_dtype = (source.choice((1, 2, 3, 8, 17, 64, 200)),), source.choice(("float16", "float32"))
    operands = {"sums": (channels, "float32", "normal"), "square_sums": (channels, "float32", "squares")}
    operands |= dict.fromkeys(("scale", "bias", "running_mean"), (channels, "float32", "normal"))
    operands["running_var"] = (channels, "float32", "positive")
    arguments: dict[str, Any] = {"count": source.choice((2, 3, 100, 5000)), "eq_dtype": eq_dtype}
    arguments |= {"epsilon": source.choice((1e-5, 1e-2)), "momentum": source.choice((0.0, 0.1, 0.7, 1.0))}
    more = dict.fromkeys(("mean", "invstd", "running_mean", "running_var"), (channels, "float32"))
    more = {"eq_bias": (channels, eq_dtype), **more}
    return Recipe(operands, arguments, (channels, eq_dtype), scaled=False, more=more)


def _conv_backward_data_relu_batch_norm(source: Source) -> Recipe:
    g = _gradient_geometry(source)
    channels = g.x[1:2]
    operands = {"dy": (g.y, g.dtype, "normal"), "w": (g.w, g.dtype, "normal"), "x": (g.x, g.dtype, "normal")}
    operands |= dict.fromkeys(("mean", "scale", "bias"), (channels, "float32", "normal"))
    operands["invstd"] = (channels, "float32", "positive")
    names = ("dscale", "dbias", "eq_dz_scale", "eq_x_scale", "eq_bias")
    more = dict.fromkeys(names, (channels, "float32"))
    return Recipe(operands, g.arguments, (g.x, g.dtype), scaled=False, more=more)


def _conv_backward_filter_scale_bias_relu(source: Source) -> Recipe:
    g = _gradient_geometry(source)
    operands = {"dy": (g.y, g.dtype, "normal"), "x": (g.x, g.dtype, "normal")}
    operands |= dict.fromkeys(("scale", "bias"), (g.x[1:2], g.dtype, "normal"))
    return Recipe(operands, g.arguments | {"w_shape": g.w}, (g.w, g.dtype), scaled=False)


# --- functions of single elements ---


ACTIVATIONS = ("relu", "clipped_relu", "sigmoid", "tanh", "elu", "swish", "identity")


def _activation_arguments(source: Source) -> dict[str, Any]:
    arguments: dict[str, Any] = {"mode": source.choice(ACTIVATIONS)}
    if source.chance(0.8):
        arguments["coefficient"] = source.choice((0.5, 1.0, 2.0, 6.0))
    return arguments


def _elementwise_values(source: Source, dtype: str) -> str:
    return "special" if source.chance(0.15) else _numbers(source, dtype)


def _activation(source: Source) -> Recipe:
    shape, dtype = source.shape(0, 6), source.choice(FLOATS)
    arguments = _activation_arguments(source)
    if source.chance(0.2):
        arguments["propagate_nan"] = False
    operands = {"x": (shape, dtype, _elementwise_values(source, dtype))}
    return Recipe(operands, arguments, (shape, dtype), alias=("x",))


def _activation_backward(source: Source) -> Recipe:
    shape, dtype = source.shape(0, 6), source.choice(FLOATS)
    arguments = _activation_arguments(source)
    values = _numbers(source, dtype)
    operands = dict.fromkeys(("x", "y", "dy"), (shape, dtype, values))
    derived = {"y": Derived("activation", "y", arguments)}
    return Recipe(operands, arguments, (shape, dtype), derived, alias=("dy",))


def _pool_arguments(source: Source, shape: tuple[int, ...]) -> tuple[dict[str, Any], tuple[int, ...]]:
    spatial = shape[2:]
    if source.chance(0.1):
        window, strides, pairs = spatial, (1,) * len(spatial), [(0, 0)] * len(spatial)
        arguments: dict[str, Any] = {"window": "global"}
    else:
        window = tuple(source.randint(1, min(4, n)) for n in spatial)
        strides = _tuple(source, len(spatial), 1, 3)
        arguments = {"window": window, "stride": strides}
        if source.chance(0.2):
            del arguments["stride"]
            strides = window
        if source.chance(0.2):
            pairs = [(source.randrange(k), source.randrange(k)) for k in window]
            arguments["padding"] = tuple(pairs)
        else:
            pairs = [(p, p) for p in (source.randrange(k) if k > 1 else 0 for k in window)]
            arguments["padding"] = tuple(p for p, _ in pairs)
    arguments["mode"] = source.choice(("max", "max", "average_inc_pad", "average_exc_pad", "sum"))
    if arguments["mode"] == "max" and source.chance(0.3):
        arguments["mode"] = "max_deterministic"
    out = tuple(
        (n + before + after - k) // s + 1
        for n, k, s, (before, after) in zip(spatial, window, strides, pairs, strict=True)
    )
    return arguments, (*shape[:2], *out)


def _pool(source: Source) -> Recipe:
    shape, dtype = source.images(), source.choice(FLOATS)
    arguments, result = _pool_arguments(source, shape)
    return Recipe({"x": (shape, dtype, _numbers(source, dtype))}, arguments, (result, dtype))


def _pool_backward(source: Source) -> Recipe:
    shape, dtype = source.images(), source.choice(FLOATS)
    arguments, result = _pool_arguments(source, shape)
    operands = {
        "x": (shape, dtype, "distinct"),
        "y": (result, dtype, "normal"),
        "dy": (result, dtype, _numbers(source, dtype)),
    }
    return Recipe(operands, arguments, (shape, dtype), {"y": Derived("pool", "y", arguments)})


def _softmax_arguments(source: Source, rank: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {"algo": source.choice(("accurate", "accurate", "fast", "log"))}
    if rank < 2 or source.chance(0.5):
        first = source.randrange(rank)
        last = source.randrange(first, rank)
        arguments["axis"] = (
            tuple(range(first, last + 1)) if source.chance(0.3) else first - rank * source.chance(0.5)
        )
    else:
        arguments["mode"] = source.choice(("channel", "instance"))
    return arguments


def _softmax(source: Source) -> Recipe:
    shape, dtype = source.shape(1, 5, 9), source.choice(FLOATS)
    values = source.choice(("normal", "unit", "integers"))
    arguments = _softmax_arguments(source, len(shape))
    return Recipe({"x": (shape, dtype, values)}, arguments, (shape, dtype), alias=("x",))


def _softmax_backward(source: Source) -> Recipe:
    shape, dtype = source.shape(1, 5, 9), source.choice(FLOATS)
    arguments = _softmax_arguments(source, len(shape))
    operands = dict.fromkeys(("y", "dy"), (shape, dtype, "normal"))
    derived = {"y": Derived("softmax", "y", arguments)}  # of y's own drawn values
    return Recipe(operands, arguments, (shape, dtype), derived, alias=("dy",))


def _lrn_arguments(source: Source) -> dict[str, Any]:
    arguments: dict[str, Any] = {"n": source.randint(1, 8)}
    if source.chance(0.7):
        chosen = (source.choice((1e-4, 0.5)), source.choice((0.75, 0.5, 1.0)), source.choice((1.0, 2.0)))
        arguments |= dict(zip(("lrn_alpha", "lrn_beta", "k"), chosen, strict=True))
    return arguments


def _lrn(source: Source) -> Recipe:
    shape, dtype = source.images(), source.choice(FLOATS)
    return Recipe({"x": (shape, dtype, "normal")}, _lrn_arguments(source), (shape, dtype))


def _lrn_backward(source: Source) -> Recipe:
    shape, dtype = source.images(), source.choice(FLOATS)
    arguments = _lrn_arguments(source)
    operands = dict.fromkeys(("x", "y", "dy"), (shape, dtype, "normal"))
    return Recipe(operands, arguments, (shape, dtype), {"y": Derived("lrn", "y", arguments)})


def _causal(source: Source, gradient: bool = False) -> Recipe:
    """Few widths, because cuDNN compiles a kernel for each, in seconds."""
    shape = (source.randint(1, 3), source.choice((1, 3, 8, 64)), source.choice((1, 2, 5, 33, 100, 257)))
    dtype, width = source.choice(FLOATS), source.choice((2, 4, 4, 4, 7, 16))
    operands = {"x": (shape, dtype, "normal"), "w": ((shape[1], width), dtype, "normal")}
    if source.chance(0.7):
        operands["bias"] = (shape[1:2], dtype, "normal")
    arguments = {"activation": "silu"} if source.chance(0.7) else {}
    if not gradient:
        return Recipe(operands, arguments, (shape, dtype), scaled=False)
    operands["dy"] = (shape, dtype, "normal")
    wide = "float64" if dtype == "float64" else "float32"
    more = {f"d{name}": (operands[name][0], wide) for name in ("w", "bias") if name in operands}
    return Recipe(operands, arguments, (shape, dtype), scaled=False, more=more)


def _by_fft(source: Source, gradient: bool = False) -> Recipe:
    """Few widths, because cuDNN compiles a kernel for each, in seconds; the last is the long one."""
    width, times = source.choice(((128, 1), (128, 3), (256, 2), (1024, 2), (2**15, 1)))
    few = width > 1024
    shape = (1 if few else source.randint(1, 3), 2 if few else source.choice((1, 3, 8)), width * times)
    dtype = source.choice(FLOATS)
    operands = {"x": (shape, dtype, "normal"), "w": ((shape[1], width), dtype, "normal")}
    if not gradient:
        return Recipe(operands, {}, (shape, dtype), scaled=False)
    operands["dy"] = (shape, dtype, "normal")
    return Recipe(operands, {}, (shape, dtype), scaled=False, more={"dw": operands["w"][:2]})


def _back_to_back(source: Source, gradient: bool = False) -> Recipe:
    """Few widths, because cuDNN compiles a kernel for each pair, in seconds."""
    n, channels, length = source.randint(1, 3), source.choice((1, 3, 8, 64)), source.choice((1, 5, 33, 257))
    dtype, (projection, mixer) = source.choice(FLOATS), source.choice(((4, 7), (4, 7), (3, 128), (2, 2)))
    operands = {
        "x": ((n, channels, 3, length), dtype, "normal"),
        "w_proj": ((channels, 3, projection), dtype, "unit"),
        "w_mixer": ((channels, mixer), dtype, "unit"),
        "skip_bias": ((channels,), dtype, "normal"),
    }
    shape = (n, channels, length)
    if not gradient:
        return Recipe(operands, {}, (shape, dtype), scaled=False, more={"mixed": (shape, dtype)})
    wide = "float64" if dtype == "float64" else "float32"
    more = {f"d{name}": (one[0], wide) for name, one in operands.items() if name != "x"}
    out = (operands["x"][0], dtype)
    operands |= {"mixed": (shape, dtype, "normal"), "dy": (shape, dtype, "normal")}
    return Recipe(operands, {}, out, scaled=False, more=more)


def _graph(source: Source) -> tuple[dict[str, Any], int]:
    """Return offsets, indices, and perhaps an order, as arguments; and the number of sources."""
    sources, lengths = source.randint(1, 9), [source.randint(1, 5) for _ in range(source.randint(1, 9))]
    offsets = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    indices = [source.randrange(sources) for _ in range(offsets[-1])]
    arguments: dict[str, Any] = {"offsets": offsets, "indices": indices}
    if source.chance(0.4):
        arguments["order"] = list(range(len(indices)))
        source.shuffle(arguments["order"])
    return arguments, sources


def _aggregate(source: Source, gradient: bool = False) -> Recipe:
    """The gradients of maxima are those of tests/gpu: positions are numbers that cuDNN does not document."""
    arguments, sources = _graph(source)
    rows = (sources, len(arguments["indices"]), len(arguments["offsets"]) - 1)
    columns = source.choice(((8, 0, 0), (0, 3, 0), (4, 2, 1), (33, 5, 0), (128, 0, 7)))
    dtype, kinds = source.choice(FLOATS[:3]), ("sum", "mean") if gradient else ("sum", "mean", "max", "min")
    arguments["op"] = source.choice(kinds)
    shapes = dict(zip(("x", "edges", "concat"), zip(rows, columns, strict=True), strict=True))
    given = {name: shape for name, shape in shapes.items() if shape[1]}
    y = (rows[2], sum(columns))
    if not gradient:
        operands = {name: (shape, dtype, "normal") for name, shape in given.items()}
        return Recipe(operands, arguments, (y, dtype), scaled=False)
    arguments |= {f"{name}_shape": given[name] for name in ("x", "edges") if name in given}
    return Recipe({"dy": (y, dtype, "normal")}, arguments, scaled=False)


def _graph_attention(source: Source, gradient: bool = False) -> Recipe:
    arguments, sources = _graph(source)
    heads, edges, nodes = source.choice((1, 2, 4)), len(arguments["indices"]), len(arguments["offsets"]) - 1
    features, dtype = heads * source.choice((1, 4, 5, 16)), source.choice(FLOATS[:3])
    curves = ("leaky_relu", "leaky_relu", "identity", "relu", "sigmoid", "tanh", "elu", "scale")
    arguments |= {"heads": heads, "concat": source.chance(0.7), "activation": source.choice(curves)}
    operands = {
        "x": ((sources, features), dtype, "normal"),
        "target": ((nodes, features), dtype, "normal"),
        "w": ((features,), dtype, "normal"),
    }
    if source.chance(0.4):
        operands["edges"] = ((edges, features), dtype, "normal")
    if source.chance(0.3):
        operands["mask"] = ((heads, edges), "float32", "positive")
    y = (nodes, features if arguments["concat"] else features // heads)
    if not gradient:
        return Recipe(operands, arguments, (y, dtype), scaled=False)
    if dtype != "float32":  # the slope of a curve may be that of the activated vector, which is rounded
        arguments["activation"] = source.choice(("leaky_relu", "identity", "relu", "scale"))
    operands |= {
        "scores": ((2, heads, edges), "float32", "normal"),
        "activated": ((edges, features), dtype, "normal"),
        "dy": (y, dtype, "normal"),
    }
    derived = {name: Derived("graph_attention", name, arguments) for name in ("scores", "activated")}
    return Recipe(operands, arguments, derived=derived, scaled=False)


class _Norm(NamedTuple):
    shape: tuple[int, ...]
    dtype: str
    parameters: tuple[int, ...]
    wide: str
    mode: str


def _norm(source: Source) -> _Norm:
    shape = (source.randint(2, 5), *source.images(6)[1:]) if source.chance(0.8) else source.shape(1, 6, 5)
    dtype = source.choice(FLOATS)
    mode = source.choice(("spatial", "spatial", "per_activation"))
    if len(shape) < 2:
        mode = "per_activation"
    full = (1, *shape[1:]) if mode == "per_activation" else (1, shape[1], *(1,) * (len(shape) - 2))
    parameters = full if mode == "per_activation" or source.chance(0.5) else shape[1:2]
    return _Norm(shape, dtype, parameters, "float32" if dtype in HALF else dtype, mode)


def _batch_norm_training(source: Source) -> Recipe:
    n = _norm(source)
    operands = {
        "x": (n.shape, n.dtype, centre(source)),
        "scale": (n.parameters, n.wide, "normal"),
        "bias": (n.parameters, n.wide, "normal"),
    }
    arguments: dict[str, Any] = {"mode": n.mode, "epsilon": source.choice((1e-5, 1e-2))}
    samples = n.shape[0] if n.mode == "per_activation" else prod(n.shape) // max(n.shape[1], 1)
    written: tuple[str, ...] = ()
    if source.chance(0.5) and samples > 1:
        written = ("running_mean", "running_var")
        operands["running_mean"] = (n.parameters, n.wide, "normal")
        operands["running_var"] = (n.parameters, n.wide, "positive")
        arguments["momentum"] = source.choice((0.1, 0.5, 1.0, 0.0))
    if source.chance(0.3):
        arguments["activation"] = "relu"
    if source.chance(0.3):
        operands["residual"] = (n.shape, n.dtype, "normal")
    axes = (0,) if n.mode == "per_activation" else (0, *range(2, len(n.shape)))
    statistics = tuple(1 if axis in axes else length for axis, length in enumerate(n.shape))
    more = dict.fromkeys(("mean", "invstd"), (statistics, n.wide))
    return Recipe(operands, arguments, (n.shape, n.dtype), written=written, more=more)


def _batch_norm_backward(source: Source) -> Recipe:
    n = _norm(source)
    operands = {"x": (n.shape, n.dtype, centre(source)), "dy": (n.shape, n.dtype, "normal")}
    operands["scale"] = (n.parameters, n.wide, "normal")
    arguments: dict[str, Any] = {"mode": n.mode, "epsilon": source.choice((1e-5, 1e-2))}
    derived = {}
    if source.chance(0.6):
        kept = {name: arguments[name] for name in ("mode", "epsilon")}
        for name in ("mean", "invstd"):
            operands[name] = (n.parameters, n.wide, "normal")
            derived[name] = Derived("batch_norm_training", name, kept)
    if source.chance(0.3):
        operands["y"] = (n.shape, n.dtype, "integers")  # the activation was off where it is 0
        arguments["activation"] = "relu"
    more = dict.fromkeys(("dscale", "dbias"), (n.parameters, n.wide))
    if "activation" in arguments:
        more["dz"] = (n.shape, n.dtype)
    return Recipe(operands, arguments, (n.shape, n.dtype), derived, more=more)


def _instance_norm(source: Source) -> Recipe:
    shape, dtype = source.images(6), source.choice(FLOATS)
    wide = "float32" if dtype in HALF else dtype
    operands = {"x": (shape, dtype, centre(source))}
    operands |= dict.fromkeys(("scale", "bias"), (shape[1:2], wide, "normal"))
    more = dict.fromkeys(("mean", "invstd"), ((*shape[:2], *(1 for _ in shape[2:])), wide))
    return Recipe(operands, {"epsilon": source.choice((1e-5, 1e-2))}, (shape, dtype), more=more)


def _instance_norm_backward(source: Source) -> Recipe:
    return gradient_of(source, "instance_norm", _instance_norm(source))


def _batch_norm_inference(source: Source) -> Recipe:
    n = _norm(source)
    operands = {"x": (n.shape, n.dtype, "normal")}
    dtype = source.choice((n.wide, n.dtype))
    for name in ("scale", "bias", "mean"):
        operands[name] = (n.parameters, dtype, "normal")
    operands["var"] = (n.parameters, dtype, "positive")
    arguments = {"mode": n.mode, "epsilon": source.choice((1e-5, 1e-2))}
    return Recipe(operands, arguments, (n.shape, n.dtype))


def _batch_norm_inference_backward(source: Source) -> Recipe:
    n = _norm(source)
    operands = dict.fromkeys(("x", "dy"), (n.shape, n.dtype, "normal"))
    for name, values in (("scale", "normal"), ("mean", "normal"), ("var", "positive")):
        operands[name] = (n.parameters, n.wide, values)
    arguments = {"mode": n.mode, "epsilon": source.choice((1e-5, 1e-2))}
    more = dict.fromkeys(("dscale", "dbias"), (n.parameters, n.wide))
    return Recipe(operands, arguments, (n.shape, n.dtype), more=more)


def _pair(source: Source) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = source.shape(0, 6, 5)
    stretched = tuple(n if source.chance(0.6) else 1 for n in shape)
    return shape, shape if source.chance(0.5) else stretched


def _broadcast(source: Source, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a second operand: the same, one element, one row, one column, or one for each channel."""
    if not shape:
        return shape
    kept = {
        "same": range(len(shape)),
        "element": (),
        "row": (len(shape) - 1,),
        "column": range(len(shape) - 1),
        "channels": (1,),
        "any": [axis for axis in range(len(shape)) if source.chance(0.6)],
    }[source.choice(("same", "same", "element", "row", "column", "channels", "any", "any"))]
    return tuple(n if axis in kept else 1 for axis, n in enumerate(shape))


def _add(source: Source) -> Recipe:
    a, dtype = source.shape(0, 6, 5), source.choice(FLOATS)
    b = _broadcast(source, a)
    values = _elementwise_values(source, dtype)
    operands = {"a": (a, dtype, values), "b": (b, dtype, values)}
    return Recipe(operands, {}, (a, dtype), alias=("a", "b") if a == b else ("a",))


def _op_tensor(source: Source) -> Recipe:
    (a, b), dtype = _pair(source), source.choice(FLOATS)
    op = source.choice(("add", "mul", "min", "max", "sqrt", "not"))
    values = "positive" if op == "sqrt" else _elementwise_values(source, dtype)
    arguments: dict[str, Any] = {"op": op, "alpha1": source.choice((1, 1, 0.5, 2.0, 0.0))}
    operands = {"a": (a, dtype, values)}
    if op not in ("sqrt", "not"):
        operands["b"] = (b, dtype, values)
        arguments["alpha2"] = source.choice((1, 1, -0.5, 2.0, 0.0))
    if op in ("min", "max") and source.chance(0.3):
        arguments["propagate_nan"] = False
    return Recipe(operands, arguments, (a, dtype), alias=("a",), scaled=False)


def _reduce(source: Source) -> Recipe:
    shape, dtype = source.shape(1, 6, 5), source.choice(FLOATS)
    if source.chance(0.1):
        shape = tuple(source.choice((1, 3, 64, 257)) for _ in range(2))
    ops = ("add", "add", "mul", "min", "max", "amax", "average", "norm1", "norm2", "mul_no_zeros")
    op = source.choice(ops)
    values = {"mul": "positive", "mul_no_zeros": "positive"}.get(op) or _numbers(source, dtype)
    arguments: dict[str, Any] = {"op": op, "keepdims": source.chance(0.5)}
    axes = tuple(axis for axis in range(len(shape)) if source.chance(0.5))
    if source.chance(0.8):
        arguments["axis"] = axes
    else:
        axes = tuple(range(len(shape)))
    if op in ("min", "max"):
        values = "distinct"
        arguments["indices"] = source.chance(0.3)
    if op in ("min", "max", "amax") and source.chance(0.2):
        values = "nan"
        # Which of several NaN an index has, and whether an extreme with indices is NaN, is up to cuDNN.
        arguments["propagate_nan"] = not arguments.get("indices") and source.chance(0.3)
    if arguments["keepdims"]:
        result = tuple(1 if axis in axes else n for axis, n in enumerate(shape))
    else:
        result = tuple(n for axis, n in enumerate(shape) if axis not in axes)
    more = {"indices": (result, "int32")} if arguments.get("indices") else {}
    return Recipe({"x": (shape, dtype, values)}, arguments, (result, dtype), more=more)


def _scale(source: Source) -> Recipe:
    shape, dtype = source.shape(0, 6), source.choice(FLOATS)
    operands = {"x": (shape, dtype, _elementwise_values(source, dtype))}
    return Recipe(operands, {"alpha": source.choice((0.5, -2.0, 3.0, 0.0))}, scaled=False, written=("x",))


def _fill(source: Source) -> Recipe:
    shape, dtype = source.shape(0, 6), source.choice(FLOATS)
    value = source.choice((0.0, 0.1, -3.0, 1e-3))
    return Recipe({"x": (shape, dtype, "normal")}, {"value": value}, scaled=False, written=("x",))


def _transform(source: Source) -> Recipe:
    shape, dtype = source.shape(0, 6), source.choice(FLOATS)
    result, arguments = dtype, {}
    if dtype != "float64" and source.chance(0.4):
        result = source.choice(("float16", "bfloat16", "float32"))
        arguments["dtype"] = result
    if 3 <= len(shape) <= 5 and source.chance(0.5):
        arguments["layout"] = source.choice(("nchw", "nhwc"))
    operands = {"x": (shape, dtype, "special" if source.chance(0.1) else "normal")}
    return Recipe(operands, arguments, (shape, result) if "layout" not in arguments else None)


def _affine_grid(source: Source) -> Recipe:
    batch, dtype = source.randint(1, 3), source.choice(FLOATS)
    shape = (batch, source.randint(1, 3), source.randint(1, 7), source.randint(1, 7))
    operands, grid = {"theta": ((batch, 2, 3), dtype, "normal")}, (batch, *shape[2:], 2)
    return Recipe(operands, {"shape": shape}, (grid, dtype), scaled=False)


def _affine_grid_backward(source: Source) -> Recipe:
    shape, dtype = (
        (source.randint(1, 3), source.randint(1, 7), source.randint(1, 7), 2),
        source.choice(FLOATS),
    )
    return Recipe({"dgrid": (shape, dtype, "normal")}, {}, ((shape[0], 2, 3), dtype), scaled=False)


def _grids(source: Source) -> tuple[dict[str, tuple[tuple[int, ...], str, str]], tuple[int, ...], str]:
    dtype, (n, c) = source.choice(FLOATS), (source.randint(1, 3), source.choice((1, 2, 3, 8)))
    values = source.choice(("unit", "unit", "places"))
    image, grid = ((source.randint(1, 7), source.randint(1, 7)) for _ in range(2))
    operands = {"x": ((n, c, *image), dtype, "normal"), "grid": ((n, *grid, 2), dtype, values)}
    return operands, (n, c, *grid), dtype


def _grid_sample(source: Source) -> Recipe:
    operands, result, dtype = _grids(source)
    return Recipe(operands, {}, (result, dtype))


def _grid_sample_backward(source: Source) -> Recipe:
    operands, result, dtype = _grids(source)
    operands["dy"] = (result, dtype, "normal")
    return Recipe(operands, {}, (operands["x"][0], dtype), more={"dgrid": operands["grid"][:2]})


def _spatial_transformer(source: Source) -> Recipe:
    n, dtype = source.randint(1, 3), source.choice(FLOATS)
    operands = {
        "x": ((n, source.choice((1, 2, 3, 8)), source.randint(1, 7), source.randint(1, 7)), dtype, "normal"),
        "theta": ((n, 2, 3), dtype, "unit"),
    }
    arguments = {name: source.choice((1, 1, 0.5, 1.5)) for name in ("scale_height", "scale_width")}
    return Recipe(operands, arguments, scaled=False)


def _spatial_transformer_backward(source: Source) -> Recipe:
    recipe = _spatial_transformer(source)
    (shape, dtype, _), scales = recipe.operands["x"], recipe.arguments.values()
    image = tuple(ceil(n * scale) for n, scale in zip(shape[2:], scales, strict=True))
    operands = recipe.operands | {"dy": ((*shape[:2], *image), dtype, "normal")}
    return recipe._replace(operands=operands, more={"dtheta": recipe.operands["theta"][:2]})


def _dropout(source: Source) -> Recipe:
    shape, dtype = source.shape(0, 5), source.choice(FLOATS)
    operands = dict.fromkeys(("x", "dy"), (shape, dtype, "positive"))
    arguments = {"p": source.choice((0.25, 0.5, 0.75)), "seed": source.randrange(100)}
    return Recipe(operands, arguments, scaled=False)


def _ctc_loss(source: Source) -> Recipe:
    steps, batch, symbols = source.randint(1, 8), source.randint(1, 4), source.randint(2, 7)
    lengths = [source.randint(0, 3) for _ in range(batch)]
    arguments = {
        "labels": [source.randint(1, symbols - 1) for _ in range(sum(lengths))],
        "label_lengths": lengths,
        "input_lengths": [source.randint(1, steps) for _ in range(batch)],
    }
    dtype, values = source.choice(FLOATS), source.choice(("normal", "normal", "certain", "far"))
    if values == "far":  # which has no limit for sequences with a single alignment
        arguments, steps = _single_alignments(source, batch, symbols)
    return Recipe({"logits": ((steps, batch, symbols), dtype, values)}, arguments, scaled=False)


def _single_alignments(source: Source, batch: int, symbols: int) -> tuple[dict[str, Any], int]:
    """Labels and lengths of sequences with as many steps as their labels need, and the number of steps."""
    rows = [[source.randint(1, symbols - 1) for _ in range(source.randint(1, 3))] for _ in range(batch)]
    ends = [len(row) + sum(a == b for a, b in pairwise(row)) for row in rows]
    labels = [label for row in rows for label in row]
    arguments = {"labels": labels, "label_lengths": [len(row) for row in rows], "input_lengths": ends}
    return arguments, max(ends) + source.randint(0, 1)


def _rnn(source: Source) -> Recipe:
    mode = source.choice(("rnn_relu", "rnn_tanh", "lstm", "lstm", "gru"))
    steps, batch, size, hidden, layers = (source.randint(1, most) for most in (5, 4, 6, 8, 2))
    direction = source.choice(("unidirectional", "bidirectional"))
    directions, gates = 1 + (direction == "bidirectional"), {"lstm": 4, "gru": 3}.get(mode, 1)
    dtype = source.choice(FLOATS)
    inputs = [size] + [directions * hidden] * (layers - 1)
    weights = sum(directions * gates * (hidden * (n + hidden) + 2 * hidden) for n in inputs)
    layout = source.choice(("sequence_major", "batch_major"))
    order = (steps, batch) if layout == "sequence_major" else (batch, steps)
    states = (layers * directions, batch, hidden)
    operands = {
        "x": ((*order, size), dtype, "normal"),
        "w": ((weights,), dtype, "unit"),
        "dy": ((*order, directions * hidden), dtype, "normal"),
        "h0": (states, dtype, "unit"),
        "dhy": (states, dtype, "normal"),
    }
    if mode == "lstm":
        operands |= dict.fromkeys(("c0", "dcy"), (states, dtype, "unit"))
    lengths = [source.randint(1, steps) for _ in range(batch)] if source.chance(0.4) else [steps] * batch
    arguments = {
        "mode": mode,
        "input_size": size,
        "hidden_size": hidden,
        "num_layers": layers,
        "direction": direction,
        "layout": layout,
        "lengths": lengths,
        "padding_value": source.choice((0.0, 0.0, 2.0)),
        "dtype": dtype,
    }
    return Recipe(operands, arguments, scaled=False)


def _matmul(source: Source) -> Recipe:
    """Matrices of one dtype; or of other dtypes and shapes: b of int8, float32 epilogues, vectors."""
    drawn = _matrices(source)
    if source.chance(0.35):
        drawn = _mixed(source, drawn)
    return drawn


def _mixed(source: Source, drawn: Recipe) -> Recipe:
    dtype, operands = source.choice(HALF), dict(drawn.operands)
    (a, b), (y, _) = (operands[name][0] for name in "ab"), drawn.out or ((), "")
    arguments, kind = dict(drawn.arguments), source.choice(("int8", "int8", "wide", "vector", "integers"))
    if kind == "integers":
        pair = {"a": (a, "int8", "integers"), "b": (b, "int8", "integers")}
        return Recipe(pair, {"out_dtype": "int32"}, (y, "int32"), scaled=False)
    if kind == "vector":
        if source.chance(0.5):
            a, y = a[-1:], (*b[:-2], b[-1])
            bias = y[-1:]
        else:
            b, y, bias = b[-2:-1], a[:-1], ()
        dtype = source.choice(FLOATS)
        pair = {"a": (a, dtype, "normal"), "b": (b, dtype, "normal")}
        return Recipe(
            pair | ({"bias": (bias, dtype, "normal")} if bias else {}), {}, (y, dtype), scaled=False
        )
    result = source.choice((dtype, "float32"))
    arguments |= {"out_dtype": result} if result != dtype else {}
    operands = {"a": (a, dtype, "normal"), "b": (b, dtype, "normal")}
    if kind == "int8":
        operands["b"] = (b, "int8", "integers")
        operands["b_scale"] = (source.choice((y[-1:], (1,))), "float32", "positive")
    if source.chance(0.6):
        operands["bias"] = (y[-1:], source.choice((result, "float32")), "normal")
    if source.chance(0.3):
        operands["residual"] = (y, result, "normal")
    return Recipe(operands, arguments, (y, result), scaled=False)


def _matrices(source: Source) -> Recipe:
    lengths = (1, 2, 3, 5, 8, 16, 24, 33, 64)
    rows, terms, columns = (source.choice(lengths) for _ in range(3))
    batch = tuple(source.randint(1, 3) for _ in range(source.choice((0, 0, 1, 2))))
    own = [tuple(source.choice((n, n, 1)) for n in batch[source.randint(0, len(batch)) :]) for _ in "ab"]
    full = tuple(
        max(shape[axis - len(batch)] if len(batch) - axis <= len(shape) else 1 for shape in own)
        for axis in range(len(batch))
    )
    full = full[len(batch) - max(map(len, own)) :] if batch else ()
    dtype = source.choice(FLOATS)
    y = (*full, rows, columns)
    operands = {
        "a": ((*own[0], rows, terms), dtype, "normal"),
        "b": ((*own[1], terms, columns), dtype, "normal"),
    }
    activations = (None, "relu", "silu", "sigmoid", "tanh", "gelu", "gelu_tanh")
    arguments: dict[str, Any] = {"activation": source.choice(activations[: 5 if dtype == "float64" else 7])}
    if source.chance(0.4):
        operands["bias"] = ((columns,), dtype, "normal")
    if source.chance(0.4):
        operands["residual"] = (y, dtype, "normal")
    if source.chance(0.4):
        arguments["alpha"] = source.choice((0.5, -2.0, 0.0))
    return Recipe(operands, arguments, (y, dtype), scaled=False)


def _matmul_backward(source: Source) -> Recipe:
    drawn = _matrices(source)
    y, dtype = drawn.out or ((), "")
    operands = {"dy": (y, dtype, "normal"), "a": drawn.operands["a"], "b": drawn.operands["b"]}
    arguments: dict[str, Any] = {"bias_gradient": source.chance(0.5)}
    if source.chance(0.4):
        arguments["alpha"] = source.choice((0.5, -2.0))
    return Recipe(operands, arguments, scaled=False)


def _row_norm(mode: str, source: Source) -> Recipe:
    adaptive = mode == "ada_layer_norm"
    axes = (source.choice((1, 3, 8, 64, 64, 100, 128)),)
    if source.chance(0.2):
        axes = (source.randint(1, 4), *axes)
    batch = tuple(source.randint(1, 5) for _ in range(source.randint(adaptive, 3)))
    if adaptive and prod(batch[1:]) == 1:  # cuDNN has no engine for samples of one row
        batch = (*batch, 2)
    dtype = source.choice(FLOATS[:3])
    wide = source.choice((dtype, "float32"))
    shape, parameter = (*batch, *axes), (*batch[:adaptive], *axes)
    operands = {"x": (shape, dtype, centre(source)), "scale": (parameter, wide, "normal")}
    if source.chance(0.6):
        operands["bias"] = (parameter, wide, "normal")
    arguments: dict[str, Any] = {"epsilon": source.choice((1e-5, 1e-2))}
    more = dict.fromkeys(_MOMENTS[mode], ((*batch, *(1 for _ in axes)), "float32"))
    return Recipe(operands, arguments, (shape, dtype), scaled=False, more=more)


_MOMENTS = {"layer_norm": ("mean", "invstd"), "rms_norm": ("invrms",), "ada_layer_norm": ("mean", "invstd")}


def _row_norm_backward(mode: str, source: Source) -> Recipe:
    drawn = _row_norm(mode, source)
    x, scale = drawn.operands["x"], drawn.operands["scale"]
    operands, derived = {"dy": (*x[:2], "normal"), "x": x, "scale": scale}, {}
    for name, memory in drawn.more.items():
        operands[name] = (*memory, "normal")
        derived[name] = Derived(mode, name, drawn.arguments)
    arguments: dict[str, Any] = {"bias_gradient": True} if mode == "rms_norm" and source.chance(0.5) else {}
    names = ("dscale", "dbias") if mode != "rms_norm" or arguments else ("dscale",)
    more = dict.fromkeys(names, scale[:2])
    return Recipe(operands, arguments, drawn.out, derived, scaled=False, more=more)


VALUES_OF_FLOAT8 = ("normal", "integers", "unit")
EPILOGUES = (None, "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")


def _scaled_matmul(source: Source) -> Recipe:
    rows, terms, columns = (16 * source.choice((1, 2, 3, 4, 8)) for _ in range(3))
    batch = (source.randint(1, 3),) if source.chance(0.4) else ()
    out = source.choice(("bfloat16", "float16", "float32", *FLOAT8))
    values = source.choice(VALUES_OF_FLOAT8)
    operands = {
        "a": ((*batch, rows, terms), source.choice(FLOAT8), values),
        "b": ((*(batch if source.chance(0.6) else ()), terms, columns), source.choice(FLOAT8), values),
    }
    for name in ("descale_a", "descale_b", "scale"):
        if source.chance(0.6):
            operands[name] = ((1,), "float32", "positive")
    if source.chance(0.4):
        bias = source.choice(HALF) if out in FLOAT8 else out
        operands["bias"] = ((columns,), source.choice((bias, "float32")), "normal")
    if source.chance(0.3):
        operands["residual"] = ((*batch, rows, columns), out, "normal")
    arguments = {"activation": source.choice(EPILOGUES), "amax": source.chance(0.5), "out_dtype": out}
    more = {"amax": ((1,), "float32")} if arguments["amax"] else {}
    return Recipe(operands, arguments, ((*batch, rows, columns), out), scaled=False, more=more)


def _scaled_conv(source: Source) -> Recipe:
    """A convolution of float8; one of 20 calls has to be rejected, for its channels or amax with groups."""
    g = _training_geometry(source, (16, 32, 48), source.choice((1, 2, 2, 2, 3)), "float8_e4m3")
    groups, x, w, y = 1, g.x, g.w, g.y
    if source.chance(0.2):
        groups = 2
        x, w, y = (x[0], 2 * x[1], *x[2:]), (2 * w[0], *w[1:]), (y[0], 2 * y[1], *y[2:])
    rejected = source.chance(0.05)
    if rejected and groups == 1:
        x, w = (x[0], 8, *x[2:]), (w[0], 8, *w[2:])
    out, values = source.choice(("bfloat16", "float16", "float32", *FLOAT8)), source.choice(VALUES_OF_FLOAT8)
    operands = {"x": (x, source.choice(FLOAT8), values), "w": (w, source.choice(FLOAT8), values)}
    for name in ("descale_x", "descale_w", "scale"):
        if source.chance(0.6):
            operands[name] = ((1,), "float32", "positive")
    if source.chance(0.4):
        bias = source.choice(HALF) if out in FLOAT8 else out
        operands["bias"] = (_per_channel(source, y, y[1]), source.choice((bias, "float32")), "normal")
    arguments = g.arguments | {"groups": groups, "activation": source.choice(EPILOGUES)}
    arguments |= {"amax": rejected if groups > 1 else source.chance(0.5), "out_dtype": out}
    more = {"amax": ((1,), "float32")} if arguments["amax"] and not rejected else {}
    memory = None if rejected else (y, out)
    return Recipe(operands, arguments, memory, scaled=False, more=more, rejected=rejected)


# --- attention ---


def _attention(source: Source) -> Recipe:
    """Grouped heads, masks, and batches of one length, padded, packed, or with a paged cache."""
    kv_heads, batch = source.choice((1, 1, 2, 3)), source.randint(1, 3)
    head = source.choice((8, 32, 64, 72)) if source.chance(0.6) else 8 * source.randint(1, 32)
    heads, value_head = kv_heads * source.choice((1, 1, 2, 4)), source.choice((head, head, 64))
    if source.chance(0.4):  # the two sizes are independent of each other
        value_head = 8 * source.randint(1, 32)
    queries, keys = source.choice((1, 2, 17, 64, 100, 130)), source.choice((2, 17, 48, 64, 100, 192))
    dtype = source.choice((*HALF, *HALF, "float32"))
    kind = source.choice(("", "", "", "bias", "padded", "packed", "paged"))
    if dtype == "float32":  # wider heads are rejected
        head, value_head = min(head, 128), min(value_head, 128)
    elif kind == "packed" and source.chance(0.4):  # their gradients have kernels of their own for wide heads
        head = 8 * source.randint(24, 32)
    causal = source.choice((False, False, True, "top_left", "bottom_right"))
    arguments: dict[str, Any] = {"causal": causal, "return_stats": source.chance(0.5)}
    if kind == "bias" and causal == "bottom_right":  # a combination that is rejected
        arguments["causal"] = "top_left"
    if causal and kind in ("", "bias", "packed") and queries <= keys and source.chance(0.4):
        arguments["window"] = (source.randrange(keys), source.choice((None, 0)))
    if kind in ("padded", "packed") and causal != "bottom_right" and source.chance(0.3):
        # Last queries may have no keys.
        arguments["window"] = (source.randrange(min(keys, 20)), source.choice((None, 0, 3)))
    if source.chance(0.3):
        arguments["scale"] = source.choice((0.05, 0.3))
    lengths = [[source.randint(1, longest) for _ in range(batch)] for longest in (queries, keys)]
    if causal == "bottom_right":  # queries without keys are rejected
        lengths[0] = [min(pair) for pair in zip(*lengths, strict=True)]
    shapes = {
        "q": (batch, heads, queries, head),
        "k": (batch, kv_heads, keys, head),
        "v": (batch, kv_heads, keys, value_head),
    }
    if kind == "paged":
        block, pages = source.choice((16, 32)), source.randint(1, 4)
        lengths[1] = [source.randint(1, block * pages) for _ in range(batch)]
        if causal == "bottom_right":
            lengths[0] = [min(pair) for pair in zip(*lengths, strict=True)]
        shapes |= {"k": (batch * pages, kv_heads, block, head)}
        shapes |= {"v": (batch * pages, kv_heads, block, value_head)}
        blocks = source.sample(range(batch * pages), batch * pages)
        arguments["page_table"] = [blocks[n * pages : (n + 1) * pages] for n in range(batch)]
    if kind in ("padded", "paged"):
        arguments |= {"lengths_q": lengths[0], "lengths_kv": lengths[1]}
        arguments["lengths_on_device"] = source.chance(0.5)
    if kind == "packed":
        room = lengths
        if source.chance(0.3):
            room = [[n + source.randint(0, 40) for n in each] for each in lengths]
            arguments |= {"lengths_q": lengths[0], "lengths_kv": lengths[1]}
            arguments["lengths_on_device"] = source.chance(0.5)
        shapes = {name: (sum(room[name != "q"]), shape[1], shape[3]) for name, shape in shapes.items()}
        for name, each in zip(("offsets_q", "offsets_kv"), room, strict=True):
            arguments[name] = [sum(each[:n]) for n in range(batch + 1)]
    operands = {name: (shape, dtype, "normal") for name, shape in shapes.items()}
    if kind == "bias":
        full = (batch, heads, queries, keys)
        shared = source.choice(((), (0,), (1,), (0, 1), (1, 2), (0, 1, 2)))
        shape = tuple(1 if axis in shared else n for axis, n in enumerate(full))
        # A bias of float32 is rounded to the dtype of q, integers exactly.
        other = ("float32", "integers"), ("bool", "mask")
        operands["bias"] = (shape, *source.choice(((dtype, "normal"), (dtype, "normal"), *other)))
        if operands["bias"][1] == "bool":
            arguments["mask"] = True
    elif causal != "bottom_right" and source.chance(0.2):  # no weight is dropped, but kernels draw
        arguments |= {"dropout": 1e-12, "seed": source.randrange(2**31), "offset": source.randrange(99)}
    y = (*shapes["q"][:-1], value_head)
    more = {"stats": (y[:-1], "float32")} if arguments["return_stats"] else {}
    return Recipe(operands, arguments, (y, dtype), scaled=False, more=more, order=(0, 2, 1, 3))


def _attention_backward(source: Source) -> Recipe:
    drawn = _attention(source)
    while "page_table" in drawn.arguments or "float32" in drawn.operands["q"]:
        drawn = _attention(source)
    arguments = drawn.arguments | {"return_stats": True}
    (y, dtype), operands = drawn.out or ((), ""), drawn.operands
    operands = {"dy": (y, dtype, "normal"), **operands, "y": (y, dtype, "normal")}
    operands["stats"] = (y[:-1], "float32", "normal")
    derived = {name: Derived("attention", name, arguments) for name in ("y", "stats")}
    arguments = {name: value for name, value in arguments.items() if name != "return_stats"}
    more = {f"d{name}": operands[name][:2] for name in "kv"}
    if "bias" in operands and "mask" not in arguments and source.chance(0.6):
        arguments["dbias"] = True
        more["dbias"] = operands["bias"][:2]
    if source.chance(0.2):
        arguments["deterministic"] = True
    given = (operands, arguments, operands["q"][:2], derived)
    return Recipe(*given, scaled=False, more=more, order=(0, 2, 1, 3))


def _clear_padding(source: Source) -> Recipe:
    shape = (*(source.randint(1, most) for most in (4, 4, 40)), 8 * source.randint(1, 20))
    dtype = source.choice((*HALF, "float32"))
    arguments = {"lengths": [source.randint(0, shape[2]) for _ in range(shape[0])]}
    arguments["lengths_on_device"] = source.chance(0.5)
    operands = {"x": (shape, dtype, source.choice(("normal", "special")))}
    return Recipe(operands, arguments, (shape, dtype), alias=("x",), scaled=False, order=(0, 2, 1, 3))


def _scaled_attention(source: Source) -> Recipe:
    """float8 with any of the scales; one of twelve calls has to be rejected."""
    kv_heads, batch = source.choice((1, 1, 2, 3)), source.randint(1, 2)
    heads, dtype = kv_heads * source.choice((1, 1, 2, 4)), source.choice(FLOAT8)
    head, value_head = source.choice((16, 32, 64, 64, 80, 128, 192)), source.choice((16, 48, 64, 64, 128))
    queries, keys = source.choice((2, 17, 64, 100, 130)), source.choice((1, 2, 17, 48, 64, 100, 192))
    few = source.chance(0.3)  # results: then a row beyond the queries may be the largest
    if few:
        kv_heads, heads, batch, queries, keys = 1, 1, 1, 2, source.randint(2, 4)
    arguments: dict[str, Any] = {"causal": source.choice((False, False, True, "top_left"))}
    if source.chance(0.15):
        arguments["causal"], keys = "bottom_right", queries
    arguments |= {"return_stats": source.chance(0.5), "amax": few or source.chance(0.5)}
    arguments["out_dtype"] = source.choice((dtype, dtype, *FLOAT8))
    if source.chance(0.6 if few else 0.3):
        arguments["scale"] = source.choice((0.05, 0.3, 1.0))
    rejected = "" if source.chance(11 / 12) else source.choice(("query", "head", "mask", "scale", "dtype"))
    queries = {"query": 1, "mask": keys + 3}.get(rejected, queries)
    head = source.choice((8, 24, 208, 256)) if rejected == "head" else head
    wrong = {"mask": {"causal": "bottom_right"}, "scale": {"scale": source.choice((0.0, -0.5))}}
    arguments |= wrong.get(rejected, {}) | ({"out_dtype": "float32"} if rejected == "dtype" else {})
    operands = {
        "q": ((batch, heads, queries, head), dtype, "normal"),
        "k": ((batch, kv_heads, keys, head), dtype, "normal"),
        "v": ((batch, kv_heads, keys, value_head), dtype, "normal"),
    }
    for name in ("descale_q", "descale_k", "descale_v", "scale_o"):
        if source.chance(0.5):
            operands[name] = ((1,), "float32", "positive")
    if source.chance(0.4):
        operands |= {"scale_s": ((1,), "float32", "64"), "descale_s": ((1,), "float32", "1/64")}
    y = (batch, heads, queries, value_head)
    sizes = {"return_stats": ("stats", y[:-1]), "amax": ("amax", (1,))}
    more = {name: (shape, "float32") for key, (name, shape) in sizes.items() if arguments[key]}
    out = None if rejected else (y, arguments["out_dtype"])
    more = {} if rejected else more
    given = (operands, arguments, out)
    return Recipe(*given, scaled=False, more=more, order=(0, 2, 1, 3), rejected=bool(rejected))


def _with_gradient(name: str, recipe: Callable[..., Recipe]) -> dict[str, Callable[[Source], Recipe]]:
    return {name: recipe, f"{name}_backward": partial(recipe, gradient=True)}


# In the order that the draws of a seed depend on.
RECIPES: dict[str, Callable[[Source], Recipe]] = {
    "RNN": _rnn,
    **private(globals(), "activation"),
    **{name: partial(_row_norm, name) for name in _MOMENTS},
    **{f"{name}_backward": partial(_row_norm_backward, name) for name in _MOMENTS},
    **private(globals(), "matmul", "matmul_backward", "scaled_matmul", "scaled_conv"),
    **private(globals(), "attention", "attention_backward", "clear_padding", "scaled_attention"),
    **private(globals(), "conv_scale_bias_activation", "conv_batch_norm_statistics", "batch_norm_finalize"),
    **private(globals(), "conv_backward_data_relu_batch_norm", "conv_backward_filter_scale_bias_relu"),
    **private(globals(), "activation_backward", "add", "affine_grid", "affine_grid_backward"),
    **private(globals(), "batch_norm_backward", "batch_norm_inference", "batch_norm_inference_backward"),
    **private(globals(), "batch_norm_training"),
    **_with_gradient("causal_conv1d", _causal),
    **_with_gradient("fft_causal_conv1d", _by_fft),
    **_with_gradient("b2b_causal_conv1d", _back_to_back),
    **_with_gradient("graph_aggregate", _aggregate),
    **_with_gradient("graph_attention", _graph_attention),
    "conv": partial(_planned_conv, "conv"),
    "conv_backward_bias": _conv_backward_bias,
    "conv_backward_data": partial(_planned_conv, "conv_backward_data"),
    "conv_backward_filter": partial(_planned_conv, "conv_backward_filter"),
    **private(globals(), "conv_bias_activation", "conv_transpose", "ctc_loss", "dropout", "fill"),
    **private(globals(), "grid_sample", "grid_sample_backward"),
    **each("draw"),
    **private(globals(), "instance_norm", "instance_norm_backward", "lrn", "lrn_backward", "op_tensor"),
    **private(globals(), "pool", "pool_backward", "reduce", "scale", "softmax", "softmax_backward"),
    **private(globals(), "spatial_transformer", "spatial_transformer_backward", "transform"),
}

# How often an operation is drawn, if not once: more often for those with more kernels behind them.
WEIGHTS = {
    "conv": 4,
    "conv_backward_data": 3,
    "conv_backward_filter": 3,
    "conv_bias_activation": 5,
    "attention": 3,
    "attention_backward": 3,
    "conv_scale_bias_activation": 3,
    "scaled_attention": 3,
    "batch_norm_training": 3,
    "batch_norm_backward": 3,
}


# Operations whose engines are compiled when a call prepares them.
COMPILED = {
    *(name for name in RECIPES if name.startswith(("conv", "matmul", "scaled", "attention"))),
    *(f"{name}{step}" for name in _MOMENTS for step in ("", "_backward")),
    "batch_norm_finalize",
} - {"conv_backward_bias"}


def operations(device: str) -> list[str]:
    """The operations to draw from, as often as each is to be drawn."""
    return [name for name in RECIPES for _ in range(WEIGHTS.get(name, 1))]
