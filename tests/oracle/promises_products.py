"""Promises about convolutions, plans, products of matrices, attention and graphs."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

import cudnn_ct as ct
from cudnn_ct.dtypes import as_dtype

from .judge import UNIT
from .operands import rounded
from .promise import FLOATS, HALF, Draw, host, promise

__all__ = ["attended", "compared", "heads"]

TF32 = 2.0**-10


def _unit(dtype: str) -> float:
    return TF32 if dtype == "float32" else 0.0


# --- convolutions ------------------------------------------------------------------------------------------


def _convolved(
    x: np.ndarray, w: np.ndarray, stride: int = 1, padding: int = 0, dilation: int = 1
) -> np.ndarray:
    x = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    sizes = [
        (n - (k - 1) * dilation - 1) // stride + 1 for n, k in zip(x.shape[2:], w.shape[2:], strict=True)
    ]
    y = np.zeros((len(x), len(w), *sizes))
    for i, j in product(*map(range, w.shape[2:])):
        first, second = i * dilation, j * dilation
        part = x[
            :, :, first : first + stride * sizes[0] : stride, second : second + stride * sizes[1] : stride
        ]
        y += np.einsum("nchw,kc->nkhw", part[:, :, : sizes[0], : sizes[1]], w[:, :, i, j])
    return y


def _images(d: Draw, dtype: str, values: str = "normal") -> tuple[np.ndarray, np.ndarray]:
    window, channels = d.choice((1, 2, 3)), d.choice((1, 3, 4, 8))
    x = d.values((d.randint(1, 3), channels, *d.sizes(2, 9, window)), dtype, values)
    return x, d.values((d.choice((1, 4, 8)), channels, window, window), dtype, values)


@promise(
    "docs/algorithms.md",
    "|error| <= 8 * sqrt(terms + 64) * u * max(sum |x| |w|) + 6 * u_result * max |result|",
)
@promise("docs/settings.md", "gives IEEE arithmetic within a")
def convolutions_are_within_their_bound(d: Draw) -> None:
    dtype = d.dtype()
    x, w = _images(d, dtype)
    parameters = {"stride": d.randint(1, 2), "padding": d.randint(0, 1), "dilation": 1}
    precision = d.choice(("float32", None)) if dtype == "float32" else None
    keywords: dict[str, Any] = {"precision": precision} if precision else {}
    got = host(ct.conv(d.array(x, dtype), d.array(w, dtype), **parameters, **keywords))
    want, sums = _convolved(x, w, **parameters), _convolved(np.abs(x), np.abs(w), **parameters)
    unit = {"float32": 2**-24 if precision else TF32 / 2, "float64": 2**-53}.get(dtype, 2**-24)
    terms = w[0].size
    bound = 8 * np.sqrt(terms + 64) * unit * sums.max() + 6 * UNIT[dtype] * np.abs(want).max()
    worst = np.abs(got - want).max()
    d.holds(
        worst <= bound + 1e-7 * (dtype == "float16"),
        f"{dtype} {precision}: error {worst:.3g}, bound {bound:.3g}",
    )


@promise("ct.conv", '``"half"`` keeps the size for odd windows at stride 1')
@promise("ct.conv", '``"convolution"`` flips the window.')
def modes_and_paddings_of_convolutions(d: Draw) -> None:
    dtype, window = d.dtype(), d.choice((1, 3, 5))
    x, w = d.values((2, 3, *d.sizes(2, 7, 3)), dtype), d.values((4, 3, window, window), dtype)
    y = ct.conv(d.array(x, dtype), d.array(w, dtype), padding="half", mode="convolution")
    d.holds(y.shape[2:] == x.shape[2:], f"padding half makes {y.shape} of {x.shape}")
    want = _convolved(x, w[:, :, ::-1, ::-1], padding=window // 2)
    terms = np.full(want.shape, _convolved(np.abs(x), np.abs(w), padding=window // 2).max())
    d.near(y, want, dtype=dtype, terms=terms, unit=_unit(dtype))


@promise("ct.conv_backward_filter", "``beta=1`` with ``out`` accumulates")
def filter_gradients_accumulate(d: Draw) -> None:
    dtype = d.dtype()
    x, w = _images(d, dtype)
    dy = d.values(_convolved(x, w).shape, dtype)
    arrays = d.array(dy, dtype), d.array(x, dtype)
    once = host(ct.conv_backward_filter(*arrays, w.shape))
    old = d.values(w.shape, dtype)
    out = d.array(old, dtype)
    got = ct.conv_backward_filter(*arrays, w.shape, beta=1, out=out)
    d.near(
        got,
        old + once,
        dtype=dtype,
        terms=np.full(w.shape, np.abs(dy).sum() * np.abs(x).max() + 1),
        unit=max(_unit(dtype), UNIT.get(dtype, 0.0) / 64),  # the sum without beta is rounded once more
    )
    i, j = (d.randrange(n) for n in w.shape[2:])
    part = x[:, :, i : i + dy.shape[2], j : j + dy.shape[3]]
    want = np.einsum("nkhw,nchw->kc", dy, part)
    terms = np.full(want.shape, np.einsum("nkhw,nchw->kc", np.abs(dy), np.abs(part)).max())
    d.near(once[:, :, i, j], want, dtype=dtype, terms=terms, unit=_unit(dtype))


@promise("ct.conv_backward_bias", "The sum over all axes except the second.")
def bias_gradients_are_sums(d: Draw) -> None:
    dtype, shape = d.dtype(), (d.randint(1, 4), d.randint(1, 9), *d.sizes(d.randint(1, 3), 12))
    dy = d.values(shape, dtype)
    axes = (0, *range(2, len(shape)))
    d.near(ct.conv_backward_bias(d.array(dy, dtype)), dy.sum(axes), dtype=dtype, terms=np.abs(dy).sum(axes))


@promise("docs/algorithms.md", "Products are summed in int32.")
@promise(
    "docs/algorithms.md", "int32, or float32 where `out=` is float32, which then is the nearest to the sum"
)
def convolutions_of_integers_are_exact(d: Draw) -> None:
    channels, filters = d.choice((4, 16)), d.choice((4, 16))
    x = d.rng.integers(-128, 128, (d.randint(1, 2), channels, 6, 6)).astype(np.int8)
    w = d.rng.integers(-128, 128, (filters, channels, 3, 3)).astype(np.int8)
    arrays = [ct.asarray(one, layout="nhwc") for one in (x, w)]
    want = _convolved(x.astype(np.float64), w.astype(np.float64))
    if d.chance(0.5):
        d.equal(ct.conv(*arrays), want.astype(np.int64))
    else:
        out = ct.empty(want.shape, "float32", layout="nhwc")
        d.equal(ct.conv(*arrays, out=out), want.astype(np.float32).astype(np.float64))


@promise("docs/algorithms.md", "Nothing is written to it; give the call its own `out=`.")
@promise("docs/algorithms.md", "with a `beta`, every call needs `out=`")
@promise("docs/algorithms.md", "Operands of another kind are a `ValueError`")
def plans_check_their_calls(d: Draw) -> None:
    dtype = d.dtype()
    values, w = _images(d, dtype)
    x, filters = (d.array(one, dtype, True) for one in (values, w))
    first = ct.conv(x, filters)
    out = ct.full(first.shape, 7.0, dtype)
    plan = ct.conv_plan(x, filters, out=out)
    d.equal(out, np.full(first.shape, 7.0))
    other = ct.zeros((values.shape[0] + 1, *values.shape[1:]), dtype)
    d.raises(ValueError, lambda: plan(other, filters))
    plan(x, filters, out=out)
    terms = np.full(first.shape, np.abs(host(first)).max() + w[0].size)
    d.near(out, host(first), dtype=dtype, terms=terms, unit=_unit(dtype))
    added = ct.conv_plan(x, filters, beta=1.0, out=out)
    d.raises(ValueError, lambda: added(x, filters), "a plan with beta and without out")


@promise(
    "ct.conv_bias_activation",
    "Convolve, add and activate: ``y = act(alpha1 * conv(x, w) + alpha2 * residual + bias)``.",
)
def fused_convolutions_are_their_formula(d: Draw) -> None:
    dtype = d.dtype()
    x, w = _images(d, dtype)
    plain = _convolved(x, w)
    b, z = d.values((len(w),), dtype), d.values(plain.shape, dtype)
    alpha1, alpha2 = d.choice((1.0, 0.5)), d.choice((1.0, -2.0))
    mode = d.choice(("relu", "identity", "sigmoid"))
    before = alpha1 * plain + alpha2 * z + b.reshape(-1, 1, 1)
    want = {"relu": np.maximum(before, 0), "identity": before, "sigmoid": 1 / (1 + np.exp(-before))}[mode]
    arrays = [d.array(one, dtype) for one in (x, w, b)]
    got = ct.conv_bias_activation(
        *arrays, residual=d.array(z, dtype), activation=mode, alpha1=alpha1, alpha2=alpha2
    )
    terms = np.full(
        plain.shape, (_convolved(np.abs(x), np.abs(w)).max() + 3 * np.abs(z).max() + np.abs(b).max()) * 2
    )
    unit = max(_unit(dtype), UNIT[dtype] / 16)  # of results that are rounded in between
    d.near(got, want, dtype=dtype, terms=terms, unit=unit)


# --- products of matrices ----------------------------------------------------------------------------------


@promise("docs/matmul-and-norms.md", "Shapes follow `numpy.matmul`.")
@promise("ct.matmul", "an ``a`` of one axis is a row and a ``b`` of one axis is a column")
def products_have_the_shapes_of_numpy(d: Draw) -> None:
    dtype, (rows, terms, columns) = d.dtype(), d.sizes(3, 9)
    batch = d.sizes(d.randint(0, 2), 3)
    shapes = [
        tuple(n if d.chance(0.6) else 1 for n in batch[d.randint(0, len(batch)) :]) + matrix
        for matrix in ((rows, terms), (terms, columns))
    ]
    place = d.choice((None, None, 0, 1))
    if place is not None:
        shapes[place] = (terms,)
    a, b = (d.values(shape, dtype) for shape in shapes)
    want = np.matmul(a, b)
    terms_of = np.matmul(np.abs(a), np.abs(b))
    d.near(
        ct.matmul(d.array(a, dtype), d.array(b, dtype)), want, dtype=dtype, terms=terms_of, unit=_unit(dtype)
    )


@promise("docs/matmul-and-norms.md", "int8 | int32 | int32, without an epilogue")
def products_of_integers_are_exact(d: Draw) -> None:
    rows, terms, columns = (d.choice((1, 4, 16, 33)) for _ in range(3))
    a, b = (d.rng.integers(-128, 128, shape).astype(np.int8) for shape in ((rows, terms), (terms, columns)))
    d.equal(ct.matmul(ct.asarray(a), ct.asarray(b)), a.astype(np.int64) @ b.astype(np.int64))


@promise("docs/matmul-and-norms.md", "int8 weights are converted to the dtype of a, in which they are exact.")
@promise("ct.matmul", "Factor of each column of int8 weights ``b``, for a in half precision.")
def integer_weights_have_factors(d: Draw) -> None:
    dtype, (rows, terms, columns) = d.dtype(*HALF), (d.choice((1, 4, 7, 33, 64)) for _ in range(3))
    a = d.values((rows, terms), dtype)
    b = d.rng.integers(-128, 128, (terms, columns)).astype(np.int8)
    scale = d.values((d.choice((columns, 1)),), "float32", "positive") / 64
    scale = rounded(scale, "float32")
    got = ct.matmul(
        d.array(a, dtype),
        ct.asarray(b),
        b_scale=ct.asarray(np.asarray(scale, np.float32)),
        out_dtype="float32",
    )
    d.near(got, (a @ b) * scale, dtype="float32", terms=(np.abs(a) @ np.abs(b.astype(np.float64))) * scale)


@promise("ct.matmul_backward", "da = alpha * dy @ b.T        db = alpha * a.T @ dy        dbias = sum(dy)")
@promise("docs/matmul-and-norms.md", "The gradient of an operand that was broadcast is summed in float32.")
def gradients_of_products_are_sums(d: Draw) -> None:
    dtype, (rows, terms, columns), batch = d.dtype(), d.sizes(3, 9), d.choice((1, 3, 40))
    a, b = d.values((batch, rows, terms), dtype), d.values((terms, columns), dtype)
    dy = d.values((batch, rows, columns), dtype)
    found = ct.matmul_backward(*(d.array(one, dtype) for one in (dy, a, b)), bias_gradient=True)
    keywords = {"dtype": dtype, "unit": _unit(dtype)}
    sizes = [np.abs(one) for one in (a, b, dy)]
    d.near(found.da, dy @ b.T, terms=sizes[2] @ sizes[1].T, **keywords)
    want = np.einsum("brt,brc->tc", a, dy)
    d.near(found.db, want, terms=np.einsum("brt,brc->tc", sizes[0], sizes[2]), **keywords)
    d.near(found.dbias, dy.sum((0, 1)), terms=sizes[2].sum((0, 1)), **keywords)


@promise(
    "ct.scaled_matmul",
    "``amax`` is the largest magnitude of v, from which the scale of the next step follows.",
)
def products_of_float8_have_a_largest_magnitude(d: Draw) -> None:
    dtype, (m, k, n) = d.dtype("float8_e4m3", "float8_e5m2"), (16 * d.randint(1, 3) for _ in range(3))
    a, b = d.values((m, k), dtype), d.values((k, n), dtype)
    factor, scale = (rounded(d.rng.uniform(0.5, 2, 1), "float32") for _ in range(2))
    arrays = [ct.asarray(np.asarray(one, as_dtype(dtype).numpy)) for one in (a, b)]
    given = {"descale_a": factor, "scale": scale}
    keywords = {name: ct.asarray(np.asarray(one, np.float32)) for name, one in given.items()}
    found = ct.scaled_matmul(*arrays, amax=True, out_dtype="float32", **keywords)
    v = factor * (a @ b)
    terms = factor * (np.abs(a) @ np.abs(b))
    d.near(found.y, scale * v, dtype="float32", terms=scale * terms, unit=2**-13)
    d.near(
        found.amax,
        np.abs(v).max(keepdims=True).reshape(1),
        dtype="float32",
        terms=terms.max().reshape(1),
        unit=2**-13,
    )


# --- attention ---------------------------------------------------------------------------------------------


def attended(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, allowed: np.ndarray, bias: Any = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return attention and its statistics, for the pairs of queries and keys that are not masked."""
    group = q.shape[1] // k.shape[1]
    k, v = (one.repeat(group, 1) for one in (k, v))
    scores = np.where(allowed, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + bias, -np.inf)
    largest = np.where(np.isfinite(scores.max(-1, keepdims=True)), scores.max(-1, keepdims=True), 0)
    weights = np.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        stats = (np.log(total) + largest)[..., 0]
    return weights @ v / np.where(total == 0, 1, total), stats


