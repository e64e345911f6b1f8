"""Scaled dot product attention and its gradient, and attention of float8 operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import as_dtype
from ..shapes import attention as scaled
from ..shapes import attention_rules as rules
from ..shapes.attention import AttentionGradients, AttentionProblem, AttentionResult
from ..shapes.checks import as_float, one_dtype
from ..shapes.specs import TensorSpec
from . import _definition
from . import _signatures as signatures
from ._definition import Arguments, Array, Float64, defined, deliver, specs_of, specs_of_outs, wide

_STATS = np.dtype(np.float32)
_LENGTHS = ("lengths_q", "lengths_kv")


@defined(signatures.attention)
def attention(p: Arguments) -> AttentionResult[Array]:
    """Compute ``softmax(scale * q @ k.T + bias) @ v``, with a mask. See :func:`cudnn_ct.attention`."""
    batch = _Batch(p.required("q", "k", "v") | p.present("bias", "page_table"), p)
    problem = rules.attention_problem(batch.specs, (None, None), p.return_stats, *batch.arguments)
    batch.check_kept(problem)
    y = np.zeros((*batch.arrays["q"].shape[:-1], batch.arrays["v"].shape[-1]))
    stats = np.full(y.shape[:-1], -np.inf)
    for part in batch.sequences():
        weights, sums = _weights(problem, batch, part)
        values = _repeated(batch.keys("v", part), problem)
        batch.rows(y, part)[...] = batch.dropped(weights, part) @ values
        batch.rows(stats, part)[...] = sums
    if problem.stats is None:
        return p.deliver_each(AttentionResult, [(y, batch.dtype)], "return_stats=False")
    return p.deliver_each(AttentionResult, [(y, batch.dtype), (stats, _STATS)])


@defined(signatures.attention_backward)
def attention_backward(p: Arguments) -> AttentionGradients[Array]:
    """Compute the gradients of :func:`attention`. See :func:`cudnn_ct.attention_backward`."""
    operands, saved = p.required("dy", "q", "k", "v", "y") | p.present("bias"), p.required("stats")["stats"]
    batch = _Batch(operands, p)
    batch.specs["stats"] = _definition.packed_spec(saved)
    problem = rules.attention_gradient_problem(batch.specs, (None,) * 4, p.dbias, *batch.arguments)
    batch.check_kept(problem)
    arrays, sums = batch.arrays, wide(saved)
    dq, dk, dv = (np.zeros(arrays[name].shape) for name in "qkv")
    sizes = problem.sizes
    db = np.zeros((sizes.batch, sizes.heads, sizes.queries, sizes.keys)) if p.dbias else None
    for part in batch.sequences():
        weights, _ = _weights(problem, batch, part, batch.rows(sums, part))
        keys, values = (_repeated(batch.keys(name, part), problem) for name in "kv")
        out_gradient, result, queries = (batch.rows(arrays[name], part) for name in ("dy", "y", "q"))
        products = batch.dropped(out_gradient @ values.swapaxes(1, 2), part)
        scores = weights * (products - (out_gradient * result).sum(-1, keepdims=True))
        batch.keys_of(dv, part)[...] = _summed(
            batch.dropped(weights, part).swapaxes(1, 2) @ out_gradient, problem
        )
        batch.rows(dq, part)[...] = problem.scale * scores @ keys
        batch.keys_of(dk, part)[...] = _summed(problem.scale * scores.swapaxes(1, 2) @ queries, problem)
        if db is not None:
            db[part.place, :, : part.queries, : part.keys] = scores
    results = [(gradient, batch.dtype) for gradient in (dq, dk, dv)]
    if db is None:
        return p.deliver_each(AttentionGradients, results, "dbias=False")
    shape = arrays["bias"].shape
    shared = tuple(axis for axis in range(4) if shape[axis] == 1)
    results.append((db.sum(shared, keepdims=True), operands["bias"].dtype))
    return p.deliver_each(AttentionGradients, results)


@defined(signatures.clear_padding)
def clear_padding(p: Arguments) -> Array:
    """Return x with zeros behind the lengths of its sequences. See :func:`cudnn_ct.clear_padding`."""
    dtype, (rows,) = p.operands("clear_padding", "x")
    specs = {"x": TensorSpec.packed(rows.shape, "float32")}
    specs["lengths"] = TensorSpec.packed(np.shape(p.lengths), "int32")
    rules.padding_problem(specs, (None,))
    kept = rules.sequence_lengths(p.lengths, rows.shape[2], "lengths")
    inside = np.arange(rows.shape[2]) < np.asarray(kept, int).reshape(-1, 1)
    return p.deliver(np.where(inside[:, None, :, None], rows, 0.0), dtype)


# --- sequences of a batch ----------------------------------------------------------------------------------


class _Sequence(NamedTuple):
    """One sequence: its place in the batch, its first tokens if it is packed, and its lengths."""

    place: int
    starts: tuple[int, int]
    queries: int
    keys: int


class _Batch:
    """Operands in float64, and their parts for each sequence as (heads, tokens, D)."""

    def __init__(self, operands: dict[str, Array], p: Arguments) -> None:
        others = ("page_table", "bias")
        one_dtype("attention", **{name: x.dtype for name, x in operands.items() if name not in others})
        self.dtype = operands["q"].dtype
        self.table = operands.get("page_table")
        self.arrays = {name: wide(array) for name, array in operands.items() if name not in others}
        if "bias" in operands:
            bias = operands["bias"]  # that of a mask is 0 where it is True and -inf elsewhere
            self.arrays["bias"] = np.where(bias, 0.0, -np.inf) if bias.dtype == bool else wide(bias)
        mask = np.zeros(0) if p.kept is None else np.asarray(p.kept)
        if mask.dtype.kind not in "biuf":
            raise TypeError(f"kept must be an array of ones and zeros: got {p.kept!r}")
        self.kept = None if p.kept is None else wide(mask)
        # float32 and float64 exist here only, so the rules get float16.
        self.specs = {name: TensorSpec.packed(array.shape, "float16") for name, array in operands.items()}
        if "bias" in operands and operands["bias"].dtype == bool:
            self.specs["bias"] = self.specs["bias"]._replace(dtype="bool")
        if self.table is not None:
            if self.table.dtype.kind not in "iu":
                raise TypeError(f"page_table has the wrong dtype: got {self.table.dtype}, expected integers")
            self.specs["page_table"] = TensorSpec.packed(self.table.shape, "int32")
        self.rate = as_float(p.dropout, "dropout")
        if self.rate:
            self.specs |= dict.fromkeys(("seed", "offset"), TensorSpec.packed((1,), "int64"))
        if self.rate and p.kept is None:
            raise ValueError("dropout needs kept, the mask of ones and zeros: got None")
        if p.kept is not None and not self.rate:
            raise ValueError("kept needs dropout: got dropout=0")
        self.offsets: list[tuple[int, ...]] | None = None
        self.packed: list[Sequence[int]] = []
        self._lengths: tuple[Any, Any] = (p.lengths_q, p.lengths_kv)
        longest = (0, 0)
        if not (p.offsets_q is None and p.offsets_kv is None):
            longest = self._pack((p.offsets_q, p.offsets_kv))
        for name, given in zip(_LENGTHS, self._lengths, strict=True):
            if given is not None:
                self.specs[name] = TensorSpec.packed(np.shape(given), "int32")
        self.arguments = (p.scale, p.causal, p.window, p.dropout, longest)

    def _pack(self, offsets: tuple[Any, Any]) -> tuple[int, int]:
        """Read the places of packed sequences, and return the lengths of the longest ones."""
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
        starts = TensorSpec.packed((len(numbers[0]),), "int32")
        self.specs |= {f"starts_{name}": starts for name in ("q", "k", "v", "y", "stats")}
        count = TensorSpec.packed((len(numbers[0]) - 1,), "int32")
        self.specs |= {"lengths_q": count, "lengths_kv": count}
        return rules.longest_sequence(self.packed[0]), rules.longest_sequence(self.packed[1])

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
        return self._view(array, part.place, part.starts[0], part.queries)

    def keys_of(self, array: Float64, part: _Sequence) -> Float64:
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

    def dropped(self, weights: Float64, part: _Sequence) -> Float64:
        if not self.rate or self.kept is None:
            return weights
        return weights * self.kept[part.place, :, : part.queries, : part.keys] / (1 - self.rate)


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


@defined(signatures.scaled_attention)
def scaled_attention(p: Arguments) -> scaled.ScaledAttentionResult[Array]:
    """Compute attention of float8 operands with scales. See :func:`cudnn_ct.scaled_attention`."""
    arrays = p.required("q", "k", "v") | p.present(*scaled.SCALES)
    slots = scaled.scaled_attention_slots(p.out, p.return_stats, p.amax)
    parameters = p.return_stats, p.amax, p.scale, p.causal, p.out_dtype
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
    return scaled.ScaledAttentionResult(found["y"], found.get("stats"), found.get("amax"))


def _computed(problem: scaled.ScaledAttentionProblem, arrays: dict[str, Array]) -> tuple[Float64, Float64]:
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


def _factors(problem: scaled.ScaledAttentionProblem, arrays: dict[str, Array]) -> dict[str, float]:
    weight = scaled.WEIGHT_SCALE[problem.q.dtype]
    defaults = dict.fromkeys(scaled.SCALES, 1.0) | {"scale_s": weight, "descale_s": 1 / weight}
    return {
        name: float(wide(arrays[name]).item()) if name in arrays else value
        for name, value in defaults.items()
    }
