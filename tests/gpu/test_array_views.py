"""Copies and conversions of views on a GPU, and views in other libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.dtypes import DTYPES
from tests.both.views import *  # noqa: F403
from tests.both.views import numbers

from .conftest import library

KEYS = [np.s_[:, ::2], np.s_[1:, :, 1:3, ::3], np.s_[..., 3], np.s_[:, None, 1], np.s_[:0], np.s_[1, 2, 2, 4]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_copy_of_a_view_keeps_special_values(dtype: str) -> None:
    kind = DTYPES[dtype].numpy
    values = np.array([[0.0, -0.0, np.inf, -np.inf, np.nan, 1.5]] * 2).astype(kind)
    values[1] = np.array([1], f"uint{8 * kind.itemsize}").view(kind)[0]  # a subnormal number
    copied = ct.asarray(values)[:, :5].copy().numpy()
    np.testing.assert_array_equal(copied.astype(float), values[:, :5].astype(float))
    np.testing.assert_array_equal(np.signbit(copied[0, :2].astype(float)), [False, True])


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_torch_shares_the_memory_of_a_view(key: Any) -> None:
    torch = library("torch")
    x = ct.asarray(numbers("float32"))
    tensor = torch.from_dlpack(x[key])
    np.testing.assert_array_equal(tensor.cpu().numpy(), np.asarray(numbers("float32")[key]))
    if tensor.numel():
        assert tensor.data_ptr() == x[key].pointer


def test_torch_takes_a_reversed_array_as_a_copy() -> None:
    torch = library("torch")
    x = ct.asarray(numbers("float32"))[::-1]
    with pytest.raises(BufferError, match="negative strides"):
        torch.from_dlpack(x)
    np.testing.assert_array_equal(torch.from_dlpack(x.copy()).cpu().numpy(), numbers("float32")[::-1])


def test_write_to_a_view_on_another_stream_is_seen_by_reads_of_the_array() -> None:
    torch = library("torch")
    x = ct.zeros((2, 2**24))
    side = torch.cuda.Stream()
    for value in range(1, 4):
        ct.fill(x[1:], value, stream=side)
        assert ct.reduce(x, op="min", axis=1).numpy().tolist() == [0, value]


def test_copy_of_a_view_has_its_elements_when_a_stride_exceeds_a_c_int() -> None:
    x = ct.zeros((2, 2**29 + 1), "int32")
    x[1, -3:].fill(7)
    copied = x[:, 1:].copy()
    assert copied.spec.strides == (2**29, 1)
    assert copied[0, -3:].numpy().tolist() == [0, 0, 0]
    assert copied[1, -4:].numpy().tolist() == [0, 7, 7, 7]


EXPANDED = {
    "scalar": lambda x: x[:1, :1, :1, :1].expand_as(x),
    "channels": lambda x: x[:1, :, :1, :1].expand_as(x),
    "images": lambda x: x[:1].expand_as(x),
    "columns": lambda x: x[..., :1].expand_as(x),
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", EXPANDED)
def test_expanded_tensor_is_an_operand_in_a_capture_of_torch(kind: str, dtype: str) -> None:
    torch = library("torch")
    x = torch.randn(5, 8, 9, 16, device="cuda", dtype=getattr(torch, dtype))
    small = torch.randn_like(x)
    dy, out, total = EXPANDED[kind](small), torch.empty_like(x), torch.empty_like(x)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()

    def calls() -> None:
        ct.activation_backward(dy, x, x, out=out)
        ct.add(x, dy, out=total)

    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        calls()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        calls()
    small.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(out, torch.where(x > 0, dy, 0))
    torch.testing.assert_close(total, (x.double() + dy.double()).to(x.dtype))


def test_reversed_array_of_many_bytes_has_the_bits_of_every_element() -> None:
    values = np.random.default_rng(0).integers(0, 2**32, (3, 2**20 + 5), np.uint32).view(np.float32)
    copied = ct.asarray(values)[::-1, ::-1].copy().numpy()
    np.testing.assert_array_equal(copied.view(np.uint32), values.view(np.uint32)[::-1, ::-1])
