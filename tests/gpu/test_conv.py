"""Convolution on a GPU against the reference."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings

import cudnn_ct as ct
from cudnn_ct.cuda import memory as memories
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.errors import NotSupportedError
from tests.properties import DIRECTIONS, check_conv
from tests.strategies import ConvCase, conv_cases

from .conftest import captured, own_stream, place


@pytest.fixture(autouse=True)
def _leave_memory_to_others() -> Iterator[None]:
    yield
    gc.collect()
    ct.empty_cache()


EXAMPLES = max(300, settings.default.max_examples)


@pytest.mark.parametrize("direction", DIRECTIONS)
@settings(max_examples=EXAMPLES)
@given(case=conv_cases(asymmetric=False))
@example(
    ConvCase(batch=2, channels_per_group=4, filters_per_group=4, size=(6, 7), window=(3, 3), x_layout="nhwc")
)
@example(ConvCase(batch=2, groups=3, size=(6, 7, 8), window=(2, 3, 2), x_layout="nhwc", dtype="float64"))
def test_conv_of_small_integers_is_exact(direction: str, case: ConvCase) -> None:
    check_conv(case, place, direction=direction)


@pytest.mark.parametrize("direction", DIRECTIONS)
@settings(max_examples=EXAMPLES)
@given(case=conv_cases(asymmetric=False))
def test_conv_of_floats_equals_reference(direction: str, case: ConvCase) -> None:
    check_conv(case, place, kind="floats", direction=direction)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("offset", range(1, 8))
def test_bias_gradient_equals_reference_when_dy_is_misaligned(offset: int, dtype: str) -> None:
    """cudnnConvolutionBackwardBias ended the CUDA context, once in some thousand tries on views."""
    for shape in ((2, 4, 6, 8), (3, 8, 5, 7), (2, 16, 64), (1, 2, 4, 4, 4)):
        memory = np.zeros(offset + int(np.prod(shape)), as_dtype(dtype).numpy)
        dy = memory[offset:].reshape(shape)
        dy[...] = np.random.default_rng(offset).integers(-2, 3, shape)
        spec = ct.TensorSpec.packed(shape, dtype)
        flat = ct.asarray(memory)
        view = ct.DeviceArray(spec, flat.pointer + offset * memory.itemsize, flat, flat.writer, flat.home)
        got = ct.conv_backward_bias(view).numpy().astype(float)
        np.testing.assert_array_equal(got, ct.reference.conv_backward_bias(dy).astype(float))


def test_conv_transpose_equals_reference() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(-2, 3, (2, 4, 5, 6)), rng.integers(-1, 2, (4, 3, 3, 3))
    x, w = x.astype(np.float32), w.astype(np.float32)
    keywords = {"stride": 2, "padding": 1, "output_padding": 1}
    y = ct.conv_transpose(ct.asarray(x), ct.asarray(w), **keywords)
    assert y.shape == (2, 3, 10, 12)
    np.testing.assert_array_equal(y.numpy(), ct.reference.conv_transpose(x, w, **keywords))


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
    x = ct.full((1, 32, 16, 16), 1 + 2.0**-12)
    w = ct.full((32, 32, 1, 1), 1.0)
    exact = 32 * (1 + 2.0**-12)
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
    """What this process holds of the device's memory, whatever others do."""
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


def test_captured_conv_replays() -> None:
    """After one warm-up a call can be captured into a CUDA graph, and replays on new contents."""
    stream = own_stream()
    x, w = ct.full((2, 3, 8, 8), 1.0, stream=stream), ct.full((4, 3, 3, 3), 1.0, stream=stream)
    y = ct.conv(x, w, stream=stream)
    ct.synchronize(stream)
    graph = captured(stream, lambda: ct.conv(x, w, out=y, stream=stream))
    x.fill(2.0, stream=stream)
    y.fill(np.nan, stream=stream)
    graph.launch(stream)
    ct.synchronize(stream)
    np.testing.assert_array_equal(y.numpy(), np.full(y.shape, 54.0))