def heads(d: Draw, queries: int, keys: int) -> tuple[str, list[np.ndarray]]:
    dtype, batch, kv, group = d.dtype(*HALF), d.randint(1, 3), d.choice((1, 2)), d.choice((1, 2))
    head = d.choice((8, 32, 64))
    shapes = ((batch, kv * group, queries, head), (batch, kv, keys, head), (batch, kv, keys, head))
    return dtype, [d.values(shape, dtype) for shape in shapes]


def _placed(d: Draw, values: list[np.ndarray], dtype: str) -> list[Any]:
    """Arrays of (B, H, S, D), half of them views of (B, S, H, D) memory."""
    turned = d.chance(0.5)
    if not turned:
        return [d.array(one, dtype) for one in values]
    return [d.array(one.transpose(0, 2, 1, 3), dtype, True).transpose(0, 2, 1, 3) for one in values]


def compared(d: Draw, got: Any, want: np.ndarray, dtype: str) -> None:
    d.near(got, want, dtype=dtype, terms=np.full(want.shape, 4.0), unit=4 * UNIT[dtype] / 64)


@promise("docs/attention.md", "j <= i, as in PyTorch's `is_causal`")
@promise("docs/attention.md", "i - left <= j <= i + right, at the corner of `causal`; None or -1 is no limit")
@promise("docs/attention.md", "each head of k and v serves H / Hkv adjacent heads of q")
@promise("docs/attention.md", "Strides are free: pass (B, S, H, D) memory as its transposed view")
def masks_select_keys(d: Draw) -> None:
    queries, keys = d.choice((2, 17, 64)), d.choice((64, 80, 128))
    dtype, values = heads(d, queries, keys)
    i, j = np.arange(queries)[:, None], np.arange(keys)
    causal = d.choice((False, True, "top_left", "bottom_right"))
    shift = keys - queries if causal == "bottom_right" else 0
    allowed = (j <= i + shift) if causal else np.ones((queries, keys), bool)
    keywords: dict[str, Any] = {"causal": causal}
    if causal and d.chance(0.5):
        left = d.randrange(keys)
        keywords["window"] = (left, d.choice((None, 0)))
        allowed = allowed & (j >= i + shift - left)
    found = ct.attention(*_placed(d, values, dtype), return_stats=True, **keywords)
    want, stats = attended(*values, allowed)
    compared(d, found.y, want, dtype)
    d.near(found.stats, stats, dtype="float32", terms=np.full(stats.shape, 40.0), factor=256)


