"""Other libraries of GPU arrays, as tests of streams see them; and work that keeps a stream busy."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np

from .conftest import library

__all__ = ["WRITABLE", "Library", "busy", "delay", "settle", "stream_of_our_own"]

NOT_READY = 600  # CUDA_ERROR_NOT_READY
LEGACY_DEFAULT = 1


class Library:
    """A library whose arrays can be written: what a test does with it, on a stream or (None) on the default.

    ``make`` and ``read`` leave nothing under way.
    """

    def side(self) -> Any:
        """A stream that does not wait for the default stream."""
        raise NotImplementedError

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        """Make a stream the current one."""
        return nullcontext() if stream is None else stream

    def make(self, values: np.ndarray) -> Any:
        """Copy values to the device."""
        raise NotImplementedError

    def seen_on(self, array: Any, stream: Any) -> Any:
        """The array as it is used on a stream: most libraries ask which stream is current."""
        return array

    def write(self, target: Any, source: Any, stream: Any) -> None:
        """Enqueue a copy between arrays on the stream in use."""
        target[...] = source

    def take(self, ours: Any) -> Any:
        """Use one of our arrays on the stream in use, without a copy."""
        raise NotImplementedError

    def read(self, array: Any, stream: Any) -> np.ndarray:
        """Copy to the host, on the stream in use."""
        raise NotImplementedError

    def pointer(self, array: Any) -> int:
        """Where an array's memory begins."""
        return int(array.__cuda_array_interface__["data"][0])

    def handle(self, stream: Any) -> int:
        """The address of a stream."""
        raise NotImplementedError


class Torch(Library):
    def __init__(self) -> None:
        self._torch = library("torch")

    def side(self) -> Any:
        return self._torch.cuda.Stream()

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        return self._torch.cuda.stream(stream)  # which takes None

    def make(self, values: np.ndarray) -> Any:
        array = self._torch.tensor(values, device="cuda")
        self._torch.cuda.synchronize()
        return array

    def take(self, ours: Any) -> Any:
        return self._torch.from_dlpack(ours)

    def read(self, array: Any, stream: Any) -> np.ndarray:
        return array.cpu().numpy()

    def handle(self, stream: Any) -> int:
        return LEGACY_DEFAULT if stream is None else stream.cuda_stream


class Cupy(Library):
    def __init__(self) -> None:
        self._cupy = library("cupy")

    def side(self) -> Any:
        return self._cupy.cuda.Stream(non_blocking=True)

    def make(self, values: np.ndarray) -> Any:
        array = self._cupy.asarray(values)
        self._cupy.cuda.runtime.deviceSynchronize()
        return array

    def take(self, ours: Any) -> Any:
        return self._cupy.from_dlpack(ours)

    def read(self, array: Any, stream: Any) -> np.ndarray:
        return array.get()

    def handle(self, stream: Any) -> int:
        return LEGACY_DEFAULT if stream is None else stream.ptr


class Numba(Library):
    """Its arrays carry their stream, and no stream is current."""

    def __init__(self) -> None:
        self._cuda = library("numba.cuda")

    def side(self) -> Any:
        owner = stream_of_our_own()
        stream = self._cuda.external_stream(owner.__cuda_stream__()[1])
        stream.owner = owner
        return stream

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def make(self, values: np.ndarray) -> Any:
        array = self._cuda.to_device(values)
        self._cuda.synchronize()
        return array

    def seen_on(self, array: Any, stream: Any) -> Any:
        return array if stream is None else array.bind(stream)

    def write(self, target: Any, source: Any, stream: Any) -> None:
        target.copy_to_device(source, stream=stream or 0)

    def take(self, ours: Any) -> Any:
        return self._cuda.as_cuda_array(ours)

    def read(self, array: Any, stream: Any) -> np.ndarray:
        host = array.copy_to_host(stream=stream or 0)
        if stream is not None:
            stream.synchronize()
        return host

    def handle(self, stream: Any) -> int:
        return LEGACY_DEFAULT if stream is None else int(stream)


WRITABLE = {"torch": Torch, "cupy": Cupy, "numba": Numba}


def stream_of_our_own() -> Any:
    """A stream of cuda.core, which does not wait for the default stream."""
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    return device.create_stream()


@cache
def _driver() -> Any:
    driver = ctypes.CDLL("libcuda.so.1")
    pointer = ctypes.c_void_p
    driver.cuLaunchHostFunc.argtypes = [pointer, pointer, pointer]
    driver.cuStreamQuery.argtypes = [pointer]
    return driver


def delay(stream: int, seconds: float = 0.3) -> None:
    """Keep a stream, by its address, from what is enqueued next: it runs usleep() of the C library first."""
    usleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
    assert _driver().cuLaunchHostFunc(stream, usleep, int(seconds * 1e6)) == 0


def busy(stream: int) -> bool:
    """Whether a stream still has something to do. A test in which it has not shows nothing."""
    status = _driver().cuStreamQuery(stream)
    assert status in (0, NOT_READY), status
    return status == NOT_READY


def settle() -> None:
    """Wait for all work on the device."""
    assert _driver().cuCtxSynchronize() == 0
