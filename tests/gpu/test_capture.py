"""Functions that are recorded as CUDA graphs: their replays, with calls of torch and cupy inside."""

from __future__ import annotations

import gc
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.cuda import memory
from tests.mixed import in_threads
from tests.unit.test_examples import EXAMPLES

from .conftest import library, own_stream
from .libraries import busy, delay, settle

SHAPE = (4, 8, 16, 16)


def image(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@contextmanager
def without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ct.CudnnWarning)
        yield


def check_equal(captured: Callable[..., Any], function: Callable[..., Any], make: Any = ct.asarray) -> None:
    """Compare calls with different operands, bit for bit; the first one records."""
    with without_warnings():
        for seed in range(4):
            x = make(image(seed))
            wanted = ct.asarray(function(x)).numpy()
            np.testing.assert_array_equal(captured(x).numpy(), wanted)
    assert re.search(r", graphs: 1\n  [1-9]\d* nodes", captured.describe())  # type: ignore[attr-defined]


@pytest.fixture
def weights() -> Iterator[ct.DeviceArray]:
    yield ct.asarray(image(100, (8, 8, 3, 3)))
    gc.collect()


def test_predict_of_example_2_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    for needed in ("sklearn", "matplotlib", "rich"):
        pytest.importorskip(needed)
    monkeypatch.syspath_prepend(EXAMPLES)
    network = import_module("02_train_digits").Network(np.random.default_rng(0))
    monkeypatch.delitem(sys.modules, "02_train_digits")
    captured = ct.capture(network.predict)
    check_equal(captured, network.predict, lambda host: ct.asarray(host[:, :1, :8, :8].copy()))
    captured.close()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_layers_of_each_kind_are_replayed(dtype: str, layout: str) -> None:
    w = ct.asarray(image(100, (8, 8, 3, 3)), dtype, layout=layout)
    mean = ct.zeros((1, 8, 1, 1))

    def function(x: Any) -> Any:
        y = ct.conv(x, w, padding=1)
        y = ct.batch_norm_inference(y, mean, mean, mean, ct.full(mean.shape, 1))
        y = ct.pool(ct.activation(y), window=2)
        return ct.reduce(ct.softmax(y, axis=1).astype("float32"), axis=(2, 3), op="average")

    captured = ct.capture(function)
    check_equal(captured, function, lambda host: ct.asarray(host, dtype, layout=layout))
    captured.close()


def test_recurrent_network_is_replayed() -> None:
    network = ct.RNN("lstm", 8, 16, 2)
    w = ct.asarray(image(1, (network.weight_size,)) / 8)

    def function(x: Any) -> Any:
        return network.forward(x, w, lengths=(32, 16, 7, 1)).y

    captured = ct.capture(function)
    check_equal(captured, function, lambda host: ct.asarray(host.reshape(-1, 4, 8)[:32]))
    captured.close()


@pytest.mark.parametrize("operands", ["copy", "pointer"])
def test_views_are_operands(operands: Any, weights: ct.DeviceArray) -> None:
    wide = ct.asarray(image(5, (4, 16, 16, 32)))
    captured = ct.capture(lambda x: ct.conv(x, weights, padding=1), operands=operands)
    view = wide[:, 8:, :, ::2]
    with without_warnings():
        for value in (1, 2, 3):
            ct.scale(wide, alpha=value)
            wanted = ct.conv(view, weights, padding=1).numpy()
            np.testing.assert_array_equal(captured(view).numpy(), wanted)
    captured.close()


def test_launch_waits_for_pending_writes_and_results_for_the_launch(weights: ct.DeviceArray) -> None:
    side = own_stream()
    captured = ct.capture(lambda x: ct.conv(x, weights, padding=1))
    x, blank = ct.asarray(image(1), stream=side), ct.full(SHAPE, np.nan, stream=side)
    wanted = captured(x).numpy()
    captured(x)
    operand = blank.copy(stream=side)
    settle()
    delay(side.__cuda_stream__()[1])
    ct.transform(x, out=operand, stream=side)
    y = captured(operand)
    assert busy(side.__cuda_stream__()[1]), "the producer has ended: this shows nothing"
    np.testing.assert_array_equal(y.numpy(), wanted)


