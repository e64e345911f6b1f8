"""Devices: their number and their properties."""

from __future__ import annotations

import operator
from functools import cache
from typing import Any

from .._handle import in_forked_child
from . import driver as cuda


@cache
def device_count() -> int:
    """Return the number of devices. Raises :class:`NotInitializedError` without a driver."""
    return int(cuda.call("counting the devices", "cuDeviceGetCount"))


@cache
def driver_version() -> int:
    """Return the newest CUDA version that the driver supports: 13000 is 13.0."""
    return int(cuda.call("reading the driver's version", "cuDriverGetVersion"))


@cache
def device_name(device: int) -> str:
    """Return a name that identifies the kind of a device in the algorithm cache."""
    name = cuda.call(f"reading the name of device {device}", "cuDeviceGetName", 128, device)
    text = bytes(name).partition(b"\0")[0].decode()
    major, minor = compute_capability(device)
    return f"{text}, {_attribute(device, 'MULTIPROCESSOR_COUNT')} SMs, {major}.{minor}"


@cache
def device_uuid(device: int) -> str:
    """Return the identifier of one device, as hexadecimal digits."""
    return bytes(cuda.call(f"reading the UUID of device {device}", "cuDeviceGetUuid", device).bytes).hex()


@cache
def compute_capability(device: int) -> tuple[int, int]:
    """Return the architecture of a device: (9, 0) is Hopper."""
    major, minor = (_attribute(device, f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
    return major, minor


@cache
def cache_size(device: int) -> int:
    """Return the size of a device's L2 cache in bytes."""
    return _attribute(device, "L2_CACHE_SIZE")


def _attribute(device: int, name: str) -> int:
    attribute = getattr(cuda.driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(cuda.call(f"reading {name} of device {device}", "cuDeviceGetAttribute", attribute, device))


def as_device(device: Any) -> int:
    """Return ``device=`` as the number of an existing device."""
    try:
        number = operator.index(device)
    except TypeError:
        raise TypeError(f"device must be an int: got {type(device).__name__}") from None
    check_device(number)
    return number


def check_device(device: int) -> int:
    """Return the number of devices. Raises ValueError if ``device`` does not exist."""
    count = device_count()
    if not 0 <= device < count:
        raise ValueError(f"device {device} does not exist: the driver shows {count}")
    return count


@in_forked_child
def _after_fork() -> None:
    """Discard the properties that the parent read: a forked child cannot use CUDA."""
    for cached in (cache_size, compute_capability, device_count, device_name, device_uuid, driver_version):
        cached.cache_clear()
