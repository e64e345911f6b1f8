"""Scaled dot product attention and its gradient; zeros behind the lengths of padded sequences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, Never

from ... import algo_cache
from ..._config import config
from ..._hints import UNSET, corrected
from ...array import DeviceArray
from ...array_creation import as_operand
from ...plans.base import SelectedPlan
from ...shapes import attention_rules as rules
from ...shapes.attention import AttentionGradients, AttentionProblem, AttentionResult
from ...shapes.checks import as_bool, result_slots
from ...shapes.specs import Outs, Specs
from ...typing import Algo, ArrayLike, OutLike, StreamLike
from .._call import execute
from .._documented import documented
from .._graph_source import AlgoArguments
from .._implementations import Implementation, by_engines
from .._operands import stream_of
from .._operation import Operation, Select
from .core import core_of
from .operands import NO_LENGTHS, gather, is_in_host, uploaded
from .source import SOURCE, clearing_plan, fills_of

_QKV: tuple[str, ...] = ("q", "k", "v")
_GRADIENT_OPERANDS: tuple[str, ...] = ("dy", *_QKV, "y", "stats")
_GRADIENTS = ("out", "dk of out", "dv of out", "dbias of out")


@documented()
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *more: Never,
    scale: float | None = None,
    causal: bool | Literal["top_left", "bottom_right"] = False,
    window: tuple[int | None, int | None] | None = None,
    bias: ArrayLike | None = None,
    lengths_q: ArrayLike | Sequence[int] | None = None,
    lengths_kv: ArrayLike | Sequence[int] | None = None,
    offsets_q: Sequence[int] | None = None,
    offsets_kv: Sequence[int] | None = None,
    page_table: ArrayLike | None = None,
    dropout: float = 0.0,
    seed: int | ArrayLike | None = None,
    offset: int | ArrayLike | None = None,
    return_stats: bool = False,
    algo: Algo | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    strict: bool = False,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> AttentionResult[DeviceArray]:
    """Compute scaled dot product attention: ``y = softmax(scale * q @ k.T + bias) @ v``.

    The softmax of a query runs over the keys that it attends to. With fewer heads in k and v than in q, each
    key head serves ``H / Hkv`` adjacent heads of q (grouped and multi-query attention).

    Parameters
    ----------
    q : device array, shape (B, H, Sq, D), float16 | bfloat16 | float32
        D is a multiple of 8; cuDNN supports up to 256 on Hopper GPUs. Any strides: (B, S, H, D) memory is
        passed as its transposed view. Operands whose heads are not contiguous and 16-byte aligned are copied.
    k : device array, shape (B, Hkv, Skv, D), dtype of q
        With ``page_table``, the blocks of a cache: (blocks, Hkv, block length, D).
    v : device array, shape (B, Hkv, Skv, Dv), dtype of q
    scale : float, optional
        Positive factor of the scores, by default ``1 / sqrt(D)``.
    causal : bool, "top_left" or "bottom_right"
        Each query attends to the keys up to its own place. ``"top_left"``, which True means as in PyTorch,
        aligns the first query with the first key, ``"bottom_right"`` the last query with the last key.
    window : (left, right), optional
        Each query attends to ``left`` keys before its place and ``right`` keys behind it; None or -1 is no
        limit. ``causal`` decides the corner that places are counted from, and limits ``right`` to 0.
    bias : device array, shape (B, H, Sq, Skv), float16 | bfloat16 | float32 | bool, optional
        Added to the scaled scores. Each of the first three axes may have length 1. -inf masks a key. A bias
        of bools is a mask: True where a query attends. Dtypes other than that of q are converted.
    lengths_q, lengths_kv : int32 array of shape (B,) on the device, or ints, optional
        Lengths of padded sequences, or of packed ones that end before the next one begins. Keys behind them
        are masked. Queries behind them get the results of queries without keys. Ints are checked; the range
        of device arrays is not. v must be finite behind them: see :func:`clear_padding`.
    offsets_q, offsets_kv : B + 1 ints, optional
        Offsets of packed sequences in tokens, from 0 to the number of tokens. q, k, v and y then have the
        shapes (tokens, H, D), and the statistics (tokens, H). Without lengths, a sequence ends where the next
        one begins.
    page_table : device array, shape (B, pages), int32, optional
        The blocks of k and v that hold the keys of each sequence; needs ``lengths_kv``.
    dropout : float, from 0 to less than 1
        Probability that a weight is dropped; the others are divided by ``1 - dropout``.
    seed, offset : int, or int64 array of one element on the device
        State of cuDNN's Philox generator; equal ones drop the same weights. Needed with ``dropout``.
    return_stats : bool
        Whether to return the statistics that :func:`attention_backward` needs.
    strict : bool
        Raise if a named engine cannot compute the problem, instead of using another one with a warning.

    Returns
    -------
    AttentionResult
        ``y``, DeviceArray of shape (B, H, Sq, Dv) with the axes in the memory order of q; ``stats``, the
        logarithms of the sums of exponentials, float32 of shape (B, H, Sq), or None. A query without keys has
        zeros in y and -inf in stats.

    Raises
    ------
    NotSupportedError
        float64, float32 with heads above 128, or another combination that cuDNN does not support or computes
        wrong: docs/attention.md lists them.

    Notes
    -----
    A graph of two products and a softmax, ``cudnnBackendExecute``: one kernel. Needs cuDNN 9.10.2. The
    formula is that of Vaswani et al., Attention Is All You Need, 2017. docs/attention.md describes masks and
    layouts.

    Examples
    --------
    >>> q = ct.zeros((1, 1, 2, 8), "float16")
    >>> v = ct.asarray([[[[1] * 8, [3] * 8]]], "float16")
    >>> ct.attention(q, q, v, causal=True).y.numpy()[0, 0, :, 0]
    array([1., 2.], dtype=float16)
    """
    if more or unknown or q is UNSET or k is UNSET or v is UNSET:
        return corrected(attention, locals())
    absent = "" if as_bool(return_stats, "return_stats") else "return_stats=False"
    outs = result_slots(out, AttentionResult._fields, absent=absent)
    names, arrays, longest = _QKV, (q, k, v), NO_LENGTHS
    if not (
        bias is page_table is lengths_q is lengths_kv is offsets_q is offsets_kv is seed is offset is None  # type: ignore[comparison-overlap]
    ):
        given = {"q": q, "k": k, "v": v, "bias": bias, "page_table": page_table}
        numbers = {"lengths_q": lengths_q, "lengths_kv": lengths_kv, "seed": seed, "offset": offset}
        starts = (offsets_q, offsets_kv)
        names, arrays, longest, stream = gather(given, numbers, starts, outs[0], causal, window, stream)
    params = (
        return_stats, scale, causal, window, dropout, longest, algo, deterministic, workspace_limit, strict,
    )  # fmt: skip
    results = execute(_FORWARD, names, arrays, params, outs=outs, stream=stream)
    return AttentionResult(results[0], results[1] if return_stats else None)


@documented(attention)
def attention_backward(
    dy: ArrayLike,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    y: ArrayLike,
    stats: ArrayLike,
    *more: Never,
    scale: float | None = None,
    causal: bool | Literal["top_left", "bottom_right"] = False,
    window: tuple[int | None, int | None] | None = None,
    bias: ArrayLike | None = None,
    dbias: bool = False,
    lengths_q: ArrayLike | Sequence[int] | None = None,
    lengths_kv: ArrayLike | Sequence[int] | None = None,
    offsets_q: Sequence[int] | None = None,
    offsets_kv: Sequence[int] | None = None,
    dropout: float = 0.0,
    seed: int | ArrayLike | None = None,
    offset: int | ArrayLike | None = None,
    algo: Algo | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    strict: bool = False,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> AttentionGradients[DeviceArray]:
    """Compute the gradients of :func:`attention`, which is called with ``return_stats=True`` before.

    With the weights ``p = exp(scale * q @ k.T + bias - stats)`` ::

        dv = p.T @ dy        ds = p * (dy @ v.T - sum(dy * y))        dbias = sum of ds
        dq = scale * ds @ k        dk = scale * ds.T @ q

    Gradients of shared heads and of broadcast axes are summed.

    Parameters
    ----------
    dy : device array, shape and dtype of y
    y : device array
        The result of :func:`attention`.
    stats : device array, float32
        Its statistics.
    dbias : bool
        Whether to return the gradient of the bias. It needs a workspace of two bytes for each score, and of
        eight more if the queries share the bias.

    Returns
    -------
    AttentionGradients
        ``dq``, ``dk``, ``dv``, DeviceArrays like q, k and v; ``dbias``, like bias, or None.

    Notes
    -----
    A graph of five products, ``cudnnBackendExecute``. Sums of dq are in an order that varies from run to run,
    unless ``deterministic`` is set, which needs a workspace of two bytes for each score. Attention over a
    paged cache has no gradient. The formulas are those of Dao et al., FlashAttention, 2022.

    Examples
    --------
    >>> q, dy = ct.zeros((1, 1, 2, 8), "float16"), ct.full((1, 1, 2, 8), 1, "float16")
    >>> y, stats = ct.attention(q, q, dy, return_stats=True)
    >>> ct.attention_backward(dy, q, q, dy, y, stats).dv.numpy()[0, 0, :, 0]
    array([1., 1.], dtype=float16)
    """
    if (
        more or unknown or dy is UNSET or q is UNSET or k is UNSET
        or v is UNSET or y is UNSET or stats is UNSET
    ):  # fmt: skip
        return corrected(attention_backward, locals())
    with_bias = as_bool(dbias, "dbias")
    absent = "" if with_bias else "dbias=False"
    outs = result_slots(out, AttentionGradients._fields, absent=absent)
    names, arrays, longest = _GRADIENT_OPERANDS, (dy, q, k, v, y, stats), NO_LENGTHS
    if not (
        bias is lengths_q is lengths_kv is offsets_q is offsets_kv is seed is offset is None  # type: ignore[comparison-overlap]
    ):
        given = {"dy": dy, "q": q, "k": k, "v": v, "y": y, "stats": stats, "bias": bias}
        numbers = {"lengths_q": lengths_q, "lengths_kv": lengths_kv, "seed": seed, "offset": offset}
        starts = (offsets_q, offsets_kv)
        names, arrays, longest, stream = gather(given, numbers, starts, y, causal, window, stream)
    params = (
        with_bias, scale, causal, window, dropout, longest, algo, deterministic, workspace_limit, strict,
    )  # fmt: skip
    results = execute(_BACKWARD, names, arrays, params, outs=outs, stream=stream)
    return AttentionGradients(*results, *([] if with_bias else [None]))


# --- operations --------------------------------------------------------------------------------------------


def _forward(specs: Specs, outs: Outs, *params: Any, aligned: bool, **_: Any) -> AttentionProblem:
    return rules.attention_problem(specs, tuple(outs), *params[:6], aligned=aligned)


def _backward(specs: Specs, outs: Outs, *params: Any, aligned: bool, **_: Any) -> AttentionProblem:
    same = as_bool(config.deterministic if params[7] is None else params[7], "deterministic")
    return rules.attention_gradient_problem(
        specs, tuple(outs), *params[:6], aligned=aligned, deterministic=same
    )


def _select(problem: AttentionProblem, params: tuple[Any, ...]) -> Select:
    *arguments, strict = params[6:]
    wanted = AlgoArguments(*arguments).request(problem, strict)
    core = core_of(problem, 0)
    if core.empty:
        return lambda _: SelectedPlan(fills_of(core))
    return lambda ctx: algo_cache.select(problem, SOURCE, ctx, wanted)


_FORWARD = Operation("attention", _forward, select=_select, written=("out", "stats of out"))
_BACKWARD = Operation("the gradient of attention", _backward, select=_select, written=_GRADIENTS)


# --- zeros behind the lengths of padded sequences ----------------------------------------------------------


@documented()
def clear_padding(
    x: ArrayLike,
    lengths: ArrayLike | Sequence[int],
    *more: Never,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Return x with zeros behind the lengths of its sequences, whatever is there.

    Kernels of attention multiply v behind the lengths by weights of 0, so NaN and infinities there make the
    whole sequence NaN. This also holds for the other operands of a gradient.

    Parameters
    ----------
    x : device array, shape (B, H, S, D), float16 | bfloat16 | float32
        D is a multiple of 8.
    lengths : int32 array of shape (B,) on the device, or ints
        Rows of each sequence that are kept, from 0 to S. Ints are checked; the range of device arrays is not.
    out : device array, shape and dtype of x, optional
        Destination of the result. It may be x itself.

    Notes
    -----
    A graph that selects x or 0, ``cudnnBackendExecute``, after elementwise calls for the places of the rows:
    the same from run to run. Lengths on the device are not read by the host, so the call can be captured.

    Examples
    --------
    >>> v = ct.full((1, 1, 3, 8), float("nan"), "float16")
    >>> ct.clear_padding(v, [2]).numpy()[0, 0, :, 0]
    array([nan, nan,  0.], dtype=float16)
    """
    if more or unknown or x is UNSET or lengths is UNSET:
        return corrected(clear_padding, locals())
    if is_in_host(lengths):
        where = stream_of(x, "x", stream)
        x, stream = as_operand(x, "x", where), where
        rows = x.shape[2] if len(x.shape) == 4 else 0  # the problem reports another number of axes
        numbers = rules.sequence_lengths(lengths, rows, "lengths") if rows else lengths
        lengths = uploaded(numbers, "int32", where, "lengths")
    return execute(_CLEAR, ("x", "lengths"), (x, lengths), outs=(out,), stream=stream)[0]


_CLEAR = Operation(
    "a clearing of padding",
    rules.padding_problem,
    (
        Implementation(clearing_plan, aligned=True, scales=False),
        by_engines(partial(clearing_plan, by_driver=True)),
    ),
    in_place=True,
    relayout=False,
)