@promise("docs/attention.md", "A query without keys has zeros in y and -inf in the statistics.")
@promise("docs/attention.md", "Queries behind the length of a sequence are such queries")
@promise("ct.attention", "Queries behind them get the results of queries without keys.")
def lengths_mask_keys_and_queries(d: Draw) -> None:
    queries, keys = d.choice((2, 17, 64)), d.choice((17, 64, 128))
    dtype, values = heads(d, queries, keys)
    batch = len(values[0])
    lengths = [[d.randint(1, n) for _ in range(batch)] for n in (queries, keys)]
    given = [ct.asarray(np.asarray(one, np.int32)) if d.chance(0.5) else one for one in lengths]
    found = ct.attention(
        *_placed(d, values, dtype), lengths_q=given[0], lengths_kv=given[1], return_stats=True
    )
    rows, columns = (np.array(one).reshape(-1, 1, 1, 1) for one in lengths)
    allowed = (np.arange(queries)[:, None] < rows) & (np.arange(keys) < columns)
    want, stats = attended(*values, allowed)
    compared(d, found.y, want, dtype)
    behind = np.broadcast_to(~allowed.any(-1), stats.shape)
    d.equal(host(found.y)[behind], np.zeros((int(behind.sum()), values[2].shape[-1])))
    d.equal(host(found.stats)[behind], np.full(int(behind.sum()), -np.inf))


