"""The child process: opens cuDNN or the driver, does the least with it, and prints a line after each step.

Run as a script by ``sys.executable -I -S``, never imported: it may hang or be killed, and then its last line
says how far it came. Nothing but the standard library is within its reach.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any

CHECKS = (
    "cudnnGraphVersionCheck",
    "cudnnOpsVersionCheck",
    "cudnnCnnVersionCheck",
    "cudnnAdvVersionCheck",
    "cudnnSubquadraticOpsVersionCheck",
)
TENSOR = 17  # CUDNN_BACKEND_TENSOR_DESCRIPTOR
# Attributes of a tensor: identifier, type (INT64), values. Its data type is set apart, for it is an enum.
ATTRIBUTES = ((906, 3, (1,)), (900, 3, (16,)), (902, 3, (2, 3, 4, 5)), (903, 3, (60, 20, 5, 1)))
DATA_TYPE, FLOAT = 901, 0
PR_SET_PDEATHSIG = 1
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


def tell(step: str, **values: Any) -> None:
    """Print one step, at once."""
    os.write(1, (json.dumps({"step": step, **values}) + "\n").encode())


def main(plan: dict[str, Any]) -> None:
    """Do what the plan says: ``cudnn`` or ``driver``."""
    _end_with(plan["parent"])
    plan = {name: _here(value) if isinstance(value, str) else value for name, value in plan.items()}
    {"cudnn": probe_cudnn, "driver": probe_driver}[plan["mode"]](plan)
    tell("done")
    os._exit(0)  # destructors of libraries are no part of the question


def _end_with(parent: int) -> None:
    """Let the kernel kill this process when the doctor is killed, who would have ended one that hangs."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # too late
        os._exit(1)


def probe_cudnn(plan: dict[str, Any]) -> None:
    """Open cuDNN by its real path, ask for its versions, and finalise a tensor descriptor."""
    tell("libcuda", how=_libcuda(plan))
    tell("begin", what="dlopen")
    try:
        cudnn = ctypes.CDLL(plan["shim"])
    except OSError as error:
        tell("load", error=str(error))
        return
    tell("load", error="")
    tell("begin", what="cudnnGetVersion")
    cudnn.cudnnGetVersion.restype = ctypes.c_size_t
    tell("version", value=cudnn.cudnnGetVersion())
    cudnn.cudnnGetCudartVersion.restype = ctypes.c_size_t
    tell("cudart", value=cudnn.cudnnGetCudartVersion())
    for name in CHECKS:
        if hasattr(cudnn, name):
            tell("begin", what=name)
            status = getattr(cudnn, name)()
            tell("check", name=name, status=status, text=_last_error(cudnn) if status else "")
    tell("maps", files=_maps())
    tell("begin", what="cudnnBackendFinalize")
    status = _finalize(cudnn)
    tell("finalize", status=status, text=_last_error(cudnn) if status else "")
    tell("maps", files=_maps())


def probe_driver(plan: dict[str, Any]) -> None:
    """Start the driver, count the GPUs, and make a handle of cuDNN on each."""
    tell("begin", what="dlopen libcuda.so.1")
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        tell("driver", error=str(error))
        return
    tell("driver", error="", path=next((file for file in _maps() if "libcuda.so" in file), ""))
    number = ctypes.c_int()
    tell("driver_version", status=cuda.cuDriverGetVersion(ctypes.byref(number)), value=number.value)
    tell("begin", what="cuInit")
    status = cuda.cuInit(0)
    tell("init", status=status)
    if status:
        return
    tell("count", status=cuda.cuDeviceGetCount(ctypes.byref(number)), value=number.value)
    for device in range(number.value):
        _probe_device(cuda, device)
    if number.value and plan["shim"]:
        _create(plan)


def _probe_device(cuda: ctypes.CDLL, device: int) -> None:
    name, major, minor = ctypes.create_string_buffer(256), ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), MAJOR, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), MINOR, device)
    tell("begin", what=f"a context on GPU {device}")
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    status = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    status = status or cuda.cuCtxSetCurrent(context)
    status = status or cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    tell(
        "device",
        index=device,
        name=name.value.decode("utf-8", "replace"),
        arch=major.value * 10 + minor.value,
        status=status,
        free=free.value,
        total=total.value,
    )


def _create(plan: dict[str, Any]) -> None:
    tell("begin", what="cudnnCreate")
    try:
        if plan["cublaslt"]:
            ctypes.CDLL(plan["cublaslt"])
        cudnn = ctypes.CDLL(plan["shim"])
    except OSError as error:
        tell("load", error=str(error))
        return
    handle = ctypes.c_void_p()
    status = cudnn.cudnnCreate(ctypes.byref(handle))
    tell("create", status=status, text=_last_error(cudnn) if status else "")


def _libcuda(plan: dict[str, Any]) -> str:
    """Open the driver's library, or the stand-in: from its file, or where that may not be, from memory."""
    tell("begin", what="dlopen libcuda.so.1")
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        if not plan["standin"]:
            return f"none: {error}"
    else:
        return "driver"
    try:
        ctypes.CDLL(plan["standin"])
    except OSError:
        try:
            with open(plan["standin"], "rb") as file:
                memory = os.memfd_create("libcuda")
                os.write(memory, file.read())
            ctypes.CDLL(f"/proc/self/fd/{memory}")
        except OSError as error:
            return f"none: {error}"
    return "stand-in"


def _finalize(cudnn: ctypes.CDLL) -> int:
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


def _maps() -> list[str]:
    with open("/proc/self/maps", "rb") as maps:
        rows = (line.rstrip(b"\n").split(None, 5) for line in maps)
        files = {row[5] for row in rows if len(row) == 6 and b"libcu" in row[5]}
    return sorted(file.decode("utf-8", "surrogateescape") for file in files)


def _here(text: str) -> str:
    """Decode a path as this process does: the doctor, whose locale may be another, sends it as UTF-8."""
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
