"""The conditions of facts about attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..shapes.attention import AttentionProblem
from ..shapes.epilogue import FLOAT8
from ..shapes.scaled_attention import ScaledAttentionProblem

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
    "a cache of keys and values": lambda problem: problem.page_table is not None,
    "packed sequences": lambda problem: problem.packed,
    "an empty sequence": lambda problem: problem.packed,
    "a band from the bottom right corner": lambda problem: problem.band.corner == "bottom_right",
    "dropout": lambda problem: problem.dropout > 0,
    "a window that is not causal": lambda problem: problem.band.left is not None and problem.band.right != 0,
    "a gradient of the bias": lambda problem: problem.dbias is not None,
    NO_LENGTHS: lambda problem: problem.lengths_kv is None and not problem.packed,
    "sizes that are not multiples of 64, or lengths": lambda problem: (
        problem.lengths_kv is not None or bool(problem.sizes.queries % 64 or problem.sizes.keys % 64)
    ),
    "statistics that are not packed": _loose_statistics,
    "a gradient of the sink": lambda _: False,
    "a scale that is not positive": lambda problem: problem.scale <= 0,
    "a shifted diagonal": _is_shifted,
    "a shifted diagonal or a window": lambda problem: _is_shifted(problem) or problem.band.left is not None,
    "a causal mask": lambda problem: problem.band.right is not None,
    "a bias or dropout": lambda problem: problem.bias is not None or bool(problem.dropout),
    "no given lengths of keys": lambda problem: problem.lengths_kv is None,
    "grouped heads": lambda problem: problem.sizes.heads != problem.sizes.kv_heads,
    "heads of q above 192 and of v up to 128": lambda problem: narrow_values(
        problem.sizes.head, problem.sizes.value_head
    ),
}
_OF_ALL: dict[str, Callable[[Problem], bool]] = {
    "float16 or bfloat16": lambda problem: problem.q.dtype in ("float16", "bfloat16"),
    "float32": lambda problem: problem.q.dtype == "float32",
    "no FP8": lambda problem: problem.q.dtype not in FLOAT8,
    "FP8": lambda problem: problem.q.dtype in FLOAT8,
    "MXFP8": lambda _: False,
    "current scaling": lambda problem: problem.q.dtype in FLOAT8,
    "a bfloat16 result": lambda problem: problem.y is not None and problem.y.dtype == "bfloat16",
    "amax, and queries that are not a multiple of 128": lambda problem: (
        getattr(problem, "amax", None) is not None and problem.sizes.queries % 128 != 0
    ),
    "no band": _no_band,
    "one query": lambda problem: problem.sizes.queries == 1,
    "more queries than keys": lambda problem: problem.sizes.queries > problem.sizes.keys,
    "heads above 128": lambda problem: problem.q.shape[-1] > 128,
    "heads of q or v above 128": lambda problem: max(problem.q.shape[-1], problem.v.shape[-1]) > 128,
    "one key": lambda problem: problem.sizes.keys == 1,
    "one query, one head and one sequence": lambda problem: (
        problem.sizes.queries == problem.sizes.heads == problem.sizes.batch == 1
    ),
    "different numbers of queries and keys": lambda problem: problem.sizes.queries != problem.sizes.keys,
    "more than 1024 keys": lambda problem: problem.sizes.keys > 1024,
    "4096 or more keys": lambda problem: problem.sizes.keys >= 4096,
    "keys modulo 128 are 64": lambda problem: problem.sizes.keys % 128 == 64,
    "keys that are not a multiple of 128": lambda problem: problem.sizes.keys % 128 != 0,
    "33,280 queries and keys": lambda problem: (
        min(problem.sizes.queries, problem.sizes.keys) >= _LARGEST_BIAS
    ),
    "heads of v that are not 64, 128 or 256": lambda problem: (
        problem.sizes.value_head not in _SOUND_VALUE_HEADS
    ),
    "large queries and keys": lambda _: True,
    "strongly negative scores": lambda _: True,
    "a CUDA graph": lambda _: True,
}


def _of_half_precision(condition: Condition) -> Callable[[Problem], bool]:
    return lambda problem: isinstance(problem, AttentionProblem) and condition(problem)


CONDITIONS: Mapping[str, Callable[[Any], bool]] = {
    **{name: _of_half_precision(condition) for name, condition in _OF_HALF_PRECISION.items()},
    "heads of q and v of 128 or more that differ, other than 192 and 128": _of_half_precision(_differ),
    **_OF_ALL,
}
"""By name. Conditions on contents, which the host does not read, are taken to be met."""