@promise("docs/attention.md", "it is added to the scaled scores, and -inf masks a key")
@promise("ct.attention", "Each of the first three axes may have length 1. -inf masks a key.")
def biases_mask_keys(d: Draw) -> None:
    queries, keys = d.choice((2, 17, 64)), d.choice((17, 64, 128))
    dtype, values = heads(d, queries, keys)
    full = (*values[0].shape[:2], queries, keys)
    shape = tuple(n if axis == 3 or d.chance(0.6) else 1 for axis, n in enumerate(full))
    bias = d.values(shape, dtype)
    bias = np.where(d.rng.random(shape) < 0.3, -np.inf, bias)
    bias[..., 0] = 0  # each query has a key
    y = ct.attention(*_placed(d, values, dtype), bias=d.array(bias, dtype)).y
    compared(d, y, attended(*values, np.isfinite(bias), np.where(np.isfinite(bias), bias, 0))[0], dtype)


@promise(
    "docs/attention.md",
    "q and y have the shape (tokens, H, D), k and v (tokens, Hkv, D), the statistics (tokens, H)",
)
def packed_sequences_are_apart(d: Draw) -> None:
    dtype, batch, heads, head = d.dtype(*HALF), d.randint(1, 3), d.choice((1, 2)), d.choice((8, 64))
    lengths = [[d.randint(1, 40) for _ in range(batch)] for _ in "qk"]
    offsets = [[0, *np.cumsum(one).tolist()] for one in lengths]
    q, k, v = (d.values((offsets[place][-1], heads, head), dtype) for place in (0, 1, 1))
    arrays = [d.array(one, dtype) for one in (q, k, v)]
    found = ct.attention(*arrays, offsets_q=offsets[0], offsets_kv=offsets[1], return_stats=True)
    y = host(found.y)
    for n in range(batch):
        rows, columns = (slice(one[n], one[n + 1]) for one in offsets)
        own = [one[part].transpose(1, 0, 2)[None] for one, part in ((q, rows), (k, columns), (v, columns))]
        want = attended(*own, np.ones((lengths[0][n], lengths[1][n]), bool))[0]
        compared(d, y[rows].transpose(1, 0, 2)[None], want, dtype)
    d.holds(
        found.stats.shape == (offsets[0][-1], heads), f"the statistics have the shape {found.stats.shape}"
    )


