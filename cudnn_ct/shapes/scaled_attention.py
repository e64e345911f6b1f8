"""Attention of float8 operands: results, problems, and the shapes and dtypes that it accepts."""

from __future__ import annotations

import math
from typing import Any, Generic, NamedTuple

from ..dtypes import as_dtype
from ..errors import NotSupportedError
from .attention import AttentionCore, attention_band
from .attention_rules import attention_scale, check_head_count, check_head_size, given_or, like_axes
from .checks import Outs, Specs, expect_shape, slots_of
from .epilogue import FLOAT8, WITHOUT_AMAX, check_dtype, scales_of
from .layer import problem_class
from .parse import as_bool
from .specs import T, TensorSpec

# Dtypes of a result. cuDNN 9.28 has engines for half precision on GPUs of compute capability 10.x alone.
RESULTS = (*FLOAT8, "bfloat16", "float16")

HEAD_MULTIPLE = 16  # cuDNN's kernels load 16 bytes of a head at once
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
        """The sizes of the operands."""
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
    _check_dtypes(q, k, v)
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


def _check_dtypes(q: TensorSpec, k: TensorSpec, v: TensorSpec) -> None:
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
        check_head_size(name, size, HEAD_MULTIPLE)
        if size > MAX_HEAD[name]:
            raise NotSupportedError(
                f"the last axis of {name} is too long: got {size}, expected at most {MAX_HEAD[name]}; "
                "attention of float8 was reported wrong for 256 (cudnn-frontend issue 981)"
            )


def _result_dtype(dtype: str, out_dtype: Any, out: TensorSpec | None) -> str:
    name = as_dtype(out_dtype).name if out_dtype is not None else out.dtype if out is not None else dtype
    if name not in RESULTS:
        raise NotSupportedError(
            f"the result has an unsupported dtype: got {name}, expected {', '.join(RESULTS)}; convert it "
            "afterwards"
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
