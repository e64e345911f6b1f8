"""Arrays on host memory: contents, layouts, and what they tell other libraries."""

from __future__ import annotations

import gc
from collections import deque
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct import testing
from cudnn_ct.cuda import event as events
from cudnn_ct.cuda import interop, lifetime
from cudnn_ct.cuda import stream as streams
from cudnn_ct.dtypes import DTYPES
from cudnn_ct.shapes.specs import LAYOUTS, TensorSpec
from tests.mixed import in_threads
from tests.strategies import in_memory_of
from tests.unit.cuda_driver import CUresult

from .cudnn import FakeCudnn
from .host import ForeignArray, Host

shapes = st.lists(st.integers(0, 4), min_size=3, max_size=5).map(tuple)


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return (np.arange(np.prod(shape)).reshape(shape) % 2).astype(DTYPES[dtype].numpy)


@given(shape=shapes, dtype=st.sampled_from(list(DTYPES)), layout=st.sampled_from(LAYOUTS))
def test_asarray_and_numpy_keep_elements_and_layout(
    host: Host, shape: tuple[int, ...], dtype: str, layout: str
) -> None:
    values = numbers(shape, dtype)
    array = ct.asarray(values, layout=layout)
    back = array.numpy()
    attributes = (array.shape, array.dtype, array.ndim, array.size)
    assert attributes == (shape, values.dtype, len(shape), values.size)
    assert (back.shape, back.dtype) == (shape, values.dtype)
    assert layout in array.spec.layouts
    assert array.strides == tuple(s * values.itemsize for s in array.spec.strides)
    np.testing.assert_array_equal(back.astype(float), values.astype(float))


@given(shape=shapes, dtype=st.sampled_from(list(DTYPES)), value=st.sampled_from([0, 1, 2, 100]))
def test_full_has_one_value(host: Host, shape: tuple[int, ...], dtype: str, value: int) -> None:
    expected = np.full(shape, value).astype(DTYPES[dtype].numpy)
    np.testing.assert_array_equal(ct.full(shape, value, dtype).numpy().astype(float), expected.astype(float))


def test_arrays_are_made_from_shapes_lists_and_numbers(host: Host) -> None:
    assert ct.empty(5).shape == ct.zeros(np.int64(5)).shape == ct.full(np.array(5), 1).shape == (5,)
    assert ct.empty(np.array([5, 2])).shape == (5, 2)
    assert not ct.zeros((2, 3)).numpy().any()
    assert ct.asarray([[1, 2], [3, 4]]).dtype == np.int64
    assert ct.asarray(3.0).shape == ()
    assert ct.asarray([1.5, 2.5], "bfloat16").dtype == ml_dtypes.bfloat16
    assert ct.asarray(np.arange(4, dtype=">f4")).numpy().tolist() == [0, 1, 2, 3]
    assert ct.asarray(np.arange(24).reshape(2, 3, 4)[:, ::-1]).numpy()[0, 0, 0] == 8


@pytest.mark.parametrize("dtype", [None, "float32", "int32"])
def test_asarray_rejects_values_that_are_not_real_numbers(host: Host, dtype: str | None) -> None:
    values: list[Any] = [1 + 2j, "3", ["a"], b"3", None, [None, 1], {}, 10**30, object]
    values += [np.zeros(2, np.complex64), np.array(["2020-01-01"], "M8[D]"), np.timedelta64(3, "s")]
    values += [np.zeros((2, 2), "f4,i4"), np.zeros((2, 2), "V8")]
    for value in values:
        with pytest.raises(TypeError, match=r"^cuDNN has no dtype .*; it has float32, "):
            ct.asarray(value, dtype)


def test_foreign_arrays_are_not_copied(host: Host) -> None:
    values = np.arange(60.0, dtype=np.float32).reshape(1, 3, 4, 5)[:, :, ::2]
    foreign = ForeignArray(host, values)
    array = ct.asarray(foreign)
    assert array.pointer == foreign.pointer
    assert array.layout is None
    assert array.spec.strides == (60, 20, 10, 1)
    np.testing.assert_array_equal(array.numpy(), values)
    backwards = np.arange(12.0).reshape(3, 4)[::-1, ::-1]
    np.testing.assert_array_equal(ct.asarray(ForeignArray(host, backwards)).numpy(), backwards)


