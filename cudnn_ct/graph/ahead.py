"""Plans that several threads compile at the same time, for one thread that uses them.

cuDNN takes 0.2 to 0.7 s to compile an engine at run time, on one core, and keeps nothing for the next plan of
the same engine. Each thread compiles with a handle of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from time import monotonic
from typing import Any, TypeVar, cast

from ..context import Context
from ..cuda import stream as streams
from ..errors import (
    BadParamError,
    CudnnError,
    NotSupportedError,
    Warnings,
    deferring,
    warn_caller,
    without_frames,
)
from . import recording
from .plan_store import timing

T = TypeVar("T")

MAX_THREADS = 8  # each takes memory of the host, and a handle
# Seconds that threads are waited for: a finalizer, which may run in each, may need a lock of the caller.
PATIENCE = 60.0

Kept = dict[str, Any]
"""Native plans by all that they depend on, or the error of an engine that rejects its graph."""


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


def once(key: Callable[[], str], build: Callable[[], T]) -> T:
    """Build a native plan, unless it is kept; raise the error if it is known to be impossible."""
    kept = _thread.kept
    if kept is None:
        return build()
    place = key()
    if place not in kept:
        try:
            kept[place] = build()
        except (NotSupportedError, BadParamError) as error:  # others may be due to the other threads
            kept[place] = without_frames(error)
    if isinstance(found := kept[place], CudnnError):
        raise copy(found)  # a raised error and its frames keep each other alive
    return cast(T, found)


def compile_ahead(plans: Sequence[Callable[[Context], object]], context: Context) -> None:
    """Make plans in several threads, and keep them; an error is raised where its plan is used."""
    kept, rest, warned = _thread.kept, list(plans), Warnings()
    threads = min(len(rest), MAX_THREADS, len(os.sched_getaffinity(0)))
    if kept is None or threads < 2 or recording.active():
        return

    def work(mine: Context) -> None:
        device = streams.on_device(context.device)
        with suppress(CudnnError), device, streams.relaxed(), keeping(kept), timing(), deferring(warned):
            mine.set_stream(context.stream)  # of the runs: cuDNN may enqueue work for a plan
            while rest:
                with suppress(Exception):
                    rest.pop(0)(mine)

    # Only those that no thread uses any more come back.
    helpers, context.helpers = context.helpers[: threads - 1], context.helpers[threads - 1 :]
    with suppress(CudnnError), streams.relaxed():  # cuDNN allocates memory for a handle
        while len(helpers) < threads - 1:
            helpers.append(Context(context.device))
    others = [threading.Thread(target=work, args=(one,), daemon=True) for one in helpers]
    try:
        for thread in others:
            with suppress(RuntimeError):  # the system starts no further thread
                thread.start()
        work(context)
    finally:
        rest.clear()  # after an interrupt
        end = monotonic() + PATIENCE
        for thread, helper in zip(others, helpers, strict=True):
            if thread.ident is not None:
                thread.join(max(end - monotonic(), 0))
            if not thread.is_alive():
                context.helpers.append(helper)
    for one in list(warned):
        warn_caller(*one)
