"""Views, copies and conversions of device arrays, compared with NumPy, on the fakes."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct.cuda import stream as streams
from cudnn_ct.cuda.stream import Stream
from cudnn_ct.dtypes import DTYPES
from cudnn_ct.plans import axes
from cudnn_ct.shapes import specs
from cudnn_ct.shapes.specs import TensorSpec
from tests.both.views import *  # noqa: F403
from tests.both.views import equal, numbers

from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .test_conv import Box

pytestmark = pytest.mark.usefixtures("fake")

HOME, OTHER = 0x100, 0x200  # streams


CONVERSIONS = [("float32", "float16"), ("bfloat16", "float32"), ("float16", "bfloat16")]


@pytest.mark.parametrize(("before", "after"), [*CONVERSIONS, *zip(DTYPES, DTYPES, strict=True)])
@pytest.mark.parametrize("key", [np.s_[:, ::2], np.s_[:, :, 1:, ::2], np.s_[..., 3]])
def test_copies_and_conversions_stay_on_the_device(host: Host, before: str, after: str, key: Any) -> None:
    x = ct.asarray(numbers(before))
    host.calls.clear()
    converted, last = x[key].astype(after), ct.asarray(x, after, layout="nhwc")
    assert "cuMemcpyDtoHAsync" not in host.calls
    equal(converted, numbers(after)[key])
    equal(last, numbers(after))
    assert last.layout == "nhwc"


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_copy_of_a_view_is_made_in_slices_when_a_stride_exceeds_a_c_int(
    host: Host, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    view = ct.asarray(numbers(dtype))[:, 1:]
    for module in (specs, axes):
        monkeypatch.setattr(module, "INT_MAX", 40)
    host.calls.clear()
    copied = view.copy()
    assert "cuMemcpyDtoHAsync" not in host.calls
    equal(copied, numbers(dtype)[:, 1:])


@pytest.mark.parametrize("strides", [(0, 0, 0, 0), (0, 15, 5, 1), (60, 15, 0, -1)], ids=str)
def test_operand_with_strides_of_0_or_below_is_copied_in_a_capture(
    host: Host, strides: tuple[int, ...]
) -> None:
    run, x = Stream(0x77, 0), ct.asarray(numbers())
    view = x.view_as(TensorSpec(numbers().shape, strides, "float32"), 4 if -1 in strides else 0)
    out = ct.empty(numbers().shape)
    message = "make the same call once on this stream before"
    with host.captured(0x77), pytest.raises(ct.NotInitializedError, match=message):
        ct.activation(view, out=out, stream=run)
    ct.activation(view, out=out, stream=run)
    with host.captured(0x77) as capture:
        capture.deferred = True
        host.calls.clear()
        ct.activation(view, out=out, stream=run)
        assert not {"cuMemcpyDtoHAsync", "cuMemAllocFromPoolAsync", "cuStreamSynchronize"} & {*host.calls}
    ct.empty_cache()
    x.fill(3)
    capture.launch()
    np.testing.assert_array_equal(out.numpy(), 3)


def test_copies_of_operands_are_repeated_by_replays() -> None:
    x, out = ct.asarray(numbers()), ct.empty(numbers().shape)
    for value in range(20):
        x.fill(value)
        ct.activation(x[:, ::-1], out=out)
        np.testing.assert_array_equal(out.numpy(), value)


def test_copies_of_operands_stay_when_the_workspace_needs_their_memory(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call releases the thread's idle memory, of which its own copies are no part."""
    values = numbers()[:, :, :, :3].copy()
    x, w = ct.asarray(values)[:, ::-1], ct.asarray(np.ones((2, 4, 3, 3), np.float32))
    fake.workspaces = {"GEMM": 1000}
    expected = ct.conv(x, w).numpy()
    context.current(streams.default_stream(0)).drop_workspaces()
    allocate, failed = context.Workspace, []

    def short(nbytes: int, stream: Stream, what: str) -> Any:
        if what == "a workspace" and not failed:
            failed.append(what)
            raise ct.AllocationError("short of memory")
        return allocate(nbytes, stream, what)

    monkeypatch.setattr(context, "Workspace", short)
    np.testing.assert_array_equal(ct.conv(x, w).numpy(), expected)
    assert failed


def test_copy_to_the_host_leaves_a_capture_valid(host: Host) -> None:
    x = ct.full((2, 3), 1, stream=(run := Stream(0x77, 0)))
    capture = host.capturing.add(0x77)
    for copy in (x.numpy, lambda: x.astype("int32", stream=run)):
        with pytest.raises(ct.NotInitializedError, match="to the host cannot be captured"):
            copy()
    assert capture.valid


