"""Many threads at once: their results are those of one thread, and shared state is created once."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import _lib, testing
from cudnn_ct._config import config
from cudnn_ct.cli.selftest_rows import Case
from cudnn_ct.cuda import event as events
from cudnn_ct.cuda import lifetime
from cudnn_ct.cuda import stream as streams
from cudnn_ct.ops._state import PerContext
from tests.mixed import in_threads, make_mixed, mixed_calls

from .cudnn import FakeCudnn, FakeLibrary
from .host import Host

pytestmark = pytest.mark.usefixtures("fake")

THREADS = 16


@pytest.fixture(autouse=True)
def _threads_alternate_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def offered_by_the_fakes(case: Case) -> bool:
    return (case.dtype, case.layout) == ("float32", "nchw") and case.variant != "uneven padding"


def test_threads_compute_on_own_and_shared_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "deterministic", True)
    calls = mixed_calls(offered_by_the_fakes)
    shared = (0, 0x5500, 0x6600)
    in_threads(THREADS, lambda number: make_mixed(calls, 30, number, (*shared, 0x10000 + 16 * number)))


@pytest.mark.nightly
def test_thread_may_change_devices_between_calls(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device has its calls; the host checks that no memory is touched while another is current."""
    monkeypatch.setattr(config, "deterministic", True)
    there = []
    for device in range(streams.device_count()):
        with ct.use(device=device):
            there.append(mixed_calls(offered_by_the_fakes))

    def work(number: int) -> None:
        for turn in range(12):
            device = (number + turn) % len(there)
            with ct.use(device=device):
                make_mixed(there[device], 3, 100 * number + turn, (0, 0x7700 + device))
        assert host.device == 0

    in_threads(6, work)


def test_library_is_loaded_once_by_many_threads(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def slowly() -> FakeLibrary:
        made.append(FakeLibrary(fake))
        time.sleep(0.02)
        return made[-1]

    monkeypatch.setattr(_lib, "_load", slowly)
    with testing.install(None):
        in_threads(THREADS, lambda _: _lib.load().cudnnGetVersion())
    assert len(made) == 1


def test_every_thread_raises_when_the_library_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lib, "_load", Mock(side_effect=ct.LibraryNotFoundError("no cuDNN 9 was found")))

    def work(_: int) -> None:
        with pytest.raises(ct.LibraryNotFoundError):
            ct.scale(ct.zeros((2, 3)), alpha=2)

    with testing.install(None):
        in_threads(THREADS, work)


def operands() -> tuple[ct.DeviceArray, ct.DeviceArray, np.ndarray]:
    """Return x and w of a convolution, and its result."""
    x = np.random.default_rng(0).integers(-3, 4, (2, 4, 6, 6)).astype(np.float32)
    w = np.ones((3, 4, 3, 3), np.float32)
    return ct.asarray(x), ct.asarray(w), ct.reference.conv(x, w)


def test_threads_autotune_a_problem_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, expected = operands()
    elapsed = Mock(side_effect=events.elapsed)

    def timed(_: int) -> None:
        np.testing.assert_array_equal(ct.conv(x, w, algo="autotune").numpy(), expected)

    monkeypatch.setattr(events, "elapsed", elapsed)
    in_threads(THREADS, timed)
    together = elapsed.call_count
    testing.reset()
    in_threads(1, timed)
    assert elapsed.call_count == 2 * together > 0


def test_conv_plan_runs_in_many_threads() -> None:
    x, w, expected = operands()
    plan = ct.conv_plan(x, w)

    def work(_: int) -> None:
        out = ct.empty(expected.shape)
        for _ in range(10):
            np.testing.assert_array_equal(plan(x, w, out=out.fill(np.nan)).numpy(), expected)

    in_threads(THREADS, work)


def test_dropout_of_a_thread_is_independent_of_other_threads() -> None:
    x = ct.full((4, 50), 1.0)

    def throws(seed: int) -> list[bytes]:
        state = ct.DropoutState(0.5, seed=seed)
        return [ct.dropout(x, state)[0].numpy().tobytes() for _ in range(10)]

    alone, together = [throws(seed) for seed in range(THREADS)], {}
    in_threads(THREADS, lambda seed: together.update({seed: throws(seed)}))
    assert [together[seed] for seed in range(THREADS)] == alone


@pytest.mark.nightly
def test_ended_threads_leave_no_memory(fake: FakeCudnn, host: Host) -> None:
    calls = mixed_calls(lambda case: offered_by_the_fakes(case) and not case.variant)
    in_threads(4, lambda number: make_mixed(calls, 15, number, (0, 0x5500)))
    gc.collect()
    ct.synchronize()
    objects, memory = len(fake.objects), host.used()
    for _ in range(3):
        in_threads(8, lambda number: make_mixed(calls, 15, number, (0, 0x5500)))
    gc.collect()
    ct.synchronize()
    assert len(fake.objects) <= objects + 4  # descriptors that all threads share
    assert host.used() <= memory


