"""Calls prepared once and run many times: what is known of the operands is not looked up again."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any, NamedTuple

from .. import context
from .. import stream as streams
from ..array import DeviceArray
from ..context import Context
from ..creation import operand
from ..dtypes import DTYPES
from ..errors import CudnnError
from ..problem import Candidate, TensorSpec
from ..stream import Stream
from .call import ALIGNMENT, Call, check_beta, run, stream_of

__all__ = ["ConvPlan", "Likeness", "Operands", "plan_of"]


class Likeness(NamedTuple):
    """What operands must have in common with those that something was prepared for."""

    specs: tuple[TensorSpec, ...]
    out: TensorSpec | None
    aligned: bool


class Operands:
    """The arrays that something is prepared for, and possibly timed on."""

    def __init__(self, given: tuple[Any, ...], names: tuple[str, ...], out: Any, where: Stream) -> None:
        self.arrays = tuple(operand(array, name, where) for array, name in zip(given, names, strict=True))
        self.result = None if out is None else operand(out, "out", where, written=True)
        every = [*self.arrays, *([self.result] if self.result else [])]
        self.like = Likeness(
            tuple(array.spec for array in self.arrays),
            None if self.result is None else self.result.spec,
            not any(array.pointer % ALIGNMENT for array in every),
        )

    def used(self, ctx: Context, result: TensorSpec, work: Callable[[list[int]], None]) -> None:
        """Let ``work`` enqueue something on these operands and a result, in the order of streams."""
        nbytes = result.size * DTYPES[result.dtype].itemsize
        made = self.result or DeviceArray.new(result, nbytes, ctx.stream, "a result to time on")
        for array in self.arrays:
            array.before_read(ctx.stream)
        made.before_write(ctx.stream)
        try:
            work([*(array.pointer for array in self.arrays), made.pointer])
        finally:
            for array in self.arrays:
                array.after_use(ctx.stream)
            made.after_write(ctx.stream)


class _Usual(NamedTuple):
    """What a thread's calls of a plan have in common when nothing is out of the ordinary."""

    context: Context
    call: Call
    stream: Stream
    specs: tuple[TensorSpec, ...]


