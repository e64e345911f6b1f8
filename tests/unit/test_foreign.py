"""Arrays of other libraries: by their attributes, DLPack and interfaces, and their streams. No device."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest

from cudnn_ct.array_creation import as_operand
from cudnn_ct.cuda import event as events
from cudnn_ct.cuda import foreign, interop
from cudnn_ct.cuda import stream as streams
from cudnn_ct.cuda.stream import default_stream
from cudnn_ct.ops._operands import import_arrays
from cudnn_ct.shapes.specs import TensorSpec

Waits = list[tuple[int, int]]
THEIRS = 0x55  # the current stream of the libraries


class Device(NamedTuple):
    type: str
    index: int


class Tensor:
    """A tensor of torch on a device."""

    dtype, shape, strides = "torch.bfloat16", (2, 3, 1, 1), (3, 1, 3, 3)
    requires_grad = negative = False
    device, pointer = Device("cuda", 0), 0x7000

    def is_neg(self) -> bool:
        return self.negative

    def data_ptr(self) -> int:
        return self.pointer

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def untyped_storage(self) -> str:
        return "the storage"

    def get_device(self) -> int:
        return self.device.index


class Array:
    """An array of cupy."""

    shape, strides, dtype = (2, 3), (-24, 4), "float32"
    data = SimpleNamespace(ptr=0x9004, device_id=0, mem="the memory")


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waits]:
    """Replace the driver and the libraries; yield pairs of streams: the awaited one, and the waiting one."""
    seen: Waits = []
    current = type("Stream", (SimpleNamespace,), {"__module__": "torch.cuda.streams"})(cuda_stream=THEIRS)
    torch = SimpleNamespace(
        Tensor=Tensor,
        nn=SimpleNamespace(Parameter=type("Parameter", (Tensor,), {})),
        cuda=SimpleNamespace(current_stream=lambda device: current),
        is_grad_enabled=lambda: True,
        _C=SimpleNamespace(_cuda_getCurrentRawStream=lambda device: THEIRS),
    )
    cupy = SimpleNamespace(
        ndarray=Array,
        cuda=SimpleNamespace(get_current_stream=lambda device: SimpleNamespace(ptr=THEIRS)),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(streams, "device_count", lambda: 1)
    monkeypatch.setattr(events, "wait_stream", lambda one, two: seen.append((one.handle, two.handle)))
    monkeypatch.setattr(streams, "is_capturing", lambda stream: False)
    monkeypatch.setattr(streams, "set_device", lambda device: None)
    monkeypatch.setattr(streams, "_known", {})
    monkeypatch.setattr(foreign, "_known", {})
    default_stream.cache_clear()
    yield seen
    default_stream.cache_clear()


def imported(array: Any) -> Any:
    return as_operand(array, "x", default_stream(0))


def test_tensor_is_read_without_dlpack(waits: Waits) -> None:
    found = imported(Tensor())
    assert (found.pointer, found.device, found.readonly, found.external) == (0x7000, 0, False, True)
    assert found.spec == TensorSpec((2, 3, 1, 1), (3, 1, 3, 3), "bfloat16")
    assert found.memory == "the storage", "it may be used after the call"
    assert found.writer.handle == THEIRS
    assert not waits, "the call orders the streams"


@pytest.mark.parametrize(("pointer", "aligned"), [(0x7000, True), (0x7010, True), (0x7002, False)])
def test_alignment_of_a_tensor_is_read(pointer: int, aligned: bool) -> None:
    assert imported(changed(pointer=pointer)).key.aligned == aligned


@pytest.mark.parametrize("shape", [(), (0, 3), (3,)])
def test_tensor_of_any_shape_is_read(shape: tuple[int, ...]) -> None:
    """The truth value of an array is its length, if it has one."""
    found = imported(changed(shape=shape, strides=(1,) * len(shape)))
    assert found.memory == "the storage"
    assert found.shape == shape


def test_array_of_cupy_is_read_with_its_strides_and_address() -> None:
    found = imported(Array())
    assert (found.pointer, found.key.aligned, found.memory) == (0x9004, False, "the memory")
    assert found.spec == TensorSpec((2, 3), (-6, 1), "float32")


def test_tensors_are_not_known_without_the_guards_of_torch() -> None:
    torch, arrays = foreign.LIBRARIES[0], (Tensor(), Tensor())
    assert torch.reader(arrays, [imported(one).key for one in arrays]) is None


def test_call_works_on_the_current_stream_of_the_first_library(waits: Waits) -> None:
    tensor, array = Tensor(), Array()
    ours = imported(tensor)
    waits.clear()
    operands, outs, where = import_arrays((ours, tensor, array), (None, tensor), "xyz", "ab", None)
    assert where is not None
    assert where.handle == THEIRS
    assert where.lasts, "the stream object is kept"
    assert [array.pointer for array in operands] == [0x7000, 0x7000, 0x9004]
    assert operands[1].memory is tensor
    assert outs[0] is None
    assert outs[1].memory == "the storage"
    assert not waits, "nothing has to wait"


def test_given_stream_and_that_of_use_come_first(waits: Waits) -> None:
    _, _, where = import_arrays((Tensor(),), (None,), "x", "y", default_stream(0))
    assert where is default_stream(0)
    token = streams.in_use.set(default_stream(0))
    try:
        _, _, where = import_arrays((Tensor(),), (None,), "x", "y", None)
        assert where is default_stream(0)
    finally:
        streams.in_use.reset(token)


def test_current_stream_object_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first import reads the object that keeps the stream alive; a bare address has none."""
    streams.intern_stream(THEIRS, 0)
    requested: list[int] = []
    cuda = sys.modules["torch"].cuda
    current = cuda.current_stream
    monkeypatch.setattr(cuda, "current_stream", lambda device: requested.append(device) or current(device))
    first, second = imported(Tensor()), imported(Tensor())
    assert first.home is second.home
    assert first.home.lasts
    assert requested == [0]


