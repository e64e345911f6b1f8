"""Convolution on a GPU at sizes that tests/oracle does not draw; memory and precision."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import _lib
from cudnn_ct.cuda import memory as memories
from cudnn_ct.errors import NotSupportedError
from tests.conv_cases import TOLERANCE
from tests.layers import Tensor, compare

from .conftest import place


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_conv_equals_reference_at_the_size_of_a_network(dtype: str, layout: str) -> None:
    """Large enough for the kernels that real layers get: a ResNet's 3x3 with 64 channels."""
    rng = np.random.default_rng(0)
    x = rng.integers(-1, 2, (4, 64, 28, 28)).astype(np.float32)
    w = (rng.integers(-1, 2, (64, 64, 3, 3)) * (rng.random((64, 64, 3, 3)) < 0.05)).astype(np.float32)
    y = ct.conv(ct.asarray(x, dtype, layout=layout), ct.asarray(w, dtype, layout=layout), padding=1)
    assert y.layout == layout
    np.testing.assert_array_equal(y.numpy().astype(np.float32), ct.reference.conv(x, w, padding=1))


def test_conv_in_strict_float32_rounds_no_products() -> None:
    """TF32 keeps 11 bits of each factor: 1 + 2**-12 becomes 1 there, and only there."""
    x = ct.full((8, 256, 32, 32), 1 + 2.0**-12)  # small ones are faster without tensor cores
    w = ct.full((256, 256, 1, 1), 1.0)
    exact = 256 * (1 + 2.0**-12)
    np.testing.assert_allclose(ct.conv(x, w, precision="float32").numpy(), exact, rtol=1e-6)
    loose = ct.conv(x, w, precision="tf32").numpy()
    np.testing.assert_allclose(loose, exact, rtol=1e-3)
    assert not np.allclose(loose, exact, rtol=1e-6), "no tensor core had a part in this: it shows nothing"


@pytest.mark.parametrize("batch", [65_535, 65_536, 65_537])
def test_conv_equals_reference_when_the_batch_is_around_65536(batch: int) -> None:
    x = (np.arange(batch * 2 * 3 * 3) % 7 - 3).astype(np.float16).reshape(batch, 2, 3, 3)
    w = np.ones((2, 2, 3, 3), np.float16)
    got = ct.conv(ct.asarray(x), ct.asarray(w)).numpy()
    np.testing.assert_array_equal(got, ct.reference.conv(x, w))


@pytest.mark.parametrize("activation", ["relu", "identity", "tanh"])
def test_conv_bias_activation_equals_reference_without_a_bias(activation: str) -> None:
    """The calls of tests/oracle have a bias."""
    operands = [
        Tensor(shape, "float16", "floats", "nhwc").array() for shape in ((2, 16, 9, 9), (8, 16, 3, 3))
    ]
    keywords: dict[str, Any] = {"activation": activation, "padding": 1, "stride": 2}
    expected = ct.reference.conv_bias_activation(*operands, None, **keywords)
    x, w = map(place, operands)
    plan = ct.conv_bias_activation_plan(x, w, None, **keywords)
    for got in (ct.conv_bias_activation(x, w, None, **keywords), plan(x, w)):
        compare(got, expected, tolerance=TOLERANCE["float16"])


@pytest.mark.alone
def test_conv_takes_more_than_2_to_the_31_elements() -> None:
    """Just under the legacy calls' limit and over it."""
    free, _ = memories.memory_info(0)
    if free < 12 * 2**30:
        pytest.skip(f"needs 12 GiB of device memory, {free / 2**30:.0f} are free")
    w = ct.full((1, 1, 1, 1), 3.0, "float16")
    x, y = (ct.full((2, 1, 32_767, 32_768), value, "float16") for value in (2.0, np.nan))
    ct.conv(x, w, out=y)
    assert (y.numpy() == 6).all()
    del x, y
    x, y = (ct.full((3, 1, 32_768, 32_768), value, "float16") for value in (2.0, np.nan))
    if _lib.load().kind == "jit":
        with pytest.raises(NotSupportedError, match=r"2\*\*31 elements or more"):
            ct.conv(x, w, out=y)
        return
    ct.conv(x, w, out=y)
    assert (y.numpy() == 6).all()
    with pytest.raises(NotSupportedError, match=r"x spans 3,221,225,472 elements; .* fewer than 2\*\*31"):
        ct.conv(x, w, algo="none", strict=True)


@pytest.mark.alone
def test_empty_cache_returns_memory_to_the_driver() -> None:
    held = ct.empty((1024, 1 << 20))
    del held
    before = pool().reserved_mem_current
    ct.empty_cache()
    assert pool().reserved_mem_current <= before - 2**32


def pool() -> Any:
    """Return the figures of this process's memory pool."""
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    return device.memory_resource.attributes


def test_conv_allocates_no_more_when_calls_repeat() -> None:
    w = ct.full((8, 4, 3, 3), 1.0)
    for size in (*range(8, 40), *range(8, 40)):
        ct.conv(ct.empty((2, 4, size, size)), w)
    ct.synchronize()
    gc.collect()
    used = pool().used_mem_current
    for _ in range(3):
        for size in range(8, 40):
            ct.conv(ct.empty((2, 4, size, size)), w)
    ct.synchronize()
    assert pool().used_mem_current <= used
