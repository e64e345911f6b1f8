"""The conditions of facts about attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..shapes.arithmetic import FLOAT8
from ..shapes.attention import AttentionProblem, ScaledAttentionProblem

Problem = AttentionProblem | ScaledAttentionProblem
Condition = Callable[[AttentionProblem], bool]

NO_LENGTHS = "no lengths"
_LARGEST_BIAS = 33_280  # queries and keys
_SOUND_VALUE_HEADS = (64, 128, 256)


def narrow_values(head: int, value_head: int) -> bool:
    """Return whether the heads of v are much smaller than those of q."""
    return head > 192 and value_head <= 128


def _no_band(problem: Problem) -> bool:
    if isinstance(problem, AttentionProblem):
        return problem.band.left is problem.band.right is None
    return not problem.causal


def _differ(problem: AttentionProblem) -> bool:
    heads = problem.sizes.head, problem.sizes.value_head
    return min(heads) >= 128 and heads[0] != heads[1] and heads != (192, 128)


def _loose_statistics(problem: AttentionProblem) -> bool:
    stats = problem.saved_stats
    return stats is not None and not problem.packed and "nchw" not in stats.layouts


def _is_shifted(problem: AttentionProblem) -> bool:
    return problem.band.corner == "bottom_right" and problem.band.right is not None


# Conditions on contents, which the host does not read, are taken to be met.
_OF_HALF_PRECISION: dict[str, Condition] = {
    "a cache of keys and values": lambda p: p.page_table is not None,
    "packed sequences": lambda p: p.packed,
    "an empty sequence": lambda p: p.packed,
    "a band from the bottom right corner": lambda p: p.band.corner == "bottom_right",
    "dropout": lambda p: p.dropout > 0,
    "a window that is not causal": lambda p: p.band.left is not None and p.band.right != 0,
    "a gradient of the bias": lambda p: p.dbias is not None,
    NO_LENGTHS: lambda p: p.lengths_kv is None and not p.packed,
    "sizes that are not multiples of 64, or lengths": lambda p: (
        p.lengths_kv is not None or bool(p.sizes.queries % 64 or p.sizes.keys % 64)
    ),
    "statistics that are not packed": _loose_statistics,
    "a gradient of the sink": lambda _: False,
    "a scale that is not positive": lambda p: p.scale <= 0,
    "a shifted diagonal": _is_shifted,
    "a shifted diagonal or a window": lambda p: _is_shifted(p) or p.band.left is not None,
    "a causal mask": lambda p: p.band.right is not None,
    "a bias or dropout": lambda p: p.bias is not None or bool(p.dropout),
    "no given lengths of keys": lambda p: p.lengths_kv is None,
    "grouped heads": lambda p: p.sizes.heads != p.sizes.kv_heads,
    "heads of q above 192 and of v up to 128": lambda p: narrow_values(p.sizes.head, p.sizes.value_head),
    "heads of q and v of 128 or more that differ, other than 192 and 128": _differ,
}
_OF_ALL: dict[str, Callable[[Problem], bool]] = {
    "float16 or bfloat16": lambda p: p.q.dtype in ("float16", "bfloat16"),
    "float32": lambda p: p.q.dtype == "float32",
    "no FP8": lambda p: p.q.dtype not in FLOAT8,
    "FP8": lambda p: p.q.dtype in FLOAT8,
    "MXFP8": lambda _: False,
    "current scaling": lambda p: p.q.dtype in FLOAT8,
    "a bfloat16 result": lambda p: p.y is not None and p.y.dtype == "bfloat16",
    "amax, and queries that are not a multiple of 128": lambda p: (
        getattr(p, "amax", None) is not None and p.sizes.queries % 128 != 0
    ),
    "no band": _no_band,
    "one query": lambda p: p.sizes.queries == 1,
    "more queries than keys": lambda p: p.sizes.queries > p.sizes.keys,
    "heads above 128": lambda p: p.q.shape[-1] > 128,
    "heads of q or v above 128": lambda p: max(p.q.shape[-1], p.v.shape[-1]) > 128,
    "one key": lambda p: p.sizes.keys == 1,
    "one query, one head and one sequence": lambda p: p.sizes.queries == p.sizes.heads == p.sizes.batch == 1,
    "different numbers of queries and keys": lambda p: p.sizes.queries != p.sizes.keys,
    "more than 1024 keys": lambda p: p.sizes.keys > 1024,
    "4096 or more keys": lambda p: p.sizes.keys >= 4096,
    "keys modulo 128 are 64": lambda p: p.sizes.keys % 128 == 64,
    "keys that are not a multiple of 128": lambda p: p.sizes.keys % 128 != 0,
    "33,280 queries and keys": lambda p: min(p.sizes.queries, p.sizes.keys) >= _LARGEST_BIAS,
    "heads of v that are not 64, 128 or 256": lambda p: p.sizes.value_head not in _SOUND_VALUE_HEADS,
    "large queries and keys": lambda _: True,
    "strongly negative scores": lambda _: True,
    "a CUDA graph": lambda _: True,
}


def _of_half_precision(condition: Condition) -> Callable[[Problem], bool]:
    return lambda problem: isinstance(problem, AttentionProblem) and condition(problem)


CONDITIONS: Mapping[str, Callable[[Any], bool]] = {
    **{name: _of_half_precision(condition) for name, condition in _OF_HALF_PRECISION.items()},
    **_OF_ALL,
}
"""By name. Conditions on contents, which the host does not read, are taken to be met."""
