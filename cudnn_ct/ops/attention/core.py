"""Problems of attention reduced to problems that cuDNN computes right.

Queries without keys and keys without queries are cut off, a band that excludes nothing is dropped, operands
that kernels cannot load are copied, and gradients with a reported defect get lengths or wider values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...dtypes import DTYPES
from ...facts import Target, ignores
from ...legal.attention_conditions import NO_LENGTHS, narrow_values
from ...legal.conditions import applying
from ...legal.subjects import subjects_of
from ...shapes.attention import HEAD_MULTIPLE, AttentionProblem, Band, like_axes
from ...shapes.attention_rules import OPTIONAL
from ...shapes.specs import TensorSpec

NARROW = "attention-narrow-values"  # the fact that wider values avoid

# The axes of queries and of keys in the operands of a batch.
_QUERY_AXES = dict.fromkeys(("dy", "q", "saved_y", "saved_stats", "bias", "y", "stats", "dq", "dbias"), 2)
_KEY_AXES = {"k": 2, "v": 2, "bias": 3, "dk": 2, "dv": 2, "dbias": 3}
_VALUES = ("dy", "v", "saved_y", "dv")
_HEADS = ("dy", "q", "k", "v", "saved_y", "y", "dq", "dk", "dv")
_RESULTS = ("y", "stats", "dq", "dk", "dv", "dbias")
_STATS = ("stats", "saved_stats")
# Packed tensors that share the offsets of another one of their shape.
_OFFSETS_OF = {"dq": "q", "dk": "k", "dv": "v", "dy": "saved_y"}
_LENGTHS = {*OPTIONAL} - {"bias", "seed", "offset"}


class Part(NamedTuple):
    """The part of an operand that cuDNN reads or writes."""

    name: str
    whole: TensorSpec  # the operand
    spec: TensorSpec  # the part
    offset: int  # bytes from the pointer of the operand to the part
    copy: TensorSpec | None  # what kernels read if they cannot load the part; further columns are zeros

    @property
    def written(self) -> bool:
        return self.name in _RESULTS


class Core(NamedTuple):
    """A reduced problem, and the parts of the operands in the order of a run's pointers."""

    problem: AttentionProblem
    parts: tuple[Part, ...]
    empty: bool  # no kernel runs
    cleared: bool  # rows of queries and keys that were cut off or lie behind the lengths may stay unwritten
    constants: dict[str, tuple[int, ...]]  # the lengths that the plan adds
    one_query: bool  # or none, by its length, in each sequence: engines read only the lengths of the keys


def core_of(problem: AttentionProblem, version: int) -> Core:
    """Return the problem that cuDNN computes instead, for a version of cuDNN."""
    rows, keys = _used(problem)
    names = [name for name, value in problem._asdict().items() if isinstance(value, TensorSpec)]
    parts = tuple(_part(name, getattr(problem, name), rows, keys, problem) for name in names)
    parts = _with_wide_values(_with_readable_bias(parts, problem, rows[1] - rows[0]), problem)
    parts = _with_shared_offsets(parts) if problem.packed else parts
    sizes = problem.sizes
    lengths = (rows[1] - rows[0], keys[1] - keys[0])
    empty = 0 in (sizes.batch, sizes.heads, *lengths)
    cut = lengths != (sizes.queries, sizes.keys)
    views: dict[str, Any] = {part.name: _view(part, problem) for part in parts}
    core = problem._replace(**views, band=_needed(problem, *lengths), aligned=True)
    core = core._replace(band=_simpler(core))
    constants: dict[str, tuple[int, ...]] = {}
    if problem.lengths_kv is None and not problem.packed and not empty and _needs_lengths(core, version):
        constants = {"lengths_q": (lengths[0],) * sizes.batch, "lengths_kv": (lengths[1],) * sizes.batch}
    elif problem.page_table is not None and problem.lengths_q is None:
        constants = {"lengths_q": (sizes.queries,) * sizes.batch}
    batch = TensorSpec.packed((sizes.batch, 1, 1, 1), "int32")
    added: dict[str, Any] = dict.fromkeys(constants, batch)
    core = core._replace(**added)
    padded = problem.lengths_kv is not None
    one_query = sizes.queries == 1 and padded and problem.lengths_q is not None and not empty
    return Core(core, parts, empty, cut or padded, constants, one_query)


