"""The one path of every call: from arguments to a prepared call, from a prepared call to enqueued work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from .. import array_shapes, context
from .._caches import CallCache, Parameters
from .._config import config
from ..array import DeviceArray
from ..array_creation import as_operand
from ..context import Context, local
from ..cuda import stream as streams
from ..cuda.allocator import allocate_block
from ..cuda.foreign import place_of
from ..cuda.launch_log import add_launch_history
from ..cuda.stream import Stream, in_use
from ..errors import CudnnError, ExecutionFailedError, NotInitializedError
from ..shapes.checks import as_float, result_slots
from ..shapes.tensor import OpTensorScales
from ._operands import import_arrays, read_arrays, refuse_overlap, wrap_arrays
from ._operation import NEW, CallSignature, Operation, PreparedCall, call_on_shapes
from ._replay import count_run, repeat_of, replayed
from ._state import CallState

R = TypeVar("R", bound=tuple[Any, ...])

ONE, ZERO = 1, 0  # default alpha and beta; compared by identity because that is the cheapest test
UNSCALED = (False, False)
NO_VARIANT: tuple[str, ...] = ()


def execute(
    op: Operation,
    names: tuple[str, ...],
    operands: tuple[Any, ...],
    params: tuple[Any, ...] = (),
    alpha: Any = 1,
    beta: Any = 0,
    outs: tuple[Any, ...] = NEW,
    stream: Any = None,
    state: CallState | None = None,
) -> Sequence[DeviceArray]:
    """Call an operation, and return its results: the arrays in ``outs``, new arrays for each None.

    ``operands`` are arrays of any library with these ``names``; an operation without operands changes its
    results. ``alpha`` is a number, or :class:`~cudnn_ct.shapes.tensor.OpTensorScales` for plans that
    take two. ``state`` is for operations that take or leave more than arrays.
    """
    scaled = UNSCALED
    if alpha is not ONE or beta is not ZERO:
        alpha, beta = parse_scaling(alpha, beta, outs[0])
        scaled = (alpha != 1, beta != 0)
    first = operands[0] if operands else outs[0]
    arrays: tuple[Any, ...] = ()
    found = None
    if type(first) is not DeviceArray:
        on_shapes = array_shapes.active()
        if state is stream is None and operands and not on_shapes:
            arrays = operands
            for out in outs:
                if out is not None:
                    arrays += outs
                    break
            if (last := local.contexts.last) is not None:
                find, n = last.calls.parameters, len(arrays)
                try:  # the place is that of `place_of`, whose call takes as long
                    size, middle = first.numel(), arrays[n // 2].numel()
                    known = find(n, size, middle, len(outs), op.problem, names, scaled, *params)
                except Exception:  # of any kind: no tensor, one without a shape, new or unhashable parameters
                    known = Parameters()
                for repeat in known:
                    results: Sequence[DeviceArray] | None = repeat(last, arrays, alpha, beta)
                    if results is not None:
                        return results
        if first is None and not operands:
            raise TypeError(f"{op.written[0]} is not an array: got NoneType")
        if on_shapes:
            streams.check_stream(stream)
            return call_on_shapes(op, names, operands, params, scaled, outs, (alpha, beta))
        found = read_arrays(operands, outs, stream) if state is None else None
        if found is None:
            operands, outs, stream = import_arrays(operands, outs, names, op.written, stream)
            first = operands[0] if operands else outs[0]
    if found is None:
        where = in_use.get() if stream is None else streams.as_stream(stream, first.key.device)
        device = first.key.device if where is None else where.device
        ctx = local.contexts.get(device)
        if ctx is None or ctx.running:
            ctx = context.of_device(device)
        if where is None:
            where = ctx.default
    else:
        where = found[0]
        ctx = context.of_device(where.device)
    previous = None if ctx.alone else ctx.enter()
    try:
        calls = ctx.calls
        if state is not None:
            if ctx.stream is not where:
                ctx.set_stream(where)
            calls = state.calls(ctx)
        # The key of the prepared call, and what its run depends on besides: one loop, because it is hot.
        key: list[Any] = [op.problem, names, scaled, config.snapshot]
        facts: list[Any] = [where.handle]
        elsewhere = False  # whether an array belongs to another stream, or was used on one
        if found is not None:
            key += found[1]
            facts += found[2]
            outs = tuple(found[3])
        else:
            try:
                for array in operands:
                    key.append(array.key)
                    facts.append(array.pointer)
                    if array.writer is not where or array.home is not where:
                        elsewhere = True
                for out in outs:
                    if out is None:
                        key.append(None)
                    else:
                        key.append(out.key)
                        if (
                            out.writer is not where
                            or out.home is not where
                            or (out._uses is not None and out._uses.events)  # another stream may read it
                        ):
                            elsewhere = True
            except AttributeError:  # an array of another library
                operands, outs, where = import_arrays(operands, outs, names, op.written, stream)
                return execute(op, names, operands, params, alpha, beta, outs, where, state)
            except NotInitializedError:  # an array without memory
                if array_shapes.active():
                    streams.check_stream(stream)
                    return call_on_shapes(op, names, operands, params, scaled, outs, (alpha, beta))
                raise
        call: PreparedCall | None = None
        try:
            key.append(calls.parameters(*params) if params else None)
            call = calls.get(tuple(key))
            if call is not None and arrays and found is not None:
                keys = [one for one in found[1] if one is not None]
                repeat = repeat_of(run, ctx, call, arrays, keys, len(operands))
                if repeat is not None:
                    place = (*place_of(arrays), len(outs), op.problem, names, scaled)
                    calls.add_parameters((*place, *params)).add(repeat)
        except (LookupError, TypeError):  # new or unhashable parameters
            pass
        if call is None:
            if found is not None:
                operands = wrap_arrays(operands, found[1], found[2], where)
            ctx.set_stream(where)
            call = _prepared(ctx, calls, op, names, operands, params, scaled, outs, key)
        if state is None:
            return run(ctx, call, operands, outs, facts, elsewhere, alpha, beta, where)
        return state.run(run, ctx, call, operands, outs, facts, elsewhere, alpha, beta, where)
    finally:
        if previous is not None:
            streams.restore_device(previous)


def execute_as(
    kind: type[R],
    op: Operation,
    given: dict[str, Any],
    params: tuple[Any, ...],
    out: Any,
    stream: Any,
    absent: str = "",
    count: int = 1,
    alpha: Any = 1,
    beta: Any = 0,
) -> R:
    """Call an operation on operands by name, and return its results as a named tuple.

    ``absent`` is the reason why the last ``count`` results do not exist: they are None.
    """
    fields: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]  # of a named tuple
    outs = result_slots(out, fields, absent=absent, count=count)
    results = execute(op, tuple(given), tuple(given.values()), params, alpha, beta, outs, stream)
    return tuple.__new__(kind, (*results, *[None] * (len(fields) - len(outs))))  # without its constructor


def _prepared(
    ctx: Context,
    calls: CallCache,
    op: Operation,
    names: tuple[str, ...],
    operands: tuple[DeviceArray, ...],
    params: tuple[Any, ...],
    scaled: tuple[bool, bool],
    outs: tuple[DeviceArray | None, ...],
    key: list[Any],
) -> PreparedCall:
    """Check the arrays of a call and prepare it, unless it is prepared.

    It is prepared for a snapshot of its parameters, the last element of its key. Scaled calls have calls of
    their own: cuDNN may reject those and support the others.
    """
    for array, name in zip(operands, names, strict=True):
        as_operand(array, name, ctx.stream)
    for place, out in enumerate(outs):
        if out is not None:
            as_operand(out, op.written[place], ctx.stream, written=True)
    arrays = key[3 : 4 + len(operands) + len(outs)]
    params = op.freeze(params)
    try:
        known = calls.parameters(*params) if params else None
        call: PreparedCall | None = calls.get((*key[:3], *arrays, known))
    except LookupError:
        call = None
    if call is not None:
        return call
    specs: list[Any] = []
    aligned = True
    for one in (*operands, *outs):
        specs.append(None if one is None else one.key.spec)
        if one is not None and not one.key.aligned and one.key.spec.representable:  # others are copied
            aligned = False
    inputs, given = tuple(specs[: len(operands)]), tuple(specs[len(operands) :])
    call = op.settle(CallSignature(names, inputs, given, params, scaled, aligned))(ctx)
    # Another thread may have changed a setting since: the call may belong to the old settings.
    if arrays[0] is config.snapshot:
        calls[(*key[:3], *arrays, calls.add_parameters(params) if params else None)] = call
    return call


def run(
    ctx: Context,
    call: PreparedCall,
    operands: tuple[DeviceArray, ...],
    given: tuple[DeviceArray | None, ...],
    facts: Any,
    elsewhere: bool,
    alpha: Any,
    beta: float,
    stream: Stream,
    variant: tuple[Any, ...] | None = NO_VARIANT,
) -> Sequence[DeviceArray]:
    """Allocate new results, order the streams, run or replay the plan, record the uses; return the results.

    ``facts`` are the address of the stream and the pointers of the operands; ``elsewhere`` is false if all of
    them belong to the stream. ``variant`` has what a run depends on besides its pointers and factors; it is
    None for a run that must not be replayed.
    """
    results: Sequence[Any] = given
    if len(given) > 1:
        results = DeviceArray.allocate_many(call.result_slots, given, stream, call.label)
        facts = (*facts, *[array.pointer for array in results])
    elif given[0] is None:
        nbytes, key = call.result_slots[0]
        buffer = allocate_block(nbytes, stream, call.label)
        facts = (*facts, buffer.handle)
        results = (DeviceArray(key, buffer.handle, buffer, stream, stream),)
    else:
        facts = (*facts, given[0].pointer)
    if variant is not NO_VARIANT or alpha is not ONE or beta is not ZERO:
        facts = (*facts, variant, repr(alpha), repr(beta))  # repr distinguishes 0.0 and -0.0
    if ctx.lent is not None:
        facts = (*facts, ctx.lent.handle, ctx.lent.size)
    if ctx.stream is not stream:  # this also rejects a stream that a recorded function must not use
        ctx.set_stream(stream)
    if elsewhere or variant is None or not replayed(ctx, call, facts, given):
        arrays: Sequence[DeviceArray] = operands
        if set(map(type, operands)) != {DeviceArray}:
            arrays = [  # those that were only read become arrays of this package
                array
                if type(array) is DeviceArray
                else DeviceArray.over(spec, pointer, array, stream, stream, external=True)
                for array, spec, pointer in zip(operands, call.inputs, facts[1:], strict=False)
            ]
        _enqueue(ctx, call, arrays, given, facts, elsewhere, alpha, beta, stream, variant)
    ctx.last_call = call
    if ctx.watched is not None:
        ctx.watched.append((call, facts, alpha, beta, variant))
    return results


def _enqueue(
    ctx: Context,
    call: PreparedCall,
    operands: Sequence[DeviceArray],
    given: Sequence[DeviceArray | None],
    facts: tuple[Any, ...],
    elsewhere: bool,
    alpha: Any,
    beta: float,
    stream: Stream,
    variant: tuple[Any, ...] | None,
) -> None:
    """Order the streams, run or replay the plan, and record the uses."""
    copies, written = call.copies, []
    for out in given:
        if out is not None:
            written.append(out)  # a comprehension would be a Python call
    if written and facts not in call.runs:
        read: Sequence[DeviceArray | None] = operands
        if copies is not None:
            read = [None if place in copies.places else array for place, array in enumerate(operands)]
        refuse_overlap(read, given, call.spans, in_place=call.in_place)
        call.set_runs(facts, 0)
    # New results belong to the stream, so nothing has to wait for them.
    if elsewhere:
        for array in operands:
            array.wait_for_writer(stream)
        for array in written:
            array.before_write(stream)
    pointers = facts[1 : 1 + len(operands) + len(given)]
    ctx.running = True
    try:
        if elsewhere and variant is not None and replayed(ctx, call, facts):
            return
        if ctx.stream is not stream:  # a finalizer has made a call since
            ctx.set_stream(stream)
        given_to_plan: Sequence[int] = pointers
        if copies is not None:
            given_to_plan, _memory = copies.made(ctx, pointers)
        if call.fresh:
            call.run_first(ctx, given_to_plan, alpha, beta)
        else:
            try:
                call.selected.plan.run(ctx, given_to_plan, alpha, beta)
            except CudnnError as error:
                if not call.selected.run_other(error, ctx, given_to_plan, alpha, beta):
                    raise
        ctx.replays.backlog.left -= 1  # here, as a call may look for a graph twice
        if variant is not None:
            count_run(ctx, call, facts, pointers, (alpha, beta))
    except CudnnError as error:
        error.add_note(f"in {call.problem}, alpha {alpha}, beta {beta}")
        if isinstance(error, ExecutionFailedError):
            add_launch_history(error, stream)
        raise
    finally:  # also if a later part failed: an earlier one may be pending
        ctx.running = False
        if elsewhere:
            for array in operands:
                array.record_use(stream)
            for array in written:
                array.after_write(stream)


def parse_scaling(alpha: Any, beta: Any, out: Any) -> tuple[Any, float]:
    """Alpha, a number or :class:`OpTensorScales`, and beta as numbers; raise where beta has nothing to
    multiply."""
    if type(alpha) not in (float, OpTensorScales):
        alpha = as_float(alpha, "alpha")
    if beta is not ZERO and type(beta) is not float:
        beta = as_float(beta, "beta")
    check_beta(beta, out)
    return alpha, beta


def check_beta(beta: float, out: Any) -> None:
    """Raise where there is a factor and nothing that it multiplies."""
    if beta and out is None:
        raise ValueError(f"beta={beta:g} needs out, the array that it multiplies")
