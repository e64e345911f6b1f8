"""Views, copies and conversions of device arrays, compared with NumPy, on the fakes."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.dtypes import DTYPES
from cudnn_ct.plans import tiling
from cudnn_ct.shapes import specs
from tests.both.views import *  # noqa: F403
from tests.both.views import equal, numbers

from .cudnn import FakeCudnn
from .host import ForeignArray, Host

HOME, OTHER = 0x100, 0x200  # streams


CONVERSIONS = [("float32", "float16"), ("bfloat16", "float32"), ("float16", "bfloat16")]


@pytest.mark.parametrize(("before", "after"), [*CONVERSIONS, *zip(DTYPES, DTYPES, strict=True)])
@pytest.mark.parametrize("key", [np.s_[:, ::2], np.s_[:, :, 1:, ::2], np.s_[..., 3]])
def test_copies_and_conversions_stay_on_the_device(
    fake: FakeCudnn, host: Host, before: str, after: str, key: Any
) -> None:
    x = ct.asarray(numbers(before))
    host.calls.clear()
    converted, last = x[key].astype(after), ct.asarray(x, after, layout="nhwc")
    assert "cuMemcpyDtoHAsync" not in host.calls
    equal(converted, numbers(after)[key])
    equal(last, numbers(after))
    assert last.layout == "nhwc"


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_copy_of_a_view_is_made_in_slices_when_a_stride_exceeds_a_c_int(
    fake: FakeCudnn, host: Host, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    view = ct.asarray(numbers(dtype))[:, 1:]
    for module in (specs, tiling):
        monkeypatch.setattr(module, "INT_MAX", 40)
    host.calls.clear()
    copied = view.copy()
    assert "cuMemcpyDtoHAsync" not in host.calls
    equal(copied, numbers(dtype)[:, 1:])


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


# --- order among streams ---


def waits(host: Host, before: int, after: int) -> bool:
    """Return whether a stream waited for an event that was recorded on another one."""
    recorded = {
        event for what, stream, *event in host.log if what == "record" and stream == before for event in event
    }
    return any(
        what == "wait" and stream == after and event[0] in recorded for what, stream, *event in host.log
    )


def identity(x: ct.DeviceArray, stream: int) -> ct.DeviceArray:
    return ct.activation(x, mode="identity", stream=stream)


def add(x: ct.DeviceArray, stream: int) -> None:
    source = ct.full(x.shape, 3.0, stream=stream)
    ct.add(source, source, out=x, stream=stream)


@pytest.mark.parametrize("views", ["base base", "base view", "view base"])
@pytest.mark.parametrize("write", [add, lambda x, stream: x.fill(6, stream=stream)], ids=["add", "fill"])
@pytest.mark.parametrize("read", [identity, lambda x, stream: x.copy(stream=stream)], ids=["call", "copy"])
def test_reads_and_writes_on_two_streams_wait_for_each_other_when_they_share_memory(
    fake: FakeCudnn, host: Host, views: str, write: Any, read: Any
) -> None:
    base = ct.full((2, 8), 1.0, stream=HOME)
    both = {"base": base, "view": base[1:]}
    written, other = (both[name] for name in views.split())
    write(written, OTHER)
    host.log.clear()
    assert read(other, HOME).numpy()[-1, 0] == 6
    assert waits(host, OTHER, HOME)
    host.log.clear()
    write(written, OTHER)  # reads on the home stream are not recorded
    assert waits(host, HOME, OTHER)
    read(other, OTHER)
    host.log.clear()
    write(written, HOME)
    assert waits(host, OTHER, HOME)


def test_memory_is_freed_after_the_use_of_a_view_on_another_stream(fake: FakeCudnn, host: Host) -> None:
    base = ct.full((2, 8), 1.0, stream=HOME)
    kept = ct.activation(base[1:], mode="identity", stream=OTHER)
    host.log.clear()
    del base
    gc.collect()
    assert [(what, stream) for what, stream, *_ in host.log][:1] == [("wait", HOME)]
    assert host.log[-1][0] == "free"
    del kept


def test_packed_takes_the_name_of_a_dtype(host: Host) -> None:
    x = ct.asarray(np.arange(12, dtype="float32").reshape(1, 2, 3, 2))
    y = x.packed("NHWC", dtype="int8")  # type: ignore[arg-type]
    assert (y.layout, y.numpy().tolist()) == ("nhwc", x.numpy().tolist())
