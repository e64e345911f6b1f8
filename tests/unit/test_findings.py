"""Which engines are put behind others, and which are not believed: by problems as values."""

from __future__ import annotations

from typing import Any

import pytest

from cudnn_ct.ops.conv.errata import erratum, ranked_too_high
from cudnn_ct.shapes.conv import ConvProblem, conv_problem
from cudnn_ct.shapes.specs import TensorSpec

SLOW_ON_POINTS = {28, 38, 48, 70}


def problem(
    x: tuple[int, ...], w: tuple[int, ...], dtype: str = "float32", layout: str = "nhwc", **arguments: Any
) -> ConvProblem:
    direction = arguments.pop("direction", "forward")
    specs = TensorSpec.packed(x, dtype, layout), TensorSpec.packed(w, dtype, layout)
    return conv_problem("forward", *specs, **arguments)._replace(direction=direction)


POINTS = ((8, 64, 16, 56, 56), (128, 64, 1, 1, 1))


@pytest.mark.parametrize(
    ("one", "behind"),
    [
        (problem(*POINTS, stride=2), True),
        (problem((8, 64, 56, 56), (128, 64, 1, 1)), True),
        (problem(*POINTS, stride=2, layout="nchw"), False),
        (problem(*POINTS, stride=2, dtype="float16"), False),
        (problem(*POINTS, stride=2, precision="float32"), False),
        (problem(*POINTS, stride=2, direction="backward_data"), False),
        (problem((8, 64, 56, 56), (128, 64, 3, 3)), False),
    ],
)
def test_points_in_tf32_take_the_engine_for_channels_last(one: ConvProblem, behind: bool) -> None:
    assert (ranked_too_high(one) >= SLOW_ON_POINTS) == behind
    assert behind or not ranked_too_high(one) & SLOW_ON_POINTS


@pytest.mark.parametrize(("groups", "stride", "behind"), [(32, 2, True), (32, 1, False), (1, 2, False)])
def test_data_gradients_of_strided_groups_in_tf32(groups: int, stride: int, behind: bool) -> None:
    w = (1024, 1024 // groups, 3, 3)
    one = problem((32, 1024, 14, 14), w, groups=groups, stride=stride, direction="backward_data")
    assert (58 in ranked_too_high(one)) == behind


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_one_channel_lies_as_the_other_tensors_do(layout: str) -> None:
    """It is in both layouts; engines are told the one that the others have."""
    one = problem((8, 1, 28, 28), (64, 1, 3, 3), "float16", layout, direction="backward_data")
    one = one._replace(y=TensorSpec.packed(one.y.shape, "float16", layout))
    assert bool(erratum(78, one)) == (layout == "nchw")


@pytest.mark.parametrize(
    ("channels", "padding", "wrong"), [(1, ((1, 2),), True), (1, 1, False), (2, ((1, 2),), False)]
)
def test_known_wrong_engine_67_when_padding_is_uneven_and_there_is_one_channel(
    channels: int, padding: Any, wrong: bool
) -> None:
    one = problem((3, channels, 10), (1, channels, 3), padding=padding, direction="backward_filter")
    assert bool(erratum(67, one)) == wrong
