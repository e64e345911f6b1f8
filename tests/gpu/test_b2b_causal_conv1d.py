"""Two causal convolutions with gates on a GPU, against float64: all dtypes, widths and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import _lib
from cudnn_ct.dtypes import as_dtype
from tests.causal_cases import gated_operands
from tests.layers import FLOATS
from tests.strategies import lay_out, shifted

from .conftest import place
from .ext import agree, answer, require

OPERANDS = ("x", "w_proj", "w_mixer", "skip_bias")


@pytest.fixture(autouse=True)
def _library_has_functions() -> None:
    require("b2b_causal_conv1d")


@pytest.fixture
def needs_copies() -> None:
    if missing := _lib.load().lacks("ops"):
        pytest.skip(f"copies of operands: {missing}")


def check(arrays: dict[str, np.ndarray], dtype: str) -> None:
    """Compare both results and all gradients, for mixed sequences that were drawn."""
    placed = {name: place(array) for name, array in arrays.items()}
    operands = [placed[name] for name in OPERANDS]
    what = ", ".join(f"{name} {placed[name].spec}" for name in OPERANDS[:3])
    found = ct.b2b_causal_conv1d(*operands)
    wanted = answer("b2b_causal_conv1d", {name: arrays[name] for name in OPERANDS})
    for name, one in found._asdict().items():
        agree(f"{name} of {what}", one, wanted[name], dtype)
    gradients = ct.b2b_causal_conv1d_backward(placed["dy"], *operands, placed["mixed"])
    wanted = answer("b2b_causal_conv1d_backward", arrays)
    for name, one in gradients._asdict().items():
        agree(f"{name} of {what}", one, wanted[name], dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_agrees_with_float64(dtype: str) -> None:
    for seed, shape in enumerate(((2, 64, 100), (1, 7, 1), (2, 3, 5), (3, 33, 513))):
        check(gated_operands(*shape, (4, 7), as_dtype(dtype).numpy, seed), dtype)


@pytest.mark.parametrize("widths", [(2, 2), (3, 7), (8, 128), (32, 256), (17, 100)])
def test_agrees_with_float64_for_each_width(widths: tuple[int, int]) -> None:
    for seed, length in enumerate((1, 40, 300)):
        check(gated_operands(2, 9, length, widths, np.dtype(np.float32), seed), "float32")


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_misaligned_operands_agree_with_float64(offset: int) -> None:
    arrays = gated_operands(2, 16, 100, (4, 7), np.dtype(np.float16))
    check({name: shifted(one, offset) for name, one in arrays.items()}, "float16")


@pytest.mark.usefixtures("needs_copies")
@pytest.mark.parametrize("view", ["every_other_image", "padded_rows", "transposed"])
def test_strided_operands_agree_with_float64(view: str) -> None:
    arrays = gated_operands(2, 16, 100, (4, 7), np.dtype(np.float32))
    laid = {name: lay_out(one, "nchw", view) if one.ndim > 1 else one for name, one in arrays.items()}
    check(laid, "float32")


@pytest.mark.parametrize("shape", [(70_000, 1, 4), (1, 70_000, 4), (1, 1, 2_000_003)])
def test_long_axes_agree_with_float64(shape: tuple[int, int, int]) -> None:
    """Longer than the axes of a grid of blocks, which end at 65,535."""
    check(gated_operands(*shape, (4, 7), np.dtype(np.float32)), "float32")


def test_gradients_replace_the_contents_of_out_in_every_call() -> None:
    """The third call is a replayed graph."""
    arrays = gated_operands(2, 16, 100, (4, 7), np.dtype(np.float32))
    placed = {name: place(array) for name, array in arrays.items()}
    wanted = answer("b2b_causal_conv1d_backward", arrays)
    out = tuple(place(np.full(arrays[name].shape, np.nan, np.float32)) for name in OPERANDS)
    given: list[Any] = [placed[name] for name in ("dy", *OPERANDS, "mixed")]
    for turn in range(4):
        ct.b2b_causal_conv1d_backward(*given, out=out)
        for name, one in zip(OPERANDS, out, strict=True):
            agree(f"d{name} of call {turn}", one, wanted[f"d{name}"], "float32")


def test_gradients_of_the_forward_pass_agree_with_float64() -> None:
    arrays = gated_operands(2, 16, 100, (4, 7), np.dtype(np.float64))
    placed = {name: place(array) for name, array in arrays.items()}
    operands = [placed[name] for name in OPERANDS]
    mixed = ct.b2b_causal_conv1d(*operands).mixed
    gradients = ct.b2b_causal_conv1d_backward(placed["dy"], *operands, mixed)
    wanted = answer("b2b_causal_conv1d_backward", arrays | {"mixed": mixed.numpy()})
    for name, one in gradients._asdict().items():
        agree(name, one, wanted[name], "float64")
