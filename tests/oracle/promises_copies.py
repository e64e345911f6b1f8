"""Promises about operands that are copied or converted first, and about padding that is cleared."""

from __future__ import annotations

from typing import Any

import numpy as np

import cudnn_ct as ct

from .operands import rounded
from .promise import HALF, Draw, host, promise
from .promises_products import attended, compared, heads

ARRAYS, ATTENTION = "docs/arrays-and-streams.md", "docs/attention.md"


def _expanded(d: Draw, shape: tuple[int, ...], dtype: str) -> tuple[np.ndarray, Any]:
    """An array with strides of 0, and with negative ones: its values, and a view of few elements."""
    still = [d.chance(0.5) for _ in shape]
    still[d.randrange(len(shape))] = True
    small = tuple(1 if axis else n for axis, n in zip(still, shape, strict=True))
    values = d.values(small, dtype)
    x = ct.asarray(np.asarray(values, ct.zeros((1,), dtype).numpy().dtype))
    strides, step = [0] * len(shape), 1
    for axis in reversed(range(len(shape))):
        strides[axis] = 0 if still[axis] else step
        step *= small[axis]
    spec = ct.TensorSpec(shape, tuple(strides), dtype)
    view = ct.DeviceArray.over(spec, x.pointer, x, x.writer, x.home)
    index = tuple(slice(None, None, -1) if d.chance(0.3) and not one else slice(None) for one in still)
    return np.broadcast_to(values, shape)[index], view[index]


@promise(ARRAYS, "Copies of views with negative strides or strides of 0 (expanded arrays)")
def copies_of_expanded_arrays(d: Draw) -> None:
    values, x = _expanded(d, d.sizes(d.randint(1, 5)), d.dtype())
    d.equal(x.copy(), values)
    d.equal(x, values)


@promise(ARRAYS, "No descriptor can hold a negative stride or a stride of 0")
def operands_are_expanded_arrays(d: Draw) -> None:
    """The gradient of a sum, the second operand of an addition, and both."""
    dtype, shape = d.dtype(), (d.randint(1, 3), d.choice((1, 4, 8)), *d.sizes(2, 6, 2))
    values, x = _expanded(d, shape, dtype)
    kind = d.choice(("bias", "add", "reduce", "softmax", "filter"))
    keywords: dict[str, Any] = {"dtype": dtype}
    if kind == "bias":
        got, want = ct.conv_backward_bias(x), values.sum((0, 2, 3))
        terms = np.abs(values).sum((0, 2, 3))
    elif kind == "add":
        got, want, terms = ct.add(x, x), 2 * values, 2 * np.abs(values)
    elif kind == "reduce":
        got, want, terms = ct.reduce(x, axis=(0, 3)), values.sum((0, 3)), np.abs(values).sum((0, 3))
    elif kind == "softmax":
        powers = np.exp(values - values.max(1, keepdims=True))
        got, want = ct.softmax(x), powers / powers.sum(1, keepdims=True)
        terms = np.full(shape, 1 + np.abs(values).max())
    else:
        image = d.values((shape[0], 4, *shape[2:]), dtype)
        got = ct.conv_backward_filter(x, d.array(image, dtype), (shape[1], 4, 1, 1))
        want = np.einsum("nkhw,nchw->kc", values, image)[:, :, None, None]
        terms = np.full(want.shape, np.einsum("nkhw,nchw->kc", np.abs(values), np.abs(image)).max())
        keywords["unit"] = 2**-10 if dtype == "float32" else 0.0
    d.near(got, want, terms=terms, **keywords)


@promise(ARRAYS, "`x == y` and `bool(x)` raise, because elements are not compared")
@promise(ARRAYS, "Arrays are keys of dicts by identity.")
def arrays_are_not_compared(d: Draw) -> None:
    x, y = (ct.full(d.sizes(2), 1.0) for _ in range(2))
    d.raises((TypeError, ValueError), lambda: bool(x), "bool(x)")
    d.raises((TypeError, ValueError), lambda: x == y, "x == y")
    d.holds({x: 1, y: 2}[y] == 2, "another array was found in a dict")


# --- attention ---------------------------------------------------------------------------------------------


