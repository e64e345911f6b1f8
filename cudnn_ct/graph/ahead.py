"""Plans that several threads compile at the same time, for one thread that uses them.

cuDNN takes 0.2 to 0.7 s to compile an engine at run time, on one core, and keeps nothing for the next plan of
the same engine. Each thread compiles with a handle of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ..context import Context
from ..cuda import stream as streams
from ..errors import AllocationError, CudnnError, ExecutionFailedError, Warnings, deferring, warn_caller
from . import recording
from .backend import BackendDescriptor
from .plan_store import timing

MAX_THREADS = 8  # each takes memory of the host, and a handle

Kept = dict[str, BackendDescriptor | CudnnError]
"""Native plans by all that they depend on; the error of an engine that rejects its graph."""


class _Thread(threading.local):
    kept: Kept | None = None


_thread = _Thread()


@contextmanager
def keeping(kept: Kept | None = None) -> Iterator[None]:
    """Compile each plan once within a block: :func:`once` keeps it."""
    outer, _thread.kept = _thread.kept, {} if kept is None else kept
    try:
        yield
    finally:
        _thread.kept = outer


def once(key: Callable[[], str], build: Callable[[], BackendDescriptor]) -> BackendDescriptor:
    """Build a plan, unless it is kept."""
    kept = _thread.kept
    if kept is None:
        return build()
    place = key()
    if place not in kept:
        try:
            kept[place] = build()
        except (AllocationError, ExecutionFailedError):  # it may work the next time
            raise
        except CudnnError as error:
            kept[place] = error
    if isinstance(found := kept[place], CudnnError):
        raise found
    return found


def compile_ahead(plans: Sequence[Callable[[Context], object]], context: Context) -> None:
    """Make plans in several threads, and keep them; an error is raised where its plan is used."""
    kept, rest, warned = _thread.kept, list(plans), Warnings()
    threads = min(len(rest), MAX_THREADS, len(os.sched_getaffinity(0)))
    if kept is None or threads < 2 or recording.active():
        return

    def work(mine: Context) -> None:
        device = streams.on_device(context.device)
        with device, streams.relaxed(), keeping(kept), timing(), deferring(warned):
            while rest:
                with suppress(Exception):
                    rest.pop(0)(mine)

    with suppress(AllocationError):
        while len(context.helpers) < threads - 1:
            context.helpers.append(Context(context.device))
    others = [threading.Thread(target=work, args=(one,), daemon=True) for one in context.helpers]
    try:
        for thread in others:
            with suppress(RuntimeError):  # the system starts no further thread
                thread.start()
        work(context)
    finally:
        rest.clear()  # after an interrupt
        for thread in others:
            if thread.ident is not None:
                thread.join()
    for one in list(warned):
        warn_caller(*one)
