"""Scaled dot product attention: results, masks and problems, and all rules of that of float8 operands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Generic, Literal, NamedTuple

from ..dtypes import as_dtype
from ..errors import NotSupportedError
from .arithmetic import FLOAT8, WITHOUT_AMAX, check_dtype, scales_of
from .checks import as_bool, as_choice, as_float, as_int, as_list, expect_shape, result_spec, slots_of
from .specs import INT_MAX, Outs, Shape, Specs, T, TensorSpec, problem_class, strides_in_order

Corner = Literal["top_left", "bottom_right"]

HEAD_MULTIPLE = 8  # cuDNN's kernels load 16 bytes of a head at once


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
    """The keys that a query attends to: ``left`` before its place to ``right`` behind it; None: no limit."""

    left: int | None = None
    right: int | None = None
    corner: Corner = "top_left"  # query 0 is at key 0; "bottom_right": the last query at the last key

    def shift(self, queries: int, keys: int) -> int:
        """Return the place of the first query among the keys."""
        return keys - queries if self.corner == "bottom_right" else 0


def attention_band(causal: Any, window: Any) -> Band:
    corner: Corner = "top_left"
    if isinstance(causal, str) or hasattr(causal, "name"):
        name = as_choice(causal, ("top_left", "bottom_right"), "causal")
        corner, limited = ("top_left" if name == "top_left" else "bottom_right"), True
    else:
        limited = as_bool(causal, "causal")
    left, right = _window(window)
    if limited:
        right = 0 if right is None else min(right, 0)
    return Band(left, right, corner)


def _window(window: Any) -> tuple[int | None, int | None]:
    window = as_list(window)
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


@problem_class(
    lambda self: "gradient of attention" if self.dy else "attention", "y stats dq dk dv dbias", "longest"
)
class AttentionProblem(NamedTuple):
    """Attention, or its gradient if ``dy`` is set; specs in the order of a run's pointers, or None."""

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
    page_table_v: TensorSpec | None  # if v has other pages than k
    # Offsets of packed sequences, in elements of a tensor: q, k, v and y have the axes (tokens, heads, D).
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
    longest: tuple[int, int]  # upper bounds of the lengths of packed queries and keys
    deterministic: bool
    aligned: bool

    @property
    def random(self) -> bool:
        """Whether engines may compute different numbers, because they draw random ones."""
        return self.dropout > 0

    @property
    def packed(self) -> bool:
        return self.starts_q is not None

    @property
    def sizes(self) -> AttentionCore:
        """The sizes of the operands; those of packed sequences are upper bounds."""
        if self.starts_q is not None and len(self.q.shape) == 3:
            batch = self.starts_q.shape[0] - 1
            (_, heads, head), (_, kv_heads, value_head) = self.q.shape, self.v.shape
            return AttentionCore(batch, heads, kv_heads, *self.longest, head, value_head)
        batch, heads, queries, head = self.q.shape
        _, kv_heads, keys, value_head = self.v.shape
        if self.page_table is not None:
            keys *= math.prod(self.page_table.shape[1:])  # (B, pages), or (B, 1, pages, 1) in a graph
        return AttentionCore(batch, heads, kv_heads, queries, keys, head, value_head)


def like_axes(shape: Shape, like: TensorSpec) -> TensorSpec:
    """Return a dense spec whose axes lie in memory in the order of another tensor's, the last one innermost.

    Heads that lie between the tokens, as in (B, S, H, D) memory, stay there.
    """
    last = len(shape) - 1
    order = sorted(range(last), key=lambda axis: (-like.strides[axis], axis))
    return TensorSpec(tuple(shape), strides_in_order(shape, (*order, last)), like.dtype)


def attention_scale(scale: Any, head: int) -> float:
    """Return the factor of the scores; by default ``1 / sqrt(D)``."""
    number = 1 / math.sqrt(max(head, 1)) if scale is None else as_float(scale, "scale")
    if not math.isfinite(number):
        raise ValueError(f"scale must be finite: got {number}")
    return number


