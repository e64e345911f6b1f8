"""Scaled dot product attention: results, masks, problems and the rules of their shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from ..errors import NotSupportedError
from .checks import Outs, Specs
from .layer import describe
from .parse import as_bool, as_choice, as_float, as_int
from .specs import INT_MAX, Shape, TensorSpec, packed_strides

T = TypeVar("T")

Corner = Literal["top_left", "bottom_right"]

ATTENTION_DTYPES = ("float16", "bfloat16")
HEAD_MULTIPLE = 8  # cuDNN's kernels load 16 bytes of a head at once
PACKED_STEP = 128  # the longest packed sequence is rounded up, so that few plans serve many batches


class AttentionResult(NamedTuple, Generic[T]):
    """Result of attention, and the statistics that the backward pass needs.

    ``stats`` is ``log(sum(exp(scores)))`` of each query, float32; None if it was not requested.
    """

    y: T
    stats: T | None


class AttentionGradients(NamedTuple, Generic[T]):
    """Gradients of queries, keys and values, and of the bias if it was requested."""

    dq: T
    dk: T
    dv: T
    dbias: T | None


class Band(NamedTuple):
    """The keys that a query attends to: ``left`` before its own place to ``right`` behind it.

    None is no limit. Query i has the place i of the keys (``"top_left"``), or the last query has the place of
    the last key (``"bottom_right"``).
    """

    left: int | None = None
    right: int | None = None
    corner: Corner = "top_left"

    def shift(self, queries: int, keys: int) -> int:
        """Return the place of the first query among the keys."""
        return keys - queries if self.corner == "bottom_right" else 0


def attention_band(causal: Any, window: Any) -> Band:
    """Return the band of the arguments ``causal`` and ``window``."""
    corner: Corner = "top_left"
    if isinstance(causal, str) or hasattr(causal, "name"):
        corner, limited = as_choice(causal, ("top_left", "bottom_right"), "causal"), True
    else:
        limited = as_bool(causal, "causal")
    left, right = _window(window)
    if limited:
        right = 0 if right is None else min(right, 0)
    return Band(left, right, corner)


def _window(window: Any) -> tuple[int | None, int | None]:
    if window is None:
        return None, None
    if not isinstance(window, Sequence) or isinstance(window, str) or len(window) != 2:
        raise TypeError(f"window must be None or (left, right): got {window!r}")
    sides = [None if side is None else as_int(side, "window") for side in window]
    for side in sides:
        if side is not None and not -1 <= side <= INT_MAX:
            raise ValueError(f"window must have numbers from 0 to {INT_MAX}, or -1 or None: got {window!r}")
    left, right = (None if side == -1 else side for side in sides)
    return left, right


class AttentionCore(NamedTuple):
    """The sizes that operands must agree on."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head: int
    value_head: int