@promise("docs/attention.md", "float64; float32 with D or Dv above 128")
@promise("docs/attention.md", "a `scale` that is not positive | negate q")
@promise("docs/attention.md", "D or Dv that is not a multiple of 8")
def attention_rejects_what_it_lists(d: Draw) -> None:
    dtype, head, scale = d.choice(
        (("float32", 136, None), ("float64", 16, None), ("float16", 12, None), ("float16", 16, 0.0))
    )
    q, k, v = (ct.zeros((1, 2, n, head), dtype) for n in (4, 8, 8))
    d.raises((ct.NotSupportedError, TypeError), lambda: ct.attention(q, k, v, scale=scale))


@promise(
    "docs/attention.md", "`dbias=True` adds the gradient of the bias, summed over the axes that it shares."
)
@promise(
    "ct.attention_backward", "dv = p.T @ dy        ds = p * (dy @ v.T - sum(dy * y))        dbias = sum of ds"
)
def gradients_of_attention_are_their_formulas(d: Draw) -> None:
    queries, keys = d.choice((17, 64)), d.choice((64, 128))
    dtype, (q, k, v) = heads(d, queries, keys)
    bias = d.values((1, q.shape[1], queries, keys), dtype)
    dy = d.values((*q.shape[:-1], v.shape[-1]), dtype)
    arrays = [d.array(one, dtype) for one in (q, k, v)]
    masked = {"bias": d.array(bias, dtype)} if d.chance(0.6) else {}
    found = ct.attention(*arrays, return_stats=True, **masked)
    more = {"dbias": True} if masked else {}
    got = ct.attention_backward(d.array(dy, dtype), *arrays, found.y, found.stats, **masked, **more)
    group, factor = q.shape[1] // k.shape[1], 1 / np.sqrt(q.shape[-1])
    wide = [one.repeat(group, 1) for one in (k, v)]
    y, stats = host(found.y), host(found.stats)
    p = np.exp(factor * q @ wide[0].swapaxes(-1, -2) + (bias if masked else 0) - stats[..., None])
    ds = p * (dy @ wide[1].swapaxes(-1, -2) - (dy * y).sum(-1, keepdims=True))
    shared = lambda one: one.reshape(*k.shape[:2], group, *one.shape[2:]).sum(2)  # noqa: E731
    wants = {
        "dq": factor * ds @ wide[0],
        "dk": shared(factor * ds.swapaxes(-1, -2) @ q),
        "dv": shared(p.swapaxes(-1, -2) @ dy),
    } | ({"dbias": ds.sum(0, keepdims=True)} if masked else {})
    for name, want in wants.items():
        size = np.full(want.shape, 8 * np.abs(want).max() + 1)
        d.near(getattr(got, name), want, dtype=dtype, terms=size, unit=UNIT[dtype] / 16)