@promise(
    "ct.clear_padding",
    "Return x with zeros behind the lengths of its sequences, whatever is there.",
)
@promise(
    ATTENTION, "Rows behind the lengths, such as memory that was never written, are cleared by", gpu=True
)
def padding_is_cleared(d: Draw) -> None:
    dtype, (batch, heads, length) = (
        d.dtype(*HALF, "float32"),
        (d.randint(1, 4), d.randint(1, 3), d.randint(1, 40)),
    )
    values = d.values((batch, heads, length, 8 * d.randint(1, 4)), dtype)
    lengths = [d.randint(0, length) for _ in range(batch)]
    want = values.copy()
    for n, end in enumerate(lengths):
        values[n, :, end:] = d.choice((np.nan, np.inf, 7.0))
        want[n, :, end:] = 0
    given = ct.asarray(np.asarray(lengths, np.int32)) if d.chance(0.5) else lengths
    d.equal(ct.clear_padding(d.array(values, dtype, True), given), want)


@promise(ATTENTION, "k may hold NaN there in the forward pass")
def cleared_values_keep_attention_finite(d: Draw) -> None:
    """NaN in k and v behind the lengths, of which that in v is cleared."""
    queries, keys = d.choice((2, 17, 64)), d.choice((17, 64, 128))
    dtype, (q, k, v) = heads(d, queries, keys)
    lengths = [d.randint(1, keys) for _ in range(len(q))]
    lost = [k.copy(), v.copy()]
    for n, end in enumerate(lengths):
        for one in lost:
            one[n, :, end:] = np.nan
    cleared = ct.clear_padding(d.array(lost[1], dtype, True), lengths)
    whole = [queries] * len(q)
    operands = d.array(q, dtype), d.array(lost[0], dtype), cleared
    got = ct.attention(*operands, lengths_q=whole, lengths_kv=lengths).y
    allowed = np.arange(keys) < np.array(lengths).reshape(-1, 1, 1, 1)
    compared(d, got, attended(q, k, v, np.broadcast_to(allowed, (len(q), 1, queries, keys)))[0], dtype)


@promise(ATTENTION, "| `bias` of bools | those where it is True, as in PyTorch's `attn_mask` |")
@promise(ATTENTION, "one of float32, of the other half precision or of bools is converted first")
def biases_have_other_dtypes(d: Draw) -> None:
    queries, keys = d.choice((2, 17, 64)), d.choice((17, 64, 128))
    dtype, values = heads(d, queries, keys)
    full = (*values[0].shape[:2], queries, keys)
    shape = tuple(n if axis == 3 or d.chance(0.6) else 1 for axis, n in enumerate(full))
    other = d.choice(("bool", "float32", *HALF))
    allowed, bias = np.ones(shape, bool), d.values(shape, other if other != "bool" else dtype)
    if other == "bool":
        allowed = d.rng.random(shape) < 0.6
        allowed[..., 0], bias = True, np.zeros(shape)
    given = ct.asarray(allowed) if other == "bool" else d.array(bias, other, True)
    arrays = [d.array(one, dtype) for one in values]
    compared(
        d, ct.attention(*arrays, bias=given).y, attended(*values, allowed, rounded(bias, dtype))[0], dtype
    )


@promise(
    ATTENTION, "the offsets, and `lengths_q`, `lengths_kv` of sequences that end before the next one begins"
)
def packed_sequences_have_gaps(d: Draw) -> None:
    dtype, batch, count, head = d.dtype(*HALF), d.randint(1, 3), d.choice((1, 2)), d.choice((8, 64))
    rooms = [[d.randint(1, 40) for _ in range(batch)] for _ in "qk"]
    lengths = [[d.randint(1, n) for n in one] for one in rooms]
    offsets = [[0, *np.cumsum(one).tolist()] for one in rooms]
    q, k, v = (d.values((offsets[place][-1], count, head), dtype) for place in (0, 1, 1))
    keywords: dict[str, Any] = dict(zip(("offsets_q", "offsets_kv"), offsets, strict=True))
    keywords |= dict(zip(("lengths_q", "lengths_kv"), lengths, strict=True))
    y = host(ct.attention(*(d.array(one, dtype) for one in (q, k, v)), **keywords).y)
    for n in range(batch):
        rows, columns = (slice(one[n], one[n] + ends[n]) for one, ends in zip(offsets, lengths, strict=True))
        own = [one[part].transpose(1, 0, 2)[None] for one, part in ((q, rows), (k, columns), (v, columns))]
        want = attended(*own, np.ones((lengths[0][n], lengths[1][n]), bool))[0]
        compared(d, y[rows].transpose(1, 0, 2)[None], want, dtype)
        gap = y[offsets[0][n] + lengths[0][n] : offsets[0][n + 1]]
        d.equal(gap, np.zeros(gap.shape))


