"""The state of a thread on a device: cuDNN's handle, its stream, its workspaces and its plans."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from . import _lib, array_shapes
from ._bindings.types import cudnnHandle_t
from ._caches import BoundedDict, CallCache
from ._config import config
from ._handle import NativeHandle, in_forked_child
from .cuda import allocator
from .cuda import event as events
from .cuda import memory as memories
from .cuda import recording as recordings
from .cuda import stream as streams
from .cuda.allocator import LentMemory, Workspace
from .cuda.debug import watch
from .cuda.lifetime import release_finished
from .cuda.replay import ReplayPool
from .cuda.stream import Stream
from .errors import AllocationError, CudnnError, NotInitializedError
from .typing import StreamLike

_NO_STREAM = Stream(2**64 - 1, -1)  # equal to no other
KERNEL_CACHES = 64  # dynamic graphs whose compiled kernels a thread keeps on a device
WORKSPACES = 32  # streams for which a thread keeps workspaces on a device


class Handle(NativeHandle):
    """``cudnnHandle_t`` of ``device``, which is current in this thread; threads must not share it.

    When a thread ends, its handle is kept for another thread: to destroy it would wait for the device, and
    invalidate a capture.
    """

    __slots__ = ()

    def __init__(self, library: Any, device: int) -> None:
        try:
            pointer = _idle_handles[library, device].pop()
        except LookupError:
            pointer = cudnnHandle_t()
            try:
                library.cudnnCreate(ctypes.byref(pointer))
            except CudnnError as error:
                raise library.with_diagnosis(error) from None
        super().__init__(pointer, partial(_retire, library, device))
        library.cudnnSetStream(self, streams.LEGACY_DEFAULT)  # a handle may come from another thread


_idle_handles: dict[tuple[Any, int], list[Any]] = {}  # at most as many as threads that ran at the same time


def _retire(library: Any, device: int, pointer: Any) -> None:
    _idle_handles.setdefault((library, device), []).append(pointer)


class Context:
    """The state of one thread on one device.

    ``library`` is the cuDNN in use, ``stream`` the stream that the handle works on. ``calls`` has the
    prepared calls of operations by their arguments, ``plans`` those of plans and other live objects by their
    tokens. The plan of the running call reads its state, such as arguments in host memory, from ``state``.

    ``running`` is set while a plan runs. A finalizer or a signal handler may interrupt it and call an
    operation in the same thread. That call gets a context of its own: it must not change this stream and
    workspace.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self.default = streams.default_stream(device)
        self.alone = streams.device_count() == 1  # then the device stays current in this thread
        self.library = _lib.load()
        if config.debug_sync:
            watch(self.library)
        handle = None if self.library.lacks("graph") else Handle(self.library, device)
        self.stream = self.default  # the stream of a new handle
        self.calls = CallCache(4096)
        self.plans: dict[object, Any] = {}
        self.state: Any = None
        self.last_graph: Any = None  # the text of the last graph, and its native object
        self.kernel_caches = BoundedDict(KERNEL_CACHES)  # compiled kernels of dynamic graphs
        # Of threads that compile for this one; used again, as each plan keeps the handle it was made with.
        self.helpers: list[Context] = []
        self.last_call: Any = None  # the prepared call that ran last, for `explanations.last_plan`
        self.watched: list[Any] | None = None  # calls that ran, for `torch.known`
        self.running = False
        self.replays = ReplayPool(device)
        self.lent: LentMemory | None = None  # the workspace of the running call
        self._inner: Context | None = None
        self._recorded: Stream | None = None  # the stream of the call that is recorded
        self._workspaces = BoundedDict(WORKSPACES)
        self._copies = BoundedDict(WORKSPACES)  # memory of copies of operands
        self.handle = handle  # last, so that it is released after the plans above

    @contextmanager
    def working(self, stream: Stream) -> Iterator[None]:
        """Run work on a stream within a block; calls that interrupt it get another context."""
        outer, self.running = self.running, True
        try:
            self.set_stream(stream)
            yield
        finally:
            self.running = outer

    def enter(self) -> int | None:
        """Make the device current; return the previous one for `streams.restore_device`, or None."""
        return None if self.alone else streams.set_device(self.device)

    def set_stream(self, stream: Stream) -> None:
        """Make the handle work on ``stream``; cuDNN is called only for a change."""
        if self.stream is not stream:
            recordings.refuse_unrecorded(stream)
            if self.stream != stream:
                self.stream = _NO_STREAM  # a signal handler may raise in the middle of the call
                if self.handle is not None:
                    self.library.cudnnSetStream(self.handle, stream.handle)
            self.stream = stream

    @contextmanager
    def recording(self, captured: Stream) -> Iterator[dict[int, object]]:
        """Work on a captured stream, with the workspace of the present one; yield what the work uses."""
        stream, used = self.stream, dict[int, object]()
        self._recorded = stream
        try:
            with self.working(captured), pinning(used):
                yield used
        finally:
            self._recorded = None
            self.set_stream(stream)

    def idle(self) -> Context:
        """Return this context, or while a plan is running one for the calls that interrupt it."""
        if not self.running:
            return self
        if self._inner is None:
            with streams.relaxed():  # cuDNN allocates memory for a handle
                self._inner = Context(self.device)
        return self._inner.idle()

    def workspace(self, nbytes: int) -> int:
        """Return the address of ``nbytes`` of workspace or more, valid for one call on this stream."""
        # Each thread has its own for each stream: kernels of another thread may be enqueued on the stream
        # between the kernels of one cuDNN call.
        if self.lent is not None and (address := self.lent.address(nbytes)) is not None:
            return address
        return int(self._memory(self._workspaces, nbytes, "a workspace").handle) if nbytes else 0

    def workspace_memory(self) -> object:
        """Return what keeps the workspace of this call alive, also when a larger one takes its place."""
        return self._workspaces.get(self.call_stream), self.lent and self.lent.memory

    def operand_copies(self, nbytes: int) -> Any:
        """Return memory for copies of operands; the caller keeps a reference, as memory may be released."""
        return self._memory(self._copies, nbytes, "copies of operands")

    def _memory(self, store: BoundedDict, nbytes: int, what: str) -> Any:
        """Return an object with the address ``handle`` of memory for the calls on this stream."""
        held = store.get(self.call_stream)
        if self.capturing:
            if (recording := recordings.current()) is not None:
                return recording.arena.workspace(nbytes, self.stream, what)
            if held is None or held.size < nbytes:
                raise NotInitializedError(
                    f"a captured call on {self.stream} needs {nbytes:,} bytes for {what}, which cannot be "
                    "allocated in a capture: make the same call once on this stream before capturing it"
                )
            self.pin(held)  # the graph keeps using it
        elif held is None or held.size < nbytes:
            try:
                larger = Workspace(nbytes, self.stream, what)
            except AllocationError:
                if not (self._workspaces or self._copies):
                    raise
                held = None
                self.drop_workspaces()  # they may free enough memory
                larger = Workspace(nbytes, self.stream, what)
            if held is not None:
                held.exported.settle()
            held = store[self.stream] = larger
        return held

    @property
    def call_stream(self) -> Stream:
        """The stream of the call; while a call is recorded, its work is captured on another stream."""
        return self._recorded or self.stream

    @property
    def capturing(self) -> bool:
        """Whether a CUDA graph is being captured on the stream."""
        return self.stream.handle != streams.LEGACY_DEFAULT and streams.is_capturing(self.stream)

    def pin(self, thing: object) -> None:
        """Keep an object and the handle as long as the captured graph: by default until the process ends.

        A graph may outlive the thread and the plan that it was captured from.
        """
        local.pins.update((id(kept), kept) for kept in (thing, self.handle))

    def drop_workspace(self) -> None:
        """Release this stream's workspace unless it was captured; it is recreated when needed."""
        self._workspaces.pop(self.stream, None)

    def drop_workspaces(self) -> None:
        """Release all workspaces that were not captured; they are recreated when needed."""
        for held in (self.replays, self._workspaces, self._copies):
            held.clear()
        if self._inner is not None:
            self._inner.drop_workspaces()


