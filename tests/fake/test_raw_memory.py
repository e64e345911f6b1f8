"""Arrays over memory at an address: types of pointers, checks with their numbers, owners and order."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import array_shapes

from .cudnn import FakeCudnn
from .host import Host

VALUES = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)


class CUdeviceptr:
    """The driver's type of an address, which has only ``__int__``."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __int__(self) -> int:
        return self.value


class Buffer:
    """A Buffer of cuda.core, which exports its bytes."""

    def __init__(self, handle: int, size: int) -> None:
        self.handle, self.size = handle, size

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> type[Buffer]:
    monkeypatch.setitem(sys.modules, "cuda.core", SimpleNamespace(Buffer=Buffer))
    return Buffer


@pytest.fixture
def memory(fake: FakeCudnn) -> Iterator[ct.DeviceArray]:
    with ct.asarray(VALUES) as array:
        yield array


@pytest.mark.parametrize(
    "kind",
    [int, np.uint64, ctypes.c_void_p, CUdeviceptr, lambda pointer: Buffer(pointer, VALUES.nbytes)],
    ids=["int", "numpy", "c_void_p", "CUdeviceptr", "Buffer"],
)
def test_from_pointer_shares_memory_for_each_type_of_pointer(
    kind: Any, memory: ct.DeviceArray, buffers: object
) -> None:
    array = ct.from_pointer(kind(memory.pointer), VALUES.shape, "float32")
    assert array.pointer == memory.pointer
    np.testing.assert_array_equal(array.numpy(), VALUES)
    np.testing.assert_array_equal(ct.activation(array, mode="relu").numpy(), VALUES)


def test_from_pointer_takes_objects_of_cuda_python(memory: ct.DeviceArray) -> None:
    """Real ones, of the versions that are installed."""
    core = pytest.importorskip("cuda.core")
    driver = pytest.importorskip("cuda.bindings.driver")
    buffer = core.Buffer.from_handle(memory.pointer, VALUES.nbytes, owner=memory)
    for pointer in (buffer, driver.CUdeviceptr(memory.pointer)):
        array = ct.from_pointer(pointer, VALUES.shape, "float32")
        np.testing.assert_array_equal(array.numpy(), VALUES)
        with pytest.raises(TypeError, match=r"use ct\.from_pointer\(pointer, shape, dtype\)"):
            ct.asarray(pointer, "float32")
    with pytest.raises(ValueError, match="needs bytes 0 to 100 of the Buffer, which has 96"):
        ct.from_pointer(buffer, (25,), "float32")
    buffer.close()
    with pytest.raises(ValueError, match=r"pointer is a closed cuda\.core Buffer"):
        ct.from_pointer(buffer, (4,), "float32")


def test_from_pointer_takes_strides_in_elements_and_lists(memory: ct.DeviceArray) -> None:
    array = ct.from_pointer(memory.pointer + 4, [2, 3], np.float32, strides=[12, 4])
    np.testing.assert_array_equal(array.numpy(), VALUES[:, :, 0, 1])
    assert ct.from_pointer(memory.pointer, 24, "float32").shape == (24,)


def test_from_pointer_of_an_empty_array_takes_a_null_pointer(fake: FakeCudnn) -> None:
    assert ct.from_pointer(0, (0, 3), "float16").numpy().shape == (0, 3)


def test_from_pointer_keeps_its_owner(memory: ct.DeviceArray, buffers: type[Buffer]) -> None:
    class Owner:
        pass

    owner, buffer = Owner(), buffers(memory.pointer, memory.nbytes)
    gone = [weakref.ref(owner), weakref.ref(buffer)]
    array = ct.from_pointer(buffer, (2, 3), "float32", owner=owner)[1]
    del owner, buffer
    gc.collect()
    assert all(one() is not None for one in gone)
    array.close()
    del array
    gc.collect()
    assert all(one() is None for one in gone)


def test_from_pointer_orders_a_call_after_its_stream(memory: ct.DeviceArray, host: Host) -> None:
    theirs, ours = host.new_stream(), host.new_stream()
    array = ct.from_pointer(memory.pointer, VALUES.shape, "float32", stream=theirs)
    ct.activation(array, mode="relu", stream=ours)
    assert host.orders(theirs, ours)


def test_from_pointer_rejects_memory_of_the_host(memory: ct.DeviceArray, host: Host) -> None:
    host.pinned_at.add(4096)
    with pytest.raises(ValueError, match=r"pointer 0x1000 is host memory; ct\.asarray copies"):
        ct.from_pointer(4096, VALUES.shape, "float32")


def test_from_pointer_rejects_more_than_a_buffer_has(memory: ct.DeviceArray, buffers: type[Buffer]) -> None:
    message = r"float32\[5\] nchw needs bytes 0 to 20 of the Buffer, which has 16"
    with pytest.raises(ValueError, match=message):
        ct.from_pointer(buffers(memory.pointer, 16), (5,), "float32")
    with pytest.raises(ValueError, match="closed"):
        ct.from_pointer(buffers(0, 16), (4,), "float32")


def test_asarray_rejects_addresses_and_names_from_pointer(
    memory: ct.DeviceArray, buffers: type[Buffer]
) -> None:
    pointers = (memory.pointer, ctypes.c_void_p(8), CUdeviceptr(8), buffers(memory.pointer, 96))
    for pointer in pointers:
        for dtype in (None, "float32"):
            with pytest.raises(TypeError, match=r"use ct\.from_pointer\(pointer, shape, dtype\)"):
                ct.asarray(pointer, dtype)
    with pytest.raises(TypeError, match=r"Buffer is memory without a shape .* use ct\.from_pointer"):
        ct.activation(pointers[-1], mode="relu")
    assert ct.asarray(np.int64(memory.pointer)).numpy() == memory.pointer
    assert ct.asarray(2**31).numpy() == 2**31


def test_from_pointer_needs_no_driver_on_shapes() -> None:
    with array_shapes.only_shapes():
        assert ct.from_pointer(0x7F0000000000, (2, 3), "float16").shape == (2, 3)


@pytest.mark.parametrize(
    ("pointer", "reason"),
    [
        (0, r"is null; float32\[.*\] nchw needs memory"),
        (-5, r"must be an address: got -5, expected 1 to 2\*\*64 - 1; float32\[.*\] nchw needs memory"),
        (2**70, f"must be an address: got {2**70}, expected 1 to"),
        (0x1002, "multiple"),
    ],
)
def test_calls_on_shapes_check_addresses_too(pointer: int, reason: str) -> None:
    with ct.record_plans(shapes_only=True), pytest.raises(ValueError, match=reason):
        ct.from_pointer(pointer, (2, 2), "float32")


def test_array_is_no_pointer() -> None:
    with (
        ct.record_plans(shapes_only=True),
        pytest.raises(TypeError, match=r"pointer must be an int.* got ndarray"),
    ):
        ct.from_pointer(VALUES, (2, 2), "float32")