def test_views_are_read_only_when_the_array_is(host: Host) -> None:
    foreign = ForeignArray(host, numbers())
    foreign.readonly = True
    with pytest.raises(ValueError, match="read-only"):
        ct.asarray(foreign)[0].fill(1)


def test_views_of_a_closed_array_are_rejected_and_views_outlive_it(host: Host) -> None:
    x = ct.asarray(numbers())
    view = x[1]
    x.close()
    equal(view, numbers()[1])
    for use in (lambda: x[1], lambda: x.reshape(-1), lambda: x.T):
        with pytest.raises(ValueError, match="is closed"):
            use()
    assert host.used() == numbers().nbytes
    del view
    gc.collect()
    assert host.used() == 0


def test_views_of_requests_that_equal_earlier_ones_are_made_or_rejected_as_those_of_numpy() -> None:
    x, place = ct.asarray(numbers()), Box(0)
    for first in (0, 1):
        place.n = first
        equal(x[place], numbers()[first])
        equal(x[place:], numbers()[first:])
        equal(x.transpose(place, 1 - first, 2, 3), numbers().transpose(first, 1 - first, 2, 3))
    for good, bad in ((np.s_[1], np.s_[True]), (np.s_[1:], np.s_[1.0:]), (np.s_[:, 1], np.s_[:, 1.0])):
        equal(x[good], numbers()[good])
        with pytest.raises(TypeError):
            x[bad]
    shape = numbers().shape
    assert x.reshape(*shape).shape == x.reshape(list(shape)).shape == shape
    with pytest.raises(TypeError, match=r"shape must be integers: got \[2.0,"):
        x.reshape([2.0, *shape[1:]])
    with pytest.raises(TypeError):
        x.transpose(0, 1.0, 2, 3)


def test_views_that_are_gone_are_forgotten() -> None:
    x = ct.asarray(numbers())
    kept = [x[0] for _ in range(20)]
    for _ in range(500):
        x[1]
    assert len(x._uses.views) < 100
    add(x, OTHER)
    assert {view.writer.handle for view in kept} == {OTHER}


def test_view_that_a_signal_handler_makes_is_kept_while_others_are_forgotten() -> None:
    class Interrupted(ref[Any]):
        def __call__(self) -> Any:
            if not made:
                made.append(None)
                made[0] = x[0]
            return super().__call__()

    x, made = ct.asarray(numbers()), list[Any]()
    for _ in range(10):
        x[1]
    x._uses.views.append(Interrupted(x))
    for _ in range(20):
        x[1]
    add(x, OTHER)
    assert made[0].writer.handle == OTHER


# --- order among streams ---


def identity(x: ct.DeviceArray, stream: int) -> ct.DeviceArray:
    return ct.activation(x, mode="identity", stream=stream)


def add(x: ct.DeviceArray, stream: int) -> None:
    source = ct.full(x.shape, 3.0, stream=stream)
    ct.add(source, source, out=x, stream=stream)


@pytest.mark.parametrize("views", ["base base", "base view", "view base"])
@pytest.mark.parametrize("write", [add, lambda x, stream: x.fill(6, stream=stream)], ids=["add", "fill"])
@pytest.mark.parametrize("read", [identity, lambda x, stream: x.copy(stream=stream)], ids=["call", "copy"])
def test_reads_and_writes_on_two_streams_wait_for_each_other_when_they_share_memory(
    host: Host, views: str, write: Any, read: Any
) -> None:
    base = ct.full((2, 8), 1.0, stream=HOME)
    both = {"base": base, "view": base[1:]}
    written, other = (both[name] for name in views.split())
    write(written, OTHER)
    host.log.clear()
    assert read(other, HOME).numpy()[-1, 0] == 6
    assert host.orders(OTHER, HOME)
    host.log.clear()
    write(written, OTHER)  # reads on the home stream are not recorded
    assert host.orders(HOME, OTHER)
    read(other, OTHER)
    host.log.clear()
    write(written, HOME)
    assert host.orders(OTHER, HOME)


def test_memory_is_freed_after_the_use_of_a_view_on_another_stream(host: Host) -> None:
    base = ct.full((2, 8), 1.0, stream=HOME)
    kept = ct.activation(base[1:], mode="identity", stream=OTHER)
    host.log.clear()
    del base
    gc.collect()
    assert [(what, stream) for what, stream, *_ in host.log][:1] == [("wait", HOME)]
    assert host.log[-1][0] == "free"
    del kept


def test_packed_takes_the_name_of_a_dtype() -> None:
    x = ct.asarray(np.arange(12, dtype="float32").reshape(1, 2, 3, 2))
    y = x.packed("NHWC", dtype="int8")  # type: ignore[arg-type]
    assert (y.layout, y.numpy().tolist()) == ("nhwc", x.numpy().tolist())
