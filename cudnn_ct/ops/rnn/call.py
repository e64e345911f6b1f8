"""The path of a call of a recurrent network: what is prepared for one set of arguments, and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ... import algo_cache
from ...array import DeviceArray, ResultSlot
from ...array_creation import as_operand
from ...autotune.request import AlgoRequest
from ...context import Context
from ...cuda import memory as memories
from ...cuda.stream import Stream
from ...dtypes import DTYPES
from ...errors import CudnnError, NotSupportedError
from ...shapes.checks import one_dtype
from ...shapes.rnn import RNN_ALGOS, RNNSpec
from ...shapes.rnn_params import rnn_weight_size
from ...shapes.rnn_problem import RNNProblem, rnn_problem, why_not_packed
from ...shapes.sequences import check_rnn_operands, rnn_layout
from ...shapes.specs import ALIGNMENT, TensorSpec
from .._call import MAX_POINTER_SETS, SinglePlan, add_context, ordered
from .._operands import byte_extent, refuse_overlap
from ..tensor import transform
from .candidates import RNNFamily, rnn_rows
from .plans import EmptyRNNPlan

__all__ = [
    "RNNCall",
    "ResultSlot",
    "aligned",
    "as_given",
    "contiguous",
    "enqueue",
    "given_results",
    "parts_of",
    "prepare",
    "result_slot",
]

WHAT = "a result of a recurrent network"


class RNNCall(NamedTuple):
    """What one thread prepared for one set of arguments of a network.

    ``results`` are y, h and c after; ``gradients`` those of x, h and c before. ``packs`` says that some
    operand has gaps, and is copied first. ``disjoint_pointers`` are steps with addresses of which it is known
    that no result overlaps anything.
    """

    problem: RNNProblem
    lengths: tuple[int, ...]
    choice: Any
    results: tuple[ResultSlot, ...]
    gradients: tuple[ResultSlot, ...]
    packs: bool
    disjoint_pointers: set[tuple[Any, ...]]


def prepare(
    ctx: Context,
    spec: RNNSpec,
    request: AlgoRequest,
    specs: tuple[TensorSpec | None, ...],
    lengths: Any,
    layout: Any,
    training: bool,
    padding: float,
    networks: dict[Any, Any],
    dropout: Any,
) -> RNNCall:
    """Check the arguments of a pass forward, and choose how to compute it.

    ``specs`` are those of x, the weights, h0 and c0, the latter None where they are not given.

    Raises
    ------
    TypeError, ValueError
        What does not fit; the message has the numbers.
    NotSupportedError
        cuDNN has no way; or not the algorithm that was named, and then the message has those that it has.
    """
    names = ("x", "w", "h0", "c0")
    present = {name: one for name, one in zip(names, specs, strict=True) if one is not None}
    shape = {name: one.shape for name, one in present.items()}
    layout = rnn_layout(layout)
    shapes, found = check_rnn_operands(spec, shape["x"], shape.get("h0"), shape.get("c0"), lengths, layout)
    check_weights(spec, present["w"])
    dtypes = {name: one.dtype for name, one in present.items()}
    one_dtype("a recurrent network", network=spec.dtype, **dtypes)
    batch = shapes.h[1]
    axis = 1 if layout == "batch_major" else 0
    steps = max(found, default=0) if layout == "packed" else shapes.x[axis]
    problem = rnn_problem(spec, layout, steps, batch, found, training)
    y, x, *states = (result_slot(dims, spec.dtype) for dims in (shapes.y, shapes.x, shapes.h, shapes.c))
    choice: Any
    if not any(found):
        choice = SinglePlan(EmptyRNNPlan(problem, shapes, padding))
    else:
        if problem.layout == "packed" and why_not_packed(found):
            raise NotSupportedError(why_not_packed(found))
        family = RNNFamily(found, padding, networks, dropout)
        choice = _chosen(problem, family, ctx, request)
    gaps = any("nchw" not in one.layouts for one in present.values())
    return RNNCall(problem, found, choice, (y, *states), (x, *states), gaps, set())


def result_slot(shape: tuple[int, ...] | None, dtype: str) -> ResultSlot:
    """What a result of a shape takes, in C order."""
    if shape is None:
        return None
    spec = TensorSpec.packed(shape, dtype)
    return spec, spec.size * DTYPES[dtype].itemsize


def check_weights(spec: RNNSpec, w: TensorSpec) -> None:
    """Raise unless an array can hold all parameters of a network."""
    items = rnn_weight_size(spec)
    if w.shape != (items,):
        raise ValueError(
            f"w has shape {w.shape}; the weights of this network are one axis, ({items},): {spec}"
        )


def _chosen(problem: RNNProblem, family: RNNFamily, ctx: Context, request: AlgoRequest) -> Any:
    try:
        return algo_cache.select(problem, family, ctx, request)
    except NotSupportedError as error:
        if request.algo not in RNN_ALGOS:
            raise
        others = [algo for algo in RNN_ALGOS if algo != request.algo and _can(problem, algo, family, ctx)]
        raise NotSupportedError(
            f"algo={request.algo!r} does not support this case; {', '.join(others) or 'no other'} "
            f"do{'es' * (len(others) < 2)}\n{error}",
            status=error.status,
            function=error.function,
            detail=error.detail,
        ) from error


def _can(problem: RNNProblem, algo: str, family: RNNFamily, ctx: Context) -> bool:
    (row,) = rnn_rows(problem, (algo,))
    try:
        family.plan(problem, row, ctx)
    except CudnnError:
        return False
    return True


def contiguous(array: DeviceArray | None, stream: Stream) -> DeviceArray | None:
    """The array itself, or a copy in C order that begins where kernels may load several elements at once."""
    if array is None:
        return None
    if "nchw" not in array.spec.layouts:
        copied: DeviceArray = transform(array, layout="nchw", stream=stream)
        return copied
    return array.copy(stream=stream) if array.pointer % ALIGNMENT else array


def aligned(arrays: Sequence[DeviceArray | None]) -> bool:
    """Whether kernels may load several elements at once from where each begins."""
    for array in arrays:  # noqa: SIM110 - in half the time that all() takes
        if array is not None and array.pointer % ALIGNMENT:
            return False
    return True


def parts_of(out: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """What ``out`` has for each result: it is one array for the first, or a tuple for all."""
    if not isinstance(out, (tuple, list)):
        return (out, *[None] * (len(names) - 1))
    if len(out) != len(names):
        raise ValueError(f"out has {len(out)} arrays; the results are {', '.join(names)}")
    return tuple(out)


def given_results(
    parts: tuple[Any, ...], names: tuple[str, ...], rooms: Sequence[ResultSlot], stream: Stream
) -> list[DeviceArray | None]:
    """The arrays that results go to, None for one that is made; checked.

    Raises
    ------
    TypeError, ValueError
        There is no such result, or one does not fit its result.
    """
    arrays: list[DeviceArray | None] = []
    for part, name, one in zip(parts, names, rooms, strict=True):
        if part is None:
            arrays.append(None)
            continue
        if one is None:
            raise ValueError(f"out has {name}, but the network has no cells; only 'lstm' has")
        array = as_operand(part, f"out {name}", stream, written=True)
        if array.spec != one[0]:
            _check_fits(array.spec, one[0], name)
        arrays.append(array)
    return arrays


def _check_fits(own: TensorSpec, spec: TensorSpec, name: str) -> None:
    if own.dtype != spec.dtype:
        raise TypeError(f"{name} of out is {own.dtype}; the result is {spec.dtype}")
    if own.shape != spec.shape:
        raise ValueError(f"{name} of out has shape {own.shape}; the result has {spec.shape}")
    if "nchw" not in own.layouts:  # axes of length 1 may have any strides
        raise ValueError(f"{name} of out has strides {own.strides}; it must be without gaps, in C order")


def as_given(parts: tuple[Any, ...], made: Sequence[Any]) -> list[Any]:
    """The results, as the caller's own objects where they were given."""
    return [array if own is None else own for array, own in zip(made, parts, strict=True)]