def changed(**values: Any) -> Tensor:
    tensor = Tensor()
    for name, value in values.items():
        setattr(tensor, name, value)
    return tensor


def no_storage() -> int:
    raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")


@pytest.mark.parametrize(
    "tensor",
    [
        changed(requires_grad=True),
        changed(negative=True),
        changed(device=Device("cpu", 0)),
        changed(pointer=0),
        changed(data_ptr=no_storage),
        type("Subclass", (Tensor,), {})(),
    ],
    ids=["gradient", "negative bit", "on the host", "address 0", "no storage", "subclass"],
)
def test_other_tensors_are_left_to_dlpack(tensor: Tensor) -> None:
    library = foreign.library_of(type(tensor))
    assert library is None or library.read(tensor) is None


def test_tensor_with_gradient_is_read_while_none_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["torch"], "is_grad_enabled", lambda: False)
    assert imported(changed(requires_grad=True)).pointer == 0x7000


def test_complex_tensor_is_rejected() -> None:
    with pytest.raises(TypeError, match="complex64"):
        imported(changed(dtype="torch.complex64"))


def test_library_is_skipped_while_another_thread_imports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    assert foreign.library_of(Tensor) is None
    assert foreign.library_of(Array) is not None
    monkeypatch.setattr(interop, "device_of", lambda obj: 0)
    assert foreign.current_stream((object(), Array())) is not None


@pytest.mark.parametrize(("strides", "dtype"), [((6, 4), "float32"), ((3, 2), "float16")])
def test_strides_between_elements_are_rejected(strides: tuple[int, int], dtype: str) -> None:
    """A view of bytes as wider elements has them; cupy's own export rounds them down."""
    array: Any = SimpleNamespace(data=Array.data, shape=(5, 2), strides=strides, dtype=dtype)
    with pytest.raises(
        ValueError, match=f"strides are not supported: got .{strides[0]}, {strides[1]}. bytes"
    ):
        foreign.LIBRARIES[1].read(array)


LIBRARIES = {"torch", "cupy", "cupyx", "jax", "numba"}
# The compatibility layers for a library each, and commands.
OF_A_LIBRARY = ("torch/", "cupy/", "jax/", "cli/")


