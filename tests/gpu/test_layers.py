"""Pooling, softmax and activations on a GPU against the reference, and against PyTorch where it is there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from tests.both.tensors import check_gradient_of_elu
from tests.layers import FLOATS, Tensor, compare


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", ["max", "average_exc_pad", "sum"])
def test_pool_equals_reference_at_the_size_of_a_network(mode: str, dtype: str, layout: str) -> None:
    """Large enough for the kernels that real layers get: the first pooling of a ResNet."""
    x = np.random.default_rng(0).integers(-4, 5, (4, 64, 56, 56)).astype(np.float64)
    y = ct.pool(ct.asarray(x, dtype, layout=layout), window=3, stride=2, padding=1, mode=mode)
    assert y.layout == layout
    compare(y, Tensor(y.shape, dtype, ct.reference.pool(x, window=3, stride=2, padding=1, mode=mode)).array())


@pytest.mark.parametrize("propagate", [True, False])
def test_pool_treats_nan_as_the_reference_does(propagate: bool) -> None:
    x = np.arange(32.0, dtype=np.float32).reshape(1, 2, 4, 4)
    x[0, 0, 1, 1], x[0, 1, 2, 2], x[0, 1, 0, 0] = np.nan, np.inf, -np.inf
    y = ct.pool(ct.asarray(x), window=2, propagate_nan=propagate)
    compare(y, ct.reference.pool(x, window=2, propagate_nan=propagate), exact=True)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_pool_of_int8_equals_reference(layout: str) -> None:
    x = np.random.default_rng(0).integers(-128, 128, (2, 32, 8, 8)).astype(np.int8)
    y = ct.pool(ct.asarray(x, layout=layout), window=2)
    compare(y, ct.reference.pool(x, window=2), exact=True)


def test_pool_backward_gives_the_gradient_to_one_of_equal_maxima() -> None:
    """One of equal maxima gets all of it, and with the deterministic mode always the same."""
    x = ct.zeros((2, 3, 8, 8))
    keywords: dict[str, Any] = {"window": 3, "stride": 2, "mode": "max_deterministic"}
    y = ct.pool(x, **keywords)
    dy = ct.full(y.shape, 1.0)
    runs = [ct.pool_backward(dy, x, y, **keywords).numpy() for _ in range(20)]
    assert runs[0].sum() == dy.size
    for run in runs[1:]:
        np.testing.assert_array_equal(run, runs[0])


@pytest.mark.parametrize("batch", [65_535, 65_536, 65_537])
def test_layers_equal_reference_when_the_batch_is_around_65536(batch: int) -> None:
    x = (np.arange(batch * 2 * 4) % 13 - 6).astype(np.float32).reshape(batch, 2, 2, 2)
    placed = ct.asarray(x)
    compare(ct.pool(placed, window=2), x.max(axis=(2, 3), keepdims=True), exact=True)
    compare(ct.softmax(placed), ct.reference.softmax(x))
    compare(ct.activation(placed), np.maximum(x, 0), exact=True)


@pytest.mark.parametrize("shape", [(3, 65_536), (2, 66_000, 3, 3), (70_000, 10), (5, 200_000)])
def test_softmax_equals_reference_over_long_axes(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    y = ct.softmax(ct.asarray(x))
    expected = ct.reference.softmax(x)
    np.testing.assert_allclose(y.numpy(), expected, rtol=2e-5, atol=0)
    dy = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    dx = ct.softmax_backward(ct.asarray(dy), y)
    np.testing.assert_allclose(dx.numpy(), ct.reference.softmax_backward(dy, expected), rtol=0, atol=1e-6)


def test_softmax_of_large_numbers() -> None:
    x = np.array([[1e4, 0, -1e4, 1e4]], np.float32)
    compare(ct.softmax(ct.asarray(x)), np.array([[0.5, 0, 0, 0.5]], np.float32))
    compare(ct.softmax(ct.asarray(x), algo="log"), ct.reference.softmax(x, algo="log"))


def test_activation_equals_reference_when_elements_are_not_finite() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1e-40], np.float32)
    cases = [(mode, 1, True) for mode in ("relu", "clipped_relu", "sigmoid", "elu", "identity")]
    for mode, coefficient, propagate in (*cases, ("elu", 0, True), ("elu", 0, False)):
        keywords = {"mode": mode, "coefficient": coefficient, "propagate_nan": propagate}
        compare(ct.activation(ct.asarray(x), **keywords), ct.reference.activation(x, **keywords))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("coefficient", [0, 0.5, 1, 2])
def test_gradient_of_elu_is_its_slope_when_graphs_compute_it(coefficient: float, dtype: str) -> None:
    check_gradient_of_elu(coefficient, dtype, 2**24)


@pytest.mark.parametrize(
    ("batch", "channels"), [(65_535, 2), (3, 1024), (65_537, 2), (131_071, 1), (3, 1025), (2, 2500)]
)
def test_grid_sample_equals_reference_around_the_limits_of_a_call(batch: int, channels: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (batch, channels, 2, 3)).astype(np.float32)
    grid = rng.uniform(-1.5, 1.5, (batch, 2, 2, 2)).astype(np.float32)
    dy = rng.integers(-4, 5, (batch, channels, 2, 2)).astype(np.float32)
    placed = [ct.asarray(array) for array in (dy, x, grid)]
    compare(ct.grid_sample(*placed[1:]), ct.reference.grid_sample(x, grid), tolerance=1e-5)
    for ours, theirs in zip(
        ct.grid_sample_backward(*placed), ct.reference.grid_sample_backward(dy, x, grid), strict=True
    ):
        compare(ours, theirs, tolerance=1e-4)
    for layout in ("nhwc", "nchw"):  # with alpha and beta
        image, gradient = (ct.transform(array, layout=layout) for array in (placed[1], placed[0]))
        out = ct.full((batch, channels, 2, 2), 2.0, layout=layout)
        expected = 3 * ct.reference.grid_sample(x, grid) - 2
        compare(ct.grid_sample(image, placed[2], alpha=3, beta=-1, out=out), expected, tolerance=1e-5)
        for ours, theirs in zip(
            ct.grid_sample_backward(gradient, image, placed[2]),
            ct.reference.grid_sample_backward(dy, x, grid),
            strict=True,
        ):
            compare(ours, theirs, tolerance=1e-4)
    theta = rng.standard_normal((batch, 2, 3)).astype(np.float32)
    made = ct.affine_grid(ct.asarray(theta), (batch, 2, 3))
    compare(made, ct.reference.affine_grid(theta, (batch, 2, 3)))
    compare(ct.affine_grid_backward(made), ct.reference.affine_grid_backward(made.numpy()), tolerance=1e-5)
