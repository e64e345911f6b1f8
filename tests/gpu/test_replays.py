"""Calls that are launched as CUDA graphs, on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context, testing
from cudnn_ct.cli.selftest_cases import cases
from cudnn_ct.cuda.stream import default_stream
from tests.both.replays import *  # noqa: F403
from tests.both.replays import configured, values
from tests.mixed import MixedCall, make_mixed, offered, on_host

from .conftest import captured, library, own_stream
from .libraries import LEGACY_DEFAULT, busy, delay, settle

# The gradients of algorithm "none" are sums in an order that varies.
RECORDED = [
    case for case in cases() if case.operation not in ("dropout", "RNN") and "algo none" not in case.name
]

pytestmark = pytest.mark.skipif(not ct.config.replay, reason="replays are off")


@pytest.fixture(scope="module")
def side_streams() -> tuple[Any, Any]:
    return own_stream(), own_stream()


def replays() -> int:
    return len(context.current(default_stream(0)).replays)


@pytest.mark.filterwarnings("ignore::cudnn_ct.CudnnWarning")
@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case.name}-{case.dtype}-{case.layout}")
def test_replay_has_the_bits_of_the_call(case: Any) -> None:
    if not offered(case):
        pytest.skip("this cuDNN lacks the function")
    with configured(deterministic=True):
        call = MixedCall(case)
        for _ in range(4):
            call.compare(on_host(call()))


@pytest.mark.filterwarnings("ignore::cudnn_ct.CudnnWarning")
@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case.name}-{case.dtype}-{case.layout}")
def test_replay_on_other_memory_has_the_bits_of_the_call(case: Any) -> None:
    if not offered(case):
        pytest.skip("this cuDNN lacks the function")
    with configured(deterministic=True):
        calls = [MixedCall(case) for _ in range(6)]
        results = [call() for call in calls]  # pending at the same time
        for call, found in zip(calls, results, strict=True):
            call.compare(on_host(found))


def test_most_operations_are_replayed_on_other_memory() -> None:
    moved, seen = set(), set()
    for case in RECORDED:
        if not offered(case) or case.operation in ("fill", "scale"):
            continue
        ct.empty_cache()
        calls = [MixedCall(case) for _ in range(4)]
        last = ct.last_plan()
        seen.add(case.operation)
        if calls and last is not None and "replayed for other pointers" in last.describe():
            moved.add(case.operation)
    assert len(moved) >= 0.7 * len(seen), f"not moved: {sorted(seen - moved)}"


def test_replays_wait_for_pending_work_of_other_streams() -> None:
    x, y, side = ct.zeros((64, 64)), ct.zeros((64, 64)), own_stream()
    ct.fill(x, 4.0, stream=side)  # loads a kernel, which would wait for the delay
    pending = 0
    for value in range(1, 5):  # other processes may take longer than the delay
        ct.activation(x, out=y)
        settle()
        delay(side.__cuda_stream__()[1])
        ct.fill(x, value, stream=side)
        ct.activation(x, out=y)
        pending += busy(LEGACY_DEFAULT)
        assert (y.numpy() == value).all()
    assert pending, "each fill had ended: this shows nothing"


def test_many_streams_and_threads_replay_at_once() -> None:
    rows = [case for case in RECORDED if case.dtype == "float32" and not case.variant and offered(case)]
    calls = [MixedCall(case) for case in rows[:12]]
    streams = [None, own_stream(), own_stream()]
    with testing.replay_after(1):
        threads = [threading.Thread(target=make_mixed, args=(calls, 60, seed, streams)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_capture_has_the_kernels_of_a_call_that_is_replayed() -> None:
    stream = own_stream()
    x, y = ct.asarray(values(0), stream=stream), ct.zeros(values(0).shape, stream=stream)
    for _ in range(3):
        ct.activation(x, out=y, stream=stream)
    graph = captured(stream, lambda: ct.activation(x, out=y, stream=stream))
    ct.empty_cache()  # drops the replay
    y.fill(np.nan, stream=stream)
    graph.launch(stream)
    np.testing.assert_array_equal(y.numpy(), np.maximum(values(0), 0))


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_recording_leaves_a_capture_of_torch_alone(mode: str) -> None:
    torch = library("torch")
    x, y = ct.asarray(values(0)), ct.zeros(values(0).shape)
    z, stream = torch.ones(8, device="cuda"), torch.cuda.Stream()
    graph, before = torch.cuda.CUDAGraph(), replays()
    torch.cuda.synchronize()

    def others() -> None:
        for _ in range(3):
            ct.activation(x, out=y, stream=own)

    def each(calls: Callable[[], object]) -> None:
        thread = threading.Thread(target=calls)
        thread.start()
        thread.join()
        calls()

    own = own_stream()
    each(lambda: ct.activation(x[:1], out=y[:1], stream=own))  # loads kernels, which a capture forbids
    with torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
        z += 1
        each(others)
    graph.replay()
    torch.cuda.synchronize()
    assert z.tolist() == [2] * 8
    assert replays() > before
    np.testing.assert_array_equal(y.numpy(), np.maximum(values(0), 0))


def test_memory_of_replays_is_returned() -> None:
    torch = library("torch")
    keep = [ct.zeros((4, 4)) for _ in range(400)]
    y = ct.zeros((4, 4))
    ct.activation(keep[0], out=y)
    ct.empty_cache()
    torch.cuda.synchronize()
    for x in keep:
        ct.activation(x, out=y)
        ct.activation(x, out=y)
    assert testing.cache_sizes()["replayed nodes"].entries >= 400
    del x
    ct.empty_cache()
    assert replays() == 0


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_inference_of_a_network_is_replayed(mode: Any, layers: int) -> None:
    rng, net = np.random.default_rng(1), ct.RNN(mode, 16, 32, num_layers=layers)
    w = ct.asarray(rng.standard_normal(net.weight_size).astype(np.float32) / 8)
    x = ct.asarray(rng.standard_normal((7, 3, 16)).astype(np.float32))
    with configured(replay=False):
        first = [array for array in net.forward(x, w)[:3] if array is not None]
        expected = [array.numpy() for array in first]
    outs = tuple(ct.zeros(array.shape) for array in expected)
    for _ in range(4):
        net.forward(x, w, out=outs)
        for got, wanted in zip(outs, expected, strict=True):
            np.testing.assert_array_equal(got.numpy(), wanted)
            got.fill(np.nan)
    assert "replayed for" in str(ct.last_plan())


# --- current streams of other libraries --------------------------------------------------------------------


def test_call_on_tensors_works_on_the_current_stream_of_torch() -> None:
    torch = library("torch")
    stream, x = torch.cuda.Stream(), torch.zeros((256, 256), device="cuda")
    y = torch.zeros_like(x)
    with torch.cuda.stream(stream):
        ct.activation(x, out=y)
        torch.cuda.synchronize()
        delay(stream.cuda_stream)
        x.fill_(3)
        result = ct.activation(x, out=y)
        assert busy(stream.cuda_stream)
        assert not busy(LEGACY_DEFAULT), "nothing waits on the default stream"
        assert result.home is not None
        assert result.home.handle == stream.cuda_stream
        assert y.sum().item() == 3 * 256 * 256


def test_plans_on_tensors_work_on_the_current_stream_of_torch() -> None:
    torch = library("torch")
    torch.backends.cudnn.allow_tf32 = False
    x, w = torch.randn(2, 4, 8, 8, device="cuda"), torch.randn(4, 4, 3, 3, device="cuda")
    y, stream, g = torch.empty_like(x), torch.cuda.Stream(), ct.Graph()
    torch.cuda.synchronize()
    plan = ct.conv_plan(x, w, padding=1, precision="float32")
    graph = g.build(g.relu(g.input(tuple(x.shape)) * 2.0))
    for where in (None, stream, None, stream):
        with torch.cuda.stream(where):
            for out in (y, None, y, None):
                for _ in range(12):  # the later calls are replayed
                    x.normal_()
                    given = {} if out is None else {"out": out}
                    convolved = torch.from_dlpack(plan(x, w, **given)) * 1
                    clipped = torch.from_dlpack(graph(x, **given)) * 1
                    expected = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
                    assert float((convolved - expected).abs().max()) < 1e-4
                    assert torch.equal(clipped, (x * 2).relu())
    for other in (x[:1], x.transpose(2, 3)):  # at the same address
        with pytest.raises(ValueError, match="x"):
            plan(other, w, out=y)
    with pytest.raises(TypeError, match="require grad"):
        plan(x.requires_grad_(), w, out=y)
    x.requires_grad_(False)
    with pytest.raises(ValueError, match="overlaps"):
        graph(x, out=x)


def test_graph_of_torch_contains_calls_on_tensors() -> None:
    torch = library("torch")
    x, w = torch.randn(2, 4, 8, 8, device="cuda"), torch.randn(4, 4, 3, 3, device="cuda")
    y, graph, stream = torch.empty_like(x), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            ct.conv(x, w, padding=1, out=y)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        ct.conv(x, w, padding=1, out=y)
    expected = y.clone()
    x.copy_(torch.randn_like(x))
    wanted = ct.conv(x, w, padding=1).numpy()
    graph.replay()
    torch.cuda.synchronize()
    np.testing.assert_array_equal(y.cpu().numpy(), wanted)
    assert not torch.equal(y, expected)


def test_autograd_function_runs_its_backward_on_the_stream_of_its_forward() -> None:
    torch = library("torch")

    class Relu(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y = torch.empty_like(x)
            ct.activation(x.detach(), out=y)
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            x, y = ctx.saved_tensors
            dx = torch.empty_like(x)
            ct.activation_backward(dy, x.detach(), y, out=dx)
            return dx

    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(4):
            x = torch.randn(64, 64, device="cuda", requires_grad=True)
            delay(torch.cuda.current_stream().cuda_stream)
            (Relu.apply(x * 2) * 3).sum().backward()
            np.testing.assert_array_equal(x.grad.cpu().numpy(), 6.0 * (x.detach().cpu().numpy() > 0))


def test_arrays_of_two_libraries_are_ordered_by_events() -> None:
    torch, cupy = library("torch"), library("cupy")
    a, b = torch.zeros((64, 64), device="cuda"), cupy.zeros((64, 64), cupy.float32)
    ours, theirs = torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    out = torch.zeros_like(a)
    with torch.cuda.stream(ours), theirs:
        b.fill(1)  # compiles a kernel, which waits for the device; 0 would be a memset
        ct.op_tensor(a, b, op="add", out=out)
        settle()
        delay(theirs.ptr)
        b.fill(5)
        ct.op_tensor(a, b, op="add", out=out)
        assert busy(ours.cuda_stream)
        assert out.sum().item() == 5 * 64 * 64


ON_DEVICE: dict[str, Callable[[np.ndarray], Any]] = {
    "torch": lambda array: library("torch").from_numpy(array).cuda(),
    "cupy": lambda array: library("cupy").asarray(array),
    "jax": lambda array: library("jax").device_put(array),
}


@pytest.mark.parametrize("name", ON_DEVICE)
def test_views_of_other_libraries_are_read_as_they_are(name: str) -> None:
    array = ON_DEVICE[name](values(0))
    pairs = [
        (array, values(0)),
        (array[:, 1:3], values(0)[:, 1:3]),
        (array[0], values(0)[0]),
        (array.swapaxes(1, 3), values(0).swapaxes(1, 3)),
    ]
    for view, expected in pairs:
        np.testing.assert_array_equal(ct.asarray(view).numpy(), expected)
        np.testing.assert_array_equal(ct.activation(view).numpy(), np.maximum(expected, 0))