def enqueue(
    ctx: Context,
    call: RNNCall,
    step: str,
    inputs: Sequence[DeviceArray | None],
    rooms: Sequence[ResultSlot],
    given: Sequence[DeviceArray | None] | None,
    changed: Sequence[DeviceArray],
    work: Callable[[list[int]], None],
    kept: Sequence[DeviceArray | None] = (),
) -> list[DeviceArray | None]:
    """Take the results, and let ``work`` enqueue in the order of the streams; return the results.

    ``given`` are the arrays that some results go to; ``changed`` memory that is read and written and none of
    the caller's, ``kept`` what a later step reads. ``work`` is given the addresses of the inputs, then of the
    results, 0 for what there is not. What is returned for a result that was given where no kernel may write
    several elements at once is a copy of it.
    """
    stream = ctx.stream
    written = changed  # beside what is made, which nobody else knows of yet
    if given is None:
        results = DeviceArray.allocate_many(rooms, (None,) * len(rooms), stream, WHAT)
    else:
        _refuse_overlap(call, step, (*inputs, *kept), given)
        results = DeviceArray.allocate_many(rooms, given, stream, WHAT)
        written = [*changed, *[own for own in given if own is not None]]
        if not aligned(given):
            places = enumerate(given)
            moved = [(own, place) for place, own in places if own is not None and own.pointer % ALIGNMENT]
            for own, place in moved:  # with what it holds, which may be added to
                results[place] = own.copy(stream=stream)
            work = partial(_and_back, work, moved, results, stream)
    used = [array for array in inputs if array is not None]
    pointers = [0 if array is None else array.pointer for array in (*inputs, *results)]
    try:
        ordered(stream, used, written, work, pointers)
    except CudnnError as error:
        add_context(error, f"in {step} of {call.problem}", stream)
        raise
    return results


def _and_back(
    work: Callable[[list[int]], None],
    moved: Sequence[tuple[DeviceArray, int]],
    results: Sequence[Any],
    stream: Stream,
    pointers: list[int],
) -> None:
    """Let ``work`` write copies of results, then copy them to where they belong."""
    work(pointers)
    for own, place in moved:
        memories.copy_device(own.pointer, results[place].pointer, own.nbytes, stream)


def _refuse_overlap(
    call: RNNCall, step: str, inputs: Sequence[DeviceArray | None], results: Sequence[DeviceArray | None]
) -> None:
    # What is missing has its place: the same address may be that of another operand the next time.
    key = (step, *[0 if array is None else array.pointer for array in (*inputs, *results)])
    if key in call.disjoint_pointers:
        return
    spans = [(0, 0) if array is None else byte_extent(array.spec) for array in (*inputs, *results)]
    refuse_overlap(inputs, results, spans)
    if len(call.disjoint_pointers) >= MAX_POINTER_SETS:
        call.disjoint_pointers.clear()
    call.disjoint_pointers.add(key)
