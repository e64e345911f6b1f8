"""The handler of XLA for GPUs, on the fakes: workspaces of XLA, captures, threads that share a context."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct

pytest.importorskip("jax")

from cudnn_ct.gradients import table
from cudnn_ct.gradients.table import NETWORKS, OPERATIONS
from cudnn_ct.jax import kernels
from cudnn_ct.jax.calls import Call, call_of
from cudnn_ct.jax.networks import ON_CPU
from cudnn_ct.ops import _call, _replay
from cudnn_ct.shapes.rnn import rnn_spec, rnn_weight_size
from tests.mixed import in_thread

from .cudnn import FakeCudnn
from .host import Host

X, W = (2, 4, 6, 6), (8, 4, 3, 3)


@pytest.fixture(autouse=True)
def _forget(fake: FakeCudnn) -> Iterator[None]:
    yield
    kernels.learned.cache_clear()
    kernels._contexts.clear()


def call(name: str, **shapes: Any) -> Call:
    params = tuple((one, param.default) for one, param in OPERATIONS[name].params.items())
    return call_of(name, params, tuple((one, shape, "float32") for one, shape in shapes.items()))


def frame(of: Call, host: Host, stream: int, operands: list[Any], workspace: int = 0) -> Any:
    """Return a call of XLA, whose memory is that of arrays."""
    outs = [ct.empty(spec.shape, spec.dtype) for spec in of.results]
    outs += [ct.empty((workspace,), "uint8")] if workspace else []
    dims = SimpleNamespace(rank=1, dims=[workspace])
    buffers = SimpleNamespace(buffers=[[dims]] * len(outs))
    return SimpleNamespace(
        call=of.text().encode(),
        operands=tuple(array.pointer for array in operands),
        results=tuple(array.pointer for array in outs),
        raw=SimpleNamespace(results=buffers),
        place=lambda: (stream, 0),
        kept=(operands, outs),
    )


def values(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("workspace", [0, 2**20])
def test_handler_computes_in_the_memory_of_xla(fake: FakeCudnn, host: Host, workspace: int) -> None:
    arrays = values(X, W)
    made = frame(call("conv", x=X, w=W), host, host.new_stream(), [ct.asarray(a) for a in arrays], workspace)
    kernels.on_gpu(made)
    np.testing.assert_array_equal(made.kept[1][0].numpy(), ct.reference.conv(*arrays))


def test_handler_computes_without_an_optional_operand(fake: FakeCudnn, host: Host) -> None:
    arrays, of = values(X, W), call("conv_bias_activation", x=X, w=W)
    assert kernels.learned(of.text()) is not None
    made = frame(of, host, host.new_stream(), [ct.asarray(a) for a in arrays])
    kernels.on_gpu(made)
    np.testing.assert_array_equal(made.kept[1][0].numpy(), np.maximum(ct.reference.conv(*arrays), 0))


def test_learned_call_needs_no_memory_later(fake: FakeCudnn, host: Host) -> None:
    """A call with the workspace that was learned allocates nothing, on a stream that is captured too."""
    of = call("conv", x=X, w=W)
    needs = kernels.learned(of.text())
    arrays, stream = values(X, W), host.new_stream()
    made = frame(of, host, stream, [ct.asarray(a) for a in arrays], needs.workspace)
    before = host.calls.count("cuMemAllocFromPoolAsync")
    capture = host.capturing.add(stream)
    kernels.on_gpu(made)
    assert host.capturing.pop(stream) is capture
    assert capture.valid
    assert host.calls.count("cuMemAllocFromPoolAsync") == before
    capture.launch()
    np.testing.assert_array_equal(made.kept[1][0].numpy(), ct.reference.conv(*arrays))


def test_threads_of_xla_share_one_context(fake: FakeCudnn, host: Host) -> None:
    arrays = values(X, W)
    of = call("conv", x=X, w=W)
    frames = [frame(of, host, host.new_stream(), [ct.asarray(a) for a in arrays]) for _ in range(3)]
    for one in frames:
        in_thread(kernels.on_gpu, one)
    assert len(kernels._contexts) == 1
    for one in frames:
        np.testing.assert_array_equal(one.kept[1][0].numpy(), ct.reference.conv(*arrays))


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("conv_backward_filter", {"dy": (2, 8, 4, 4), "x": X}),
        ("pool", {"x": X}),
        ("softmax", {"x": (3, 4)}),
        ("batch_norm_training", {"x": X, "scale": (4,), "bias": (4,)}),
    ],
)
def test_learned_calls_are_captured(fake: FakeCudnn, host: Host, name: str, shapes: Any) -> None:
    params = {one: param.default for one, param in OPERATIONS[name].params.items()}
    if name == "conv_backward_filter":
        params["w_shape"] = W
    arrays = tuple((one, shape, "float32") for one, shape in shapes.items())
    needs = kernels.learned(call_of(name, tuple(params.items()), arrays).text())
    assert needs.capturable


def test_replays_belong_to_the_memory_that_is_lent(fake: FakeCudnn, host: Host) -> None:
    arrays, of, stream = values(X, W), call("conv", x=X, w=W), host.new_stream()
    operands = [ct.asarray(a) for a in arrays]
    one, other = (frame(of, host, stream, operands, 64) for _ in range(2))
    other = SimpleNamespace(**{**vars(other), "results": (one.results[0], other.results[1])})
    for _ in range(12):
        kernels.on_gpu(one)
    made = len(host.launches)
    assert made
    kernels.on_gpu(other)
    assert len(host.launches) == made
    kernels.on_gpu(one)
    assert len(host.launches) == made + 1


@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_handler_runs_a_network_and_its_gradients(
    fake: FakeCudnn, host: Host, mode: str, states: bool
) -> None:
    name, cells = ("lstm", ("h0", "c0")) if mode == "lstm" else ("rnn", ("h0",))
    spec = rnn_spec(mode, 3, 4)
    params = {one: param.default for one, param in NETWORKS[name].params.items()}
    params |= {"mode": mode, "hidden_size": 4}
    rng = np.random.default_rng(0)
    shapes = {"x": (5, 2, 3), "w": (rnn_weight_size(spec),), **dict.fromkeys(cells, (1, 2, 4))}
    shapes |= {"dy": (5, 2, 4), **{f"d{one[0]}y": (1, 2, 4) for one in cells}}
    given = {one: rng.standard_normal(shape).astype("float32") for one, shape in shapes.items()}
    given |= {} if states else dict.fromkeys(cells)

    def run(which: str) -> list[np.ndarray]:
        names = [one for one in NETWORKS[which].operands if given[one] is not None]
        arrays = tuple((one, shapes[one], "float32") for one in names)
        of = call_of(which, tuple(params.items()), arrays)
        assert kernels.learned(of.text()) is not None
        made = frame(of, host, host.new_stream(), [ct.asarray(given[one]) for one in names])
        kernels.on_gpu(made)
        return [array.numpy() for array in made.kept[1]]

    expected = ON_CPU[name](*(given[one] for one in NETWORKS[name].operands), **params)
    for one, other in zip(run(name), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    backward = f"{name}_backward"
    expected = ON_CPU[backward](**{one: given[one] for one in NETWORKS[backward].operands}, **params)
    for one, other in zip(run(backward), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    table._network.cache_clear()


def test_workspace_is_that_of_the_selected_plan(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run may try candidates and compare results, which want more."""
    run, wanted = kernels._run, iter((2**30, 2**10))

    def tries(*arguments: Any) -> None:
        run(*arguments)
        where = kernels.context.of_device(0)
        if where.lent is not None and where.lent.size == 0:
            where.lent.wanted = next(wanted)

    monkeypatch.setattr(kernels, "_run", tries)
    assert kernels.learned(call("softmax", x=(3, 4)).text()).workspace == 2**10


def test_workspace_is_learned_without_replays(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay asks for no workspace, and its captured call would find none."""
    monkeypatch.setattr(_replay, "REPEATS", 1)
    run, runs = _call.replayed, []

    def noted(*arguments: Any, **keywords: Any) -> bool:
        runs.append(run(*arguments, **keywords))
        return bool(runs[-1])

    monkeypatch.setattr(_call, "replayed", noted)
    kernels.learned(call("softmax", x=(3, 4)).text())
    assert runs
    assert not any(runs)
