"""Scaled dot product attention of float8 operands: graph, candidates, plans that add scales and copies."""

from __future__ import annotations

from typing import Any, Literal, Never

from ..._hints import UNSET, corrected
from ...algo_cache import CandidateSource
from ...array import DeviceArray
from ...context import Context
from ...errors import NotSupportedError
from ...graph.offline import target_of
from ...graph.operations import Graph, Tensor, node
from ...legal.conditions import applying
from ...legal.subjects import subjects_of
from ...plans.base import Candidate, Plan, tensors_of
from ...plans.elementwise import fill_plan
from ...plans.program import ALPHA, BETA, Program, Step, Steps, room_of
from ...plans.wrappers import on_copies
from ...shapes import attention as rules
from ...shapes.arithmetic import FLOAT8
from ...shapes.attention import ScaledAttentionProblem, ScaledAttentionResult, like_axes
from ...shapes.checks import as_bool
from ...shapes.specs import ALIGNMENT, Shape, TensorSpec, equivalent_strides, results_of
from ...typing import Algo, ArrayLike, DTypeLike, OutLike, StreamLike
from .._call import execute
from .._documented import documented
from .._graph_source import GraphSource, ReducedSource, select_engine, without_factors
from .._operands import present
from .._operation import Operation, Select
from .._state import DeviceNumbers, not_on_stream
from ..matmul.matmul import matmul
from .core import long_strides
from .graph import MASKED, SCALAR, NodeBuilder, transposed
from .source import FILLED

# --- graph -------------------------------------------------------------------------------------------------


class _Builder(NodeBuilder):
    """The graph of a problem that has all scales and amax; it has the operands of the problem.

    The nodes are made one after another; each reads the result of the last.
    """

    def __init__(self, problem: ScaledAttentionProblem) -> None:
        super().__init__()
        self._problem = problem
        sizes = problem.sizes
        self._scores: Shape = (sizes.batch, sizes.heads, sizes.queries, sizes.keys)
        self._rows: Shape = (sizes.batch, sizes.heads, sizes.queries, 1)
        self._given = {name: self._operand(name) for name in tensors_of(problem)}

    def graph(self) -> Graph:
        given = self._given
        scores = self._virtual(self._scores)
        self._matmul(given["q"], transposed(given["k"]), scores)
        scores = self._pointwise("mul", scores, self._value(self._problem.scale))
        for name in ("descale_q", "descale_k"):
            scores = self._pointwise("mul", scores, given[name])
        if self._problem.lengths_q:
            scores = self._within(scores, given["lengths_q"], given["lengths_kv"])
        if self._problem.causal:
            row, column = self._indices(scores)
            scores = self._select(scores, self._pointwise("cmp_ge", row, column, compute="bool"))
        weights, total = self._exponentials(scores, self._rows, lambda: given.get("stats"))
        weights = self._pointwise("div", weights, total)
        # Its memory is not read: it says nothing about scale_s, because kernels scale weights of at most 1.
        self._reduce("amax", weights, Tensor(self._next(), TensorSpec.packed(SCALAR), scratch=True))
        rounded = self._virtual(self._scores, self._problem.q.dtype)
        self._pointwise("mul", weights, given["scale_s"], y=rounded)
        result = self._virtual(given["y"].spec.shape)
        self._matmul(rounded, given["v"], result)
        for name in ("descale_s", "descale_v"):
            result = self._pointwise("mul", result, given[name])
        self._pointwise("mul", result, given["scale_o"], y=given["y"])
        self._reduce("amax", result, given["amax"])
        return Graph(tuple(self.nodes), tuple(given.values()))

    # --- tensors ---------------------------------------------------------------------------------------

    def _operand(self, name: str) -> Tensor:
        spec: TensorSpec = getattr(self._problem, name)
        if name == "stats":
            spec = TensorSpec.packed((*spec.shape, 1), spec.dtype)
        elif len(spec.shape) < 4:
            spec = TensorSpec.packed((spec.size, 1, 1, 1), spec.dtype)
        return Tensor(self._next(), spec)

    def _matmul(self, a: Tensor, b: Tensor, c: Tensor) -> None:
        self.nodes.append(node("matmul", comp_type="float32", adesc=a, bdesc=b, cdesc=c))


