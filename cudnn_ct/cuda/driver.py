"""Imports the CUDA libraries for this folder, and other modules meanwhile, and translates errors of CUDA.

Calls of the driver go through ``cuda.bindings``, the calls of a replay through ctypes, which takes a third of
the time. ``cuda.core`` only describes arrays of other libraries.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from time import monotonic, sleep
from typing import Any

from ..errors import PACKAGES, CudnnError, ExecutionFailedError, NotInitializedError, not_on_shapes
from ..errors import on_shapes as on_shapes
from .launch_log import add_launch_history

_NATIVE_VERSION = 12000  # of the interfaces that `native` returns
_FORK_WAIT = 10.0  # seconds that a fork waits for an import in another thread
_FORK_ADVICE = (
    "start processes that use it with multiprocessing's 'spawn' method, or use CUDA first in the child"
)

# Sticky errors of kernels: every later CUDA call of the process returns the same error.
_STICKY_ERRORS = (
    "ASSERT",
    "CONTEXT_IS_DESTROYED",
    "CONTAINED",
    "ECC_UNCORRECTABLE",
    "HARDWARE_STACK_ERROR",
    "ILLEGAL_ADDRESS",
    "ILLEGAL_INSTRUCTION",
    "INVALID_ADDRESS_SPACE",
    "INVALID_PC",
    "LAUNCH_FAILED",
    "LAUNCH_TIMEOUT",
    "MISALIGNED_ADDRESS",
)


class _Start:
    """State of the import and the initialization of CUDA in this process."""

    def __init__(self) -> None:
        # Held by the thread that imports the libraries and initializes the driver, and by one that forks, so
        # that the imports are complete in the child. It is reentrant, because an import may fork.
        self.lock = threading.RLock()
        self.used = False  # whether this process initialized the driver
        self.forked = False  # whether a parent did


_start = _Start()


@cache
def driver() -> Any:
    """Return ``cuda.bindings.driver``, imported and initialized at the first use."""
    with _importing("cuda.bindings"):
        from cuda.bindings import driver

        begin_imports()
        result = driver.cuInit(0)[0]
        _start.used = _start.used or not int(result)
    check(result, "initializing CUDA")
    return driver


@cache
def native(name: str, version: int = _NATIVE_VERSION) -> Any:
    """Return a function of the driver as a ctypes function, whose arguments are instances of C types.

    Raises CudnnError if the driver is older than ``version``.
    """
    doing = f"finding {name}"
    address, _ = call(doing, "cuGetProcAddress", name.encode(), version, 0)
    if not address:
        raise _failed(doing, "CUDA_ERROR_NOT_FOUND", None)
    return ctypes.CFUNCTYPE(ctypes.c_int)(int(address))


@cache
def core() -> Any:
    """Return ``cuda.core``, imported at the first use."""
    # Its ``__init__`` replaces its own ``__spec__``, which Python's lock of imports reads. So a thread that
    # imports it while another one does gets a part of it, and an import of ``cuda.core.utils`` fails. The
    # package ``cuda`` may be a redirection by cuda-bindings meanwhile, which has no attribute ``core``.
    with _importing("cuda.core"):
        import cuda.core  # noqa: F401  # for the table of modules

        module, deadline = sys.modules["cuda.core"], monotonic() + 30
        while not (hasattr(module, "utils") and hasattr(module, "Buffer")) and monotonic() < deadline:
            sleep(0.001)
    return module


@contextmanager
def _importing(name: str) -> Iterator[None]:
    """Hold the lock of forks, and translate errors of an import."""
    if _start.forked:
        raise NotInitializedError(
            f"CUDA does not survive a fork, and this process used it before: {_FORK_ADVICE}"
        )
    try:
        with _start.lock:
            yield
    except Exception as error:
        raise as_cudnn_error(error, f"importing {name}") from None  # its text is in the message


def check(result: Any, doing: str, stream: Hashable = None) -> None:
    """Raise if a driver result is not 0; ``stream`` is the stream that the call worked on."""
    if int(result):
        raise _failed(doing, str(getattr(result, "name", result)), stream)


def call(doing: str, function: str, *arguments: Any, stream: Hashable = None) -> Any:
    """Call a function of the driver, and return its value, or its values as a list; raise if it fails."""
    result, *values = getattr(driver(), function)(*arguments)
    check(result, doing, stream)
    return values[0] if len(values) == 1 else values


def is_foreign(error: Exception) -> bool:
    """Return whether cuda.core, its bindings or its path finder raised an exception of their own."""
    return type(error).__module__.partition(".")[0] == "cuda"


def as_cudnn_error(error: Exception, doing: str) -> CudnnError:
    """Convert an exception of cuda.core, its bindings or its path finder."""
    text = " ".join(str(error).split())
    if type(error).__name__ == "DynamicLibNotFoundError" and "cuda" in text:
        return _no_gpu(
            "no CUDA driver: libcuda.so.1 was not found. Install the NVIDIA driver, or start the "
            "container with access to the GPU"
        )
    return _failed(doing, text)


def _failed(doing: str, text: str, stream: Hashable = None) -> CudnnError:
    if "NO_DEVICE" in text:
        return _no_gpu("the CUDA driver shows no device; check CUDA_VISIBLE_DEVICES")
    if "CUDA_ERROR_NOT_INITIALIZED" in text:  # after a fork, if another library had initialized the driver
        return NotInitializedError(
            f"{doing} failed: {text}. CUDA does not survive a fork: if this process was forked from one that "
            f"used it, {_FORK_ADVICE}"
        )
    if "INSUFFICIENT_DRIVER" in text or "SYSTEM_DRIVER_MISMATCH" in text:
        return _no_gpu(f"the CUDA driver is too old for the installed cuda-python: {text}")
    if "CUDA_ERROR" not in text:
        return _no_gpu(f"{doing} failed: {text}")
    error = ExecutionFailedError(f"{doing} failed: {text}")
    if any(f"CUDA_ERROR_{fault}" in text for fault in _STICKY_ERRORS):
        add_launch_history(error, stream)
    return error


def _no_gpu(reason: str) -> CudnnError:
    """Return the error of a call that needs a GPU, with what works without one in a second line."""
    if on_shapes.get():
        return not_on_shapes()
    return NotInitializedError(
        f"{reason}\nWithout a GPU, calls in a block `with ct.record_plans(shapes_only=True):` check their "
        "arguments and return arrays with shapes and dtypes only."
    )


# --- forks -------------------------------------------------------------------------------------------------


def _before_fork() -> None:
    """Wait until no other thread imports, with a limit: the import may wait for this thread."""
    _start.lock.acquire(timeout=_FORK_WAIT)
    finish_imports(_FORK_WAIT)


def _after_fork_in_parent() -> None:
    with suppress(RuntimeError):  # the wait has timed out
        _start.lock.release()


def _after_fork_in_child() -> None:
    try:
        _start.lock.release()
    except RuntimeError:  # another thread of the parent holds it, in the middle of an import
        _start.lock = threading.RLock()
        _start.forked = True
    _start.forked = _start.forked or _start.used
    _start.used = False
    for cached in (core, driver, native):
        cached.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )


# --- imports in a background thread while CUDA starts ------------------------------------------------------

# The driver takes 0.1 to 0.2 s to initialize and to create its first context, and runs no Python meanwhile.
# The first operation of a process needs the modules below, whose imports take half of this time.

MODULES = ("_bindings.functions", "_bindings.enums", "ops.conv.conv")  # with their own imports: most modules
_import_thread: threading.Thread | None = None  # None before it starts, and after it has finished


def begin_imports() -> None:
    """Start to import the modules, if some of them are missing."""
    global _import_thread
    missing = [name for name in MODULES if f"{PACKAGES[0]}.{name}" not in sys.modules]
    if missing and _import_thread is None:
        thread = threading.Thread(target=_import, args=(missing,), name="cudnn_ct imports", daemon=True)
        with suppress(RuntimeError):  # no thread can be started: the modules are imported at their first use
            thread.start()
            _import_thread = thread


def finish_imports(timeout: float | None = None) -> None:
    """Wait until the imports are complete, for at most ``timeout`` seconds.

    Callers wait before they import these modules themselves, and before a fork.
    """
    global _import_thread
    thread = _import_thread
    if thread is not None and thread is not threading.current_thread():
        thread.join(timeout)
        _import_thread = None


def _import(names: list[str]) -> None:
    with suppress(Exception):  # the first use of the module raises it again
        for name in names:
            import_module(f".{name}", PACKAGES[0])
