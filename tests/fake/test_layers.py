"""Layers end to end on the fakes: the same properties as on a GPU, and what only a fake can show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError
from tests.layers import LayerCase, check_layer, pool_cases

from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .test_conv import images


@given(case=pool_cases())
def test_pooling(fake: FakeCudnn, host: Host, case: LayerCase) -> None:
    check_layer(case, lambda array: ForeignArray(host, array))


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"window": 9}, ValueError, "window of 9 is larger than spatial axis 0: the input has 5"),
        ({"window": 2, "padding": 2}, ValueError, r"padding \(2, 2\) of spatial axis 0 must be smaller"),
        ({"window": (2, 2, 2)}, ValueError, "has 3 axes; x of shape .* has 2 spatial axes"),
        ({"window": 2, "mode": "median"}, ValueError, "mode must be one of max, max_deterministic"),
        ({"window": 2, "nan": "often"}, ValueError, "nan must be one of"),
        ({"window": "all"}, ValueError, "or 'global', not 'all'"),
        ({"window": 2, "beta": 1}, ValueError, "beta=1 needs out"),
        ({"window": 2, "padding": ((0, 1), (0, 0))}, NotSupportedError, "pad both sides of an axis alike"),
        ({"window": {2}}, TypeError, "is no parameter"),
    ],
)
def test_bad_pooling(fake: FakeCudnn, keywords: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        ct.pool(images(2, 3, 5, 6), **keywords)
    x = images(2, 3, 5, 6)
    with pytest.raises(ValueError, match=r"dy has shape .*gives \(2, 3, 2, 3\)"):
        ct.pool_backward(x, ct.pool(x, window=2), images(2, 3, 2, 2), window=2)
    with pytest.raises(TypeError, match="out is float64; the result is float32"):
        ct.pool(x, window=2, out=images(2, 3, 2, 3, dtype="float64"))
    with pytest.raises(TypeError, match="x must be an array on the device"):
        ct.pool(np.zeros((2, 3, 4, 4)), window=2)


def test_lists_are_as_good_as_tuples(fake: FakeCudnn) -> None:
    x = images(2, 3, 5, 6)
    expected = ct.reference.pool(x.numpy(), window=(2, 3), padding=((1, 1), (0, 0)))
    y = ct.pool(x, window=[2, 3], padding=[[1, 1], [0, 0]])
    np.testing.assert_array_equal(y.numpy(), expected)