# --- candidates --------------------------------------------------------------------------------------------

COUNTS_OTHER_ROWS = "attention-fp8-amax-rows"

ENGINES = GraphSource(lambda problem: _Builder(problem).graph(), handled=(COUNTS_OTHER_ROWS,))
FLOATS_IN_ALIGNMENT = ALIGNMENT // 4

# The numbers on the device that stand for missing scales, and their key in `Context.plans`.
_DEFAULTS = (1.0, *rules.WEIGHT_SCALE.values(), *(1 / scale for scale in rules.WEIGHT_SCALE.values()))
_KEY = object()


def completed(problem: ScaledAttentionProblem) -> ScaledAttentionProblem:
    """Return the problem of the graph: with all scales and amax, on operands that kernels can load."""
    # It has lengths where a kernel would count other rows than queries in amax.
    one = TensorSpec.packed((1,), "float32")
    stats = None if problem.stats is None else TensorSpec.packed(problem.stats.shape, "float32")
    changed: dict[str, Any] = dict.fromkeys((*rules.SCALES, "amax"), one)
    (subject,) = subjects_of(problem)
    if any(fact.name == COUNTS_OTHER_ROWS for fact in applying("rewrite", subject, target_of(None))):
        changed |= dict.fromkeys(rules.LENGTHS, TensorSpec.packed((problem.sizes.batch,), "int32"))
    changed |= {name: _loadable(getattr(problem, name)) for name in ("q", "k", "v", "y")}
    return problem._replace(**changed, stats=stats, aligned=True)


def _planned(
    engines: CandidateSource, problem: ScaledAttentionProblem, candidate: Candidate, context: Context
) -> Plan:
    (subject,) = subjects_of(problem)
    for fact in applying("first_choice", subject, target_of(context)):  # others are known to be wrong
        (stage, *_) = ENGINES.heuristics(completed(problem))
        first = stage(context)[0]
        if not first.rejected and first.algorithm != candidate.algorithm:
            wrong = f"{fact.reason}; the first choice is {first.algorithm}"
            raise NotSupportedError(f"{candidate} is rejected for this {problem}: {wrong}")
    made = _complete(engines.plan(completed(problem), candidate, context), problem)
    moves = _moves(problem)
    if problem.aligned and not any(copy for _, copy in moves):
        return made
    return on_copies(made, moves, outputs=len(results_of(problem)), align=not problem.aligned)


def _with_room(row: Candidate, problem: ScaledAttentionProblem) -> Candidate:
    """Add the workspace of amax, of lengths and of copies."""
    copies = [copy or spec for spec, copy in _moves(problem) if copy or not problem.aligned]
    room = room_of([*copies, *_temporaries(problem).values()])
    return row._replace(workspace=row.workspace + room)


SOURCE = ReducedSource(ENGINES, completed, _planned, _with_room, comparable=False)
"""The engines of the graph of the problem that `completed` returns."""


# --- operands ----------------------------------------------------------------------------------------------


def _loadable(spec: TensorSpec) -> TensorSpec:
    """Return a spec that kernels can load: contiguous heads, whose strides are multiples of 16."""
    *outer, last = spec.strides
    loads = (
        last == 1
        and not any(step % rules.FLOAT8_HEAD_MULTIPLE for step in outer)
        and not spec.overlaps_itself
    )
    return long_strides(spec if loads else like_axes(spec.shape, spec))


def _moves(problem: ScaledAttentionProblem) -> list[tuple[TensorSpec, TensorSpec | None]]:
    """Return the operands, each with the spec of its copy if kernels cannot load it."""
    core = completed(problem)
    moves: list[tuple[TensorSpec, TensorSpec | None]] = []
    for name, spec in tensors_of(problem).items():
        copy: TensorSpec = getattr(core, name)
        same = copy.shape == spec.shape and equivalent_strides(spec.shape, spec.strides, copy.strides)
        moves.append((spec, None if same or copy.size == 1 else copy))
    return moves


# --- plans -------------------------------------------------------------------------------------------------


