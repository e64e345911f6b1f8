"""Views, copies and conversions of device arrays, compared with NumPy, on the fakes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices

import cudnn_ct as ct
from cudnn_ct.dtypes import DTYPES
from cudnn_ct.plans import tiling
from cudnn_ct.shapes import specs
from cudnn_ct.shapes.specs import LAYOUTS

from .cudnn import FakeCudnn
from .host import ForeignArray, Host

HOME, OTHER = 0x100, 0x200  # streams
SHAPE = (2, 4, 3, 5)
keys = basic_indices(SHAPE, allow_newaxis=True, allow_ellipsis=True)
negative_strides = pytest.mark.filterwarnings(
    "ignore:.* was copied through host memory:cudnn_ct.CudnnWarning"
)


def numbers(dtype: str = "float32") -> np.ndarray:
    """Return 120 numbers that every dtype but bool holds."""
    return (np.arange(np.prod(SHAPE)).reshape(SHAPE) % 13).astype(DTYPES[dtype].numpy)


def equal(array: ct.DeviceArray, expected: np.ndarray) -> None:
    assert array.shape == expected.shape
    assert array.dtype == expected.dtype
    np.testing.assert_array_equal(array.numpy().astype(float), expected.astype(float))


@given(key=keys, layout=st.sampled_from(LAYOUTS), dtype=st.sampled_from(list(DTYPES)))
def test_getitem_returns_a_view_of_the_elements(host: Host, key: Any, layout: str, dtype: str) -> None:
    x = ct.asarray(numbers(dtype), layout=layout)
    equal(x[key], np.asarray(numbers(dtype)[key]))
    assert x[key].memory is x.memory


@given(first=keys, data=st.data())
def test_getitem_of_a_view_is_a_view_of_its_elements(host: Host, first: Any, data: st.DataObject) -> None:
    values = np.asarray(numbers()[first])
    second = data.draw(basic_indices(values.shape))
    equal(ct.asarray(numbers())[first][second], np.asarray(values[second]))


@negative_strides
@given(key=keys, layout=st.sampled_from(LAYOUTS), dtype=st.sampled_from(list(DTYPES)))
def test_copy_of_a_view_has_its_elements(fake: FakeCudnn, key: Any, layout: str, dtype: str) -> None:
    copied = ct.asarray(numbers(dtype), layout=layout)[key].copy()
    equal(copied, np.asarray(numbers(dtype)[key]))
    assert copied.spec.dense


@negative_strides
@given(
    key=keys,
    layout=st.sampled_from(LAYOUTS),
    dtypes=st.tuples(*[st.sampled_from([name for name in DTYPES if name != "bool"])] * 2),
)
def test_astype_converts_as_numpy_does(
    fake: FakeCudnn, key: Any, layout: str, dtypes: tuple[str, str]
) -> None:
    before, after = dtypes
    x = ct.asarray(numbers(before), layout=layout)[key]
    equal(x.astype(after), np.asarray(numbers(before)[key]).astype(DTYPES[after].numpy))


@negative_strides
@given(
    key=keys,
    shape=st.sampled_from([(-1,), (2, -1), (-1, 5), (4, 1, -1), (1, -1, 1)]),
    layout=st.sampled_from(LAYOUTS),
)
def test_reshape_reads_the_elements_in_c_order(
    fake: FakeCudnn, key: Any, shape: tuple[int, ...], layout: str
) -> None:
    values = np.asarray(numbers()[key])
    try:
        expected = values.reshape(shape)
    except ValueError:
        with pytest.raises(ValueError, match="shape does not fit"):
            ct.asarray(numbers(), layout=layout)[key].reshape(shape)
        return
    equal(ct.asarray(numbers(), layout=layout)[key].reshape(shape), expected)


@given(axes=st.permutations(range(4)))
def test_transpose_returns_a_view_with_the_axes_in_another_order(host: Host, axes: list[int]) -> None:
    x = ct.asarray(numbers())
    equal(x.transpose(axes), numbers().transpose(axes))
    equal(x.transpose(*axes), numbers().transpose(axes))
    equal(x.T, numbers().T)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("key", [np.s_[:, ::2], np.s_[:, :, 1:, ::2], np.s_[..., 3]])
def test_copy_of_a_view_stays_on_the_device(fake: FakeCudnn, host: Host, dtype: str, key: Any) -> None:
    view = ct.asarray(numbers(dtype))[key]
    host.calls.clear()
    copied = view.copy()
    assert "copy_to_host" not in host.calls
    equal(copied, numbers(dtype)[key])


@pytest.mark.parametrize(
    ("before", "after"), [("float32", "float16"), ("bfloat16", "float32"), ("float16", "bfloat16")]
)
def test_conversions_of_floats_stay_on_the_device(
    fake: FakeCudnn, host: Host, before: str, after: str
) -> None:
    x = ct.asarray(numbers(before))
    host.calls.clear()
    converted, as_array = x[:, 1:3].astype(after), ct.asarray(x, after, layout="nhwc")
    assert "copy_to_host" not in host.calls
    equal(converted, numbers(after)[:, 1:3])
    equal(as_array, numbers(after))
    assert as_array.layout == "nhwc"


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_copy_of_a_view_is_made_in_slices_when_a_stride_exceeds_a_c_int(
    fake: FakeCudnn, host: Host, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    view = ct.asarray(numbers(dtype))[:, 1:]
    for module in (specs, tiling):
        monkeypatch.setattr(module, "INT_MAX", 40)
    host.calls.clear()
    copied = view.copy()
    assert "copy_to_host" not in host.calls
    equal(copied, numbers(dtype)[:, 1:])


def test_astype_returns_the_array_itself_when_no_copy_is_needed(host: Host) -> None:
    x = ct.asarray(numbers())
    assert x.astype("float32", copy=False) is x
    assert x.astype("float32").pointer != x.pointer


def test_reshape_returns_a_view_when_strides_describe_it(fake: FakeCudnn) -> None:
    x = ct.asarray(numbers())
    assert x.reshape(8, 15).pointer == x.pointer
    assert x[:, 1:3].reshape(2, 30).spec.strides == (60, 1)
    assert ct.asarray(numbers(), layout="nhwc").reshape(8, 15).memory is not x.memory


@pytest.mark.parametrize("copy", [lambda x: x.copy(), lambda x: x.reshape(-1)])
def test_copies_of_negative_strides_warn_that_they_go_through_the_host(
    fake: FakeCudnn, copy: Callable[[Any], Any]
) -> None:
    view = ct.asarray(numbers())[:, ::-1]
    with pytest.warns(ct.CudnnWarning, match="copied through host memory"):
        copied = copy(view)
    np.testing.assert_array_equal(copied.numpy().ravel(), numbers()[:, ::-1].ravel())


def test_iteration_yields_a_view_for_each_element_of_the_first_axis(host: Host) -> None:
    x = ct.asarray(numbers())
    assert [view.numpy().tolist() for view in x] == numbers().tolist()
    with pytest.raises(TypeError, match="without axes"):
        iter(ct.asarray(1.0))
    with pytest.raises(TypeError):
        _ = 3 in x


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


def test_out_may_be_a_view_that_shares_no_element_with_the_operands(fake: FakeCudnn) -> None:
    both = ct.asarray(numbers())
    ct.activation(both[:, :2], mode="identity", out=both[:, 2:])
    np.testing.assert_array_equal(both.numpy()[:, 2:], numbers()[:, :2])
    with pytest.raises(ValueError, match="out overlaps"):
        ct.activation(both[:, :2], mode="identity", out=both[:, 1:3])


# --- order among streams ---


def waits(host: Host, before: int, after: int) -> bool:
    """Return whether a stream waited for an event that was recorded on another one."""
    recorded = {
        event for what, stream, *event in host.log if what == "record" and stream == before for event in event
    }
    return any(
        what == "wait" and stream == after and event[0] in recorded for what, stream, *event in host.log
    )


@pytest.mark.parametrize("written", ["base", "view"])
def test_reads_of_a_view_or_its_array_wait_when_the_other_was_written_on_another_stream(
    fake: FakeCudnn, host: Host, written: str
) -> None:
    base = ct.full((2, 8), 1.0, stream=HOME)
    view = base[:, :4]
    one, other = (base, view) if written == "base" else (view, base)
    host.log.clear()
    ct.fill(one, 2.0, stream=OTHER)
    assert one.writer == other.writer
    kept = ct.activation(other, mode="identity", stream=HOME)
    assert waits(host, OTHER, HOME)
    assert kept.numpy()[0, 0] == 2


@pytest.mark.parametrize("read", ["base", "view"])
def test_writes_wait_for_reads_of_a_view_on_another_stream(fake: FakeCudnn, host: Host, read: str) -> None:
    base = ct.full((2, 8), 1.0, stream=HOME)
    view = base[1:]
    one, other = (base, view) if read == "base" else (view, base)
    host.log.clear()
    kept = ct.activation(one, mode="identity", stream=OTHER)
    other.fill(3, stream=HOME)
    assert waits(host, OTHER, HOME)
    del kept


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
    y = x.packed("nhwc", dtype="int8")
    assert (y.layout, y.numpy().tolist()) == ("nhwc", x.numpy().tolist())
