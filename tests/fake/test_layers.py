"""Layers end to end on the fakes: the same properties as on a GPU, and what only a fake can show."""

from __future__ import annotations

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError

from .cudnn import FakeCudnn
from .test_conv import images


def test_grid_sample_backward_of_no_channels_has_a_zero_gradient(fake: FakeCudnn) -> None:
    dx, dgrid = ct.grid_sample_backward(ct.empty((2, 0, 2, 2)), ct.empty((2, 0, 3, 3)), images(2, 2, 2, 2))
    assert dx.shape == (2, 0, 3, 3)
    np.testing.assert_array_equal(dgrid.numpy(), np.zeros((2, 2, 2, 2)))


def test_elu_is_relu_at_0_when_its_coef_is_0(fake: FakeCudnn) -> None:
    x, dy = ct.asarray([0.0, -0.0], "float32"), ct.full((2,), 3)
    dx = ct.activation_backward(dy, x, ct.activation(x, mode="elu"), mode="elu").numpy()
    np.testing.assert_array_equal(dx, ct.reference.activation_backward(dy.numpy(), x.numpy(), x.numpy()))


@pytest.mark.parametrize("shape", [(65_536, 1, 1, 1), (1, 1025, 1, 1)])
def test_grid_sample_rejects_more_images_or_channels_than_a_call_takes(
    fake: FakeCudnn, shape: tuple[int, ...]
) -> None:
    x, grid = ct.zeros(shape), ct.zeros((shape[0], 1, 1, 2))
    for call in (lambda: ct.grid_sample(x, grid), lambda: ct.grid_sample_backward(x, x, grid)):
        with pytest.raises(NotSupportedError, match=r"at most 65,535 images of 1,024 channels: got"):
            call()
