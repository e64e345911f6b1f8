"""Tables of the algorithms for a convolution, and convolutions prepared for repeated calls."""

from __future__ import annotations

from typing import Never

from ... import algo_cache, context
from ..._config import config
from ..._hints import UNSET, corrected
from ...array import DeviceArray
from ...array_creation import as_operand
from ...autotune.measurement import Algorithms, benchmark_rows, compile_rows
from ...cuda import stream as streams
from ...errors import NotInitializedError
from ...graph.candidates import keeping
from ...plans.base import AlgoRequest
from ...shapes.checks import as_bool, as_choice, as_float
from ...shapes.conv import ROLES
from ...shapes.specs import ALIGNMENT, equivalent_strides
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
from .._call import ONE, ZERO, check_beta
from .._documented import documented
from .._operands import present, representable, stream_of
from .._operation import Operation, PreparedCall
from .._prepared import Prepared, ThreadPlan, launch_known, run_checked, run_known
from .._state import PerContext
from .call import CONV, ConvParams, SampleOperands, request_of
from .candidates import SOURCE
from .conv import conv
from .fused import FUSED, conv_bias_activation


class ConvPlan(Prepared):
    """A prepared convolution, for operands with fixed shapes, strides, dtypes and alignment.

    Returned by :func:`conv_plan` and :func:`conv_bias_activation_plan`, not constructed by users. Any thread
    may call it; each gets a plan of its own, because cuDNN's plans belong to a thread. ``problem``, a
    ConvProblem or FusedConv, is the computation.
    """

    _cannot_copy = "share it, or prepare another one"

    def __init__(
        self,
        op: Operation,
        names: tuple[str, ...],
        given: tuple[ArrayLike, ...],
        params: tuple[object, ...],
        factors: tuple[float, float],
        out: ArrayLike | None,
        stream: StreamLike | None,
    ) -> None:
        self._names = names
        alpha, beta = factors
        self._alpha, self._beta = ONE if alpha == 1 else alpha, ZERO if beta == 0 else beta
        self._scaled = self._alpha is not ONE or self._beta is not ZERO
        where = stream_of(given[0], names[0], stream, (*given, out))
        self._device = where.device
        self._plans = PerContext[ThreadPlan]()
        with streams.on_device(where.device):
            operands = SampleOperands(names, given, out, where)
            signature = operands.signature(params, *factors)
            self._prepare = op.settle(signature)
            self._aligned = signature.aligned
            ctx = context.current(where)
            call = self._plan_of(ctx).call
            if call.copies:
                raise ValueError("a plan takes arrays with positive strides; pass contiguous copies")
            selected = call.selected
            if isinstance(selected, algo_cache.Selection) and selected.needs_timing:
                operands.used(ctx, call.results[0], lambda pointers: selected.time(ctx, pointers, *factors))
        self.problem = call.problem

    def __call__(
        self, *inputs: ArrayLike, out: ArrayLike | None = None, stream: StreamLike | None = None
    ) -> DeviceArray:
        """Compute, like the operation that the plan was prepared for.

        Raises
        ------
        TypeError
            The number of operands is wrong, or one is not on the device.
        ValueError
            An operand has another shape, stride, dtype or alignment than the plan was prepared for.
        """
        if stream is None and out is not None and not self._scaled and inputs:
            known = launch_known(self._plans, inputs, (out,))
            if known is not None:
                return known[0]
        if self._beta:
            check_beta(self._beta, out)
        if len(inputs) != len(self._names):
            raise TypeError(f"the plan takes {', '.join(self._names)}; got {len(inputs)} operands")
        if stream is None:
            known = run_known(self._plans, inputs, (out,), self._alpha, self._beta)
            if known is not None:
                return known[0]
        given = inputs, (out,), self._names, ("out",), stream
        return run_checked(self._checked, *given, self._alpha, self._beta)[0]

    def __repr__(self) -> str:
        return f"<ConvPlan of {self.problem}>"

    @property
    def _call(self) -> PreparedCall:
        with streams.on_device(self._device):
            # Not the stream that the plan was made on, which may have been destroyed.
            return self._plan_of(context.current(streams.default_stream(self._device))).call

    def _plan_of(self, ctx: context.Context) -> ThreadPlan:
        """Return what this thread prepared; prepare it in the thread's first use of the plan."""
        return self._plans.get(ctx) or self._plans.put(ctx, ThreadPlan(self._prepare(ctx)))

    def _checked(
        self,
        ctx: context.Context,
        arrays: tuple[DeviceArray, ...],
        outs: tuple[DeviceArray | None, ...],
        stream: streams.Stream,
    ) -> PreparedCall:
        """Raise unless the operands, and the result if it is given, are as the plan was prepared for."""
        mine, (out,) = self._plan_of(ctx), outs
        call = mine.call
        names = dict(zip(self._names, arrays, strict=True))
        given = names if out is None else names | {"out": out}
        for (name, array), spec in zip(given.items(), (*call.inputs, *call.results), strict=False):
            as_operand(array, name, stream, written=name == "out")
            alike = array.spec._replace(strides=spec.strides) == spec
            if not alike or not equivalent_strides(spec.shape, array.spec.strides, spec.strides):
                raise ValueError(f"{name} is {array.spec}; the plan was prepared for {spec}")
        if self._aligned and not all(array.key.aligned for array in given.values()):
            raise ValueError(
                f"the plan was prepared for {ALIGNMENT}-byte aligned operands: got misaligned ones"
            )
        mine.use(config.snapshot)
        mine.remember((*arrays, out), config.snapshot)
        return call


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
            with keeping():
                compile_rows(problem, usable, SOURCE.plan, ctx)
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