_pinned: dict[int, object] = {}  # objects that CUDA graphs may use at any time, by identity


class Contexts(dict[int, Context]):
    """Contexts by device; ``last`` is one whose calls on tensors can be repeated."""

    last: Context | None = None


class _Thread(threading.local):
    """The contexts of this thread by device, and where what its captures use is kept."""

    def __init__(self) -> None:
        self.contexts = Contexts()
        self.pins = _pinned


local = _Thread()


@contextmanager
def pinning(store: dict[int, object]) -> Iterator[None]:
    """Keep what graphs captured by this thread use in ``store`` within a block, by identity."""
    outer = local.pins
    local.pins = store
    try:
        yield
    finally:
        local.pins = outer


def of_device(device: int) -> Context:
    """Return this thread's context on a device, which :meth:`Context.enter` makes current.

    Raises CudnnError without a usable cuDNN, driver or device; :func:`available` has the reason in one line.
    """
    if (context := local.contexts.get(device)) is None:
        with streams.on_device(device), streams.relaxed():  # cuDNN allocates memory for a handle
            context = local.contexts[device] = Context(device)
    return context.idle() if context.running else context


def current(stream: Stream) -> Context:
    """Return this thread's context on the device of ``stream``, which is current; it works on ``stream``."""
    context = of_device(stream.device)
    context.set_stream(stream)
    return context


