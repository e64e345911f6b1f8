"""torch and cupy during a recording: their current stream, and memory that belongs to the graph."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ..array import DeviceArray
from ..cuda.foreign import LIBRARIES
from ..cuda.stream import Stream

__all__ = ["as_array_of", "following", "streams_in_use"]


def as_array_of(library: str, array: DeviceArray) -> Any:
    """Return an array over the same memory of torch or cupy; the array itself if ``library`` is empty."""
    return sys.modules[library].from_dlpack(array) if library else array


def in_use(library: str) -> bool:
    """Return whether the process has imported a library, and the library uses CUDA."""
    module = sys.modules.get(library)
    cuda = getattr(module, "cuda", None)  # another thread may be importing it
    return cuda is not None and (library != "torch" or bool(cuda.is_initialized()))


@contextmanager
def following(stream: Stream) -> Iterator[dict[int, object]]:
    """Make the stream current in torch and cupy within a block, if they are in use.

    Their allocations in the block come from pools, which the yielded dict has; they must live as long as the
    graph. Enter the block before the capture: torch looks for a capture of its own otherwise.
    """
    pools: dict[int, object] = {}
    with ExitStack() as stack:
        if in_use("torch"):
            _enter_torch(sys.modules["torch"], stream, stack, pools)
        if in_use("cupy"):
            _enter_cupy(sys.modules["cupy"], stream, stack, pools)
        yield pools


def _enter_torch(torch: Any, stream: Stream, stack: ExitStack, pools: dict[int, object]) -> None:
    external = torch.cuda.ExternalStream(stream.handle, device=torch.device("cuda", stream.device))
    stack.enter_context(torch.cuda.stream(external))
    pool = torch.cuda.MemPool()
    stack.enter_context(torch.cuda.use_mem_pool(pool, stream.device))
    pools[id(pool)] = pool
    # Torch keeps a workspace of cuBLAS for each stream, which graphs of later captures would share.
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        stack.callback(clear)


def _enter_cupy(cupy: Any, stream: Stream, stack: ExitStack, pools: dict[int, object]) -> None:
    with warnings.catch_warnings():  # Stream.from_external of cupy 14.0 destroys the stream that it wraps
        warnings.simplefilter("ignore", DeprecationWarning)
        stack.enter_context(cupy.cuda.ExternalStream(stream.handle, stream.device))
    pool = cupy.cuda.MemoryPool()
    stack.enter_context(cupy.cuda.using_allocator(pool.malloc))
    pools[id(pool)] = pool


def streams_in_use(stream: Stream) -> list[Stream]:
    """Return the current streams of torch and cupy on the device of a stream, except for this stream."""
    theirs = [library.current(stream.device) for library in LIBRARIES if in_use(library.module)]
    return [one for one in theirs if one != stream]
