"""Scaled dot product attention and its gradient, and attention of float8 operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..dtypes import as_dtype
from ..shapes import attention_rules as rules
from ..shapes import scaled_attention as scaled
from ..shapes.attention import AttentionGradients, AttentionProblem, AttentionResult
from ..shapes.checks import one_dtype
from ..shapes.parse import as_float
from ..shapes.scaled_attention import ScaledAttentionProblem, ScaledAttentionResult
from ..shapes.specs import TensorSpec
from ._cast import (
    Array,
    Float64,
    Outs,
    deliver,
    deliver_each,
    packed_spec,
    present,
    required,
    specs_of,
    specs_of_outs,
    wide,
)
from ._cast import operands as as_operands

_STATS = np.dtype(np.float32)
_LENGTHS = ("lengths_q", "lengths_kv")


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    scale: float | None = None,
    causal: bool | str = False,
    window: tuple[int | None, int | None] | None = None,
    bias: ArrayLike | None = None,
    lengths_q: ArrayLike | None = None,
    lengths_kv: ArrayLike | None = None,
    offsets_q: Sequence[int] | None = None,
    offsets_kv: Sequence[int] | None = None,
    page_table: ArrayLike | None = None,
    dropout: float = 0.0,
    kept: ArrayLike | None = None,
    return_stats: bool = False,
    out: Outs | None = None,
) -> AttentionResult[Array]:
    """Compute ``softmax(scale * q @ k.T + bias) @ v``, with a mask. See :func:`cudnn_ct.attention`."""
    operands = required(q=q, k=k, v=v) | present(bias=bias, page_table=page_table)
    batch = _Batch(operands, (lengths_q, lengths_kv), (offsets_q, offsets_kv), dropout, kept)
    arguments = (scale, causal, window, dropout, batch.longest)
    problem = rules.attention_problem(batch.specs, (None, None), return_stats, *arguments)
    batch.check_kept(problem)
    y = np.zeros((*batch.arrays["q"].shape[:-1], batch.arrays["v"].shape[-1]))
    stats = np.full(y.shape[:-1], -np.inf)
    for part in batch.sequences():
        weights, sums = _weights(problem, batch, part)
        values = _repeated(batch.keys("v", part), problem)
        batch.rows(y, part)[...] = batch.dropped(weights, part, dropout) @ values
        batch.rows(stats, part)[...] = sums
    if problem.stats is None:
        return deliver_each(AttentionResult, [(y, batch.dtype)], 1, 0, out, "return_stats=False")
    return deliver_each(AttentionResult, [(y, batch.dtype), (stats, _STATS)], 1, 0, out)


def attention_backward(
    dy: ArrayLike,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    y: ArrayLike,
    stats: ArrayLike,
    *,
    scale: float | None = None,
    causal: bool | str = False,
    window: tuple[int | None, int | None] | None = None,
    bias: ArrayLike | None = None,
    dbias: bool = False,
    lengths_q: ArrayLike | None = None,
    lengths_kv: ArrayLike | None = None,
    offsets_q: Sequence[int] | None = None,
    offsets_kv: Sequence[int] | None = None,
    dropout: float = 0.0,
    kept: ArrayLike | None = None,
    out: Outs | None = None,
) -> AttentionGradients[Array]:
    """Compute the gradients of :func:`attention`. See :func:`cudnn_ct.attention_backward`."""
    operands = required(dy=dy, q=q, k=k, v=v, y=y) | present(bias=bias)
    saved = required(stats=stats)["stats"]
    batch = _Batch(operands, (lengths_q, lengths_kv), (offsets_q, offsets_kv), dropout, kept)
    batch.specs["stats"] = packed_spec(saved)
    arguments = (scale, causal, window, dropout, batch.longest)
    problem = rules.attention_gradient_problem(batch.specs, (None,) * 4, dbias, *arguments)
    batch.check_kept(problem)
    arrays, sums = batch.arrays, wide(saved)
    dq, dk, dv = (np.zeros(arrays[name].shape) for name in "qkv")
    sizes = problem.sizes
    db = np.zeros((sizes.batch, sizes.heads, sizes.queries, sizes.keys)) if dbias else None
    for part in batch.sequences():
        weights, _ = _weights(problem, batch, part, batch.rows(sums, part))
        keys, values = (_repeated(batch.keys(name, part), problem) for name in "kv")
        out_gradient, result, queries = (batch.rows(arrays[name], part) for name in ("dy", "y", "q"))
        products = batch.dropped(out_gradient @ values.swapaxes(1, 2), part, dropout)
        scores = weights * (products - (out_gradient * result).sum(-1, keepdims=True))
        batch.keys_of(dv, part)[...] = _summed(
            batch.dropped(weights, part, dropout).swapaxes(1, 2) @ out_gradient, problem
        )
        batch.rows(dq, part)[...] = problem.scale * scores @ keys
        batch.keys_of(dk, part)[...] = _summed(problem.scale * scores.swapaxes(1, 2) @ queries, problem)
        if db is not None:
            db[part.place, :, : part.queries, : part.keys] = scores
    results = [(gradient, batch.dtype) for gradient in (dq, dk, dv)]
    if db is None:
        return deliver_each(AttentionGradients, results, 1, 0, out, "dbias=False")
    shape = arrays["bias"].shape
    shared = tuple(axis for axis in range(4) if shape[axis] == 1)
    results.append((db.sum(shared, keepdims=True), operands["bias"].dtype))
    return deliver_each(AttentionGradients, results, 1, 0, out)


def clear_padding(x: ArrayLike, lengths: ArrayLike, *, out: Array | None = None) -> Array:
    """Return x with zeros behind the lengths of its sequences. See :func:`cudnn_ct.clear_padding`."""
    dtype, (rows,) = as_operands("clear_padding", x=x)
    specs = {"x": TensorSpec.packed(rows.shape, "float32")}
    specs["lengths"] = TensorSpec.packed(np.shape(lengths), "int32")
    rules.padding_problem(specs, (None,))
    kept = rules.sequence_lengths(lengths, rows.shape[2], "lengths")
    inside = np.arange(rows.shape[2]) < np.asarray(kept, int).reshape(-1, 1)
    return deliver(np.where(inside[:, None, :, None], rows, 0.0), dtype, 1, 0, out)


# --- sequences of a batch ----------------------------------------------------------------------------------


class _Sequence(NamedTuple):
    """One sequence: its place in the batch, its first tokens if it is packed, and its lengths."""

    place: int
    starts: tuple[int, int]
    queries: int
    keys: int


class _Batch:
    """Operands in float64, and their parts for each sequence as (heads, tokens, D)."""

    def __init__(
        self,
        operands: dict[str, Array],
        lengths: tuple[Any, Any],
        offsets: tuple[Any, Any],
        dropout: float,
        kept: ArrayLike | None,
    ) -> None:
        others = ("page_table", "bias")
        one_dtype("attention", **{name: x.dtype for name, x in operands.items() if name not in others})
        self.dtype = operands["q"].dtype
        self.table = operands.get("page_table")
        self.arrays = {name: wide(array) for name, array in operands.items() if name not in others}
        if "bias" in operands:
            bias = operands["bias"]  # that of a mask is 0 where it is True and -inf elsewhere
            self.arrays["bias"] = np.where(bias, 0.0, -np.inf) if bias.dtype == bool else wide(bias)
        mask = np.zeros(0) if kept is None else np.asarray(kept)
        if mask.dtype.kind not in "biuf":
            raise TypeError(f"kept must be an array of ones and zeros: got {kept!r}")
        self.kept = None if kept is None else wide(mask)
        # float32 and float64 exist here only, so the rules get float16.
        self.specs = {name: TensorSpec.packed(array.shape, "float16") for name, array in operands.items()}
        if "bias" in operands and operands["bias"].dtype == bool:
            self.specs["bias"] = self.specs["bias"]._replace(dtype="bool")
        if self.table is not None:
            if self.table.dtype.kind not in "iu":
                raise TypeError(f"page_table has the wrong dtype: got {self.table.dtype}, expected integers")
            self.specs["page_table"] = TensorSpec.packed(self.table.shape, "int32")
        dropout = as_float(dropout, "dropout")
        if dropout:
            self.specs |= dict.fromkeys(("seed", "offset"), TensorSpec.packed((1,), "int64"))
        if dropout and kept is None:
            raise ValueError("dropout needs kept, the mask of ones and zeros: got None")
        if kept is not None and not dropout:
            raise ValueError("kept needs dropout: got dropout=0")
        self.offsets: list[tuple[int, ...]] | None = None
        self.longest = (0, 0)
        self.packed: list[Sequence[int]] = []
        self._lengths: tuple[Any, Any] = lengths
        if any(one is not None for one in offsets):
            self._pack(offsets)
        for name, given in zip(_LENGTHS, lengths, strict=True):
            if given is not None:
                self.specs[name] = TensorSpec.packed(np.shape(given), "int32")

    def _pack(self, offsets: tuple[Any, Any]) -> None:
        tokens = {"offsets_q": self.arrays["q"].shape[0], "offsets_kv": self.arrays["k"].shape[0]}
        numbers = [
            rules.sequence_offsets(given, count, name)
            for given, (name, count) in zip(offsets, tokens.items(), strict=True)
        ]
        if len(numbers[0]) != len(numbers[1]):
            raise ValueError(f"offsets_q and offsets_kv differ in length: got {numbers[0]} and {numbers[1]}")
        self.offsets = numbers
        room = [[b - a for a, b in pairwise(starts)] for starts in numbers]
        self.packed = [
            room[place] if given is None else rules.packed_lengths(given, numbers[place], _LENGTHS[place])
            for place, given in enumerate(self._lengths)
        ]
        self.longest = rules.longest_sequence(self.packed[0]), rules.longest_sequence(self.packed[1])
        starts = TensorSpec.packed((len(numbers[0]),), "int32")
        self.specs |= {f"starts_{name}": starts for name in ("q", "k", "v", "y", "stats")}
        count = TensorSpec.packed((len(numbers[0]) - 1,), "int32")
        self.specs |= {"lengths_q": count, "lengths_kv": count}

    def check_kept(self, problem: AttentionProblem) -> None:
        """Raise unless kept has the shape of the weights, or a larger one for packed sequences."""
        if self.kept is None:
            return
        sizes, shape = problem.sizes, self.kept.shape
        expected: tuple[int, ...] = (sizes.batch, sizes.heads, sizes.queries, sizes.keys)
        if self.offsets is not None:
            expected = (*expected[:2], *map(max, self.packed))
            if len(shape) == 4 and shape[:2] == expected[:2]:
                shape = (*shape[:2], *map(min, shape[2:], expected[2:]))
        if shape != expected:
            raise ValueError(f"kept has the wrong shape: got {self.kept.shape}, expected {expected}")

    def sequences(self) -> Iterator[_Sequence]:
        """Yield the sequences of the batch."""
        if self.offsets is not None:
            starts = zip(*(numbers[:-1] for numbers in self.offsets), strict=True)
            counts = zip(*self.packed, strict=True)
            for place, (first, (queries, keys)) in enumerate(zip(starts, counts, strict=True)):
                yield _Sequence(place, first, queries, keys)
            return
        queries, keys = self.arrays["q"].shape[2], self.arrays["k"].shape[2]
        keys *= 1 if self.table is None else self.table.shape[1]
        lengths = [
            [longest] * len(self.arrays["q"])
            if given is None
            else rules.sequence_lengths(given, longest, name)
            for given, longest, name in zip(self._lengths, (queries, keys), _LENGTHS, strict=True)
        ]
        for place, (rows, columns) in enumerate(zip(*lengths, strict=True)):
            yield _Sequence(place, (0, 0), rows, columns)

    def rows(self, array: Float64, part: _Sequence) -> Float64:
        """Return the queries of a sequence, as a view."""
        return self._view(array, part.place, part.starts[0], part.queries)

    def keys_of(self, array: Float64, part: _Sequence) -> Float64:
        """Return the keys of a sequence, as a view."""
        return self._view(array, part.place, part.starts[1], part.keys)

    def keys(self, name: str, part: _Sequence) -> Float64:
        """Return k or v of a sequence, collected from its pages."""
        if self.table is None:
            return self.keys_of(self.arrays[name], part)
        blocks, heads, length, head = self.arrays[name].shape
        pages = self.table[part.place, : -(-part.keys // max(length, 1))]  # entries past the keys are unused
        for page in pages:
            if not 0 <= page < blocks:
                raise ValueError(f"page_table is out of range: got {page}, expected 0 to {blocks - 1}")
        found = self.arrays[name][pages].swapaxes(0, 1)  # (heads, pages, block length, D)
        return found.reshape(heads, len(pages) * length, head)[:, : part.keys]

    def _view(self, array: Float64, place: int, start: int, count: int) -> Float64:
        if self.offsets is not None:
            return array[start : start + count].swapaxes(0, 1)
        return array[place, :, :count]

    def dropped(self, weights: Float64, part: _Sequence, rate: float) -> Float64:
        """Return weights multiplied with the mask of dropout."""
        if not rate or self.kept is None:
            return weights
        return weights * self.kept[part.place, :, : part.queries, : part.keys] / (1 - rate)


# --- weights -----------------------------------------------------------------------------------------------


def _weights(
    problem: AttentionProblem, batch: _Batch, part: _Sequence, stats: Float64 | None = None
) -> tuple[Float64, Float64]:
    """Return the weights of a sequence, and the logarithms of their sums; ``stats`` are given ones."""
    queries, keys = batch.rows(batch.arrays["q"], part), _repeated(batch.keys("k", part), problem)
    scores = problem.scale * queries @ keys.swapaxes(1, 2)
    if "bias" in batch.arrays:
        bias = batch.arrays["bias"]
        bias = bias[part.place if len(bias) > 1 else 0]
        scores = scores + bias[:, : part.queries if bias.shape[1] > 1 else 1, : part.keys]
    band = problem.band
    distance = np.arange(part.keys) - np.arange(part.queries)[:, None] - band.shift(part.queries, part.keys)
    allowed = np.ones(distance.shape, bool)
    allowed &= True if band.right is None else distance <= band.right
    allowed &= True if band.left is None else distance >= -band.left
    scores = np.where(allowed, scores, -np.inf)
    if stats is None:
        highest = scores.max(-1, initial=-np.inf, keepdims=True)
        highest = np.where(np.isneginf(highest), 0, highest)
        sums: Float64 = (highest + np.log(np.exp(scores - highest).sum(-1, keepdims=True)))[..., 0]
    else:
        sums = stats
    empty = np.isneginf(sums)[..., None]  # -inf - -inf is NaN
    return np.where(empty, 0, np.exp(scores - np.where(empty, 0, sums[..., None]))), sums


def _repeated(keys: Float64, problem: AttentionProblem) -> Float64:
    """Return keys or values for each head of q."""
    sizes = problem.sizes
    return np.repeat(keys, sizes.heads // max(sizes.kv_heads, 1), axis=0)


def _summed(gradient: Float64, problem: AttentionProblem) -> Float64:
    """Return a gradient summed over the heads of q that share a head."""
    sizes = problem.sizes
    group = sizes.heads // max(sizes.kv_heads, 1)
    summed: Float64 = gradient.reshape(sizes.kv_heads, group, *gradient.shape[1:]).sum(1)
    return summed


# --- float8 operands ----------------------------------------------------------------------------------------


_LARGEST = {"float8_e4m3": 448.0, "float8_e5m2": 57344.0}


def scaled_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    descale_q: ArrayLike | None = None,
    descale_k: ArrayLike | None = None,
    descale_v: ArrayLike | None = None,
    descale_s: ArrayLike | None = None,
    scale_s: ArrayLike | None = None,
    scale_o: ArrayLike | None = None,
    scale: float | None = None,
    causal: bool | str = False,
    return_stats: bool = False,
    amax: bool = False,
    out_dtype: DTypeLike | None = None,
    out: Outs | None = None,
) -> ScaledAttentionResult[Array]:
    """Compute attention of float8 operands with scales. See :func:`cudnn_ct.scaled_attention`."""
    scales = (descale_q, descale_k, descale_v, descale_s, scale_s, scale_o)
    arrays = required(q=q, k=k, v=v) | present(**dict(zip(scaled.SCALES, scales, strict=True)))
    slots = scaled.scaled_attention_slots(out, return_stats, amax)
    parameters = return_stats, amax, scale, causal, out_dtype
    problem = scaled.scaled_attention_problem(specs_of(arrays), specs_of_outs(slots), *parameters)
    values, stats = _computed(problem, arrays)
    largest = np.full(1, np.abs(values).max(initial=0))
    made = {
        "y": (values * _factors(problem, arrays)["scale_o"], as_dtype(problem.y.dtype).numpy),
        "stats": (stats, _STATS),
        "amax": (largest, _STATS),
    }
    wanted = [name for name in made if getattr(problem, name) is not None]
    found = {name: deliver(*made[name], 1, 0, out) for name, out in zip(wanted, slots, strict=True)}
    return ScaledAttentionResult(found["y"], found.get("stats"), found.get("amax"))


def _computed(problem: ScaledAttentionProblem, arrays: dict[str, Array]) -> tuple[Float64, Float64]:
    """Return the result before ``scale_o``, and the statistics."""
    sizes, factors = problem.sizes, _factors(problem, arrays)
    group = sizes.heads // max(sizes.kv_heads, 1)
    queries, keys, values = (wide(arrays[name]) for name in "qkv")
    keys, values = (np.repeat(one, group, axis=1) for one in (keys, values))
    scores = problem.scale * factors["descale_q"] * factors["descale_k"] * (queries @ keys.swapaxes(2, 3))
    if problem.causal:
        allowed = np.arange(sizes.keys) <= np.arange(sizes.queries)[:, None]
        scores = np.where(allowed, scores, -np.inf)
    highest = scores.max(-1, initial=-np.inf, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(highest), 0, highest))
    sums = weights.sum(-1, keepdims=True)
    scaled_weights = np.minimum(weights * factors["scale_s"], _LARGEST[problem.q.dtype])  # it saturates
    rounded = wide(scaled_weights.astype(as_dtype(problem.q.dtype).numpy))
    result = factors["descale_s"] * factors["descale_v"] * (rounded @ values) / sums
    stats = (highest + np.log(sums))[..., 0]
    return np.where(sums == 0, 0, result), stats


def _factors(problem: ScaledAttentionProblem, arrays: dict[str, Array]) -> dict[str, float]:
    weight = scaled.WEIGHT_SCALE[problem.q.dtype]
    defaults = dict.fromkeys(scaled.SCALES, 1.0) | {"scale_s": weight, "descale_s": 1 / weight}
    return {
        name: float(wide(arrays[name]).item()) if name in arrays else value
        for name, value in defaults.items()
    }
