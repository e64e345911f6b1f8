"""The path of every call: from specs to a prepared call, from a prepared call to enqueued work."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, Self

from .._config import config
from ..array import DeviceArray
from ..array_creation import not_on_device
from ..context import Context
from ..cuda import interop
from ..cuda import stream as streams
from ..cuda.launch_log import add_launch_history
from ..cuda.stream import Stream
from ..dtypes import DTYPES
from ..errors import CudnnError, ExecutionFailedError
from ..plans.base import Plan
from ..shapes.elementwise import OpTensorScales
from ..shapes.parse import as_float
from ..shapes.specs import TensorSpec, equivalent_strides, nearest_layout

ONE, ZERO = 1, 0  # the alpha and beta of most calls: as identities they are told the quickest
MAX_POINTER_SETS = 256  # sets of pointers of which a call knows that they do not overlap


class PreparedCall(NamedTuple):
    """What one thread prepared for one set of arguments: all that depends on specs and not on pointers.

    ``pack`` says that some input has strides that no descriptor holds, and is copied first; ``in_place`` that
    a result may lie exactly where an input does. ``result_slots`` are what the results take. ``spans`` are
    the bytes that each operand reaches from its pointer, the results last. ``disjoint_pointers`` are pointers
    for which the results are known to overlap nothing. ``fresh`` is not empty before the first run.
    """

    problem: Any
    inputs: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    choice: Any
    pack: bool
    in_place: bool
    what: str
    result_slots: tuple[tuple[TensorSpec, int], ...]
    spans: tuple[tuple[int, int], ...]
    disjoint_pointers: set[tuple[int, ...]]
    fresh: list[bool]

    @classmethod
    def of(
        cls,
        problem: Any,
        inputs: tuple[TensorSpec, ...],
        results: tuple[TensorSpec, ...],
        choice: Any,
        *,
        pack: bool = False,
        in_place: bool = False,
        what: str = "a convolution",
    ) -> Self:
        """Make one, with what follows from the specs."""
        rooms = tuple(
            (spec, byte_extent(spec)[1]) for spec in results
        )  # with gaps, where a caller asked for some
        spans = tuple(map(byte_extent, (*inputs, *results)))
        what = f"the result of {what}"
        return cls(problem, inputs, results, choice, pack, in_place, what, rooms, spans, set(), [True])

    @streams.relaxed()
    def run_first(self, ctx: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Run for the first time: cuDNN may load modules and allocate, which captures elsewhere forbid."""
        self.choice.run(ctx, pointers, alpha, beta)
        self.fresh.clear()

    def refuse_overlap(
        self,
        inputs: Sequence[DeviceArray],
        results: Sequence[DeviceArray | None],
        pointers: tuple[int, ...],
    ) -> None:
        """Raise where a result shares memory with another operand: cuDNN would read what it has written.

        A result that is None is to be new memory, which nobody shares; ``pointers`` are those of the others.
        """
        refuse_overlap(inputs, results, self.spans, in_place=self.in_place)
        if len(self.disjoint_pointers) >= MAX_POINTER_SETS:
            self.disjoint_pointers.clear()
        self.disjoint_pointers.add(pointers)


