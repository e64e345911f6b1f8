"""The path of a convolution in any direction: from arguments to a prepared call."""

from __future__ import annotations

from typing import Any, NamedTuple

from ... import algo_cache, context
from ..._config import config
from ...array import DeviceArray
from ...array_creation import as_operand
from ...autotune.request import AlgoRequest, request
from ...context import Context
from ...cuda import stream as streams
from ...cuda.stream import Stream
from ...plans.wrappers import ZeroOrScale
from ...shapes.conv import ROLES, ConvProblem, conv_problem, conv_transpose_shape
from ...shapes.specs import ALIGNMENT, TensorSpec
from .._call import (
    ONE,
    ZERO,
    PreparedCall,
    SinglePlan,
    as_key,
    check_writable,
    contiguous,
    enum_names,
    freeze,
    parse_scaling,
    remember,
    representable,
    run,
    scaling_kind,
    stream_of,
)
from . import candidates

__all__ = [
    "ConvParams",
    "Transposed",
    "call_of",
    "convolve",
    "prepared",
    "problem_of",
    "request_of",
    "settled_arguments",
]


class ConvParams(NamedTuple):
    """What a caller says of a convolution beside its operands, as it was written: part of a call's key."""

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

    @property
    def geometry(self) -> dict[str, Any]:
        """What decides the shape of the result."""
        return {name: getattr(self, name) for name in ("padding", "stride", "dilation", "groups")}


class Transposed(NamedTuple):
    """Takes the place of a shape in a transposed convolution, whose shape follows from its operands."""

    output_padding: Any
    kind: str = "transposed"  # as a key it is no shape


def convolve(
    direction: str,
    first: Any,
    second: Any,
    shape: Any,
    arguments: tuple[Any, ...],
    alpha: float,
    beta: float,
    out: Any,
    stream: Any,
    names: tuple[str, ...] | None = None,
) -> Any:
    """One call of any direction, operands in the order of its `shapes.conv.ROLES`; see
    :class:`ConvParams`."""
    if alpha is not ONE or beta is not ZERO:
        alpha, beta = parse_scaling(alpha, beta, out)
    if stream is None and type(first) is DeviceArray:
        where = streams.current_stream(first.device)
    else:
        where = stream_of(first, (names or ROLES[direction].names)[0], stream)
    previous = streams.set_device(where.device)
    try:
        ctx = context.current(where)
        if not (_is_here(first, where) and _is_here(second, where)):
            names = names or ROLES[direction].names
            first, second = as_operand(first, names[0], where), as_operand(second, names[1], where)
        result = None if out is None else as_operand(out, "out", where, written=True)
        scaled = scaling_kind(alpha, beta)
        call = prepared(ctx, direction, first, second, result, shape, arguments, scaled)
        if call.pack:
            first, second = contiguous(first, where), contiguous(second, where)
        return run(ctx, call, (first, second), result, alpha, beta, out)
    finally:
        if previous is not None:
            streams.restore_device(previous)


def _is_here(array: Any, where: Stream) -> bool:
    """Whether an operand needs no import and no check: one of ours, on the device of the call."""
    return type(array) is DeviceArray and array.device == where.device


def prepared(
    ctx: Context,
    direction: str,
    first: DeviceArray,
    second: DeviceArray,
    result: DeviceArray | None,
    shape: Any,
    arguments: tuple[Any, ...],
    scaled: str,
) -> PreparedCall:
    """Look the call up by its arguments as they were written; prepare it the first time."""
    pointers = first.pointer | second.pointer
    if result is None:
        out = None
    else:
        out, pointers = result.spec, pointers | result.pointer
    aligned = not pointers % ALIGNMENT
    key = (direction, first.spec, second.spec, out, shape, arguments, scaled, aligned, config.snapshot)
    try:
        call: PreparedCall | None = ctx.calls.get(key)
    except TypeError:  # no key: a list, which is as good as a tuple, or something that is refused
        return prepared(ctx, direction, first, second, result, as_key(shape), as_key(arguments), scaled)
    if call is None and (now := settled_arguments(arguments)) is not arguments:
        return prepared(ctx, direction, first, second, result, shape, now, scaled)
    if call is None:
        told, specs = ConvParams(*arguments), (first.spec, second.spec)
        problem, inputs = problem_of(direction, *specs, out, shape, told, scaled, aligned)
        call = remember(ctx.calls, key, call_of(ctx, problem, inputs, specs, request_of(told, problem)))
    return call


def settled_arguments(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """What :class:`ConvParams` are made of as it is now; itself where it cannot change."""
    now: tuple[Any, ...] = freeze(arguments)
    told = enum_names(was := ConvParams(*now), "mode", "precision", "algo")
    return now if told is was else tuple(told)


def problem_of(
    direction: str,
    first: TensorSpec,
    second: TensorSpec,
    out: TensorSpec | None,
    shape: Any,
    arguments: ConvParams,
    scaled: str,
    aligned: bool,
) -> tuple[ConvProblem, tuple[TensorSpec, TensorSpec]]:
    """The problem that arguments make, and the inputs as a descriptor can hold them."""
    if isinstance(shape, Transposed):
        shape = conv_transpose_shape(
            second.shape, first.shape, output_padding=shape.output_padding, **arguments.geometry
        )
    inputs = (representable(first), representable(second))
    check_writable(out)
    problem = conv_problem(
        direction,
        *inputs,
        shape=shape,
        mode=arguments.mode,
        precision=arguments.precision,
        allow_tf32=config.allow_tf32,
        out=out,
        scaled=scaled,
        aligned=aligned,
        **arguments.geometry,
    )
    return problem, inputs


def request_of(arguments: ConvParams, problem: Any) -> AlgoRequest:
    """How a call wants its algorithm chosen, with what the settings say where it does not."""
    try:
        return request(
            config.algo if arguments.algo is None else arguments.algo,
            config.deterministic if arguments.deterministic is None else arguments.deterministic,
            config.workspace_limit if arguments.workspace_limit is None else arguments.workspace_limit,
            arguments.strict,
            problem,
        )
    except ValueError as error:
        if arguments.algo is None:
            error.add_note("the algorithm is the one that ct.config.algo or CUDNN_CT_ALGO names")
        raise


def call_of(
    ctx: Context,
    problem: ConvProblem,
    inputs: tuple[TensorSpec, ...],
    given: tuple[TensorSpec, ...],
    wanted: AlgoRequest,
) -> PreparedCall:
    """Choose how to compute a problem; ``given`` are its inputs before any of them was made describable."""
    result = problem.result
    empty = not (problem.x.size and problem.w.size and problem.y.size)
    choice: Any = (
        SinglePlan(ZeroOrScale(result)) if empty else algo_cache.select(problem, candidates, ctx, wanted)
    )
    return PreparedCall.of(problem, inputs, (result,), choice, pack=inputs != given)