# --- graphs ------------------------------------------------------------------------------------------------


def _built(*outputs: Any, graph: Any) -> Any:
    return graph.build(*outputs, algo="heuristic")


@promise("docs/graph.md", "`minimum(x, x * slope)` computes these.")
@promise("docs/graph.md", "shapes broadcast as in NumPy")
def arithmetic_of_graphs_is_that_of_numpy(d: Draw) -> None:
    shape = (d.choice((8, 16, 32)), 64)
    other = tuple(n if d.chance(0.5) else 1 for n in shape)
    x, b = d.values(shape, "float32"), d.values(other, "float32")
    graph = ct.Graph()
    left, right = graph.input(shape), graph.input(other)
    kind = d.choice(("slope", "add", "maximum"))
    y = {
        "slope": lambda: graph.minimum(left, left * 2.0),
        "add": lambda: left + right * 0.5,
        "maximum": lambda: graph.maximum(left, 0.25) + right,
    }[kind]()
    want = {"slope": np.minimum(x, 2 * x), "add": x + 0.5 * b, "maximum": np.maximum(x, 0.25) + b}[kind]
    if kind == "slope":
        graph = ct.Graph()
        left = graph.input(shape)
        y = graph.minimum(left, left * 2.0)
    given = [x] if kind == "slope" else [x, b]
    got = _built(y, graph=graph)(*(d.array(one, "float32", True) for one in given))
    d.near(got, want, dtype="float32", terms=np.abs(x) + 4)