def check_head_count(heads: int, kv_heads: int, hint: str = "") -> None:
    """Raise unless the heads of k divide those of q."""
    if heads % max(kv_heads, 1) or (heads and not kv_heads):
        raise ValueError(
            f"k has the wrong number of heads: got {kv_heads}, expected a divisor of {heads}, the number of "
            f"heads of q{hint}"
        )


def check_head_size(name: str, size: int, multiple: int) -> None:
    """Raise unless the heads of an operand have a length that kernels load."""
    if size % multiple or not size:
        raise NotSupportedError(
            f"the last axis of {name} is not a multiple of {multiple}: got {size}; pad the heads with zeros "
            "and pass scale"
        )


def given_or(out: TensorSpec | None, spec: TensorSpec, name: str) -> TensorSpec:
    """Return the spec of a result: that of ``out``, which must fit, or the default."""
    return spec if out is None else result_spec(spec.shape, spec, out=out, name=name)


# --- attention of float8 operands --------------------------------------------------------------------------

# Dtypes of a result. cuDNN 9.28 has engines for half precision on GPUs of compute capability 10.x alone.
FLOAT8_RESULTS = (*FLOAT8, "bfloat16", "float16")

FLOAT8_HEAD_MULTIPLE = 16  # cuDNN's kernels load 16 bytes of a head at once
MAX_HEAD = {"q": 192, "v": 128}  # the longest that nvidia-cudnn-frontend tests

# Names of the scales, in the order of a run's pointers.
SCALES = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")

LENGTHS = ("lengths_q", "lengths_kv")

# Default of scale_s. The weights are at most 1, and a sixteenth of the range of float8 is left above them.
WEIGHT_SCALE = {"float8_e4m3": 32.0, "float8_e5m2": 8192.0}


class ScaledAttentionResult(NamedTuple, Generic[T]):
    """Result of attention of float8 operands.

    ``stats`` is ``log(sum(exp(scores)))`` of each query, float32. ``amax`` is the largest magnitude of the
    result before ``scale_o``, float32. Each is None if it was not requested.
    """

    y: T
    stats: T | None
    amax: T | None


@problem_class("attention of float8", "y stats amax")
class ScaledAttentionProblem(NamedTuple):
    """Attention of float8 operands, in the order of a run's pointers; those that a call lacks are None."""

    q: TensorSpec
    k: TensorSpec
    v: TensorSpec
    descale_q: TensorSpec | None
    descale_k: TensorSpec | None
    descale_v: TensorSpec | None
    descale_s: TensorSpec | None
    scale_s: TensorSpec | None
    scale_o: TensorSpec | None
    lengths_q: TensorSpec | None  # for kernels only: the queries of each sequence
    lengths_kv: TensorSpec | None  # the keys
    y: TensorSpec
    stats: TensorSpec | None
    amax: TensorSpec | None
    scale: float
    causal: bool
    aligned: bool = True

    @property
    def sizes(self) -> AttentionCore:
        batch, heads, queries, head = self.q.shape
        _, kv_heads, keys, value_head = self.v.shape
        return AttentionCore(batch, heads, kv_heads, queries, keys, head, value_head)


def scaled_attention_slots(out: Any, return_stats: Any, amax: Any) -> tuple[Any, ...]:
    """Return the array given for each result that exists in the order y, stats, amax, by :func:`slots_of`."""
    absent = {
        "y": "",
        "stats": "" if as_bool(return_stats, "return_stats") else "return_stats=False",
        "amax": "" if as_bool(amax, "amax") else WITHOUT_AMAX,
    }
    return slots_of(out, absent)