def _forget() -> None:
    """Destroy this thread's contexts and all idle handles, for tests that replace the library."""
    local.contexts.clear()
    local.contexts.last = None
    while _idle_handles:
        (library, device), pointers = _idle_handles.popitem()
        with streams.on_device(device):  # else cuDNN would create a context on another device
            for pointer in pointers:
                library.cudnnDestroy(pointer)


@contextmanager
def use(*, device: int | None = None, stream: StreamLike | None = None) -> Iterator[Stream]:
    """Work on another device or stream within a ``with`` block (in this thread, or this asyncio task).

    Parameters
    ----------
    device : int, optional
        Its default stream is used, unless ``stream`` is given.
    stream : optional
        An address, or anything with ``__cuda_stream__`` (cuda.core, torch and cupy streams).

    Yields
    ------
    Stream
        The stream that operations without ``stream=`` use within the block.

    Raises
    ------
    ValueError
        The device does not exist, or the stream belongs to another one.
    TypeError
        ``stream`` is not a stream, or ``device`` not an int.

    Examples
    --------
    >>> with ct.use(device=0) as stream:
    ...     y = ct.activation(ct.asarray([-1, 2], "float32"))
    >>> y.numpy()
    array([0., 2.], dtype=float32)
    """
    if array_shapes.active_with(stream):
        if device is not None:
            streams.as_device(device)
        yield array_shapes.STREAM
        return
    where = streams.current_stream().device if device is None else streams.as_device(device)
    chosen = streams.default_stream(where) if stream is None else streams.as_stream(stream, where)
    if device is not None and chosen.device != where:
        raise ValueError(f"stream is on another device: got {chosen.device}, expected {where}")
    recordings.refuse_device(chosen.device)
    previous = streams.set_device(chosen.device)
    token = streams.in_use.set(chosen)
    try:
        yield chosen
    finally:
        streams.in_use.reset(token)
        streams.restore_device(previous)


def synchronize(stream: StreamLike | None = None) -> None:
    """Wait until the work on a stream is complete, and raise its errors.

    Parameters
    ----------
    stream : optional
        An address, or anything with ``__cuda_stream__``; by default that of ``ct.use``.

    Raises
    ------
    CudnnError
        A kernel failed.

    Examples
    --------
    >>> y = ct.activation(ct.asarray([-1, 2], "float32"))  # returns before y is computed
    >>> ct.synchronize()
    """
    if array_shapes.active_with(stream):
        return
    here = streams.current_stream()
    chosen = here if stream is None else streams.as_stream(stream, here.device)
    with streams.on_device(chosen.device):
        events.synchronize(chosen)
        release_finished()
        memories.release(chosen.device)


def empty_cache(device: int | None = None) -> None:
    """Return unused device memory to the driver, for other libraries to allocate.

    The stream-ordered pool keeps freed memory for fast allocation. This thread's workspaces are released too,
    and recreated when needed. The function waits for the work on the current stream first: memory counts as
    used until the work that uses it is complete.

    Parameters
    ----------
    device : int, optional
        By default the current one.

    Raises
    ------
    TypeError, ValueError
        ``device`` is not an int, or the device does not exist.
    CudnnError
        A kernel failed, or no device exists.

    Examples
    --------
    >>> ct.empty_cache()
    """
    number = None if device is None else streams.as_device(device)
    if array_shapes.active():
        return
    where = streams.current_stream().device if number is None else number
    contexts = local.contexts
    if where in contexts and not contexts[where].running:  # else the interrupted call uses one
        contexts[where].drop_workspaces()
    allocator.release(where)
    with streams.on_device(where):
        memories.release(where)
        synchronize(streams.current_stream(where) if device is None else streams.default_stream(where))
        memories.trim(where)


@in_forked_child
def _after_fork() -> None:
    """Make calls of a forked child, which cannot use CUDA, fail."""
    for context in local.contexts.values():
        inner: Context | None = context
        while inner is not None:
            inner.alone, inner = False, inner._inner
