"""One graph of a function: how it is recorded, and how it is launched."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from .. import context
from ..array import DeviceArray
from ..array_creation import asarray
from ..cuda import allocator, foreign
from ..cuda import event as events
from ..cuda import graph as graphs
from ..cuda import memory as memories
from ..cuda import recording as recordings
from ..cuda import stream as streams
from ..cuda.array_key import ArrayKey
from ..cuda.debug import record_launch
from ..cuda.graph import Graph, GraphMemory, capturing, check, copier, launcher, release_stream
from ..cuda.lifetime import ExportedMemory
from ..cuda.recording import Arena, Recording
from ..cuda.stream import LEGACY_DEFAULT, Stream
from ..dtypes import DTYPES
from ..errors import NotInitializedError
from ..ops._operands import byte_extent
from ..shapes.specs import UNALIGNED
from .trees import PLAIN, Leaf, flatten, library_of, rebuild


class Operand(NamedTuple):
    """An operand that is copied into the graph's memory at ``array`` before each launch."""

    array: DeviceArray
    first: int  # the offset of its first byte from its pointer
    nbytes: int  # up to its last byte, gaps included


class Output(NamedTuple):
    """A result in memory of a graph, or in memory that its calls allocated in another library."""

    key: ArrayKey
    pointer: int
    owner: object

    def on(self, stream: Stream, memory: GraphMemory) -> DeviceArray:
        kept = memory if self.owner is None else (memory, self.owner)
        return DeviceArray(self.key, self.pointer, kept, stream, stream)


class OnStream(NamedTuple):
    """Launches on one stream: their results, those of them in memory of the graph, and the calls."""

    results: list[DeviceArray]
    owned: list[DeviceArray]
    launch: Callable[[], int]
    copies: list[tuple[Callable[[int], int], int, int, int]]  # copy, its target, first byte, size


def can_launch(stream: Stream) -> bool:
    """Return whether a graph can be launched on a stream: not while this thread records, or in a capture."""
    return recordings.current() is None and (
        stream.handle == LEGACY_DEFAULT or not streams.is_capturing(stream)
    )