def test_copy_keeps_elements_and_fill_replaces_them(fake: FakeCudnn, host: Host) -> None:
    array = ct.asarray(numbers((2, 3, 4, 5), "float32"), layout="nhwc")
    copy = array.copy()
    array.fill(np.nan)
    assert copy.spec == array.spec
    np.testing.assert_array_equal(copy.numpy(), numbers((2, 3, 4, 5), "float32"))
    assert np.isnan(array.numpy()).all()
    gaps = ct.asarray(ForeignArray(host, np.zeros((2, 3, 4))[:, ::2]))
    with pytest.raises(ValueError, match=r"fill needs a contiguous array: .* strides \(12, 8, 1\)"):
        gaps.fill(1)
    assert gaps.copy().layout == "nchw"


def test_closed_array_has_no_memory_and_rejects_uses(host: Host) -> None:
    array = ct.zeros((2, 3))
    with array:
        assert host.used() == 24
    array.close()
    assert array.closed
    assert host.used() == 0
    assert repr(array) == "DeviceArray(float32[2, 3], nchw, device 0, closed)"
    for use in (array.numpy, array.copy, lambda: array.fill(0), array.__dlpack__):
        with pytest.raises(ValueError, match=r"this DeviceArray of shape \(2, 3\) is closed"):
            use()


def test_array_has_repr_len_and_no_host_conversion(host: Host) -> None:
    array = ct.zeros((2, 3, 4, 5), "float16", layout="nhwc")
    assert repr(array) == "DeviceArray(float16[2, 3, 4, 5], nhwc, device 0)"
    assert len(array) == 2
    with pytest.raises(TypeError, match=r"call \.numpy\(\)"):
        np.asarray(array)
    with pytest.raises(TypeError, match="without axes"):
        len(ct.asarray(1.0))
    with pytest.raises(AttributeError, match="has no attribute 'data'"):
        _ = array.data


@pytest.mark.parametrize("shape", [(2, 1, 3, 4), (2, 3, 1, 1), (2, 1, 5), (2, 1, 2, 3, 4), (0, 1, 3, 4)])
def test_asarray_sets_strides_without_copy_when_array_is_packed_in_both_layouts(
    host: Host, shape: tuple[int, ...]
) -> None:
    given = ct.zeros(shape)
    last = ct.asarray(given, layout="nhwc")
    first = ct.asarray(last, layout="nchw")
    assert given.pointer == last.pointer == first.pointer
    assert first.spec == given.spec == ct.TensorSpec.packed(shape)
    assert last.spec == last.copy().spec == ct.TensorSpec.packed(shape, layout="nhwc")
    assert ct.asarray(last, "float32", layout="nhwc") is ct.asarray(last) is last
    assert "nhwc" in repr(last)


def test_array_has_no_truth_value(host: Host) -> None:
    for shape, error in (((2, 3), ValueError), ((1, 1), TypeError), ((), TypeError), ((0, 2), TypeError)):
        with pytest.raises(error, match=r"truth value.*call \.numpy\(\)"):
            bool(ct.zeros(shape))


def test_array_compares_no_elements(host: Host) -> None:
    x, y = ct.zeros((2, 3)), ct.zeros((2, 3))
    foreign = SimpleNamespace(__cuda_array_interface__={})
    for other in (y, 0, 0.5, True, x.numpy(), foreign):
        for compare in (lambda a, b: a == b, lambda a, b: a != b):
            with pytest.raises(TypeError, match=r"compare \.numpy"):
                compare(x, other)
    assert x == x
    assert x != "x"
    assert x != None  # noqa: E711
    assert len({x, y, x}) == 2
    assert {x: 1, y: 2}[y] == 2
    assert x in [x, y]


