"""Other libraries of GPU arrays, each with the stream that a test uses, and delays of streams."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from cuda.core import Device

from cudnn_ct.cuda import stream as streams

from .conftest import library, own_stream

__all__ = ["LEGACY_DEFAULT", "LIBRARIES", "WRITABLE", "Library", "busy", "delay", "jax_device", "settle"]

NOT_READY = 600  # CUDA_ERROR_NOT_READY
LEGACY_DEFAULT = 1


class Library(NamedTuple):
    """The functions of a library, on a stream of its own or on the default stream.

    Attributes
    ----------
    handle : int
        The address of the stream.
    current : context manager
        Makes the stream current, if the library has current streams.
    to_device, read : callable
        Copy an array to the device, and back.
    take : callable
        Use one of our arrays without a copy.
    write : callable
        Enqueue a copy to the first array from the second one.
    seen : callable
        Return an array as it is used on the stream.
    """

    handle: int
    current: AbstractContextManager[Any]
    to_device: Callable[[np.ndarray], Any]
    take: Callable[[Any], Any]
    read: Callable[[Any], np.ndarray]
    write: Callable[[Any, Any], object] = lambda target, source: operator.setitem(target, ..., source)
    seen: Callable[[Any], Any] = lambda array: array

    def make(self, values: np.ndarray) -> Any:
        """Copy values to the device, and wait."""
        array = self.to_device(values)
        settle()
        return array


def torch(side: bool) -> Library:
    torch = library("torch")
    stream = torch.cuda.Stream() if side else None
    return Library(
        handle=stream.cuda_stream if side else LEGACY_DEFAULT,
        current=torch.cuda.stream(stream),  # which accepts None
        to_device=partial(torch.tensor, device="cuda"),
        take=torch.from_dlpack,
        read=lambda array: array.cpu().numpy(),
    )


def cupy(side: bool) -> Library:
    cupy = library("cupy")
    stream = cupy.cuda.Stream(non_blocking=True) if side else None
    return Library(
        handle=stream.ptr if side else LEGACY_DEFAULT,
        current=stream if side else nullcontext(),
        to_device=cupy.asarray,
        take=cupy.from_dlpack,
        read=lambda array: array.get(),
    )


def numba(side: bool) -> Library:
    """Its arrays carry their stream, and no stream is current."""
    cuda = library("numba.cuda")
    if not side:
        return Library(
            handle=LEGACY_DEFAULT,
            current=nullcontext(),
            to_device=cuda.to_device,
            take=cuda.as_cuda_array,
            read=lambda array: array.copy_to_host(),
            write=lambda target, source: target.copy_to_device(source),
        )
    owner = own_stream()
    stream = cuda.external_stream(owner.__cuda_stream__()[1])
    stream.owner = owner

    def read(array: Any) -> np.ndarray:
        host = array.copy_to_host(stream=stream)
        stream.synchronize()
        return host

    return numba(False)._replace(
        handle=int(stream),
        read=read,
        write=lambda target, source: target.copy_to_device(source, stream=stream),
        seen=lambda array: array.bind(stream),
    )


def jax(side: bool) -> Library:
    """It chooses its streams itself, and its arrays cannot be written."""
    jax = library("jax")
    gpu = jax_device()
    return Library(
        handle=LEGACY_DEFAULT,
        current=nullcontext(),
        to_device=lambda values: jax.device_put(values, gpu).block_until_ready(),
        take=jax.dlpack.from_dlpack,
        read=np.asarray,
    )


def jax_device() -> Any:
    """Return JAX's name of the current device; JAX itself uses the first."""
    index = streams.current_device()
    gpus = library("jax").devices("gpu")
    Device(index).set_current()  # the first call of JAX makes its last GPU the current one
    return next(gpu for gpu in gpus if gpu.local_hardware_id == index)


WRITABLE = {"torch": torch, "cupy": cupy, "numba": numba}
LIBRARIES = WRITABLE | {
    "cupy by interface": lambda side: cupy(side)._replace(take=library("cupy").asarray),
    "jax": jax,
}


@cache
def _driver() -> Any:
    driver = ctypes.CDLL("libcuda.so.1")
    pointer = ctypes.c_void_p
    driver.cuLaunchHostFunc.argtypes = [pointer, pointer, pointer]
    driver.cuStreamQuery.argtypes = [pointer]
    return driver


def delay(stream: int, seconds: float = 0.8) -> None:
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