def _defaults_of(context: Context) -> DeviceNumbers:
    """Return the array of the defaults, each of which is aligned; the context has one."""
    found: DeviceNumbers | None = context.plans.get(_KEY)
    if found is None:
        if context.capturing:
            raise not_on_stream("scales")
        padding = (0.0,) * (FLOATS_IN_ALIGNMENT - 1)
        numbers = [number for value in _DEFAULTS for number in (value, *padding)]
        found = context.plans[_KEY] = DeviceNumbers(context.device, numbers, "scales", "float32")
    return found


def _complete(inner: Plan, problem: ScaledAttentionProblem) -> Program:
    """Return a plan of a graph, with memory for what the graph has and a call lacks."""
    # cuDNN takes the larger one of amax and the contents of its memory, so that is zero before a run.
    core, given = completed(problem), list(tensors_of(problem))
    weight = rules.WEIGHT_SCALE[problem.q.dtype]
    values = dict.fromkeys(rules.SCALES, 1.0) | {"scale_s": weight, "descale_s": 1 / weight}
    temporaries = _temporaries(problem)
    known = [*given, *temporaries]
    constants = len(known)  # the place of the defaults
    places = tuple(known.index(name) if name in known else constants for name in tensors_of(core))
    offsets = tuple(
        ALIGNMENT * _DEFAULTS.index(values[name]) if place == constants else 0
        for name, place in zip(tensors_of(core), places, strict=True)
    )
    filled = dict(zip(rules.LENGTHS, (problem.sizes.queries, problem.sizes.keys), strict=True))
    filled |= {"amax": 0} if problem.amax else {}
    steps = [
        Step(fill_plan(getattr(core, name), value), (known.index(name),))
        for name, value in filled.items()
        if name in known
    ]
    steps.append(Step(inner, places, ALPHA, BETA, offsets))
    needed = [_defaults_of] if constants in places else []
    return Program(Steps(list(temporaries.values()), steps), constants=needed, about="{}", main=inner)


def _temporaries(problem: ScaledAttentionProblem) -> dict[str, TensorSpec]:
    """Return the memory that a plan adds to that of a call: lengths, and amax if it is not returned."""
    known = (*rules.SCALES, *tensors_of(problem))
    return {name: spec for name, spec in tensors_of(completed(problem)).items() if name not in known}


def fills_of(problem: ScaledAttentionProblem) -> Program:
    """Return the plan of the results of queries without keys: zeros, and -inf in the statistics."""
    values = {"y": 0, "stats": MASKED, "amax": 0.0}
    steps = [
        # The zero of float8 has the bits of int8's.
        Step(fill_plan(spec._replace(dtype="int8") if spec.dtype in FLOAT8 else spec, values[name]), (place,))
        for place, (name, spec) in enumerate(tensors_of(problem).items())
        if name in values and spec.size
    ]
    return Program(Steps((), steps), about=FILLED)


# --- the operation -----------------------------------------------------------------------------------------


