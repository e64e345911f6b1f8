"""Calls that are launched as CUDA graphs, on the fakes: when, with which results, and for how long."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context, testing
from cudnn_ct.cuda import allocator
from cudnn_ct.cuda import replay as replays
from cudnn_ct.cuda.stream import default_stream
from cudnn_ct.ops import _replay
from tests.both.replays import *  # noqa: F403
from tests.both.replays import configured, values
from tests.mixed import in_thread
from tests.unit.cuda_driver import GLOBAL, CUresult

from .cudnn import FakeCudnn
from .host import Host

LAUNCH = "cuGraphLaunch"
SIDE = 0x5500
BLOCKS = allocator.MAX_BLOCK


@pytest.fixture
def side_streams(fake: FakeCudnn) -> tuple[int, int]:
    """Two streams for random sequences of calls, which contain graphs."""
    fake.engines = True
    return SIDE, 0x6600


@pytest.fixture(autouse=True, params=[1, 2], ids=["one device", "two devices"])
def _soon(
    monkeypatch: pytest.MonkeyPatch, fake: FakeCudnn, host: Host, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Record calls after their first run; reuse the memory of results, as on a GPU."""
    host.devices = request.param  # calls on the only device check less
    monkeypatch.setattr(allocator, "MAX_BLOCK", BLOCKS)
    with testing.replay_after(1):
        yield
    gc.collect()
    ct.empty_cache()


