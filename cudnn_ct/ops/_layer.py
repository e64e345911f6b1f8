"""The path of the operations that have few ways: from arguments to a prepared call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .. import context
from .._config import config
from ..array import DeviceArray
from ..array_creation import as_operand
from ..context import Context
from ..cuda import stream as streams
from ..cuda.stream import Stream
from ..shapes.specs import TensorSpec
from ._call import (
    ONE,
    PLAIN,
    ZERO,
    PreparedCall,
    as_key,
    check_writable,
    contiguous,
    freeze,
    parse_scaling,
    remember,
    representable,
    run,
    run_several,
    stream_of,
)
from ._fallback import FirstSupported, Implementation

__all__ = ["Operation", "compute", "compute_several", "rewrite"]


_TAKEN = PLAIN | {tuple}  # kinds of arguments that are taken as they are
_NOTHING_GIVEN: tuple[TensorSpec | None, ...] = (None,)


class Operation(NamedTuple):
    """An operation: its name, the function that makes its problem, and its implementations, fastest first.

    ``problem`` takes the specs of the operands by their names, those of the results that are given (None for
    a new one), and the arguments as the caller wrote them. ``in_place`` says that a result may be an operand
    itself. ``written`` is the name of a result in messages. ``relayout`` is that of
    :class:`~cudnn_ct.ops._fallback.FirstSupported`.
    """

    name: str
    problem: Callable[..., Any]
    implementations: tuple[Implementation, ...]
    in_place: bool = False
    written: str = "out"
    relayout: bool = True


def compute(
    layer: Operation,
    names: tuple[str, ...],
    given: tuple[Any, ...],
    arguments: tuple[Any, ...],
    alpha: Any = 1,
    beta: float = 0,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """One call of an operation with one result; ``given`` are its operands, of these ``names``.

    ``alpha`` is a number, or :class:`~cudnn_ct.shapes.elementwise.OpTensorScales` for the plans that take
    two.
    """
    if alpha is not ONE or beta is not ZERO:
        alpha, beta = parse_scaling(alpha, beta, out)
    where = _stream_of(given[0], names[0], stream)
    previous = streams.set_device(where.device)
    try:
        ctx = context.current(where)
        arrays = _operands(names, given, where)
        if out is None:
            result, outs = None, _NOTHING_GIVEN
        else:
            result = as_operand(out, "out", where, written=True)
            outs = (result.spec,)
        call = _prepared(ctx, layer, names, arrays, outs, arguments, (alpha != 1, beta != 0))
        if call.pack:
            arrays = tuple(contiguous(array, where) for array in arrays)
        return run(ctx, call, arrays, result, alpha, beta, out)
    finally:
        if previous is not None:
            streams.restore_device(previous)


def compute_several(
    layer: Operation,
    names: tuple[str, ...],
    given: tuple[Any, ...],
    arguments: tuple[Any, ...],
    outs: Sequence[Any],
    alpha: float = 1,
    beta: float = 0,
    stream: Any = None,
    called: Sequence[str] = (),
) -> list[Any]:
    """One call of an operation with several results, of which those in ``outs`` are given.

    ``called`` are the names that the caller knows ``outs`` by, where that is not "out".
    """
    if alpha is not ONE or beta is not ZERO:
        alpha, beta = parse_scaling(alpha, beta, outs[0])
    where = _stream_of(given[0], names[0], stream)
    previous = streams.set_device(where.device)
    try:
        ctx = context.current(where)
        arrays = _operands(names, given, where)
        results: list[DeviceArray | None] = []
        specs: list[TensorSpec | None] = []
        for place, out in enumerate(outs):
            array = out
            if out is not None:
                array = as_operand(out, called[place] if called else "out", where, written=True)
            results.append(array)
            specs.append(None if array is None else array.spec)
        scaled = (alpha != 1, beta != 0)
        call = _prepared(ctx, layer, names, arrays, tuple(specs), arguments, scaled, called)
        if call.pack:
            arrays = tuple(contiguous(array, where) for array in arrays)
        made: list[Any] = run_several(ctx, call, arrays, results, alpha, beta)
        for place, out in enumerate(outs):
            if out is not None:
                made[place] = out
        return made
    finally:
        if previous is not None:
            streams.restore_device(previous)


def rewrite(layer: Operation, x: Any, alpha: float, stream: Any = None) -> Any:
    """One call of an operation that changes the array it is given, and returns it."""
    where = _stream_of(x, layer.written, stream)
    previous = streams.set_device(where.device)
    try:
        ctx = context.current(where)
        array = as_operand(x, layer.written, where, written=True)
        call = _prepared(ctx, layer, (), (), (array.spec,), (), ())
        return run(ctx, call, (), array, alpha, 0, x)
    finally:
        if previous is not None:
            streams.restore_device(previous)


def _stream_of(first: Any, name: str, stream: Any) -> Stream:
    if stream is None and type(first) is DeviceArray:
        return streams.current_stream(first.device)
    return stream_of(first, name, stream)


def _operands(names: tuple[str, ...], given: tuple[Any, ...], where: Stream) -> tuple[DeviceArray, ...]:
    device = where.device
    for array in given:
        if type(array) is not DeviceArray or array.device != device:
            return tuple(as_operand(array, name, where) for array, name in zip(given, names, strict=True))
    return given


def _prepared(
    ctx: Context,
    layer: Operation,
    names: tuple[str, ...],
    arrays: tuple[DeviceArray, ...],
    outs: tuple[TensorSpec | None, ...],
    arguments: tuple[Any, ...],
    scaled: tuple[bool, ...],
    called: Sequence[str] = (),
) -> PreparedCall:
    """Look the call up by its arguments as they were written; prepare it the first time.

    Calls that are ``scaled`` stand apart: where cuDNN refuses those, it may do the others. ``called`` are the
    names of ``outs``, where they have several.
    """
    specs = tuple([array.spec for array in arrays])
    kinds = tuple(map(type, arguments))  # 1, 1.0 and True are one key, and so are members of many enums
    if not _TAKEN.issuperset(kinds):
        arguments = freeze(arguments)
    key = (layer.name, names, specs, outs, arguments, kinds, scaled, config.snapshot)
    try:
        call: PreparedCall | None = ctx.calls.get(key)
    except TypeError:  # a list in a tuple, which is as good as a tuple, or something that is refused
        return _prepared(ctx, layer, names, arrays, outs, as_key(arguments), scaled, called)
    if call is None and (now := freeze(arguments)) is not arguments:
        return _prepared(ctx, layer, names, arrays, outs, now, scaled, called)
    if call is None:
        inputs = tuple(map(representable, specs))
        for place, out in enumerate(outs):
            check_writable(out, called[place] if called else layer.written)
        problem = layer.problem(dict(zip(names, inputs, strict=True)), outs, *arguments)
        call = PreparedCall.of(
            problem,
            inputs,
            problem.results,
            FirstSupported(problem, layer.implementations, ctx, scaled=any(scaled), relayout=layer.relayout),
            pack=inputs != specs,
            in_place=layer.in_place,
            what=layer.name,
        )
        remember(ctx.calls, key, call)
    return call
