"""Exchange of arrays with other libraries: streams, gradients, strides, errors. No library, no device."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from cudnn_ct.cuda import event as events
from cudnn_ct.cuda import interop
from cudnn_ct.cuda import stream as streams
from cudnn_ct.cuda.stream import default_stream
from cudnn_ct.shapes.specs import TensorSpec


class Interface:
    """An array that has only ``__cuda_array_interface__``, such as those of numba."""

    def __init__(self, stream: int | None = None) -> None:
        self.__cuda_array_interface__ = {"stream": stream}


class Both(Interface):
    """An array that has DLPack too, which orders its producer itself."""

    def __dlpack__(self) -> None:
        raise AssertionError("the view of cuda.core calls it")


class Tensor:
    """A subclass of tensors of torch, which is imported by DLPack."""

    is_cuda, requires_grad = True, False

    def detach(self) -> Tensor:
        return Tensor()

    def __dlpack__(self) -> None:
        raise AssertionError("the view of cuda.core calls it")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def stride(self) -> tuple[int, ...]:
        return 3, 1, 3, 3


class View:
    """The view that cuda.core makes of an array; ``seen`` has each array and stream that it was made with."""

    ptr, shape, strides, dtype = 0x1000, (2, 3), None, np.dtype(np.float32)
    device_id, readonly, is_device_accessible = 0, False, True
    seen: list[tuple[Any, int]]

    @classmethod
    def from_any_interface(cls, obj: Any, stream: int) -> View:
        cls.seen.append((obj, stream))
        return cls()


Waits = list[tuple[int, int]]


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Replace the driver; return pairs of streams: the awaited one, and the waiting one."""
    seen: Waits = []
    View.seen = []
    monkeypatch.setattr(streams, "device_count", lambda: 1)
    monkeypatch.setattr(interop, "_memory_view", lambda: View)
    monkeypatch.setattr(events, "wait_stream", lambda one, two: seen.append((one.handle, two.handle)))
    monkeypatch.setattr(streams, "is_capturing", lambda stream: False)
    monkeypatch.setattr(streams, "_known", {})
    return seen


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A torch whose current stream has the address 0x55."""
    current = type("Stream", (SimpleNamespace,), {"__module__": "torch.cuda.streams"})(cuda_stream=0x55)
    module = SimpleNamespace(
        Tensor=Tensor,
        strided="strided",
        cuda=SimpleNamespace(current_stream=lambda device: current),
        is_grad_enabled=lambda: True,
        _C=SimpleNamespace(_cuda_getCurrentRawStream=lambda device: 0x55),
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def imported(array: Any) -> Any:
    found = interop.import_array(array, default_stream(0))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("array", "home"),
    [(Interface(), 1), (Interface(1), 1), (Interface(0x55), 0x55), (Both(), None), (Both(0x55), 0x55)],
)
def test_import_array_finds_the_stream_of_the_producer(array: Any, home: int | None) -> None:
    """Without a stream and without DLPack, it is the default stream."""
    found = imported(array)
    assert home == (found.home and found.home.handle)


def test_import_array_makes_arrays_of_jax_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(Array=Both))
    assert [imported(array).readonly for array in (Both(), Interface())] == [True, False]


def test_import_array_rejects_a_tensor_when_its_gradient_would_be_lost(torch: SimpleNamespace) -> None:
    array = Tensor()
    array.requires_grad = True
    with pytest.raises(TypeError, match=r"pass tensor\.detach\(\), or call under torch\.no_grad\(\)"):
        imported(array)
    torch.is_grad_enabled = lambda: False
    imported(array)
    assert not any(seen.requires_grad for seen, _ in View.seen)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((2, 1, 3, 4), (12, 1, 4, 1)), ((2, 1, 3, 4), (12, 12, 4, 1)), ((2, 8, 1, 1), (8, 1, 8, 8))],
)
def test_import_array_keeps_strides_of_torch_when_axes_have_length_1(
    torch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    """DLPack of torch exports 1 for the strides of such axes, and ``__cuda_array_interface__`` none."""
    monkeypatch.setattr(Tensor, "stride", lambda self: strides)
    monkeypatch.setattr(View, "shape", shape)
    for exported in (tuple(1 if n < 2 else s for n, s in zip(shape, strides, strict=True)), None):
        monkeypatch.setattr(View, "strides", exported)
        assert imported(Tensor()).spec.strides == strides


def test_import_array_waits_for_no_producer_when_the_stream_is_captured(
    torch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, waits: Waits
) -> None:
    """Waiting for a stream outside of a capture invalidates it; -1 is DLPack's "do not wait"."""
    imported(Both())
    monkeypatch.setattr(streams, "is_capturing", lambda stream: True)
    imported(Both())
    assert [stream for _, stream in View.seen] == [default_stream(0).handle, -1]
    assert waits == []


def test_import_array_names_the_reason_when_a_tensor_has_no_memory(
    torch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(*_: Any) -> None:
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")

    monkeypatch.setattr(View, "from_any_interface", reject)
    with pytest.raises(TypeError, match="does not export usable device memory: Cannot access data"):
        imported(Tensor())


def test_export_describes_the_strides_and_the_bytes_of_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    core, views = Mock(), Mock()
    views.from_buffer.return_value = SimpleNamespace(__dlpack__=Mock())
    monkeypatch.setattr(interop.cuda, "core", lambda: core)
    monkeypatch.setattr(interop, "_memory_view", lambda: views)
    interop.export_dlpack(None, 0x1000, TensorSpec((2, 3), (6, 2), "float32"), False, None)
    core.Buffer.from_handle.assert_called_once_with(0x1000, 24, owner=None)
    assert views.from_buffer.call_args.args[1:] == ((2, 3), (6, 2))


@pytest.mark.parametrize("library", ["torch", "cupy", "jax"])
def test_import_array_reads_an_array_while_another_thread_imports_a_library(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    """The module is in ``sys.modules`` then, but the array type is not in the module yet."""
    monkeypatch.setitem(sys.modules, library, SimpleNamespace())
    imported(Both())
    assert interop.consumer_stream(0x5500, 0).handle == 0x5500
