"""Devices of drawn calls: they place operands in memory and provide streams."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np

import cudnn_ct as ct
from cudnn_ct.cuda import memory as memories
from cudnn_ct.cuda.stream import default_stream
from cudnn_ct.dtypes import as_dtype

from .operands import Laid, Tensor, stepped

__all__ = ["Device", "Fakes", "Gpu", "Placed"]


class Placed(NamedTuple):
    """An operand on the device: what the call is given, and functions that read and write its memory."""

    array: Any
    read: Callable[[], np.ndarray]
    rewrite: Callable[[np.ndarray], None] | None = None


class Device:
    """Puts operands into device memory, by the name of the library that owns it."""

    kind = ""

    def place(self, tensor: Tensor, laid: Laid, late: bool = False) -> Placed:
        return getattr(self, f"_{tensor.origin}")(tensor, laid, late)

    def _own(self, tensor: Tensor, laid: Laid, late: bool) -> Placed:
        flat = ct.asarray(laid.memory)
        spec = ct.TensorSpec(tensor.shape, laid.strides, tensor.dtype)
        array = ct.DeviceArray.over(spec, flat.pointer + laid.offset, flat, flat.writer, flat.home)

        def rewrite(memory: np.ndarray) -> None:
            memories.copy_from_host(flat.pointer, memory, default_stream(flat.device))

        return Placed(array, flat.numpy, rewrite)

    def relax(self) -> None:
        """Prepare a thread that runs beside others."""

    @contextmanager
    def stream(self, kind: str, late: bool) -> Iterator[tuple[dict[str, Any], Any]]:
        """Enter the circumstances of a stream: yield the keywords of the call, and a stream to wait for."""
        raise NotImplementedError


class Interface:
    """An array that speaks ``__cuda_array_interface__`` and nothing else."""

    def __init__(self, owner: Any, pointer: int, tensor: Tensor, strides: tuple[int, ...]) -> None:
        dtype = as_dtype(tensor.dtype).numpy
        self.owner = owner
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": tensor.shape,
            "strides": tuple(s * dtype.itemsize for s in strides),
            "typestr": dtype.str,
            "data": (pointer, False),
        }


class Gpu(Device):
    """A real device. Nothing here makes a context current, so that the package meets what users have."""

    kind = "gpu"

    def __init__(self) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        # All of them now: threads that import a package at once may find it half imported.
        import cupy  # noqa: F401
        import jax
        import numba.cuda  # noqa: F401
        import torch

        jax.config.update("jax_enable_x64", True)
        torch.set_num_threads(1)
        self._library = torch
        self._side = torch.cuda.Stream()
        self._streams = [torch.cuda.Stream() for _ in range(2)]
        self.capturing_stream = torch.cuda.Stream()

    @contextmanager
    def stream(self, kind: str, late: bool) -> Iterator[tuple[dict[str, Any], Any]]:
        torch = self._library
        stream = self._streams[0]
        around: AbstractContextManager[Any] = torch.cuda.stream(self._side) if late else nullcontext()
        with around:
            if kind == "default":
                yield {}, None
            elif kind == "torch":
                yield {"stream": stream}, stream
            elif kind == "address":
                yield {"stream": stream.cuda_stream}, stream
            elif kind == "use":
                with ct.use(stream=stream):
                    yield {}, stream
            else:
                with torch.cuda.stream(stream):
                    yield {"stream": stream}, stream

    def delay(self) -> None:
        """Keep torch's current stream busy for a moment."""
        self._library.cuda._sleep(300_000)

    def settle(self) -> None:
        """Wait for all streams in use. Waiting for the device would invalidate captures inside of cuDNN."""
        for stream in (*self._streams, self._side, self.capturing_stream):
            stream.synchronize()
        self._library.cuda.default_stream().synchronize()

    def relax(self) -> None:
        """Let this thread do what a capture in another one forbids by default."""
        from cuda.bindings import driver

        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        driver.cuThreadExchangeStreamCaptureMode(mode)

    def capture(self, work: Callable[[Any], object]) -> Callable[[], None]:
        """Capture what ``work`` enqueues on a stream as a CUDA graph; return what launches it and waits."""
        graph = self._library.cuda.CUDAGraph()
        with self._library.cuda.graph(graph, stream=self.capturing_stream):
            work(self.capturing_stream)

        def launch() -> None:
            graph.replay()
            self.settle()

        return launch

    def _flat(self, laid: Laid, late: bool) -> Any:
        """Bytes in torch's memory; ``late`` ones are NaN until torch's current stream gets to them."""
        torch = self._library
        host = torch.from_numpy(laid.memory)
        flat = torch.empty(len(laid.memory), dtype=torch.uint8, device="cuda")
        if late:
            flat.fill_(0xFF)
            self.delay()
        flat.copy_(host)
        return flat

    def _torch(self, tensor: Tensor, laid: Laid, late: bool) -> Placed:
        flat, torch = self._flat(laid, late), self._library
        dtype = getattr(torch, as_dtype(tensor.dtype).numpy_name)  # such as float8_e4m3fn
        itemsize = dtype.itemsize
        view = flat[laid.offset % itemsize : len(flat) - (len(flat) - laid.offset) % itemsize].view(dtype)
        array = view.as_strided(tensor.shape, laid.strides, laid.offset // itemsize)
        return Placed(array, lambda: flat.cpu().numpy(), self._rewriting(flat))

    def _rewriting(self, flat: Any) -> Callable[[np.ndarray], None]:
        return lambda memory: flat.copy_(self._library.from_numpy(memory))

    def _negated(self, tensor: Tensor, laid: Laid, late: bool) -> Placed:
        """A view with torch's negative bit: its memory holds the numbers with the other sign."""
        torch = self._library
        plain = self._torch(tensor, laid, late)
        array = torch.complex(torch.zeros_like(plain.array), -plain.array).conj().imag
        return Placed(array, plain.read)

    def _interface(self, tensor: Tensor, laid: Laid, late: bool) -> Placed:
        flat = self._flat(laid, False)
        self.settle()
        array = Interface(flat, flat.data_ptr() + laid.offset, tensor, laid.strides)
        return Placed(array, lambda: flat.cpu().numpy(), self._rewriting(flat))

    def _cupy(self, tensor: Tensor, laid: Laid, late: bool) -> Placed:
        import cupy

        flat = cupy.asarray(laid.memory)
        itemsize = np.dtype(tensor.dtype).itemsize
        memory = flat.data + laid.offset
        strides = tuple(s * itemsize for s in laid.strides)
        return Placed(cupy.ndarray(tensor.shape, tensor.dtype, memory, strides), flat.get, flat.set)

    def _numba(self, tensor: Tensor, laid: Laid, late: bool) -> Placed:
        import numba.cuda

        placed = self._interface(tensor, laid, late)
        return placed._replace(array=numba.cuda.as_cuda_array(placed.array))

    def _jax(self, tensor: Tensor, laid: Laid, late: bool) -> Placed:
        import jax

        array = jax.device_put(stepped(laid.memory, laid.offset, tensor, laid.strides).copy())
        array.block_until_ready()
        return Placed(array, lambda: laid.memory)


class Fakes(Device):
    """Host memory and a cuDNN of Python functions."""

    kind = "fakes"

    def __init__(self, host: Any) -> None:
        self._host = host

    @contextmanager
    def stream(self, kind: str, late: bool) -> Iterator[tuple[dict[str, Any], Any]]:
        if kind == "use":
            with ct.use(stream=0x5000):
                yield {}, 0x5000
        else:
            yield ({}, None) if kind == "default" else ({"stream": 0x5000}, 0x5000)

    def settle(self) -> None:
        self._host.forget()

    def _foreign(self, tensor: Tensor, laid: Laid, late: bool) -> Placed:
        from tests.fake.host import ForeignArray

        dtype = as_dtype(tensor.dtype).numpy
        steps = tuple(s * dtype.itemsize for s in laid.strides)
        foreign = ForeignArray(self._host, laid.memory)
        foreign.pointer += laid.offset
        foreign.shape, foreign.byte_strides, foreign.dtype = tensor.shape, steps, dtype

        def read() -> np.ndarray:
            raw = (ctypes.c_uint8 * len(laid.memory)).from_address(foreign.buffer.handle)
            return np.frombuffer(raw, np.uint8).copy()

        def rewrite(memory: np.ndarray) -> None:
            ctypes.memmove(foreign.buffer.handle, memory.tobytes(), len(memory))

        return Placed(foreign, read, rewrite)
