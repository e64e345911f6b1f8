"""Layers end to end on the fakes: the same properties as on a GPU, and what only a fake can show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.cuda import interop

from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .test_conv import images


def test_grid_sample_backward_of_no_channels_has_a_zero_gradient(fake: FakeCudnn) -> None:
    dx, dgrid = ct.grid_sample_backward(ct.empty((2, 0, 2, 2)), ct.empty((2, 0, 3, 3)), images(2, 2, 2, 2))
    assert dx.shape == (2, 0, 3, 3)
    np.testing.assert_array_equal(dgrid.numpy(), np.zeros((2, 2, 2, 2)))


def test_elu_is_relu_at_0_when_its_coef_is_0(fake: FakeCudnn) -> None:
    x, dy = ct.asarray([0.0, -0.0], "float32"), ct.full((2,), 3)
    dx = ct.activation_backward(dy, x, ct.activation(x, mode="elu"), mode="elu").numpy()
    np.testing.assert_array_equal(dx, ct.reference.activation_backward(dy.numpy(), x.numpy(), x.numpy()))


# --- the layout of a result ---


def test_spatial_transformer_takes_an_array_without_shape(
    fake: FakeCudnn, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numba's own arrays have a shape; others have only ``__cuda_array_interface__``."""

    class ProtocolOnly:
        def __init__(self, array: ForeignArray) -> None:
            self.array = array
            self.__cuda_array_interface__ = {"shape": array.shape}

    def unwrapped(obj: Any, stream: Any) -> Any:
        return host.import_array(getattr(obj, "array", obj), stream)

    monkeypatch.setattr(interop, "import_array", unwrapped)
    x, theta = np.arange(60.0).reshape(1, 2, 5, 6), np.array([[[0.9, 0.1, 0], [-0.1, 0.8, 0.1]]])
    y = ct.spatial_transformer(ProtocolOnly(ForeignArray(host, x)), ct.asarray(theta))
    np.testing.assert_allclose(y.numpy(), ct.reference.spatial_transformer(x, theta), rtol=0, atol=1e-12)