def value_head(head: int, value_head: int, *, gradient: bool, packed: bool) -> int:
    """Return the columns of v, y and dy in a graph; those behind ``value_head`` are zeros."""
    # Values as wide as the keys avoid the fact `NARROW`, which is about the only engine.
    widens = gradient and packed and narrow_values(head, value_head) and not ignores(NARROW)
    return head if widens else value_head


def _needs_lengths(problem: AttentionProblem, version: int) -> bool:
    """Return whether the graph of a problem must mask the end of the keys although no lengths are given."""
    # The end of a tile of keys is not masked, and gradients are NaN for rows of very low statistics.
    (subject,) = subjects_of(problem)
    return any(NO_LENGTHS in fact.when for fact in applying("rewrite", subject, Target(version)))


# --- queries and keys that take part -----------------------------------------------------------------------


def _used(problem: AttentionProblem) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the ranges of queries that have keys, and of keys that have queries."""
    sizes, band = problem.sizes, problem.band
    queries, keys = (0, sizes.queries), (0, sizes.keys)
    if problem.packed or problem.lengths_kv is not None:
        return queries, keys  # they depend on the lengths
    shift = band.shift(sizes.queries, sizes.keys)
    # Query i has the keys from i + shift - left to i + shift + right.
    if band.right is not None:
        queries = (max(-shift - band.right, 0), sizes.queries)
        keys = (0, min(sizes.queries + shift + band.right, sizes.keys))
    if band.left is not None:
        queries = (queries[0], min(sizes.keys - shift + band.left, sizes.queries))
        keys = (max(shift - band.left, 0), keys[1])
    return _range(*queries), _range(*keys)


def _range(first: int, end: int) -> tuple[int, int]:
    return first, max(first, end)


def _needed(problem: AttentionProblem, queries: int, keys: int) -> Band:
    """Return the band for the queries and keys that take part, without bounds that exclude nothing."""
    left, right, corner = problem.band
    # The ranges are cut at the corner opposite to the band's, so its places stay the same.
    first, last = (queries - 1, keys - 1) if corner == "bottom_right" else (keys - 1, queries - 1)
    right = None if right is not None and right >= first else right
    left = None if left is not None and left >= last else left
    return Band(left, right, corner)


def _simpler(core: AttentionProblem) -> Band:
    """Return the band with the top left corner if both are the same."""
    sizes, band = core.sizes, core.band
    same = sizes.queries == sizes.keys and core.lengths_kv is None and not core.packed
    free = band.left is None and band.right is None
    return band._replace(corner="top_left") if same or free else band


# --- parts of operands -------------------------------------------------------------------------------------


def _part(
    name: str, whole: TensorSpec, rows: tuple[int, int], keys: tuple[int, int], problem: AttentionProblem
) -> Part:
    spec, elements = whole, 0
    if not problem.packed:
        spans = [(_QUERY_AXES.get(name), rows)]
        spans += [(_KEY_AXES.get(name), keys)] if problem.page_table is None else []
        for axis, (first, end) in spans:
            if axis is not None and not (name in ("bias", "dbias") and axis == 2 and whole.shape[2] == 1):
                shape = (*spec.shape[:axis], end - first, *spec.shape[axis + 1 :])
                spec, elements = spec._replace(shape=shape), elements + first * spec.strides[axis]
    spec = long_strides(spec)
    return Part(name, whole, spec, elements * DTYPES[spec.dtype].itemsize, _copy_of(name, spec))


def long_strides(spec: TensorSpec) -> TensorSpec:
    """Replace the strides of axes of length 1, which no element uses: kernels check them nevertheless."""
    reach = max([n * s for n, s in zip(spec.shape, spec.strides, strict=True) if n > 1], default=1)
    reach = -(-reach // HEAD_MULTIPLE) * HEAD_MULTIPLE
    last = len(spec.shape) - 1
    pairs = enumerate(zip(spec.shape, spec.strides, strict=True))
    return spec._replace(strides=tuple(s if n > 1 else 1 if i == last else reach for i, (n, s) in pairs))


def _copy_of(name: str, spec: TensorSpec) -> TensorSpec | None:
    """Return the spec of the copy that replaces an operand that kernels would read wrong, or None."""
    if 0 in spec.shape:
        return None
    if name in _HEADS:
        *outer, last = spec.strides
        loads = last == 1 and not any(step % HEAD_MULTIPLE for step in outer)
        return None if loads else long_strides(like_axes(spec.shape, spec))
    if name == "bias" and spec.shape[-1] > 1:
        return None if spec.strides[-1] == 1 else long_strides(like_axes(spec.shape, spec))
    # Statistics, dbias, which no engine writes in another order, and a bias of one key, whose heads engines
    # read as if they were adjacent.
    return None if "nchw" in spec.layouts else long_strides(TensorSpec.packed(spec.shape, spec.dtype))


def token_step(name: str, spec: TensorSpec, columns: int) -> int:
    """Return the elements between the tokens of a packed operand as kernels read it, or of its copy.

    The operand has this number of ``columns`` in the graph.
    """
    spec = long_strides(spec)
    return (_wider(spec, columns) or _copy_of(name, spec) or spec).strides[0]


def _wider(spec: TensorSpec, columns: int) -> TensorSpec | None:
    """Return the spec of a copy with more columns, or None if the tensor has that many."""
    if spec.shape[-1] == columns:
        return None
    return long_strides(like_axes((*spec.shape[:-1], columns), spec))


def _with_readable_bias(parts: tuple[Part, ...], problem: AttentionProblem, queries: int) -> tuple[Part, ...]:
    """Copy a bias of another dtype than q, and for a gradient one that all queries share."""
    # cuDNN computes wrong gradients with a shared one.

    def readable(part: Part) -> Part:
        spec = part.copy or part.spec
        shape = (*spec.shape[:2], queries if problem.dy else spec.shape[2], spec.shape[3])
        if 0 in spec.shape or (shape, problem.q.dtype) == (spec.shape, spec.dtype):
            return part
        return part._replace(copy=long_strides(TensorSpec.packed(shape, problem.q.dtype)))

    return tuple(readable(part) if part.name in ("bias", "dbias") else part for part in parts)


def _with_wide_values(parts: tuple[Part, ...], problem: AttentionProblem) -> tuple[Part, ...]:
    """Copy v, y and their gradients if the graph needs more columns than they have."""
    sizes, gradient = problem.sizes, problem.dy is not None
    columns = value_head(sizes.head, sizes.value_head, gradient=gradient, packed=problem.packed)
    return tuple(
        part._replace(copy=_wider(part.spec, columns) or part.copy)
        if part.name in _VALUES and 0 not in part.spec.shape
        else part
        for part in parts
    )


def _with_shared_offsets(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Copy packed tensors whose tokens have other strides than the tensor whose offsets they share."""
    used = {part.name: part.copy or part.spec for part in parts}
    found = []
    for part in parts:
        shared = used.get(_OFFSETS_OF.get(part.name, ""))
        differs = shared is not None and shared.strides[0] != used[part.name].strides[0]
        found.append(part._replace(copy=shared) if differs else part)
    return tuple(found)


def _view(part: Part, problem: AttentionProblem) -> TensorSpec:
    """Return the four-dimensional tensor of a graph for an operand."""
    spec = part.copy or part.spec
    if part.name in ("seed", "offset"):
        return TensorSpec.packed((1, 1, 1, 1), spec.dtype)
    if part.name in _LENGTHS:
        shape = (spec.shape[0], 1, *(spec.shape[1:] or (1,)), 1)
        return TensorSpec.packed(shape, spec.dtype)
    if not problem.packed:
        return spec if part.name not in _STATS else TensorSpec.packed((*spec.shape, 1), spec.dtype)
    sizes = problem.sizes
    length = sizes.keys if part.name in _KEY_AXES else sizes.queries
    token, head = spec.strides[:2]
    last = spec.shape[2] if len(spec.shape) == 3 else 1
    return TensorSpec(
        (sizes.batch, spec.shape[1], length, last), (length * token, head, token, 1), spec.dtype
    )
