"""Promises about pooling, normalisations, sampling, CTC, recurrent networks and fused batch normalisation."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

import cudnn_ct as ct

from .operands import rounded
from .promise import FLOATS, Draw, host, promise

WIDE = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}


# --- pooling -----------------------------------------------------------------------------------------------


@promise("ct.pool", 'The averages count the padding, or do not; ``"average"`` is ``"average_inc_pad"``.')
@promise("ct.pool", "cuDNN has no sums: they are averages times the size of the window.")
def poolings_count_their_padding(d: Draw) -> None:
    dtype, (n, c, h, w) = d.dtype(), d.sizes(4, 6, 3)
    values, window, pad = d.values((n, c, h, w), dtype), d.randint(2, 3), d.randint(0, 1)
    mode = d.choice(("average", "average_inc_pad", "average_exc_pad", "sum", "max"))
    fill = -np.inf if mode == "max" else 0.0
    padded = np.pad(values, [(0, 0), (0, 0), (pad, pad), (pad, pad)], constant_values=fill)
    inside = np.pad(np.ones((n, c, h, w)), [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    sizes = [m + 2 * pad - window + 1 for m in (h, w)]
    want = np.zeros((n, c, *sizes))
    for i, j in product(*map(range, sizes)):
        seen = padded[..., i : i + window, j : j + window]
        count = inside[..., i : i + window, j : j + window].sum((2, 3))
        total = seen.max((2, 3)) if mode == "max" else seen.sum((2, 3))
        divisor = {"average_exc_pad": count, "max": 1, "sum": 1}.get(mode, window**2)
        want[..., i, j] = total / divisor
    got = ct.pool(d.array(values, dtype), window=window, stride=1, padding=pad, mode=mode)
    d.near(got, want, dtype=dtype, terms=np.full(want.shape, window**2 * np.abs(values).max()))


@promise("ct.pool", "Whether a NaN is the largest element of its window.")
def poolings_treat_nan(d: Draw) -> None:
    dtype, shape = d.dtype(), (*d.sizes(2, 3), *d.sizes(2, 9, 4))
    values = d.values(shape, dtype)
    values[d.rng.random(shape) < 0.1] = np.nan
    got = host(ct.pool(d.array(values, dtype), window=2, stride=1, propagate_nan=True))
    parts = [values[..., i : shape[2] - 1 + i, j : shape[3] - 1 + j] for i in (0, 1) for j in (0, 1)]
    d.equal(got, np.max(parts, axis=0))


@promise("ct.pool_backward", "If several elements of a window are the largest, one of them gets the gradient")
def one_maximum_gets_the_gradient(d: Draw) -> None:
    dtype, (n, c) = d.dtype(), d.sizes(2, 3)
    values = np.asarray(d.rng.integers(0, 2, (n, c, 6, 6)), np.float64)
    dy = d.values((n, c, 3, 3), dtype, "whole")
    mode, x = d.choice(("max", "max_deterministic")), d.array(values, dtype)
    y = ct.pool(x, window=2, mode=mode)
    got = host(ct.pool_backward(d.array(dy, dtype), x, y, window=2, mode=mode))
    windows = got.reshape(n, c, 3, 2, 3, 2).transpose(0, 1, 2, 4, 3, 5).reshape(n, c, 3, 3, 4)
    d.equal(windows.sum(-1), dy)
    d.holds(((windows != 0).sum(-1) <= 1).all(), "two elements of a window have a gradient")
    largest = values.reshape(n, c, 3, 2, 3, 2).transpose(0, 1, 2, 4, 3, 5).reshape(n, c, 3, 3, 4)
    d.holds(
        (largest[windows != 0] == largest.max(-1, keepdims=True).repeat(4, -1)[windows != 0]).all(),
        "not a maximum",
    )


# --- normalisations ----------------------------------------------------------------------------------------


def _normal(
    x: np.ndarray, axes: tuple[int, ...], epsilon: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mean = x.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(x.var(axes, keepdims=True) + epsilon)
    return (x - mean) * inverse, mean, inverse


def _offset(d: Draw, shape: tuple[int, ...], dtype: str) -> tuple[np.ndarray, float]:
    ratio = d.choice((0, 0, 3, 100, 1000))
    return rounded(d.values(shape, dtype) + ratio, dtype), float(ratio)


@promise(
    "ct.batch_norm_training", "running_var = running_var * (1 - momentum) + m / (m - 1) * var * momentum"
)
@promise("ct.batch_norm_training", "Updated in place if the batch has samples.")
@promise("docs/training-fusions.md", "`batch_norm_training` has no such limit.")
def batch_norm_is_its_formula(d: Draw) -> None:
    dtype, shape = d.dtype(), (d.randint(2, 6), d.randint(1, 5), *d.sizes(2, 6))
    values, ratio = _offset(d, shape, dtype)
    wide, momentum, epsilon = WIDE[dtype], d.choice((0.1, 0.5, 1.0)), 1e-3
    scale, bias, old_mean, old_var = (d.values(shape[1:2], wide, "positive") for _ in range(4))
    running = [ct.asarray(np.asarray(one, wide)) for one in (old_mean, old_var)]
    found = ct.batch_norm_training(
        d.array(values, dtype),
        *(ct.asarray(np.asarray(one, wide)) for one in (scale, bias)),
        running_mean=running[0],
        running_var=running[1],
        momentum=momentum,
        epsilon=epsilon,
    )
    normal, mean, _ = _normal(values, (0, 2, 3), epsilon)
    var, m, row = values.var((0, 2, 3)), values.size // shape[1], (1, -1, 1, 1)
    terms = np.abs(normal) + 2 + ratio * (1 + np.abs(normal))
    d.near(found.y, normal * scale.reshape(row) + bias.reshape(row), dtype=dtype, terms=2 * terms)
    want = old_var * (1 - momentum) + m / (m - 1) * var * momentum
    d.near(running[1], want, dtype=wide, terms=want * (1 + ratio) + 1)
    want = old_mean * (1 - momentum) + mean.ravel() * momentum
    d.near(running[0], want, dtype=wide, terms=np.abs(want) + ratio + 1)


@promise("ct.batch_norm_training", "mean of an empty batch is NaN.")
def empty_batches_have_no_mean(d: Draw) -> None:
    dtype, channels = d.dtype(), d.randint(1, 5)
    parameters = [ct.full((channels,), 1.0, WIDE[dtype]) for _ in range(2)]
    found = ct.batch_norm_training(ct.zeros((0, channels, *d.sizes(2)), dtype), *parameters)
    d.holds(np.isnan(host(found.mean)).all(), "the mean of an empty batch is a number")
    d.holds(found.y.shape[0] == 0, "the result of an empty batch has elements")


@promise("ct.batch_norm_training", "One sample has no unbiased variance and is rejected.")
def one_sample_is_rejected(d: Draw) -> None:
    dtype, channels = d.dtype(), d.randint(1, 5)
    parameters = [ct.full((channels,), 1.0, WIDE[dtype]) for _ in range(4)]
    x = ct.zeros((1, channels, 1, 1), dtype)
    keywords = dict(zip(("running_mean", "running_var"), parameters[2:], strict=True))
    d.raises(ValueError, lambda: ct.batch_norm_training(x, *parameters[:2], **keywords))
    d.equal(parameters[2], np.ones(channels))


@promise("ct.instance_norm", "The variance is divided by the number of elements, not by one less.")
def instance_norm_is_its_formula(d: Draw) -> None:
    dtype, shape = d.dtype(), (d.randint(1, 3), d.randint(1, 4), *d.sizes(d.randint(1, 3), 6, 2))
    values, ratio = _offset(d, shape, dtype)
    scale, bias = (d.values(shape[1:2], WIDE[dtype], "positive") for _ in range(2))
    found = ct.instance_norm(
        d.array(values, dtype), *(ct.asarray(np.asarray(one, WIDE[dtype])) for one in (scale, bias))
    )
    normal, mean, inverse = _normal(values, tuple(range(2, len(shape))), 1e-5)
    row = (1, -1, *(1,) * (len(shape) - 2))
    terms = 2 * (np.abs(normal) + 2 + ratio * inverse * (1 + np.abs(normal)))
    d.near(found.y, normal * scale.reshape(row) + bias.reshape(row), dtype=dtype, terms=terms)
    d.near(found.mean, mean, dtype=WIDE[dtype], terms=1 + np.abs(mean))


@promise("ct.layer_norm", "Its shape states which axes of x are normalised: the last ones.")
@promise("ct.layer_norm", "The variance is divided by the number of elements, not by one less.")
@promise("docs/matmul-and-norms.md", "Others are copied first, and results are written in C order.")
def layer_norm_is_its_formula(d: Draw) -> None:
    dtype, rank = d.dtype(*FLOATS[:3]), d.randint(1, 2)
    last = (*d.sizes(rank - 1, 4), d.choice((3, 8, 64, 100)))
    shape = (*d.sizes(d.randint(1, 3), 5), *last)
    values, ratio = _offset(d, shape, dtype)
    wide = d.choice((dtype, "float32"))
    scale, bias = (d.values(last, wide, "positive") for _ in range(2))
    found = ct.layer_norm(d.array(values, dtype), d.array(scale, wide, True), d.array(bias, wide, True))
    normal, mean, inverse = _normal(values, tuple(range(len(shape) - rank, len(shape))), 1e-5)
    terms = 2 * (np.abs(normal) + 2 + ratio * inverse * (1 + np.abs(normal)))
    d.near(found.y, normal * scale + bias, dtype=dtype, terms=terms)
    d.near(found.mean, mean, dtype="float32", terms=1 + np.abs(mean))
    d.holds(
        found.y.layout == "nchw" or found.y.spec.strides == ct.zeros(shape, dtype).spec.strides,
        "not in C order",
    )


@promise("docs/matmul-and-norms.md", "`training=False` returns no statistics.")
@promise("ct.rms_norm", "None without ``training``")
def norms_without_training_have_no_statistics(d: Draw) -> None:
    dtype, columns = d.dtype(*FLOATS[:3]), d.choice((8, 64))
    x, scale = d.values((d.randint(1, 5), columns), dtype), ct.full((columns,), 1.0, dtype)
    rms = ct.rms_norm(d.array(x, dtype), scale, training=False)
    layer = ct.layer_norm(d.array(x, dtype), scale, training=False)
    d.holds(rms.invrms is None and layer.mean is None and layer.invstd is None, "there are statistics")
    want = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5)
    d.near(rms.y, want, dtype=dtype, terms=np.abs(want) + 1)


@promise("ct.layer_norm", "cuDNN has no engine for float64.")
def layer_norm_rejects_float64(d: Draw) -> None:
    x, scale = ct.zeros((2, 8), "float64"), ct.zeros((8,), "float64")
    d.raises((ct.NotSupportedError, TypeError), lambda: ct.layer_norm(x, scale))


@promise("ct.lrn", "without channels that do not exist")
def lrn_is_its_formula(d: Draw) -> None:
    dtype, shape, n = d.dtype(), d.sizes(4, 6), d.randint(1, 6)
    values = d.values(shape, dtype)
    want = np.zeros(shape)
    for c in range(shape[1]):
        first = max(0, c - (n - 1) // 2)
        total = np.square(values[:, first : c + n // 2 + 1]).sum(1)
        want[:, c] = values[:, c] / (2 + 0.5 / n * total) ** 0.75
    got = ct.lrn(d.array(values, dtype), n=n, lrn_alpha=0.5)
    d.near(got, want, dtype=dtype, terms=4 * np.abs(want))


# --- sampling ----------------------------------------------------------------------------------------------


@promise("docs/layer-calls.md", "The grid of an axis of one pixel is at -1, the first pixel")
@promise("ct.affine_grid", "For a single pixel they are -1.")
def grids_of_single_pixels(d: Draw) -> None:
    dtype, (n, h, w) = d.dtype(), (d.randint(1, 3), d.choice((1, 3)), d.choice((1, 4)))
    theta = d.values((n, 2, 3), dtype)
    rows, columns = (np.linspace(-1, 1, m) if m > 1 else np.array([-1.0]) for m in (h, w))
    y, x = np.meshgrid(rows, columns, indexing="ij")
    want = np.einsum("nij,hwj->nhwi", theta, np.stack([x, y, np.ones_like(x)], -1))
    got = ct.affine_grid(d.array(theta, dtype), (n, 1, h, w))
    d.near(
        got,
        want,
        dtype=dtype,
        terms=np.broadcast_to(np.abs(theta).sum(-1)[:, None, None], want.shape),
        factor=64,
    )


@promise("ct.grid_sample", "outside the image, also at infinity, they are 0")
def places_outside_an_image_are_zero(d: Draw) -> None:
    dtype, (n, c, h, w) = d.dtype(), (*d.sizes(2, 3), *d.sizes(2, 7, 2))
    values = d.values((n, c, h, w), dtype)
    far = d.choice(
        (3.0, 1e4, 3e4, np.inf, -np.inf, -1e4)
        if dtype == "float16"
        else (3.0, 1e5, 1e9, 1e30, np.inf, -np.inf)
    )
    pixels = d.rng.integers(0, [w, h], (n, 4, 5, 2))
    grid = pixels * 2.0 / (np.array([w, h]) - 1) - 1
    outside = d.rng.random((n, 4, 5)) < 0.5
    place = d.randrange(2)
    grid[..., place] = np.where(outside, far, grid[..., place])
    exact = rounded(grid, dtype)
    got = host(ct.grid_sample(d.array(values, dtype), d.array(exact, dtype)))
    d.equal(got.transpose(0, 2, 3, 1)[outside], np.zeros((int(outside.sum()), c)))
    batch = np.arange(n)[:, None, None]
    want = np.moveaxis(values[batch, :, pixels[..., 1], pixels[..., 0]], -1, 1)
    inside = ~np.broadcast_to(outside[:, None], want.shape)
    error = 8 * {"float16": 2**-11, "bfloat16": 2**-8}.get(dtype, 2**-24) * max(h, w)
    close = np.abs(got - want)[inside] <= error * np.abs(values).max() * 4 + 1e-6
    d.holds(close.all(), f"{dtype}: pixels of the image differ")


# --- sequences ---------------------------------------------------------------------------------------------


def _alignments(p: np.ndarray, labels: list[int]) -> float:
    """Return the probability of labels: the sum over all alignments, one step after another."""
    states = [0]
    for label in labels:
        states += [label, 0]
    now = np.zeros(len(states))
    now[0] = 1.0
    for at, step in enumerate(p):
        old, now = now, np.zeros(len(states))
        for s, label in enumerate(states):
            total = old[s]
            if s > 0 and (at or s == 1):
                total += old[s - 1]
            if at and s > 1 and label and label != states[s - 2]:
                total += old[s - 2]
            now[s] = total * step[label]
    return float(now[-1] + (now[-2] if len(states) > 1 else 0.0)) if len(p) else float(not labels)


@promise("ct.ctc_loss", "The loss of such a sequence is infinite.")
@promise("ct.ctc_loss", "zero past the end of each sequence")
@promise("docs/ctc.md", "The same is done for a sequence of no steps and no labels, whose loss is 0.")
def ctc_losses_are_sums_over_alignments(d: Draw) -> None:
    dtype, (steps, batch, symbols) = (
        d.dtype("float32", "float64"),
        (d.randint(1, 6), d.randint(1, 4), d.randint(2, 5)),
    )
    logits = d.values((steps, batch, symbols), dtype)
    labels = [[d.randint(1, symbols - 1) for _ in range(d.randint(0, 3))] for _ in range(batch)]
    lengths = [d.randint(0, steps) for _ in range(batch)]
    flat = [label for row in labels for label in row]
    found = ct.ctc_loss(d.array(logits, dtype), flat, [len(row) for row in labels], lengths)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    loss, gradient = host(found.loss), host(found.gradient)
    for n, row in enumerate(labels):
        chance = _alignments(p[: lengths[n], n], row)
        want = np.array([-np.log(chance) if chance else np.inf])
        d.near(loss[n : n + 1], want, dtype=dtype, terms=want + 10 * steps, factor=256)
        d.equal(gradient[lengths[n] :, n], np.zeros((steps - lengths[n], symbols)))
        if not chance:
            d.equal(gradient[:, n], np.zeros((steps, symbols)))
        else:  # the gradient of a softmax has the sum 0
            total = gradient[: lengths[n], n].sum(-1)
            d.holds(np.abs(total).max(initial=0) < 1e-3, f"the gradients of a step add up to {total}")


@promise("ct.ctc_loss", "zero, or the values of ``out``")
def ctc_skips_the_gradient(d: Draw) -> None:
    old = d.values((2, 1, 4), "float32")
    out = ct.asarray(np.asarray(old, np.float32))
    logits = d.array(d.values((2, 1, 4), "float32"), "float32")
    found = ct.ctc_loss(logits, [1, 2, 3], [3], [2], out_of_bound="skip", out=(None, out))
    d.equal(found.gradient, old)
    d.holds(np.isinf(host(found.loss)).all(), "the loss is finite")


@promise("docs/ctc.md", "the loss is infinite and the gradient is that of the one alignment there is.")
@promise("ct.ctc_loss", "It is computed in float32, or in float64 for float64.")
def confident_answers_have_no_gradient(d: Draw) -> None:
    """Labels as long as the sequence have one alignment: its gradient is p - 1 for each label."""
    dtype, (steps, batch) = d.dtype("float32", "float64"), (d.randint(1, 5), d.randint(1, 3))
    symbols, gap = steps + 2, d.choice((0.0, 3.0, 18.0, 30.0, 60.0))
    labels = [d.sample(range(1, symbols), steps) for _ in range(batch)]
    logits = d.values((steps, batch, symbols), dtype)
    for n, row in enumerate(labels):
        logits[np.arange(steps), n, row] += gap
    logits = rounded(logits, dtype)
    flat = [label for row in labels for label in row]
    found = ct.ctc_loss(d.array(logits, dtype), flat, [steps] * batch, [steps] * batch)
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    want = powers / powers.sum(-1, keepdims=True)
    for n, row in enumerate(labels):
        want[np.arange(steps), n, row] -= 1
    d.near(found.gradient, want, dtype=dtype, terms=np.full(want.shape, 10.0 + steps), factor=64)


def _network(d: Draw, dtype: str) -> tuple[Any, Any]:
    mode, size = d.choice(("rnn_relu", "rnn_tanh", "lstm", "gru")), d.randint(1, 5)
    network = ct.RNN(
        mode,
        size,
        d.randint(1, 6),
        d.randint(1, 2),
        direction=d.choice(("unidirectional", "bidirectional")),
        dtype=dtype,
    )
    return network, d.array(d.values((network.weight_size,), dtype) / 3, dtype, True)


@promise("docs/rnn.md", "Past the end of a sequence it is `padding_value`, and the gradient of x is 0.")
@promise("docs/rnn.md", "A second use, or one by another network, is a `ValueError`.")
def networks_pad_their_results(d: Draw) -> None:
    dtype = d.dtype("float32", "float64")
    network, w = _network(d, dtype)
    steps, batch = d.randint(2, 5), d.randint(1, 4)
    lengths = [d.randint(1, steps) for _ in range(batch)]
    x = d.values((steps, batch, network.input_size), dtype)
    for n, end in enumerate(lengths):
        x[end:, n] = np.nan  # which is not read
    value = d.choice((0.0, 2.0))
    found = network.forward(d.array(x, dtype, True), w, lengths=lengths, training=True, padding_value=value)
    y = host(found.y)
    dy = d.values(y.shape, dtype)
    gradients = network.backward_data(d.array(dy, dtype, True), found.reserve)
    dx = host(gradients.dx)
    for n, end in enumerate(lengths):
        d.equal(y[end:, n], np.full(y[end:, n].shape, value))
        d.equal(dx[end:, n], np.zeros(dx[end:, n].shape))
        d.holds(
            np.isfinite(y[:end, n]).all() and np.isfinite(dx[:end, n]).all(), "NaN behind a sequence was read"
        )
    d.raises(ValueError, lambda: network.backward_data(d.array(dy, dtype, True), found.reserve))


@promise("docs/rnn.md", "they are set to the first states afterwards")
def networks_keep_the_states_of_empty_sequences(d: Draw) -> None:
    dtype = d.dtype("float32", "float64")
    network, w = _network(d, dtype)
    steps, batch = d.randint(1, 4), d.randint(2, 4)
    lengths = [0, *(d.randint(1, steps) for _ in range(batch - 1))]
    rows = network.num_layers * (1 + (network.direction == "bidirectional"))
    h0 = d.values((rows, batch, network.hidden_size), dtype)
    x = d.array(d.values((steps, batch, network.input_size), dtype), dtype, True)
    found = network.forward(x, w, d.array(h0, dtype, True), lengths=lengths, padding_value=3.0)
    d.equal(host(found.hy)[:, 0], h0[:, 0])


@promise("docs/rnn.md", "A GRU applies its reset gate after the product with R, as in torch.")
def grus_are_those_of_torch(d: Draw) -> None:
    dtype, (steps, batch, size, hidden) = d.dtype("float32", "float64"), d.sizes(4, 4)
    network = ct.RNN("gru", size, hidden, dtype=dtype)
    w = d.array(d.values((network.weight_size,), dtype), dtype, True)
    parts = {name.partition(".")[2]: host(part) for name, part in network.split_params(w, 0).items()}
    x, h = d.values((steps, batch, size), dtype), np.zeros((batch, hidden))
    want = []
    for step in x:
        gates = {}
        for gate in ("reset", "update", "new"):
            own = step @ parts[f"W_{gate}"].T + parts[f"bW_{gate}"].ravel()
            old = h @ parts[f"R_{gate}"].T + parts[f"bR_{gate}"].ravel()
            joined = own + (gates["reset"] * old if gate == "new" else old)
            gates[gate] = np.tanh(joined) if gate == "new" else 1 / (1 + np.exp(-joined))
        h = (1 - gates["update"]) * gates["new"] + gates["update"] * h
        want.append(h)
    y = network.forward(d.array(x, dtype, True), w).y
    unit = 2**-10 if dtype == "float32" else 2**-53  # TF32
    d.near(y, np.stack(want), dtype=dtype, terms=np.ones((steps, batch, hidden)), unit=unit)


# --- fused batch normalisation -----------------------------------------------------------------------------


@promise("docs/training-fusions.md", "`y1 * eq_scale + eq_bias` is the normalised y1.")
@promise("ct.batch_norm_finalize", "They are not changed: the results have the updated ones.")
def sums_become_statistics(d: Draw) -> None:
    channels, count = d.choice((1, 8, 17)), 64
    y = d.rng.standard_normal((count, channels)) + d.rng.uniform(-2, 2, channels)
    names = ("sums", "squares", "scale", "bias", "mean", "var")
    values = [
        y.sum(0),
        np.square(y).sum(0),
        *(d.values((channels,), "float32", "positive") for _ in range(4)),
    ]
    given = dict(zip(names, (np.asarray(one, np.float32) for one in values), strict=True))
    arrays = {name: ct.asarray(one) for name, one in given.items()}
    found = ct.batch_norm_finalize(*arrays.values(), count=count, eq_dtype="float32", epsilon=1e-5)
    normal, mean, _ = _normal(y, (0,), 1e-5)
    want = normal * given["scale"] + given["bias"]
    got = y * host(found.eq_scale) + host(found.eq_bias)
    d.holds(
        np.abs(got - want).max() < 1e-2, f"y * eq_scale + eq_bias is off by {np.abs(got - want).max():.3g}"
    )
    d.near(found.mean, mean.ravel(), dtype="float32", terms=np.abs(y).mean(0) + 1)
    for name, one in given.items():
        d.equal(arrays[name], one)


@promise("ct.conv_batch_norm_statistics", "Convolve, and sum the result and its squares for each channel")
def convolutions_sum_their_results(d: Draw) -> None:
    dtype, channels, filters = d.dtype("float16"), 8, d.choice((8, 16))
    x, w = d.values((d.randint(1, 3), channels, 5, 5), dtype), d.values((filters, channels, 1, 1), dtype)
    found = ct.conv_batch_norm_statistics(d.array(x, dtype), d.array(w, dtype))
    want = np.einsum("nchw,kc->nkhw", x, w[:, :, 0, 0])
    terms = np.einsum("nchw,kc->nkhw", np.abs(x), np.abs(w[:, :, 0, 0]))
    d.near(found.y, want, dtype=dtype, terms=terms)
    size = terms.sum((0, 2, 3)) * 2**-10  # of y before or after it is rounded
    d.holds((np.abs(host(found.sums) - want.sum((0, 2, 3))) <= size + 1e-3).all(), "the sums differ")
    squares = np.square(terms).sum((0, 2, 3)) * 2**-9
    d.holds(
        (np.abs(host(found.square_sums) - np.square(want).sum((0, 2, 3))) <= squares + 1e-3).all(),
        "squares differ",
    )
