"""Engines that autotuning compiles in several threads, each of them once; on the fakes."""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import AllocationError, InternalError, NotInitializedError, NotSupportedError
from cudnn_ct.graph import candidates
from cudnn_ct.graph.candidates import first_plan
from cudnn_ct.graph.rules import EngineRules
from cudnn_ct.legal import rules
from cudnn_ct.ops.activation import activation_graph
from cudnn_ct.shapes.specs import ActivationSpec, TensorSpec
from tests.mixed import no_collecting

from . import test_graph_source
from .cudnn import FakeCudnn
from .test_conv import images
from .test_graph_source import clip

X = (2, 3, 4, 4)


@pytest.fixture(autouse=True)
def _two_engines(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.engines = fake.compiled_engines = True
    fake.second_engine = 7
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4))


class Watched(list[tuple[int, int]]):
    """The thread and the handle of each engine that was compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.also: Callable[[], object] = lambda: None  # done at each time

    def compiles(self, plan: dict[str, list[Any]]) -> bool:
        self.append((threading.get_ident(), plan["EXECUTION_PLAN_HANDLE"][0]))
        self.also()
        return True

    def fail_first(self, error: Exception) -> None:
        """Let the compilation of the first engine fail."""
        errors = [error]

        def fail() -> None:
            if errors:
                raise errors.pop()

        self.also = fail

    def in_this_thread(self) -> bool:
        return {thread for thread, _ in self} == {threading.get_ident()}


@pytest.fixture
def compiled(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> Watched:
    watched = Watched()
    monkeypatch.setattr(fake, "_compiles", watched.compiles)
    return watched


def test_engines_are_compiled_once_and_at_the_same_time(compiled: Watched) -> None:
    both = threading.Barrier(2)
    compiled.also = lambda: both.wait(20)  # raises after so many seconds
    x = images(*X)
    clip(x, "autotune")
    assert len(compiled) == len(set(compiled)) == len({handle for _, handle in compiled}) == 2
    clip(x, "autotune")
    assert len(compiled) == 2
    handles = {handle for _, handle in compiled}
    clip(images(3, *X[1:]), "autotune")
    assert {handle for _, handle in compiled} == handles  # they are used again


def test_one_core_compiles_one_engine_after_another(
    compiled: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(1))
    clip(images(*X), "autotune")
    assert len(compiled) == 2
    assert compiled.in_this_thread()


def test_engine_that_rejects_the_graph_is_compiled_once(compiled: Watched) -> None:
    compiled.fail_first(NotSupportedError("the compiler failed"))
    clip(images(*X), "autotune")
    assert len(compiled) == 2
    assert "cannot compute this" in ct.last_plan().describe()
    assert "the compiler failed" in ct.last_plan().describe()


@pytest.mark.parametrize("kind", [AllocationError, InternalError])
def test_transient_failure_in_a_thread_is_not_kept(compiled: Watched, kind: type[ct.CudnnError]) -> None:
    compiled.fail_first(kind("no memory"))
    clip(images(*X), "autotune")
    assert len(compiled) == 3  # two in threads, and that one again
    assert "no memory" not in ct.last_plan().describe()


def test_nothing_is_compiled_ahead_while_plans_are_recorded(compiled: Watched) -> None:
    with ct.record_plans():
        clip(images(*X), "autotune")
    assert compiled.in_this_thread()


def test_other_plans_are_made_when_one_raises() -> None:
    made: list[context.Context] = []

    def wrong(_: context.Context) -> None:
        raise ZeroDivisionError

    here = context.current(streams.default_stream(0))
    with candidates.keeping():
        candidates.compile_ahead([wrong, made.append, wrong, made.append, made.append], here)
    assert len(made) == 3
    candidates.compile_ahead([made.append, made.append], here)  # outside of a block nothing is kept
    assert len(made) == 3


@pytest.mark.parametrize("filtered", ["always", "error"])
def test_warning_in_a_thread_names_the_line_of_the_call(
    monkeypatch: pytest.MonkeyPatch, filtered: Any
) -> None:
    main, defect = threading.get_ident(), SimpleNamespace(name="defect", reason=f"a defect, {filtered}")

    def applying(kind: str, *_: Any) -> list[Any]:
        if kind != "warn":
            return []
        if threading.get_ident() == main:
            time.sleep(0.2)  # the other thread is the first to warn
        return [defect]

    monkeypatch.setattr(rules, "subjects_of", lambda _: ["any"])
    monkeypatch.setattr(rules, "applying", applying)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter(filtered)
        if filtered == "error":
            with pytest.raises(ct.CudnnWarning, match="a defect"):
                clip(images(*X), "autotune")
            return
        clip(images(*X), "autotune")
    assert [one.filename for one in shown] == [test_graph_source.__file__]


def test_error_that_is_kept_keeps_no_array_alive() -> None:
    x = images(*X)
    known = weakref.ref(x)

    def fail(_: context.Context, x: ct.DeviceArray) -> None:
        def build() -> None:
            raise NotSupportedError(f"cannot compute {x}")

        candidates.once(lambda: "the plan", build)

    with no_collecting():
        with candidates.keeping():
            candidates.compile_ahead([partial(fail, x=x)] * 2, context.current(streams.default_stream(0)))
            for _ in range(2):
                with pytest.raises(NotSupportedError) as error:
                    candidates.once(lambda: "the plan", list)
                assert len(error.traceback) == 2
        del x, error
        assert known() is None


def test_plan_of_the_first_engine_is_compiled_once(fake: FakeCudnn) -> None:
    """Candidates may share one, such as that of a conversion."""
    spec = TensorSpec.packed(X, "float32")
    graph = activation_graph(ActivationSpec("relu"), spec, spec)
    here = context.current(streams.default_stream(0))
    with candidates.keeping():
        plans = [first_plan(graph, here, (), EngineRules()) for _ in range(2)]
    assert fake.compilations == 1
    assert plans[0].native is plans[1].native


def test_candidates_are_timed_when_no_further_handle_can_be_created(
    compiled: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lack(_: int) -> None:
        raise NotInitializedError("no memory for a handle")

    monkeypatch.setattr(candidates, "Context", lack)
    clip(images(*X), "autotune")
    assert compiled.in_this_thread()


def test_call_compiles_all_engines_when_no_thread_can_be_started(
    compiled: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    clip(images(*X), "autotune")
    assert len(compiled) == 2
    assert compiled.in_this_thread()
    assert len(context.of_device(0).helpers) == 1


def test_no_more_threads_start_than_plans_need(monkeypatch: pytest.MonkeyPatch) -> None:
    started, start = list[threading.Thread](), threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (started.append(thread), start(thread)))
    here = context.current(streams.default_stream(0))
    with candidates.keeping():
        candidates.compile_ahead([str] * 4, here)
        candidates.compile_ahead([str] * 2, here)
    assert len(started) == 3 + 1
    assert len(here.helpers) == 3


def test_handle_of_a_thread_that_outlives_an_interrupt_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    here, used = context.current(streams.default_stream(0)), list[context.Context]()
    started, release, threads = threading.Event(), threading.Event(), list[threading.Thread]()

    def wait(mine: context.Context) -> None:
        if mine is here:
            started.wait(20)
        else:
            used.append(mine)
            threads.append(threading.current_thread())
            started.set()
            release.wait(20)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with candidates.keeping():
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "join", interrupt)
            with pytest.raises(KeyboardInterrupt):
                candidates.compile_ahead([wait, wait], here)
        both = threading.Barrier(2)
        candidates.compile_ahead([lambda mine: (used.append(mine), both.wait(20))] * 2, here)
    release.set()
    threads[0].join(20)
    assert len(set(map(id, used))) == 3


def test_handles_of_threads_work_on_the_stream_of_the_call() -> None:
    with ct.use(stream=0x77) as stream:
        clip(images(*X), "autotune")
    assert [one.stream for one in context.of_device(0).helpers] == [stream]


def test_trial_between_calls_compiles_the_new_engine_alone(compiled: Watched) -> None:
    x = images(*X)
    for count in (1, 2):
        clip(x, "online")
        assert len(compiled) == count


def test_handles_of_threads_leave_captures_valid(fake: FakeCudnn, only_engines: None) -> None:
    x = images(*X)
    context.current(streams.default_stream(0))
    fake.relaxed.clear()
    ct.conv_algorithms(x, images(2, 3, 3, 3), measure=True)
    assert "cudnnCreate" in fake.relaxed


def test_call_in_a_thread_that_waits_for_the_benchmark_ends(
    compiled: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finalizer, which may run in any thread, may make it."""
    monkeypatch.setattr(candidates, "PATIENCE", 0.1)
    main, others = threading.get_ident(), list[threading.Thread]()
    both = threading.Barrier(2)

    def call() -> None:
        if not others:
            both.wait(20)
        if threading.get_ident() != main and not others:
            others.append(threading.current_thread())
            clip(images(2, *X[1:]), "autotune")

    compiled.also = call
    clip(images(*X), "autotune")
    assert context.of_device(0).helpers == []  # that thread still uses the handle
    others[0].join(20)
    assert not others[0].is_alive()
