"""Memory of cuda-python by its address: real Buffers, pointers of the bindings, and memory of each kind."""

from __future__ import annotations

import ctypes
import gc
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.cuda.interop import allocation_at

from .conftest import library, own_stream
from .libraries import settle

VALUES = np.random.default_rng(0).integers(-4, 5, (2, 3, 8, 8)).astype(np.float32)


@pytest.fixture
def device() -> Any:
    device = library("cuda.core").Device(0)
    device.set_current()
    return device


@pytest.fixture
def buffer(device: Any) -> Any:
    """A Buffer with ``VALUES``."""
    stream = device.create_stream()
    buffer = device.memory_resource.allocate(VALUES.nbytes, stream=stream)
    array = ct.from_pointer(buffer, VALUES.shape, "float32", stream=stream)
    ct.transform(ct.asarray(VALUES), out=array, stream=stream)
    stream.sync()
    return buffer


def driver() -> Any:
    return library("cuda.bindings.driver")


def test_page_runs() -> None:
    page = Path(ct.__file__).parents[1] / "docs" / "cuda-python.md"
    if not page.is_file():
        pytest.skip("docs/ is not next to the package")
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(page), "exec"), {})


def test_each_type_of_pointer_reads_the_buffer(buffer: Any) -> None:
    address = int(buffer.handle)
    for pointer in (
        buffer,
        address,
        np.uint64(address),
        ctypes.c_void_p(address),
        driver().CUdeviceptr(address),
    ):
        array = ct.from_pointer(pointer, VALUES.shape, "float32", owner=buffer)
        assert array.pointer == address, type(pointer)
        np.testing.assert_array_equal(array.numpy(), VALUES, err_msg=str(type(pointer)))
        expected = ct.reference.pool(VALUES, window=2)
        np.testing.assert_array_equal(ct.pool(array, window=2).numpy(), expected, err_msg=str(type(pointer)))


def test_view_with_strides_reads_the_buffer(buffer: Any) -> None:
    array = ct.from_pointer(int(buffer.handle) + 4, (2, 3), "float32", strides=(192, 64), owner=buffer)
    np.testing.assert_array_equal(array.numpy(), VALUES[:, :, 0, 1])


def test_array_keeps_its_buffer(device: Any) -> None:
    stream = device.create_stream()
    shape = (1, 1, 256, 256)
    array = ct.from_pointer(
        device.memory_resource.allocate(2**18, stream=stream), shape, "float32", stream=stream
    )
    array.fill(3, stream=stream)
    gc.collect()
    others = [device.memory_resource.allocate(2**18, stream=stream) for _ in range(4)]
    for other in others:
        ct.from_pointer(other, shape, "float32", stream=stream).fill(7, stream=stream)
    assert np.unique(array.numpy()).tolist() == [3]


def test_work_on_the_stream_of_the_memory_is_waited_for(device: Any) -> None:
    from .libraries import busy, delay

    theirs, ours = own_stream(), own_stream()
    address = theirs.__cuda_stream__()[1]
    buffer = device.memory_resource.allocate(VALUES.nbytes, stream=theirs)
    array = ct.from_pointer(buffer, VALUES.shape, "float32", stream=theirs)
    array.fill(1, stream=theirs)
    ct.activation(array, mode="relu", stream=ours)  # its first call takes longer than the delay
    settle()
    delay(address)
    array.fill(2, stream=theirs)
    y = ct.activation(array, mode="relu", stream=ours)
    assert busy(address), "nothing was delayed: the test checks nothing"
    assert np.unique(y.numpy()).tolist() == [2]


def test_more_than_the_buffer_or_its_allocation_is_rejected(buffer: Any) -> None:
    with pytest.raises(ValueError, match=r"needs bytes 0 to 1,540 of the Buffer, which has 1,536"):
        ct.from_pointer(buffer, (385,), "float32")
    result, address = driver().cuMemAlloc(4096)
    assert int(result) == 0
    try:
        assert ct.from_pointer(int(address), (1024,), "float32").size == 1024
        with pytest.raises(ValueError, match="its allocation has 4,096 bytes"):
            ct.from_pointer(int(address), (1025,), "float32")
        with pytest.raises(ValueError, match="its allocation has 4,096 bytes"):
            ct.from_pointer(int(address) + 4, (1024,), "float32")
    finally:
        driver().cuMemFree(address)
    with pytest.raises(
        ValueError, match="not device memory: the driver has no allocation there; it was freed"
    ):
        ct.from_pointer(int(address), (1024,), "float32")


def test_memory_of_the_host_is_rejected() -> None:
    ct.zeros((1,))
    with pytest.raises(ValueError, match="is not device memory"):
        ct.from_pointer(VALUES.ctypes.data, VALUES.shape, "float32")
    result, pinned = driver().cuMemHostAlloc(4096, 0)
    assert int(result) == 0
    try:
        with pytest.raises(ValueError, match=r"is host memory; ct\.asarray copies"):
            ct.from_pointer(int(pinned), (4,), "float32")
    finally:
        driver().cuMemFreeHost(pinned)
    for pointer in (0, ctypes.c_void_p(), driver().CUdeviceptr(0)):
        with pytest.raises(ValueError, match="pointer is null"):
            ct.from_pointer(pointer, (4,), "float32")


