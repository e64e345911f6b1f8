"""Descriptions of GPUs for planning without them, as cuDNN recorded them on the devices."""

from __future__ import annotations

from typing import Any

__all__ = ["GPUS", "description_of"]

# As cuDNN 9.19 wrote it on the device.
_H200: dict[str, Any] = {
    "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
    "multiProcessorCount": 132, "warpSize": 32, "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536,
    "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 6,
    "isTccDriver": 0, "supportCoopLaunch": 1, "totalGlobalMem": 150109880320, "smClockRateKHz": 1980000,
    "memClockRateKHz": 3201000, "l2CacheSize": 62914560, "cudaDeviceId": 0, "deviceVer": 900,
    "driverVer": 13000, "deviceName": "NVIDIA H200",
}  # fmt: skip

GPUS = ("h200",)


def description_of(name: str) -> dict[str, Any]:
    """Return the description of one of :data:`GPUS`."""
    return dict({"h200": _H200}[name])