@documented(matmul)
def scaled_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *more: Never,
    descale_q: ArrayLike | None = None,
    descale_k: ArrayLike | None = None,
    descale_v: ArrayLike | None = None,
    descale_s: ArrayLike | None = None,
    scale_s: ArrayLike | None = None,
    scale_o: ArrayLike | None = None,
    scale: float | None = None,
    causal: bool | Literal["top_left", "bottom_right"] = False,
    return_stats: bool = False,
    amax: bool = False,
    out_dtype: DTypeLike | None = None,
    algo: Algo | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> ScaledAttentionResult[DeviceArray]:
    """Compute scaled dot product attention of float8 operands, with scales.

    As a formula, where round() rounds to the dtype of q ::

        scores = scale * descale_q * descale_k * (q @ k.T)        w = exp(scores - max(scores))
        o = descale_s * descale_v * (round(scale_s * w) @ v) / sum(w)        y = scale_o * o

    The maximum and the sum of a query run over the keys that it attends to. ``amax`` is the largest magnitude
    of o, from which the ``scale_o`` of the next step follows. With fewer heads in k and v than in q, each key
    head serves ``H / Hkv`` adjacent heads of q.

    Parameters
    ----------
    q : device array, shape (B, H, Sq, D), float8_e4m3 | float8_e5m2
        D is a multiple of 16, at most 192, and Sq at least 2. Operands whose heads are not contiguous and
        16-byte aligned are copied.
    k : device array, shape (B, Hkv, Skv, D), dtype of q
    v : device array, shape (B, Hkv, Skv, Dv), dtype of q
        Dv is a multiple of 16, at most 128.
    descale_q, descale_k, descale_v, scale_o : device array of one element, float32, optional
        Factors, which are read on the device; 1 by default.
    scale_s, descale_s : device array of one element, float32, optional
        Factor of the weights, which are from 0 to 1, before they are rounded, and its inverse. By default,
        ``scale_s`` is 32 for float8_e4m3 and 8192 for float8_e5m2.
    scale : float, optional
        Positive factor of the scores, by default ``1 / sqrt(D)``.
    causal : bool, "top_left" or "bottom_right"
        Each query attends to the keys up to its own place, counted from the first query and key. The last
        query and key (``"bottom_right"``) are possible for Sq = Skv only, where both are the same.
    return_stats : bool
        Whether to return the logarithms of the sums of exponentials.
    amax : bool
        Whether to return the largest magnitude.
    out_dtype : dtype, optional
        float8_e4m3 or float8_e5m2; that of q by default. bfloat16 and float16 need compute capability 10.x.

    Returns
    -------
    ScaledAttentionResult
        ``y``, DeviceArray of shape (B, H, Sq, Dv) with the axes in the memory order of q; ``stats``, float32
        of shape (B, H, Sq), or None; ``amax``, float32 of shape (1,), or None.

    Raises
    ------
    NotSupportedError
        cuDNN has no engine: a GPU before Hopper, one query, or D or a dtype of the result that it does not
        support. docs/attention.md lists them.

    Notes
    -----
    A graph, ``cudnnBackendExecute``: one kernel. Needs cuDNN 9.14. Gradients and masks other than ``causal``
    are not supported. The kernel works on tiles of keys, and rounds the weights of a tile relative to the
    maximum of the keys so far. Values beyond the range of float8 are saturated or become NaN or infinite as
    cuDNN's conversion does; choose ``scale_o`` so that there are none.

    Examples
    --------
    >>> q = ct.zeros((1, 1, 2, 16), "float8_e4m3")
    >>> v = ct.asarray([[[[1] * 16, [3] * 16]]], "float8_e4m3")
    >>> y, _, amax = ct.scaled_attention(q, q, v, amax=True)
    >>> y.numpy()[0, 0, :, 0].astype("float32"), float(amax.numpy()[0])
    (array([2., 2.], dtype=float32), 2.0)
    """
    if more or unknown or q is UNSET or k is UNSET or v is UNSET:
        return corrected(scaled_attention, locals())
    factors = present(descale_q=descale_q, descale_k=descale_k, descale_v=descale_v)
    factors |= present(descale_s=descale_s, scale_s=scale_s, scale_o=scale_o)
    given = {"q": q, "k": k, "v": v} | factors
    outs = rules.scaled_attention_slots(out, return_stats, amax)
    with_stats, with_amax = as_bool(return_stats, "return_stats"), as_bool(amax, "amax")
    operation = _WITH_STATS if with_stats else _WITHOUT_STATS
    params = (with_stats, with_amax, scale, causal, out_dtype, algo, deterministic, workspace_limit)
    y, *further = execute(operation, tuple(given), tuple(given.values()), params, outs=outs, stream=stream)
    stats = further.pop(0) if with_stats else None
    return ScaledAttentionResult(y, stats, further[0] if with_amax else None)


def _select(problem: ScaledAttentionProblem, params: tuple[Any, ...]) -> Select:
    sizes = problem.sizes
    empty = 0 in (sizes.batch, sizes.heads, sizes.queries, sizes.keys)
    return select_engine(problem, params, SOURCE, fills_of(problem) if empty else None)


_NAME, _PROBLEM = "attention of float8", without_factors(rules.scaled_attention_problem)
_WITH_STATS = Operation(_NAME, _PROBLEM, select=_select, written=("out", "stats of out", "amax of out"))
_WITHOUT_STATS = Operation(_NAME, _PROBLEM, select=_select, written=("out", "amax of out"))
