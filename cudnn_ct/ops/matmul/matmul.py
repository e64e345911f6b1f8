"""Products of matrices, with bias, residual and activation."""

from __future__ import annotations

from typing import Any, Never

from ..._config import config
from ..._hints import UNSET, corrected
from ...algo_cache import CandidateSource
from ...array import DeviceArray
from ...errors import NotSupportedError
from ...graph.broadcasts import in_words
from ...plans.wrappers import zero_results
from ...shapes.checks import Outs, Specs
from ...shapes.layer import results_of
from ...shapes.matmul import MatmulProblem, matmul_problem
from ...typing import Algo, ArrayLike, DTypeLike, MatmulActivation, Precision, StreamLike
from .._algo_arguments import select_engine, without_factors
from .._call import execute
from .._documented import documented
from .._operands import present
from .._operation import Operation, Select
from .cublaslt import check_name
from .source import PRODUCTS, WITH_CONVERTED_WEIGHTS


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
    given = {"a": a, "b": b} | present(bias=bias, residual=residual, b_scale=b_scale)
    params = (activation, alpha, precision, out_dtype, algo, deterministic, workspace_limit)
    return execute(_MATMUL, tuple(given), tuple(given.values()), params, outs=(out,), stream=stream)[0]


@without_factors  # alpha is a part of the problem
def _problem(specs: Specs, outs: Outs, *params: Any, aligned: bool) -> MatmulProblem:
    return matmul_problem(specs, outs, *params, allow_tf32=config.allow_tf32, aligned=aligned)


def _source_of(problem: MatmulProblem) -> CandidateSource:
    """Return the candidates of a product."""
    if problem.b_scale and not in_words(problem.b):
        return WITH_CONVERTED_WEIGHTS
    if problem.tensor_cores or problem.compute == "int32":
        return PRODUCTS
    from .as_conv import AS_CONVOLUTIONS  # with the convolutions, which half precision does not need

    return AS_CONVOLUTIONS


def select(problem: MatmulProblem, params: tuple[Any, ...]) -> Select:
    """Return the function that selects an engine in a thread; the last ``params`` are `AlgoArguments`."""
    empty = None if problem.y.size and problem.terms else zero_results(results_of(problem))
    selected = select_engine(problem, params, _source_of(problem), empty, check_name=check_name)
    if empty and problem.y.size and problem._replace(alpha=1.0).has_epilogue:
        raise NotSupportedError(
            f"the sums of a {problem.a} and b {problem.b} have no terms, and are not combined with a "
            "bias, residual, scale or activation; pass the product alone"
        )
    return selected


_MATMUL = Operation("a product of matrices", _problem, select=select)
