"""Other libraries during a recording: their current stream, and memory that belongs to the graph."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ..array import DeviceArray
from ..cuda import foreign
from ..cuda.stream import Stream


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