class Relu:
    """A call with its own arrays."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        self.x, self.y, self.options = ct.asarray(values(seed)), ct.zeros(values(0).shape), options

    def __call__(self, **options: Any) -> np.ndarray:
        return ct.activation(self.x, out=self.y, **self.options | options).numpy()


def launches(host: Host) -> int:
    return host.calls.count(LAUNCH)


def pool() -> replays.ReplayPool:
    return context.current(default_stream(0)).replays


# --- when --------------------------------------------------------------------------------------------------


def test_call_is_recorded_after_some_runs_with_the_same_memory(host: Host) -> None:
    relu = Relu()
    with testing.replay_after(3):
        counts = []
        for _ in range(5):
            relu()
            counts.append(launches(host))
    assert counts == [0, 0, 0, 1, 2]
    assert _replay.REPEATS == 1


def test_replay_reads_and_writes_the_memory_of_its_call(host: Host, fake: FakeCudnn) -> None:
    relu = Relu(0)
    for seed in (0, 1, 2):
        ct.transform(ct.asarray(values(seed)), out=relu.x)
        before = len(fake.calls)
        np.testing.assert_array_equal(relu(), np.maximum(values(seed), 0))
        assert (len(fake.calls) == before) == (seed > 0)


def test_new_results_are_replayed_when_their_memory_repeats(host: Host) -> None:
    x = ct.asarray(values(0))
    for _ in range(4):
        np.testing.assert_array_equal(ct.activation(x).numpy(), np.maximum(values(0), 0))
    assert launches(host) == 3


def test_calls_with_other_memory_are_replayed_after_twice_as_many_runs(host: Host, fake: FakeCudnn) -> None:
    kept, counts = [], []
    for seed in range(5):
        kept.append(Relu(seed))
        before = len(fake.calls)
        np.testing.assert_array_equal(kept[-1](), np.maximum(values(seed), 0))
        counts.append((launches(host), len(fake.calls) == before))
    assert counts == [(0, False), (0, False), (1, True), (2, True), (3, True)]
    for seed, relu in enumerate(kept):
        np.testing.assert_array_equal(relu.y.numpy(), np.maximum(values(seed), 0))
    assert "replayed for other pointers" in str(ct.last_plan() and ct.last_plan().describe())


def test_call_with_other_memory_is_recorded_for_it_when_that_repeats(host: Host) -> None:
    relus = [Relu(seed) for seed in range(4)]
    for relu in relus:
        relu()
    for seed, relu in enumerate(relus * 3):
        np.testing.assert_array_equal(relu(), np.maximum(values(seed % 4), 0))
    (call,) = context.current(default_stream(0)).calls.values()
    assert len(call.replays) == 5, "one for each memory, and one for other memory"
    moved = host.calls.count("cuGraphExecKernelNodeSetParams")
    for relu in relus:
        relu()
    assert host.calls.count("cuGraphExecKernelNodeSetParams") == moved


@pytest.mark.parametrize("seed", range(8))
def test_random_calls_with_other_memory_have_the_values_of_calls_without_replays(seed: int) -> None:
    rng = np.random.default_rng(seed)
    memory = ct.zeros((64, 2, 4, 6, 6))
    for _ in range(60):
        places = rng.choice(63, 3, replace=False)
        offset = int(rng.choice([0, 0, 0, 1, 64])) * 4  # not aligned, as aligned, and aligned otherwise
        a, b, y = [
            memory.reshape(-1)[int(place) * 288 + offset :][:288].reshape(2, 4, 6, 6) for place in places
        ]
        x, w = values(int(rng.integers(99))), values(int(rng.integers(99)))
        ct.transform(ct.asarray(x), out=a)
        ct.transform(ct.asarray(w), out=b)
        into = {"out": y} if rng.integers(2) else {}
        kind = int(rng.integers(4))
        if kind == 0:
            found, expected = ct.activation(a, **into), np.maximum(x, 0)
        elif kind == 1:
            found, expected = ct.op_tensor(a, b, op="add", **into), x + w
        elif kind == 2:
            found, expected = ct.op_tensor(a, a, op="mul", **into), x * x
        else:
            found, expected = ct.activation(a, out=a), np.maximum(x, 0)
        np.testing.assert_array_equal(found.numpy(), expected)


def test_update_that_fails_is_followed_by_the_plan_and_by_other_updates(host: Host) -> None:
    kept = [Relu(seed) for seed in range(3)]
    for relu in kept:
        relu()
    host.failing["cuGraphExecKernelNodeSetParams"] = 1
    one, two = Relu(3), Relu(4)
    np.testing.assert_array_equal(one(), np.maximum(values(3), 0))
    host.failing.clear()
    np.testing.assert_array_equal(two(), np.maximum(values(4), 0))
    np.testing.assert_array_equal(one.y.numpy(), np.maximum(values(3), 0))


def test_work_that_depends_on_pointers_otherwise_is_not_replayed_on_other_memory(
    host: Host, with_word: Any
) -> None:
    with_word(sum)
    relus = [Relu(seed) for seed in range(6)]
    for seed, relu in enumerate(relus):
        np.testing.assert_array_equal(relu(), np.maximum(values(seed), 0))
    assert launches(host) == 0
    begun = host.calls.count("cuStreamBeginCapture")
    for seed in range(300):
        relus.append(Relu(seed))
        relus[-1]()
    recorded = 300 - launches(host)  # each for its memory
    assert host.calls.count("cuStreamBeginCapture") - begun <= recorded, "it is not tried again"


def test_recording_without_memory_is_tried_again_later(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    relus = [Relu(seed) for seed in range(5)]

    def fail(*_: Any) -> Any:
        raise ct.AllocationError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(_replay.movable, "capture", fail)
        for relu in relus[:3]:
            relu()
    (call,) = context.current(default_stream(0)).calls.values()
    waiting = next(count for key, count in call.runs.items() if key[0] is None)
    assert _replay.LATER <= waiting < 0
    before = launches(host)
    with monkeypatch.context() as patch:  # the fixture ends after the block that restores it
        patch.setattr(_replay, "MOVES", waiting)
        for seed in (3, 4):
            np.testing.assert_array_equal(relus[seed](), np.maximum(values(seed), 0))
    assert launches(host) > before


def test_memory_that_no_parameter_has_must_stay(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    deferred = FakeCudnn._deferred

    def without_first(self: FakeCudnn, *given: Any) -> Any:
        work, words = deferred(self, *given)
        return (lambda others: work([words[0], *others])), words[1:]

    monkeypatch.setattr(FakeCudnn, "_deferred", without_first)
    relus = [Relu(seed) for seed in range(4)]
    for seed, relu in enumerate(relus):
        np.testing.assert_array_equal(relu(), np.maximum(values(seed), 0))
    assert launches(host) == 0
    relus[1].y = ct.zeros(values(0).shape)  # x stays where it was when the call was captured
    np.testing.assert_array_equal(relus[1](), np.maximum(values(1), 0))
    assert launches(host) == 1


def test_undefined_memory_among_parameters_does_not_matter(host: Host, with_word: Any) -> None:
    numbers = itertools.count(0x7FFD_8C0A_8DE0, 0x1234_5678_9ABC)
    with_word(lambda _: next(numbers) % 2**64)
    relus = [Relu(seed) for seed in range(6)]
    for seed, relu in enumerate(relus):
        np.testing.assert_array_equal(relu(), np.maximum(values(seed), 0))
    assert launches(host) == 4


@pytest.mark.parametrize(("alignment", "moved"), [(32, False), (128, False), (16, True)])
def test_kernels_chosen_by_alignment_are_replayed_on_memory_that_is_aligned_alike(
    host: Host, with_word: Any, alignment: int, moved: bool
) -> None:
    with_word(lambda words: words[0] % alignment)
    memory, keep = ct.zeros((64, 1024)), []
    for place, offset in enumerate((0, 0, 0, 4 * 4)):  # elements: the last is aligned to 16 bytes only
        x = memory[place, offset : offset + 288].reshape(2, 4, 6, 6)
        ct.transform(ct.asarray(values(place)), out=x)
        before = launches(host)
        keep.append(ct.activation(x))
        np.testing.assert_array_equal(keep[-1].numpy(), np.maximum(values(place), 0))
        if place == 2:
            assert launches(host) > before
    assert (launches(host) > before) == moved


def test_factors_and_fill_values_belong_to_a_replay() -> None:
    x = ct.asarray(values(0))
    for alpha in (2.0, 0.5, 0.0, -0.0, 2.0, 0.5, 0.0, -0.0):
        y = ct.full(values(0).shape, 8)
        ct.activation(x, alpha=alpha, beta=0.5, out=y)
        np.testing.assert_array_equal(y.numpy(), alpha * np.maximum(values(0), 0) + 4)
    facts = {key for call in context.current(default_stream(0)).calls.values() for key in call.replays}
    assert len([key for key in facts if "-0.0" in key]) == len([key for key in facts if "0.0" in key]) == 1
    y = ct.zeros((5,))
    for value in (1, 2, 1.5, 2, 1):
        np.testing.assert_array_equal(ct.fill(y, value).numpy(), np.full(5, value, np.float32))


def test_each_stream_has_its_own_replays(host: Host) -> None:
    relu = Relu()
    for stream in (None, SIDE) * 4:
        relu(stream=stream)
    assert launches(host) == 6
    assert len(pool()) == 2


def test_each_thread_has_its_own_replays(host: Host) -> None:
    relu = Relu()
    relu()
    in_thread(relu)
    assert launches(host) == 0
    gc.collect()
    assert len(host.executables) == 1, "the replay of the thread is gone with the thread"


# --- when not ----------------------------------------------------------------------------------------------


def test_setting_switches_replays_off(host: Host) -> None:
    relu, plan = Relu(), ct.conv_plan(x := ct.asarray(values(0)), w := ct.asarray(values(1, (4, 4, 3, 3))))
    y = ct.zeros((2, 4, 4, 4))
    for _ in range(2):
        relu()
        plan(x, w, out=y)
    assert launches(host) == 2
    with configured(replay=False):
        for _ in range(3):
            relu()
            plan(x, w, out=y)
    assert launches(host) == 2
    with configured(debug_sync=True):
        for _ in range(3):
            relu()
    assert launches(host) == 2


def test_captured_call_is_no_replay(host: Host, fake: FakeCudnn) -> None:
    relu = Relu(stream=SIDE)
    relu()
    relu()
    assert launches(host) == 1
    capture = host.capturing.add(SIDE, GLOBAL)
    before = len(fake.calls)
    ct.activation(relu.x, out=relu.y, stream=SIDE)
    assert capture.valid
    assert len(fake.calls) > before, "the kernels are in the capture"
    assert launches(host) == 1
    del host.capturing[SIDE]
    relu()
    assert launches(host) == 2


def test_recording_leaves_captures_of_other_streams_alone(host: Host) -> None:
    capture = host.capturing.add(SIDE, GLOBAL)
    relu = Relu()
    relu()
    relu()
    assert capture.valid
    assert launches(host) == 1
    del host.capturing[SIDE]


@pytest.mark.parametrize("kind", [3, 1], ids=["host function", "copy from the host"])
def test_call_is_not_recorded_when_its_graph_uses_the_host(
    host: Host, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    parameters = type("Copy", (), {"srcDevice": 0x1000, "dstDevice": 0x2000})
    monkeypatch.setattr(Host, "cuGraphNodeGetType", lambda *_: (0, kind))
    monkeypatch.setattr(Host, "cuGraphMemcpyNodeGetParams", lambda *_: (0, parameters), raising=False)
    relu = Relu()
    for _ in range(4):
        np.testing.assert_array_equal(relu(), np.maximum(values(0), 0))
    assert host.calls.count("cuStreamBeginCapture") == 1, "it is not tried again"
    assert launches(host) == 0
    assert not host.graphs


def test_dropout_and_training_passes_are_not_replayed(host: Host) -> None:
    x, state = ct.asarray(values(0)), ct.DropoutState(0.5, seed=1)
    masks = {ct.dropout(x, state).y.numpy().tobytes() for _ in range(4)}
    assert len(masks) == 4
    assert launches(host) == 0


def test_misaligned_operands_are_not_recorded(host: Host) -> None:
    flat, y = ct.asarray(values(0).ravel()), ct.zeros((100,))
    for _ in range(3):
        np.testing.assert_array_equal(
            ct.activation(flat[1:101], out=y).numpy(), np.maximum(values(0).ravel()[1:101], 0)
        )
    assert launches(host) == 0


def test_plan_is_replayed_by_no_thread_when_replays_are_off(host: Host) -> None:
    x, w, y = ct.asarray(values(0)), ct.asarray(values(1, (4, 4, 3, 3))), ct.zeros((2, 4, 4, 4))
    plan = ct.conv_plan(x, w)

    def calls() -> None:
        for _ in range(3):
            plan(x, w, out=y)

    steps = [threading.Semaphore(0) for _ in range(2)]

    def twice() -> None:
        calls()
        steps[0].release()
        steps[1].acquire()
        calls()

    other = threading.Thread(target=twice)
    other.start()
    steps[0].acquire()
    before = launches(host)
    assert before
    with configured(replay=False):
        calls()
        steps[1].release()
        other.join()
    assert launches(host) == before


# --- errors ------------------------------------------------------------------------------------------------


def test_call_runs_its_plan_when_a_launch_fails(host: Host) -> None:
    relu = Relu()
    relu()
    host.failing[LAUNCH] = 700
    np.testing.assert_array_equal(relu(), np.maximum(values(0), 0))


def test_replay_is_dropped_when_another_plan_was_selected(host: Host, fake: FakeCudnn) -> None:
    x, w, y = ct.asarray(values(0)), ct.asarray(values(1, (4, 4, 3, 3))), ct.zeros((2, 4, 4, 4))
    for _ in range(3):
        ct.conv(x, w, out=y)
    assert launches(host) == 2
    before = set(host.executables)
    selected = next(iter(context.current(default_stream(0)).calls.values())).selected
    selected.plan = selected._next_plan(context.current(default_stream(0)))
    ct.conv(x, w, out=y)
    assert launches(host) == 2
    ct.conv(x, w, out=y)
    assert launches(host) == 3
    assert not before & set(host.executables)


def test_result_that_overlaps_an_operand_is_rejected_after_replays() -> None:
    relu = Relu()
    relu()
    relu()
    with pytest.raises(ValueError, match="out overlaps"):
        ct.softmax(relu.x[:, 1:], out=relu.x[:, :3])


def test_call_after_an_interrupt_of_a_recording_runs_on_its_stream(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    relu, ctx = Relu(), context.current(default_stream(0))
    set_stream = ctx.library.cudnnSetStream
    interrupts = iter([KeyboardInterrupt])

    def interrupted(handle: Any, stream: int) -> None:
        set_stream(handle, stream)
        for error in interrupts:  # in the handler of a signal
            raise error

    monkeypatch.setattr(ctx.library, "cudnnSetStream", interrupted)
    with pytest.raises(KeyboardInterrupt):
        relu()
    np.testing.assert_array_equal(relu(), np.maximum(values(0), 0))
    assert ctx.stream is default_stream(0)
    assert {one["stream"] for one in fake.objects.values() if one["kind"] == "handle"} == {1}


def test_capture_is_ended_when_its_begin_is_interrupted(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Host.cuStreamBeginCapture

    def interrupted(self: Host, stream: int, mode: Any) -> None:
        begin(self, stream, mode)
        raise KeyboardInterrupt

    monkeypatch.setattr(Host, "cuStreamBeginCapture", interrupted)
    relu = Relu()
    with pytest.raises(KeyboardInterrupt):
        relu()
    assert not host.capturing
    monkeypatch.undo()


# --- memory ------------------------------------------------------------------------------------------------


def test_replays_are_bounded_and_those_launched_lately_stay(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "most_nodes", lambda _: 4)
    hot = [Relu(seed) for seed in range(3)]
    others = [Relu(seed) for seed in range(20)]
    for cold in others:
        for relu in (*hot, cold, cold):
            relu()
        assert len(host.executables) <= 4
        assert testing.cache_sizes()["replayed nodes"].entries == len(host.executables)
    before = launches(host)
    for relu in hot:
        relu()
    assert launches(host) == before + 3


def test_many_calls_in_turn_do_not_replace_the_replays_of_each_other(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "most_nodes", lambda _: 4)
    calls = [Relu(seed) for seed in range(8)]
    for _ in range(40):
        for relu in calls:
            relu()
    assert host.calls.count("cuStreamBeginCapture") < 20


def test_graph_without_room_is_rarely_captured(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "most_nodes", lambda _: 4)
    hot, net = [Relu(seed) for seed in range(3)], ct.RNN("rnn_relu", 2, 3, num_layers=1)
    w, x = ct.zeros((net.weight_size,)), ct.zeros((3, 2, 2))
    outs = tuple(ct.zeros(array.shape) for array in net.forward(x, w)[:2])
    for relu in hot:
        relu()
    real = replays.check_nodes
    monkeypatch.setattr(replays, "check_nodes", lambda graph: real(graph) + 3)
    for _ in range(60):
        net.forward(x, w, out=outs)
        for relu in hot:
            relu()
    assert host.calls.count("cuGraphInstantiate") <= 6


def test_calls_rarely_look_for_room_when_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "most_nodes", lambda _: 150)
    shapes = [(2, 3, 4, 4 + number % 14) for number in range(250)]  # graphs for any pointers have one
    operands = [(ct.zeros(shape), ct.zeros(shape)) for shape in shapes]
    counted, count = 0, replays.count_nodes

    def counting(device: int | None = None) -> int:
        nonlocal counted
        counted += 1
        return count(device)

    monkeypatch.setattr(replays, "count_nodes", counting)
    for _ in range(60):
        for x, y in operands:
            ct.activation(x, out=y)
    assert 140 < count() <= 150
    assert counted < 500, counted


def test_room_of_graphs_that_were_dropped_is_used_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "most_nodes", lambda _: 64)
    calls = [Relu(seed % 8) for seed in range(100)]
    for _ in range(4):
        for relu in calls:
            relu()
    assert not replays.has_room(0, 1)
    ct.empty_cache()
    assert replays.has_room(0, 1)


def test_call_that_has_run_does_not_fail_where_the_room_for_its_graph_is_not_known(host: Host) -> None:
    relu = Relu()
    host.failing["cuMemGetInfo"] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    for _ in range(3):
        np.testing.assert_array_equal(relu(), np.maximum(values(0), 0))
    assert launches(host) == 0


def test_idle_thread_leaves_room_to_others(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "most_nodes", lambda _: 4)
    recorded, done = threading.Event(), threading.Event()

    def idle() -> None:
        calls = [Relu(seed) for seed in range(4)]
        for relu in calls:
            relu()
            relu()
        recorded.set()
        done.wait(60)

    thread = threading.Thread(target=idle)
    thread.start()
    recorded.wait(60)
    before, relu = launches(host), Relu()
    for _ in range(400):
        relu()
    done.set()
    thread.join()
    assert launches(host) > before + 100


def test_empty_cache_and_the_end_of_a_call_drop_its_replays(host: Host) -> None:
    relu, net = Relu(), ct.RNN("rnn_relu", 2, 3)
    w, x = ct.zeros((net.weight_size,)), ct.zeros((3, 2, 2))
    outs = tuple(ct.zeros(array.shape) for array in net.forward(x, w)[:2])
    for _ in range(3):
        relu()
        net.forward(x, w, out=outs)
    assert len(host.executables) == 3, "one for the results that are new"
    del net
    gc.collect()
    assert len(host.executables) == 1
    ct.empty_cache()
    assert not host.executables
    relu()
    assert host.executables


def test_replay_is_dropped_before_its_workspace(host: Host, fake: FakeCudnn) -> None:
    fake.workspaces = {"GEMM": 4096}
    x, w, y = ct.asarray(values(0)), ct.asarray(values(1, (4, 4, 3, 3))), ct.zeros((2, 4, 4, 4))
    for _ in range(3):
        ct.conv(x, w, out=y)
    before, expected = set(host.executables), y.numpy()
    fake.workspaces = {"GEMM": 8192}
    ct.conv(x, w, stride=2)  # takes a larger workspace
    assert not before & set(host.executables)
    for _ in range(3):
        np.testing.assert_array_equal(ct.conv(x, w, out=y).numpy(), expected)


def test_memory_of_a_plan_is_freed_after_its_last_replay_on_another_stream(host: Host) -> None:
    net = ct.RNN("rnn_relu", 2, 3)
    w, x = ct.zeros((net.weight_size,)), ct.zeros((3, 2, 2))
    outs = tuple(ct.zeros(array.shape) for array in net.forward(x, w)[:2])
    for _ in range(3):
        net.forward(x, w, lengths=(3, 2), out=outs, stream=SIDE)
    assert launches(host) > 0
    host.log.clear()
    del net
    gc.collect()
    assert not host.executables
    assert ("synchronize_device", 0) in host.log, "an address as a stream: it may be destroyed"


def test_plan_reports_its_replays(host: Host) -> None:
    x, w, y = ct.asarray(values(0)), ct.asarray(values(1, (4, 4, 3, 3))), ct.zeros((2, 4, 4, 4))
    plan = ct.conv_plan(x, w)
    assert "replay" not in plan.describe()
    for _ in range(2):
        plan(x, w, out=y)
    assert "replayed for 1 set of pointers" in plan.describe()
    assert "replayed for 1 set of pointers" in ct.last_plan().describe()


def test_plan_checks_arrays_and_orders_streams_after_its_calls_are_replayed(host: Host) -> None:
    x, w, y = ct.asarray(values(0)), ct.asarray(values(1, (4, 4, 3, 3))), ct.zeros(values(0).shape)
    plan = ct.conv_plan(x, w, padding=1)
    assert context.of_device(0).alone == (host.devices == 1)
    expected = ct.conv(x, w, padding=1).numpy()
    for out in (y, None, y, None, y, None):
        given = {} if out is None else {"out": out}
        np.testing.assert_array_equal(plan(x, w, **given).numpy(), expected)
    assert launches(host)
    for wrong in (x[:1], x.transpose(0, 1, 3, 2), x.numpy()):
        for given in ({}, {"out": y}):
            with pytest.raises((TypeError, ValueError), match="x"):
                plan(wrong, w, **given)
    with pytest.raises(ValueError, match="out"):
        plan(x, w, out=x)
    pointer = x.pointer
    del x, wrong
    other = ct.zeros((4, 2, 6, 6))
    assert other.pointer == pointer
    for given in ({}, {"out": y}):
        with pytest.raises(ValueError, match="x is"):
            plan(other, w, **given)
    del other
    x = ct.asarray(values(0))
    for given in ({}, {"out": y}, {}, {"out": y}):
        for _ in range(3):
            plan(x, w, **given)
        host.log.clear()
        ct.scale(x, alpha=2, stream=SIDE)
        ct.activation(w)  # the thread works on the stream of the plan again
        result = plan(x, w, **given)
        assert host.orders(before=SIDE, after=result.writer.handle)
        x = ct.asarray(values(0))
    for _ in range(3):
        plan(x, w, out=y)
    with pytest.raises(TypeError, match="3 operands"):
        plan(x, w, y, out=ct.zeros(values(0).shape))
    host.log.clear()
    ct.activation(y, stream=SIDE)  # only reads y
    ct.activation(w)
    plan(x, w, out=y)
    assert host.orders(before=SIDE, after=y.writer.handle)