@promise("docs/graph.md", "and store 0 or 1 in the dtype of an output")
def comparisons_store_zero_or_one(d: Draw) -> None:
    shape, graph = (d.choice((8, 32)), 64), ct.Graph()
    x, b = (d.values(shape, "float32", "whole") for _ in range(2))
    left, right = graph.input(shape), graph.input(shape)
    name = d.choice(("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"))
    got = _built(getattr(graph, name)(left, right), graph=graph)(
        *(d.array(one, "float32", True) for one in (x, b))
    )
    d.equal(got, getattr(np, name)(x, b).astype(np.float64))


@promise("docs/graph.md", "so that int32 is exact up to 2**24 in float32")
def integers_of_graphs_are_exact(d: Draw) -> None:
    shape, graph = (8, 64), ct.Graph()
    values = d.rng.integers(-(2**23), 2**23, shape).astype(np.int32)
    x = graph.input(shape, "int32")
    y = (x + x).output(dtype="float32")
    got = graph.build(y, algo="heuristic")(ct.asarray(values))
    d.equal(got, 2.0 * values)


@promise("docs/graph.md", "it is the slope at x == lower, and 0 at x == upper")
def gradients_at_the_corners_of_a_relu(d: Draw) -> None:
    shape, slope, graph = (8, 64), d.choice((0.0, 0.25)), ct.Graph()
    x = d.rng.choice([-1.0, 0.0, 1.0, 2.0, 3.0], shape)
    dy = d.values(shape, "float32")
    incoming, value = graph.input(shape), graph.input(shape)
    y = graph.relu_backward(incoming, value, lower=0.0, upper=2.0, slope=slope)
    got = _built(y, graph=graph)(*(d.array(one, "float32", True) for one in (dy, x)))
    d.near(got, np.where(x <= 0, slope, np.where(x >= 2, 0, 1)) * dy, dtype="float32")


