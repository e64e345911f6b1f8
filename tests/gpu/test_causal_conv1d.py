"""Causal convolutions on a GPU, against float64: all dtypes, widths and layouts, and gradients.

They need a cuDNN with libcudnn_ext. A folder with libcudnn.so.9 and libcudnn_ext.so.9 alone will do, named by
CUDNN_CT_LIBRARY: then the tests that copy operands by other libraries of cuDNN are skipped. cuDNN compiles
a kernel in each test, in some five seconds.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import _lib
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.shapes.causal_conv import WIDTHS
from tests.causal_cases import operands_of
from tests.layers import FLOATS
from tests.strategies import lay_out, shifted

from .conftest import own_stream, place
from .ext import agree, answer, require

SHAPES = ((2, 64, 100), (1, 7, 1), (2, 3, 5), (3, 33, 513))  # also shorter than a window, and odd
ACTIVATIONS = (None, "silu")


@pytest.fixture(autouse=True)
def _library_has_functions() -> None:
    require("causal_conv1d")


@pytest.fixture
def needs_copies() -> None:
    if missing := _lib.load().lacks("ops"):
        pytest.skip(f"copies of operands: {missing}")


def last(array: np.ndarray) -> np.ndarray:
    """Return a copy with adjacent channels: of sequences, or of windows."""
    order = (0, 2, 1) if array.ndim == 3 else tuple(range(array.ndim))[::-1]
    return np.ascontiguousarray(array.transpose(order)).transpose(order)


def check(arrays: dict[str, np.ndarray], dtype: str, activation: str | None, *, bias: bool = True) -> None:
    """Compare the result and all gradients; new results lie like x."""
    placed = {name: place(array) for name, array in arrays.items()}
    given = {name: array for name, array in arrays.items() if bias or name != "bias"}
    more = (placed["bias"],) * bias
    what = f"x {placed['x'].spec} {placed['x'].spec.strides}, w {placed['w'].spec}, {activation}"
    started = time.perf_counter()
    y = ct.causal_conv1d(placed["x"], placed["w"], *more, activation=activation)
    ct.synchronize()
    print(f"{what}: forward {time.perf_counter() - started:.2f} s; {ct.last_plan().plan}")
    forward = {name: one for name, one in given.items() if name != "dy"}
    agree(f"y of {what}", y, answer("causal_conv1d", forward, activation=activation)["y"], dtype)
    started = time.perf_counter()
    found = ct.causal_conv1d_backward(placed["dy"], placed["x"], placed["w"], *more, activation=activation)
    ct.synchronize()
    print(f"{what}: backward {time.perf_counter() - started:.2f} s; {ct.last_plan().plan}")
    wanted = answer("causal_conv1d_backward", given, activation=activation)
    for name, one in found._asdict().items():
        assert (one is None) == (name not in wanted), name
        if one is not None:
            agree(f"{name} of {what}", one, wanted[name], dtype)


@pytest.mark.parametrize("adjacent", [False, True], ids=["sequences", "channels"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_agrees_with_float64(dtype: str, adjacent: bool) -> None:
    for i, shape in enumerate(SHAPES):
        arrays = operands_of(*shape, 4, as_dtype(dtype).numpy, seed=i)
        check({name: last(one) for name, one in arrays.items()} if adjacent else arrays, dtype, "silu")


@pytest.mark.parametrize("adjacent", [False, True], ids=["sequences", "channels"])
@pytest.mark.parametrize("width", WIDTHS)
def test_agrees_with_float64_for_each_width(width: int, adjacent: bool) -> None:
    if adjacent and (width not in (2, 7, 32, 128) or _lib.load().version < 92400):
        pytest.skip("few kernels are compiled")
    for seed, length in enumerate((1, 40, 300)):
        arrays = operands_of(2, 9, length, width, np.dtype(np.float32), seed)
        check({name: last(one) for name, one in arrays.items()} if adjacent else arrays, "float32", None)


def test_missing_bias_is_zero() -> None:
    check(operands_of(2, 64, 100, 4, np.dtype(np.float32)), "float32", "silu", bias=False)


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_misaligned_operands_agree_with_float64(offset: int) -> None:
    arrays = operands_of(2, 16, 100, 4, np.dtype(np.float16))
    check({name: shifted(one, offset) for name, one in arrays.items()}, "float16", "silu")


@pytest.mark.usefixtures("needs_copies")
@pytest.mark.parametrize("view", ["every_other_image", "padded_rows", "transposed"])
def test_strided_operands_agree_with_float64(view: str) -> None:
    arrays = operands_of(2, 16, 100, 4, np.dtype(np.float32))
    laid = {name: lay_out(one, "nchw", view) if one.ndim > 1 else one for name, one in arrays.items()}
    check(laid, "float32", "silu")


@pytest.mark.usefixtures("needs_copies")
def test_contiguous_weights_are_copied_for_adjacent_channels() -> None:
    arrays = operands_of(2, 16, 100, 4, np.dtype(np.float32))
    check(arrays | {"x": last(arrays["x"]), "dy": last(arrays["dy"])}, "float32", "silu")


@pytest.mark.parametrize("shape", [(70_000, 1, 4), (1, 70_000, 4), (1, 1, 2_000_003)])
def test_long_axes_agree_with_float64(shape: tuple[int, int, int]) -> None:
    """Longer than the axes of a grid of blocks, which end at 65,535."""
    check(operands_of(*shape, 4, np.dtype(np.float32)), "float32", "silu")


def test_gradients_replace_the_contents_of_out_in_every_call() -> None:
    """cuDNN adds to them; the third call is a replayed graph."""
    arrays = operands_of(2, 64, 100, 4, np.dtype(np.float32))
    x, w, bias, dy = (place(arrays[name]) for name in ("x", "w", "bias", "dy"))
    wanted = answer("causal_conv1d_backward", arrays, activation="silu")
    out = tuple(place(np.full(arrays[name].shape, np.nan, np.float32)) for name in ("x", "w", "bias"))
    for turn in range(4):
        ct.causal_conv1d_backward(dy, x, w, bias, activation="silu", out=out)
        for name, one in zip(("dx", "dw", "dbias"), out, strict=True):
            agree(f"{name} of call {turn}", one, wanted[name], "float32")


def test_repeated_forward_passes_have_the_same_bits() -> None:
    arrays = operands_of(3, 33, 513, 4, np.dtype(np.float16))
    x, w, bias = (place(arrays[name]) for name in ("x", "w", "bias"))
    out = place(np.zeros_like(arrays["x"]))
    results = []
    for _ in range(4):
        ct.causal_conv1d(x, w, bias, activation="silu", out=out)
        results.append(out.numpy().view(np.uint16))
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_call_in_a_captured_function_agrees_with_float64() -> None:
    arrays = operands_of(2, 64, 100, 4, np.dtype(np.float32))
    x, w, bias = (place(arrays[name]) for name in ("x", "w", "bias"))

    @ct.capture
    def layer(x: Any) -> Any:
        return ct.causal_conv1d(x, w, bias, activation="silu")

    forward = {name: one for name, one in arrays.items() if name != "dy"}
    for turn in range(3):
        agree(
            f"y of launch {turn}",
            layer(x),
            answer("causal_conv1d", forward, activation="silu")["y"],
            "float32",
        )


def test_other_streams_agree_with_float64() -> None:
    arrays = operands_of(2, 64, 100, 4, np.dtype(np.float32))
    wanted = answer("causal_conv1d", {k: v for k, v in arrays.items() if k != "dy"}, activation="silu")["y"]
    x, w, bias = (place(arrays[name]) for name in ("x", "w", "bias"))
    with ct.use(stream=own_stream()):
        agree("y", ct.causal_conv1d(x, w, bias, activation="silu"), wanted, "float32")
