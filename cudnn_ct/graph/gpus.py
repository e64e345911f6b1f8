"""Descriptions of GPUs for planning without them: one that cuDNN recorded, and others derived from it."""

from __future__ import annotations

from typing import Any

__all__ = ["DERIVED", "GPUS", "description_of"]

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

# name, deviceVer, SMs, shared memory per block (opt-in), threads and blocks per SM, MiB of L2 cache, GiB of
# memory, MHz of the SMs and of the memory, bits of the bus. They follow NVIDIA's public specifications; none
# was read from a device.
_DERIVED = {
    "t4": ("Tesla T4", 750, 40, 65536, 1024, 16, 4, 16, 1590, 5001, 256),
    "a100": ("NVIDIA A100-SXM4-80GB", 800, 108, 166912, 2048, 32, 40, 80, 1410, 1593, 5120),
    "a10": ("NVIDIA A10", 860, 72, 101376, 1536, 16, 6, 24, 1695, 6251, 384),
    "l4": ("NVIDIA L4", 890, 58, 101376, 1536, 24, 48, 24, 2040, 6251, 192),
    "rtx4090": ("NVIDIA GeForce RTX 4090", 890, 128, 101376, 1536, 24, 72, 24, 2520, 10501, 384),
    "h100": ("NVIDIA H100 80GB HBM3", 900, 132, 232448, 2048, 32, 50, 80, 1980, 2619, 5120),
    "b200": ("NVIDIA B200", 1000, 148, 232448, 2048, 32, 126, 180, 1965, 3996, 8192),
    "rtx5090": ("NVIDIA GeForce RTX 5090", 1200, 170, 101376, 1536, 24, 96, 32, 2407, 14001, 512),
}
_KEYS = (
    "deviceName", "deviceVer", "multiProcessorCount", "maxSharedMemoryPerBlockOptin", "maxThreadsPerSM",
    "maxCtasPerSM", "l2CacheSize", "totalGlobalMem", "smClockRateKHz", "memClockRateKHz", "memoryBusWidth",
)  # fmt: skip
_UNITS = {"l2CacheSize": 2**20, "totalGlobalMem": 2**30, "smClockRateKHz": 1000, "memClockRateKHz": 1000}

DERIVED = tuple(_DERIVED)
GPUS = ("h200", *DERIVED)


def description_of(name: str) -> dict[str, Any]:
    """Return the description of one of :data:`GPUS`; those in :data:`DERIVED` were not read from a device."""
    if name == "h200":
        return dict(_H200)
    row: dict[str, Any] = dict(zip(_KEYS, _DERIVED[name], strict=True))
    changed = {key: value * _UNITS[key] if key in _UNITS else value for key, value in row.items()}
    reserved = 0 if row["deviceVer"] == 750 else 1024
    return {**_H200, **changed, "reservedSharedMemoryPerBlock": reserved}
