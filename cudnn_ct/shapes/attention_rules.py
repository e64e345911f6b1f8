"""Rules of attention: shapes and dtypes of operands, and the problems that follow from them.

Lengths of padded sequences and offsets of packed ones are in host memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import NotSupportedError
from . import attention
from .arithmetic import FLOAT8
from .attention import HEAD_MULTIPLE, AttentionProblem, Band
from .checks import as_bool, as_float, batch_hint, expect_dtype, expect_shape, heads_hint, result_spec
from .specs import Outs, Shape, Specs, TensorSpec, problem_class

ATTENTION_DTYPES = ("float16", "bfloat16", "float32")
BIAS_DTYPES = (*ATTENTION_DTYPES, "bool")
# Operands besides q, k and v, in the order of the problem.
OPTIONAL = (
    *("bias", "lengths_q", "lengths_kv", "page_table", "page_table_v", "starts_q", "starts_k", "starts_v"),
    *("starts_y", "starts_stats", "seed", "offset"),
)
_PAGES = ("page_table", "page_table_v")


def attention_problem(
    specs: Specs,
    outs: Outs,
    return_stats: Any,
    *parameters: Any,
    aligned: bool = True,
    deterministic: bool = False,
) -> AttentionProblem:
    """Return the problem of the forward pass.

    ``parameters`` are scale, causal, window, dropout and the upper bounds of lengths of packed sequences.
    """
    problem = _operands(specs, *parameters, aligned=aligned, deterministic=deterministic)
    shapes = result_shapes(problem)
    y = attention.given_or(outs[0], attention.like_axes(shapes["y"], problem.q), "out")
    stats = None
    if as_bool(return_stats, "return_stats"):
        stats = attention.given_or(outs[1], TensorSpec.packed(shapes["stats"], "float32"), "stats of out")
    return problem._replace(y=y, stats=stats)


def attention_gradient_problem(
    specs: Specs, outs: Outs, dbias: Any, *parameters: Any, aligned: bool = True, deterministic: bool = False
) -> AttentionProblem:
    """Return the problem of the backward pass, whose ``parameters`` are those of the forward pass."""
    problem = _operands(specs, *parameters, aligned=aligned, deterministic=deterministic)
    shapes = result_shapes(problem)
    for name, wanted in (("dy", "y"), ("y", "y"), ("stats", "stats")):
        spec = specs[name]
        dtype = "float32" if wanted == "stats" else problem.q.dtype
        if spec.shape != shapes[wanted]:
            raise ValueError(f"{name} has shape {spec.shape}; the result of attention has {shapes[wanted]}")
        expect_dtype(spec, name, dtype)
    results = {f"d{name}": attention.like_axes(specs[name].shape, specs[name]) for name in "qkv"}
    if as_bool(dbias, "dbias"):
        if problem.bias is None:
            raise ValueError("dbias=True needs a bias: got bias=None")
        if problem.bias.dtype == "bool":
            raise ValueError("dbias=True needs a bias of floating-point numbers: got a mask")
        results["dbias"] = attention.like_axes(problem.bias.shape, problem.bias)
    given: dict[str, TensorSpec | None] = dict(zip(("dq", "dk", "dv", "dbias"), outs, strict=False))
    made: dict[str, Any] = {
        name: attention.given_or(given[name], spec, f"{name} of out") for name, spec in results.items()
    }
    return problem._replace(dy=specs["dy"], saved_y=specs["y"], saved_stats=specs["stats"], **made)


def result_shapes(problem: AttentionProblem) -> dict[str, Shape]:
    """Return the shapes of the results of the forward pass by name."""
    if problem.packed:
        tokens, heads, _ = problem.q.shape
        return {"y": (tokens, heads, problem.v.shape[2]), "stats": (tokens, heads)}
    sizes = problem.sizes
    rows = (sizes.batch, sizes.heads, sizes.queries)
    return {"y": (*rows, sizes.value_head), "stats": rows}


def _operands(
    specs: Specs,
    scale: Any,
    causal: Any,
    window: Any,
    dropout: Any,
    longest: tuple[int, int],
    *,
    aligned: bool,
    deterministic: bool,
) -> AttentionProblem:
    """Return a problem without results from operands that were checked against each other."""
    q, k, v = (specs[name] for name in "qkv")
    _check_dtypes(q, k, v)
    optional = {name: specs.get(name) for name in OPTIONAL}
    none = dict.fromkeys(("dy", "saved_y", "saved_stats", "y", "stats", "dq", "dk", "dv", "dbias"))
    head = q.shape[-1] if q.shape else 0
    problem = AttentionProblem(
        q=q, k=k, v=v, **optional, **none,
        scale=attention.attention_scale(scale, head),
        band=attention.attention_band(causal, window),
        dropout=dropout_rate(dropout),
        longest=longest,
        deterministic=deterministic,
        aligned=aligned,
    )  # fmt: skip
    if problem.packed:
        _check_packed(problem)
    elif problem.page_table is not None:
        _check_paged(problem)
    else:
        _check_qkv(problem, "B, H, S, D", batched=True)
    sizes, paged = problem.sizes, problem.page_table is not None
    attention.check_head_count(sizes.heads, sizes.kv_heads, "" if paged else heads_hint(q.shape, k.shape))
    for name, size in (("q", sizes.head), ("v", sizes.value_head)):
        attention.check_head_size(name, size, HEAD_MULTIPLE)
    _check_optional(problem)
    return problem


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
    if q.dtype in FLOAT8:
        raise NotSupportedError(f"q, k and v are {q.dtype}: attention of float8 is ct.scaled_attention")
    if q.dtype not in ATTENTION_DTYPES:
        raise NotSupportedError(
            f"cuDNN's attention does not support {q.dtype}: expected {', '.join(ATTENTION_DTYPES)}; "
            "convert q, k and v"
        )


def _axes(spec: TensorSpec, name: str, axes: str) -> Shape:
    count, shape = axes.count(",") + 1, spec.shape
    if len(shape) != count:
        hint = batch_hint(name, shape, count) if axes.startswith("B, ") else ""
        raise ValueError(f"{name} has the wrong number of axes: got shape {shape}, expected ({axes}){hint}")
    return shape


def _check_qkv(problem: AttentionProblem, queries: str, keys: str = "", *, batched: bool = False) -> None:
    """Raise unless q has the axes ``queries``, and k and v ``keys`` or the same, and they agree.

    If ``batched`` is set, the first axis of k is that of q.
    """
    named = {"q": queries, "k": keys or queries, "v": keys or queries}
    q, k, v = (_axes(getattr(problem, name), name, axes) for name, axes in named.items())
    outer = (q[0] if batched else k[0], *k[1:-1])
    expect_shape(problem.k, "k", (*outer, q[-1]))
    expect_shape(problem.v, "v", (*outer, v[-1]))


def _check_paged(problem: AttentionProblem) -> None:
    _check_qkv(problem, "B, H, S, D", "blocks, H, block length, D")
    batch = problem.q.shape[0]
    table = problem.page_table
    if table is not None:
        pages = _axes(table, "page_table", "B, blocks of a sequence")[1]
        expect_shape(table, "page_table", (batch, pages))
        expect_shape(problem.page_table_v or table, "page_table_v", (batch, pages))
    if problem.lengths_kv is None:
        raise ValueError("page_table needs lengths_kv, the numbers of keys: got lengths_kv=None")


def _check_packed(problem: AttentionProblem) -> None:
    _check_qkv(problem, "tokens, H, D")
    if problem.bias is not None:
        raise NotSupportedError("packed sequences do not support a bias; pad the sequences to one length")
    if problem.page_table is not None:
        raise NotSupportedError("packed sequences do not support a page table; pad the queries instead")


def check_bias(bias: TensorSpec, dtypes: tuple[str, ...], scores: Shape) -> None:
    """Raise unless a bias has one of the dtypes and broadcasts to the scores (B, H, Sq, Skv)."""
    shape = _axes(bias, "bias", "B, H, S, S")
    if shape[3] != scores[3] or any(n not in (1, m) for n, m in zip(shape[:3], scores[:3], strict=True)):
        raise ValueError(
            f"bias has the wrong shape: got {shape}, expected {scores}, where each of the first three axes "
            "may be 1"
        )
    expect_dtype(bias, "bias", *dtypes)


def _check_optional(problem: AttentionProblem) -> None:
    sizes = problem.sizes
    bias = problem.bias
    if bias is not None:
        check_bias(bias, BIAS_DTYPES, (sizes.batch, sizes.heads, sizes.queries, sizes.keys))
    arrays = {name: getattr(problem, name) for name in ("lengths_q", "lengths_kv", *_PAGES)}
    given = {name: spec for name, spec in arrays.items() if spec is not None}
    for name, spec in given.items():
        if name not in _PAGES:
            expect_shape(spec, name, (sizes.batch,))
    if (problem.lengths_q is None) != (problem.lengths_kv is None) and problem.page_table is None:
        raise ValueError(f"lengths_q and lengths_kv belong together: got only {next(iter(given))}")
    for name, spec in given.items():
        expect_dtype(spec, name, "int32")
    random = (problem.seed, problem.offset)
    for name, state in zip(("seed", "offset"), random, strict=True):
        if state is not None and (state.size != 1 or state.dtype != "int64"):
            raise TypeError(f"{name} must be one int64 number: got {state}")
    if problem.dropout and None in random:
        raise ValueError(f"dropout={problem.dropout:g} needs seed and offset: got None")
    if not problem.dropout and random != (None, None):
        raise ValueError("seed and offset need dropout: got dropout=0")


# --- the problem of clearing rows behind the lengths of padded sequences -----------------------------------

LONGEST = 2**24  # places are compared in float32


@problem_class("clearing of padding", "y")
class PaddingProblem(NamedTuple):
    """y is x with zeros behind the lengths."""

    x: TensorSpec
    lengths: TensorSpec
    y: TensorSpec


def padding_problem(specs: Specs, outs: Outs) -> PaddingProblem:
    """Return the problem of operands that were checked against each other."""
    x, lengths = specs["x"], specs["lengths"]
    if len(x.shape) != 4:
        raise ValueError(f"x has the wrong number of axes: got shape {x.shape}, expected (B, H, S, D)")
    expect_dtype(x, "x", *ATTENTION_DTYPES)
    if x.shape[3] % HEAD_MULTIPLE or x.shape[2] > LONGEST:
        raise NotSupportedError(
            f"x must have a last axis that is a multiple of {HEAD_MULTIPLE}, and at most {LONGEST} rows a "
            f"sequence: got {x.shape}"
        )
    expect_shape(lengths, "lengths", x.shape[:1])
    expect_dtype(lengths, "lengths", "int32")
    return PaddingProblem(x, lengths, result_spec(x.shape, attention.like_axes(x.shape, x), out=outs[0]))


# --- lengths -----------------------------------------------------------------------------------------------

PACKED_STEP = 128  # the longest packed sequence is rounded up, so that few plans serve many batches


def sequence_offsets(offsets: Any, tokens: int, name: str) -> tuple[int, ...]:
    """Return the offsets of packed sequences: ascending ints from 0 to the number of tokens."""
    numbers = _ints(offsets, name)
    if len(numbers) < 2 or numbers[0] != 0 or numbers[-1] != tokens:
        raise ValueError(f"{name} must start at 0 and end at {tokens}, the number of tokens: got {numbers}")
    if any(a > b for a, b in itertools.pairwise(numbers)):
        raise ValueError(f"{name} must be in ascending order: got {numbers}")
    return numbers


def sequence_lengths(lengths: Any, longest: int, name: str) -> tuple[int, ...]:
    """Return the lengths of padded sequences as ints from 0 to ``longest``."""
    numbers = _ints(lengths, name)
    for number in numbers:
        if not 0 <= number <= longest:
            raise ValueError(f"{name} must be from 0 to {longest}: got {number}")
    return numbers


def packed_lengths(lengths: Any, offsets: Sequence[int], name: str) -> tuple[int, ...]:
    """Return the lengths of packed sequences: ints that are at most the distances of the offsets."""
    numbers, room = _ints(lengths, name), [b - a for a, b in itertools.pairwise(offsets)]
    if len(numbers) != len(room) or any(not 0 <= n <= most for n, most in zip(numbers, room, strict=True)):
        raise ValueError(f"{name} must be at most the distances of the offsets, {room}: got {numbers}")
    return numbers


def _ints(values: Any, name: str) -> tuple[int, ...]:
    import numpy as np

    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(f"{name} must be a sequence of ints: got {values!r}")
    return tuple(map(int, array))


def longest_sequence(lengths: Sequence[int]) -> int:
    """Return an upper bound of lengths, rounded up: few plans serve many batches."""
    longest = max(lengths, default=0)
    step = PACKED_STEP if longest <= 8 * PACKED_STEP else 8 * PACKED_STEP
    return -(-longest // step) * step


def queries_with_keys(band: Band, lengths_q: Sequence[int], lengths_kv: Sequence[int]) -> list[int]:
    """Return the lengths of queries without the last ones, if a window leaves no keys to these."""
    if band.left is None or band.corner != "top_left":
        return list(lengths_q)
    left = band.left
    return [min(queries, keys + left) for queries, keys in zip(lengths_q, lengths_kv, strict=True)]


def check_band_of_lengths(band: Band, lengths_q: Sequence[int], lengths_kv: Sequence[int]) -> None:
    """Raise if the first queries of a sequence have no keys because it has more queries than keys."""
    for place, (queries, keys) in enumerate(zip(lengths_q, lengths_kv, strict=True)):
        if band.corner == "bottom_right" and band.right is not None and queries > keys + band.right:
            most = max(keys + band.right, 0)
            raise ValueError(
                f"sequence {place} has queries without keys: got {queries} queries and {keys} keys, aligned "
                f"at the bottom right corner; pass at most {most} queries of it, or causal='top_left'"
            )