@promise(
    "docs/graph.md", "`y[2 * i] = x[i]` and `y[2 * i + 1] = (x[i] + x[i + 1]) / 2` along each axis", gpu=True
)
def bilinear_images_are_doubled(d: Draw) -> None:
    shape = (d.randint(1, 2), d.choice((8, 16)), *d.sizes(2, 6, 2))
    values, graph = d.values(shape, "float32"), ct.Graph()
    x = graph.input(shape, layout="nhwc")
    y = graph.resample(x, "bilinear")
    want = values
    for axis in (2, 3):
        last = np.take(want, [-1], axis)
        after = np.concatenate([np.take(want, range(1, want.shape[axis]), axis), last], axis)
        want = np.stack([want, (want + after) / 2], axis + 1).reshape(
            *want.shape[:axis], 2 * want.shape[axis], *want.shape[axis + 1 :]
        )
    got = _built(y, graph=graph)(ct.asarray(np.asarray(values, np.float32), layout="nhwc"))
    d.near(got, want, dtype="float32", terms=np.full(want.shape, 8.0))


@promise(
    "docs/graph.md",
    "A name that is used twice, an input that nothing reads and an output that is an input are errors.",
)
def graphs_are_checked(d: Draw) -> None:
    def twice() -> None:
        graph = ct.Graph()
        graph.input((4,), name="x")
        graph.input((4,), name="x")

    def unread() -> None:
        graph = ct.Graph()
        x, _ = graph.input((4, 4)), graph.input((4, 4))
        graph.define(graph.relu(x))

    def same() -> None:
        graph = ct.Graph()
        graph.define(graph.input((4, 4)))

    d.raises(ValueError, d.choice((twice, unread, same)))


@promise("docs/graph.md", "A reduction of axes of length 1 is computed as an elementwise operation")
@promise("ct.Graph.reduce", "reduced axes have length 1")
def reductions_of_graphs(d: Draw) -> None:
    shape = (d.choice((8, 16)), d.choice((1, 64)))
    values, graph, op = d.values(shape, "float32"), ct.Graph(), d.choice(("add", "norm1", "amax", "max"))
    x = graph.input(shape)
    got = _built(graph.reduce(x, op, 1), graph=graph)(d.array(values, "float32", True))
    function = {"add": np.sum, "norm1": lambda one, axis, keepdims: np.abs(one).sum(axis, keepdims=keepdims)}
    function |= {"amax": lambda one, axis, keepdims: np.abs(one).max(axis, keepdims=keepdims), "max": np.max}
    want = function[op](values, axis=1, keepdims=True)
    d.near(got, want, dtype="float32", terms=np.abs(values).sum(1, keepdims=True))


@promise("docs/graph.md", "Misaligned arrays are copied to aligned memory.")
def graphs_take_misaligned_arrays(d: Draw) -> None:
    dtype, shape, graph = d.dtype(*FLOATS[:3]), (16, 64), ct.Graph()
    a, b = d.values(shape, dtype), d.values((64, 32), dtype)
    left, right = graph.input(shape, dtype), graph.input((64, 32), dtype)
    built = _built(left @ right, graph=graph)
    arrays = []
    for one in (a, b):
        flat = np.concatenate([np.zeros(1), one.ravel()]).astype(ct.zeros((1,), dtype).numpy().dtype)
        arrays.append(ct.asarray(flat)[1:].reshape(one.shape))
    d.near(built(*arrays), a @ b, dtype=dtype, terms=np.abs(a) @ np.abs(b), unit=_unit(dtype))


@promise("README.md", "Each operation but dropout has a NumPy reference that defines it")
@promise(
    "docs/getting-started.md",
    "It takes the same arrays and parameters, without those that concern only a device",
)
def references_define_results(d: Draw) -> None:
    dtype, shape = d.dtype(), d.sizes(4, 6, 3)
    values = np.asarray(d.values(shape, dtype), ct.zeros((1,), dtype).numpy().dtype)
    name, keywords = d.choice(
        (
            ("softmax", {}),
            ("pool", {"window": 2}),
            ("lrn", {}),
            ("reduce", {"op": "norm1", "axis": (0, 2)}),
            ("activation", {"mode": "tanh"}),
        )
    )
    want = np.asarray(getattr(ct.reference, name)(values, **keywords), np.float64)
    got = getattr(ct, name)(ct.asarray(values), **keywords)
    d.near(got, want, dtype=dtype, terms=np.abs(want) + 16)
