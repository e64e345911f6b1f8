"""What arrays of other libraries tell of themselves, and what they leave out. No library, no device."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cudnn_ct.cuda import device as devices
from cudnn_ct.cuda import interop
from cudnn_ct.cuda import stream as streams
from cudnn_ct.cuda.stream import default_stream
from cudnn_ct.shapes.specs import TensorSpec


class Interface:
    """An array that speaks ``__cuda_array_interface__`` alone, as those of numba do."""

    def __init__(self, stream: int | None) -> None:
        self.__cuda_array_interface__ = {"stream": stream}


class Both(Interface):
    """One that speaks DLPack too, which orders its producer itself."""

    def __dlpack__(self) -> None:
        raise AssertionError("nobody asks here")


class View:
    """What cuda.core makes of an array."""

    ptr, shape, strides, dtype = 0x1000, (2, 3), None, np.dtype(np.float32)
    device_id, readonly, is_device_accessible = 0, False, True

    @classmethod
    def from_any_interface(cls, obj: Any, stream: int) -> View:
        return cls()


@pytest.fixture(autouse=True)
def _one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "device_count", lambda: 1)


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interop, "_memory_view", lambda: View)


@pytest.mark.usefixtures("views")
@pytest.mark.parametrize(
    ("array", "home"),
    [
        (Interface(None), 1),
        (Interface(1), 1),
        (Interface(0x55), 0x55),
        (Both(None), None),
        (Both(0x55), 0x55),
    ],
)
def test_the_stream_of_the_producer(array: Any, home: int | None) -> None:
    """Who names none and has no DLPack, works on the default stream."""
    found = interop.import_array(array, default_stream(0))
    assert found is not None
    assert home == (found.home and found.home.handle)


@pytest.mark.usefixtures("views")
def test_arrays_of_jax_are_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(Array=Both))
    for array, readonly in ((Both(None), True), (Interface(None), False)):
        found = interop.import_array(array, default_stream(0))
        assert found is not None
        assert found.readonly is readonly


class Tensor:
    """One of torch, as far as it is looked at here."""

    is_cuda = True

    def __init__(self, *, requires_grad: bool) -> None:
        self.requires_grad = requires_grad

    def detach(self) -> Tensor:
        return Tensor(requires_grad=False)

    def __dlpack__(self) -> None:
        raise AssertionError("nobody asks here")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


@pytest.mark.parametrize("recording", [True, False])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_no_gradient_is_lost_in_silence(
    monkeypatch: pytest.MonkeyPatch, requires_grad: bool, recording: bool
) -> None:
    seen: list[Tensor] = []

    class Seeing(View):
        @classmethod
        def from_any_interface(cls, obj: Any, stream: int) -> View:
            seen.append(obj)
            return cls()

    stream = SimpleNamespace(cuda_stream=0)
    cuda = SimpleNamespace(current_stream=lambda device: stream)
    torch = SimpleNamespace(Tensor=Tensor, cuda=cuda, is_grad_enabled=lambda: recording)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(interop, "_memory_view", lambda: Seeing)
    tensor = Tensor(requires_grad=requires_grad)
    if requires_grad and recording:
        with pytest.raises(TypeError, match=r"pass tensor\.detach\(\), or call under torch\.no_grad\(\)"):
            interop.import_array(tensor, default_stream(0))
        return
    interop.import_array(tensor, default_stream(0))
    assert [one.requires_grad for one in seen] == [False]


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((2, 1, 3, 4), (12, 1, 4, 1)), ((2, 1, 3, 4), (12, 12, 4, 1)), ((2, 8, 1, 1), (8, 1, 8, 8))],
)
def test_import_array_keeps_strides_of_torch_when_axes_have_length_1(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    """DLPack of torch exports 1 for the strides of such axes, and ``__cuda_array_interface__`` none."""
    exported = tuple(1 if n < 2 else s for n, s in zip(shape, strides, strict=True))
    cuda = SimpleNamespace(current_stream=lambda device: SimpleNamespace(cuda_stream=0))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor, cuda=cuda))
    tensor = Tensor(requires_grad=False)
    tensor.stride = lambda: strides  # type: ignore[attr-defined]
    for seen in (exported, None):
        view = type("Seen", (View,), {"shape": shape, "strides": seen})
        monkeypatch.setattr(interop, "_memory_view", lambda view=view: view)
        found = interop.import_array(tensor, default_stream(0))
        assert found is not None
        assert found.spec.strides == strides


class CudaTensor:
    """A tensor of torch on a device, as far as it is looked at here; its export must not be needed."""

    is_cuda, requires_grad, layout, dtype, shape = True, False, "strided", "torch.bfloat16", (2, 3, 1, 1)
    __module__, __qualname__ = "torch", "Tensor"

    def __dlpack__(self) -> None:
        raise AssertionError("an exchange by DLPack takes ten times as long")

    def data_ptr(self) -> int:
        return 0x7000

    def untyped_storage(self) -> str:
        return "the storage"

    def stride(self) -> tuple[int, ...]:
        return 3, 1, 3, 3

    def get_device(self) -> int:
        return 0


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A torch whose current stream has the address 0x55."""
    current = type("Stream", (SimpleNamespace,), {"__module__": "torch.cuda.streams"})(cuda_stream=0x55)
    module = SimpleNamespace(
        Tensor=CudaTensor,
        strided="strided",
        cuda=SimpleNamespace(current_stream=lambda device: current),
        is_grad_enabled=lambda: True,
        _C=SimpleNamespace(_cuda_getCurrentRawStream=lambda device: 0x55),
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(streams, "_known", {})
    return module


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The streams that were waited for, and those that wait."""
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(interop.events, "wait_stream", lambda one, two: seen.append((one.handle, two.handle)))
    monkeypatch.setattr(streams, "is_capturing", lambda stream: False)
    return seen


def test_import_array_reads_a_cuda_tensor_without_dlpack(
    torch: SimpleNamespace, waits: list[tuple[int, int]]
) -> None:
    found = interop.import_array(CudaTensor(), default_stream(0))
    assert found is not None
    assert (found.pointer, found.owner, found.device, found.readonly) == (0x7000, "the storage", 0, False)
    assert found.spec == TensorSpec((2, 3, 1, 1), (3, 1, 3, 3), "bfloat16")
    assert waits == [(0x55, default_stream(0).handle)]


def test_import_array_keeps_the_stream_of_a_tensor_alive(
    torch: SimpleNamespace, waits: list[tuple[int, int]]
) -> None:
    """Only the first import asks for the object that keeps the stream alive; a bare address has none."""
    streams.intern_stream(0x55, 0)
    first, second = (interop.import_array(CudaTensor(), default_stream(0)) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.home is second.home
    assert first.home is not None
    assert first.home.lasts


def test_import_array_orders_nothing_when_the_stream_is_captured(
    torch: SimpleNamespace, waits: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "is_capturing", lambda stream: True)
    interop.import_array(CudaTensor(), default_stream(0))
    assert waits == []


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("requires_grad", True, r"pass tensor\.detach\(\), or call under torch\.no_grad\(\)"),
        ("dtype", "torch.complex64", "complex64"),
    ],
)
def test_import_array_rejects_a_cuda_tensor(
    torch: SimpleNamespace, waits: list[tuple[int, int]], attribute: str, value: Any, message: str
) -> None:
    tensor = CudaTensor()
    setattr(tensor, attribute, value)
    with pytest.raises(TypeError, match=message):
        interop.import_array(tensor, default_stream(0))


def test_import_array_names_the_reason_when_a_tensor_has_no_memory(torch: SimpleNamespace) -> None:
    class Traced(CudaTensor):
        __module__, __qualname__ = "torch", "Tensor"

        def data_ptr(self) -> int:
            raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")

    with pytest.raises(TypeError, match="does not export usable device memory: Cannot access data pointer"):
        interop.import_array(Traced(), default_stream(0))


def test_what_is_not_handed_out_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        @staticmethod
        def from_any_interface(obj: Any, stream: int) -> None:
            raise BufferError("Can't export conjugate tensors")

    monkeypatch.setattr(interop, "_memory_view", lambda: Refusing)
    with pytest.raises(
        TypeError, match="Tensor does not export usable device memory: Can't export conjugate"
    ):
        interop.import_array(Tensor(requires_grad=False), default_stream(0))


def test_import_array_waits_for_no_producer_when_the_stream_is_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Waiting for a stream outside of a capture invalidates it; -1 is DLPack's "do not wait"."""
    asked: list[int] = []

    class Asked(View):
        @classmethod
        def from_any_interface(cls, obj: Any, stream: int) -> View:
            asked.append(stream)
            return cls()

    monkeypatch.setattr(interop, "_memory_view", lambda: Asked)
    for capturing in (True, False):
        monkeypatch.setattr(streams, "is_capturing", lambda stream, said=capturing: said)
        interop.import_array(Both(None), default_stream(0))
    assert asked == [-1, default_stream(0).handle]


@pytest.mark.usefixtures("views")
@pytest.mark.parametrize("library", ["torch", "cupy", "jax"])
def test_import_array_reads_an_array_while_another_thread_imports_a_library(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    """The module is in ``sys.modules`` then, but the array type is not in the module yet."""
    monkeypatch.setitem(sys.modules, library, SimpleNamespace())
    found = interop.import_array(Both(None), default_stream(0))
    assert found is not None
    assert interop.consumer_stream(0x5500, 0).handle == 0x5500
