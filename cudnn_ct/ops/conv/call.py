"""Convolutions as operations: their problems, and the selection of their algorithms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ... import algo_cache
from ..._algorithm_names import RNN_ALGOS
from ..._config import config
from ...array import DeviceArray
from ...array_creation import as_operand
from ...context import Context
from ...cuda.stream import Stream
from ...dtypes import DTYPES
from ...legal.conditions import without_wrong_tf32
from ...plans.base import AlgoRequest, SelectedPlan, request
from ...plans.wrappers import zero_or_scale
from ...shapes.conv import GEOMETRY, ROLES, ConvProblem, conv_problem, conv_transpose_output_shape
from ...shapes.specs import ALIGNMENT, Outs, Specs, TensorSpec
from .._operation import NEW, CallSignature, Operation, Select, enum_names, freeze
from .candidates import SOURCE, named_algorithm


class ConvParams(NamedTuple):
    """Parameters of a convolution as the caller passed them; part of a call's cache key."""

    padding: Any
    stride: Any
    dilation: Any
    groups: Any
    mode: Any
    precision: Any
    algo: Any
    deterministic: Any
    workspace_limit: Any
    strict: Any


def _problem(
    direction: str, specs: Specs, outs: Outs, shape: Any, *params: Any, scaled: str, aligned: bool
) -> ConvProblem:
    (first, second), given = specs.values(), ConvParams(*params)
    more = {"mode": given.mode, "scaled": scaled, "aligned": aligned}
    return conv_of(direction, first, second, outs[0], given, given.precision, shape, **more)


def _transposed(specs: Specs, outs: Any, output_padding: Any, *params: Any, **facts: Any) -> ConvProblem:
    """Make the problem of a transposed convolution; the shape of its result follows from its operands."""
    x, w = specs.values()
    geometry = dict(zip(GEOMETRY, params, strict=False))
    shape = conv_transpose_output_shape(x.shape, w.shape, output_padding=output_padding, **geometry)
    return _problem("backward_data", specs, outs, shape, *params, **facts)


def conv_of(
    direction: str,
    first: TensorSpec,
    second: TensorSpec,
    out: TensorSpec | None,
    geometry: Sequence[Any],
    precision: Any = None,
    shape: Any = None,
    **more: Any,
) -> ConvProblem:
    """Return the problem of a convolution; ``geometry`` begins with values for `GEOMETRY`."""
    more |= dict(zip(GEOMETRY, geometry, strict=False))
    allowed = config.allow_tf32
    conv = conv_problem(
        direction, first, second, shape=shape, precision=precision, allow_tf32=allowed, out=out, **more
    )
    return without_wrong_tf32(conv) if precision is None else conv


def request_of(arguments: ConvParams, problem: Any) -> AlgoRequest:
    """Return the algorithm request of a call; settings replace arguments that are None."""

    def check_name(name: str) -> None:
        try:
            named_algorithm(name, problem=problem.core)
        except ValueError as error:
            if arguments.algo is None:
                error.add_note("the algorithm is the one that ct.config.algo or CUDNN_CT_ALGO names")
            raise

    of_settings = "heuristic" if config.algo in RNN_ALGOS else config.algo
    return request(
        of_settings if arguments.algo is None else arguments.algo,
        config.deterministic if arguments.deterministic is None else arguments.deterministic,
        config.workspace_limit if arguments.workspace_limit is None else arguments.workspace_limit,
        arguments.strict,
        problem,
        check_name,
    )


def select(problem: Any, empty: Any, wanted: AlgoRequest) -> Select:
    """Return the function that selects an algorithm for a problem in a thread.

    ``empty`` is the plan for sums without terms; None for other problems.
    """
    if empty is not None:
        return lambda _: SelectedPlan(empty)
    return lambda ctx: algo_cache.select(problem, SOURCE, ctx, wanted)


def _select(problem: ConvProblem, params: tuple[Any, ...]) -> Select:
    empty = None if problem.x.size and problem.w.size and problem.y.size else zero_or_scale(problem.result)
    return select(problem, empty, request_of(ConvParams(*params[1:]), problem))


def _freeze(params: tuple[Any, ...]) -> tuple[Any, ...]:
    now: tuple[Any, ...] = freeze(params)
    parsed = enum_names(was := ConvParams(*now[1:]), "mode", "precision", "algo")
    return now if parsed is was else (now[0], *parsed)


def _operation(problem: Callable[..., ConvProblem]) -> Operation:
    return Operation("a convolution", problem, select=_select, freeze=_freeze)


CONV = {direction: _operation(partial(_problem, direction)) for direction in ROLES}
TRANSPOSED = _operation(_transposed)


Result = TypeVar("Result")


class SampleOperands:
    """The arrays that a call is prepared for, and possibly timed on."""

    def __init__(self, names: tuple[str, ...], given: tuple[Any, ...], out: Any, where: Stream) -> None:
        self._names, self._stream = names, where
        self.arrays = tuple(as_operand(array, name, where) for array, name in zip(given, names, strict=True))
        self._outs = () if out is None else (as_operand(out, "out", where, written=True),)

    def signature(self, params: tuple[Any, ...], alpha: float, beta: float) -> CallSignature:
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
