"""The path of a call of a recurrent network: what is prepared for one set of arguments, and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .. import algo_cache, legacy
from .. import memory as memories
from ..array import DeviceArray
from ..context import Context
from ..dtypes import DTYPES
from ..errors import CudnnError, NotSupportedError
from ..problem import (
    ALIGNMENT,
    RNN_ALGOS,
    Request,
    RNNProblem,
    RNNSpec,
    TensorSpec,
    check_rnn_operands,
    one_dtype,
    rnn_layout,
    rnn_problem,
    rnn_weight_size,
    takes_packed,
)
from ..stream import Stream
from .call import SEEN, Fixed, noted, refuse_overlap, span
from .tensor import transform

__all__ = ["RNNCall", "Room", "aligned", "contiguous", "enqueue", "given_results", "prepare", "room"]

WHAT = "a result of a recurrent network"


Room = tuple[TensorSpec, int] | None
"""What a result is, with its bytes; None for one that there is not."""


class RNNCall(NamedTuple):
    """What one thread prepared for one set of arguments of a network.

    ``results`` are y, h and c after; ``gradients`` those of x, h and c before. ``packs`` says that some
    operand has gaps, and is copied first. ``apart`` are steps with addresses of which it is known that no
    result overlaps anything.
    """

    problem: RNNProblem
    lengths: tuple[int, ...]
    choice: Any
    results: tuple[Room, ...]
    gradients: tuple[Room, ...]
    packs: bool
    apart: set[tuple[Any, ...]]


def prepare(
    ctx: Context,
    spec: RNNSpec,
    request: Request,
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
    y, x, *states = (room(dims, spec.dtype) for dims in (shapes.y, shapes.x, shapes.h, shapes.c))
    choice: Any
    if not any(found):
        choice = Fixed(legacy.IdleRNNPlan(problem, shapes, padding))
    else:
        if problem.layout == "packed" and takes_packed(found):
            raise NotSupportedError(takes_packed(found))
        family = legacy.RNNFamily(found, padding, networks, dropout)
        choice = _chosen(problem, family, ctx, request)
    gaps = any("nchw" not in one.layouts for one in present.values())
    return RNNCall(problem, found, choice, (y, *states), (x, *states), gaps, set())


def room(shape: tuple[int, ...] | None, dtype: str) -> Room:
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


def _chosen(problem: RNNProblem, family: legacy.RNNFamily, ctx: Context, request: Request) -> Any:
    try:
        return algo_cache.choose(problem, family, ctx, request)
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


def _can(problem: RNNProblem, algo: str, family: legacy.RNNFamily, ctx: Context) -> bool:
    (row,) = legacy.rnn_rows(problem, (algo,))
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
    return all(array is None or not array.pointer % ALIGNMENT for array in arrays)


def given_results(
    out: Any, names: tuple[str, ...], rooms: Sequence[Room], take: Callable[[Any, str], Any]
) -> list[DeviceArray | None]:
    """The arrays in ``out``, which is one array for the first result, or a tuple for all; checked.

    Raises
    ------
    TypeError, ValueError
        There are others than results, or one does not fit its result.
    """
    parts = tuple(out) if isinstance(out, tuple | list) else (out, *[None] * (len(rooms) - 1))
    if len(parts) != len(rooms):
        raise ValueError(f"out has {len(parts)} arrays; the results are {', '.join(names)}")
    arrays: list[DeviceArray | None] = []
    for part, name, one in zip(parts, names, rooms, strict=True):
        if part is None:
            arrays.append(None)
            continue
        if one is None:
            raise ValueError(f"out has {name}, but the network has no cells; only 'lstm' has")
        spec, _ = one
        array = take(part, f"out {name}")
        if array.spec.dtype != spec.dtype:
            raise TypeError(f"{name} of out is {array.spec.dtype}; the result is {spec.dtype}")
        if array.spec.shape != spec.shape:
            raise ValueError(f"{name} of out has shape {array.spec.shape}; the result has {spec.shape}")
        if "nchw" not in array.spec.layouts:
            raise ValueError(
                f"{name} of out has strides {array.spec.strides}; it must be without gaps, in C order"
            )
        arrays.append(array)
    return arrays


def enqueue(
    ctx: Context,
    call: RNNCall,
    step: str,
    inputs: Sequence[DeviceArray | None],
    rooms: Sequence[Room],
    given: Sequence[DeviceArray | None] | None,
    changed: Sequence[DeviceArray],
    work: Callable[[list[int]], None],
    kept: Sequence[DeviceArray | None] = (),
) -> list[DeviceArray | None]:
    """Take the results, order the streams, let ``work`` enqueue, note who uses what; return the results.

    ``given`` are the arrays that some results go to; ``changed`` memory that is read and written and none of
    the caller's, ``kept`` what a later step reads. ``work`` is given the addresses of the inputs, then of the
    results, 0 for what there is not. What is returned for a result that was given where no kernel may write
    several elements at once is a copy of it.
    """
    stream = ctx.stream
    used = [array for array in inputs if array is not None]
    for array in used:
        if array.writer is not stream:
            array.before_read(stream)
    old = changed
    moved: list[tuple[DeviceArray, int]] = []
    if given is None:
        results = [one and DeviceArray.new(*one, stream, WHAT) for one in rooms]
    else:
        results = [
            one and DeviceArray.new(*one, stream, WHAT) if own is None else own
            for own, one in zip(given, rooms, strict=True)
        ]
        moved = [(own, place) for place, own in enumerate(given) if not aligned((own,)) and own is not None]
        written = [own for own in given if own is not None]  # what is made overlaps nothing
        old = (*changed, *written)
        _refuse_overlap(call, step, (*inputs, *kept), given)
    for array in old:
        if array.writer is not stream or array._uses is not None:
            array.before_write(stream)
    for own, place in moved:  # with what it holds, which may be added to
        results[place] = own.copy(stream=stream)
    try:
        work([0 if array is None else array.pointer for array in (*inputs, *results)])
        for own, place in moved:
            made = results[place]
            assert made is not None
            memories.copy_device(own.pointer, made.pointer, own.nbytes, stream)
    except CudnnError as error:
        noted(error, f"in {step} of {call.problem}", stream)
        raise
    finally:  # also where a later part failed: an earlier one may be under way
        for array in used:
            if array.home is not stream:
                array.after_use(stream)
        for array in old:
            if array.home is not stream or array.writer is not stream:
                array.after_write(stream)
    return results


def _refuse_overlap(
    call: RNNCall, step: str, inputs: Sequence[DeviceArray | None], results: Sequence[DeviceArray | None]
) -> None:
    # What is missing has its place: the same address may be that of another operand the next time.
    pointers = tuple([0 if array is None else array.pointer for array in (*inputs, *results)])
    if (step, pointers) in call.apart:
        return
    spans = [(0, 0) if array is None else span(array.spec) for array in (*inputs, *results)]
    refuse_overlap(inputs, results, spans)
    if len(call.apart) >= SEEN:
        call.apart.clear()
    call.apart.add((step, pointers))
