"""Convolutions with padding that differs between the two sides of an axis: on a padded copy of the image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError
from tests.conv_cases import OPERATIONS, Geometry

from .cudnn import FakeCudnn
from .host import ForeignArray, Host

GEOMETRIES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "one axis": ((2, 4, 9), (4, 1, 3), {"padding": ((1, 0),), "groups": 4}),
    "causal": ((2, 3, 9), (4, 3, 3), {"padding": ((4, 0),), "dilation": 2}),
    "two axes": ((2, 4, 6, 7), (6, 2, 3, 2), {"padding": ((0, 1), (3, 1)), "groups": 2, "stride": (2, 1)}),
    "flipped": ((2, 3, 6, 7), (4, 3, 3, 3), {"padding": ((0, 2), (1, 1)), "mode": "convolution"}),
    "three axes": ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"padding": ((0, 1), (1, 1), (2, 0))}),
}


def values(geometry: Geometry, direction: str) -> list[np.ndarray]:
    *shapes, _ = geometry.shapes(direction)
    rng = np.random.default_rng(7)
    return [rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("layout", ["nchw", "nhwc", "gaps"])
@pytest.mark.parametrize("backend", ["legacy", "graph"])
@pytest.mark.parametrize("direction", OPERATIONS)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_convolution_equals_the_reference(
    fake: FakeCudnn, host: Host, name: str, direction: str, backend: str, layout: str, request: Any
) -> None:
    fake.engines = True
    if backend == "graph":
        request.getfixturevalue("only_engines")
    geometry = Geometry(*GEOMETRIES[name])
    first, second = values(geometry, direction)
    keywords = geometry.arguments | {"alpha": 2, "beta": 3}
    shape = geometry.shape_of_gradient(direction)
    wanted = geometry.expected(direction, [first, second])
    if layout == "gaps":
        operands: list[Any] = [
            ForeignArray(host, np.repeat(array, 2, -1)[..., ::2]) for array in (first, second)
        ]
        memory = np.full((*wanted.shape[:-1], 2 * wanted.shape[-1]), 5, np.float32)
        out: Any = ForeignArray(host, memory[..., ::2])
    else:
        operands = [ct.asarray(array, layout=layout) for array in (first, second)]
        out = ct.full(wanted.shape, 5, layout=layout)
    got = getattr(ct, OPERATIONS[direction])(*operands, *shape, out=out, **keywords)
    np.testing.assert_array_equal(got.numpy(), 2 * wanted + 15)
    if layout == "gaps":
        out.shape = memory.shape
        out.byte_strides = memory.strides
        np.testing.assert_array_equal(out.numpy()[..., 1::2], np.full(wanted.shape, 5))


def test_plan_says_that_it_copies_and_counts_the_copy(fake: FakeCudnn) -> None:
    x, w = ct.full((2, 3, 8, 8), 1.0), ct.full((4, 3, 3, 3), 1.0)
    plan = ct.conv_plan(x, w, padding=((0, 1), (0, 0)))
    assert "on a padded copy of the image" in plan.describe()
    assert plan.workspace >= 4 * 2 * 3 * 9 * 8
    with pytest.raises(NotSupportedError, match="the limit is 100"):
        ct.conv_plan(x, w, padding=((0, 1), (0, 0)), workspace_limit=100)
