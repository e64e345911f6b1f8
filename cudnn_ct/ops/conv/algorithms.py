"""Tables of the algorithms for a convolution, and convolutions prepared for repeated calls."""

from __future__ import annotations

from typing import Never

from ... import context
from ..._hints import UNSET, corrected
from ...autotune.measurement import benchmark_rows
from ...autotune.request import AlgoRequest
from ...autotune.table import Algorithms
from ...cuda import stream as streams
from ...errors import NotInitializedError
from ...shapes.conv import ROLES
from ...shapes.parse import as_bool, as_choice, as_float
from ...typing import (
    Algo,
    ArrayLike,
    ConvMode,
    Direction,
    FusedActivation,
    Padding,
    PerAxis,
    Precision,
    Shape,
    StreamLike,
)
from .._documented import documented
from .._operands import present, representable, stream_of
from .call import CONV, ConvParams, request_of
from .candidates import SOURCE
from .conv import conv
from .fused import FUSED, conv_bias_activation
from .plan import ConvPlan, SampleOperands


@documented(conv)
def conv_algorithms(
    first: ArrayLike,
    second: ArrayLike,
    shape: Shape | None = None,
    *more: Never,
    direction: Direction = "forward",
    measure: bool = True,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: ConvMode = "cross_correlation",
    precision: Precision | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> Algorithms:
    """List all candidates that cuDNN has for a convolution, with the time of each.

    Parameters
    ----------
    first : device array
        First operand of the direction: x for ``"forward"``, dy for gradients.
    second : device array
        Second operand of the direction: w, or x for ``"backward_filter"``.
    shape : tuple of int, optional
        ``x_shape`` or ``w_shape`` of a gradient.
    direction : {"forward", "backward_data", "backward_filter"}
    measure : bool
        Measure the GPU time of each candidate by events, on these operands: the longer of calls in a row and
        of a call with cold L2 cache. Some engines are compiled first, so this may take seconds.
    out : device array, optional
        Determines dtype, strides and alignment of the result; it is not written.

    Returns
    -------
    Algorithms
        A tuple of :class:`Candidate`, the fastest first, then the rejected ones, each with its reason in
        ``rejected``.

    Notes
    -----
    Engines are those of the heuristics of the graph API in modes B, A and FALLBACK; algorithms are those of
    ``cudnnGetConvolution*Algorithm_v7``. cuDNN's own timings, ``cudnnFind*``, are not used.

    ``row.deterministic`` is True if the results are the same from run to run.

    Examples
    --------
    >>> x = ct.asarray([[[1, 2, 4, 8]]], "float32")
    >>> w = ct.asarray([[[1, -1]]], "float32")
    >>> table = ct.conv_algorithms(x, w)  # print(table) shows it
    >>> ct.conv(x, w, algo=table[0]).numpy()
    array([[[-1., -2., -4.]]], dtype=float32)
    """
    if more or unknown or first is UNSET or second is UNSET:
        return corrected(conv_algorithms, locals())
    names = ROLES[as_choice(direction, tuple(ROLES), "direction")].names
    algo = AlgoRequest().algo  # a setting that names an algorithm does not apply to tables
    params = ConvParams(
        padding, stride, dilation, groups, mode, precision, algo, deterministic, workspace_limit, False
    )
    alpha, beta, measure = as_float(alpha, "alpha"), as_float(beta, "beta"), as_bool(measure, "measure")
    where = stream_of(first, names[0], stream, (second,))
    with streams.on_device(where.device):
        ctx = context.current(where)
        if measure and ctx.capturing:
            raise NotInitializedError("algorithms cannot be timed on a stream that is being captured")
        operands = SampleOperands(names[:2], (first, second), out, where)
        signature = operands.signature((shape, *params), alpha, beta)
        inputs = tuple(map(representable, signature.specs))
        problem = CONV[direction].problem_of(signature, inputs)
        if inputs != signature.specs:
            raise ValueError("algorithms are listed for arrays with positive strides; pass contiguous copies")
        request = request_of(params, problem)
        if not (problem.x.size and problem.w.size and problem.y.size):
            return Algorithms(problem, [])  # sums without terms need no algorithm
        rows = SOURCE.all_candidates(problem, ctx)
        rows = [row._replace(rejected=row.rejected or request.rejection(row)) for row in rows]
        if measure:
            usable = [row for row in rows if not row.rejected]
            timed, _ = operands.used(
                ctx,
                problem.result,
                lambda pointers: benchmark_rows(problem, usable, SOURCE.plan, ctx, pointers, alpha, beta),
            )
            rows = timed + [row for row in rows if row.rejected]
        return Algorithms(problem, rows)


@documented(conv, conv_algorithms)
def conv_plan(
    first: ArrayLike,
    second: ArrayLike,
    shape: Shape | None = None,
    *more: Never,
    direction: Direction = "forward",
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: ConvMode = "cross_correlation",
    algo: Algo | None = None,
    precision: Precision | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    strict: bool = False,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> ConvPlan:
    """Prepare a convolution, to call it on other operands of the same kind with the least host time.

    Parameters
    ----------
    out : device array, optional
        An array like the later results, if they are not contiguous in the layout of the input, or float32 for
        int8; it is not written.

    Returns
    -------
    ConvPlan
        ``plan(first, second, out=y)`` computes; ``plan.describe()`` describes the selection.

    Notes
    -----
    A plan runs the algorithm of :func:`conv`, :func:`conv_backward_data` or :func:`conv_backward_filter`:
    ``cudnnBackendExecute`` or ``cudnnConvolution*``. All calls of a plan run one algorithm, as long as cuDNN
    accepts it; ``deterministic=True`` excludes those whose results vary from run to run.

    Examples
    --------
    >>> x = ct.asarray([[[1, 2, 4, 8]]], "float32")
    >>> w = ct.asarray([[[1, -1]]], "float32")
    >>> plan = ct.conv_plan(x, w, algo="autotune")  # print(plan.describe()) describes the selection
    >>> plan(x, w).numpy()
    array([[[-1., -2., -4.]]], dtype=float32)
    """
    if more or unknown or first is UNSET or second is UNSET:
        return corrected(conv_plan, locals())
    names = ROLES[as_choice(direction, tuple(ROLES), "direction")].names
    params = (
        shape, padding, stride, dilation, groups, mode, precision, algo,
        deterministic, workspace_limit, strict,
    )  # fmt: skip
    factors = as_float(alpha, "alpha"), as_float(beta, "beta")
    return ConvPlan(CONV[direction], names[:2], (first, second), params, factors, out, stream)


@documented(conv_bias_activation)
def conv_bias_activation_plan(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike,
    *more: Never,
    residual: ArrayLike | None = None,
    activation: FusedActivation = "relu",
    coefficient: float = 0,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: ConvMode = "cross_correlation",
    algo: Algo | None = None,
    precision: Precision | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    strict: bool = False,
    alpha1: float = 1,
    alpha2: float = 1,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> ConvPlan:
    """Prepare :func:`conv_bias_activation`, as :func:`conv_plan` prepares a convolution.

    Parameters
    ----------
    out : device array, optional
        An array like the later results, if they are not contiguous in the layout of x; it is not written.

    Returns
    -------
    ConvPlan
        ``plan(x, w, bias, out=y)`` computes, ``plan(x, w, residual, bias, out=y)`` with a residual.

    Notes
    -----
    The functions of :func:`conv_bias_activation`: ``cudnnBackendExecute``,
    ``cudnnConvolutionBiasActivationForward`` or several calls. ``deterministic=True`` excludes algorithms
    whose results vary from run to run.

    Examples
    --------
    >>> x = ct.asarray([[[1, 2, 4, 8]]], "float32")
    >>> w, b = ct.asarray([[[1, -1]]], "float32"), ct.asarray([3], "float32")
    >>> plan = ct.conv_bias_activation_plan(x, w, b)
    >>> plan(x, w, b).numpy()
    array([[[2., 1., 0.]]], dtype=float32)
    """
    if more or unknown or x is UNSET or w is UNSET or bias is UNSET:
        return corrected(conv_bias_activation_plan, locals())
    given = {"x": x, "w": w} | present(residual=residual, bias=bias)
    params = (
        padding, stride, dilation, groups, mode, precision, algo, deterministic, workspace_limit, strict,
        activation, coefficient, alpha1, alpha2,
    )  # fmt: skip
    return ConvPlan(FUSED, tuple(given), tuple(given.values()), params, (1.0, 0.0), out, stream)
