"""CuPy's lost names on arrays of CuPy: convolutions of signals compared with scipy, and other layers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct

from .conftest import library


@pytest.fixture
def cupy() -> Iterator[Any]:
    """CuPy with the names in their old place."""
    cupy = library("cupy")
    library("cupyx")
    from cudnn_ct import cupy as names

    before = ct.config.allow_tf32
    ct.config.allow_tf32 = False
    try:
        names.install()
    except RuntimeError as error:
        pytest.skip(str(error))
    yield cupy
    ct.config.allow_tf32 = before
    for name in ("cupy.cudnn", "cupyx.cudnn", "cupy.cuda.cudnn", "cupy_backends.cuda.libs.cudnn"):
        sys.modules.pop(name, None)


MANNER = {"auto_tune": True, "tensor_core": "auto"}
GEOMETRIES = [  # the image, the filter, the strides, the mode of scipy
    ((7,), (3,), (1,), "full"),
    ((7,), (3,), (2,), "valid"),
    ((9,), (4,), (3,), "full"),
    ((6, 5), (3, 2), (1, 1), "full"),
    ((6, 5), (3, 2), (2, 1), "full"),
    ((6, 5), (3, 2), (1, 2), "valid"),
    ((8, 8), (8, 8), (1, 1), "valid"),
    ((4, 5, 6), (2, 3, 2), (1, 1, 1), "full"),
    ((4, 5, 6), (2, 3, 2), (1, 2, 2), "valid"),
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("channels", [(1, 1), (2, 3)], ids=["one", "several"])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_convolutions_of_signals_equal_scipy(geometry: Any, channels: Any, dtype: str, cupy: Any) -> None:
    """As sigpy calls them: complex numbers in four parts of views, flipped filters, one bias of None."""
    signal = pytest.importorskip("scipy.signal")
    from cupy import cudnn

    image, window, strides, mode = geometry
    inputs, outputs = channels
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        values = rng.standard_normal(shape)
        return (values + 1j * rng.standard_normal(shape) if dtype == "complex64" else values).astype(dtype)

    data, filters = draw(2, inputs, *image), draw(outputs, inputs, *window)
    every = (slice(None), slice(None), *(slice(None, None, step) for step in strides))
    expected = np.array(
        [
            [sum(signal.convolve(one[i], many[i], mode) for i in range(inputs)) for many in filters]
            for one in data
        ]
    )[every]
    flipped = tuple(slice(None, None, -1) for _ in window)
    x, w = cupy.asarray(data), cupy.asarray(filters)[(slice(None), slice(None), *flipped)]
    pads = tuple(n - 1 if mode == "full" else 0 for n in window)
    dilations = (1,) * len(window)

    def parts(call: Any, one: Any, other: Any) -> Any:
        if dtype != "complex64":
            return call(one, other)
        real = call(one.real, other.real) - call(one.imag, other.imag)
        return real + 1j * (call(one.real, other.imag) + call(one.imag, other.real))

    def forward(x: Any, w: Any) -> Any:
        y = cupy.empty(expected.shape, x.dtype)
        cudnn.convolution_forward(x, w, None, y, pads, strides, dilations, 1, **MANNER)
        return y

    def to_image(y: Any, w: Any) -> Any:
        found = cupy.empty(data.shape, y.dtype)
        cudnn.convolution_backward_data(
            w, y, None, found, pads, strides, dilations, 1, deterministic=False, **MANNER
        )
        return found

    def to_filter(y: Any, x: Any) -> Any:
        found = cupy.empty(filters.shape, y.dtype)
        cudnn.convolution_backward_filter(
            x, y, found, pads, strides, dilations, 1, deterministic=False, **MANNER
        )
        return found

    y = parts(forward, x, w).get()
    tolerance = {"rtol": 1e-4, "atol": 1e-4}
    np.testing.assert_allclose(y, expected, **tolerance)
    # The gradients are the adjoints: <y', conv(x, w)> = <x, to_image(y')> = <w, to_filter(y')>.
    other = draw(*expected.shape)
    inner = np.vdot(other, expected)
    image_gradient = parts(to_image, cupy.asarray(other), w.conj()).get()
    filter_gradient = parts(to_filter, cupy.asarray(other), x.conj()).get()
    scale = 1e-3 * max(abs(inner), np.abs(expected).sum() ** 0.5)
    assert abs(np.vdot(image_gradient, data) - inner) < scale, "image"
    assert abs(np.vdot(filter_gradient, w.get()) - inner) < scale, "filter"


def test_convolution_with_a_bias_in_both_layouts(cupy: Any) -> None:
    from cupy import cudnn

    rng = np.random.default_rng(0)
    x, w, b = (rng.integers(-3, 4, shape).astype("float16") for shape in ((2, 8, 6, 5), (16, 8, 3, 3), (16,)))
    expected = ct.reference.conv(x, w, padding=1).astype("float32") + b.reshape(1, -1, 1, 1)
    y = cupy.empty(expected.shape, "float16")
    geometry = ((1, 1), (1, 1), (1, 1), 1)
    cudnn.convolution_forward(cupy.asarray(x), cupy.asarray(w), cupy.asarray(b), y, *geometry, **MANNER)
    np.testing.assert_array_equal(y.get(), expected)
    x, w = (cupy.asarray(np.ascontiguousarray(one.transpose(0, 2, 3, 1))) for one in (x, w))
    y = cupy.empty((2, 6, 5, 16), "float16")
    cudnn.convolution_forward(x, w, cupy.asarray(b), y, *geometry, **MANNER, d_layout=1, w_layout=1)
    np.testing.assert_array_equal(y.get().transpose(0, 3, 1, 2), expected)


def test_layers_equal_the_reference(cupy: Any) -> None:
    from cupy import cudnn
    from cupy.cuda import cudnn as constants

    rng = np.random.default_rng(0)
    x, gy = (rng.standard_normal((2, 3, 6, 6)).astype("float32") for _ in range(2))
    on_gpu, gradient = cupy.asarray(x), cupy.asarray(gy)
    tolerance = {"rtol": 1e-4, "atol": 1e-5}
    y = cudnn.activation_forward(on_gpu, constants.CUDNN_ACTIVATION_TANH)
    assert isinstance(y, cupy.ndarray)
    np.testing.assert_allclose(y.get(), np.tanh(x), **tolerance)
    gx = cudnn.activation_backward(on_gpu, y, gradient, constants.CUDNN_ACTIVATION_TANH)
    np.testing.assert_allclose(gx.get(), gy * (1 - np.tanh(x) ** 2), **tolerance)
    y = cudnn.softmax_forward(on_gpu, 1, constants.CUDNN_SOFTMAX_ACCURATE)
    np.testing.assert_allclose(y.get(), ct.reference.softmax(x, axis=1), **tolerance)
    gx = cudnn.softmax_backward(y, gradient, 1, constants.CUDNN_SOFTMAX_ACCURATE)
    expected = ct.reference.softmax_backward(gy, ct.reference.softmax(x, axis=1), axis=1)
    np.testing.assert_allclose(gx.get(), expected, **tolerance)
    y, sizes = cupy.empty((2, 3, 3, 3), "float32"), ((2, 2), (2, 2), (0, 0))
    assert cudnn.pooling_forward(on_gpu, y, *sizes, constants.CUDNN_POOLING_MAX) is y
    np.testing.assert_array_equal(y.get(), ct.reference.pool(x, window=2))
    dy = gradient[:, :, :3, :3]
    gx = cudnn.pooling_backward(on_gpu, y, dy, *sizes, constants.CUDNN_POOLING_MAX)
    expected = ct.reference.pool_backward(dy.get(), x, y.get(), window=2)
    np.testing.assert_allclose(gx.get(), expected, **tolerance)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("images", [True, False])
def test_batch_normalisation_equals_the_reference(images: bool, dtype: str, cupy: Any) -> None:
    from cupy import cudnn
    from cupy.cuda import cudnn as constants

    rng = np.random.default_rng(0)
    shape, axes = ((4, 3, 6, 6), (0, 2, 3)) if images else ((16, 3), (0,))
    x, gy = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    gamma, beta = (rng.uniform(0.5, 1.5, 3).astype(dtype) for _ in range(2))
    on_gpu = [cupy.asarray(one) for one in (x, gamma, beta)]
    running = [cupy.zeros(3, dtype), cupy.ones(3, dtype)]
    mode = constants.CUDNN_BATCHNORM_SPATIAL
    y, mean, inv_std = cudnn.batch_normalization_forward_training(
        *on_gpu, *running, None, None, 2e-5, 0.9, images, mode, False
    )
    tolerance = {"rtol": 2e-2, "atol": 1e-2} if dtype == "float16" else {"rtol": 1e-3, "atol": 1e-4}
    wide = [one.astype("float32") for one in (x, gamma, beta)]
    expected = ct.reference.batch_norm_training(*wide, epsilon=2e-5)
    np.testing.assert_allclose(y.get(), expected.y, **tolerance)
    np.testing.assert_allclose(mean.get(), wide[0].mean(axes), **tolerance)
    np.testing.assert_allclose(running[0].get(), 0.1 * wide[0].mean(axes), **tolerance)
    found = cudnn.batch_normalization_backward(
        on_gpu[0], on_gpu[1], cupy.asarray(gy), mean, inv_std, 2e-5, images, mode, False
    )
    gradients = ct.reference.batch_norm_backward(gy.astype("float32"), wide[0], wide[1], epsilon=2e-5)
    for name, one, other in zip(("gx", "ggamma", "gbeta"), found, gradients, strict=False):
        assert one.dtype == dtype, name
        np.testing.assert_allclose(one.get(), other, rtol=5e-2, atol=5e-2, err_msg=name)
