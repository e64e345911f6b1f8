"""Arrays of other libraries on the fake driver, and its memory as NumPy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from cudnn_ct.cuda import event as events
from cudnn_ct.cuda import memory
from cudnn_ct.cuda.interop import ExternalArray, spec_of
from cudnn_ct.cuda.stream import Stream
from cudnn_ct.dtypes import DTYPES
from tests.unit.cuda_driver import KERNEL, OWN_STREAM, RELAXED, Driver

__all__ = ["BAD_PARAM", "BY_CODE", "NOT_SUPPORTED", "OWN_STREAM", "ForeignArray", "Host", "view"]

BAD_PARAM, NOT_SUPPORTED = 2000, 3000  # statuses of cuDNN
BY_CODE = {row.code: row for row in DTYPES.values()}  # dtypes


class Buffer:
    """Memory that is freed with its last reference, so that a test notices a pointer used too late."""

    def __init__(self, host: Host, handle: int, stream: Stream) -> None:
        self.handle, self.stream, self.host = handle, stream, host
        self.size, self.device = host.live[handle].size, stream.device

    def __del__(self) -> None:
        self.host.check_stream(self.stream.handle)
        self.host.free(self.handle)


class ForeignArray:
    """An array of another library on a device: a NumPy array over memory of the host."""

    def __init__(self, host: Host, values: np.ndarray, home: Stream | None = None, device: int = 0) -> None:
        self.readonly = False
        base = values if values.base is None else values.base
        self.home = home
        place = home or Stream(1, device)
        handle = host.allocate(base.nbytes, place.device, place.handle).handle
        self.buffer = Buffer(host, handle, place)
        offset = values.ctypes.data - base.ctypes.data
        ctypes.memmove(self.buffer.handle, base.ctypes.data, base.nbytes)
        self.pointer = self.buffer.handle + offset
        self.shape, self.byte_strides, self.dtype = values.shape, values.strides, values.dtype

    def numpy(self) -> np.ndarray:
        raw = (ctypes.c_uint8 * self.buffer.size).from_address(self.buffer.handle)
        offset = self.pointer - self.buffer.handle
        return np.ndarray(self.shape, self.dtype, raw, offset, self.byte_strides).copy()


class Host(Driver):
    """The driver with two devices, and the functions that import arrays of other libraries."""

    def __init__(self) -> None:
        super().__init__(devices=2)

    @property
    def device(self) -> int:
        """The device that is current in this thread; 0 if none is."""
        return self.current or 0

    @device.setter
    def device(self, device: int) -> None:
        self.current = device

    @property
    def relaxed(self) -> bool:
        """Whether captures leave this thread alone."""
        return self.mode == RELAXED

    @contextmanager
    def captured(self, stream: int) -> Iterator[Any]:
        """Capture a stream within a block."""
        yield self.capturing.add(stream)
        self.capturing.clear()

    def orders(self, before: int, after: int) -> bool:
        """Return whether one stream waited for an event that was recorded on another."""
        recorded = [event for what, stream, *event in self.log if what == "record" and stream == before]
        return any(
            what == "wait" and stream == after and event in recorded for what, stream, *event in self.log
        )

    def spend(self, stream: int, milliseconds: float) -> None:
        """Let the device work for some time, also whenever a captured graph is launched."""

        def work(_: Any) -> None:
            self.clock += milliseconds

        self.do(stream, work, [], KERNEL)

    def forget(self) -> None:
        """Drop the logs and freed memory, for tests that run long."""
        for kept in (self.log, self.calls, self.grave, self.freed):
            kept.clear()  # type: ignore[attr-defined]

    def allocate_buffer(self, nbytes: int, stream: Stream, what: str = "an array") -> Buffer:
        """Allocate memory, in a capture too: calls that are captured need no ``out=`` here."""
        return Buffer(self, memory._allocated(nbytes, stream, what), stream)

    def import_array(self, obj: Any, stream: Stream) -> ExternalArray | None:
        if not isinstance(obj, ForeignArray):
            return None
        if obj.home is not None:
            events.wait_stream(obj.home, stream)
        strides = tuple(s // obj.dtype.itemsize for s in obj.byte_strides)
        spec = spec_of(obj, obj.shape, strides, obj.dtype)
        return ExternalArray(obj.pointer, spec, obj.buffer.device, obj.readonly, obj, obj.home)

    def in_host_memory(self, obj: Any) -> bool:
        return not isinstance(obj, ForeignArray)

    def device_of(self, obj: Any) -> int | None:
        return obj.buffer.device if isinstance(obj, ForeignArray) else None

    def export_dlpack(self, *_: Any) -> Any:
        raise NotImplementedError("DLPack is tested on a GPU")


def view(
    host: Host, address: int, shape: Sequence[int], strides: Sequence[int], dtype: np.dtype
) -> np.ndarray:
    """Device memory as a NumPy array, after checking that all of it is alive. Strides are in elements."""
    if 0 in shape:
        return np.empty(shape, dtype)
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    host.check(address, span * dtype.itemsize)
    raw = (ctypes.c_uint8 * (span * dtype.itemsize)).from_address(address)
    return np.ndarray(tuple(shape), dtype, raw, 0, tuple(s * dtype.itemsize for s in strides))
