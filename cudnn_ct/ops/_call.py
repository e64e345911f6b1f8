"""The one path of every call: from arguments to a prepared call, from a prepared call to enqueued work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from .. import context
from .._caches import CallCache
from .._config import config
from ..array import DeviceArray, ResultSlot
from ..array_creation import as_operand
from ..context import Context
from ..cuda import stream as streams
from ..cuda.allocator import allocate_block
from ..cuda.launch_log import add_launch_history
from ..cuda.stream import Stream
from ..cuda.typed_memory import array_key
from ..errors import CudnnError, ExecutionFailedError
from ..plans.base import SelectedPlan
from ..shapes.elementwise import OpTensorScales
from ..shapes.parse import as_float
from ..shapes.specs import TensorSpec
from ._fallback import FirstSupported, Implementation
from ._keys import freeze, scaling_kind
from ._operands import byte_extent, check_writable, contiguous, refuse_overlap, representable, stream_of

if TYPE_CHECKING:
    from ._state import CallState

ONE, ZERO = 1, 0  # default alpha and beta; compared by identity because that is the cheapest test
NEW: tuple[Any, ...] = (None,)  # one new result, the case of most calls
MAX_POINTER_SETS = 256  # sets of pointers of which a call knows that they do not overlap


class PreparedCall(NamedTuple):
    """A call that one thread prepared for one set of arguments: all that depends on specs, not on pointers.

    ``needs_copy`` is set if some input has strides that no descriptor holds, and is copied first;
    ``in_place`` if a result may lie exactly where an input does. ``label`` names the results in messages.
    ``result_slots`` are what the results take. ``spans`` are the bytes that each operand reaches from its
    pointer, the results last. ``disjoint_pointers`` are pointers for which the results are known to overlap
    nothing. ``fresh`` is not empty before the first run.
    """

    problem: Any
    inputs: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    selected: SelectedPlan
    needs_copy: bool
    in_place: bool
    label: str
    result_slots: tuple[ResultSlot, ...]
    spans: tuple[tuple[int, int], ...]
    disjoint_pointers: set[tuple[int | None, ...]]
    fresh: list[bool]

    @classmethod
    def of(
        cls,
        problem: Any,
        inputs: tuple[TensorSpec, ...],
        results: tuple[TensorSpec, ...],
        selected: SelectedPlan,
        device: int,
        *,
        label: str,
        needs_copy: bool = False,
        in_place: bool = False,
    ) -> Self:
        """Make a call, with the fields that follow from the specs."""
        slots = tuple((spec, byte_extent(spec)[1], array_key(spec, device, True, False)) for spec in results)
        spans = tuple(map(byte_extent, (*inputs, *results)))
        label = f"the result of {label}"
        return cls(
            problem, inputs, results, selected, needs_copy, in_place, label, slots, spans, set(), [True]
        )

    @streams.relaxed()
    def run_first(self, ctx: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Run for the first time: cuDNN may load modules and allocate, which captures elsewhere forbid."""
        self.selected.run(ctx, pointers, alpha, beta)
        self.fresh.clear()

    def refuse_overlap(
        self,
        inputs: Sequence[DeviceArray],
        results: Sequence[DeviceArray | None],
        pointers: tuple[int | None, ...],
    ) -> None:
        """Raise where a result shares memory with another operand: cuDNN would read what it has written.

        A result that is None is to be new memory, which no other array shares; so are its ``pointers``.
        """
        refuse_overlap(inputs, results, self.spans, in_place=self.in_place)
        if len(self.disjoint_pointers) >= MAX_POINTER_SETS:
            self.disjoint_pointers.clear()
        self.disjoint_pointers.add(pointers)


class CallSignature(NamedTuple):
    """All that a prepared call depends on, except for the settings.

    ``names`` and ``specs`` are those of the operands. ``outs`` are the specs of results that the caller gave,
    None for new ones. ``params`` are the other arguments as the caller wrote them. ``scaled`` is whether
    alpha is not 1 and whether beta is not 0; ``aligned`` whether all pointers are multiples of 16 bytes.
    """

    names: tuple[str, ...]
    specs: tuple[TensorSpec, ...]
    outs: tuple[TensorSpec | None, ...] = NEW
    params: tuple[Any, ...] = ()
    scaled: tuple[bool, bool] = (False, False)
    aligned: bool = True


Select = Callable[[Context], SelectedPlan]
"""Select the plan that runs a problem in a thread."""


