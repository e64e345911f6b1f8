"""Products of matrices, with bias, residual and activation; of float8 matrices with scales."""

from __future__ import annotations

from typing import Any, Never

from ..._config import config
from ..._hints import UNSET, corrected
from ...algo_cache import CandidateSource
from ...array import DeviceArray
from ...errors import NotSupportedError
from ...graph.layouts import in_words
from ...plans.wrappers import zero_results
from ...shapes.arithmetic import WITHOUT_AMAX
from ...shapes.checks import as_bool
from ...shapes.matmul import MatmulProblem, ScaledMatmulResult, matmul_problem, scaled_matmul_problem
from ...shapes.specs import Outs, Specs, results_of
from ...typing import Algo, ArrayLike, DTypeLike, MatmulActivation, OutLike, Precision, StreamLike
from .._call import execute, execute_as
from .._documented import documented
from .._graph_source import select_engine, without_factors
from .._operands import present
from .._operation import Operation, Select
from .cublaslt import check_name
from .source import PRODUCTS, WITH_CONVERTED_WEIGHTS
from .views import slices_of


@documented()
def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *more: Never,
    bias: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    b_scale: ArrayLike | None = None,
    activation: MatmulActivation | None = None,
    alpha: float = 1,
    precision: Precision | None = None,
    out_dtype: DTypeLike | None = None,
    algo: Algo | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Multiply matrices, add and activate: ``y = act(alpha * (a @ b) + bias + residual)``.

    Shapes follow ``numpy.matmul``: the last two axes are matrices, the axes before them are a batch and are
    broadcast, an ``a`` of one axis is a row and a ``b`` of one axis is a column.

    Parameters
    ----------
    a : device array, shape (..., M, K), float16 | bfloat16 | float32 | float64 | int8
        A transposed view needs no copy. If neither of the last two axes is contiguous, the array is copied
        first, on the device.
    b : device array, shape (..., K, N), dtype of a; or int8 with ``b_scale``
        A linear layer with weights of shape (N, K) passes ``weights.T``.
    bias : device array, shape (N,), dtype of the result or float32, optional
    residual : device array, shape and dtype of the result, optional
    b_scale : device array, shape (N,) or (1,), float32, optional
        Factor of each column of int8 weights ``b``, for a in half precision.
    activation : {"identity", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"}, optional
        ``"gelu"`` is that with erf, ``"gelu_tanh"`` its approximation by tanh; ``"swish"`` is ``"silu"``.
    alpha : float
        Factor of the product.
    precision : {"as_input_f32", "float32", "tf32"}, optional
        Arithmetic of the sums. The default is float32 for half precision and the dtype of a otherwise, with
        TF32 for float32 if ``ct.config.allow_tf32``; ``"float32"`` is always IEEE arithmetic.
    out_dtype : dtype, optional
        Dtype of the result: that of a by default; float32 for half precision. Products of int8 are int32.
    algo : str or Candidate, optional
        How the engine is selected. ``"heuristic"`` (the default of ``ct.config.algo``) takes the first
        candidate of cuDNN's heuristics. ``"autotune"`` times the candidates on these operands at the first
        call, ``"online"`` one of them after each later call.
        ``"engine 4"`` or ``"engine 4 knobs 24=3"`` is an engine, ``"cublaslt 0"`` an algorithm of cuBLASLt.

    Returns
    -------
    DeviceArray, shape (..., M, N); or ``out`` as one

    Raises
    ------
    NotSupportedError
        cuDNN has no engine; or an activation is combined with sums without terms (K is 0), or a gelu with
        float64 or ``precision="float32"``.

    Notes
    -----
    A graph, ``cudnnBackendExecute``. All engines for matrices use tensor cores. float64 and IEEE float32 are
    computed by 1 x 1 convolutions, followed by ``cudnnAddTensor`` and ``cudnnActivationForward``. A full
    cuDNN also has algorithms of cuBLASLt, ``cublasLtMatmul``.

    Examples
    --------
    >>> a = ct.asarray([[1, 2], [3, 4]], "float32")
    >>> b = ct.asarray([[1, 0, 2], [0, 1, -2]], "float32")
    >>> ct.matmul(a, b, bias=ct.asarray([0, 0, 1], "float32"), activation="relu").numpy()
    array([[1., 2., 0.],
           [3., 4., 0.]], dtype=float32)
    """
    if more or unknown or a is UNSET or b is UNSET:
        return corrected(matmul, locals())
    given = {"a": a, "b": b}
    for name, array in (("bias", bias), ("residual", residual), ("b_scale", b_scale)):
        if array is not None:  # `present` takes as long as the lookup of the call
            given[name] = array
    params = (activation, alpha, precision, out_dtype, algo, deterministic, workspace_limit)
    return execute(_MATMUL, tuple(given), tuple(given.values()), params, outs=(out,), stream=stream)[0]


@without_factors  # alpha is a part of the problem
def _problem(specs: Specs, outs: Outs, *params: Any, aligned: bool) -> MatmulProblem:
    return matmul_problem(specs, outs, *params, allow_tf32=config.allow_tf32, aligned=aligned)


def select(problem: MatmulProblem, params: tuple[Any, ...]) -> Select:
    """Return the function that selects an engine in a thread; the last ``params`` are `AlgoArguments`."""
    empty = None if problem.y.size and problem.terms else zero_results(results_of(problem))
    source: CandidateSource = PRODUCTS
    if problem.b_scale and not in_words(problem.b):
        source = WITH_CONVERTED_WEIGHTS
    elif not problem.tensor_cores and problem.compute != "int32":
        from .as_conv import AS_CONVOLUTIONS  # with the convolutions, which half precision does not need

        source = AS_CONVOLUTIONS
    selected = select_engine(problem, params, source, empty, check_name=check_name)
    if empty and problem.y.size and problem._replace(alpha=1.0).has_epilogue:
        raise NotSupportedError(
            f"the sums of a {problem.a} and b {problem.b} have no terms, and are not combined with a "
            "bias, residual, scale or activation; pass the product alone"
        )
    return selected


_MATMUL = Operation("a product of matrices", _problem, select=select)


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
    A graph, ``cudnnBackendExecute``. Gradients are not supported. Values beyond the range of float8 are
    saturated or become NaN or infinite as cuDNN's conversion does; choose ``scale`` so that there are none.

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
