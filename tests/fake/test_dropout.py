"""Dropout on the fakes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudnn_ct as ct
from tests.dropout_properties import check_dropout, tensors
from tests.layers import Tensor

from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .test_conv import images

pytestmark = pytest.mark.usefixtures("fake")


@given(pair=tensors(), probability=st.sampled_from((0.5, 0.0, 0.25)))
def test_dropout_scales_kept_elements(host: Host, pair: tuple[Tensor, Tensor], probability: float) -> None:
    check_dropout(*pair, probability, lambda array: ForeignArray(host, array))


def test_dropout_repeats_from_a_seed_and_from_a_saved_state() -> None:
    x = ct.full((4, 50), 1.0)
    one, two, other = ct.DropoutState(0.5, seed=1), ct.DropoutState(0.5, seed=1), ct.DropoutState(0.5, seed=2)
    first, saved = ct.dropout(x, one).y.numpy(), one.save()
    second = ct.dropout(x, one).y.numpy()
    np.testing.assert_array_equal(ct.dropout(x, two).y.numpy(), first)
    assert (second != first).any()
    assert (ct.dropout(x, other).y.numpy() != first).any()
    one.restore(saved)
    np.testing.assert_array_equal(ct.dropout(x, one).y.numpy(), second)
    one.restore(saved.tolist())
    np.testing.assert_array_equal(ct.dropout(x, one).y.numpy(), second)
    with pytest.raises(ValueError, match=r"saved does not fit: got 3 bytes, expected 64"):
        one.restore([1, 2, 3])


def test_out_takes_an_operand_and_an_earlier_mask() -> None:
    state, x = ct.DropoutState(0.5, seed=1), ct.full((3, 4, 5), 1.0)
    y, mask = ct.dropout(x, state, out=x)
    assert ct.dropout(ct.zeros((3, 8))[:, ::2], state).mask.like == ct.TensorSpec.packed((3, 4))
    assert y is x
    out = ct.full((3, 4, 5), np.nan)
    assert ct.dropout_backward(ct.full((3, 4, 5), 1.0), mask, state, out=out) is out
    np.testing.assert_array_equal(out.numpy(), x.numpy())
    assert set(np.unique(x.numpy())) <= {0.0, 2.0}
    y, again = ct.dropout(ct.full((3, 4, 5), 1.0), state, out=(out, mask))
    assert y is out
    assert again.bits is mask.bits
    np.testing.assert_array_equal(
        ct.dropout_backward(ct.full((3, 4, 5), 1.0), mask, state).numpy(), y.numpy()
    )
    assert ct.dropout(x, state, out=(None, None)).mask.bits is not mask.bits
    with pytest.raises(ValueError, match="mask of out does not fit: got 60 bytes, expected 6"):
        ct.dropout(images(2, 3), state, out=(None, mask))
    with pytest.raises(ValueError, match="mask belongs to another state"):
        ct.dropout(x, ct.DropoutState(0.5), out=(None, mask))


def test_a_state_that_cannot_be_seeded_leaves_nothing(fake: FakeCudnn) -> None:
    ct.empty((1,))
    objects = len(fake.objects)
    fake.fail["cudnnSetDropoutDescriptor"] = 4000
    with pytest.raises(ct.InternalError):
        ct.DropoutState(0.5)
    assert len(fake.objects) <= objects + 1  # the thread's handle


@pytest.mark.parametrize("first", ["dropout", "restore"])
@pytest.mark.parametrize("second", ["dropout", "restore"])
def test_dropout_state_orders_streams_that_change_it(host: Host, first: str, second: str) -> None:
    x, state = ct.full((4, 5), 1.0), ct.DropoutState(0.5, seed=1)
    saved = state.save()
    changes = {"dropout": lambda: ct.dropout(x, state), "restore": lambda: state.restore(saved)}
    with ct.use(stream=0x55):
        kept = changes[first]()
    host.log.clear()
    with ct.use(stream=0x66):
        changes[second]()
    assert host.orders(before=0x55, after=0x66)
    del kept


def test_dropout_waits_for_the_stream_that_seeds_its_state(host: Host) -> None:
    state = ct.DropoutState(0.5, seed=1, stream=0x55)
    ct.dropout(ct.full((4, 5), 1.0), state, stream=0x66)
    assert host.orders(before=0x55, after=0x66)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dropout_prepares_another_call_for_another_memory_order(dtype: str) -> None:
    state, rng = ct.DropoutState(0.5, seed=1), np.random.default_rng(0)
    layouts = "nchw", "nhwc"
    inputs = [
        ct.asarray(rng.integers(1, 9, (3, 3, 4, 5)), own, layout=layout)
        for own in (dtype, "float64")
        for layout in layouts
    ]
    for x in (*inputs, *inputs):
        outs = [ct.full(x.shape, 7, x.spec.dtype, layout=layout) for layout in layouts]
        for out in (None, *outs):
            y, mask = ct.dropout(x, state, out=out)
            kept = y.numpy() != 0
            wanted = np.where(kept, 2 * x.numpy(), 0)
            np.testing.assert_array_equal(y.numpy(), wanted)
            assert 0 < kept.sum() < kept.size
            for layout in layouts:
                for dx in outs:
                    ct.dropout_backward(ct.asarray(x.numpy(), layout=layout), mask, state, out=dx)
                    np.testing.assert_array_equal(dx.numpy(), wanted)