class Record:
    """A graph, its memory, and the arrays that it reads and writes.

    Launches are ordered like calls: after the writers of the operands and of other arrays that the graph
    uses, and before later uses of the results. ``copied`` is false if operands are taken by pointer.
    ``busy`` is set during a launch, which a finalizer may interrupt.
    """

    def __init__(self, graph: Graph, memory: GraphMemory, operands: list[Operand], *, copied: bool) -> None:
        self.graph = graph
        self.memory = memory
        self.device = graph.device
        self.busy = False
        self._copied = copied
        self._operands = operands
        starts = [one.array.pointer + one.first for one in operands]
        self._low = min(starts, default=0)  # of the memory of operands
        self._high = max((at + one.nbytes for at, one in zip(starts, operands, strict=True)), default=0)
        self._on_streams: dict[Stream, OnStream] = {}
        self._current: OnStream | None = None
        self._last: Stream | None = None

    def finish(
        self, recording: Recording, template: Any, results: list[DeviceArray], *, shared: bool
    ) -> None:
        """Take what was recorded. ``shared`` is whether torch or cupy may have recorded work, too."""
        self._template = template
        self._shared = shared
        self._written = [array for array, _ in recording.written.values()]
        self._read = [array for key, array in recording.read.items() if key not in recording.written]
        self._outputs = [_output(array, recording) for array in results]
        self._kept = (self.graph, recording.kept)
        self._ready = events.record(self.memory.owned.stream)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """Keep the graph until its launches are complete."""
        if not ending() and hasattr(self, "_kept"):
            for stream in self.memory.launched_on:
                ExportedMemory(self._kept, None, stream)

    def launch(self, arrays: Sequence[DeviceArray], stream: Stream) -> Any:
        """Copy operands, launch the graph on a stream whose device is current, and return the results."""
        current = self._current
        if stream is not self._last or current is None:
            current = self._move(stream)
        for array in current.owned:
            if array.memory is None:  # the caller closed it
                current = self._renew(stream)
                break
        others = streams_in_use(stream) if self._shared else ()
        for other in others:
            events.wait_stream(other, stream)
        written = [*self._written, *current.owned]
        if not self._copied:
            written += arrays
        # Most arrays belong to the stream and were last written on it: they need no order.
        read = [one for one in self._read if one.writer is not stream or one.home is not stream]
        written = [one for one in written if not one.belongs_to(stream)]
        try:
            for array in read:
                array.wait_for_writer(stream)
            for array in written:
                array.before_write(stream)
            if self._copied:  # only now: a result may be in the memory of an operand
                self._copy_operands(arrays, stream, current)
            if status := current.launch():
                check(status, "launching a CUDA graph", stream)
        finally:  # the graph may have been launched
            for array in read:
                array.record_use(stream)
            for array in written:
                array.after_write(stream)
            for other in others:
                events.wait_stream(stream, other)
        record_launch("a CUDA graph", stream)
        if type(self._template) is Leaf:
            return current.results[0]
        return rebuild(self._template, iter(current.results))

    def _copy_operands(self, arrays: Sequence[DeviceArray], stream: Stream, current: OnStream) -> None:
        staged = self._staged(arrays, stream, current)
        for place, (array, (copy, target, first, _)) in enumerate(zip(arrays, current.copies, strict=True)):
            source = staged[place].handle if place in staged else array.pointer + first
            if array.writer is not stream:
                array.wait_for_writer(stream)
            try:
                if source != target and (status := copy(source)):
                    check(status, "copying an operand", stream)
            finally:
                if array.home is not stream:
                    array.record_use(stream)

    def _staged(self, arrays: Sequence[DeviceArray], stream: Stream, current: OnStream) -> dict[int, Any]:
        """Copy operands that lie in the memory of operands of the graph, and return the copies by place."""
        # A result of an earlier launch may lie there. Copying another operand would overwrite it first.
        staged = {}
        for place, (array, (_, target, first, nbytes)) in enumerate(zip(arrays, current.copies, strict=True)):
            source = array.pointer + first
            if source < self._high and source + nbytes > self._low and source != target:
                array.wait_for_writer(stream)
                staged[place] = allocator.allocate(nbytes, stream, "an operand of a captured function")
                memories.copy_device(staged[place].handle, source, nbytes, stream)
        return staged

    def _move(self, stream: Stream) -> OnStream:
        """Order launches on ``stream`` after the earlier ones on another stream."""
        last = self._last
        if last is not None and self._current is not None:
            events.wait_stream(last, stream)
            for array in self._current.owned:
                if array._uses is not None or array.writer is not last:
                    array.before_write(stream)
        if stream not in self._on_streams:
            events.wait(stream, self._ready)
            self.memory.launched_on[stream] = None
            self._renew(stream)
        self._last, self._current = stream, self._on_streams[stream]
        return self._current

    def _renew(self, stream: Stream) -> OnStream:
        made = [one.on(stream, self.memory) if isinstance(one, Output) else one for one in self._outputs]
        owned = [array for array, one in zip(made, self._outputs, strict=True) if isinstance(one, Output)]
        _share_order(owned)
        targets = [(one.array.pointer + one.first, one.first, one.nbytes) for one in self._operands]
        copies = [(copier(at, nbytes, stream), at, first, nbytes) for at, first, nbytes in targets]
        found = OnStream(made, owned, launcher(self.graph, stream), copies)
        self._current = self._on_streams[stream] = found
        return found


def _share_order(arrays: Sequence[DeviceArray]) -> None:
    """Let results over common memory share their uses and their last writer, as views do."""
    ranges = []
    for array in arrays:
        low, high = (one * DTYPES[array.spec.dtype].itemsize for one in array.spec.extent)
        ranges.append((array.pointer + low, array.pointer + high, array))
    first, end = None, 0
    for low, high, array in sorted(ranges, key=lambda one: one[:2]):
        if first is not None and low < end:
            first.share_order(array)
        else:
            first = array
        end = max(end, high)


def _output(array: DeviceArray, recording: Recording) -> DeviceArray | Output:
    """Return an array from outside of a recording itself, and how to make any other result."""
    if not array.external and not recording.owns(array):
        return array
    return Output(array.key, array.pointer, array.memory if array.external else None)


def record(
    function: Callable[..., Any],
    template: Any,
    leaves: Sequence[Any],
    arrays: Sequence[DeviceArray],
    device: int,
    *,
    copied: bool,
) -> Record:
    """Record a call on a device that is current; raise the error of a call that no graph can hold.

    ``template`` is that of the arguments (positional, keywords), and ``leaves`` are their arrays as the
    caller gave them; ``arrays`` are the same arrays of this package.
    """
    stream, memory = graphs.acquire_stream(device), GraphMemory(device)
    recording = Recording(stream, Arena(memory.allocate))
    if not copied:
        recording.kept.update({id(array.memory): array.memory for array in arrays})
    try:
        operands = [_operand(array, memory, stream) for array in arrays] if copied else []
        with streams.relaxed(), following(stream) as pools, context.use(stream=stream):
            pairs = zip(leaves, operands, strict=True) if copied else ()
            given = [as_array_of(library_of(leaf), one.array) for leaf, one in pairs] if copied else leaves
            graph, template, results = _captured(function, rebuild(template, iter(given)), recording)
        recording.kept |= pools
        found = Record(graph, memory, operands, copied=copied)
        found.finish(recording, template, results, shared=bool(pools))
        return found
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # they refer to arrays in memory of the graph
        raise
    finally:
        pairs = given = results = None  # type: ignore[assignment]
        recording.read.clear()
        recording.written.clear()
        if recording.arena.close():
            release_stream(stream)


