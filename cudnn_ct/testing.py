"""Isolate tests of code that uses cudnn_ct: replace the cuDNN library, and drop everything cached.

``ct.config`` is not reset; pytest's ``monkeypatch.setattr(ct.config, name, value)`` restores a setting.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from . import _lib, algo_cache, context, descriptors, facts
from ._dlopen import Lookup
from ._lib import Library
from .autotune import store
from .certify import certificates
from .cuda import allocator, graph, launch_log, replay
from .cuda import stream as streams
from .graph import plan_store
from .legal import rules
from .ops import _replay
from .ops.matmul import cublaslt

__all__ = [
    "CacheSize",
    "assert_supported",
    "cache_sizes",
    "install",
    "replay_after",
    "reset",
    "without_facts",
]


def reset() -> None:
    """Drop everything that the process and the calling thread cached.

    Arrays, plans and files on disk remain valid. A CUDA graph that was captured before must not be replayed.
    Objects in reference cycles are destroyed by ``gc.collect()``; their handles by the next ``reset()``.

    Raises
    ------
    CudnnError
        A handle could not be destroyed.

    Examples
    --------
    >>> from cudnn_ct import testing
    >>> testing.reset()
    """
    algo_cache._decisions.clear()
    store._STORES.clear()
    facts.forget()
    rules.forget()
    certificates.forget()
    plan_store._STORES.clear()
    launch_log._history.clear()
    context._forget()
    cublaslt.forget()
    context._pinned.clear()
    descriptors._cached.cache_clear()
    streams._known.clear()
    graph._idle_streams.clear()
    for device in list(allocator._free_lists):
        allocator.release(device)


@contextmanager
def without_facts(*names: str) -> Iterator[None]:
    """Ignore facts about cuDNN within a ``with`` block, to see whether they still hold.

    Parameters
    ----------
    names : str
        Names of rows of facts.json.

    Yields
    ------
    None

    Raises
    ------
    ValueError
        A name is not that of a fact.

    Notes
    -----
    Engines that are known to compute wrong results, or to lose the CUDA context, may be chosen in the block.

    Examples
    --------
    >>> from cudnn_ct import testing
    >>> with testing.without_facts("conv-select"):
    ...     pass
    """
    facts.ignore(names)
    reset()
    try:
        yield
    finally:
        facts.ignore(())
        reset()


@contextmanager
def install(library: Library | Lookup | None) -> Iterator[Library | None]:
    """Use another cuDNN library in all threads within a ``with`` block.

    Both ends of the block call :func:`reset`. Arrays and plans made in the block must not outlive it.

    Parameters
    ----------
    library : Library, callable, or None
        A callable gets the name of a C function and returns a ctypes function, or None for a function that
        does not exist. None stands for a library that is not loaded yet: the next call loads one.

    Yields
    ------
    Library or None
        The library that calls now use.

    Raises
    ------
    CudnnError
        As in :func:`reset`.

    Examples
    --------
    >>> import ctypes
    >>> from cudnn_ct import testing
    >>> get_version = ctypes.CFUNCTYPE(ctypes.c_size_t)(lambda: 92800)
    >>> with testing.install({"cudnnGetVersion": get_version}.get):
    ...     ct.version()
    92800
    """
    installed = library if library is None or isinstance(library, Library) else Library(library)
    before = _lib._state.library
    reset()
    _lib._install(installed)
    try:
        yield installed
    finally:
        reset()
        _lib._install(before)


@contextmanager
def replay_after(runs: int) -> Iterator[None]:
    """Record calls as CUDA graphs after fewer runs than usual, within a ``with`` block.

    Parameters
    ----------
    runs : int
        Number of runs with the same memory, 8 by default; calls with other memory need twice as many.

    Yields
    ------
    None

    Raises
    ------
    ValueError
        ``runs`` is less than 1.

    Examples
    --------
    >>> from cudnn_ct import testing
    >>> x, y = ct.full((2, 3), 1), ct.empty((2, 3))
    >>> with testing.replay_after(1):
    ...     for _ in range(2):  # the second call is a replay
    ...         y = ct.activation(x, out=y)
    """
    if runs < 1:
        raise ValueError(f"runs must be at least 1: got {runs}")
    before = _replay.REPEATS, _replay.MOVES
    _replay.REPEATS, _replay.MOVES = runs, 2 * runs
    try:
        yield
    finally:
        _replay.REPEATS, _replay.MOVES = before


class CacheSize(NamedTuple):
    """Number of entries of a cache, and the number at which it drops the oldest one (None: unlimited)."""

    entries: int
    limit: int | None


def assert_supported(
    calls: Callable[[], object] | str | os.PathLike[str], *gpus: str | os.PathLike[str]
) -> None:
    """Assert that cuDNN has an engine for each graph of a program on each GPU; no GPU is needed.

    cuDNN's heuristics are queried in a child process, for a GPU that is only described. Needs cuDNN >= 9.8.
    Calls without a graph are examined as far as that is possible without a GPU, by making their descriptors.

    Parameters
    ----------
    calls : callable or path
        A function without arguments, whose calls run on shapes as in :func:`record_plans`; or a file for
        ``cudnn-ct compile``.
    gpus : str or path
        Names of ``cudnn-ct supports --help``, or files that ``cudnn-ct device --export`` wrote. Only the
        ``"h200"`` was recorded on a device; others are derived from public sources.

    Raises
    ------
    AssertionError
        A graph has no engine, or cuDNN does not support a call; the message has a line for each, with the
        reason.
    TypeError
        ``calls`` is the result of a call instead of a function, or GPUs are in a list.
    ValueError
        No GPU is given, or one is unknown.
    CudnnError
        The child process failed, or this cuDNN is too old.

    Examples
    --------
    >>> from cudnn_ct import testing
    >>> def model():
    ...     return ct.activation(ct.zeros((64, 256, 32, 32), "float16"))
    >>> testing.assert_supported(model, "h200", "t4")  # doctest: +SKIP
    """
    from .cli.program import supported
    from .graph.exchange import record_plans
    from .graph.recording import rejected

    if not gpus:
        raise ValueError("no GPU is given: pass the name of at least one, such as 'h200'")
    if not (callable(calls) or isinstance(calls, str | os.PathLike)):
        raise TypeError(f"calls is not a function or a path: got {type(calls).__name__}")
    for gpu in gpus:
        if not isinstance(gpu, str | os.PathLike):
            raise TypeError(
                f"GPU is not a name or a path: got {gpu!r}; write assert_supported(calls, 'h200', 't4')"
            )
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "graphs.json")
        if callable(calls):
            with record_plans(shapes_only=True) as recorded:
                calls()
            recorded.save(file)
        else:
            file = os.fspath(calls)
        reports = supported(file, gpus)
    rows = [(report["gpu"], row) for report in reports for row in report["graphs"] if not row["engines"]]
    missing = [f"{gpu}: {row['graph']}: {row['reason']}" for gpu, row in rows]
    lines = ["cuDNN has no engine for these graphs:", *missing] if missing else []
    if calls_rejected := rejected(reports[0]["skipped"]):
        lines += ["cuDNN does not support these calls:", *map(": ".join, calls_rejected.items())]
    if lines:
        raise AssertionError("\n".join(lines))


def cache_sizes() -> dict[str, CacheSize]:
    """Return the sizes of the caches that all threads share, so that a test can show that they stay bounded.

    Returns
    -------
    dict of str to CacheSize

    Examples
    --------
    >>> from cudnn_ct import testing
    >>> testing.cache_sizes()["descriptors"].limit
    4096
    """
    bounded = {
        "decisions": algo_cache._decisions,
        "stores": store._STORES,
        "imported plans": plan_store._imported,
        "certificates": certificates._known,
    }
    described = descriptors._cached.cache_info()
    return {name: CacheSize(len(cache), cache.limit) for name, cache in bounded.items()} | {
        "descriptors": CacheSize(described.currsize, described.maxsize),
        "streams": CacheSize(len(streams._known), streams.MAX_STREAMS),
        "captured": CacheSize(len(context._pinned), None),
        "replayed nodes": CacheSize(replay.count_nodes(), None),
    }
