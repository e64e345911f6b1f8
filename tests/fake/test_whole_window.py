"""Convolutions whose window is the whole image are computed as windows of one pixel, on the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import algo_cache
from cudnn_ct.ops.conv.whole_window import with_small_window
from cudnn_ct.shapes.conv import conv_problem
from cudnn_ct.shapes.specs import TensorSpec

from .cudnn import FakeCudnn

SHAPES = [(5,), (4, 3), (2, 3, 3)]  # of images


def arrays(image: tuple[int, ...], layout: str) -> tuple[list[np.ndarray], list[Any]]:
    rng = np.random.default_rng(len(image))
    shapes = (4, 3, *image), (6, 3, *image), (4, 6, *[1] * len(image)), (6,)
    values = [rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes]
    return values, [*(ct.asarray(one, layout=layout) for one in values[:3]), ct.asarray(values[3])]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("image", SHAPES)
def test_results_equal_the_reference(fake: FakeCudnn, image: tuple[int, ...], layout: str) -> None:
    (x, w, dy, bias), given = arrays(image, layout)
    on, ours, theirs = {"stride": image}, ct, ct.reference
    pairs = [
        (ours.conv(*given[:2], **on), theirs.conv(x, w, **on)),
        (
            ours.conv_bias_activation(*given[:2], given[3], residual=given[2], **on),
            theirs.conv_bias_activation(x, w, bias, residual=dy, **on),
        ),
        (
            ours.conv_backward_data(given[2], given[1], x.shape, **on),
            theirs.conv_backward_data(dy, w, x.shape, **on),
        ),
        (
            ours.conv_backward_filter(given[2], given[0], w.shape, **on),
            theirs.conv_backward_filter(dy, x, w.shape, **on),
        ),
    ]
    for found, expected in pairs:
        assert found.shape == expected.shape
        np.testing.assert_array_equal(found.numpy(), expected)


def test_problem_has_channels_for_the_pixels_of_an_image() -> None:
    x, w = TensorSpec.packed((7, 3, 2, 4)), TensorSpec.packed((5, 3, 2, 4))
    small = with_small_window(conv_problem("forward", x, w, stride=2))
    assert (small.x.shape, small.w.shape, small.y.shape) == ((7, 24, 1, 1), (5, 24, 1, 1), (7, 5, 1, 1))
    assert small.stride == small.dilation == (1, 1)


@pytest.mark.parametrize(
    ("x", "w", "more"),
    [
        ((7, 3, 2, 4), (5, 3, 2, 3), {}),  # a smaller window
        ((7, 3, 2, 4), (5, 3, 2, 4), {"padding": 1}),
        ((7, 3, 2, 4), (5, 3, 2, 4), {"mode": "convolution"}),
        ((7, 3, 2, 4), (6, 1, 2, 4), {"groups": 3}),
        ((7, 3, 1, 1), (5, 3, 1, 1), {}),
    ],
)
def test_other_problems_stay(x: tuple[int, ...], w: tuple[int, ...], more: dict[str, Any]) -> None:
    problem = conv_problem("forward", TensorSpec.packed(x), TensorSpec.packed(w), **more)
    assert with_small_window(problem) is problem


def test_operands_in_different_orders_stay() -> None:
    x, w = TensorSpec.packed((7, 3, 2, 4)), TensorSpec.packed((5, 3, 2, 4), layout="nhwc")
    problem = conv_problem("forward", x, w)
    assert with_small_window(problem) is problem


def test_named_algorithms_compute_the_problem_as_it_was_given(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    selected, select = [], algo_cache.select
    monkeypatch.setattr(
        algo_cache,
        "select",
        lambda problem, *more: selected.append(problem.x.shape) or select(problem, *more),
    )
    x, w = ct.zeros((2, 3, 5, 5)), ct.zeros((4, 3, 5, 5))
    for algo in ("implicit_gemm", "heuristic", "autotune"):
        ct.conv(x, w, algo=algo)
    assert selected == [(2, 3, 5, 5), (2, 75, 1, 1), (2, 75, 1, 1)]