class AttentionProblem(NamedTuple):
    """Attention, or its gradient if ``dy`` is set; operands that it does not use are None.

    The specs are in the order of a run's pointers. If ``starts_q`` is set, the sequences are packed: q, k, v
    and y have the axes (tokens, heads, D), and the fields ``starts`` are the offsets of the sequences in
    elements of a tensor. ``longest`` are upper bounds of the lengths of packed sequences of queries and keys.
    """

    dy: TensorSpec | None
    q: TensorSpec
    k: TensorSpec
    v: TensorSpec
    saved_y: TensorSpec | None
    saved_stats: TensorSpec | None
    bias: TensorSpec | None
    lengths_q: TensorSpec | None
    lengths_kv: TensorSpec | None
    page_table: TensorSpec | None
    starts_q: TensorSpec | None
    starts_k: TensorSpec | None
    starts_v: TensorSpec | None
    starts_y: TensorSpec | None
    starts_stats: TensorSpec | None
    seed: TensorSpec | None
    offset: TensorSpec | None
    y: TensorSpec | None
    stats: TensorSpec | None
    dq: TensorSpec | None
    dk: TensorSpec | None
    dv: TensorSpec | None
    dbias: TensorSpec | None
    scale: float
    band: Band
    dropout: float
    longest: tuple[int, int]
    deterministic: bool
    aligned: bool

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The tensors that are written."""
        given = (self.y, self.stats, self.dq, self.dk, self.dv, self.dbias)
        return tuple(spec for spec in given if spec is not None)

    @property
    def result(self) -> TensorSpec:
        """The first tensor that is written."""
        return self.results[0]

    @property
    def plain(self) -> AttentionProblem:
        """The problem without the facts of one call."""
        return self._replace(aligned=True)

    @property
    def packed(self) -> bool:
        """Whether the sequences are packed."""
        return self.starts_q is not None

    @property
    def sizes(self) -> AttentionCore:
        """The sizes of the operands; those of packed sequences are upper bounds."""
        if self.starts_q is not None:
            batch = self.starts_q.shape[0] - 1
            (_, heads, head), (_, kv_heads, value_head) = self.q.shape, self.v.shape
            return AttentionCore(batch, heads, kv_heads, *self.longest, head, value_head)
        batch, heads, queries, head = self.q.shape
        _, kv_heads, keys, value_head = self.v.shape
        if self.page_table is not None:
            keys *= self.page_table.shape[1]
        return AttentionCore(batch, heads, kv_heads, queries, keys, head, value_head)

    def __str__(self) -> str:
        return describe("gradient of attention" if self.dy else "attention", self, "longest")


# --- rules -------------------------------------------------------------------------------------------------


def attention_problem(
    specs: Specs,
    outs: Outs,
    return_stats: Any,
    scale: Any,
    causal: Any,
    window: Any,
    dropout: Any,
    longest: tuple[int, int],
    *,
    aligned: bool = True,
    deterministic: bool = False,
) -> AttentionProblem:
    """Return the problem of the forward pass. ``longest`` bounds the lengths of packed sequences."""
    problem = _operands(specs, scale, causal, window, dropout, longest)
    problem = problem._replace(aligned=aligned, deterministic=deterministic)
    shapes = result_shapes(problem)
    y = _result(outs[0], like_axes(shapes["y"], problem.q), "out")
    stats = None
    if as_bool(return_stats, "return_stats"):
        stats = _result(outs[1], TensorSpec.packed(shapes["stats"], "float32"), "stats of out")
    return problem._replace(y=y, stats=stats)


def attention_gradient_problem(
    specs: Specs,
    outs: Outs,
    dbias: Any,
    scale: Any,
    causal: Any,
    window: Any,
    dropout: Any,
    longest: tuple[int, int],
    *,
    aligned: bool = True,
    deterministic: bool = False,
) -> AttentionProblem:
    """Return the problem of the backward pass."""
    problem = _operands(specs, scale, causal, window, dropout, longest)
    problem = problem._replace(aligned=aligned, deterministic=deterministic)
    shapes = result_shapes(problem)
    for name, wanted in (("dy", "y"), ("y", "y"), ("stats", "stats")):
        spec = specs[name]
        dtype = "float32" if wanted == "stats" else problem.q.dtype
        if spec.shape != shapes[wanted]:
            raise ValueError(f"{name} has the wrong shape: got {spec.shape}, expected {shapes[wanted]}")
        if spec.dtype != dtype:
            raise TypeError(f"{name} has the wrong dtype: got {spec.dtype}, expected {dtype}")
    results = {f"d{name}": like_axes(specs[name].shape, specs[name]) for name in "qkv"}
    if as_bool(dbias, "dbias"):
        if problem.bias is None:
            raise ValueError("dbias=True needs a bias: got bias=None")
        results["dbias"] = like_axes(problem.bias.shape, problem.bias)
    given = dict(zip(("dq", "dk", "dv", "dbias"), outs, strict=False))
    made = {name: _result(given[name], spec, f"{name} of out") for name, spec in results.items()}
    return problem._replace(dy=specs["dy"], saved_y=specs["y"], saved_stats=specs["stats"], **made)


def result_shapes(problem: AttentionProblem) -> dict[str, Shape]:
    """Return the shapes of the results of the forward pass by name."""
    if problem.packed:
        tokens, heads, _ = problem.q.shape
        return {"y": (tokens, heads, problem.v.shape[2]), "stats": (tokens, heads)}
    sizes = problem.sizes
    rows = (sizes.batch, sizes.heads, sizes.queries)
    return {"y": (*rows, sizes.value_head), "stats": rows}


def like_axes(shape: Shape, like: TensorSpec) -> TensorSpec:
    """Return a dense spec whose axes lie in memory in the order of another tensor's, the last one innermost.

    Heads that lie between the tokens, as in (B, S, H, D) memory, stay there.
    """
    last = len(shape) - 1
    order = sorted(range(last), key=lambda axis: (-like.strides[axis], axis))
    strides = [0] * len(shape)
    for axis, stride in zip(
        (*order, last), packed_strides(tuple(shape[axis] for axis in (*order, last))), strict=True
    ):
        strides[axis] = stride
    return TensorSpec(tuple(shape), tuple(strides), like.dtype)


def _operands(
    specs: Specs, scale: Any, causal: Any, window: Any, dropout: Any, longest: tuple[int, int]
) -> AttentionProblem:
    """Return a problem without results from operands that were checked against each other."""
    q, k, v = (specs[name] for name in "qkv")
    _check_dtypes(q, k, v)
    optional = {
        name: specs.get(name)
        for name in (
            "bias lengths_q lengths_kv page_table starts_q starts_k starts_v starts_y starts_stats seed offset"
        ).split()
    }
    none = dict.fromkeys(("dy", "saved_y", "saved_stats", "y", "stats", "dq", "dk", "dv", "dbias"))
    head = q.shape[-1] if q.shape else 0
    problem = AttentionProblem(
        q=q, k=k, v=v, **optional, **none,
        scale=attention_scale(scale, head),
        band=attention_band(causal, window),
        dropout=dropout_rate(dropout),
        longest=longest,
        deterministic=False,
        aligned=True,
    )  # fmt: skip
    if problem.packed:
        _check_packed(problem)
    elif problem.page_table is not None:
        _check_paged(problem)
    else:
        _check_batch(problem)
    _check_heads(problem)
    _check_optional(problem)
    return problem


def attention_scale(scale: Any, head: int) -> float:
    """Return the factor of the scores; by default ``1 / sqrt(D)``."""
    number = 1 / math.sqrt(max(head, 1)) if scale is None else as_float(scale, "scale")
    if not math.isfinite(number):
        raise ValueError(f"scale must be finite: got {number}")
    return number


def dropout_rate(dropout: Any) -> float:
    """Return the probability that a weight is dropped."""
    rate = as_float(dropout, "dropout")
    if not 0 <= rate < 1:
        raise ValueError(f"dropout must be at least 0 and less than 1: got {rate:g}")
    return rate


def _check_dtypes(q: TensorSpec, k: TensorSpec, v: TensorSpec) -> None:
    for name, spec in (("k", k), ("v", v)):
        if spec.dtype != q.dtype:
            raise TypeError(f"{name} has the wrong dtype: got {spec.dtype}, expected {q.dtype}, as q")
    if q.dtype not in ATTENTION_DTYPES:
        raise NotSupportedError(
            f"cuDNN's attention does not support {q.dtype}: expected {' or '.join(ATTENTION_DTYPES)}; convert "
            "q, k and v with ct.transform or in their library"
        )


def _axes(spec: TensorSpec, name: str, axes: str) -> Shape:
    count = axes.count(",") + 1
    if len(spec.shape) != count:
        raise ValueError(f"{name} has the wrong number of axes: got shape {spec.shape}, expected ({axes})")
    return spec.shape


def _equal(name: str, shape: Shape, expected: Shape) -> None:
    if shape != expected:
        raise ValueError(f"{name} has the wrong shape: got {shape}, expected {expected}")


def _check_batch(problem: AttentionProblem) -> None:
    batch, _, _, head = _axes(problem.q, "q", "B, H, S, D")
    _, kv_heads, keys, _ = _axes(problem.k, "k", "B, H, S, D")
    value_head = _axes(problem.v, "v", "B, H, S, D")[3]
    _equal("k", problem.k.shape, (batch, kv_heads, keys, head))
    _equal("v", problem.v.shape, (batch, kv_heads, keys, value_head))


def _check_paged(problem: AttentionProblem) -> None:
    batch, _, _, head = _axes(problem.q, "q", "B, H, S, D")
    blocks, kv_heads, length, _ = _axes(problem.k, "k", "blocks, H, block length, D")
    value_head = _axes(problem.v, "v", "blocks, H, block length, D")[3]
    _equal("k", problem.k.shape, (blocks, kv_heads, length, head))
    _equal("v", problem.v.shape, (blocks, kv_heads, length, value_head))
    table = problem.page_table
    if table is not None:
        pages = _axes(table, "page_table", "B, blocks of a sequence")[1]
        _equal("page_table", table.shape, (batch, pages))
    if problem.lengths_kv is None:
        raise ValueError("page_table needs lengths_kv, the numbers of keys: got lengths_kv=None")


def _check_packed(problem: AttentionProblem) -> None:
    _, _, head = _axes(problem.q, "q", "tokens, H, D")
    tokens, kv_heads, _ = _axes(problem.k, "k", "tokens, H, D")
    value_head = _axes(problem.v, "v", "tokens, H, D")[2]
    _equal("k", problem.k.shape, (tokens, kv_heads, head))
    _equal("v", problem.v.shape, (tokens, kv_heads, value_head))
    if problem.bias is not None:
        raise NotSupportedError("packed sequences do not support a bias; pad the sequences to one length")
    if problem.page_table is not None:
        raise NotSupportedError("packed sequences do not support a page table; pad the queries instead")


def _check_heads(problem: AttentionProblem) -> None:
    sizes = problem.sizes
    if sizes.heads % max(sizes.kv_heads, 1) or (sizes.heads and not sizes.kv_heads):
        raise ValueError(
            f"k has the wrong number of heads: got {sizes.kv_heads}, expected a divisor of {sizes.heads}, the "
            "number of heads of q"
        )
    for name, size in (("q", sizes.head), ("v", sizes.value_head)):
        if size % HEAD_MULTIPLE or not size:
            raise NotSupportedError(
                f"the last axis of {name} is not a multiple of {HEAD_MULTIPLE}: got {size}; pad the heads with "
                "zeros and pass scale"
            )


def _check_optional(problem: AttentionProblem) -> None:
    sizes = problem.sizes
    bias = problem.bias
    if bias is not None:
        full = (sizes.batch, sizes.heads, sizes.queries, sizes.keys)
        shape = _axes(bias, "bias", "B, H, S, S")
        fits = all(n in (1, m) for n, m in zip(shape[:3], full[:3], strict=True)) and shape[3] == full[3]
        if not fits:
            raise ValueError(
                f"bias has the wrong shape: got {shape}, expected {full}, where each of the first three axes "
                "may be 1"
            )
        if bias.dtype != problem.q.dtype:
            raise TypeError(f"bias has the wrong dtype: got {bias.dtype}, expected {problem.q.dtype}, as q")
    for name in ("lengths_q", "lengths_kv"):
        lengths: TensorSpec | None = getattr(problem, name)
        if lengths is not None:
            _equal(name, lengths.shape, (sizes.batch,))
    if (problem.lengths_q is None) != (problem.lengths_kv is None) and problem.page_table is None:
        given = "lengths_q" if problem.lengths_kv is None else "lengths_kv"
        raise ValueError(f"lengths_q and lengths_kv belong together: got only {given}")
    for name in ("lengths_q", "lengths_kv", "page_table"):
        spec: TensorSpec | None = getattr(problem, name)
        if spec is not None and spec.dtype != "int32":
            raise TypeError(f"{name} has the wrong dtype: got {spec.dtype}, expected int32")
    random = (problem.seed, problem.offset)
    for name, state in zip(("seed", "offset"), random, strict=True):
        if state is not None and (state.size != 1 or state.dtype != "int64"):
            raise TypeError(f"{name} must be one int64 number: got {state}")
    if problem.dropout and None in random:
        raise ValueError(f"dropout={problem.dropout:g} needs seed and offset: got None")
    if not problem.dropout and random != (None, None):
        raise ValueError("seed and offset need dropout: got dropout=0")


def _result(out: TensorSpec | None, spec: TensorSpec, name: str) -> TensorSpec:
    if out is None:
        return spec
    if out.dtype != spec.dtype:
        raise TypeError(f"{name} is {out.dtype}; the result is {spec.dtype}")
    if out.shape != spec.shape:
        raise ValueError(f"{name} has shape {out.shape}; the result has {spec.shape}")
    return out


# --- packed sequences and lengths in host memory -----------------------------------------------------------


def sequence_offsets(offsets: Any, tokens: int, name: str) -> tuple[int, ...]:
    """Return the offsets of packed sequences: ascending ints from 0 to the number of tokens."""
    numbers = _ints(offsets, name)
    if len(numbers) < 2 or numbers[0] != 0 or numbers[-1] != tokens:
        raise ValueError(f"{name} must start at 0 and end at {tokens}, the number of tokens: got {numbers}")
    if any(a > b for a, b in zip(numbers, numbers[1:], strict=False)):
        raise ValueError(f"{name} must be in ascending order: got {numbers}")
    return numbers


def sequence_lengths(lengths: Any, longest: int, name: str) -> tuple[int, ...]:
    """Return the lengths of padded sequences as ints from 0 to ``longest``."""
    numbers = _ints(lengths, name)
    for number in numbers:
        if not 0 <= number <= longest:
            raise ValueError(f"{name} must be from 0 to {longest}: got {number}")
    return numbers


def _ints(values: Any, name: str) -> tuple[int, ...]:
    import numpy as np

    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(f"{name} must be a sequence of ints: got {values!r}")
    return tuple(map(int, array))


def longest_sequence(offsets: Sequence[int]) -> int:
    """Return an upper bound of the lengths between offsets, rounded up: few plans serve many batches."""
    longest = max((b - a for a, b in zip(offsets, offsets[1:], strict=False)), default=0)
    step = PACKED_STEP if longest <= 8 * PACKED_STEP else 8 * PACKED_STEP
    return -(-longest // step) * step


def check_band_of_lengths(band: Band, lengths_q: Sequence[int], lengths_kv: Sequence[int]) -> None:
    """Raise if a query has no key because its sequence has more queries than keys."""
    for place, (queries, keys) in enumerate(zip(lengths_q, lengths_kv, strict=True)):
        last_without = band.corner == "bottom_right" and band.right is not None and queries > keys + band.right
        if last_without or (band.left is not None and queries > keys + band.left and band.corner == "top_left"):
            raise ValueError(
                f"sequence {place} has queries without keys: got {queries} queries and {keys} keys with {band}; "
                "such sequences are not supported"
            )