def copy_of(array: DeviceArray, stream: Stream) -> DeviceArray:
    """Copy an array to other memory with the same strides and alignment, on a stream whose device is current.

    In a capture of another library, the copy stays in memory like all that its graph uses.
    """
    what = "an operand of a captured function"
    first, nbytes = _span(array)
    memory: Any
    if recordings.current() is None and streams.is_capturing(stream):
        memory = GraphMemory(stream.device)
        start = memory.allocate(nbytes + UNALIGNED, what)
        context.of_device(stream.device).pin(memory)
    else:
        memory = allocator.allocate(nbytes + UNALIGNED, stream, what)
        start = memory.handle
    copy = DeviceArray(array.key, _aligned_as(array, start - first), memory, stream, stream)
    array.wait_for_writer(stream)
    try:
        if nbytes:
            memories.copy_device(copy.pointer + first, array.pointer + first, nbytes, stream)
    finally:
        array.record_use(stream)
    return copy


def _captured(
    function: Callable[..., Any], arguments: tuple[Any, dict[str, Any]], recording: Recording
) -> tuple[Graph, Any, list[DeviceArray]]:
    """Capture a call; return the graph, the template of the results and their arrays."""
    stream, found = recording.stream, list[Any]()
    with context.pinning(recording.kept), recording:
        context.current(stream)
        with capturing(stream, accept=_check_copies) as graph:
            template = flatten(function(*arguments[0], **arguments[1]), found, _check_result)
            results = [asarray(array) for array in found]
            if recording.error is not None:  # the function caught it
                raise recording.error
            if any(array.device != stream.device for array in results):
                raise ValueError("a result is on another device")
            if streams.current_device() != stream.device:
                raise ValueError("the function changed the current device")
    return graph, template, results


def _check_copies(graph: object) -> None:
    """Raise if a captured graph, to which other libraries may have added, copies from or to the host."""
    if any(graphs.uses_host(*node) for node in graphs.nodes_of(graph)):
        raise NotInitializedError("a copy from or to the host cannot be recorded in a CUDA graph")


def _check_result(value: Any) -> None:
    if not isinstance(value, PLAIN):
        raise TypeError(
            f"the function returns a {type(value).__name__}: only arrays, numbers and strings can be replayed"
        )


def _operand(array: DeviceArray, memory: GraphMemory, stream: Stream) -> Operand:
    """Return memory for copies of an operand: the same strides and alignment."""
    first, nbytes = _span(array)
    start = memory.allocate(nbytes + UNALIGNED, "an operand of a captured function")
    copy = DeviceArray(array.key, _aligned_as(array, start - first), memory, stream, stream)
    return Operand(copy, first, nbytes)


def _span(array: DeviceArray) -> tuple[int, int]:
    """Return the offset of an array's first byte from its pointer, and the bytes up to its last one."""
    low, high = byte_extent(array.spec)
    return low, high - low


def _aligned_as(array: DeviceArray, pointer: int) -> int:
    """Return the first address from ``pointer`` on with the alignment of an array."""
    return pointer + ((array.pointer - pointer) & UNALIGNED)


# --- other libraries ---------------------------------------------------------------------------------------


def as_array_of(library: str, array: DeviceArray) -> Any:
    """Return an array of a library over the same memory; the array itself if ``library`` is empty."""
    return sys.modules[library].from_dlpack(array) if library else array


@contextmanager
def following(stream: Stream) -> Iterator[dict[int, object]]:
    """Make the stream current in other libraries within a block, if they use CUDA.

    Their allocations in the block come from pools, which the yielded dict has; they must live as long as the
    graph. Enter the block before the capture: torch looks for a capture of its own otherwise.
    """
    pools: dict[int, object] = {}
    with ExitStack() as stack:
        for library in foreign.imported():
            if library.is_initialized():
                pool = library.follow(stream, stack)
                pools[id(pool)] = pool
        yield pools


def streams_in_use(stream: Stream) -> list[Stream]:
    """Return the current streams of other libraries on the device of a stream, except for this stream."""
    used = (library for library in foreign.imported() if library.is_initialized())
    return [one for one in (library.current(stream.device) for library in used) if one != stream]
