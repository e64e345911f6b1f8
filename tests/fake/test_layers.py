"""Layers end to end on the fakes: the same properties as on a GPU, and what only a fake can show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.cuda import interop
from cudnn_ct.errors import NotSupportedError

from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .test_conv import images


def test_no_channels_have_no_gradient_for_the_grid(fake: FakeCudnn) -> None:
    dx, dgrid = ct.grid_sample_backward(ct.empty((2, 0, 2, 2)), ct.empty((2, 0, 3, 3)), images(2, 2, 2, 2))
    assert dx.shape == (2, 0, 3, 3)
    np.testing.assert_array_equal(dgrid.numpy(), np.zeros((2, 2, 2, 2)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ct.affine_grid(images(2, 2, 2), (2, 3, 4)), r"theta has shape \(2, 2, 2\)"),
        (lambda: ct.affine_grid(images(2, 2, 3), (3, 3, 4)), r"a batch of 3 needs \(3, 2, 3\)"),
        (
            lambda: ct.grid_sample(images(2, 3, 4, 4), images(3, 2, 2, 2)),
            "x and grid differ in batch size: got 2 and 3",
        ),
        (lambda: ct.grid_sample(images(2, 3, 4), images(2, 2, 2, 2)), r"expected \(N, C, H, W\)"),
        (
            lambda: ct.spatial_transformer(images(2, 3, 4, 4), images(2, 2, 3), scale_width=0),
            "scale_width must be more than 0",
        ),
    ],
)
def test_bad_spatial_transformers(fake: FakeCudnn, call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"n": 17}, "n must be between 1 and 16: got 17"),
        ({"k": 0}, "k must be at least 1e-05: got 0"),
        ({"lrn_beta": 0}, "lrn_beta must be at least 0.01: got 0"),
    ],
)
def test_bad_lrn(fake: FakeCudnn, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ct.lrn(images(2, 3, 5, 6), **keywords)
    with pytest.raises(ValueError, match=r"expected \(N, C, \*spatial\)"):
        ct.lrn(images(2, 3))


def test_activation_in_place(fake: FakeCudnn) -> None:
    x, before = images(2, 3, 5), images(2, 3, 5).numpy()
    assert ct.activation(x, out=x) is x
    np.testing.assert_array_equal(x.numpy(), np.maximum(before, 0))
    with pytest.raises(ValueError, match="mode must be one of identity, relu"):
        ct.activation(x, mode="gelu")
    with pytest.raises(ValueError, match=r"dy has shape \(3, 5\)"):
        ct.activation_backward(images(3, 5), x, x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("coefficient", [0, -0.0, 0.5, 1, 2])
def test_gradient_of_elu_is_its_slope_on_both_sides_of_0(
    fake: FakeCudnn, coefficient: float, dtype: str
) -> None:
    x = ct.asarray([-np.inf, -9, -1, -0.25, 0.25, 1, 9, np.inf], dtype)
    y, dy = ct.activation(x, mode="elu", coefficient=coefficient), ct.full(x.shape, 2, dtype)
    dx = ct.activation_backward(dy, x, y, mode="elu", coefficient=coefficient).numpy().astype(float)
    at = x.numpy().astype(float)
    np.testing.assert_allclose(
        dx, 2 * np.where(at > 0, 1, coefficient * np.exp(np.minimum(at, 0))), atol=2e-2
    )


def test_elu_is_relu_at_0_when_its_coef_is_0(fake: FakeCudnn) -> None:
    x, dy = ct.asarray([0.0, -0.0], "float32"), ct.full((2,), 3)
    dx = ct.activation_backward(dy, x, ct.activation(x, mode="elu"), mode="elu").numpy()
    np.testing.assert_array_equal(dx, ct.reference.activation_backward(dy.numpy(), x.numpy(), x.numpy()))


def test_gradient_of_elu_is_rejected_when_its_coef_is_negative(fake: FakeCudnn) -> None:
    x = images(2, 3)
    with pytest.raises(ValueError, match=r"coefficient is negative .*: got -0\.5, expected at least 0"):
        ct.activation_backward(
            x, x, ct.activation(x, mode="elu", coefficient=-0.5), mode="elu", coefficient=-0.5
        )


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"axis": 4}, "axis is out of range: got 4"),
        ({"axis": (0, 2)}, "must name adjacent axes"),
        ({"axis": (1, 1)}, "contains an axis twice"),
        ({"algo": "quick"}, "algo must be one of fast, accurate, log"),
        ({"mode": "pixel"}, "mode must be one of instance, channel"),
    ],
)
def test_bad_softmax(fake: FakeCudnn, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ct.softmax(images(2, 3, 5, 6), **keywords)
    with pytest.raises(ValueError, match=r"dy has shape \(2, 2\); y has \(2, 3\)"):
        ct.softmax_backward(images(2, 2), images(2, 3))


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"window": 9}, ValueError, "window of 9 is larger than spatial axis 0: the input has 5"),
        ({"window": 2, "padding": 2}, ValueError, r"padding \(2, 2\) of spatial axis 0 must be smaller"),
        ({"window": (2, 2, 2)}, ValueError, "has 3 axes; x of shape .* has 2 spatial axes"),
        ({"window": 2, "mode": "median"}, ValueError, "mode must be one of max, max_deterministic"),
        ({"window": 2, "propagate_nan": "often"}, TypeError, "propagate_nan must be True or False"),
        ({"window": "all"}, ValueError, "or 'global': got 'all'"),
        ({"window": 2, "beta": 1}, ValueError, "beta=1 needs out"),
        (
            {"window": 2, "padding": ((0, 1), (0, 0)), "mode": "average_exc_pad"},
            NotSupportedError,
            "(?s)both sides .* alike.*cannot leave the padding out",
        ),
        ({"window": {2}}, TypeError, "is not a valid parameter"),
    ],
)
def test_bad_pooling(fake: FakeCudnn, keywords: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        ct.pool(images(2, 3, 5, 6), **keywords)
    x = images(2, 3, 5, 6)
    with pytest.raises(ValueError, match=r"dy has shape .*gives \(2, 3, 2, 3\)"):
        ct.pool_backward(images(2, 3, 2, 2), x, ct.pool(x, window=2), window=2)
    with pytest.raises(TypeError, match="out is float64; the result is float32"):
        ct.pool(x, window=2, out=images(2, 3, 2, 3, dtype="float64"))
    with pytest.raises(TypeError, match="x must be an array on the device"):
        ct.pool(np.zeros((2, 3, 4, 4)), window=2)


def test_lists_are_as_good_as_tuples(fake: FakeCudnn) -> None:
    x = images(2, 3, 5, 6)
    expected = ct.reference.pool(x.numpy(), window=(2, 3), padding=((1, 1), (0, 0)))
    for padding in ([[1, 1], [0, 0]], ([1, 1], [0, 0]), ([1, 1], (0, 0))):
        y = ct.pool(x, window=[2, 3], padding=padding)
        np.testing.assert_array_equal(y.numpy(), expected)
    with pytest.raises(TypeError, match="is not a valid parameter"):
        ct.pool(x, window=(2, {3}))


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
