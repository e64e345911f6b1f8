"""The errors of the CUDA driver that a machine causes: the finding, the reason and the advice for each."""

from __future__ import annotations

from typing import NamedTuple


class CudaError(NamedTuple):
    """One CUresult."""

    code: str  # of the finding
    reason: str
    advice: str


_MODULE = "reboot, or load the kernel modules again; if it persists, install the driver again"
_MPS = "start the MPS server again (nvidia-cuda-mps-control -d), or unset CUDA_MPS_PIPE_DIRECTORY"
_MPS_FULL = "wait for other clients of the MPS server, or raise its limit"
_OF_OTHERS = "end the process that nvidia-smi lists, or allow several processes: nvidia-smi -c DEFAULT"
_VISIBLE = "correct CUDA_VISIBLE_DEVICES, and compare it with nvidia-smi -L"
COPIES = "install the driver that belongs to the kernel module, and remove other copies of its libraries"
_SYSTEM = (
    "let this user open /dev/nvidia*, raise the limits of the process (ulimit -a), or start the container "
    "with --gpus all"
)

# By the number of the status.
_ERRORS = {
    2: CudaError("gpu-unavailable", "out of memory", "free memory of the GPU or the host; see nvidia-smi"),
    3: CudaError("driver-broken", "the driver is not initialised", _MODULE),
    35: CudaError("driver-too-old", "the driver is too old for the library that calls it", ""),
    36: CudaError("driver-too-old", "the driver is too old for the function that was called", ""),
    46: CudaError("gpu-unavailable", "another process has the GPU in exclusive mode", _OF_OTHERS),
    100: CudaError("no-gpu", "no device", ""),
    101: CudaError("gpu-unavailable", "the number of a device is invalid", _VISIBLE),
    102: CudaError("gpu-unavailable", "a virtual GPU has no license", "license it; see nvidia-smi -q"),
    214: CudaError(
        "gpu-unavailable", "the memory of the GPU has uncorrectable errors", "reset the GPU or reboot"
    ),
    302: CudaError("driver-broken", "a function is missing in a library of the driver", COPIES),
    303: CudaError("driver-broken", "a library of the driver cannot be opened", COPIES),
    304: CudaError("gpu-unavailable", "a call of the operating system failed", _SYSTEM),
    800: CudaError("gpu-unavailable", "the operation is not permitted", _SYSTEM),
    801: CudaError("gpu-unavailable", "the operation is not supported on this system", "see nvidia-smi -q"),
    802: CudaError(
        "gpu-unavailable",
        "the system is not ready: on NVSwitch machines nvidia-fabricmanager must run",
        "start it: systemctl start nvidia-fabricmanager",
    ),
    803: CudaError(
        "driver-broken", "the kernel module and the library of the driver are of different versions", _MODULE
    ),
    804: CudaError(
        "driver-broken",
        "forward compatibility is not supported on this GPU",
        "remove the folder with /compat from LD_LIBRARY_PATH or from the linker's configuration",
    ),
    805: CudaError("gpu-unavailable", "the MPS server cannot be reached", _MPS),
    806: CudaError("gpu-unavailable", "a call of the MPS server failed", _MPS),
    807: CudaError("gpu-unavailable", "the MPS server is not ready for new clients", _MPS),
    808: CudaError("gpu-unavailable", "the MPS server has its largest number of clients", _MPS_FULL),
    809: CudaError("gpu-unavailable", "the MPS server has no more connections", _MPS_FULL),
    810: CudaError("gpu-unavailable", "the MPS server ended this client", _MPS),
    811: CudaError("gpu-unavailable", "the MPS server does not support the call", _MPS),
    999: CudaError(
        "driver-broken", "unknown error", f"load nvidia_uvm (nvidia-modprobe -u -c=0), then {_MODULE}"
    ),
}


def error_of(status: int) -> CudaError:
    """Return the error of a status; one of the driver in general if the status is unknown."""
    return _ERRORS.get(status, CudaError("driver-broken", "see nvidia-smi", COPIES))
