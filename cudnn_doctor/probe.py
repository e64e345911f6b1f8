"""The child process: opens cuDNN or the driver, makes a few calls, and prints a line after each step."""

# It may hang or be killed. It is run as a script, and can import only the standard library.

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

TENSOR = 17  # CUDNN_BACKEND_TENSOR_DESCRIPTOR
# Attributes of a tensor: identifier, type (INT64), values. The data type, an enum, is set separately.
ATTRIBUTES = ((906, 3, (1,)), (900, 3, (16,)), (902, 3, (2, 3, 4, 5)), (903, 3, (60, 20, 5, 1)))
DATA_TYPE, FLOAT = 901, 0
PR_SET_PDEATHSIG = 1
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


def emit(step: str, **values: Any) -> None:
    """Print one step, unbuffered, and with the bytes of paths."""
    # In a line of its own even if a library has printed without an end of line.
    os.write(1, os.fsencode("\n" + json.dumps({"step": step, **values}, ensure_ascii=False) + "\n"))


def main(plan: dict[str, Any]) -> None:
    """Run the mode of the plan: ``cudnn`` or ``driver``."""
    end_with(plan["parent"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a result
    {"cudnn": probe_cudnn, "driver": probe_driver}[plan["mode"]](plan)
    emit("done")
    os._exit(0)  # without the destructors of the libraries, which may fail


def end_with(parent: int) -> None:
    """Let the kernel kill this process together with its parent, which could no longer stop it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent was killed before
        os._exit(1)


def probe_cudnn(plan: dict[str, Any]) -> None:
    """Open cuDNN by its path, read its versions, and finalise a tensor descriptor."""
    emit("libcuda", how=_libcuda(plan))
    emit("begin", what="dlopen")
    try:
        cudnn = ctypes.CDLL(plan["shim"])
    except OSError as error:
        emit("load", error=str(error))
        return
    emit("load", error="")
    emit("begin", what="cudnnGetVersion")
    cudnn.cudnnGetVersion.restype = ctypes.c_size_t
    emit("version", value=cudnn.cudnnGetVersion())
    cudnn.cudnnGetCudartVersion.restype = ctypes.c_size_t
    emit("cudart", value=cudnn.cudnnGetCudartVersion())
    for name in plan["checks"]:
        if hasattr(cudnn, name):
            emit("begin", what=name)
            status = getattr(cudnn, name)()
            emit("check", name=name, status=status, text=_last_error(cudnn) if status else "")
    emit("maps", files=_maps(plan["files"]))
    emit("begin", what="cudnnBackendFinalize")
    status = finalize(cudnn)
    emit("finalize", status=status, text=_last_error(cudnn) if status else "")
    emit("maps", files=_maps(plan["files"]))


def probe_driver(plan: dict[str, Any]) -> None:
    """Initialise the driver, count the GPUs, create a context on each, and create a cuDNN handle."""
    emit("begin", what="dlopen libcuda.so.1")
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        emit("driver", error=str(error))
        return
    emit("driver", error="", path=next((file for file in _maps() or () if "libcuda.so" in file), ""))
    number = ctypes.c_int()
    emit("begin", what="cuDriverGetVersion")
    emit("driver_version", status=cuda.cuDriverGetVersion(ctypes.byref(number)), value=number.value)
    emit("begin", what="cuInit")
    status = cuda.cuInit(0)
    emit("init", status=status)
    if status:
        return
    emit("count", status=cuda.cuDeviceGetCount(ctypes.byref(number)), value=number.value)
    for device in range(number.value):
        _probe_device(cuda, device)
    if number.value and plan["shim"]:
        _create(plan)


def _probe_device(cuda: ctypes.CDLL, device: int) -> None:
    name, major, minor = ctypes.create_string_buffer(256), ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), MAJOR, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), MINOR, device)
    emit("begin", what=f"a context on GPU {device}")
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    status = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    status = status or cuda.cuCtxSetCurrent(context)
    status = status or cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    emit(
        "device",
        index=device,
        name=name.value.decode("utf-8", "replace"),
        arch=major.value * 10 + minor.value,
        status=status,
        free=free.value,
        total=total.value,
    )


def _create(plan: dict[str, Any]) -> None:
    emit("begin", what="cudnnCreate")
    try:
        if plan["cublaslt"]:
            ctypes.CDLL(plan["cublaslt"])
        cudnn = ctypes.CDLL(plan["shim"])
    except OSError as error:
        emit("load", error=str(error))
        return
    handle = ctypes.c_void_p()
    status = cudnn.cudnnCreate(ctypes.byref(handle))
    emit("create", status=status, text=_last_error(cudnn) if status else "")


def _libcuda(plan: dict[str, Any]) -> str:
    emit("begin", what="dlopen libcuda.so.1")
    for name, how in (("libcuda.so.1", "driver"), (plan["stub"], "stub")):
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            how = f"none: {error}"
        else:
            break
    if how == "driver":  # cuDNN calls it too, and would appear to hang or to crash
        emit("begin", what="cuInit")
        with suppress(AttributeError):
            library.cuInit(0)
    return how


def finalize(cudnn: ctypes.CDLL) -> int:
    """Finalise a tensor descriptor, and return the status."""
    descriptor, kind = ctypes.c_void_p(), ctypes.c_int(FLOAT)
    status: int = cudnn.cudnnBackendCreateDescriptor(TENSOR, ctypes.byref(descriptor))
    if status:
        return status
    cudnn.cudnnBackendSetAttribute(descriptor, DATA_TYPE, 1, ctypes.c_int64(1), ctypes.byref(kind))
    for name, kind_of_value, values in ATTRIBUTES:
        array = (ctypes.c_int64 * len(values))(*values)
        cudnn.cudnnBackendSetAttribute(descriptor, name, kind_of_value, ctypes.c_int64(len(values)), array)
    return int(cudnn.cudnnBackendFinalize(descriptor))


def _last_error(cudnn: ctypes.CDLL) -> str:
    text = ctypes.create_string_buffer(2048)
    if hasattr(cudnn, "cudnnGetLastErrorString"):
        cudnn.cudnnGetLastErrorString(text, len(text))
    return text.value.decode("utf-8", "replace").strip()


def _maps(others: Sequence[str] = ()) -> list[str] | None:
    """List the libraries of CUDA and ``others`` in memory; None if ``/proc`` is not mounted."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            rows = [line.rstrip(b"\n").split(None, 5) for line in maps]
    except OSError:
        return None
    files = {os.fsdecode(row[5]) for row in rows if len(row) == 6}
    return sorted(file for file in files if "libcu" in file or file in others)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