def test_launches_on_two_streams_share_memory_in_order(weights: ct.DeviceArray) -> None:
    one, two = own_stream(), own_stream()
    captured = ct.capture(lambda x: ct.conv(ct.activation(x), weights, padding=1))
    inputs = [ct.asarray(image(seed)) for seed in range(2)]
    wanted = [captured(x).numpy() for x in inputs]
    for stream in (one, two):
        with ct.use(stream=stream):
            captured(inputs[0])
    for _ in range(20):
        settle()
        with ct.use(stream=one):
            delay(one.__cuda_stream__()[1], 0.02)
            kept = captured(inputs[0]).copy()
        with ct.use(stream=two):
            y = captured(inputs[1])
        np.testing.assert_array_equal(y.numpy(), wanted[1])
        np.testing.assert_array_equal(kept.numpy(), wanted[0])


def test_threads_replay_graphs_of_their_own(weights: ct.DeviceArray) -> None:
    captured = ct.capture(lambda x: ct.conv(x, weights, padding=1))

    def work(number: int) -> None:
        with ct.use(stream=own_stream()):
            for seed in range(number, number + 8):
                x = ct.asarray(image(seed % 3))
                wanted = ct.conv(x, weights, padding=1).numpy()
                np.testing.assert_array_equal(captured(x).numpy(), wanted)

    in_threads(4, work)
    captured.close()


def test_memory_is_returned_after_close(weights: ct.DeviceArray) -> None:
    x = ct.asarray(image(1, (64, 8, 64, 64)))
    ct.conv(x, weights, padding=1)

    def used() -> int:
        """Return the bytes that this process has in the memory pool, which other processes do not change."""
        gc.collect()
        settle()
        ct.empty_cache()
        return memory._pool_attribute(memory._pool(0), "USED_MEM_CURRENT")

    before = used()
    for _ in range(3):
        captured = ct.capture(lambda x: ct.activation(ct.conv(x, weights, padding=1)))
        captured(x)
        captured(x)
        assert used() > before + 2 * x.nbytes
        captured.close()
        assert used() <= before


@pytest.mark.parametrize("failing", ["numpy", "synchronize", "dropout", "host"])
def test_call_that_no_graph_can_repeat_is_reported(failing: str) -> None:
    state = ct.DropoutState(0.5, seed=1)
    calls: dict[str, Callable[[Any], Any]] = {
        "numpy": lambda x: x.numpy() is None,
        "synchronize": lambda x: ct.synchronize(),
        "dropout": lambda x: ct.dropout(x, state),
        "host": lambda x: ct.asarray(image(1)),
    }

    def function(x: Any) -> Any:
        calls[failing](x)
        return ct.activation(x)

    captured = ct.capture(function)
    x = ct.asarray(image(1))
    with pytest.warns(ct.CudnnWarning, match="function runs without a CUDA graph"):
        captured(x)
    with without_warnings():
        np.testing.assert_array_equal(captured(x).numpy(), image(1).clip(0))


# --- torch -------------------------------------------------------------------------------------------------


def torch_function(torch: Any, w: Any, v: Any) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        y = torch.relu(x) * 2 + 1
        y = torch.from_dlpack(ct.conv(y, w, padding=1))
        rows = y.flatten(1)
        return torch.softmax(rows @ v, dim=1)

    return function


def test_calls_of_torch_are_replayed() -> None:
    torch = library("torch")
    w = torch.from_numpy(image(2, (8, 8, 3, 3))).cuda()
    v = torch.from_numpy(image(3, (8 * 16 * 16, 10))).cuda()
    function = torch_function(torch, w, v)
    captured = ct.capture(function)
    with torch.no_grad():
        check_equal(captured, function, lambda host: torch.from_numpy(host).cuda())
    reserved = torch.cuda.memory_reserved()
    captured.close()
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved


def test_calls_under_a_stream_of_torch_are_ordered() -> None:
    torch = library("torch")
    w = torch.from_numpy(image(2, (8, 8, 3, 3))).cuda()
    v = torch.from_numpy(image(3, (8 * 16 * 16, 10))).cuda()
    function = torch_function(torch, w, v)
    captured, side = ct.capture(function), torch.cuda.Stream()
    inputs = [torch.from_numpy(image(seed)).cuda() for seed in range(3)]
    settle()
    wanted = [function(x).cpu().numpy() for x in inputs]
    captured(inputs[0])
    with torch.cuda.stream(side):
        for x, expected in zip(inputs, wanted, strict=True):
            operand = torch.full_like(x, torch.nan)
            delay(side.cuda_stream, 0.05)
            operand.copy_(x)
            y = torch.from_dlpack(captured(operand)) + 0  # a consumer on the same stream
            np.testing.assert_array_equal(y.cpu().numpy(), expected)
    with ct.use(stream=side):
        np.testing.assert_array_equal(captured(inputs[1]).numpy(), wanted[1])


