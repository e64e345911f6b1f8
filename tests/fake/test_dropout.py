"""Dropout on the fakes."""

from __future__ import annotations

from typing import Any

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


@given(pair=tensors(), probability=st.sampled_from((0.5, 0.0, 0.25)))
def test_dropout(fake: FakeCudnn, host: Host, pair: tuple[Tensor, Tensor], probability: float) -> None:
    check_dropout(*pair, probability, lambda array: ForeignArray(host, array))


def test_dropout_repeats_from_a_seed_and_from_a_saved_state(fake: FakeCudnn) -> None:
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


def test_out_takes_an_operand_and_an_earlier_mask(fake: FakeCudnn) -> None:
    state, x = ct.DropoutState(0.5, seed=1), ct.full((3, 4, 5), 1.0)
    y, mask = ct.dropout(x, state, out=x)
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


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ct.DropoutState(1), ValueError, "probability must be at least 0 and less than 1: got 1"),
        (lambda: ct.DropoutState("half"), TypeError, "probability must be a number"),
        (lambda: ct.DropoutState(0.5, seed=-1), ValueError, r"seed must be between 0 and .*, got -1"),
        (lambda: ct.DropoutState(0.5, seed=1.5), TypeError, "seed must be an int: got 1.5"),
        (lambda: ct.dropout(images(2, 3), 0.5), TypeError, "state must be a ct.DropoutState, not float"),
    ],
)
def test_bad_states(fake: FakeCudnn, make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_masks_belong_to_their_dropout(fake: FakeCudnn) -> None:
    state, other = ct.DropoutState(0.5), ct.DropoutState(0.5)
    _, mask = ct.dropout(images(2, 3), state)
    with pytest.raises(ValueError, match="mask belongs to another state: got a mask of <DropoutState"):
        ct.dropout_backward(images(2, 3), mask, other)
    with pytest.raises(ValueError, match=r"dy does not fit the mask: got float32\[3, 2\]"):
        ct.dropout_backward(images(3, 2), mask, state)
    with pytest.raises(TypeError, match=r"mask must be a ct\.DropoutMask, not DeviceArray"):
        ct.dropout_backward(images(2, 3), images(6), state)
    with ct.use(device=1), pytest.raises(ValueError, match="state is on another device: got 0, expected 1"):
        ct.dropout(images(2, 3), state)


def test_a_state_that_cannot_be_seeded_leaves_nothing(fake: FakeCudnn) -> None:
    ct.empty((1,))
    objects = len(fake.objects)
    fake.fail["cudnnSetDropoutDescriptor"] = 4000
    with pytest.raises(ct.InternalError):
        ct.DropoutState(0.5)
    assert len(fake.objects) <= objects + 1  # the thread's handle


def orders(host: Host, before: int, after: int) -> bool:
    """Whether one stream waited for an event that was recorded on another."""
    recorded = [event for what, stream, *event in host.log if what == "record" and stream == before]
    return any(what == "wait" and stream == after and event in recorded for what, stream, *event in host.log)


def restored(state: ct.DropoutState, saved: np.ndarray, stream: int) -> None:
    with ct.use(stream=stream):
        state.restore(saved)


@pytest.mark.parametrize("first", ["dropout", "restore"])
@pytest.mark.parametrize("second", ["dropout", "restore"])
def test_dropout_state_orders_streams_that_change_it(
    fake: FakeCudnn, host: Host, first: str, second: str
) -> None:
    x, state = ct.full((4, 5), 1.0), ct.DropoutState(0.5, seed=1)
    saved = state.save()
    changes = {
        "dropout": lambda stream: ct.dropout(x, state, stream=stream),
        "restore": lambda stream: restored(state, saved, stream),
    }
    kept = changes[first](0x55)
    host.log.clear()
    changes[second](0x66)
    assert orders(host, before=0x55, after=0x66)
    del kept


def test_dropout_waits_for_the_stream_that_seeds_its_state(fake: FakeCudnn, host: Host) -> None:
    state = ct.DropoutState(0.5, seed=1, stream=0x55)
    ct.dropout(ct.full((4, 5), 1.0), state, stream=0x66)
    assert orders(host, before=0x55, after=0x66)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dropout_prepares_another_call_for_another_memory_order(
    fake: FakeCudnn, host: Host, dtype: str
) -> None:
    state, rng = ct.DropoutState(0.5, seed=1), np.random.default_rng(0)
    inputs = [
        ct.asarray(rng.integers(1, 9, shape), own, layout=layout)
        for shape in ((2, 3, 4, 5), (3, 3, 4, 5))
        for own in (dtype, "float64")
        for layout in ("nchw", "nhwc")
    ]
    for x in (*inputs, *inputs):
        outs = [ct.full(x.shape, 7, x.spec.dtype, layout=layout) for layout in ("nchw", "nhwc")]
        for out in (None, *outs):
            y, mask = ct.dropout(x, state, out=out)
            kept = y.numpy() != 0
            np.testing.assert_array_equal(y.numpy(), np.where(kept, 2 * x.numpy(), 0))
            assert 0 < kept.sum() < kept.size
            for dy in [ct.asarray(x.numpy(), layout=layout) for layout in ("nchw", "nhwc")]:
                for dx in outs:
                    ct.dropout_backward(dy, mask, state, out=dx)
                    np.testing.assert_array_equal(dx.numpy(), np.where(kept, 2 * x.numpy(), 0))