def test_thread_uses_the_handle_of_a_thread_that_ended(fake: FakeCudnn) -> None:
    """Destroying a handle waits for the device, which invalidates a capture of another thread."""

    def work(_: int) -> None:
        ct.activation(ct.zeros((2, 3)), stream=0x77)

    for _ in range(3):
        in_threads(1, work)
    gc.collect()
    assert fake.names().count("cudnnCreate") == 1
    assert "cudnnDestroy" not in fake.names()


@pytest.fixture
def interrupted(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Let a finalizer run within C functions, and note the streams of the handles.

    Python may run a finalizer, or a signal handler, between any two instructions of a call.
    """
    state = SimpleNamespace(finalizers=[], streams=[])

    def watch(name: str, place: int = 0) -> None:
        function = getattr(fake, name)

        def watched(*arguments: Any) -> Any:
            if state.finalizers:
                state.finalizers.pop()()
            state.streams.append(fake._get(arguments[place], "handle")["stream"])
            return function(*arguments)

        monkeypatch.setattr(fake, name, watched)

    for name in ("cudnnConvolutionForward", "cudnnActivationForward", "cudnnDropoutForward"):
        watch(name)
    watch("cudnnSetDropoutDescriptor", 1)
    with testing.install(FakeLibrary(fake)):
        yield state


@pytest.mark.parametrize("planned", [False, True])
def test_call_keeps_its_stream_and_workspace_when_a_finalizer_calls_too(
    fake: FakeCudnn, interrupted: SimpleNamespace, planned: bool
) -> None:
    fake.workspaces = {"GEMM": 100}
    x, w = ct.full((1, 1, 3, 3), 2, "float32"), ct.full((1, 1, 1, 1), 3, "float32")
    plan, y = ct.conv_plan(x, w), ct.zeros((1, 1, 3, 3))
    call = (lambda: plan(x, w, out=y)) if planned else (lambda: ct.conv(x, w, out=y, stream=0x5500))
    call()
    call()
    interrupted.finalizers.append(lambda: (ct.conv(x, w, stream=0x6600), ct.empty_cache()))
    fake.relaxed.clear()
    call()
    assert "cudnnCreate" in fake.relaxed  # else it invalidates a capture
    assert interrupted.streams[-1] == (streams.LEGACY_DEFAULT if planned else 0x5500)
    assert (y.numpy() == 6).all()


@pytest.mark.parametrize("seeding", [False, True])
def test_work_outside_of_calls_keeps_its_stream_when_a_finalizer_calls(
    interrupted: SimpleNamespace, seeding: bool
) -> None:
    x = ct.full((1, 1, 3, 3), 2, "float32")
    lifetime.defer(lambda: bool(ct.softmax(x, stream=0x6600).shape))  # runs within the next allocation
    if seeding:
        ct.DropoutState(0.5, stream=0x5500)
    else:
        ct.conv_algorithms(x, x, stream=0x5500)
    assert set(interrupted.streams) == {0x5500}


@pytest.mark.parametrize("operation", ["activation", "dropout"])
def test_call_keeps_its_stream_when_a_finalizer_calls_before_the_plan_runs(
    interrupted: SimpleNamespace, operation: str
) -> None:
    x, state = ct.zeros((2, 3)), ct.DropoutState(0.5)
    call = partial(ct.activation, x) if operation == "activation" else partial(ct.dropout, x, state)
    call(stream=0x5500)
    ct.softmax(x, stream=0x6600)
    lifetime.defer(lambda: bool(ct.softmax(x, stream=0x6600).shape))  # runs within the next allocation
    y = call(stream=0x5500)
    assert interrupted.streams[-2:] == [0x5500, 0x5500]
    del y, state, call


def test_per_context_lists_values_while_finalizers_add_others() -> None:
    values, added = PerContext[int](), []

    class Cycle:
        """Garbage whose finalizer adds a context, and more garbage."""

        def __init__(self) -> None:
            self.myself = self

        def __del__(self) -> None:
            if len(added) < 1000:
                added.append(Mock(plans={}, last_call=None))
                values.put(added[-1], 2)
                Cycle()

    def work(_: int) -> None:
        Cycle()
        while len(added) < 1000:
            values.values()

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        in_threads(1, work, timeout=20)
    finally:
        gc.set_threshold(*threshold)
    assert len(values.values()) == 1000
