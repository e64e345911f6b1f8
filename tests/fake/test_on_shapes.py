"""Arrays without memory on a machine with a GPU: no kernel gets their address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.errors import NotInitializedError

from .cudnn import FakeCudnn

SHAPE = (1, 1, 4, 4)
USES: dict[str, Callable[[Any, Any], object]] = {
    "first operand": lambda x, real: ct.add(x, real),
    "second operand": lambda x, real: ct.add(real, x),
    "numpy": lambda x, _: x.numpy(),
    "out": lambda x, real: ct.add(real, real, out=x),
    "in place": lambda x, _: ct.scale(x, alpha=2),
    "view": lambda x, real: ct.add(real, x[:, :, ::-1]),
    "capture": lambda x, _: ct.capture(lambda y: ct.add(y, y))(x),
    "capture by pointer": lambda x, _: ct.capture(lambda y: ct.add(y, y), operands="pointer")(x),
    "outside of a capture": lambda x, real: ct.capture(lambda y: ct.add(y, x))(real),
    "plan": lambda x, real: ct.conv_plan(real, real)(x, real),
    "algorithms": lambda x, _: ct.conv_algorithms(x, x),
    "export": lambda x, _: x.__dlpack__(),
}


@pytest.mark.filterwarnings("ignore:.*runs without a CUDA graph")
@pytest.mark.parametrize("use", USES)
def test_array_made_on_shapes_is_rejected_after_the_block(fake: FakeCudnn, use: str) -> None:
    """A kernel that read the address that stands for its memory would end the CUDA context."""
    real = ct.full(SHAPE, 2)
    with ct.record_plans(shapes_only=True):
        x = ct.zeros(SHAPE)
    with pytest.raises(NotInitializedError, match=r"of shape \(1, 1, 4, 4\) has no memory: it was made"):
        USES[use](x, real)
    assert not hasattr(x, "__cuda_array_interface__")


def test_calls_with_an_array_made_on_shapes_return_shapes(fake: FakeCudnn) -> None:
    real = ct.full(SHAPE, 2)
    with ct.record_plans(shapes_only=True):
        x = ct.zeros(SHAPE)
        for made in (ct.add(x, real), ct.add(real, x), ct.batch_norm_training(x, *[real[0, 0, 0, :1]] * 2).y):
            assert made.shape == SHAPE
            assert not made.numpy().any()
        np.testing.assert_array_equal(ct.add(real, real).numpy(), np.full(SHAPE, 4))


def test_views_of_views_made_on_shapes_are_aligned_as_views_of_memory(fake: FakeCudnn) -> None:
    real = ct.zeros((2, 8))
    with ct.record_plans(shapes_only=True):
        x = ct.zeros((2, 8))
    for key in (np.s_[:, :], np.s_[:, 1:], np.s_[:, 3:]):
        assert x[:, 1:][key].key.aligned == real[:, 1:][key].key.aligned


def test_dropout_cannot_run_on_shapes(fake: FakeCudnn) -> None:
    state = ct.DropoutState(0.5)
    with (
        pytest.raises(NotInitializedError, match=r"^dropout needs a GPU and cannot run on shapes"),
        ct.record_plans(shapes_only=True),
    ):
        ct.dropout(ct.zeros(SHAPE), state)
