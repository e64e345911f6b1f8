"""Layers end to end on the fakes: the same properties as on a GPU, and what only a fake can show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError
from tests.layers import LayerCase, activation_cases, check_layer, lrn_cases, pool_cases, softmax_cases

from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .test_conv import images


@given(case=pool_cases() | pool_cases(asymmetric=True))
def test_pooling(fake: FakeCudnn, host: Host, case: LayerCase) -> None:
    check_layer(case, lambda array: ForeignArray(host, array))


@given(case=softmax_cases())
def test_softmax(fake: FakeCudnn, host: Host, case: LayerCase) -> None:
    check_layer(case, lambda array: ForeignArray(host, array))


@given(case=lrn_cases())
def test_local_response_normalisation(fake: FakeCudnn, host: Host, case: LayerCase) -> None:
    check_layer(case, lambda array: ForeignArray(host, array))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"n": 17}, "n must be between 1 and 16, got 17"),
        ({"k": 0}, "k must be at least 1e-05, got 0"),
        ({"lrn_beta": 0}, "lrn_beta must be at least 0.01, got 0"),
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
        ct.activation_backward(x, x, images(3, 5))


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
        ({"axis": 4}, "there is no axis 4 among 4"),
        ({"axis": (0, 2)}, "must lie side by side"),
        ({"axis": (1, 1)}, "names an axis twice"),
        ({"algo": "quick"}, "algo must be one of fast, accurate, log"),
        ({"mode": "pixel"}, "mode must be one of instance, channel"),
    ],
)
def test_bad_softmax(fake: FakeCudnn, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ct.softmax(images(2, 3, 5, 6), **keywords)
    with pytest.raises(ValueError, match=r"dy has shape \(2, 2\); y has \(2, 3\)"):
        ct.softmax_backward(images(2, 3), images(2, 2))


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
        (
            {"window": 2, "padding": ((0, 1), (0, 0)), "mode": "average_exc_pad"},
            NotSupportedError,
            "(?s)both sides .* alike.*cannot leave the padding out",
        ),
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
