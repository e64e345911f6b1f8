"""Spatial transformers of the reference: borders, empty operands and errors; loops are in tests/oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudnn_ct import reference

# --- grids -------------------------------------------------------------------------------------------------


# --- sampling ----------------------------------------------------------------------------------------------


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
def test_spatial_transformer_rejects_bad_arguments(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


# --- the independent implementation ------------------------------------------------------------------------
