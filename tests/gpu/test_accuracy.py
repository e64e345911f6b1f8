"""The error of convolutions on a GPU against their documented bound, with operands that round."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct

POLICIES = ("heuristic", "autotune")
UNITS = {"float16": 2.0**-11, "float32": 2.0**-24, "tf32": 2.0**-11}


def case(direction: str, window: tuple[int, ...], groups: int, seed: int) -> tuple[Any, ...]:
    """Two operands in float64, the arguments of a gradient, the reference and the number of products."""
    rng = np.random.default_rng(seed)
    x, w = (4, 32, *(20 for _ in window)), (32, 32 // groups, *window)
    y = ct.conv_output_shape(x, w, groups=groups)
    shapes, told, reference, terms = {
        "forward": ((x, w), (), ct.reference.conv, math.prod(w[1:])),
        "backward_data": ((y, w), (x,), ct.reference.conv_backward_data, math.prod(w) // w[1] // groups),
        "backward_filter": ((y, x), (w,), ct.reference.conv_backward_filter, x[0] * math.prod(y[2:])),
    }[direction]
    one, two = (rng.standard_normal(shape).astype(np.float16).astype(np.float64) for shape in shapes)
    return one, two, told, reference, terms


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
@pytest.mark.parametrize(
    ("dtype", "precision", "layout"),
    [
        ("float32", "float32", "nchw"),
        ("float32", "float32", "nhwc"),
        ("float32", "tf32", "nhwc"),
        ("float16", None, "nchw"),
        ("float16", None, "nhwc"),
    ],
)
@pytest.mark.parametrize(
    ("window", "groups"), [((3, 3), 1), ((5, 5), 1), ((5, 5), 4), ((5,), 1), ((7, 7), 32)]
)
def test_policy_stays_within_the_bound_of_the_precision(
    policy: str,
    direction: str,
    dtype: str,
    precision: str | None,
    layout: str,
    window: tuple[int, ...],
    groups: int,
) -> None:
    one, two, told, reference, terms = case(direction, window, groups, seed=5)
    want = reference(one, two, *told, groups=groups)
    sums = reference(abs(one), abs(two), *told, groups=groups)
    first, second = (ct.asarray(operand.astype(dtype), layout=layout) for operand in (one, two))
    keywords = {"groups": groups, "precision": precision}
    plan = ct.conv_plan(first, second, *told, direction=direction, algo=policy, **keywords)
    got = plan(first, second).numpy().astype(np.float64)
    unit = UNITS["float32" if precision is None else precision]
    bound = 8 * math.sqrt(terms + 64) * unit * sums.max() + 6 * UNITS[dtype] * abs(want).max()
    assert abs(got - want).max() <= bound, plan.describe()