class ConvPlan:
    """A convolution that is ready to run on operands of the kind that it was prepared for.

    Made by :func:`conv_plan` and :func:`conv_bias_activation_plan`. Any thread may call it; each gets a plan
    of its own, since cuDNN's plans belong to a thread.

    Attributes
    ----------
    problem : ConvProblem or FusedConv
        What it computes.
    candidate : Candidate
        The algorithm that it runs, in this thread.
    workspace : int
        Bytes of scratch memory that a run needs.
    fallback_reason : str
        Why it does not run the algorithm that was named; empty where it does.
    """

    def __init__(
        self,
        operands: Operands,
        names: tuple[str, ...],
        make: Callable[[Context, Likeness], Call],
        factors: tuple[float, float],
        where: Stream,
    ) -> None:
        self._names = names
        self._make = make
        self._alpha, self._beta = factors
        self._where = where
        self._like = operands.like
        self._usual: dict[int, _Usual] = {}
        ctx = context.current(where)
        call = self._call_of(ctx)
        if call.inputs != operands.like.specs:
            raise ValueError("a plan takes arrays with positive strides; pack them first")
        choice = call.choice
        if choice.untimed:  # the policy is to time, and here are the operands
            operands.used(ctx, call.result, lambda pointers: choice.time(ctx, pointers, *factors))
        self.problem = call.problem

    def __call__(self, *inputs: Any, out: Any = None, stream: Any = None) -> Any:
        """Compute; as the operation does that it was prepared for.

        Raises
        ------
        TypeError
            There are more operands than the plan has, or fewer, or one is not on the device.
        ValueError
            An operand is of another shape, stride, dtype or alignment than the plan was prepared for.
        """
        if stream is None and self._run_quickly(inputs, out):
            return out
        if self._beta:
            check_beta(self._beta, out)
        if len(inputs) != len(self._names):
            raise TypeError(f"the plan takes {', '.join(self._names)}; got {len(inputs)} operands")
        where = stream_of(inputs[0], self._names[0], stream)
        previous = streams.activate(where.device)
        try:
            ctx = context.current(where)
            call = ctx.calls.get(self) or self._call_of(ctx)
            arrays = tuple(map(operand, inputs, self._names, (where,) * len(inputs)))
            result = None if out is None else operand(out, "out", where, written=True)
            self._check(arrays, result, call)
            if where is streams.default_stream(where.device):
                self._usual[get_ident()] = _Usual(ctx, call, where, (*call.inputs, call.result))
            return run(ctx, call, arrays, result, self._alpha, self._beta, out)
        finally:
            streams.restore(previous)

    def _run_quickly(self, inputs: tuple[Any, ...], out: Any) -> bool:
        """Run where all is as it usually is, so that nothing needs ordering: False where something is not.

        Usual are arrays that live on the default stream and were written on it, in a thread and with
        pointers that were checked before.
        """
        usual = self._usual.get(get_ident())
        if usual is None or len(inputs) + 1 != len(usual.specs) or streams._current.get() is not None:
            return False
        ctx, call, where, specs = usual
        pointers = []
        for array, spec in zip((*inputs, out), specs, strict=True):
            if type(array) is not DeviceArray or array.writer is not where or array.home is not where:
                return False
            if array.spec != spec:
                return False
            pointers.append(array.pointer)
        known = tuple(pointers)
        if known not in call.apart or out._uses is not None or out.readonly:
            return False
        previous = streams.activate(where.device)
        try:
            if ctx.stream is not where:
                ctx.work_on(where)
            call.choice.run(ctx, known, self._alpha, self._beta)
        except CudnnError as error:
            error.add_note(f"in {self.problem}")
            raise
        finally:
            if previous is not None:
                streams.restore(previous)
        return True

    @property
    def candidate(self) -> Candidate:
        """The algorithm that runs, in this thread."""
        candidate: Candidate = self._choice.candidate
        return candidate

    @property
    def workspace(self) -> int:
        """Bytes of scratch memory that a run needs."""
        return int(self._choice.plan.workspace)

    @property
    def fallback_reason(self) -> str:
        """Why it does not run the algorithm that was named; empty where it does."""
        return str(self._choice.fallback_reason)

    def describe(self) -> str:
        """Tell what is computed, how, how that was chosen, and what was refused and why."""
        return f"{self.problem}\n{self._choice.describe()}"

    def __repr__(self) -> str:
        return f"<ConvPlan of {self.problem}>"

    @property
    def _choice(self) -> Any:
        previous = streams.activate(self._where.device)
        try:
            ctx = context.current(self._where)
            return (ctx.calls.get(self) or self._call_of(ctx)).choice
        finally:
            streams.restore(previous)

    def _call_of(self, ctx: Context) -> Call:
        """This thread's call; prepared anew in a thread that is new to the plan."""
        call = ctx.calls[self] = self._make(ctx, self._like)
        return call

    def _check(self, arrays: tuple[DeviceArray, ...], result: DeviceArray | None, call: Call) -> None:
        pointers = 0
        for array, spec, name in zip(arrays, call.inputs, self._names, strict=True):
            if array.spec != spec:
                raise ValueError(f"{name} is {array.spec}; the plan was prepared for {spec}")
            pointers |= array.pointer
        if result is not None:
            if result.spec != call.result:
                raise ValueError(f"out is {result.spec}; the plan was prepared for {call.result}")
            pointers |= result.pointer
        if pointers % ALIGNMENT and self._like.aligned:
            raise ValueError(
                f"the plan was prepared for operands that begin at multiples of {ALIGNMENT} bytes"
            )


def plan_of(
    given: tuple[Any, ...],
    names: tuple[str, ...],
    out: Any,
    stream: Any,
    make: Callable[[Context, Likeness], Call],
    factors: tuple[float, float],
) -> ConvPlan:
    """Prepare a plan for operands like these, on their device."""
    where = stream_of(given[0], names[0], stream)
    previous = streams.activate(where.device)
    try:
        return ConvPlan(Operands(given, names, out, where), names, make, factors, where)
    finally:
        streams.restore(previous)