def test_array_interface_describes_memory_and_stream(host: Host) -> None:
    array = ct.zeros((2, 3, 4, 5), layout="nhwc")
    interface = array.__cuda_array_interface__
    assert interface["data"] == (array.pointer, False)
    assert interface["strides"] == array.strides == (240, 4, 60, 12)
    assert (interface["typestr"], interface["stream"], interface["version"]) == ("<f4", 1, 3)
    assert ct.zeros((2, 3)).__cuda_array_interface__["strides"] is None
    assert ct.zeros((2, 1, 3, 4), layout="nhwc").__cuda_array_interface__["strides"] == (48, 4, 16, 4)
    assert array.__dlpack_device__() == (2, 0)
    for dtype in ("bfloat16", "float8_e4m3", "float8_e5m2"):
        assert not hasattr(ct.zeros((2, 3), dtype), "__cuda_array_interface__")


@pytest.mark.parametrize(
    ("consumer", "home", "kinds"),
    [
        (1, 0x66, ["record", "wait", "free"]),  # the default stream always exists: no wait on the host
        (0x55, 1, ["synchronize_device", "free"]),  # it may be destroyed by then, and a query would end us
        (0x66, 0x66, ["free"]),
        (-1, 1, ["free"]),
    ],
)
def test_export_orders_the_consumer_and_frees_after_it_when_the_array_is_closed(
    host: Host, monkeypatch: pytest.MonkeyPatch, consumer: int, home: int, kinds: list[str]
) -> None:
    exported: list[Any] = []
    monkeypatch.setattr(interop, "export_dlpack", lambda owner, *rest: exported.append(owner))
    with ct.zeros((2, 3), stream=home) as array:
        host.log.clear()
        array.__dlpack__(stream=consumer)
    ordered = consumer not in (home, -1)
    assert [entry[:2] for entry in host.log] == [("record", home), ("wait", consumer)] * ordered
    assert host.used() == 24  # the consumer holds it
    host.log.clear()
    exported.clear()
    assert [entry[0] for entry in host.log] == kinds
    assert host.used() == 0


def test_empty_cache_waits_and_trims_the_pool_of_a_device(host: Host) -> None:
    ct.empty_cache()
    ct.empty_cache(device=1)
    assert host.log == [("synchronize", 1), ("trim", 0), ("synchronize", 1), ("trim", 1)]
    assert host.device == 0


def test_owner_of_a_stream_outlives_memory_that_is_freed_on_it(host: Host) -> None:
    class Owner:
        __cuda_stream__ = (0, 0x66)

        def __del__(self) -> None:
            host.log.append(("stream destroyed",))

    array = ct.zeros((2, 3), stream=Owner())
    testing.reset()
    host.log.clear()
    del array
    gc.collect()
    assert [entry[0] for entry in host.log] == ["free", "stream destroyed"]


def test_memory_stays_when_its_event_cannot_be_queried(host: Host) -> None:
    """A capture in another thread may forbid to query an event."""
    array = ct.zeros((2, 3), stream=0x40)
    array.record_use(streams.as_stream(0x50, 0))
    host.capturing.add(0x40)
    host.failing["cuEventQuery"] = CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    array.record_use(streams.as_stream(0x60, 0))  # neither use is lost
    assert {stream.handle for stream in array._uses.events} == {0x50, 0x60}
    del array
    assert host.used() == 24
    host.failing.clear()
    lifetime.release_finished()
    assert host.used() == 0


def test_queued_release_stays_when_a_signal_handler_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[Any] = [KeyboardInterrupt(), True]

    def attempt() -> bool:
        outcome = outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return bool(outcome)

    monkeypatch.setattr(lifetime, "_in_flight", deque())
    lifetime.defer(attempt)
    with pytest.raises(KeyboardInterrupt):
        lifetime.release_finished()
    lifetime.release_finished()
    assert not outcomes


def test_exported_memory_stays_when_its_use_cannot_be_recorded(host: Host) -> None:
    array = ct.zeros((2, 3), stream=0x40)
    lent = lifetime.ExportedMemory(array.memory, array.home, streams.default_stream(0))
    host.failing["cuEventRecord"] = CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    del array, lent
    lifetime.release_finished()
    assert host.used() == 24
    host.failing.clear()
    lifetime.release_finished()
    assert host.used() == 0


