"""The libraries behind `stream`: cuda.core and the driver's bindings, and what they say in our own words."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from functools import cache
from typing import Any

from .errors import CudnnError, ExecutionFailedError, NotInitializedError
from .issued import explained

__all__ = ["check", "core", "driver", "forget", "translated"]

_process = {"forked": False}
_importing = threading.RLock()  # threads that import a package of many modules at once meet it half made
_CURE = "start processes that use it with multiprocessing's 'spawn' method, or use CUDA first in the child"

# What kernels end a context with. Every later call of the process fails so, whatever it is.
_FAULTS = (
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


@cache
def core() -> Any:
    """``cuda.core``, imported when it is first needed."""
    if _process["forked"]:
        raise NotInitializedError(f"CUDA does not survive a fork, and this process used it before: {_CURE}")
    try:
        with _importing:
            import cuda.core
    except Exception as error:
        raise translated(error, "importing cuda.core") from error
    return cuda.core


@cache
def driver() -> Any:
    """``cuda.bindings.driver``."""
    core()
    try:
        with _importing:
            from cuda.bindings import driver
    except Exception as error:
        raise translated(error, "importing cuda.bindings") from error
    return driver


def forget(*, used: bool) -> None:
    """In a forked child: import anew, or say why not, where the parent had ``used`` CUDA."""
    _process["forked"] |= used
    core.cache_clear()
    driver.cache_clear()


def check(result: Any, doing: str, stream: Hashable = None) -> None:
    """Raise for a driver call's result other than 0; ``stream`` is where the call was to do something."""
    if int(result):
        raise _failed(doing, str(getattr(result, "name", result)), stream)


def translated(error: Exception, doing: str, stream: Hashable = None) -> CudnnError:
    """Say in this package's words what cuda.core, its bindings or its path finder said."""
    text = " ".join(str(error).split())
    if type(error).__name__ == "DynamicLibNotFoundError" and "cuda" in text:
        return NotInitializedError(
            "no CUDA driver: libcuda.so.1 was not found. Install the NVIDIA driver, or start the "
            "container with access to the GPU"
        )
    if "NO_DEVICE" in text:
        return NotInitializedError("the CUDA driver is there and shows no device (CUDA_VISIBLE_DEVICES?)")
    if "CUDA_ERROR_NOT_INITIALIZED" in text:  # where another library had used it, which nobody told us
        return NotInitializedError(
            f"{doing} failed: {text}. CUDA does not survive a fork: if this process was forked from one that "
            f"used it, {_CURE}"
        )
    if "INSUFFICIENT_DRIVER" in text or "SYSTEM_DRIVER_MISMATCH" in text:
        return NotInitializedError(f"the CUDA driver is too old for the installed cuda-python: {text}")
    if "CUDA_ERROR" in text:
        return _failed(doing, text, stream)
    return NotInitializedError(f"{doing} failed: {text}")


def _failed(doing: str, text: str, stream: Hashable) -> CudnnError:
    error = ExecutionFailedError(f"{doing} failed: {text}")
    return explained(error, stream) if any(f"CUDA_ERROR_{fault}" in text for fault in _FAULTS) else error
