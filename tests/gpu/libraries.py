"""Other libraries of GPU arrays, each with the stream that a test uses, and delays of streams."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np

from .conftest import library, own_stream

__all__ = ["LEGACY_DEFAULT", "WRITABLE", "Library", "busy", "delay", "settle"]

NOT_READY = 600  # CUDA_ERROR_NOT_READY
LEGACY_DEFAULT = 1


class Library:
    """A library whose arrays can be written, on a stream of its own (``side``) or on the default stream.

    ``handle`` is the address of that stream. ``make`` and ``read`` wait for their work.
    """

    stream: Any = None
    handle = LEGACY_DEFAULT

    def current(self) -> AbstractContextManager[Any]:
        """Make the stream current, if the library has current streams."""
        return nullcontext() if self.stream is None else self.stream

    def make(self, values: np.ndarray) -> Any:
        """Copy values to the device."""
        raise NotImplementedError

    def seen(self, array: Any) -> Any:
        """Return the array as it is used on the stream."""
        return array

    def write(self, target: Any, source: Any) -> None:
        """Enqueue a copy between arrays on the current stream."""
        target[...] = source

    def take(self, ours: Any) -> Any:
        """Use one of our arrays on the current stream, without a copy."""
        raise NotImplementedError

    def read(self, array: Any) -> np.ndarray:
        """Copy to the host, on the current stream."""
        raise NotImplementedError


class Torch(Library):
    def __init__(self, side: bool) -> None:
        self._torch = library("torch")
        if side:
            self.stream = self._torch.cuda.Stream()
            self.handle = self.stream.cuda_stream

    def current(self) -> AbstractContextManager[Any]:
        return self._torch.cuda.stream(self.stream)  # which accepts None

    def make(self, values: np.ndarray) -> Any:
        array = self._torch.tensor(values, device="cuda")
        self._torch.cuda.synchronize()
        return array

    def take(self, ours: Any) -> Any:
        return self._torch.from_dlpack(ours)

    def read(self, array: Any) -> np.ndarray:
        return array.cpu().numpy()


class Cupy(Library):
    def __init__(self, side: bool) -> None:
        self._cupy = library("cupy")
        if side:
            self.stream = self._cupy.cuda.Stream(non_blocking=True)
            self.handle = self.stream.ptr

    def make(self, values: np.ndarray) -> Any:
        array = self._cupy.asarray(values)
        self._cupy.cuda.runtime.deviceSynchronize()
        return array

    def take(self, ours: Any) -> Any:
        return self._cupy.from_dlpack(ours)

    def read(self, array: Any) -> np.ndarray:
        return array.get()


class Numba(Library):
    """Its arrays carry their stream, and no stream is current."""

    def __init__(self, side: bool) -> None:
        self._cuda = library("numba.cuda")
        if side:
            self._owner = own_stream()
            self.handle = self._owner.__cuda_stream__()[1]
            self.stream = self._cuda.external_stream(self.handle)
            self.stream.owner = self._owner

    def current(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def make(self, values: np.ndarray) -> Any:
        array = self._cuda.to_device(values)
        self._cuda.synchronize()
        return array

    def seen(self, array: Any) -> Any:
        return array if self.stream is None else array.bind(self.stream)

    def write(self, target: Any, source: Any) -> None:
        target.copy_to_device(source, stream=self.stream or 0)

    def take(self, ours: Any) -> Any:
        return self._cuda.as_cuda_array(ours)

    def read(self, array: Any) -> np.ndarray:
        host = array.copy_to_host(stream=self.stream or 0)
        if self.stream is not None:
            self.stream.synchronize()
        return host


WRITABLE = {"torch": Torch, "cupy": Cupy, "numba": Numba}


@cache
def _driver() -> Any:
    driver = ctypes.CDLL("libcuda.so.1")
    pointer = ctypes.c_void_p
    driver.cuLaunchHostFunc.argtypes = [pointer, pointer, pointer]
    driver.cuStreamQuery.argtypes = [pointer]
    return driver


def delay(stream: int, seconds: float = 0.3) -> None:
    """Delay the next work on a stream, given by its address: it calls usleep() of the C library first."""
    usleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
    assert _driver().cuLaunchHostFunc(stream, usleep, int(seconds * 1e6)) == 0


def busy(stream: int) -> bool:
    """Return whether a stream has pending work; without it, a test of orderings checks nothing."""
    status = _driver().cuStreamQuery(stream)
    assert status in (0, NOT_READY), status
    return status == NOT_READY


def settle() -> None:
    """Wait for all work on the device."""
    assert _driver().cuCtxSynchronize() == 0
