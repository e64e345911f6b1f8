"""Promises about single elements, sums and extremes."""

from __future__ import annotations

from typing import Any

import numpy as np

import cudnn_ct as ct

from .operands import rounded
from .promise import HALF, Draw, host, promise

SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.0)


def _special(d: Draw, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    values = d.values(shape, dtype)
    return np.where(d.rng.random(shape) < 0.4, d.rng.choice(SPECIAL, shape), values)


@promise("ct.scale", "Infinity times 0 is NaN, and NaN stays NaN")
def scale_keeps_nan(d: Draw) -> None:
    dtype, shape = d.dtype(), d.sizes(d.randint(1, 4))
    values, alpha = _special(d, shape, dtype), d.choice((0.0, 0.0, -0.0, 1.0, 0.5))
    with np.errstate(all="ignore"):
        d.near(ct.scale(d.array(values, dtype), alpha=alpha), alpha * values, dtype=dtype)


@promise("ct.scale", ":func:`fill` sets zeros in any case")
@promise("ct.fill", "Set every element of an array to a number, rounded to its dtype.")
def fill_sets_numbers(d: Draw) -> None:
    dtype, shape = d.dtype(), d.sizes(d.randint(0, 5))
    value = d.choice((0.0, 0.1, -3.0, 1e-3, float("inf")))
    x = d.array(_special(d, shape, dtype), dtype)
    d.equal(ct.fill(x, value), np.full(shape, rounded(np.float64(value), dtype)))


@promise("ct.fill", "Memory between the elements of a view is not written.")
def fill_leaves_gaps(d: Draw) -> None:
    dtype, shape = d.dtype(), d.sizes(3, 7, 2)
    values = d.values(shape, dtype)
    x = ct.asarray(np.asarray(values, ct.asarray([0], dtype).numpy().dtype))
    axis, step = d.randrange(3), d.randint(2, 3)
    index = tuple(slice(None, None, step) if at == axis else slice(None) for at in range(3))
    ct.fill(x[index], 7.0)
    values[index] = 7.0
    d.equal(x, values)


@promise("ct.op_tensor", "Destination of the result. It may be a or b itself.")
@promise("ct.add", "Destination of the result. It may be a or b itself.")
def additions_write_into_an_operand(d: Draw) -> None:
    dtype, shape = d.dtype(), d.sizes(d.randint(1, 5))
    values = [d.values(shape, dtype) for _ in range(2)]
    a, b = (d.array(one, dtype) for one in values)
    function = d.choice((ct.op_tensor, ct.add))
    out = d.choice((a, b))
    result = function(a, b, out=out)
    d.near(result, values[0] + values[1], dtype=dtype, terms=np.abs(values[0]) + np.abs(values[1]))
    d.equal(out, host(result))


@promise("ct.op_tensor", "Whether the smaller or larger of a number and NaN is NaN, or the number.")
def extremes_of_pairs_treat_nan(d: Draw) -> None:
    dtype, shape = d.dtype(), d.sizes(d.randint(1, 4))
    a, b = (_special(d, shape, dtype) for _ in range(2))
    op, keep = d.choice(("min", "max")), d.chance(0.5)
    want = {("min", True): np.minimum, ("max", True): np.maximum, ("min", False): np.fmin}.get(
        (op, keep), np.fmax
    )
    got = ct.op_tensor(d.array(a, dtype), d.array(b, dtype), op=op, propagate_nan=keep)
    d.equal(got, want(a, b))


@promise("ct.op_tensor", '``"not"`` is ``1 - alpha1 * a``. Half precision is computed in float32.')
def negation_is_one_minus(d: Draw) -> None:
    dtype, shape = d.dtype(), d.sizes(d.randint(1, 4))
    values, alpha = d.values(shape, dtype), d.choice((1.0, 0.5, -2.0))
    got = ct.op_tensor(d.array(values, dtype), op="not", alpha1=alpha)
    d.near(got, 1 - alpha * values, dtype=dtype, terms=1 + np.abs(alpha * values))


@promise("ct.op_tensor", "Other operations always propagate NaN.")
def sums_and_products_of_pairs_propagate_nan(d: Draw) -> None:
    dtype, shape = d.dtype(), d.sizes(d.randint(1, 4))
    a, b = (_special(d, shape, dtype) for _ in range(2))
    op = d.choice(("add", "mul", "sqrt", "not"))
    keywords: dict[str, Any] = {"op": op, "propagate_nan": d.chance(0.5)}
    operands = [a] if op in ("sqrt", "not") else [a, b]
    if op == "sqrt":
        operands = [np.abs(a)]
    with np.errstate(all="ignore"):
        want = {"add": a + b, "mul": a * b, "sqrt": np.sqrt(operands[0]), "not": 1 - a}[op]
        got = ct.op_tensor(*(d.array(one, dtype) for one in operands), **keywords)
        d.near(got, want, dtype=dtype, terms=np.abs(a) + np.abs(b) + 1)


@promise("ct.add", "device array, dtype of a, as many axes, each as long or of length 1")
def additions_broadcast_the_second_operand(d: Draw) -> None:
    dtype, shape = d.dtype(), d.sizes(d.randint(1, 6))
    other = tuple(n if d.chance(0.5) else 1 for n in shape)
    a, b = d.values(shape, dtype), d.values(other, dtype)
    got = ct.add(d.array(a, dtype), d.array(b, dtype))
    d.near(got, a + b, dtype=dtype, terms=np.abs(a) + np.abs(b))


def _written(d: Draw, dtype: str) -> tuple[Any, np.ndarray]:
    """A call with ``out`` full of NaN or infinity, and the result that it has without ``out``."""
    images = d.sizes(4, 6, 3)
    values = d.values(images, dtype)
    x = d.array(values, dtype)
    calls: dict[str, Any] = {
        "activation": lambda **out: ct.activation(x, mode="tanh", **out),
        "add": lambda **out: ct.add(x, x, **out),
        "pool": lambda **out: ct.pool(x, window=2, **out),
        "softmax": lambda **out: ct.softmax(x, **out),
        "reduce": lambda **out: ct.reduce(x, axis=(0, 2), **out),
        "conv": lambda **out: ct.conv(x, x[:2, :, :2, :2], **out),
        "lrn": lambda **out: ct.lrn(x, **out),
        "transform": lambda **out: ct.transform(x, **out),
        "conv_backward_bias": lambda **out: ct.conv_backward_bias(x, **out),
    }
    call = calls[d.choice(sorted(calls))]
    plain = host(call())
    full = np.full(plain.shape, d.choice((np.nan, np.inf, 7.0)))
    return call(out=d.array(full, dtype), beta=0), plain


@promise("ct.conv", "If it is 0, ``out`` is only written.")
@promise("ct.reduce", "If it is 0, ``out`` is only written.")
def out_is_only_written(d: Draw) -> None:
    dtype = d.dtype()
    got, plain = _written(d, dtype)
    d.near(
        got,
        plain,
        dtype=dtype,
        terms=np.abs(plain) + 16,
        factor=512,
        unit=0.0 if dtype != "float32" else 2**-11,
    )


@promise("ct.transform", "Elements must not share memory; memory between them is not written.")
def transform_leaves_gaps(d: Draw) -> None:
    dtype, shape = d.dtype(), d.sizes(2, 6, 2)
    values = d.values(shape, dtype)
    wide = ct.full((shape[0], 3 * shape[1]), 5.0, dtype)
    ct.transform(d.array(values, dtype), out=wide[:, ::3])
    want = np.full((shape[0], 3 * shape[1]), 5.0)
    want[:, ::3] = values
    d.equal(wide, want)


@promise("ct.transform", "float32, float16 and bfloat16 are converted to each other, int8 only to itself.")
def transform_rounds_to_the_nearest(d: Draw) -> None:
    names = ("float16", "bfloat16", "float32")
    source, target = d.dtype(*names), d.dtype(*names)
    values = d.values(d.sizes(d.randint(1, 4)), source) * d.choice((1.0, 100.0, 1e-3))
    values = rounded(values, source)
    d.same(ct.transform(d.array(values, source), dtype=target), rounded(values, target), target)
    whole = np.asarray(d.rng.integers(-128, 128, d.sizes(2)), np.int8)
    d.equal(ct.transform(ct.asarray(whole)), whole)


@promise(
    "ct.activation",
    "Whether relu and clipped relu of NaN are NaN, or 0. The other modes always propagate NaN.",
)
def activations_treat_nan(d: Draw) -> None:
    dtype, shape = d.dtype(), d.sizes(d.randint(1, 4))
    values = np.where(d.rng.random(shape) < 0.5, np.nan, d.values(shape, dtype))
    mode = d.choice(("relu", "clipped_relu", "sigmoid", "tanh", "elu", "swish", "identity"))
    keep = d.chance(0.5)
    got = host(ct.activation(d.array(values, dtype), mode=mode, coefficient=1, propagate_nan=keep))
    clear = mode in ("relu", "clipped_relu") and not keep
    d.equal(got[np.isnan(values)], np.full(int(np.isnan(values).sum()), 0.0 if clear else np.nan))
    d.holds(not np.isnan(got[~np.isnan(values)]).any(), f"{mode} of a number is NaN")


@promise("ct.activation", "With the default, a clipped relu is 0 everywhere, and elu is relu.")
@promise(
    "docs/layer-calls.md", "Elu with coefficient 0, whose y is 0 for all negative x, is computed as relu."
)
def activations_without_a_coefficient(d: Draw) -> None:
    dtype, shape = d.dtype(), d.sizes(d.randint(1, 4))
    values = d.values(shape, dtype)
    x = d.array(values, dtype)
    d.equal(ct.activation(x, mode="clipped_relu"), np.zeros(shape))
    d.near(ct.activation(x, mode="elu"), np.maximum(values, 0), dtype=dtype)


@promise("ct.activation", "swish x * sigmoid(coefficient * x)")
@promise("ct.activation", "beta of swish, for which 0 stands for 1")
def swish_has_a_coefficient(d: Draw) -> None:
    dtype, shape = d.dtype(), d.sizes(d.randint(1, 4))
    values, beta = d.values(shape, dtype), d.choice((0.0, 0.5, 1.0, 2.0, 3.0))
    want = values / (1 + np.exp(-(beta or 1) * values))
    got = ct.activation(d.array(values, dtype), mode="swish", coefficient=beta)
    d.near(got, want, dtype=dtype, terms=np.abs(values) + 1)


@promise(
    "ct.reduce", "amax the largest absolute value, mul_no_zeros the product of all elements except zeros"
)
@promise("ct.reduce", "which is 1 if all are 0")
def reductions_are_their_formulas(d: Draw) -> None:
    dtype = d.dtype()
    shape = d.sizes(d.randint(1, 5), 5) if d.chance(0.7) else (d.randint(1, 3), d.choice((64, 300, 4096)))
    values = d.values(shape, dtype)
    axes = tuple(axis for axis in range(len(shape)) if d.chance(0.5)) or (0,)
    op = d.choice(("norm1", "norm2", "amax", "mul_no_zeros", "add", "average", "min", "max"))
    if op == "mul_no_zeros":
        values = np.where(d.rng.random(shape) < d.choice((0.3, 1.0)), 0, np.sign(values))
    want = {
        "norm1": lambda: np.abs(values).sum(axes),
        "norm2": lambda: np.sqrt(np.square(values).sum(axes)),
        "amax": lambda: np.abs(values).max(axes),
        "mul_no_zeros": lambda: np.where(values == 0, 1, values).prod(axes),
        "add": lambda: values.sum(axes),
        "average": lambda: values.mean(axes),
        "min": lambda: values.min(axes),
        "max": lambda: values.max(axes),
    }[op]()
    terms = np.abs(values).sum(axes)
    d.near(ct.reduce(d.array(values, dtype), op=op, axis=axes), want, dtype=dtype, terms=terms)


@promise(
    "ct.reduce",
    "Over axes of length 1, and over none, the result is x itself, absolute for amax, norm1 and norm2, "
    "with 1 for 0 for mul_no_zeros.",
)
def reductions_of_single_elements(d: Draw) -> None:
    dtype = d.dtype()
    shape = tuple(1 if d.chance(0.4) else n for n in d.sizes(d.randint(1, 5)))
    axes = tuple(axis for axis, n in enumerate(shape) if n == 1 and d.chance(0.8))
    values = np.where(d.rng.random(shape) < 0.2, 0.0, d.values(shape, dtype))
    op = d.choice(("add", "mul", "min", "max", "amax", "average", "norm1", "norm2", "mul_no_zeros"))
    got = ct.reduce(d.array(values, dtype), op=op, axis=axes, keepdims=True)
    want = np.abs(values) if op in ("amax", "norm1", "norm2") else values
    d.near(got, np.where(want == 0, 1, want) if op == "mul_no_zeros" else want, dtype=dtype)


@promise("ct.reduce", "Over an axis of length 0, sums are 0 and products 1.")
def reductions_of_nothing(d: Draw) -> None:
    dtype, shape = d.dtype(), list(d.sizes(d.randint(1, 4)))
    axis = d.randrange(len(shape))
    shape[axis] = 0
    op = d.choice(("add", "mul", "norm1", "norm2", "mul_no_zeros"))
    got = ct.reduce(ct.zeros(tuple(shape), dtype), op=op, axis=axis)
    d.equal(got, np.full([n for at, n in enumerate(shape) if at != axis], float(op.startswith("mul"))))


@promise("ct.reduce", "Whether min, max and amax return NaN if an element is NaN, or only if all are.")
def extremes_treat_nan(d: Draw) -> None:
    dtype, rows, columns = d.dtype(), d.randint(1, 6), d.choice((1, 2, 5, 64, 300, 5000))
    values = d.values((rows, columns), dtype)
    share = d.rng.choice([0.0, 0.3, 1.0], (rows, 1))  # of NaN: no element of a row, some, all
    values = np.where(d.rng.random(values.shape) < share, np.nan, values)
    axis, op, keep = d.choice((1, 1, 0, (0, 1))), d.choice(("min", "max", "amax")), d.chance(0.5)
    given = values if axis != 0 else values.T
    x = np.abs(given) if op == "amax" else given
    function = {("min", True): np.min, ("min", False): np.fmin.reduce, ("max", True): np.max}
    function = function.get(("max" if op == "amax" else op, keep), np.fmax.reduce)
    with np.errstate(all="ignore"):
        want = function(x, axis=axis)
    d.equal(ct.reduce(d.array(given, dtype), op=op, axis=axis, propagate_nan=keep), want)


@promise("ct.reduce", "The other operations always propagate NaN.")
def sums_propagate_nan(d: Draw) -> None:
    dtype, rows, columns = d.dtype(), d.randint(1, 6), d.choice((2, 5, 64, 5000))
    values = d.values((rows, columns), dtype, "positive")
    lost = d.rng.random(rows) < 0.5
    values[lost, d.randrange(columns)] = np.nan
    op = d.choice(("add", "mul", "average", "norm1", "norm2", "mul_no_zeros"))
    got = host(ct.reduce(d.array(values, dtype), op=op, axis=1, propagate_nan=d.chance(0.5)))
    d.equal(np.isnan(got), lost)


@promise("ct.reduce_with_indices", "positions in C order of the reduced axes")
@promise("ct.reduce_with_indices", "If several of them are equal, the position of any may be returned.")
def positions_are_those_of_the_extremes(d: Draw) -> None:
    dtype, shape = d.dtype(), d.sizes(d.randint(1, 4), 6)
    axes = tuple(axis for axis in range(len(shape)) if d.chance(0.5)) or (0,)
    values, op = d.values(shape, dtype, d.choice(("normal", "whole"))), d.choice(("min", "max"))
    found = ct.reduce_with_indices(d.array(values, dtype), op=op, axis=axes)
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    rows = values.transpose(*kept, *axes).reshape(*(shape[axis] for axis in kept), -1)
    d.equal(found.y, rows.max(-1) if op == "max" else rows.min(-1))
    places = host(found.indices)
    d.holds(found.indices.numpy().dtype == np.int32, "positions are not int32")
    d.equal(np.take_along_axis(rows, places[..., None].astype(int), -1)[..., 0], host(found.y))


@promise("ct.softmax", "Sum over C at each position, or over all elements of each n.")
def softmax_sums_over_its_axes(d: Draw) -> None:
    dtype, shape = d.dtype(), d.sizes(d.randint(2, 5))
    values, mode = d.values(shape, dtype), d.choice(("channel", "instance"))
    algo = d.choice(("accurate", "fast", "log"))
    axes = (1,) if mode == "channel" else tuple(range(1, len(shape)))
    powers = np.exp(values - values.max(axes, keepdims=True))
    want = powers / powers.sum(axes, keepdims=True)
    want = np.log(want) if algo == "log" else want
    terms = 1 + np.abs(values).max() + np.abs(want)
    d.near(ct.softmax(d.array(values, dtype), algo=algo, mode=mode), want, dtype=dtype, terms=terms)


@promise(
    "docs/layer-calls.md",
    "The softmax of values that are all -inf is NaN, as in PyTorch, or, for rows in float16, bfloat16 and "
    'float32, 0 with "accurate" and -inf with "log".',
)
def softmax_of_nothing(d: Draw) -> None:
    dtype, algo = d.dtype(), d.choice(("accurate", "log"))
    values = d.values((d.randint(1, 5), d.randint(1, 9)), dtype)
    lost = d.rng.random(len(values)) < 0.5
    values[lost] = -np.inf
    got = host(ct.softmax(d.array(values, dtype, plain=True), algo=algo))
    other = 0.0 if algo == "accurate" else -np.inf
    allowed = np.isnan(got[lost]) | ((got[lost] == other) & (dtype != "float64"))
    d.holds(allowed.all(), f"{dtype} {algo}: rows of -inf become {got[lost]}")
    d.holds(np.isfinite(got[~lost]).all(), "another row is not finite")


@promise("ct.dropout", "Drop elements at random, and divide the others by the probability that they stay.")
@promise("ct.dropout_backward", "zero for dropped elements, divided as in it for the others")
def dropout_divides(d: Draw) -> None:
    dtype, shape, p = d.dtype(), d.sizes(d.randint(1, 4)), d.choice((0.0, 0.25, 0.5, 0.75))
    x, dy = (d.values(shape, dtype, "positive") for _ in range(2))
    state = ct.DropoutState(p, seed=d.randrange(100))
    y, mask = ct.dropout(d.array(x, dtype), state)
    got = host(y)
    d.near(got, np.where(got == 0, 0, x / (1 - p)), dtype=dtype)
    dx = ct.dropout_backward(d.array(dy, dtype), mask, state)
    d.near(dx, np.where(got == 0, 0, dy / (1 - p)), dtype=dtype)
    d.holds(p or (got != 0).all(), "probability 0 drops elements")


@promise(
    "ct.dropout",
    "The same seed and the same calls drop the same elements, from run to run, on one kind of device.",
)
def dropout_repeats(d: Draw) -> None:
    dtype, shape, seed = d.dtype(*HALF, "float32"), (d.randint(1, 40), d.randint(1, 40)), d.randrange(1000)
    x = ct.full(shape, 1.0, dtype)
    first, second = (ct.DropoutState(0.5, seed=seed) for _ in range(2))
    for _ in range(3):
        d.equal(ct.dropout(x, first).y, host(ct.dropout(x, second).y))
