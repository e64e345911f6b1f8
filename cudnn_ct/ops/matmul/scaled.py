"""Products of float8 matrices with scales."""

from __future__ import annotations

from typing import Any, Never

from ..._hints import UNSET, corrected
from ...array import DeviceArray
from ...errors import NotSupportedError
from ...shapes.epilogue import WITHOUT_AMAX
from ...shapes.matmul import MatmulProblem, ScaledMatmulResult, scaled_matmul_problem
from ...shapes.parse import as_bool
from ...typing import Algo, ArrayLike, DTypeLike, MatmulActivation, OutLike, StreamLike
from .._algo_arguments import without_factors
from .._call import execute_as
from .._documented import documented
from .._operands import present
from .._operation import Operation, Select
from .matmul import matmul, select
from .views import slices_of

MULTIPLE = 16  # a product of 2 x 2 matrices left its result unwritten on an H200


@documented(matmul)
def scaled_matmul(
    a: ArrayLike,
    b: ArrayLike,
    *more: Never,
    descale_a: ArrayLike | None = None,
    descale_b: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    activation: MatmulActivation | None = None,
    amax: bool = False,
    out_dtype: DTypeLike | None = None,
    algo: Algo | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> ScaledMatmulResult[DeviceArray]:
    """Multiply float8 matrices with scales, add and activate.

    As a formula ::

        v = act(descale_a * descale_b * (a @ b) + bias + residual)        y = scale * v

    ``amax`` is the largest magnitude of v, from which the scale of the next step follows. Shapes are those of
    :func:`matmul`.

    Parameters
    ----------
    a : device array, shape (..., M, K), float8_e4m3 | float8_e5m2
        M, N and K are multiples of 16.
    b : device array, shape (..., K, N), float8_e4m3 | float8_e5m2
    descale_a, descale_b, scale : device array of one element, float32, optional
        Factors, which are read on the device.
    bias : device array, shape (N,), dtype of the result or float32, optional
        In half precision or float32 if the result is float8.
    amax : bool
        Whether the largest magnitude is computed.
    out_dtype : dtype, optional
        bfloat16 by default; float16, float32, float8_e4m3 or float8_e5m2.

    Returns
    -------
    ScaledMatmulResult
        ``y``, DeviceArray of shape (..., M, N); ``amax``, float32 DeviceArray of shape (1,), or None.

    Raises
    ------
    NotSupportedError
        A length is not a multiple of 16; cuDNN has no engine; or ``amax`` is computed of a product that takes
        several calls, because its batch axes do not merge.

    Notes
    -----
    A graph, ``cudnnBackendExecute``. There is no gradient. Values beyond the range of float8 are saturated or
    become NaN or infinite as cuDNN's conversion does; choose ``scale`` so that there are none.

    Examples
    --------
    >>> a, half = ct.full((16, 32), 2, "float8_e4m3"), ct.asarray([0.5], "float32")
    >>> y, amax = ct.scaled_matmul(a, a.T, descale_a=half, amax=True, out_dtype="float32")
    >>> y.shape, float(amax.numpy()[0])
    ((16, 16), 64.0)
    """
    if more or unknown or a is UNSET or b is UNSET:
        return corrected(scaled_matmul, locals())
    added = present(bias=bias, residual=residual)
    factors = present(descale_a=descale_a, descale_b=descale_b, scale=scale)
    given = {"a": a, "b": b} | added | factors
    absent = "" if as_bool(amax, "amax") else WITHOUT_AMAX
    params = (activation, out_dtype, algo, deterministic, workspace_limit)
    return execute_as(ScaledMatmulResult, _SCALED, given, params, out, stream, absent)


def _select(problem: MatmulProblem, params: tuple[Any, ...]) -> Select:
    if problem.amax and problem.y.size and len(slices_of(problem).offsets) > 1:
        raise NotSupportedError(
            f"amax of several products is not supported: the batch axes of a {problem.a} and b {problem.b} "
            "do not merge; make one call for each"
        )
    if problem.y.size and any(length % MULTIPLE for length in _lengths(problem)):
        m, n, k = _lengths(problem)
        raise NotSupportedError(
            f"products of float8 matrices need multiples of {MULTIPLE}: got M {m}, N {n}, K {k}; "
            "pad with zeros"
        )
    return select(problem, params)


def _lengths(problem: MatmulProblem) -> tuple[int, int, int]:
    """Return M, N and K; those of a vector are 1."""
    a, b = problem.a.shape, problem.b.shape
    return (a[-2] if len(a) > 1 else 1, b[-1] if len(b) > 1 else 1, a[-1])


_PROBLEM = without_factors(scaled_matmul_problem)
_SCALED = Operation("a product of float8 matrices", _PROBLEM, select=_select, written=("out", "amax of out"))
