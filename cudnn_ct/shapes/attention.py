"""Scaled dot product attention: results, masks and problems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Generic, Literal, NamedTuple

from .layer import problem_class
from .parse import as_bool, as_choice, as_int, as_list
from .specs import INT_MAX, T, TensorSpec

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
    """Return the band of the arguments ``causal`` and ``window``."""
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
        """Whether the sequences are packed."""
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
