"""The libraries behind `stream`: cuda.core and the driver's bindings, and what they say in our own words."""

from __future__ import annotations

from functools import cache
from typing import Any

from .errors import CudnnError, ExecutionFailedError, NotInitializedError

__all__ = ["check", "core", "driver", "forget", "translated"]

_process = {"forked": False}
_CURE = "start processes that use it with multiprocessing's 'spawn' method, or use CUDA first in the child"


@cache
def core() -> Any:
    """``cuda.core``, imported when it is first needed."""
    if _process["forked"]:
        raise NotInitializedError(f"CUDA does not survive a fork, and this process used it before: {_CURE}")
    try:
        import cuda.core
    except Exception as error:
        raise translated(error, "importing cuda.core") from error
    return cuda.core


@cache
def driver() -> Any:
    """``cuda.bindings.driver``."""
    core()
    try:
        from cuda.bindings import driver
    except Exception as error:
        raise translated(error, "importing cuda.bindings") from error
    return driver


def forget(*, used: bool) -> None:
    """In a forked child: import anew, or say why not, where the parent had ``used`` CUDA."""
    _process["forked"] |= used
    core.cache_clear()
    driver.cache_clear()


def check(result: Any, doing: str) -> None:
    """Raise for a driver call's result other than 0."""
    if int(result):
        raise ExecutionFailedError(f"{doing} failed: {getattr(result, 'name', result)}")


def translated(error: Exception, doing: str) -> CudnnError:
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
    kind = ExecutionFailedError if "CUDA_ERROR" in text else NotInitializedError
    return kind(f"{doing} failed: {text}")