def scaled_attention_problem(
    specs: Specs,
    outs: Outs,
    return_stats: Any,
    amax: Any,
    scale: Any,
    causal: Any,
    out_dtype: Any,
    *,
    aligned: bool = True,
) -> ScaledAttentionProblem:
    """Validate attention of float8 operands; ``outs`` come from :func:`scaled_attention_slots`."""
    q, k, v = (specs[name] for name in "qkv")
    _check_float8(q, k, v)
    _check_shapes(q, k, v)
    scales = scales_of(specs, *SCALES)
    if (scales["scale_s"] is None) != (scales["descale_s"] is None):
        given = "scale_s" if scales["scale_s"] else "descale_s"
        raise ValueError(f"scale_s and descale_s belong together: got only {given}")
    y_out, *further = outs
    y = like_axes((*q.shape[:3], v.shape[3]), q)._replace(dtype=_result_dtype(q.dtype, out_dtype, y_out))
    optional: dict[str, TensorSpec | None] = {"stats": None, "amax": None}
    wanted = {"stats": (return_stats, q.shape[:3]), "amax": (amax, (1,))}
    for name, (is_wanted, shape) in wanted.items():
        if as_bool(is_wanted, "return_stats" if name == "stats" else name):
            optional[name] = given_or(further.pop(0), TensorSpec.packed(shape, "float32"), f"{name} of out")
    problem = ScaledAttentionProblem(
        q, k, v, **scales, **dict.fromkeys(LENGTHS), y=given_or(y_out, y, "out"), **optional,
        scale=attention_scale(scale, q.shape[3]),
        causal=_causal(causal, q.shape[2], v.shape[2]),
        aligned=aligned,
    )  # fmt: skip
    _check_support(problem)
    return problem


def _check_float8(q: TensorSpec, k: TensorSpec, v: TensorSpec) -> None:
    for name, spec in (("q", q), ("k", k), ("v", v)):
        check_dtype(name, spec, FLOAT8)
        if spec.dtype != q.dtype:
            raise TypeError(f"{name} has the wrong dtype: got {spec.dtype}, expected {q.dtype}, as q")


def _check_shapes(q: TensorSpec, k: TensorSpec, v: TensorSpec) -> None:
    for name, spec in (("q", q), ("k", k), ("v", v)):
        if len(spec.shape) != 4:
            raise ValueError(
                f"{name} has the wrong number of axes: got shape {spec.shape}, expected (B, H, S, D)"
            )
    batch, heads, _, head = q.shape
    _, kv_heads, keys, value_head = v.shape
    expect_shape(k, "k", (batch, kv_heads, keys, head))
    expect_shape(v, "v", (batch, kv_heads, keys, value_head))
    check_head_count(heads, kv_heads)
    for name, size in (("q", head), ("v", value_head)):
        check_head_size(name, size, FLOAT8_HEAD_MULTIPLE)
        if size > MAX_HEAD[name]:
            raise NotSupportedError(
                f"the last axis of {name} is too long: got {size}, expected at most {MAX_HEAD[name]}; "
                "attention of float8 was reported wrong for 256 (cudnn-frontend issue 981)"
            )


def _result_dtype(dtype: str, out_dtype: Any, out: TensorSpec | None) -> str:
    name = as_dtype(out_dtype).name if out_dtype is not None else out.dtype if out is not None else dtype
    if name not in FLOAT8_RESULTS:
        raise NotSupportedError(
            f"the result has an unsupported dtype: got {name}, expected {', '.join(FLOAT8_RESULTS)}; convert "
            "it afterwards"
        )
    return name


def _causal(causal: Any, queries: int, keys: int) -> bool:
    band = attention_band(causal, None)
    if band.corner == "bottom_right" and queries != keys:
        raise NotSupportedError(
            "attention of float8 supports bottom-right masks for as many queries as keys only: got "
            f"{queries} queries and {keys} keys; pass causal='top_left', or as many queries as keys"
        )
    return band.right is not None


def _check_support(problem: ScaledAttentionProblem) -> None:
    if problem.sizes.queries == 1:
        raise NotSupportedError(
            "cuDNN has no engine for attention of float8 with one query; repeat it and take the first row"
        )
    if not problem.scale > 0 or not math.isfinite(problem.scale):
        raise NotSupportedError(
            f"cuDNN computes NaN of masked scores if scale is not positive: got {problem.scale:g}"
        )