def test_later_allocations_of_torch_leave_the_graph_alone() -> None:
    torch = library("torch")
    function = lambda x: torch.relu(x).mul(3).add(1)  # noqa: E731
    captured = ct.capture(function)
    x = torch.from_numpy(image(1)).cuda()
    captured(x)
    others = [torch.full(SHAPE, float("nan"), device="cuda") for _ in range(16)]
    np.testing.assert_array_equal(captured(x).numpy(), function(x).cpu().numpy())
    assert all(bool(other.isnan().all()) for other in others)


@pytest.mark.parametrize("failing", ["item", "dropout", "cpu"])
def test_call_of_torch_that_no_graph_can_repeat_is_reported(failing: str) -> None:
    torch = library("torch")
    calls: dict[str, Callable[[Any], Any]] = {
        "item": lambda x: x.sum().item(),
        "dropout": torch.nn.functional.dropout,
        "cpu": lambda x: x.cpu(),
    }

    def function(x: Any) -> Any:
        calls[failing](x)
        return torch.relu(x)

    captured = ct.capture(function)
    x = torch.from_numpy(image(1)).cuda()
    with pytest.warns(ct.CudnnWarning, match="function runs without a CUDA graph"):
        captured(x)
    with without_warnings():
        np.testing.assert_array_equal(captured(x).numpy(), image(1).clip(0))
    torch.cuda.synchronize()
    np.testing.assert_array_equal(torch.relu(x).cpu().numpy(), image(1).clip(0))


def test_captured_function_is_a_part_of_a_graph_of_torch(weights: ct.DeviceArray) -> None:
    torch = library("torch")
    out = ct.zeros(SHAPE)
    captured = ct.capture(lambda x: ct.conv(x, weights, padding=1, out=out), operands="pointer")
    x = ct.asarray(image(1))
    wanted = captured(x).numpy()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with ct.use(stream=stream):
        captured.__wrapped__(x)  # makes the workspace of this stream
        settle()
        with torch.cuda.graph(graph, stream=stream):
            captured(x)
    out.fill(0)
    settle()
    graph.replay()
    settle()
    np.testing.assert_array_equal(out.numpy(), wanted)


def test_writes_to_a_copied_operand_do_not_reach_the_caller() -> None:
    torch = library("torch")
    captured = ct.capture(lambda x: (ct.scale(x, alpha=2.0), ct.activation(x))[1])
    for seed in (1, 2, 3):
        x = torch.from_numpy(image(seed)).cuda()
        np.testing.assert_array_equal(captured(x).numpy(), 2 * image(seed).clip(0))
        np.testing.assert_array_equal(x.cpu().numpy(), image(seed))


# --- cupy --------------------------------------------------------------------------------------------------


def test_calls_of_cupy_are_replayed() -> None:
    cupy = library("cupy")
    w = cupy.asarray(image(2, (8, 8, 3, 3)))

    def function(x: Any) -> Any:
        y = cupy.maximum(x, 0) * 2 + 1
        y = cupy.from_dlpack(ct.conv(y, w, padding=1))
        return cupy.exp(y - y.max(axis=1, keepdims=True))

    captured = ct.capture(function)
    check_equal(captured, function, cupy.asarray)
    others = [cupy.full(SHAPE, np.nan, np.float32) for _ in range(16)]
    x = cupy.asarray(image(9))
    wanted = ct.asarray(function(x)).numpy()
    np.testing.assert_array_equal(captured(x).numpy(), wanted)
    assert all(bool(cupy.isnan(other).all()) for other in others)
    captured.close()


def test_host_synchronization_of_cupy_is_reported() -> None:
    cupy = library("cupy")
    captured = ct.capture(lambda x: x * float(x.sum()))
    x = cupy.asarray(np.ones((2, 3), np.float32))
    with pytest.warns(ct.CudnnWarning, match=r"x \* float\(x.sum\(\)\)"):
        captured(x)
    np.testing.assert_array_equal(captured(x).numpy(), np.full((2, 3), 6, np.float32))
