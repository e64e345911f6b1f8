"""Built graphs: functions of arrays, with a plan for each thread and device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Generic, Self, TypeVar

from ... import algo_cache, array_shapes, context
from ..._config import config
from ...algo_cache import CandidateSource
from ...array import DeviceArray
from ...array_creation import as_operand
from ...context import Context
from ...cuda import stream as streams
from ...cuda.stream import Stream
from ...dtypes import DTYPES
from ...errors import CudnnError, NotSupportedError
from ...graph.offline import ShapesOnly
from ...plans.base import Candidate, Plan
from ...plans.program import Step, chained
from ...shapes.checks import expect_dtype, expect_shape
from ...shapes.graph.kinds import KINDS
from ...shapes.graph.problem import GraphProblem
from ...shapes.specs import TensorSpec, equivalent_strides
from ...typing import ArrayLike, StreamLike
from .._graph_source import AlgoArguments, GraphSource, ReducedSource, packed_source
from .._operands import check_writable
from .._operation import PreparedCall
from .._prepared import Prepared, ThreadPlan, launch_known, run_checked, run_known
from .._state import PerContext
from ..attention.source import SOURCE as ATTENTION
from .attention import attention_of, with_deterministic_sums
from .lower import REWRITES, lowered, with_copies

Results = TypeVar("Results")
Destinations = ArrayLike | Sequence[ArrayLike | None] | Mapping[str, ArrayLike]
"""Arrays for the outputs of a graph: one, one for each in order, or by name."""


class _ThreadPlans(ThreadPlan):
    """Prepared calls of one thread for a graph: one for aligned arrays, one for misaligned arrays."""

    __slots__ = ("misaligned",)

    def __init__(self, call: PreparedCall) -> None:
        super().__init__(call)
        self.misaligned: PreparedCall | None = None


class BuiltGraph(Prepared, Generic[Results]):
    """A graph that is ready to run on arrays of fixed shapes, strides and dtypes.

    Returned by :meth:`Graph.build`, not constructed by users. Any thread may call it; each gets a plan of its
    own, because cuDNN's plans belong to a thread. Plans are freed by :meth:`close`, at the end of a ``with``
    block, or with the last reference.

    ``problem`` is the graph as a value, which :func:`cudnn_ct.reference.graph` computes in NumPy.
    """

    _cannot_copy = "pickle problem, or export tuned engines by ct.export_algo_cache"

    def __init__(
        self, problem: GraphProblem, arguments: AlgoArguments, strict: bool, dynamic_shapes: bool | None
    ) -> None:
        self._request = arguments.request(problem, strict, dynamic_shapes)
        self.problem = with_deterministic_sums(problem) if self._request.deterministic else problem
        self._inputs = tuple(problem.values[place].name for place in problem.inputs)
        self._outputs = tuple(problem.values[place].name for place in problem.outputs)
        self._specs = tuple(problem.tensors.values())
        self._plans: PerContext[_ThreadPlans] | None = PerContext[_ThreadPlans]()
        self._none = (None,) * len(self._outputs)

    def __call__(
        self,
        *arrays: ArrayLike,
        out: Destinations | None = None,
        stream: StreamLike | None = None,
        **named: ArrayLike,
    ) -> Results:
        """Compute the outputs: an array, or a tuple of arrays in the order of :meth:`Graph.build`.

        Parameters
        ----------
        *arrays : device arrays
            The inputs in the order of their definition.
        out : device array, or a tuple or dict of them, optional
            Destinations of the outputs, None for a new array. They must not overlap inputs.
        stream : optional
            Stream of the work: an address, or an object with ``__cuda_stream__``; by default that of
            ``ct.use``.
        **named : device arrays
            Inputs by name, after those in order.

        Raises
        ------
        TypeError
            The number of inputs is wrong, or one is not on the device.
        ValueError
            An array has another shape, stride or dtype than the graph; an output overlaps an input; the graph
            is closed.
        """
        plans = self._plans or self._open()
        if stream is None and out is not None and not named and 0 < len(arrays) == len(self._inputs):
            known = launch_known(plans, arrays, out if type(out) is tuple else (out,))
            if known is not None:
                return known[0] if len(known) == 1 else tuple(known)  # type: ignore[return-value]
        inputs = self._ordered(arrays, named) if named or len(arrays) != len(self._inputs) else arrays
        outs = self._none if out is None else self._destinations(out)
        if stream is None and inputs:
            known = run_known(plans, inputs, outs)
            if known is not None:
                return known[0] if len(known) == 1 else tuple(known)  # type: ignore[return-value]
        if array_shapes.active_with(stream):
            shapes = self._shapes(inputs, outs)
            return shapes[0] if len(shapes) == 1 else shapes  # type: ignore[return-value]
        checked = partial(self._checked, plans)
        results = run_checked(checked, inputs, outs, self._inputs, self._outputs, stream)
        return results[0] if len(results) == 1 else tuple(results)  # type: ignore[return-value]

    def prepare(self, stream: StreamLike | None = None) -> Self:
        """Plan the graph now, for this thread and the device of a stream; return this object.

        Raises
        ------
        NotSupportedError
            cuDNN has no engine for the graph.
        """
        plans = self._open()
        if array_shapes.active_with(stream):  # its graph is recorded
            algo_cache.select(self.problem, source_of(self.problem), ShapesOnly(), self._request)
            return self
        where = streams.current_stream()
        where = where if stream is None else streams.as_stream(stream, where.device)
        with streams.on_device(where.device):
            self._of_thread(plans, context.current(where))
        return self

    @property
    def inputs(self) -> dict[str, TensorSpec]:
        """The specs of the inputs by name."""
        return dict(zip(self._inputs, self._specs, strict=False))

    @property
    def outputs(self) -> dict[str, TensorSpec]:
        """The specs of the outputs by name."""
        return dict(zip(self._outputs, self._specs[len(self._inputs) :], strict=True))

    @property
    def closed(self) -> bool:
        """Whether the plans were freed."""
        return self._plans is None

    def close(self) -> None:
        """Free the plans of all threads. Closing twice is harmless; later calls raise ValueError."""
        self._plans = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<BuiltGraph{' (closed)' if self.closed else ''}: {self.problem}>"

    # --- plans ---

    def _open(self) -> PerContext[_ThreadPlans]:
        if self._plans is None:
            raise ValueError("this BuiltGraph is closed")
        return self._plans

    @property
    def _call(self) -> PreparedCall:
        plans, where = self._open(), streams.current_stream()
        with streams.on_device(where.device):
            return self._of_thread(plans, context.current(where)).call

    def _of_thread(self, plans: PerContext[_ThreadPlans], ctx: Context) -> _ThreadPlans:
        """Return what this thread has prepared; prepare it in the thread's first use of the graph."""
        return plans.get(ctx) or plans.put(ctx, _ThreadPlans(self._prepared(ctx, aligned=True)))

    def _prepared(self, ctx: Context, *, aligned: bool) -> PreparedCall:
        problem, inputs = self.problem._replace(aligned=aligned), self._specs[: len(self._inputs)]
        for name, spec in zip(self._outputs, problem.results, strict=True):
            if spec.dtype not in DTYPES:
                raise NotSupportedError(
                    f"output {name!r} has the dtype {spec.dtype}, which arrays do not have; pass it to "
                    "another operation of the graph"
                )
        try:
            selected = algo_cache.select(problem, source_of(problem), ctx, self._request)
        except CudnnError as error:
            note = newer_operations(problem, ctx.library.version)
            if note and isinstance(error, NotSupportedError):
                error.add_note(note)
            raise
        return PreparedCall.of(problem, inputs, problem.results, selected, ctx.device, label="a graph")

    # --- arrays ---

    def _ordered(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the inputs in order, from those in order and those by name."""
        rest = self._inputs[len(arrays) :]
        unknown = [name for name in named if name not in self._inputs]
        twice = [name for name in named if name in self._inputs[: len(arrays)]]
        missing = [name for name in rest if name not in named]
        if len(arrays) > len(self._inputs) or unknown or twice or missing:
            problem = (
                f"unknown {', '.join(unknown)}" if unknown
                else f"{', '.join(twice)} twice" if twice
                else f"{len(arrays) + len(named)} arrays"
            )  # fmt: skip
            raise TypeError(f"inputs do not match: got {problem}, expected {', '.join(self._inputs)}")
        return (*arrays, *(named[name] for name in rest))

    def _destinations(self, out: Any) -> tuple[Any, ...]:
        """Return the array given for each output, None for a new one."""
        if type(out) is not DeviceArray and isinstance(out, Mapping):  # the second test is slow
            unknown = [name for name in out if name not in self._outputs]
            if unknown:
                raise ValueError(f"out is unknown: got {unknown}, expected {', '.join(self._outputs)}")
            return tuple(out.get(name) for name in self._outputs)
        outs = tuple(out) if isinstance(out, tuple | list) else (out,)
        if len(outs) != len(self._outputs):
            raise ValueError(f"out has {len(outs)} arrays: expected {', '.join(self._outputs)}")
        return outs

    def _shapes(self, inputs: tuple[Any, ...], outs: tuple[Any, ...]) -> tuple[DeviceArray, ...]:
        """Return the results of a call on arrays without memory."""
        places = zip((*self._inputs, *self._outputs), (*inputs, *outs), self._specs, strict=True)
        for place, (name, array, spec) in enumerate(places):
            if array is not None or place < len(inputs):
                _expect(array_shapes.spec_of(array, name), name, spec)
        new = map(array_shapes.ShapeArray.of, self._specs[len(inputs) :])
        return tuple(made if out is None else out for made, out in zip(new, outs, strict=True))

    def _checked(
        self,
        plans: PerContext[_ThreadPlans],
        ctx: Context,
        operands: Sequence[DeviceArray],
        given: Sequence[DeviceArray | None],
        where: Stream,
    ) -> PreparedCall:
        """Raise unless the arrays fit the graph; return the prepared call for them."""
        names = (*self._inputs, *self._outputs)
        aligned = True
        for place, (name, array, spec) in enumerate(
            zip(names, (*operands, *given), self._specs, strict=True)
        ):
            if array is None:
                continue
            written = place >= len(self._inputs)
            as_operand(array, name, where, written=written)
            if array.spec != spec:
                _expect(array.spec, name, spec)
                if written:
                    check_writable(array.spec, name)
            aligned = aligned and array.key.aligned
        ctx.set_stream(where)
        mine = self._of_thread(plans, ctx)
        mine.use(config.snapshot)
        if aligned:
            mine.remember((*operands, *given), config.snapshot)
            return mine.call
        if mine.misaligned is None:
            mine.misaligned = self._prepared(ctx, aligned=False)
        return mine.misaligned


def newer_operations(problem: GraphProblem, version: int) -> str:
    """Return which operations of a graph are newer than a cuDNN, by the version that introduced them."""
    newer = {}
    for one in problem.nodes:
        major, minor, patch = map(int, f"{KINDS[one.kind].since}.0".split(".")[:3])
        if version < major * 10_000 + minor * 100 + patch:
            newer[one.kind] = KINDS[one.kind].since
    loaded = f"{version // 10_000}.{version % 10_000 // 100}.{version % 100}"
    listed = ", ".join(f"{kind} since cuDNN {since}" for kind, since in newer.items())
    return f"operations are newer than the loaded cuDNN {loaded}: {listed}" if newer else ""


def _expect(found: TensorSpec, name: str, spec: TensorSpec) -> None:
    """Raise unless an array has the shape, the dtype and the strides of a tensor."""
    expect_shape(found, name, spec.shape)
    expect_dtype(found, name, spec.dtype)
    if not equivalent_strides(spec.shape, found.strides, spec.strides):
        raise ValueError(
            f"{name} has the wrong strides: got {found.strides}, expected {spec.strides}; pass a copy, or "
            "build the graph with strides= or layout="
        )


# --- candidates --------------------------------------------------------------------------------------------

ENGINES = packed_source(GraphSource(lowered, handled=REWRITES), with_copies)


def source_of(problem: GraphProblem) -> CandidateSource:
    """Return the source of candidates for a graph; raise NotSupportedError if cuDNN cannot compute it."""
    found = attention_of(problem)
    if found is None:
        return ENGINES
    attention, places = found

    def planned(inner: CandidateSource, _: GraphProblem, candidate: Candidate, context: Context) -> Plan:
        made = inner.plan(attention, candidate, context)
        return chained((), [Step(made, places)], about="{}", main=made)

    return ReducedSource(ATTENTION, lambda _: attention, planned, comparable=False)