def test_dlpack_exports_negative_strides_as_a_copy_only(fake: FakeCudnn) -> None:
    x = ct.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))[:, ::-1]
    with pytest.raises(BufferError, match=r"negative strides .* export a copy"):
        x.__dlpack__()
    for allowed, options in ((x, {"copy": True}), (x[:, :1], {})):  # an axis of length 1 has no steps
        with pytest.raises(NotImplementedError, match="tested on a GPU"):
            allowed.__dlpack__(**options)
    np.testing.assert_array_equal(x.copy().numpy(), [[2, 1, 0], [5, 4, 3]])


@pytest.mark.parametrize("max_version", [None, (0, 0), (0, 8)])
def test_dlpack_rejects_a_read_only_array_when_the_consumer_cannot_see_the_flag(
    host: Host, max_version: tuple[int, int] | None
) -> None:
    """The flag came with DLPack 1.0: an older capsule would hand the array out as writable."""
    array = ct.zeros((2, 3))
    array = ct.DeviceArray.over(
        array.spec, array.pointer, array.memory, array.writer, array.home, readonly=True
    )
    host.log.clear()
    with pytest.raises(BufferError, match=r"read-only.* DLPack 1\.0 or newer: got .*max_version"):
        array.__dlpack__(stream=0x55, max_version=max_version)
    assert host.log == []  # a rejected export waits for nothing


