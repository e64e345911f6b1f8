"""Attention by NumPy, one head of one sequence after another, and the sizes that errors are measured by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .answer import Arguments, Operands, Values, attention_band, attention_spans
from .tables import defined

__all__ = ["ATTENTION", "ATTENTION_ROUNDED", "ATTENTION_SCALES"]

Array = np.ndarray

# Of the dtypes that kernels round weights to. bfloat16 has no weights below its own.
SMALLEST_NORMAL = {"float16": 2.0**-14, "float8_e4m3": 2.0**-6, "float8_e5m2": 2.0**-14}


class Head(NamedTuple):
    """The operands of one head of one sequence, and where they are in arrays of shape (B, H, S, D).

    ``bias`` and ``seen``, which says what a query attends to, have the shape (queries, keys).
    """

    rows: tuple[Any, ...]
    columns: tuple[Any, ...]
    scores: tuple[Any, ...]
    q: Array
    k: Array
    v: Array
    bias: Array
    seen: Array


def attention(operands: Operands, arguments: Arguments) -> Values:
    """Return y, and the logarithms of the sums of exponentials."""
    y, stats = _results(operands)
    for head in _heads(operands, arguments):
        p, sums = _softmax(head, _scores(head, arguments))
        y[head.rows], stats[head.rows] = p @ head.v, sums
    found = {"y": _as_given(y, operands)}
    return found | ({"stats": _as_given(stats, operands)} if arguments.get("return_stats") else {})


def clear_padding(operands: Operands, arguments: Arguments) -> Values:
    """Return x row by row, zeros behind the lengths."""
    y = np.zeros(np.shape(operands["x"]))
    for place, length in enumerate(arguments["lengths"]):
        y[place, :, :length] = operands["x"][place, :, :length]
    return {"y": y}


def scaled_attention(operands: Operands, arguments: Arguments) -> Values:
    """Return attention of the dequantised operands, its statistics, and its largest magnitude."""
    values = attention(_dequantised(operands), arguments)
    o = values["y"] * _factor_of(operands, "scale_s", "descale_s")
    found = {**values, "y": o * _factor_of(operands, "scale_o")}
    return found | ({"amax": np.abs(o).max(keepdims=True).reshape(1)} if arguments.get("amax") else {})


def _factor_of(operands: Operands, *names: str) -> float:
    """Return the product of scales; those that are missing are 1."""
    given = [operands[name] for name in names if operands.get(name) is not None]
    return float(np.prod([np.ravel(one)[0] for one in given]))


def _dequantised(operands: Operands) -> dict[str, Array]:
    return {name: operands[name] * _factor_of(operands, f"descale_{name}") for name in "qkv"}


def attention_backward(operands: Operands, arguments: Arguments) -> Values:
    """Return the gradients by the given y and statistics."""
    return _summed(operands, arguments, _gradients)


def _gradients(head: Head, saved: tuple[Array, Array, Array], factor: float) -> tuple[Array, ...]:
    dy, y, stats = saved
    p = _weights(head, head.q @ head.k.T * factor + head.bias, stats)
    ds = p * (dy @ head.v.T - (dy * y).sum(-1, keepdims=True))
    return factor * ds @ head.k, factor * ds.T @ head.q, p.T @ dy, ds


# --- heads -------------------------------------------------------------------------------------------------


def _batched(operands: Operands, name: str) -> Array:
    """Return an operand with the axes (B, H, S, ...): packed sequences are one place of a batch."""
    array = np.asarray(operands[name])
    return array if np.ndim(operands["q"]) == 4 else array.swapaxes(0, 1)[None]


def _as_given(array: Array, operands: Operands) -> Array:
    return array if np.ndim(operands["q"]) == 4 else array[0].swapaxes(0, 1)


def _results(operands: Operands) -> tuple[Array, Array]:
    """Return y and stats of queries without keys."""
    q, v = _batched(operands, "q"), _batched(operands, "v")
    return np.zeros((*q.shape[:3], v.shape[3])), np.full(q.shape[:3], -np.inf)


def _heads(operands: Operands, arguments: Arguments) -> Iterator[Head]:
    q, k, v = (_batched(operands, name) for name in "qkv")
    bias, table = operands.get("bias"), arguments.get("page_table")
    group = q.shape[1] // k.shape[1]
    for span in attention_spans(operands, arguments):
        queries = slice(span.first_query, span.first_query + span.queries)
        keys = slice(span.first_key, span.first_key + span.keys)
        low, high = attention_band(arguments, span.queries, span.keys)
        distance = np.arange(span.keys) - np.arange(span.queries)[:, None]
        seen = (distance >= low) & (distance <= high)
        for h in range(q.shape[1]):
            rows, columns = (span.place, h, queries), (span.place, h // group, keys)
            if table is None:
                each = k[columns], v[columns]
            else:
                blocks = ([one[block, h // group] for block in table[span.place]] for one in (k, v))
                each = tuple(np.concatenate(several)[: span.keys] for several in blocks)
            added, attended = np.zeros(seen.shape), seen
            if bias is not None:
                place = [0 if n == 1 else at for n, at in zip(bias.shape, (span.place, h), strict=False)]
                line = slice(0, 1) if bias.shape[2] == 1 else queries
                of_head = bias[(*place, line, keys)]
                if arguments.get("mask"):
                    attended = seen & (of_head != 0)
                else:
                    added = added + of_head
            yield Head(rows, columns, (span.place, h, queries, keys), q[rows], *each, added, attended)


def _scores(head: Head, arguments: Arguments) -> Array:
    return _factor(head, arguments) * head.q @ head.k.T + head.bias


def _factor(head: Head, arguments: Arguments) -> float:
    scale = arguments.get("scale")
    return float(head.q.shape[-1] ** -0.5 if scale is None else scale)


@np.errstate(divide="ignore")  # of queries without keys
def _softmax(head: Head, scores: Array) -> tuple[Array, Array]:
    """Return the weights, and the logarithms of the sums of exponentials."""
    scores = np.where(head.seen, scores, -np.inf)
    top = np.max(scores, -1, initial=-np.inf, keepdims=True)
    powers = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total == 0, 1, total), (top + np.log(total))[:, 0]


def _weights(head: Head, scores: Array, stats: Array) -> Array:
    """Return the weights that follow from given statistics."""
    known = head.seen & np.isfinite(stats)[:, None]
    return np.where(known, np.exp(np.where(known, scores - stats[:, None], 0)), 0)


def _summed(operands: Operands, arguments: Arguments, of_head: Any) -> Values:
    """Add what a function returns for dq, dk, dv and the scores of each head."""
    q, k, v = (_batched(operands, name) for name in "qkv")
    dq, dk, dv = (np.zeros(one.shape) for one in (q, k, v))
    dscores = np.zeros((*q.shape[:3], k.shape[2]))
    saved = [_batched(operands, name) for name in ("dy", "y", "stats")]
    for head in _heads(operands, arguments):
        mine = of_head(head, [one[head.rows] for one in saved], _factor(head, arguments))
        dq[head.rows] = mine[0]
        dk[head.columns] += mine[1]
        dv[head.columns] += mine[2]
        dscores[head.scores] = mine[3]
    found = {name: _as_given(one, operands) for name, one in (("dq", dq), ("dk", dk), ("dv", dv))}
    if arguments.get("dbias"):
        shape = np.shape(operands["bias"])
        shared = tuple(axis for axis in range(3) if shape[axis] == 1)
        found["dbias"] = dscores.sum(shared, keepdims=True)
    return found


# --- sizes of errors ---------------------------------------------------------------------------------------


def _size_of_scores(head: Head, factor: float) -> Array:
    """Return the absolute terms that scores are the sums of."""
    return factor * np.abs(head.q) @ np.abs(head.k).T + np.abs(head.bias)


def _scale(table: Any, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """An error of a score changes its weight by that factor, and all weights by its average."""
    y, stats = _results(operands)
    for head in _heads(operands, arguments):
        p, _ = _softmax(head, _scores(head, arguments))
        size = _size_of_scores(head, _factor(head, arguments))
        average = (p * size).sum(-1, keepdims=True)
        y[head.rows] = (p * (1 + size + average)) @ np.abs(head.v)
        stats[head.rows] = 1 + average[:, 0]
    sizes = {"y": _as_given(y, operands), "stats": np.maximum(_as_given(stats, operands), 0)}
    if "stats" in values:
        sizes["stats"] = sizes["stats"] + np.where(np.isfinite(values["stats"]), np.abs(values["stats"]), 0)
    return {name: sizes[name] for name in values}


def _rounded(table: Any, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """Kernels round weights, as multiples of the largest of a query, to the dtype of the operands."""
    smallest = _smallest_normal(arguments)
    found = {"y": _rounded_weights(operands, arguments, smallest)}
    return found | ({"stats": np.zeros(values["stats"].shape)} if "stats" in values else {})


def _rounded_weights(operands: Operands, arguments: Arguments, smallest: float) -> Array:
    """Return the size of y by which the rounding of weights changes it.

    Weights below ``smallest`` times the largest of their query are rounded with an absolute error.
    """
    y, _ = _results(operands)
    for head in _heads(operands, arguments):
        p, _ = _softmax(head, _scores(head, arguments))
        least = smallest * p.max(-1, initial=0, keepdims=True)
        y[head.rows] = np.where(head.seen, np.maximum(p, least), 0) @ np.abs(head.v)
    return _as_given(y, operands)


def _smallest_normal(arguments: Arguments) -> float:
    """Return the smallest normal number of the dtype of weights; smaller ones have an absolute error."""
    return SMALLEST_NORMAL.get(arguments.get("weights", ""), 0.0)


def _backward_scale(table: Any, operands: Operands, arguments: Arguments, values: Values) -> Values:
    def sizes(head: Head, saved: tuple[Array, Array, Array], factor: float) -> tuple[Array, ...]:
        (dy, y), stats = map(np.abs, saved[:2]), saved[2]
        p = _weights(head, head.q @ head.k.T * factor + head.bias, stats)
        known = np.where(np.isfinite(stats), np.abs(stats), 0)[:, None]
        p = p * (1 + _size_of_scores(head, factor) + known)
        ds = p * (dy @ np.abs(head.v).T + (dy * y).sum(-1, keepdims=True))
        return factor * ds @ np.abs(head.k), factor * ds.T @ np.abs(head.q), p.T @ dy, ds

    return _summed(operands, arguments, sizes)


def _backward_rounded(table: Any, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """Kernels round the weights and the gradients of the scores to the dtype of the operands.

    The gradient of a bias is rounded to it once more, whatever its own dtype is. A weight that is rounded as
    a subnormal number changes the gradient of its score by its absolute error. Gradients of scores are
    rounded after their product with the scale of the scores.
    """
    smallest = _smallest_normal(arguments)

    def sizes(head: Head, saved: tuple[Array, Array, Array], factor: float) -> tuple[Array, ...]:
        dy, y, stats = saved
        p = _weights(head, head.q @ head.k.T * factor + head.bias, stats)
        p = np.where(head.seen, np.maximum(p, smallest), 0)
        ds = p * np.abs(dy @ head.v.T - (dy * y).sum(-1, keepdims=True))
        ds = np.where(head.seen, np.maximum(ds, smallest / (min(abs(factor), 1) or 1)), 0)
        return factor * ds @ np.abs(head.k), factor * ds.T @ np.abs(head.q), p.T @ np.abs(dy), 2 * ds

    return _summed(operands, arguments, sizes)


def _scaled_sizes(operands: Operands, sizes: Values, values: Values) -> Values:
    """Return the sizes of the scaled results, from the sizes of attention of the dequantised operands."""
    o = sizes["y"] * abs(_factor_of(operands, "scale_s", "descale_s"))
    found = {**sizes, "y": o * abs(_factor_of(operands, "scale_o")), "amax": o.max(keepdims=True).reshape(1)}
    return {name: found[name] for name in values}


def _scaled_scale(table: Any, operands: Operands, arguments: Arguments, values: Values) -> Values:
    found = {name: values[name] for name in ("y", "stats") if name in values}
    return _scaled_sizes(operands, _scale(table, _dequantised(operands), arguments, found), values)


def _scaled_rounded(table: Any, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """Kernels round scaled weights to float8."""
    dequantised = _dequantised(operands)
    default = 8192.0 if arguments.get("weights") == "float8_e5m2" else 32.0
    scale = default if operands.get("scale_s") is None else _factor_of(operands, "scale_s")
    y = _rounded_weights(dequantised, arguments, _smallest_normal(arguments) / scale)
    return _scaled_sizes(operands, {"y": y, "stats": np.zeros(_results(dequantised)[1].shape)}, values)


ATTENTION = defined(globals())
ATTENTION_SCALES: dict[str, Any] = {
    "attention": _scale,
    "clear_padding": lambda table, operands, arguments, values: {"y": np.zeros(values["y"].shape)},
    "attention_backward": _backward_scale,
    "scaled_attention": _scaled_scale,
}
ATTENTION_ROUNDED: dict[str, Any] = {
    "attention": _rounded,
    "attention_backward": _backward_rounded,
    "scaled_attention": _scaled_rounded,
}
