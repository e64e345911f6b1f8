"""Causal convolutions by FFT on a GPU, against float64: both sets of kernels, all dtypes, and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import _lib
from cudnn_ct.dtypes import as_dtype
from tests.causal_cases import fft_operands
from tests.layers import FLOATS
from tests.strategies import lay_out, shifted

from .conftest import own_stream, place
from .ext import agree, answer, require

LONG = 2**15  # the shortest window of the kernels for whole sequences that no others take


@pytest.fixture(autouse=True)
def _library_has_functions() -> None:
    require("fft_causal_conv1d")


@pytest.fixture
def needs_copies() -> None:
    if missing := _lib.load().lacks("ops"):
        pytest.skip(f"copies of operands: {missing}")


def check(arrays: dict[str, np.ndarray], dtype: str) -> None:
    """Compare the result and both gradients."""
    x, w, dy = (place(arrays[name]) for name in ("x", "w", "dy"))
    what = f"x {x.spec}, w {w.spec}"
    y = ct.fft_causal_conv1d(x, w)
    print(f"{what}: {ct.last_plan()}")
    forward = {name: arrays[name] for name in ("x", "w")}
    agree(f"y of {what}", y, answer("fft_causal_conv1d", forward)["y"], dtype)
    found = ct.fft_causal_conv1d_backward(dy, x, w)
    wanted = answer("fft_causal_conv1d_backward", arrays)
    for name, one in found._asdict().items():
        agree(f"{name} of {what}", one, wanted[name], dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("width", "times"), [(128, 1), (128, 5), (4096, 2), (LONG, 1)])
def test_agrees_with_float64(dtype: str, width: int, times: int) -> None:
    for seed, (n, channels) in enumerate(((2, 3), (1, 1))):
        check(fft_operands(n, channels, width * times, width, as_dtype(dtype).numpy, seed), dtype)


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_misaligned_operands_agree_with_float64(offset: int) -> None:
    arrays = fft_operands(2, 3, 512, 128, np.dtype(np.float16))
    check({name: shifted(one, offset) for name, one in arrays.items()}, "float16")


@pytest.mark.usefixtures("needs_copies")
@pytest.mark.parametrize("view", ["every_other_image", "padded_rows", "transposed"])
def test_strided_operands_agree_with_float64(view: str) -> None:
    arrays = fft_operands(2, 3, 512, 128, np.dtype(np.float32))
    check({name: lay_out(one, "nchw", view) for name, one in arrays.items()}, "float32")


@pytest.mark.parametrize("shape", [(70_000, 1), (1, 70_000)])
def test_long_axes_agree_with_float64(shape: tuple[int, int]) -> None:
    """Longer than the axes of a grid of blocks, which end at 65,535."""
    check(fft_operands(*shape, 128, 128, np.dtype(np.float32)), "float32")


@pytest.mark.parametrize("width", [128, LONG])
def test_gradients_replace_the_contents_of_out_in_every_call(width: int) -> None:
    """The third call is a replayed graph."""
    arrays = fft_operands(2, 3, width, width, np.dtype(np.float32))
    x, w, dy = (place(arrays[name]) for name in ("x", "w", "dy"))
    wanted = answer("fft_causal_conv1d_backward", arrays)
    out = tuple(place(np.full(arrays[name].shape, np.nan, np.float32)) for name in ("x", "w"))
    for turn in range(4):
        ct.fft_causal_conv1d_backward(dy, x, w, out=out)
        for name, one in zip(("dx", "dw"), out, strict=True):
            agree(f"{name} of call {turn}", one, wanted[name], "float32")


@pytest.mark.parametrize("width", [128, LONG])
def test_call_in_a_captured_function_agrees_with_float64(width: int) -> None:
    arrays = fft_operands(2, 3, width, width, np.dtype(np.float32))
    x, w = (place(arrays[name]) for name in ("x", "w"))
    ct.fft_causal_conv1d(x, w)  # the capture does not compile

    @ct.capture
    def layer(x: Any) -> Any:
        return ct.fft_causal_conv1d(x, w)

    wanted = answer("fft_causal_conv1d", {name: arrays[name] for name in ("x", "w")})["y"]
    for turn in range(3):
        agree(f"y of launch {turn}", layer(x), wanted, "float32")


def test_other_streams_agree_with_float64() -> None:
    arrays = fft_operands(2, 3, 512, 128, np.dtype(np.float32))
    wanted = answer("fft_causal_conv1d", {name: arrays[name] for name in ("x", "w")})["y"]
    x, w = (place(arrays[name]) for name in ("x", "w"))
    with ct.use(stream=own_stream()):
        agree("y", ct.fft_causal_conv1d(x, w), wanted, "float32")
