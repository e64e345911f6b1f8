"""Layers end to end on the fakes: the same properties as on a GPU, and what only a fake can show."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import cudnn_ct as ct
from cudnn_ct.cuda import interop
from cudnn_ct.errors import NotSupportedError
from cudnn_ct.ops import spatial_legacy
from tests.layers import (
    LayerCase,
    activation_cases,
    check_layer,
    lrn_cases,
    pool_cases,
    softmax_cases,
    spatial_cases,
)

from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .test_conv import images


@given(case=pool_cases() | pool_cases(asymmetric=True))
def test_pooling(fake: FakeCudnn, host: Host, case: LayerCase) -> None:
    check_layer(case, lambda array: ForeignArray(host, array))


@given(case=pool_cases())
def test_pooling_as_of_large_images(
    fake: FakeCudnn, host: Host, monkeypatch: pytest.MonkeyPatch, case: LayerCase
) -> None:
    """Gradients of windows that do not overlap, on copies in C order."""
    monkeypatch.setattr(import_module("cudnn_ct.ops.pooling"), "LARGE", 0)
    check_layer(case, lambda array: ForeignArray(host, array))


@given(case=softmax_cases())
def test_softmax(fake: FakeCudnn, host: Host, case: LayerCase) -> None:
    check_layer(case, lambda array: ForeignArray(host, array))


@given(case=spatial_cases())
def test_spatial_transformers(fake: FakeCudnn, host: Host, case: LayerCase) -> None:
    check_layer(case, lambda array: ForeignArray(host, array))


def test_a_transformer_is_a_grid_and_samples(fake: FakeCudnn) -> None:
    rng = np.random.default_rng(0)
    x, theta = rng.standard_normal((2, 3, 5, 6)), np.array([[[0.9, 0.1, 0], [-0.1, 0.8, 0.1]]] * 2)
    scales = {"scale_height": 0.8, "scale_width": 1.5}
    out = ct.full((2, 3, 4, 9), np.nan, "float64")
    y = ct.spatial_transformer(ct.asarray(x), ct.asarray(theta), **scales, out=out)
    assert y is out
    expected = ct.reference.spatial_transformer(x, theta, **scales)
    np.testing.assert_allclose(y.numpy(), expected, rtol=0, atol=1e-12)
    dy = rng.standard_normal(y.shape)
    out, operands = ct.full(x.shape, np.nan, "float64"), (ct.asarray(dy), ct.asarray(x), ct.asarray(theta))
    got = ct.spatial_transformer_backward(*operands, **scales, out=out)
    assert got.dx is out
    wanted = ct.reference.spatial_transformer_backward(dy, x, theta, **scales)
    for ours, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=0, atol=1e-11)


def test_many_images_and_channels_are_taken_in_pieces(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spatial_legacy, "IMAGES", 2)
    monkeypatch.setattr(spatial_legacy, "CHANNELS", 3)
    rng = np.random.default_rng(0)
    x, grid = rng.standard_normal((5, 7, 3, 4)), rng.uniform(-1.2, 1.2, (5, 2, 3, 2))
    dy = rng.standard_normal((5, 7, 2, 3))
    for layout in ("nchw", "nhwc"):
        placed = ct.asarray(x, layout=layout)
        y = ct.grid_sample(placed, ct.asarray(grid))
        np.testing.assert_allclose(y.numpy(), ct.reference.grid_sample(x, grid), atol=1e-12)
        got = ct.grid_sample_backward(ct.asarray(dy), placed, ct.asarray(grid))
        for ours, theirs in zip(got, ct.reference.grid_sample_backward(dy, x, grid), strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-12)
    theta = rng.standard_normal((5, 2, 3))
    made = ct.affine_grid(ct.asarray(theta), (5, 3, 4))
    np.testing.assert_allclose(made.numpy(), ct.reference.affine_grid(theta, (5, 3, 4)), atol=1e-12)
    back = ct.affine_grid_backward(made).numpy()
    np.testing.assert_allclose(back, ct.reference.affine_grid_backward(made.numpy()), atol=1e-12)


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


@given(case=lrn_cases())
def test_local_response_normalisation(fake: FakeCudnn, host: Host, case: LayerCase) -> None:
    check_layer(case, lambda array: ForeignArray(host, array))


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


@given(case=activation_cases())
def test_activation(fake: FakeCudnn, host: Host, case: LayerCase) -> None:
    check_layer(case, lambda array: ForeignArray(host, array))


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


def test_softmax_in_place(fake: FakeCudnn) -> None:
    x = ct.asarray(np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32))
    expected = ct.reference.softmax(x.numpy())
    assert ct.softmax(x, out=x) is x
    np.testing.assert_allclose(x.numpy(), expected, rtol=1e-6)
    whole = images(2, 5)
    half = ct.DeviceArray(ct.TensorSpec((1, 5), (5, 1), "float32"), whole.pointer + 4, whole, whole.writer)
    with pytest.raises(ValueError, match="out overlaps"):
        ct.softmax(ct.DeviceArray(half.spec, whole.pointer, whole, whole.writer), out=half)


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

# Each takes images x of shape (2, 1, 3, 4) or (2, 3, 1, 1) and returns results that have a layout.
RESULTS = {
    "conv": lambda x: [ct.conv(x, ct.zeros((4, x.shape[1], 1, 1), x.dtype))],
    "conv_transpose": lambda x: [ct.conv_transpose(x, ct.zeros((x.shape[1], 4, 1, 1), x.dtype))],
    "conv_backward_data": lambda x: [
        ct.conv_backward_data(x, ct.zeros((x.shape[1], 4, 1, 1), x.dtype), (2, 4, *x.shape[2:]))
    ],
    "conv_bias_activation": lambda x: [
        ct.conv_bias_activation(x, ct.zeros((4, x.shape[1], 1, 1), x.dtype), ct.zeros((4,), x.dtype))
    ],
    "pool": lambda x: [ct.pool(x, window=1), ct.pool(x, window="global")],
    "pool_backward": lambda x: [ct.pool_backward(x, x, x, window=1)],
    "activation": lambda x: [ct.activation(x, mode="relu")],
    "activation_backward": lambda x: [ct.activation_backward(x, x, x, mode="tanh")],
    "softmax": lambda x: [ct.softmax(x)],
    "softmax_backward": lambda x: [ct.softmax_backward(x, x)],
    "lrn": lambda x: [ct.lrn(x)],
    "lrn_backward": lambda x: [ct.lrn_backward(x, x, x)],
    "op_tensor": lambda x: [ct.op_tensor(x, x, op="max"), ct.op_tensor(x, op="sqrt"), ct.add(x, x)],
    "transform": lambda x: [ct.transform(x), ct.transform(x, dtype="float32")],
    "reduce": lambda x: [ct.reduce(x, op="max", axis=0, keepdims=True)],
    "grid_sample": lambda x: [ct.grid_sample(x, ct.zeros((2, 3, 4, 2), x.dtype))],
    "batch_norm_training": lambda x: [ct.batch_norm_training(x, *_parameters(x, 2))[0]],
    "batch_norm_inference": lambda x: [ct.batch_norm_inference(x, *_parameters(x, 4))],
    "batch_norm_backward": lambda x: [ct.batch_norm_backward(x, x, *_parameters(x, 1))[0]],
    "dropout": lambda x: _dropped(x),
    "copy": lambda x: [ct.asarray(x).copy()],
}


def _parameters(x: ForeignArray, count: int) -> list[ct.DeviceArray]:
    return [ct.full((1, x.shape[1], 1, 1), 1, "float32") for _ in range(count)]


def _dropped(x: ForeignArray) -> list[ct.DeviceArray]:
    state = ct.DropoutState(0.5, seed=1)
    y, mask = ct.dropout(x, state)
    return [y, ct.dropout_backward(x, mask, state)]


def _placed(host: Host, shape: tuple[int, ...], layout: str, dtype: str = "float32") -> ForeignArray:
    """Images whose strides are exactly those of a layout, also where axes have the length 1."""
    values = np.zeros(shape, dtype)
    if layout == "nhwc":
        values = np.moveaxis(np.zeros((shape[0], *shape[2:], shape[1]), dtype), -1, 1)
    return ForeignArray(host, values)


@pytest.mark.parametrize("operation", RESULTS)
@pytest.mark.parametrize("shape", [(2, 1, 3, 4), (2, 3, 1, 1), (2, 3, 3, 4)])
@pytest.mark.parametrize(("dtype", "layout"), [("float16", "nchw"), ("float32", "nhwc")])
def test_result_has_strides_of_layout_of_operand(
    fake: FakeCudnn, host: Host, operation: str, shape: tuple[int, ...], layout: str, dtype: str
) -> None:
    for result in RESULTS[operation](_placed(host, shape, layout, dtype)):
        assert result.spec == ct.TensorSpec.packed(result.shape, result.dtype, layout)
        assert result.layout == (layout if max(result.shape[1:]) > 1 else "nchw")


def _undecided(host: Host, shape: tuple[int, ...], dtype: str) -> ForeignArray:
    """Images with one channel, whose stride matches no layout."""
    array = _placed(host, shape, "nchw", dtype)
    steps = list(array.byte_strides)
    steps[1] = 7 * array.dtype.itemsize
    array.byte_strides = tuple(steps)
    return array


@pytest.mark.parametrize(("dtype", "layout"), [("float16", "nhwc"), ("float32", "nchw"), ("float64", "nchw")])
def test_result_has_fast_layout_of_dtype_when_strides_decide_nothing(
    fake: FakeCudnn, host: Host, dtype: str, layout: str
) -> None:
    x = _undecided(host, (2, 1, 3, 4), dtype)
    w = ForeignArray(host, np.zeros((4, 1, 1, 1), dtype))  # packed in both layouts
    w.byte_strides = (w.dtype.itemsize,) * 4
    for result in (ct.activation(x, mode="relu"), ct.pool(x, window=2), ct.conv(x, w)):
        assert result.spec == ct.TensorSpec.packed(result.shape, dtype, layout)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_result_has_layout_of_other_operand_when_strides_of_first_decide_nothing(
    fake: FakeCudnn, host: Host, layout: str, dtype: str
) -> None:
    x, other = _undecided(host, (2, 1, 3, 4), dtype), _placed(host, (2, 1, 3, 4), layout, dtype)
    w = ct.zeros((4, 1, 2, 2), dtype, layout=layout)
    results = ct.conv(x, w), ct.add(x, other), ct.activation_backward(other, x, x, mode="relu")
    for result in (*results, ct.softmax_backward(other, x)):
        assert result.spec == ct.TensorSpec.packed(result.shape, dtype, layout)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_layout_lasts_through_operations_on_one_channel_and_one_pixel(
    fake: FakeCudnn, host: Host, layout: str
) -> None:
    x = _placed(host, (2, 1, 6, 6), layout)
    w = ct.zeros((4, 1, 3, 3), layout=layout)
    y = ct.conv(ct.activation(ct.pool(x, window=1), mode="relu"), w)
    assert y.spec == ct.TensorSpec.packed((2, 4, 4, 4), "float32", layout)
    pixels = ct.softmax(ct.pool(y, window="global"))
    back = ct.conv_transpose(pixels, ct.zeros((4, 3, 2, 2), layout=layout))
    assert back.spec == ct.TensorSpec.packed((2, 3, 2, 2), "float32", layout)


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
