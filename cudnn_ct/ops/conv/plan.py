"""Convolutions prepared once and run many times: checks of operands are not repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ... import algo_cache, context
from ..._config import config
from ...array import DeviceArray
from ...array_creation import as_operand
from ...context import Context
from ...cuda import stream as streams
from ...cuda.stream import Stream
from ...dtypes import DTYPES
from ...shapes.specs import ALIGNMENT, TensorSpec
from ...typing import ArrayLike, StreamLike
from .._call import ONE, ZERO, check_beta
from .._operands import read_or_import, stream_of
from .._operation import NEW, CallSignature, Operation, PreparedCall
from .._prepared import Prepared, ThreadPlan, launch_known, run_checked, run_known
from .._state import PerContext

Result = TypeVar("Result")


class SampleOperands:
    """The arrays that a call is prepared for, and possibly timed on."""

    def __init__(self, names: tuple[str, ...], given: tuple[Any, ...], out: Any, where: Stream) -> None:
        self._names, self._stream = names, where
        self.arrays = tuple(as_operand(array, name, where) for array, name in zip(given, names, strict=True))
        self._outs = () if out is None else (as_operand(out, "out", where, written=True),)

    def signature(self, params: tuple[Any, ...], alpha: float, beta: float) -> CallSignature:
        """Return the signature of a call on these operands."""
        return CallSignature(
            self._names,
            tuple(array.spec for array in self.arrays),
            tuple(array.spec for array in self._outs) or NEW,
            params,
            (alpha != 1, beta != 0),
            not any(array.pointer % ALIGNMENT for array in (*self.arrays, *self._outs)),
        )

    def used(self, ctx: Context, result: TensorSpec, work: Callable[[list[int]], Result]) -> Result:
        """Call ``work``, which enqueues calls on these operands and a new result, in stream order."""
        low, high = result.extent
        nbytes = (high - low) * DTYPES[result.dtype].itemsize
        scratch = DeviceArray.new(result, nbytes, self._stream, "a result to time on")
        for array in self.arrays:
            array.wait_for_writer(self._stream)
        try:
            with ctx.working(self._stream):
                return work([*(array.pointer for array in self.arrays), scratch.pointer])
        finally:
            for array in self.arrays:
                array.record_use(self._stream)


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
        arrays, given, where = read_or_import(inputs, (out,), self._names, ("out",), stream)
        ctx = context.of_device(where.device)
        previous = None if ctx.alone else ctx.enter()
        try:
            mine = self._plan_of(ctx)
            self._check(arrays, given[0], mine, where)
            return run_checked(ctx, mine.call, arrays, given, where, self._alpha, self._beta)[0]
        finally:
            streams.restore_device(previous)

    def __repr__(self) -> str:
        return f"<ConvPlan of {self.problem}>"

    @property
    def _call(self) -> PreparedCall:
        with streams.on_device(self._device):
            # Not the stream that the plan was made on, which may have been destroyed.
            return self._plan_of(context.current(streams.default_stream(self._device))).call

    def _plan_of(self, ctx: Context) -> ThreadPlan:
        """Return what this thread prepared; prepare it in the thread's first use of the plan."""
        return self._plans.get(ctx) or self._plans.put(ctx, ThreadPlan(self._prepare(ctx)))

    def _check(
        self, arrays: tuple[DeviceArray, ...], out: DeviceArray | None, mine: ThreadPlan, stream: Stream
    ) -> None:
        """Raise unless the operands, and the result if it is given, are as the plan was prepared for."""
        call = mine.call
        names = dict(zip(self._names, arrays, strict=True))
        given = names if out is None else names | {"out": out}
        for (name, array), spec in zip(given.items(), (*call.inputs, *call.results), strict=False):
            as_operand(array, name, stream, written=name == "out")
            if array.spec != spec:
                raise ValueError(f"{name} is {array.spec}; the plan was prepared for {spec}")
        if self._aligned and not all(array.key.aligned for array in given.values()):
            raise ValueError(
                f"the plan was prepared for {ALIGNMENT}-byte aligned operands: got misaligned ones"
            )
        mine.use(config.snapshot)
        mine.remember((*arrays, out), config.snapshot)
