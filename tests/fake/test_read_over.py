"""Order between streams, keys and copies, where a reading of the sources found them wrong: on the fakes."""

from __future__ import annotations

import copy
import enum
import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context

from .cudnn import FakeCudnn
from .host import ForeignArray, Host

HOME, OTHER = 0x100, 0x200  # streams


def add(x: Any) -> None:
    source = ct.full(x.shape, 3.0, stream=OTHER)
    ct.add(source, source, out=x, stream=OTHER)


@pytest.mark.parametrize("write", [add, lambda x: x.fill(3, stream=OTHER)])
@pytest.mark.parametrize(
    "read", [lambda x: ct.activation(x, mode="identity", stream=HOME), lambda x: x.copy(stream=HOME)]
)
def test_who_writes_waits_for_reads_on_the_home_of_the_array(
    fake: FakeCudnn, host: Host, write: Callable[[Any], None], read: Callable[[Any], Any]
) -> None:
    """Nobody notes these; and the stream that writes is also the one that wrote last."""
    x = ct.full((64,), 1.0, stream=HOME)
    write(x)
    kept = read(x)
    host.log.clear()
    write(x)
    recorded = [event for what, stream, *event in host.log if what == "record" and stream == HOME]
    waited = [event for what, stream, *event in host.log if what == "wait" and stream == OTHER]
    assert recorded, "the work on the home stream was not marked"
    assert recorded[0] in waited
    del kept


def test_a_gradient_goes_to_no_operand_that_it_reads(fake: FakeCudnn, host: Host) -> None:
    rng = np.random.default_rng(0)
    x, dy = (ct.asarray(rng.integers(-3, 4, (4, 3, 2, 2)).astype(np.float32)) for _ in range(2))
    scale, mean, var = (ct.asarray(np.array(v, np.float32)) for v in ([1, 2, 3], [0, 1, 2], [1, 4, 9]))
    with pytest.raises(ValueError, match="out overlaps"):
        ct.batch_norm_inference_backward(x, dy, scale, mean, var, out=x)
    out = ct.full((4, 3, 2, 4), 100.0)
    wide = ct.full((4, 3, 2, 4), 1.0)
    with pytest.raises(ValueError, match="dy"):
        ct.batch_norm_inference_backward(x, wide, scale, mean, var, out=out, beta=1)
    assert (out.numpy() == 100).all(), "what the gradient is added to has changed"


class Box:
    """A number that changes, as a tensor of another library may."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __index__(self) -> int:
        return self.n


class Mode(enum.IntEnum):
    """Names of cuDNN's modes with numbers of its own."""

    CROSS_CORRELATION = 0
    CONVOLUTION = 1


def test_a_parameter_counts_as_it_is_at_the_call(fake: FakeCudnn) -> None:
    x, w = ct.full((1, 2, 4, 4), 1.0), ct.full((1, 2, 3, 3), 1.0)
    box = Box(0)
    assert ct.conv(x, w, padding=box).shape == (1, 1, 2, 2)
    box.n = 1
    assert ct.conv(x, w, padding=box).shape == (1, 1, 4, 4)
    assert ct.conv(x, w, padding=(box, 0)).shape == (1, 1, 4, 2)
    assert ct.conv_bias_activation(x, w, None, padding=box).shape == (1, 1, 4, 4)
    box.n = 2
    assert ct.conv_bias_activation(x, w, None, padding=box).shape == (1, 1, 6, 6)
    assert ct.pool(x, window=(box, box)).shape == (1, 2, 2, 2)
    box.n = 4
    assert ct.pool(x, window=(box, box)).shape == (1, 2, 1, 1)


def test_an_enum_is_told_by_its_name(fake: FakeCudnn) -> None:
    from cudnn_ct._bindings.enums import ConvolutionMode

    x = ct.asarray(np.array([[[1, 2, 4]]], np.float32))
    w = ct.asarray(np.array([[[1, -1]]], np.float32))
    flipped = ct.conv(x, w, mode=ConvolutionMode.CONVOLUTION).numpy()
    assert (ct.conv(x, w, mode=Mode.CROSS_CORRELATION).numpy() == -flipped).all()
    assert (ct.conv(x, w, mode=Mode.CONVOLUTION).numpy() == flipped).all()
    with pytest.raises(ValueError, match="mode"):
        ct.conv(x, w, mode=0)


def test_copies_of_networks_keep_nothing_when_they_are_gone(fake: FakeCudnn) -> None:
    network = ct.RNN("rnn_tanh", 4, 4)
    x, weights = ct.full((3, 2, 4), 1.0), ct.full((network.weight_size,), 0.5)
    expected = network.forward(x, weights)[0].numpy()
    (here,) = context._thread.contexts.values()
    before = len(here.plans)
    for way in (copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
        again = way(network)
        assert (again.forward(x, weights)[0].numpy() == expected).all()
        assert len(here.plans) == before + 1
        del again
        gc.collect()
        assert len(here.plans) == before


def test_a_plan_is_shared_and_not_copied(fake: FakeCudnn) -> None:
    plan = ct.conv_plan(ct.full((1, 2, 4, 4), 1.0), ct.full((1, 2, 3, 3), 1.0))
    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="prepare another one"):
            way(plan)


def test_the_other_byte_order_is_refused(fake: FakeCudnn, host: Host) -> None:
    with pytest.raises(TypeError, match="other byte order"):
        ct.activation(ForeignArray(host, np.array([[1, 2, 3]], ">f4")), mode="identity")


@pytest.mark.filterwarnings("ignore::cudnn_ct.CudnnWarning")
def test_a_copy_of_a_view_with_gaps_keeps_its_order(fake: FakeCudnn, host: Host) -> None:
    images = np.arange(2 * 4 * 5 * 8, dtype=np.float32).reshape(2, 4, 5, 8)
    view = ct.asarray(ForeignArray(host, images.transpose(0, 3, 1, 2)[:, :6]))
    copied = view.copy()
    assert copied.layout == "nhwc"
    assert (copied.numpy() == view.numpy()).all()