def test_buffers_of_the_host_and_closed_ones_are_rejected(buffer: Any) -> None:
    resource = getattr(library("cuda.core"), "LegacyPinnedMemoryResource", None)
    if resource is None:
        pytest.skip("this version of cuda.core has no pinned Buffers")
    pinned = resource().allocate(256)
    with pytest.raises(ValueError, match=r"is host memory; ct\.asarray copies"):
        ct.from_pointer(pinned, (4,), "float32")
    pinned.close()
    buffer.close()
    for closed in (pinned, buffer):
        with pytest.raises(ValueError, match=r"pointer is a closed cuda\.core Buffer"):
            ct.from_pointer(closed, (4,), "float32")


def test_managed_memory_is_accepted() -> None:
    ct.zeros((1,))
    result, address = driver().cuMemAllocManaged(4096, driver().CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL)
    assert int(result) == 0
    try:
        array = ct.from_pointer(int(address), (1024,), "float32").fill(5)
        assert np.unique(array.numpy()).tolist() == [5]
        settle()
    finally:
        driver().cuMemFree(address)


def test_asarray_rejects_buffers_and_addresses(buffer: Any) -> None:
    address = int(buffer.handle)
    for pointer in (buffer, address, ctypes.c_void_p(address), driver().CUdeviceptr(address)):
        for dtype in (None, "float32"):
            with pytest.raises(TypeError, match=r"ct\.from_pointer\(pointer, shape, dtype\)"):
                pytest.fail(f"{pointer!r} became {ct.asarray(pointer, dtype)}")
    with pytest.raises(TypeError, match=r"ct\.from_pointer"):
        ct.activation(buffer, mode="relu")


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_of_ml_dtypes_come_by_the_interface_and_by_a_view(dtype: str, device: Any) -> None:
    numpy_dtype = np.dtype(getattr(library("ml_dtypes"), dtype))
    host = np.arange(-6, 6).reshape(3, 4).astype(numpy_dtype)
    ours = ct.asarray(host, dtype)
    interface = {
        "version": 3, "shape": host.shape, "strides": None, "typestr": numpy_dtype.str,
        "data": (ours.pointer, False), "stream": 1,
    }  # fmt: skip
    theirs = SimpleNamespace(__cuda_array_interface__=interface, dtype=numpy_dtype)
    if numpy_dtype.kind == "V":  # NumPy does not read the name of the others
        seen = ct.asarray(theirs)
        assert (seen.pointer, seen.dtype) == (ours.pointer, numpy_dtype)
        np.testing.assert_array_equal(seen.numpy().astype(float), host.astype(float))
    view = library("cuda.core.utils").StridedMemoryView.from_dlpack(ours, stream_ptr=-1)
    try:
        view_dtype = view.dtype
    except Exception as error:  # a version of cuda.core without the type
        pytest.skip(f"cuda.core reads no {dtype}: {error}")
    seen = ct.asarray(view)
    assert (seen.pointer, seen.dtype) == (ours.pointer, numpy_dtype), view_dtype
    np.testing.assert_array_equal(seen.numpy().astype(float), host.astype(float))


def test_dtypes_of_jax_are_accepted(buffer: Any) -> None:
    jnp = library("jax.numpy")
    for dtype in (jnp.float32, jnp.int32, jnp.bfloat16, jnp.float8_e4m3fn, jnp.dtype("float16")):
        expected = jnp.dtype(dtype).name.removesuffix("fn")
        assert ct.from_pointer(buffer, (4,), dtype).spec.dtype == expected


def test_dtypes_of_torch_are_accepted(buffer: Any) -> None:
    torch = library("torch")
    for dtype in (torch.float32, torch.int32, torch.bfloat16, torch.float8_e4m3fn):
        expected = str(dtype).removeprefix("torch.").removesuffix("fn")
        assert ct.from_pointer(buffer, (4,), dtype).spec.dtype == expected
        assert ct.empty((2,), dtype).spec.dtype == expected
    with pytest.raises(TypeError, match="cuDNN has no dtype complex64"):
        ct.empty((2,), torch.complex64)


EXPANDABLE = """
import torch, cudnn_ct as ct
kept = [torch.full((length,), 3.0, device="cuda") for length in (2**24, 2**26, 5)]
for tensor in kept:
    array = ct.from_pointer(tensor.data_ptr(), tuple(tensor.shape), torch.float32, owner=tensor)
    assert array.numpy().max() == array.numpy().min() == 3, tensor.shape
print("right")
"""


@pytest.mark.parametrize("setting", ["expandable_segments:True", "backend:cudaMallocAsync", ""])
def test_memory_of_each_allocator_of_torch_is_accepted(setting: str) -> None:
    """The driver's range of mapped memory may be larger than a tensor, and must not be smaller."""
    import os

    library("torch")
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": setting}
    command = [sys.executable, "-c", EXPANDABLE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("right"), done.stdout + done.stderr


@pytest.mark.alone
def test_from_pointer_takes_microseconds(buffer: Any) -> None:
    address, shape = int(buffer.handle), VALUES.shape

    def microseconds(call: Callable[[], object]) -> float:
        start = time.perf_counter()
        for _ in range(500):
            call()
        return (time.perf_counter() - start) / 500 * 1e6

    # In turns: 5 us on an idle H200.
    ours, query = [], []
    for _ in range(9):
        ours.append(microseconds(lambda: ct.from_pointer(address, shape, "float32")))
        query.append(microseconds(lambda: allocation_at(address, 0)))
    print(
        f"from_pointer: {statistics.median(ours):.2f} us, the query alone {statistics.median(query):.2f} us"
    )
    assert min(ours) < 5 * min(query), (ours, query)