def named_libraries(tree: ast.AST) -> set[str]:
    """Return the libraries that code imports, or names in a variable or a string."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            found.add(node.value.partition(".")[0])
        elif isinstance(node, ast.Import):
            found |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module).partition(".")[0])
    return found & LIBRARIES


def test_other_modules_do_not_name_a_library_of_arrays() -> None:
    """A library is a class of `foreign`: its types, memory, streams, and how a recording follows it."""
    root = Path(foreign.__file__).parents[1]
    found = {}
    readers = root.with_name("cudnn_doctor") / "read"
    for path in sorted((*root.rglob("*.py"), *readers.rglob("*.py"))):
        name = path.relative_to(root.parent).as_posix().removeprefix("cudnn_ct/")
        if name != "cuda/foreign.py" and not name.startswith(OF_A_LIBRARY):
            found[name] = named_libraries(ast.parse(path.read_text(encoding="utf-8")))
    assert {name: libraries for name, libraries in found.items() if libraries} == {}
    assert named_libraries(ast.parse(Path(foreign.__file__).read_text(encoding="utf-8"))) >= {"torch", "cupy"}


# --- arrays that are imported by DLPack or by their interface ----------------------------------------------


class Interface:
    """An array that has only ``__cuda_array_interface__``, such as those of numba."""

    def __init__(self, stream: int | None = None) -> None:
        self.__cuda_array_interface__ = {"stream": stream}


class Both(Interface):
    """An array that has DLPack too, which orders its producer itself."""

    def __dlpack__(self) -> None:
        raise AssertionError("the view of cuda.core calls it")


class Exporting:
    """A subclass of tensors of torch, which is imported by DLPack."""

    is_cuda, requires_grad = True, False

    def detach(self) -> Exporting:
        return Exporting()

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


@pytest.fixture(autouse=True)
def _views(monkeypatch: pytest.MonkeyPatch) -> None:
    View.seen = []
    monkeypatch.setattr(interop, "_memory_view", lambda: View)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A torch with tensors that are imported by DLPack."""
    monkeypatch.setattr(sys.modules["torch"], "Tensor", Exporting)
    return sys.modules["torch"]


def viewed(array: Any) -> Any:
    found = interop.import_array(array, default_stream(0))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("array", "home"),
    [(Interface(), 1), (Interface(1), 1), (Interface(0x55), 0x55), (Both(), None), (Both(0x55), 0x55)],
)
def test_import_array_finds_the_stream_of_the_producer(array: Any, home: int | None) -> None:
    """Without a stream and without DLPack, it is the default stream."""
    found = viewed(array)
    assert home == (found.home and found.home.handle)


def test_import_array_makes_arrays_of_jax_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(Array=Both))
    assert [viewed(array).readonly for array in (Both(), Interface())] == [True, False]


def test_import_array_rejects_a_tensor_when_its_gradient_would_be_lost(torch: SimpleNamespace) -> None:
    array = Exporting()
    array.requires_grad = True
    with pytest.raises(TypeError, match=r"pass tensor\.detach\(\), or call under torch\.no_grad\(\)"):
        viewed(array)
    torch.is_grad_enabled = lambda: False
    viewed(array)
    assert not any(seen.requires_grad for seen, _ in View.seen)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((2, 1, 3, 4), (12, 1, 4, 1)), ((2, 1, 3, 4), (12, 12, 4, 1)), ((2, 8, 1, 1), (8, 1, 8, 8))],
)
def test_import_array_keeps_strides_of_torch_when_axes_have_length_1(
    torch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    """DLPack of torch exports 1 for the strides of such axes, and ``__cuda_array_interface__`` none."""
    monkeypatch.setattr(Exporting, "stride", lambda self: strides)
    monkeypatch.setattr(View, "shape", shape)
    for exported in (tuple(1 if n < 2 else s for n, s in zip(shape, strides, strict=True)), None):
        monkeypatch.setattr(View, "strides", exported)
        assert viewed(Exporting()).spec.strides == strides


def test_import_array_waits_for_no_producer_when_the_stream_is_captured(
    torch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, waits: Waits
) -> None:
    """Waiting for a stream outside of a capture invalidates it; -1 is DLPack's "do not wait"."""
    viewed(Both())
    monkeypatch.setattr(streams, "is_capturing", lambda stream: True)
    viewed(Both())
    assert [stream for _, stream in View.seen] == [default_stream(0).handle, -1]
    assert waits == []


def test_import_array_names_the_reason_when_a_tensor_has_no_memory(
    torch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(*_: Any) -> None:
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")

    monkeypatch.setattr(View, "from_any_interface", reject)
    with pytest.raises(TypeError, match="does not export usable device memory: Cannot access data"):
        viewed(Exporting())


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
    viewed(Both())
    assert interop.consumer_stream(0x5500, 0).handle == 0x5500