class SinglePlan(NamedTuple):
    """Takes the place of a choice where there is one plan only."""

    plan: Plan
    candidate: None = None
    fallback_reason: str = ""
    needs_timing: bool = False

    def describe(self) -> str:
        """Tell what it is."""
        return self.plan.describe()

    def run(self, ctx: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Run the plan."""
        self.plan.run(ctx, pointers, alpha, beta)


def remember(calls: dict[Any, Any], key: tuple[Any, ...], call: Any) -> Any:
    """Remember what was prepared for a key that ends in the settings, and return it.

    Not where another thread has changed a setting since: it may be of the old ones or of the new.
    """
    if key[-1] is config.snapshot:
        calls[key] = call
    return call


def run(
    ctx: Context,
    call: PreparedCall,
    inputs: tuple[DeviceArray, ...],
    result: DeviceArray | None,
    alpha: float,
    beta: float,
    out: Any,
) -> Any:
    """Take the output, order the streams, run the plan, note who uses what; return the output.

    :func:`run_several` for one result, written out because most calls pass here.
    """
    stream = ctx.stream
    for array in inputs:
        if array.writer is not stream:
            array.wait_for_writer(stream)
    if result is None:
        spec, nbytes = call.result_slots[0]
        result = out = DeviceArray.new(spec, nbytes, stream, call.what)
        pointers = (*[array.pointer for array in inputs], result.pointer)
    else:
        pointers = (*[array.pointer for array in inputs], result.pointer)
        if pointers not in call.disjoint_pointers:
            call.refuse_overlap(inputs, (result,), pointers)
        if result.writer is not stream or result._uses is not None:
            result.before_write(stream)
    try:
        if call.fresh:
            call.run_first(ctx, pointers, alpha, beta)
        else:
            call.choice.run(ctx, pointers, alpha, beta)
    except CudnnError as error:
        add_context(error, f"in {call.problem}, alpha {alpha}, beta {beta}", stream)
        raise
    finally:  # also where a later part failed: an earlier one may be under way
        for array in inputs:
            if array.home is not stream:
                array.record_use(stream)
        if result.home is not stream or result.writer is not stream:
            result.after_write(stream)
    return out


def run_several(
    ctx: Context,
    call: PreparedCall,
    inputs: tuple[DeviceArray, ...],
    given: Sequence[DeviceArray | None],
    alpha: float,
    beta: float,
) -> list[DeviceArray]:
    """As :func:`run`, with several results; those that are not ``given`` are allocated."""
    stream = ctx.stream
    read = [array.pointer for array in inputs]
    own = [array for array in given if array is not None]
    if own:
        told = (*read, *[array.pointer for array in own])
        if told not in call.disjoint_pointers:
            call.refuse_overlap(inputs, given, told)
    results = DeviceArray.allocate_many(call.result_slots, given, stream, call.what)
    pointers = (*read, *[array.pointer for array in results])
    enqueue = call.run_first if call.fresh else call.choice.run
    try:  # what is new is the stream's own, and nobody waits for it
        ordered(stream, inputs, own, enqueue, ctx, pointers, alpha, beta)
    except CudnnError as error:
        add_context(error, f"in {call.problem}, alpha {alpha}, beta {beta}", stream)
        raise
    return results


def ordered(
    stream: Stream,
    read: Sequence[DeviceArray],
    written: Sequence[DeviceArray],
    work: Callable[..., object],
    *arguments: Any,
) -> None:
    """Order the streams, let ``work`` enqueue, note who uses what: what every call does around its work."""
    for array in read:
        if array.writer is not stream:
            array.wait_for_writer(stream)
    for array in written:
        if array.writer is not stream or array._uses is not None:
            array.before_write(stream)
    try:
        work(*arguments)
    finally:  # also where a later part failed: an earlier one may be under way
        for array in read:
            if array.home is not stream:
                array.record_use(stream)
        for array in written:
            if array.home is not stream or array.writer is not stream:
                array.after_write(stream)


def add_context(error: CudnnError, where: str, stream: Stream) -> None:
    """Note on an error where it came up; on one of the device, what may have failed before."""
    error.add_note(where)
    if isinstance(error, ExecutionFailedError):
        add_launch_history(error, stream)


def refuse_overlap(
    inputs: Sequence[DeviceArray | None],
    results: Sequence[DeviceArray | None],
    spans: Sequence[tuple[int, int]],
    *,
    in_place: bool = False,
) -> None:
    """Raise where a result shares memory with another operand; ``spans`` and ``in_place`` as of a call."""
    arrays = (*inputs, *results)
    for place in range(len(inputs), len(arrays)):
        result, (low, high) = arrays[place], spans[place]
        if result is None:
            continue
        first, last = result.pointer + low, result.pointer + high
        for array, (low, high) in zip(arrays[:place], spans, strict=False):
            if array is None:
                continue
            start = array.pointer
            if in_place and start == result.pointer and _same_elements(array.spec, result.spec):
                continue
            if start + low < last and first < start + high and _share_elements(array, result):
                raise ValueError(
                    f"out overlaps {array!r} in memory; cuDNN would read what it has already written"
                )


def parse_scaling(alpha: Any, beta: Any, out: Any) -> tuple[Any, float]:
    """Alpha, a number or :class:`OpTensorScales`, and beta as numbers; raise where beta has nothing to
    multiply."""
    alpha = alpha if type(alpha) is OpTensorScales else as_float(alpha, "alpha")
    beta = as_float(beta, "beta")
    check_beta(beta, out)
    return alpha, beta


def check_beta(beta: float, out: Any) -> None:
    """Raise where there is a factor and nothing that it multiplies."""
    if beta and out is None:
        raise ValueError(f"beta={beta:g} needs out, the array that it multiplies")


def check_writable(out: TensorSpec | None, name: str = "out") -> None:
    """Raise for an output that no descriptor describes, or two of whose elements share memory."""
    if out is not None and not out.describable:
        raise ValueError(f"{name} has strides {out.strides}; cuDNN writes only where all are positive")
    if out is not None and out.overlaps_itself:
        raise ValueError(f"{name} overlaps itself: shape {out.shape} with strides {out.strides}")


def stream_of(x: Any, name: str, stream: Any) -> Stream:
    """The stream of a call: the one given, the one in use, or the default stream of x's device."""
    if isinstance(x, DeviceArray):
        device: int | None = x.device
    elif type(x).__module__ in ("numpy", "builtins"):  # said before there need be a device
        raise not_on_device(x, name)
    else:
        device = interop.device_of(x) if streams.device_count() > 1 else 0
    if stream is None:
        return streams.current_stream(device)
    return streams.as_stream(stream, streams.current_stream().device if device is None else device)


def representable(spec: TensorSpec) -> TensorSpec:
    """The spec itself, or that of a packed copy where no descriptor can hold its strides."""
    return spec if spec.describable else TensorSpec.packed(spec.shape, spec.dtype, nearest_layout(spec))


def contiguous(array: DeviceArray, stream: Stream) -> DeviceArray:
    """The array itself, or a packed copy as :func:`representable` says."""
    return array if array.spec.describable else array.packed(nearest_layout(array.spec), stream, stacklevel=5)


def as_key(value: Any) -> Any:
    """Lists as tuples, at every depth: arguments as a key.

    Raises
    ------
    TypeError
        Something else in them cannot be part of a key; no parameter of an operation is such a thing.
    """
    try:
        hash(value)
    except TypeError:
        if not isinstance(value, list | tuple):
            raise TypeError(
                f"{value!r} is not a valid parameter; expected a number or a tuple of numbers"
            ) from None
        parts = map(as_key, value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


PLAIN = frozenset((bool, float, int, str, range, type(None)))  # of arguments that cannot change


def freeze(value: Any) -> Any:
    """An argument as it is now, at every depth, and itself where it cannot change: else a key would lie.

    Raises
    ------
    TypeError
        It can be no parameter of an operation.
    """
    if type(value) in PLAIN or isinstance(value, Enum):
        return value
    if isinstance(value, list | tuple):
        parts = tuple(map(freeze, value))
        if isinstance(value, tuple) and all(map(operator.is_, parts, value)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else parts
    if str(getattr(value, "dtype", None)) == "bool" and not value.shape:  # of NumPy
        return bool(value)
    if not isinstance(value, DeviceArray):
        for number in (operator.index, float):
            try:
                return number(value)
            except (TypeError, ValueError):
                continue
    return as_key(value)


def enum_names(told: Any, *fields: str) -> Any:
    """A named tuple in which enums among ``fields`` are their names: members of many enums are one number."""
    names = {field: value.name for field in fields if isinstance(value := getattr(told, field), Enum)}
    return told._replace(**names) if names else told


def scaling_kind(alpha: float, beta: float) -> str:
    """Which factor a problem has that is not as usual: the field of `ConvProblem`."""
    return "alpha" if alpha != 1 else "beta" if beta != 0 else ""


def _same_elements(one: TensorSpec, two: TensorSpec) -> bool:
    """Whether two tensors that begin in the same place have the same elements."""
    alike = one.shape == two.shape and one.dtype == two.dtype
    return alike and equivalent_strides(one.shape, one.strides, two.strides)


def byte_extent(spec: TensorSpec) -> tuple[int, int]:
    """The bytes that an array reaches from its pointer, down and up."""
    itemsize = DTYPES[spec.dtype].itemsize
    low, high = spec.extent
    return low * itemsize, high * itemsize


def _share_elements(one: DeviceArray, two: DeviceArray) -> bool:
    """Whether any element of one is in memory of the other: slices of channels lie between each other."""
    import numpy as np

    try:
        return np.shares_memory(_addresses(one), _addresses(two), max_work=10_000_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _addresses(array: DeviceArray) -> Any:
    """A NumPy array with the addresses of a device array, which nobody may look into."""
    import numpy as np

    class Interface:
        __array_interface__ = {  # noqa: RUF012 - what the protocol asks for
            "version": 3,
            "shape": array.shape,
            "strides": array.strides,
            "typestr": f"|V{array.itemsize}",
            "data": (array.pointer, True),
        }

    return np.asarray(Interface())
