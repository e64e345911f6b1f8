"""Scaled dot product attention of float8 operands."""

from __future__ import annotations

from typing import Any, Literal, Never

from ..._hints import UNSET, corrected
from ...array import DeviceArray
from ...shapes.parse import as_bool
from ...shapes.scaled_attention import (
    ScaledAttentionProblem,
    ScaledAttentionResult,
    scaled_attention_problem,
    scaled_attention_slots,
)
from ...typing import Algo, ArrayLike, DTypeLike, OutLike, StreamLike
from .._algo_arguments import select_engine, without_factors
from .._call import execute
from .._documented import documented
from .._operands import present
from .._operation import Operation, Select
from ..matmul.matmul import matmul
from .scaled_source import SOURCE, fills_of


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
    of_operands = present(q=q, k=k, v=v, descale_q=descale_q, descale_k=descale_k, descale_v=descale_v)
    given = of_operands | present(descale_s=descale_s, scale_s=scale_s, scale_o=scale_o)
    outs = scaled_attention_slots(out, return_stats, amax)
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


_NAME, _PROBLEM = "attention of float8", without_factors(scaled_attention_problem)
_WITH_STATS = Operation(_NAME, _PROBLEM, select=_select, written=("out", "stats of out", "amax of out"))
_WITHOUT_STATS = Operation(_NAME, _PROBLEM, select=_select, written=("out", "amax of out"))