def test_finalizer_may_record_a_use_while_another_is_recorded(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, array, lent = streams.as_stream(0x55, 0), ct.zeros((2, 3)), ct.zeros((2, 3))
    array.record_use(run)
    cycle: list[object] = [lifetime.ExportedMemory(lent.memory, lent.home, run)]
    cycle.append(cycle)
    del cycle, lent
    done = events.is_done
    monkeypatch.setattr(events, "is_done", lambda event: (gc.collect(), done(event))[1])
    in_threads(1, lambda _: array.record_use(run), timeout=10)


@pytest.mark.parametrize("foreign", [False, True])
def test_memory_written_on_another_stream_is_ordered_after_it(
    fake: FakeCudnn, host: Host, foreign: bool
) -> None:
    """Foreign memory at once, for its owner does not know the other stream; our own before it is freed."""
    x, home = ct.full((2, 3), 1.0, stream=0x66), streams.as_stream(0x55, 0)
    out = ForeignArray(host, np.zeros((2, 3), np.float32), home) if foreign else ct.empty((2, 3), stream=home)
    host.log.clear()
    y = ct.activation(x, out=out, stream=0x66)
    assert host.orders(before=0x66, after=0x55) == foreign
    del out, y
    assert host.orders(before=0x66, after=0x55)


def test_capture_is_not_ordered_after_other_streams(host: Host) -> None:
    array, run = ct.zeros((2, 3)), streams.as_stream(0x55, 0)
    host.capturing.add(0x55)
    host.log.clear()
    array.before_write(run)
    array.after_write(run)
    assert host.log == []


def test_as_stream_accepts_streams_of_other_libraries(host: Host) -> None:
    protocol = SimpleNamespace(__cuda_stream__=lambda: (0, 0x42))
    old, older = SimpleNamespace(cuda_stream=0x43), SimpleNamespace(ptr=0x44)
    cupy = SimpleNamespace(ptr=0x46, device_id=1)
    given = (protocol, SimpleNamespace(__cuda_stream__=(0, 0x70)), old, older, 0x45, np.int64(0))
    handles = [streams.as_stream(stream, 0).handle for stream in given]
    assert handles == [0x42, 0x70, 0x43, 0x44, 0x45, 1]
    assert streams.as_stream(cupy, 0).device == 1
    assert streams.as_stream(0x45, 0) is streams.as_stream(0x45, 0)
    with pytest.raises(ValueError, match="the per-thread default stream"):
        streams.as_stream(2, 0)
    assert repr(streams.as_stream(0, 0)) == "Stream(legacy default, device=0)"
    assert repr(streams.as_stream(0x45, 1)) == "Stream(0x45, device=1)"


def test_use_is_for_this_thread_and_ends_with_an_exception(host: Host) -> None:
    def work() -> None:
        with ct.use(stream=0x77):
            assert streams.current_stream().handle == 0x77
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert streams.current_stream().handle == 1


@given(axes=st.lists(st.tuples(st.integers(1, 4), st.integers(-9, 9)), min_size=0, max_size=4))
def test_extent_covers_exactly_the_elements(axes: list[tuple[int, int]]) -> None:
    spec = TensorSpec(tuple(n for n, _ in axes), tuple(s for _, s in axes), "int8")
    offsets = {sum(i * s for i, (_, s) in zip(at, axes, strict=True)) for at in np.ndindex(*spec.shape)}
    assert spec.extent == (min(offsets), max(offsets) + 1)
    assert spec.is_dense == (offsets == set(range(spec.size)))
    assert spec.representable == all(s > 0 for n, s in axes if n > 1)


def test_copy_of_a_view_keeps_the_order_of_its_axes(fake: FakeCudnn, host: Host) -> None:
    images = np.arange(2 * 4 * 5 * 8, dtype=np.float32).reshape(2, 4, 5, 8)
    view = ct.asarray(ForeignArray(host, images.transpose(0, 3, 1, 2)[:, :6]))
    copied = view.copy()
    assert copied.layout == ct.asarray(view, "float16").layout == "nhwc"
    assert view.numpy().strides == copied.numpy().strides == copied.strides
    assert (copied.numpy() == view.numpy()).all()
    assert (copied.numpy() == images.transpose(0, 3, 1, 2)[:, :6]).all()


class TorchTensor(ForeignArray):
    """A tensor of torch, which stores its elements negated if its negative bit is set."""

    copies = 0

    def __init__(self, host: Host, values: np.ndarray, *, negative: bool) -> None:
        super().__init__(host, -values if negative else values)
        self.host, self.is_neg = host, lambda: negative

    def resolve_neg(self) -> ForeignArray:
        self.copies += 1
        return ForeignArray(self.host, -self.numpy())


def test_sign_of_a_tensor_is_applied_when_its_negative_bit_is_set(fake: FakeCudnn, host: Host) -> None:
    values = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
    negative, plain = (TorchTensor(host, values, negative=bit) for bit in (True, False))
    np.testing.assert_array_equal(ct.asarray(negative).numpy(), values)
    assert ct.asarray(plain).pointer == plain.pointer
    for tensor in (negative, plain):
        np.testing.assert_array_equal(ct.activation(tensor).numpy(), np.maximum(values, 0))
    assert plain.copies == 0
    x = ct.asarray(np.ones((2, 3), np.float32))
    with pytest.raises(ValueError, match=r"out cannot be written: .*; pass tensor\.resolve_neg\(\)"):
        ct.activation(x, out=negative)
    assert in_memory_of(ct.activation(x, out=plain), plain)
    np.testing.assert_array_equal(plain.numpy(), x.numpy())
    copies = negative.copies
    host.capturing.add(0x77)  # a launched graph would read the copy after it was freed
    with pytest.raises(ct.NotInitializedError, match=r"cannot be copied in a capture; pass tensor\.resolve"):
        ct.activation(negative, stream=0x77)
    assert negative.copies == copies


def test_asarray_copies_a_cpu_tensor_when_its_negative_bit_is_set(host: Host) -> None:
    """Torch does not export such a tensor to NumPy."""
    values = np.array([1.0, -2.0], np.float32)
    tensor = SimpleNamespace(is_neg=lambda: True, resolve_neg=lambda: values)
    np.testing.assert_array_equal(ct.asarray(tensor).numpy(), values)


@pytest.mark.parametrize("home", ["none", "destroyed"])
def test_memory_without_a_home_stream_stays_until_its_use_is_over(
    fake: FakeCudnn, host: Host, home: str
) -> None:
    foreign = home == "none"
    x = ForeignArray(host, np.ones((4, 5), np.float32)) if foreign else ct.full((4, 5), 1.0, stream=0x66)
    before = host.used()
    host.failing["cuEventQuery"] = CUresult.CUDA_ERROR_NOT_READY
    y = ct.activation(x, mode="identity", stream=0x55)
    if not foreign:
        host.failing["cuStreamWaitEvent"] = CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED
    del x
    gc.collect()
    assert host.used() == before + y.nbytes
    host.failing.clear()
    ct.synchronize()
    assert host.used() == y.nbytes