class Operation(NamedTuple):
    """An operation: its name, the function that makes its problem, and how a plan is selected.

    ``problem`` takes the specs of the operands by their names, the specs of the results that are given (None
    for a new one), and the arguments as the caller wrote them. Most operations list ``implementations``, the
    fastest first. Those that are autotuned have ``select`` instead, which takes the problem and the
    arguments; their ``problem`` gets the scaling and the alignment as ``scaled`` and ``aligned``.

    ``in_place`` is set if a result may be an operand itself. ``written`` are the names of the results in
    messages. ``relayout`` is that of :class:`~cudnn_ct.ops._fallback.FirstSupported`. ``freeze`` makes an
    immutable snapshot of the arguments.
    """

    name: str
    problem: Callable[..., Any]
    implementations: tuple[Implementation, ...] = ()
    in_place: bool = False
    written: tuple[str, ...] = ("out",)
    relayout: bool = True
    select: Callable[[Any, tuple[Any, ...]], Select] | None = None
    freeze: Callable[[tuple[Any, ...]], tuple[Any, ...]] = freeze

    def settle(self, signature: CallSignature) -> Callable[[Context], PreparedCall]:
        """Check arguments, and return a function that prepares their call for a thread and a device."""
        inputs = tuple(map(representable, signature.specs))
        for name, out in zip(self.written, signature.outs, strict=False):
            check_writable(out, name)
        problem = self.problem_of(signature, inputs)
        select = self.select(problem, signature.params) if self.select else None

        def prepare(ctx: Context) -> PreparedCall:
            return PreparedCall.of(
                problem,
                inputs,
                problem.results,
                select(ctx) if select else self._first_supported(problem, ctx, any(signature.scaled)),
                ctx.device,
                needs_copy=inputs != signature.specs,
                in_place=self.in_place,
                label=self.name,
            )

        return prepare

    def problem_of(self, signature: CallSignature, inputs: tuple[TensorSpec, ...]) -> Any:
        """Make the problem of a call whose operands are ``inputs``."""
        specs = dict(zip(signature.names, inputs, strict=True))
        if self.select is None:
            return self.problem(specs, signature.outs, *signature.params)
        scaled = scaling_kind(*signature.scaled)
        return self.problem(
            specs, signature.outs, *signature.params, scaled=scaled, aligned=signature.aligned
        )

    def _first_supported(self, problem: Any, ctx: Context, scaled: bool) -> FirstSupported:
        return FirstSupported(problem, self.implementations, ctx, scaled=scaled, relayout=self.relayout)


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
    results. ``alpha`` is a number, or :class:`~cudnn_ct.shapes.elementwise.OpTensorScales` for plans that
    take two. ``state`` is for operations that take or leave more than arrays.
    """
    scaled = (False, False)
    if alpha is not ONE or beta is not ZERO:
        alpha, beta = parse_scaling(alpha, beta, outs[0])
        scaled = (alpha != 1, beta != 0)
    first = operands[0] if operands else outs[0]
    ours = type(first) is DeviceArray
    if stream is None and ours:
        where = streams.current_stream(first.device)
    else:
        where = stream_of(first, (names or op.written)[0], stream)
    previous = streams.set_device(where.device)
    try:
        ctx = context.current(where)
        calls = ctx.calls if state is None else state.calls(ctx)
        call: PreparedCall | None = None
        if ours:  # other arrays are imported first
            try:
                key = (
                    op.problem,
                    names,
                    calls.parameters(*params),
                    scaled,
                    config.snapshot,
                    tuple([array.key for array in operands]),  # a list first: faster than a generator or map
                    (None if outs[0] is None else outs[0].key,) if len(outs) == 1 else _keys_of(outs),
                )
                call = calls.get(key)
            except (AttributeError, LookupError, TypeError):  # another array, new or unhashable parameters
                pass
        if call is None:
            call, operands, outs = _prepared(ctx, calls, op, names, operands, params, scaled, outs, where)
        if call.needs_copy:
            operands = tuple([contiguous(array, where) for array in operands])
        return (run if state is None else state.run)(ctx, call, operands, outs, alpha, beta, where)
    finally:
        if previous is not None:
            streams.restore_device(previous)


def _keys_of(arrays: Sequence[DeviceArray | None]) -> tuple[Any, ...]:
    return tuple([None if array is None else array.key for array in arrays])


def _prepared(
    ctx: Context,
    calls: CallCache,
    op: Operation,
    names: tuple[str, ...],
    operands: tuple[Any, ...],
    params: tuple[Any, ...],
    scaled: tuple[bool, bool],
    outs: tuple[Any, ...],
    where: Stream,
) -> tuple[PreparedCall, tuple[DeviceArray, ...], tuple[DeviceArray | None, ...]]:
    """Import the arrays of a call and prepare it, unless it is prepared; return it with its arrays.

    It is prepared for a snapshot of its parameters. Scaled calls have calls of their own: cuDNN may reject
    those and support the others.
    """
    operands = tuple([as_operand(array, name, where) for array, name in zip(operands, names, strict=True)])
    given = [
        None if out is None else as_operand(out, op.written[place], where, written=True)
        for place, out in enumerate(outs)
    ]
    inputs, results = _keys_of(operands), _keys_of(given)
    settings = config.snapshot

    def key(parameters: object) -> tuple[Any, ...]:
        return op.problem, names, parameters, scaled, settings, inputs, results

    def known(params: tuple[Any, ...]) -> PreparedCall | None:
        try:
            return calls.get(key(calls.parameters(*params)))
        except (LookupError, TypeError):  # new parameters, or a list
            return None

    call = known(params)
    if call is None:
        call = known(params := op.freeze(params))
    if call is None:
        specs, out_specs = (tuple([one and one.spec for one in keys]) for keys in (inputs, results))
        aligned = all(one is None or one.aligned for one in (*inputs, *results))
        call = op.settle(CallSignature(names, specs, out_specs, params, scaled, aligned))(ctx)
        # Another thread may have changed a setting since: the call may belong to the old settings.
        if settings is config.snapshot:
            calls[key(calls.add_parameters(params))] = call
    return call, operands, tuple(given)


def run(
    ctx: Context,
    call: PreparedCall,
    operands: tuple[DeviceArray, ...],
    given: tuple[DeviceArray | None, ...],
    alpha: Any,
    beta: float,
    stream: Stream,
) -> Sequence[DeviceArray]:
    """Allocate new results, order the streams, run the plan and record the uses; return the results."""
    written: Sequence[Any] = ()
    results: Sequence[Any] = given
    if len(given) > 1:
        results, written, pointers = _several_results(call, operands, given, stream)
    elif given[0] is None:
        spec, nbytes, key = call.result_slots[0]
        buffer = allocate_block(nbytes, stream, call.label)
        result = DeviceArray(spec, buffer.handle, buffer, stream, stream, key)
        results = (result,)
        pointers = (*[array.pointer for array in operands], result.pointer)
    else:
        written = given
        pointers = (*[array.pointer for array in operands], given[0].pointer)
        if pointers not in call.disjoint_pointers:
            call.refuse_overlap(operands, given, pointers)
    # New results belong to the stream, so nothing has to wait for them.
    elsewhere = False  # whether an operand belongs to another stream
    for array in operands:
        if array.writer is not stream:
            array.wait_for_writer(stream)
        if array.home is not stream:
            elsewhere = True
    for array in written:
        if array.writer is not stream or array._uses is not None:
            array.before_write(stream)
    ctx.running = True
    try:
        if ctx.stream is not stream:  # a finalizer has made a call since
            ctx.set_stream(stream)
        if call.fresh:
            call.run_first(ctx, pointers, alpha, beta)
        else:
            call.selected.run(ctx, pointers, alpha, beta)
    except CudnnError as error:
        add_context(error, f"in {call.problem}, alpha {alpha}, beta {beta}", stream)
        raise
    finally:  # also if a later part failed: an earlier one may be pending
        ctx.running = False
        if elsewhere:
            for array in operands:
                array.record_use(stream)
        for array in written:
            if array.home is not stream or array.writer is not stream:
                array.after_write(stream)
    ctx.last_call = call
    return results


def _several_results(
    call: PreparedCall,
    operands: tuple[DeviceArray, ...],
    given: tuple[DeviceArray | None, ...],
    stream: Stream,
) -> tuple[Sequence[DeviceArray], Sequence[DeviceArray], tuple[int, ...]]:
    """Allocate the results that are not given; return all results, those given, and the pointers of a run."""
    written = [array for array in given if array is not None]
    if written:
        # An address may be that of another result the next time.
        places = tuple([None if array is None else array.pointer for array in (*operands, *given)])
        if places not in call.disjoint_pointers:
            call.refuse_overlap(operands, given, places)
    results = DeviceArray.allocate_many(call.result_slots, given, stream, call.label)
    return results, written, tuple([array.pointer for array in (*operands, *results)])


def add_context(error: CudnnError, where: str, stream: Stream) -> None:
    """Note on an error where it came up; on one of the device, what may have failed before."""
    error.add_note(where)
    if isinstance(error, ExecutionFailedError):
        add_launch_history(error, stream)


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
