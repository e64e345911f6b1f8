"""Functions that are recorded as CUDA graphs: replays equal calls, and failures run without a graph."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct import context, testing
from cudnn_ct.cuda import graph
from cudnn_ct.cuda import stream as streams
from tests.mixed import in_threads
from tests.unit.cuda_driver import CUresult

from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .installed import cudnn_installed, host_installed

pytestmark = pytest.mark.usefixtures("fake")

SHAPE = (2, 4, 6, 6)
SIDE = 0x77


def image(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def awaited(host: Host, waiting: int) -> list[int]:
    """Return the streams that a stream waited for."""
    return [entry[2].stream for entry in host.log if entry[:2] == ("wait", waiting)]


def relu(x: Any) -> ct.DeviceArray:
    return ct.activation(x)


@contextmanager
def without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def called_once() -> tuple[Any, ct.DeviceArray]:
    """Return a captured function after its first call, and its operand."""
    captured, x = ct.capture(relu), ct.full(SHAPE, 1)
    captured(x)
    return captured, x


# --- results -----------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """Operations one after another, applied to x and a second operand b."""

    names: list[str]
    seeds: list[int]
    view: bool


OPERATIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "conv": lambda x, b, w: ct.conv(x, w, padding=1),
    "relu": lambda x, b, w: ct.activation(x),
    "add": lambda x, b, w: ct.add(x, b),
    "pool": lambda x, b, w: ct.pool(x, window=3, stride=1, padding=1),
    "in place": lambda x, b, w: ct.activation(x, mode="tanh", out=x.copy()),
    "view": lambda x, b, w: ct.transform(x.transpose(0, 1, 3, 2)),
    "copy": lambda x, b, w: x.copy(),
    "constant": lambda x, b, w: ct.add(x, ct.full((1, 4, 1, 1), 2)),
}
cases = st.builds(
    Case,
    st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=5),
    st.lists(st.integers(0, 99), min_size=2, max_size=4),
    st.booleans(),
)


@given(cases)
def test_replays_equal_eager_calls(case: Case) -> None:
    with host_installed() as host, cudnn_installed(host), without_warnings():
        check_replays(case, host)


def check_replays(case: Case, host: Host) -> None:
    w = ct.asarray(image(100, (4, 4, 3, 3)))

    def function(x: Any, b: Any) -> Any:
        for name in case.names:
            x = OPERATIONS[name](x, b, w)
        return x

    def operands(seed: int) -> tuple[Any, Any]:
        wide = ct.asarray(image(seed, (2, 4, 6, 12)))
        return wide[..., ::2] if case.view else ct.asarray(image(seed)), ct.asarray(image(seed + 1))

    captured = ct.capture(function)
    with testing.replay_after(10**9):  # no call alone has a graph
        for seed in case.seeds:
            wanted = function(*operands(seed)).numpy()
            np.testing.assert_array_equal(captured(*operands(seed)).numpy(), wanted)
    assert len(host.launches) == len(case.seeds) - 1
    captured.close()
    assert not host.executables


def test_replay_calls_no_function_of_cudnn_and_runs_no_python(fake: FakeCudnn, host: Host) -> None:
    calls = []
    captured = ct.capture(lambda x: calls.append(x) or ct.activation(x))
    x = ct.full(SHAPE, 1)
    captured(x)
    captured(x)
    fake.calls.clear()
    host.calls.clear()
    captured(x)
    assert len(calls) == 2
    assert not fake.calls
    assert set(host.calls) == {"cuCtxGetDevice", "cuMemcpyDtoDAsync", "cuGraphLaunch"}
    assert len(host.launches) == 2


def test_first_call_updates_state_once() -> None:
    total = ct.zeros(SHAPE)
    captured = ct.capture(lambda x: ct.op_tensor(total, x, op="add", out=total))
    x = ct.full(SHAPE, 2)
    for calls in (1, 2, 3):
        captured(x)
        assert (total.numpy() == 2 * calls).all()


WRITES: dict[str, Callable[[Any], Any]] = {
    "in place": lambda x: ct.activation(ct.scale(x, alpha=2)),
    "out": lambda x: ct.activation(x, mode="tanh", out=x),
    "view": lambda x: ct.transform(ct.fill(x[:, 1:], 7)),
    "unrecorded": lambda x: ct.asarray(ct.scale(x, alpha=2).numpy()),
}


@pytest.mark.filterwarnings("ignore:.*runs without a CUDA graph:cudnn_ct.CudnnWarning")
@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_writes_to_a_copied_operand_do_not_reach_the_caller(host: Host, write: str, foreign: bool) -> None:
    captured = ct.capture(WRITES[write])
    for seed in (1, 2, 3):
        values = image(seed)[:, 1:, :, 2:]
        x: Any = ForeignArray(host, values) if foreign else ct.asarray(image(seed))[:, 1:, :, 2:]
        expected = WRITES[write](ct.asarray(values)).numpy()
        np.testing.assert_array_equal(captured(x).numpy(), expected)
        np.testing.assert_array_equal(x.numpy(), values)


def test_writes_to_a_copied_operand_do_not_reach_the_caller_within_another_capture(host: Host) -> None:
    inner = ct.capture(lambda x, y: ct.activation(ct.scale(x, alpha=2), out=y))
    x, y = ct.full(SHAPE, 1), ct.zeros(SHAPE)
    inner(x, y)
    side = ct.Stream(host.new_stream(), 0, owner=streams._Own())
    with ct.use(stream=side):
        ct.activation(x, out=y)  # makes what this stream needs
        with host.captured(side.handle) as graph:
            graph.deferred = True
            result = inner(x, y)
    y.fill(0)
    x.fill(3)
    graph.launch()
    np.testing.assert_array_equal(result.numpy(), 6)
    np.testing.assert_array_equal(x.numpy(), 3)
    np.testing.assert_array_equal(y.numpy(), 0)
    context._pinned.clear()


def test_results_keep_their_structure() -> None:
    class Pair(NamedTuple):
        first: Any
        rest: Any

    captured = ct.capture(lambda x: Pair(relu(x), {"a": [x, (ct.scale(x.copy(), alpha=2), 3)], "b": None}))
    for seed in (1, 2, 3):
        found = captured(ct.asarray(image(seed)))
        assert type(found) is Pair
        assert list(found.rest) == ["a", "b"]
        assert found.rest["a"][1][1] == 3
        assert found.rest["b"] is None
        np.testing.assert_array_equal(found.first.numpy(), image(seed).clip(0))
        np.testing.assert_array_equal(found.rest["a"][0].numpy(), image(seed))
        np.testing.assert_array_equal(found.rest["a"][1][0].numpy(), 2 * image(seed))


def test_results_are_overwritten_by_the_next_replay_and_copies_are_not() -> None:
    captured, _ = called_once()
    y = captured(ct.full(SHAPE, 2))
    kept = y.copy()
    assert captured(ct.full(SHAPE, 3)) is y
    assert (y.numpy() == 3).all()
    assert (kept.numpy() == 2).all()


def test_closed_result_is_made_again() -> None:
    captured, _ = called_once()
    for value in (2, 3):
        with captured(ct.full(SHAPE, value)) as y:
            assert (y.numpy() == value).all()
        assert y.closed


def test_signature_has_shapes_types_and_values() -> None:
    calls = []
    captured = ct.capture(lambda x, power=1, mode="relu": calls.append(power) or ct.activation(x, mode=mode))
    x = ct.full(SHAPE, 1)
    for arguments in ({}, {"power": 1}, {"power": 1.0}, {"power": True}, {"mode": "tanh"}):
        for _ in range(2):
            captured(x, **arguments)
    captured(ct.full((1, 4, 6, 6), 1))
    captured(ct.full(SHAPE, 1, "float64"))
    captured(x[:, ::2])
    assert len(calls) == 2 * 8
    assert captured.describe().splitlines()[0].endswith("<locals>.<lambda>, graphs: 8")
    captured(x, mode="relu", power=1)
    captured(x, power=1, mode="relu")
    assert len(calls) == 2 * 9
    captured(ct.full((1, 4, 6, 6), 1), power=1)
    assert len(calls) == 2 * 10


def test_operands_may_be_in_containers() -> None:
    captured = ct.capture(lambda pair, *, more: ct.add(ct.add(*pair), more["b"]))
    for seed in (1, 2, 3):
        x, y, b = (ct.asarray(image(seed + place)) for place in (0, 1, 2))
        found = captured([x, y], more={"b": b})
        np.testing.assert_array_equal(found.numpy(), x.numpy() + y.numpy() + b.numpy())


def test_least_recently_used_graph_is_destroyed(host: Host) -> None:
    calls = []
    captured = ct.capture(lambda x: calls.append(x.shape) or ct.activation(x), max_signatures=2)
    one, two, three = (ct.full((n, 2, 3, 3), n) for n in (1, 2, 3))
    for x in (one, two, one, three):
        captured(x)
    assert len(host.executables) == 2
    calls.clear()
    captured(one)
    assert not calls
    captured(two)
    assert len(calls) == 2


def test_array_of_another_library_is_an_operand(host: Host) -> None:
    captured = ct.capture(relu)
    for seed in (1, 2, 3):
        y = captured(ForeignArray(host, image(seed)))
        np.testing.assert_array_equal(y.numpy(), image(seed).clip(0))
    assert len(host.launches) == 2


def test_unaligned_operands_and_empty_ones_are_copied() -> None:
    flat = [ct.asarray(image(seed, (65,)))[1:].reshape(1, 4, 4, 4) for seed in (1, 2)]
    captured = ct.capture(lambda x, empty: (ct.activation(x), empty.shape))
    for x in flat:
        y, shape = captured(x, ct.zeros((0, 3)))
        np.testing.assert_array_equal(y.numpy(), x.numpy().clip(0))
        assert shape == (0, 3)


def test_method_and_decorator_with_arguments_are_captured() -> None:
    class Network:
        """A docstring."""

        def __init__(self, factor: float) -> None:
            self.factor = factor

        @ct.capture(max_signatures=4)
        def predict(self, x: Any) -> Any:
            """Scale x."""
            return ct.scale(x.copy(), alpha=self.factor)

    x = ct.full(SHAPE, 1)
    networks = [Network(2), Network(3)]
    for _ in range(2):
        assert [float(one.predict(x).numpy().max()) for one in networks] == [2, 3]
    assert Network.predict.__doc__ == "Scale x."
    Network.predict.close()


@pytest.mark.parametrize("lengths", [None, (3, 1)])
def test_recurrent_network_is_replayed(host: Host, lengths: Any) -> None:
    network = ct.RNN("gru", 4, 4)
    w = ct.asarray(image(1, (network.weight_size,)) / 8)
    captured = ct.capture(lambda x: network.forward(x, w, lengths=lengths)[:2])
    with without_warnings():
        for seed in (1, 2, 3):
            x = ct.asarray(image(seed, (3, 2, 4)))
            wanted = [one.numpy() for one in network.forward(x, w, lengths=lengths)[:2]]
            for result, expected in zip(captured(x), wanted, strict=True):
                np.testing.assert_array_equal(result.numpy(), expected)
    assert len(host.launches) == 2
    with pytest.warns(ct.CudnnWarning, match="only passes with training=False can be captured"):
        ct.capture(lambda x: network.forward(x, w, training=True).y)(x)


def test_ctc_loss_with_labels_on_the_host_is_replayed(host: Host) -> None:
    captured = ct.capture(lambda x: ct.ctc_loss(x, [1, 2, 1], [2, 1], [4, 3]).loss)
    with without_warnings():
        for seed in (1, 2, 3):
            x = ct.asarray(image(seed, (4, 2, 3)))
            wanted = ct.ctc_loss(x, [1, 2, 1], [2, 1], [4, 3]).loss.numpy()
            np.testing.assert_array_equal(captured(x).numpy(), wanted)
    assert len(host.launches) == 2


# --- operands by pointer -----------------------------------------------------------------------------------


def test_operand_by_pointer_is_read_and_written_in_place(host: Host) -> None:
    captured = ct.capture(lambda x, out: ct.activation(x, out=out), operands="pointer")
    x, y = ct.full(SHAPE, 1), ct.zeros(SHAPE)
    captured(x, y)
    for value in (2, 3):
        x.fill(value)
        assert captured(x, y) is y
        assert (y.numpy() == value).all()
    assert len(host.launches) == 2
    other = ct.full(SHAPE, 7)
    captured(other, y)
    assert len(host.executables) == 2
    assert (y.numpy() == 7).all()


def test_operand_by_pointer_stays_in_memory(host: Host) -> None:
    captured = ct.capture(relu, operands="pointer")
    x = ct.full(SHAPE, 1)
    captured(x)
    address = x.pointer
    del x
    assert address in host.live
    captured.close()
    gc.collect()
    assert address not in host.live


# --- streams -----------------------------------------------------------------------------------------------


def test_launch_waits_for_operands_and_arrays_from_outside(host: Host) -> None:
    w, x = ct.full(SHAPE, 1), ct.full(SHAPE, 2)
    captured = ct.capture(lambda x: ct.add(x, w))
    captured(x)
    captured(x)
    host.log.clear()
    captured(x)
    assert not [entry for entry in host.log if entry[0] in ("wait", "record")]
    for array in (x, w):
        array.fill(5, stream=SIDE)
        host.log.clear()
        y = captured(x)
        assert host.orders(SIDE, 1)
        array.fill(5)
    host.log.clear()
    w.fill(5, stream=SIDE)
    assert host.orders(1, SIDE), "the graph reads w"
    assert (y.numpy() == 10).all()


@pytest.mark.parametrize("place", [0, 1], ids=["operand", "array from outside"])
def test_operand_is_overwritten_after_a_launch_on_another_stream(host: Host, place: int) -> None:
    arrays = ct.full(SHAPE, 1), ct.full(SHAPE, 2)
    captured = ct.capture(lambda x: ct.add(x, arrays[1]))
    captured(arrays[0])
    with ct.use(stream=SIDE):
        captured(arrays[0])
        captured(arrays[0])
    host.log.clear()
    arrays[place].fill(3)
    assert SIDE in awaited(host, 1)


def test_operand_with_strides_below_0_is_copied() -> None:
    captured = ct.capture(lambda x: ct.activation(x[:, ::-1]))
    for seed in (1, 2, 3):
        found = captured(ct.asarray(image(seed))[:, ::-1])
        np.testing.assert_array_equal(found.numpy(), image(seed).clip(0))


def test_first_launch_on_a_stream_waits_for_the_memory_and_for_other_launches(host: Host) -> None:
    captured, x = called_once()
    y = captured(x)
    y.fill(9, stream=0x99)
    with ct.use(stream=SIDE):
        own = ct.full(SHAPE, 1)
        host.log.clear()
        captured(own)
    assert host.orders(1, SIDE), "the earlier launch"
    assert host.orders(0x99, SIDE), "it overwrites y"
    assert streams.own_stream(0).handle in awaited(host, SIDE), "which allocated the memory of the graph"
    with ct.use(stream=0x55):
        own = ct.full(SHAPE, 1)
        host.log.clear()
        captured(own)
    assert awaited(host, 0x55)[0] == SIDE, "the earlier launch, before operands are copied"


def test_array_that_the_graph_writes_is_ordered(host: Host) -> None:
    state = ct.zeros(SHAPE)
    captured = ct.capture(lambda x: ct.activation(x, out=state))
    x = ct.full(SHAPE, 2)
    captured(x)
    assert state.writer is streams.default_stream(0), "recorded work has not run"
    with ct.use(stream=SIDE) as side:
        captured(x)
    assert state.writer is side
    host.log.clear()
    state.numpy()
    captured(x)
    assert host.orders(SIDE, 1)
    assert state.writer is streams.default_stream(0)


def test_results_that_are_operands_may_be_passed_back() -> None:
    """They lie in the memory of operands, which the copies of others overwrite."""

    def fibonacci(now: Any, before: Any) -> Any:
        return ct.add(now, before), now

    def swapped(a: Any, b: Any) -> Any:
        return b, a, ct.activation(a)

    def shifted(a: Any) -> Any:
        return a[:, 1:], ct.activation(a)

    captured = ct.capture(fibonacci)
    pair = ct.full(SHAPE, 1), ct.full(SHAPE, 1)
    for expected in ((2, 1), (3, 2), (5, 3), (8, 5), (13, 8)):
        pair = captured(*pair)
        assert tuple(float(one.numpy().max()) for one in pair) == expected
    captured = ct.capture(swapped)
    pair = ct.full(SHAPE, 1), ct.full(SHAPE, 2)
    for expected in ((2, 1), (1, 2), (2, 1)):
        *pair, _ = captured(*pair)
        assert tuple(float(one.numpy().max()) for one in pair) == expected
    captured = ct.capture(shifted)
    x = image(7)
    view, _ = captured(ct.asarray(x))
    view, _ = captured(ct.asarray(x))
    np.testing.assert_array_equal(view.numpy(), x[:, 1:])


def test_operand_is_copied_after_readers_of_a_result_in_its_memory(host: Host) -> None:
    captured = ct.capture(lambda x: (x, ct.activation(x)))
    captured(ct.full(SHAPE, 1))
    y, _ = captured(ct.full(SHAPE, 2))
    ct.activation(y, stream=SIDE)
    host.calls.clear()
    captured(ct.full(SHAPE, 3))
    made = [one for one in host.calls if one in ("cuStreamWaitEvent", "cuMemcpyDtoDAsync", "cuGraphLaunch")]
    assert made == ["cuStreamWaitEvent", "cuMemcpyDtoDAsync", "cuGraphLaunch"]


def test_array_whose_views_are_written_keeps_its_writer(host: Host) -> None:
    state = ct.zeros((2, *SHAPE[1:]))

    def halves(x: Any) -> None:
        ct.activation(x, out=state[:1])
        ct.activation(x, out=state[1:])

    captured = ct.capture(halves)
    x = ct.full((1, *SHAPE[1:]), 2)
    with ct.use(stream=SIDE) as side:
        captured(x)
        assert state.writer is side
        captured(x)
    assert state.writer is side
    host.log.clear()
    state.numpy()
    assert (state.numpy() == 2).all()


def test_results_over_common_memory_share_their_order(host: Host) -> None:
    def two(x: Any) -> Any:
        y = ct.activation(x)
        return y, y[:1], ct.activation(y)

    captured = ct.capture(two)
    x = ct.full(SHAPE, 1)
    captured(x)
    y, view, other = captured(x)
    y.fill(9, stream=SIDE)
    host.log.clear()
    ct.activation(other)
    assert not host.orders(SIDE, 1)
    ct.activation(view)
    assert host.orders(SIDE, 1)


def test_launches_on_two_streams_are_ordered(host: Host) -> None:
    captured, x = called_once()
    y = captured(x)
    host.log.clear()
    with ct.use(stream=SIDE):
        z = captured(x)
    assert host.orders(1, SIDE)
    assert z.pointer == y.pointer
    assert z.writer.handle == SIDE
    z.fill(9, stream=0x99)
    host.log.clear()
    with ct.use(stream=SIDE):
        assert captured(x) is z
    assert host.orders(0x99, SIDE), "it overwrites the result"
    host.log.clear()
    assert captured(x) is y
    assert host.orders(SIDE, 1)


def test_memory_is_freed_after_launches_on_all_streams(host: Host) -> None:
    captured, x = called_once()
    side = ct.Stream(host.new_stream(), 0, owner=streams._Own())
    y = captured(x)
    with ct.use(stream=side):
        captured(x)
    home = streams.own_stream(0).handle
    host.log.clear()
    captured.close()
    gc.collect()
    recorded = [entry[:2] for entry in host.log]
    assert ("record", 1) in recorded, "the graph is kept until its launches are complete"
    assert ("record", side.handle) in recorded
    assert (y.numpy() == 1).all(), "a result keeps the memory"
    host.log.clear()
    del y
    assert host.orders(1, home)
    assert host.orders(side.handle, home)


def test_captured_function_is_a_part_of_another_capture(host: Host) -> None:
    inner = ct.capture(relu)
    outer = ct.capture(lambda x: ct.add(inner(x), x))
    x = ct.full(SHAPE, 2)
    inner(x)
    with without_warnings():
        for seed in (1, 2):
            np.testing.assert_array_equal(
                outer(ct.asarray(image(seed))).numpy(), image(seed).clip(0) + image(seed)
            )
    assert len(host.executables) == 2
    side = ct.Stream(host.new_stream(), 0, owner=streams._Own())
    with ct.use(stream=side), host.captured(side.handle) as graph:
        graph.deferred = True
        inner(x)
    assert graph.graph
    assert len(host.launches) == 2, "by the first call of outer, and by the second"


def test_threads_have_graphs_of_their_own() -> None:
    captured = ct.capture(relu)

    def work(number: int) -> None:
        for seed in range(number, number + 4):
            np.testing.assert_array_equal(captured(ct.asarray(image(seed))).numpy(), image(seed).clip(0))
        ct.synchronize()

    in_threads(3, work)
    captured.close()


def test_graph_is_launched_on_the_device_of_its_operands(host: Host) -> None:
    captured = ct.capture(relu)
    for device in (0, 1):
        with ct.use(device=device):
            x = ct.full(SHAPE, 1 + device)
        for _ in range(2):
            y = captured(x)
            assert y.device == device
            assert (y.numpy() == 1 + device).all()
        del x, y
    with ct.use(device=1):
        x = ct.full(SHAPE, 1)
    side = ct.Stream(host.new_stream(), 1, owner=streams._Own())
    with ct.use(stream=side), host.captured(side.handle):
        streams.set_device(0)
        captured(x)  # its kernels are captured
        assert host.current == 0
    elsewhere = ct.full(SHAPE, 1)
    with ct.use(device=1):
        x = ct.full(SHAPE, 1)
        with pytest.raises(ValueError, match="an operand is on another device: got 0, expected 1"):
            ct.capture(ct.add)(x, elsewhere)


# --- memory ------------------------------------------------------------------------------------------------


def test_intermediate_memory_is_reused_within_the_graph(host: Host) -> None:
    def chain(x: Any) -> Any:
        for _ in range(10):
            x = ct.activation(x, mode="tanh")
        return x

    captured = ct.capture(chain)
    captured(ct.full(SHAPE, 1))
    size = 4 * int(np.prod(SHAPE))
    nbytes = int(re.findall(r"([\d,]+) bytes", captured.describe())[0].replace(",", ""))
    assert 3 * size <= nbytes < 4 * size + 2048
    captured(ct.full((1, 4, 6, 6), 1))
    assert len(graph._idle_streams[0]) == 1, "both were recorded on one stream"
    captured.close()
    gc.collect()
    assert not host.executables


def test_array_kept_by_the_function_keeps_its_memory() -> None:
    kept = []
    captured = ct.capture(lambda x: kept.append(ct.activation(x)) or ct.add(x, x))
    x = ct.full(SHAPE, 3)
    captured(x)
    recorded = kept[1]
    captured(x)
    assert (recorded.numpy() == 3).all()
    captured.close()
    gc.collect()
    assert (recorded.numpy() == 3).all()
    assert not graph._idle_streams, "the array belongs to the stream"


def test_workspace_belongs_to_the_graph(fake: FakeCudnn) -> None:
    fake.workspaces = {"GEMM": 4096, "IMPLICIT_GEMM": 4096}
    w = ct.full((4, 4, 3, 3), 1)
    captured = ct.capture(lambda x: ct.conv(x, w, algo="none", padding=1))
    x = ct.asarray(image(1))
    wanted = captured(x).numpy()
    used = [args[-5] for name, args in fake.calls if name == "cudnnConvolutionForward"]
    assert len(set(used)) == len(used) == 2
    before = len(context._pinned)
    np.testing.assert_array_equal(captured(x).numpy(), wanted)
    assert len(context._pinned) == before == 0


def test_capture_is_collected_with_its_cycle(host: Host) -> None:
    class Owner:
        def __init__(self) -> None:
            self.w = ct.full(SHAPE, 1)
            self.call = ct.capture(self.compute)

        def compute(self, x: Any) -> Any:
            return ct.add(x, self.w)

    owner = Owner()
    owner.call(ct.full(SHAPE, 1))
    owner.call(ct.full(SHAPE, 1))
    del owner
    gc.collect()
    assert not host.executables


def test_description_counts_graphs_while_another_thread_drops_them() -> None:
    captured = ct.capture(relu)
    captured(ct.zeros(SHAPE))
    (graphs,) = captured._of_threads()

    class Signature:
        """A key whose entry is dropped when it is looked up, as another thread may do it at that time."""

        dropped = False

        def __hash__(self) -> int:
            if self.dropped:
                graphs.clear()
            return 1

    graphs[signature := Signature()] = None  # type: ignore[index]
    signature.dropped = True
    assert "signatures without a graph: 1" in captured.describe()
    assert "graphs 1" in repr(captured)


def test_first_call_returns_its_results_when_another_thread_closes_the_function() -> None:
    class Closed(OrderedDict[Any, Any]):
        """Graphs that another thread drops when they are too many, before the oldest one is dropped."""

        def __len__(self) -> int:
            if (found := super().__len__()) > 1:
                self.clear()
            return found

    captured = ct.capture(relu, max_signatures=1)
    captured(ct.zeros(SHAPE))
    captured._thread.graphs.by_signature = Closed(captured._graphs())
    assert captured(ct.full((3,), 2)).numpy().tolist() == [2, 2, 2]


def test_close_frees_everything_and_ends_calls(host: Host) -> None:
    captured = ct.capture(relu)
    x = ct.full(SHAPE, 1)
    before = host.used()
    y = captured(x)
    del y
    captured(x)
    captured.close()
    captured.close()
    assert host.used() == before
    assert not host.executables
    assert "closed" in repr(captured)
    with pytest.raises(ValueError, match=r"CapturedFunction relu: closed> cannot be called"):
        captured(x)


def test_capture_cannot_be_copied_or_pickled() -> None:
    for function in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            function(ct.capture(relu))


# --- failures ----------------------------------------------------------------------------------------------


def synchronized(x: Any) -> Any:
    y = ct.activation(x)
    ct.synchronize()  # this line
    return y


def read_back(x: Any) -> Any:
    return ct.scale(x.copy(), alpha=float(x.numpy().max()))  # this line


def copied_from_host(x: Any) -> Any:
    return ct.add(x, ct.asarray(np.ones(SHAPE, np.float32)))  # this line


def dropped(x: Any) -> Any:
    return ct.dropout(x, STATES[0]).y  # this line


def on_another_stream(x: Any) -> Any:
    return ct.activation(x, stream=0x99)  # this line


def filled_on_another_stream(x: Any) -> Any:
    STATES.append(ct.empty(SHAPE))
    STATES[-1].fill(1, stream=0x99)  # this line
    return ct.activation(x)


def on_another_device(x: Any) -> Any:
    with ct.use(device=1):  # this line
        ct.full(SHAPE, 1)
    return ct.activation(x)


def caught(x: Any) -> Any:
    with suppress(ct.CudnnError):
        x.numpy()  # this line
    return ct.activation(x)


def second_time(x: Any) -> Any:
    STATES.append(None)
    if len(STATES) % 2 == 0:
        raise KeyError("second")  # this line
    return ct.activation(x)


def odd_result(x: Any) -> Any:
    return ct.activation(x), object()


STATES: list[Any] = []
FAILURES = {
    synchronized: "waiting for Stream.* on the host cannot be recorded",
    read_back: "a copy to the host cannot be recorded",
    copied_from_host: "a copy from the host cannot be recorded",
    dropped: "dropout, whose random state each call changes, cannot be recorded",
    on_another_stream: r"a call on Stream\(0x99, device=0\) cannot be recorded",
    filled_on_another_stream: r"a call on Stream\(0x99, device=0\) cannot be recorded",
    on_another_device: "a change to device 1 cannot be recorded",
    caught: "a copy to the host cannot be recorded",
    second_time: "KeyError: 'second'",
    odd_result: "the function returns a object",
}


@pytest.mark.parametrize("function", FAILURES, ids=lambda function: function.__name__)
def test_failure_is_reported_once_and_calls_run_without_a_graph(
    function: Callable[[Any], Any], host: Host
) -> None:
    STATES[:] = [ct.DropoutState(0.5, seed=1)] if function is dropped else []
    calls = []
    captured = ct.capture(lambda x: calls.append(x) or function(x))
    x = ct.full(SHAPE, 1)
    with pytest.warns(ct.CudnnWarning) as noted:
        first = captured(x)
    text = str(noted[0].message)
    assert len(noted) == 1
    assert noted[0].filename == __file__
    assert re.search(FAILURES[function], text), text
    assert "<lambda> runs without a CUDA graph for these operands: " in text
    if function is not odd_result:
        assert re.search(rf"# this line \({re.escape(__file__)}:\d+\) raised", text), text
    assert len(calls) == 2
    if function is not second_time:
        with without_warnings():
            second = captured(x)
        assert len(calls) == 3
        del second
    assert not host.capturing
    assert not host.launches
    assert not host.executables
    if function is not filled_on_another_stream:
        assert len(graph._idle_streams[0]) == 1, "nothing refers to memory of the recording"
    del first
    calls.clear()
    STATES.clear()
    assert (ct.activation(x).numpy() == 1).all()


def test_other_signatures_are_recorded_after_a_failure(host: Host) -> None:
    captured = ct.capture(lambda x, read: (read and x.numpy(), ct.activation(x))[1])
    x = ct.full(SHAPE, 1)
    with pytest.warns(ct.CudnnWarning):
        captured(x, True)
    captured(x, False)
    captured(x, False)
    assert len(host.launches) == 1
    assert "signatures without a graph: 1" in captured.describe()


def test_error_of_the_first_call_is_raised(host: Host) -> None:
    captured = ct.capture(lambda x: ct.conv(x, x[0]))
    with pytest.raises(ValueError, match="w"), without_warnings():
        captured(ct.full(SHAPE, 1))
    assert not host.executables


def test_stream_that_was_not_joined_is_reported(host: Host) -> None:
    def forked(x: Any) -> Any:
        for capture in list(host.capturing.values()):
            host.capturing.add(0x99).joined_to = capture
        return ct.activation(x)

    with pytest.warns(ct.CudnnWarning, match="CUDA_ERROR_STREAM_CAPTURE_UNJOINED"):
        ct.capture(forked)(ct.full(SHAPE, 1))
    assert not host.capturing


def test_call_on_a_joined_stream_is_recorded(host: Host) -> None:
    side = ct.Stream(host.new_stream(), 0, owner=streams._Own())

    def forked(x: Any) -> Any:
        for capture in list(host.capturing.values()):
            host.capturing[side.handle] = capture
        y = ct.activation(x, stream=side)
        host.capturing.pop(side.handle, None)
        return y

    captured = ct.capture(forked)
    with without_warnings():
        for seed in (1, 2, 3):
            x = ct.asarray(image(seed))
            np.testing.assert_array_equal(captured(x).numpy(), image(seed).clip(0))
    assert len(host.launches) == 2
    with ct.use(stream=SIDE) as launched:
        y = captured(x)
    assert (y.home, y.writer) == (launched, launched)


@pytest.mark.parametrize("function", ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate"])
def test_failing_call_of_the_driver_is_reported(function: str, host: Host) -> None:
    captured = ct.capture(relu)
    host.failing[function] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.warns(ct.CudnnWarning, match="CUDA_ERROR_OUT_OF_MEMORY"):
        y = captured(ct.full(SHAPE, 1))
    host.failing.clear()
    host.capturing.clear()
    assert (y.numpy() == 1).all()
    assert not host.executables
    assert not host.graphs


def test_launch_that_fails_is_raised(host: Host) -> None:
    captured, x = called_once()
    host.failing["cuGraphLaunch"] = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(ct.ExecutionFailedError, match=r"launching a CUDA graph failed: .*ILLEGAL_ADDRESS"):
        captured(x)
    host.failing.clear()
    assert (captured(x).numpy() == 1).all()


def test_recording_without_memory_runs_without_a_graph(host: Host) -> None:
    x = ct.full((64, 4, 16, 16), 1)
    captured = ct.capture(lambda x: ct.activation(ct.activation(x)))
    host.limit = host.used() + 3 * x.nbytes + 4096
    with pytest.warns(ct.CudnnWarning, match="out of memory"):
        y = captured(x)
    assert (y.numpy() == 1).all()


def test_argument_that_is_no_array_must_be_hashable() -> None:
    captured = ct.capture(lambda x, scale=1: ct.activation(x))
    x = ct.full(SHAPE, 1)
    on_host = SimpleNamespace(__dlpack__=None, __dlpack_device__=lambda: (1, 0))
    for call in (
        lambda: captured(x, np.ones(3)),
        lambda: captured(x, on_host),
        lambda: captured(x, scale={"a": [set()]}),
    ):
        with pytest.raises(TypeError, match="scale must be an array on the device, or hashable: got "):
            call()


# --- torch and cupy ----------------------------------------------------------------------------------------


class Entered:
    """A context manager that notes when it is entered and left."""

    def __init__(self, log: list[Any], *what: Any) -> None:
        self.log, self.what = log, what

    def __enter__(self) -> None:
        self.log.append(("enter", *self.what))

    def __exit__(self, *_: object) -> None:
        self.log.append(("leave", *self.what))


def test_torch_and_cupy_follow_the_recording(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[Any] = []
    current = SimpleNamespace(cuda_stream=0, ptr=0x55)
    torch, cupy = ModuleType("torch"), ModuleType("cupy")
    torch.device = lambda *where: where  # type: ignore[attr-defined]
    torch._C = SimpleNamespace(  # type: ignore[attr-defined]
        _cuda_getCurrentRawStream=lambda _: current.cuda_stream,
        _cuda_clearCublasWorkspaces=lambda: log.append("clear"),
    )
    torch.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        is_initialized=lambda: True,
        ExternalStream=lambda handle, device: handle,
        stream=lambda handle: Entered(log, "torch stream", handle),
        MemPool=lambda: "a pool",
        use_mem_pool=lambda pool, device: Entered(log, "torch pool", device),
        current_stream=lambda _: current,
    )
    cupy.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        ExternalStream=lambda handle, device: Entered(log, "cupy stream", handle),
        MemoryPool=lambda: SimpleNamespace(malloc=len),
        using_allocator=lambda _: Entered(log, "cupy pool"),
        get_current_stream=lambda _: current,
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    captured = ct.capture(lambda x: log.append(dict(host.capturing)) or ct.activation(x))
    x = ct.full(SHAPE, 1)
    captured(x)
    (recording,) = log[5]
    entered = [
        ("torch stream", recording), ("torch pool", 0), ("cupy stream", recording), ("cupy pool",),
    ]  # fmt: skip
    assert log[0] == {}, "the first call runs on the caller's streams"
    assert log[1:5] == [("enter", *one) for one in entered]
    left = [("leave", *one) for one in entered]
    assert log[6:] == [left[3], left[2], "clear", left[1], left[0]]
    host.log.clear()
    captured(x)
    assert host.orders(0x55, 1)
    assert host.orders(1, 0x55), "what cupy does next may use the results"
    assert not host.orders(0, 1)


# --- signatures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [float, np.float32])
def test_zeros_of_both_signs_and_nan_are_signatures(kind: type[float]) -> None:
    captured = ct.capture(lambda x, value: ct.fill(ct.transform(x), value))
    x = ct.zeros((3,))
    for _ in range(2):
        assert not np.signbit(captured(x, kind(0.0)).numpy()).any()
        assert np.signbit(captured(x, kind(-0.0)).numpy()).all()
        assert np.isnan(captured(x, kind("nan")).numpy()).all()
    assert "graphs: 3" in captured.describe()
    captured.close()


def test_settings_and_the_device_in_use_belong_to_the_signature() -> None:
    captured = ct.capture(lambda: ct.zeros((3,)))
    for device in (0, 1, 0, 1):
        with ct.use(device=device):
            assert captured().device == device
    assert "graphs: 2" in captured.describe()
    captured.close()
    x = ct.full(SHAPE, 1)
    for captured, operands in (
        (ct.capture(lambda: ct.zeros((3,))), ()),
        (ct.capture(relu), (x,)),
        (ct.capture(relu, operands="pointer"), (x,)),
    ):
        before = ct.config.allow_tf32
        try:
            for allow in (before, not before, before):
                ct.config.allow_tf32 = allow
                captured(*operands)
                captured(*operands)
        finally:
            ct.config.allow_tf32 = before
        assert "graphs: 2" in captured.describe()
        captured.close()