# --- other operations --------------------------------------------------------------------------------------


@promise("docs/graph.md", "Inputs are copied on the device then, before the kernel runs")
def graphs_repeat_operands(d: Draw) -> None:
    shape = (d.randint(1, 3), d.choice((4, 8)), *d.sizes(2, 6, 2))
    other = tuple(n if d.chance(0.5) else 1 for n in shape)
    graph, (x, b) = ct.Graph(), (d.values(one, "float32") for one in (shape, other))
    left, right = graph.input(shape), graph.input(other)
    kind = d.choice(("mul", "add", "sub", "maximum"))
    y = getattr(graph, kind)(left, right)
    want = {"mul": x * b, "add": x + b, "sub": x - b, "maximum": np.maximum(x, b)}[kind]
    got = graph.build(y, algo="heuristic")(*(d.array(one, "float32", True) for one in (x, b)))
    d.near(got, want, dtype="float32", terms=np.abs(x) + np.abs(b))


@promise(
    "docs/ctc.md", "If a sequence has exactly as many steps as its labels need, its only alignment is known"
)
def losses_of_improbable_labels(d: Draw) -> None:
    """Logits that are so far from the label that its probability is 0 in float32."""
    dtype, steps, batch = d.dtype("float32", "float64"), d.randint(1, 4), d.randint(1, 3)
    symbols, gap = steps + 2, d.choice((20.0, 80.0, 104.0, 150.0, 300.0))
    labels = [d.sample(range(1, symbols), steps) for _ in range(batch)]
    logits = d.values((steps, batch, symbols), dtype)
    for n, row in enumerate(labels):
        at = d.randrange(steps)
        logits[at, n, row[at]] -= gap
    logits = rounded(logits, dtype)
    flat = [label for row in labels for label in row]
    found = ct.ctc_loss(d.array(logits, dtype), flat, [steps] * batch, [steps] * batch)
    logs = logits - logits.max(-1, keepdims=True)
    logs = logs - np.log(np.exp(logs).sum(-1, keepdims=True))
    want, losses = np.exp(logs), np.zeros(batch)
    for n, row in enumerate(labels):
        want[np.arange(steps), n, row] -= 1
        losses[n] = -logs[np.arange(steps), n, row].sum()
    d.near(found.loss, losses, dtype=dtype, terms=losses + 10, factor=256)
    d.near(found.gradient, want, dtype=dtype, terms=np.full(want.shape, 10 + gap))


@promise("ct.grid_sample", "An axis of one pixel has it at every position.")
def single_pixels_are_everywhere(d: Draw) -> None:
    dtype, (n, c) = d.dtype(), d.sizes(2, 3)
    values = d.values((n, c, 1, 1), dtype)
    grid = rounded(d.rng.uniform(-1, 1, (n, 3, 4, 2)), dtype)
    got = ct.grid_sample(d.array(values, dtype), d.array(grid, dtype))
    want = np.broadcast_to(values, (n, c, 3, 4))
    d.near(got, want, dtype=dtype, terms=np.abs(want))


@promise("docs/matmul-and-norms.md", "the error is no longer a multiple of the mean")
def means_may_be_large(d: Draw) -> None:
    rows, columns = d.randint(1, 9), d.choice((64, 100, 128, 1000, 4096))
    ratio = d.choice((100.0, 1000.0, 10_000.0))
    values = rounded(ratio + d.rng.standard_normal((rows, columns)), "float32")
    scale = ct.full((columns,), 1.0)
    want = (values - values.mean(-1, keepdims=True)) / np.sqrt(values.var(-1, keepdims=True) + 1e-5)
    y = ct.layer_norm(ct.asarray(np.asarray(values, np.float32)), scale).y
    d.near(y, want, dtype="float32", terms=np.full(want.shape, ratio * (1 + np.abs(want).max())), factor=16)
