"""Spatial transformers against loops over pixels, against torch where it is, and their gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cudnn_ct import reference
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.shapes.checks import FLOATS
from cudnn_ct.shapes.spatial import transformed_shape
from tests.gradients import assert_gradient

SAME = np.array([[[1.0, 0, 0], [0, 1, 0]]])


@dataclass(frozen=True)
class Case:
    """Images, and places in them and around them, some far away."""

    shape: tuple[int, int, int, int]
    size: tuple[int, int]
    seed: int

    @property
    def y_shape(self) -> tuple[int, ...]:
        return (*self.shape[:2], *self.size)

    @property
    def x(self) -> np.ndarray:
        return np.random.default_rng(self.seed).standard_normal(self.shape)

    @property
    def dy(self) -> np.ndarray:
        return np.random.default_rng(self.seed + 1).standard_normal(self.y_shape)

    @property
    def grid(self) -> np.ndarray:
        rng = np.random.default_rng(self.seed + 2)
        places = rng.uniform(-1.5, 1.5, (self.shape[0], *self.size, 2))
        return np.where(rng.random(places.shape) < 0.1, 5 * places, places)

    @property
    def theta(self) -> np.ndarray:
        rng = np.random.default_rng(self.seed + 3)
        return SAME + rng.uniform(-0.4, 0.4, (self.shape[0], 2, 3))


cases = st.builds(
    Case,
    shape=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)),
    size=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    seed=st.integers(0, 99),
)


def no_bend(grid: np.ndarray, shape: tuple[int, ...]) -> bool:
    """Whether all places are so far from the centres of pixels that differences do not reach over them."""
    places = (grid + 1) / 2 * (np.array([shape[3], shape[2]]) - 1)
    moves = np.array([shape[3] > 1, shape[2] > 1])
    return bool((np.abs(places - np.round(places)) > 1e-3)[..., moves].all())


# --- grids -------------------------------------------------------------------------------------------------


@given(case=cases, dtype=st.sampled_from(FLOATS), channels=st.booleans())
def test_a_pixel_of_the_grid_at_a_time(case: Case, dtype: str, channels: bool) -> None:
    theta = case.theta.astype(as_dtype(dtype).numpy)
    shape = (case.shape[0], *([3] if channels else []), *case.size)
    grid = reference.affine_grid(theta, shape)
    assert grid.dtype == theta.dtype
    assert grid.shape == (case.shape[0], *case.size, 2)
    for n, h, w in np.ndindex(grid.shape[:3]):
        for i in range(2):
            a, b, c = (float(v) for v in theta[n, i])
            expected = a * coordinate(w, case.size[1]) + b * coordinate(h, case.size[0]) + c
            got = float(grid[n, h, w, i])
            tolerance = 1e-13 if dtype == "float64" else 8e-3
            np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@given(case=cases)
def test_gradient_of_a_grid_by_differences(case: Case) -> None:
    dgrid = np.random.default_rng(case.seed).standard_normal((case.shape[0], *case.size, 2))
    dtheta = reference.affine_grid_backward(dgrid)
    assert_gradient(dtheta, lambda v: reference.affine_grid(v, case.y_shape), case.theta, dgrid)


def test_a_single_pixel_is_the_first() -> None:
    """As cuDNN has it; other libraries put it in the middle."""
    theta = np.array([[[2.0, 3, 5], [7, 11, 13]]])
    assert reference.affine_grid(theta, (1, 1, 1)).tolist() == [[[[5 - 2 - 3, 13 - 7 - 11]]]]


# --- sampling ----------------------------------------------------------------------------------------------


@given(case=cases)
def test_a_place_at_a_time(case: Case) -> None:
    y = reference.grid_sample(case.x, case.grid)
    np.testing.assert_allclose(y, expected_sample(case.x, case.grid), rtol=0, atol=1e-12)


@given(case=cases, dtype=st.sampled_from(FLOATS))
def test_narrow_dtypes_are_rounded_at_the_end(case: Case, dtype: str) -> None:
    numpy_dtype = as_dtype(dtype).numpy
    x, grid = case.x.astype(numpy_dtype), case.grid.astype(numpy_dtype)
    out = case.dy.astype(numpy_dtype)
    expected = 2 * expected_sample(x.astype(float), grid.astype(float)) - out.astype(float)
    y = reference.grid_sample(x, grid, alpha=2, beta=-1, out=out)
    assert y is out
    np.testing.assert_allclose(y.astype(float), expected, rtol=8e-3, atol=1e-3)


@given(case=cases)
def test_gradients_of_sampling_by_differences(case: Case) -> None:
    assume(no_bend(case.grid, case.shape))
    dx, dgrid = reference.grid_sample_backward(case.dy, case.x, case.grid)
    assert_gradient(dx, lambda v: reference.grid_sample(v, case.grid), case.x, case.dy)
    assert_gradient(dgrid, lambda v: reference.grid_sample(case.x, v), case.grid, case.dy)


@given(case=cases, scales=st.tuples(st.sampled_from((1, 0.5, 1.7)), st.sampled_from((1, 0.5, 1.7))))
def test_a_transformer_samples_by_an_affine_grid(case: Case, scales: tuple[float, float]) -> None:
    options = dict(zip(("scale_height", "scale_width"), scales, strict=True))
    y = reference.spatial_transformer(case.x, case.theta, **options)
    height, width = (math.ceil(n * scale) for n, scale in zip(case.shape[2:], scales, strict=True))
    assert y.shape == transformed_shape(case.shape, **options) == (*case.shape[:2], height, width)
    grid = reference.affine_grid(case.theta, y.shape)
    np.testing.assert_array_equal(y, reference.grid_sample(case.x, grid))

    dy = np.random.default_rng(case.seed).standard_normal(y.shape)
    dx, dtheta = reference.spatial_transformer_backward(dy, case.x, case.theta, **options)
    by_parts = reference.grid_sample_backward(dy, case.x, grid)
    np.testing.assert_array_equal(dx, by_parts.dx)
    np.testing.assert_array_equal(dtheta, reference.affine_grid_backward(by_parts.dgrid))


@given(case=cases)
def test_gradients_of_a_transformer_by_differences(case: Case) -> None:
    grid = reference.affine_grid(case.theta, case.shape)
    assume(no_bend(grid, case.shape))
    dy = np.random.default_rng(case.seed).standard_normal(case.shape)
    dx, dtheta = reference.spatial_transformer_backward(dy, case.x, case.theta)
    assert_gradient(dx, lambda v: reference.spatial_transformer(v, case.theta), case.x, dy)
    assert_gradient(dtheta, lambda v: reference.spatial_transformer(case.x, v), case.theta, dy)


@given(case=cases)
def test_against_torch(case: Case) -> None:
    torch = pytest.importorskip("torch")
    assume(min(case.size) > 1)  # which torch puts in the middle
    f = torch.nn.functional
    x, theta = (torch.from_numpy(a).requires_grad_() for a in (case.x, case.theta))
    grid = f.affine_grid(theta, case.y_shape, align_corners=True)
    ours = reference.affine_grid(case.theta, case.y_shape)
    np.testing.assert_allclose(ours, grid.detach().numpy(), rtol=0, atol=1e-13)
    places = torch.from_numpy(case.grid).requires_grad_()
    y = f.grid_sample(x, places, mode="bilinear", padding_mode="zeros", align_corners=True)
    np.testing.assert_allclose(reference.grid_sample(case.x, case.grid), y.detach().numpy(), atol=1e-12)
    y.backward(torch.from_numpy(case.dy))
    dx, dgrid = reference.grid_sample_backward(case.dy, case.x, case.grid)
    np.testing.assert_allclose(dx, x.grad.numpy(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(dgrid, places.grad.numpy(), rtol=0, atol=1e-12)
    dgrid = np.random.default_rng(case.seed).standard_normal(ours.shape)
    grid.backward(torch.from_numpy(dgrid))
    np.testing.assert_allclose(reference.affine_grid_backward(dgrid), theta.grad.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (4, 1), (3, 7)])
def test_the_identity_changes_nothing(size: tuple[int, int]) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, *size))
    np.testing.assert_allclose(reference.spatial_transformer(x, SAME), x, rtol=1e-12)
    dx = reference.spatial_transformer_backward(x, x, SAME).dx
    np.testing.assert_allclose(dx, x, rtol=1e-12)


def test_outside_is_zero_whatever_is_inside() -> None:
    x = np.full((1, 1, 2, 2), np.nan)
    grid = np.array([[[[3.0, 0], [-3.1, 0], [0, 1e30], [np.inf, 0], [np.nan, 0], [0, -np.inf]]]])
    assert not reference.grid_sample(x, grid).any()
    dy = np.full((1, 1, 1, 6), np.inf)
    dx, dgrid = reference.grid_sample_backward(dy, x, grid)
    assert not dx.any()
    assert not dgrid.any()
    half_out = np.array([[[[1.0 + 1, 1.0]]]])
    value = reference.grid_sample(np.full((1, 1, 2, 2), 8.0), half_out)
    assert value.item() == 4


def test_gradients_scale_and_add() -> None:
    x, grid, dy = np.ones((1, 1, 2, 2)), np.zeros((1, 1, 1, 2)), np.full((1, 1, 1, 1), 4.0)
    out = np.ones((1, 1, 2, 2))
    gradients = reference.grid_sample_backward(dy, x, grid, alpha=3, beta=2, out=out)
    assert gradients.dx is out
    np.testing.assert_array_equal(out, np.full((1, 1, 2, 2), 5.0))


def test_nothing_in_nothing_out() -> None:
    x, theta = np.ones((0, 3, 4, 4), np.float32), np.ones((0, 2, 3), np.float32)
    grid = reference.affine_grid(theta, x.shape)
    assert grid.shape == (0, 4, 4, 2)
    assert reference.affine_grid_backward(grid).shape == theta.shape
    y = reference.grid_sample(x, grid)
    assert y.shape == x.shape
    assert [g.shape for g in reference.grid_sample_backward(y, x, grid)] == [x.shape, grid.shape]
    assert reference.spatial_transformer(x, theta).shape == x.shape
    no_channels = np.ones((2, 0, 4, 4))
    dx, dtheta = reference.spatial_transformer_backward(no_channels, no_channels, np.ones((2, 2, 3)))
    assert dx.shape == no_channels.shape
    assert not dtheta.any()


def wrong(operation: str, *arguments: Any, **options: Any) -> Any:
    return lambda: getattr(reference, operation)(*arguments, **options)


X, GRID, THETA = np.ones((2, 3, 4, 5)), np.ones((2, 6, 7, 2)), np.ones((2, 2, 3))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (wrong("affine_grid", THETA, (3, 4, 4)), ValueError, r"theta has shape \(2, 2, 3\); a batch of 3"),
        (wrong("affine_grid", THETA[0], (2, 4, 4)), ValueError, r"theta has shape \(2, 3\)"),
        (wrong("affine_grid", THETA, (2, 4)), ValueError, r"shape \(2, 4\): expected \(N, C, H, W\)"),
        (wrong("affine_grid", THETA, (2, 0, 4)), ValueError, "H and W of at least 1"),
        (wrong("affine_grid", THETA.astype(int), (2, 4, 4)), TypeError, "affine_grid takes .* not int64"),
        (wrong("affine_grid_backward", THETA), ValueError, r"dgrid has shape \(2, 2, 3\)"),
        (wrong("grid_sample", X, GRID[..., :1]), ValueError, r"grid has shape \(2, 6, 7, 1\)"),
        (wrong("grid_sample", X, GRID[:1]), ValueError, "x and grid differ in batch size: got 2 and 1"),
        (wrong("grid_sample", X[0], GRID), ValueError, r"x has shape \(3, 4, 5\); expected \(N, C, H, W\)"),
        (wrong("grid_sample", X[:, :, :0], GRID), ValueError, r"x has shape \(2, 3, 0, 5\)"),
        (wrong("grid_sample", X, GRID.astype(np.float32)), TypeError, "x is float64 and grid is float32"),
        (wrong("grid_sample", X, GRID, beta=1), ValueError, "beta=1 needs out"),
        (wrong("grid_sample_backward", X, X, GRID), ValueError, r"dy has shape .* y has \(2, 3, 6, 7\)"),
        (wrong("spatial_transformer", X, THETA[:1]), ValueError, "a batch of 2 needs"),
        (wrong("spatial_transformer", X, THETA, scale_width=0), ValueError, "scale_width must be more"),
        (wrong("spatial_transformer", X, THETA, scale_height="2"), TypeError, "scale_height must be"),
        (wrong("spatial_transformer", X, THETA.astype(np.float16)), TypeError, "theta is float16"),
        (wrong("spatial_transformer_backward", X, X, THETA, scale_width=2), ValueError, "dy has shape"),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


# --- the independent implementation ------------------------------------------------------------------------


def coordinate(i: int, size: int) -> float:
    return 2 * i / (size - 1) - 1 if size > 1 else -1


def expected_sample(x: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Bilinear as a sum over all pixels, each with the weight of a tent around it."""
    y = np.zeros((*x.shape[:2], *grid.shape[1:3]))
    for n, c, h, w in np.ndindex(y.shape):
        across, down = (
            (g + 1) / 2 * (size - 1) for g, size in zip(grid[n, h, w], x.shape[:1:-1], strict=True)
        )
        y[n, c, h, w] = sum(
            x[n, c, i, j] * max(0, 1 - abs(down - i)) * max(0, 1 - abs(across - j))
            for i, j in np.ndindex(x.shape[2:])
        )
    return y
