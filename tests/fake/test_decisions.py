"""What failures may and may not decide, and what a prepared plan keeps to: on the fakes."""

from __future__ import annotations

import gc
import threading
import weakref
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import algo_cache, context, testing
from cudnn_ct._config import config
from cudnn_ct.autotune.candidates import CandidateSet
from cudnn_ct.autotune.request import AlgoRequest
from cudnn_ct.autotune.store import store
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import (
    AllocationError,
    ExecutionFailedError,
    NotInitializedError,
    NotSupportedError,
    error_from_status,
)
from cudnn_ct.graph import candidates as engine_candidates
from cudnn_ct.ops.conv import candidates, graph
from cudnn_ct.plans.base import Candidate
from cudnn_ct.shapes.conv import conv_problem
from cudnn_ct.shapes.fused import FusedConv
from cudnn_ct.shapes.specs import TensorSpec

from .conftest import forget
from .cudnn import FakeCudnn
from .host import Host
from .test_algorithms import GUESS, TIME, on_disk, operands, ran
from .test_conv import algorithms, images

__all__ = ["on_disk"]  # a fixture, known here by its import


def in_thread(work: Any) -> Any:
    """What ``work`` returns in a thread of its own."""
    results: list[Any] = []

    def body() -> None:
        results.append(work())

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return results[0]


# --- failures ---


@pytest.mark.parametrize(("status", "error"), [(5000, ExecutionFailedError), (4003, AllocationError)])
def test_trouble_while_timing_decides_nothing(
    fake: FakeCudnn, on_disk: Path, status: int, error: type[Exception]
) -> None:
    fake.costs = {"GEMM": 9.0}
    fake.fail["cudnnConvolutionForward"] = status
    with pytest.raises(error):
        ran(fake, algo=TIME)
    assert not store().export()
    fake.fail.clear()
    assert ran(fake, algo=TIME) == "IMPLICIT_GEMM"
    assert len(store().export()) == 1


def test_trouble_in_a_second_look_costs_a_candidate_and_no_more(fake: FakeCudnn, on_disk: Path) -> None:
    x, w = operands()
    forget()
    fake.calls.clear()
    ct.conv(x, w, algo=TIME)
    runs = [k for k, name in enumerate(fake.names(), 1) if name == "cudnnConvolutionForward"]
    assert len(runs) > 8  # both were looked at twice
    for k in runs[:-1]:
        forget()
        store().clear()
        fake.calls.clear()
        fake.fail_at = {k: 5000}
        y = ct.conv(x, w, algo=TIME)
        assert not store().export(), "a choice that a passing failure decided was kept"
        np.testing.assert_array_equal(y.numpy(), ct.reference.conv(x.numpy(), w.numpy()))


def test_what_was_not_worth_its_time_comes_last(fake: FakeCudnn) -> None:
    race = CandidateSet(AlgoRequest("autotune"), ())
    untimed, quick = (Candidate("graph", name, "any", 0, True) for name in ("engine 1", "engine 2"))
    race.store_timings([untimed, quick._replace(time_ms=2.0), untimed._replace(rejected="no")], [])
    ctx = context.current(streams.default_stream(0))
    assert [(row.algorithm, row.time_ms) for row in race.viable(ctx)] == [
        ("engine 2", 2.0),
        ("engine 1", None),
    ]


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("status", [2000, 3000])
def test_where_everything_was_refused_the_next_call_looks_anew(
    fake: FakeCudnn, status: int, fresh: bool
) -> None:
    fake.fail["cudnnConvolutionForward"] = status
    with pytest.raises(NotSupportedError, match="no way to compute"):
        ran(fake)
    fake.fail.clear()
    if fresh:
        context.current(streams.current_stream()).calls.clear()  # as in another thread
    assert ran(fake) == "GEMM"


@pytest.mark.parametrize("algo", [GUESS, TIME, "large"])
def test_a_plan_looks_anew_too_and_takes_what_is_no_longer_refused(fake: FakeCudnn, algo: str) -> None:
    x, w = operands()
    expected = ct.reference.conv(x.numpy(), w.numpy())
    plan = ct.conv_plan(x, w, algo=algo, strict=True)
    np.testing.assert_array_equal(plan(x, w).numpy(), expected)
    fake.unrunnable = {"GEMM", "IMPLICIT_GEMM"}
    for _ in range(2):
        with pytest.raises(NotSupportedError, match="no way to compute"):
            plan(x, w)
    fake.unrunnable = {"GEMM"} if algo != "large" else set()
    np.testing.assert_array_equal(plan(x, w).numpy(), expected)
    assert algorithms(fake)[-1] == ("GEMM" if algo == "large" else "IMPLICIT_GEMM")


def test_a_kept_row_that_its_run_refuses_is_followed_by_a_race_and_no_guess(
    fake: FakeCudnn, on_disk: Path
) -> None:
    ran(fake, algo=TIME)
    ((key, choice),) = store().export().items()
    store().put(key, {"rows": [row for row in choice["rows"] if row["algorithm"] == "gemm"]})
    forget()
    fake.unrunnable = {"GEMM"}
    assert ran(fake, algo=TIME) == "IMPLICIT_GEMM"
    assert algorithms(fake).count("IMPLICIT_GEMM") > 3, "timed"
    x, w = operands()
    assert "timed" in ct.conv_plan(x, w, algo=TIME).describe()
    forget()
    assert ran(fake, algo=TIME) == "IMPLICIT_GEMM"
    assert len(algorithms(fake)) == 1, "what the race found is on disk"


def test_the_first_of_several_failures_of_a_device_is_told(fake: FakeCudnn) -> None:
    """After a fault cuDNN says anything, such as that it is not initialized: the fault is what matters."""
    x, w = operands()
    ct.conv(x, w)
    fake.fail = {"cudnnConvolutionForward": 5000, "cudnnGetConvolutionForwardWorkspaceSize": 1001}
    with pytest.raises(ExecutionFailedError, match="cudnnConvolutionForward returned"):
        ct.conv(x, w)
    fake.fail = {"cudnnConvolutionForward": 3000, "cudnnGetConvolutionForwardWorkspaceSize": 1001}
    with pytest.raises(NotInitializedError, match="cudnnGetConvolutionForwardWorkspaceSize returned"):
        ct.conv(x, w)


@pytest.mark.parametrize("algo", ["large", GUESS])
@pytest.mark.parametrize(
    "where", ["cudnnGetConvolutionForwardAlgorithm_v7", "cudnnGetConvolutionForwardWorkspaceSize"]
)
def test_a_transient_failure_replaces_no_algorithm(fake: FakeCudnn, where: str, algo: str) -> None:
    fake.fail[where] = 4000
    with pytest.raises(ct.InternalError):
        ran(fake, algo=algo)
    fake.fail.clear()
    assert ran(fake, algo=algo) == "GEMM"


# --- rows, and arguments as they may be written ---


def test_a_named_algorithm_in_the_settings_is_not_for_tables(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "algo", "large")  # which the gradient of the data has not
    assert ct.conv_algorithms(images(2, 4, 3, 4), images(4, 3, 3, 3), (2, 3, 5, 6), direction="backward_data")


def test_a_row_of_the_caller_keeps_all_limits(fake: FakeCudnn) -> None:
    fake.random = {"GEMM"}
    x, w = operands()
    row = next(row for row in ct.conv_algorithms(x, w, precision="float32") if row.algorithm == "gemm")
    assert row.math == "fma"
    with pytest.raises(NotSupportedError, match="not deterministic"):
        ct.conv(x, w, precision="float32", algo=row, deterministic=True)
    with pytest.raises(NotSupportedError, match="tensor_op math is coarser than float32"):
        ct.conv(x, w, precision="float32", algo=row._replace(math="tensor_op"))
    fused = ct.conv_bias_activation_plan(x, w, images(4)).candidate
    assert fused.backend == "legacy"
    for packed in ((("b", "nhwc"),), (("x", "nwhc"),), (("dx", "nchw"),)):
        with pytest.raises(NotSupportedError, match="got relayout="):
            ct.conv_bias_activation(x, w, images(4), algo=fused._replace(relayout=packed))
    halves = (ct.full((1, 8, 4, 4), 200.0, "float16"), ct.full((1, 8, 1, 1), 100.0, "float16"))
    engine = Candidate("graph", "engine 1", "tensor_op", 0, True)
    with pytest.raises(NotSupportedError, match="may overflow before alpha makes them small"):
        ct.conv(*halves, alpha=0.125, algo=engine)


def test_settings_and_lists_that_change_later_change_no_plan(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.costs = {"GEMM": 9.0}
    stride = [2, 1]
    x, w = operands()
    plan = ct.conv_plan(x, w, stride=stride, algo=GUESS)
    expected = ct.reference.conv(x.numpy(), w.numpy(), stride=(2, 1))
    stride[:] = [1, 1]
    monkeypatch.setattr(config, "deterministic", True)
    fake.random = {"GEMM"}
    values, candidate = in_thread(lambda: (plan(x, w).numpy(), plan.candidate))
    np.testing.assert_array_equal(values, expected)
    assert candidate.algorithm == "gemm"


@pytest.mark.parametrize("algo", [TIME, GUESS])
def test_preparing_writes_into_no_operand(fake: FakeCudnn, algo: str) -> None:
    x, w = images(1, 1, 4, 4), images(1, 1, 1, 1)
    before = x.numpy()
    ct.conv_plan(x, w, algo=algo, out=x)
    ct.conv_algorithms(x, w, out=x)
    np.testing.assert_array_equal(x.numpy(), before)


def test_nothing_to_compute_has_an_empty_table(fake: FakeCudnn) -> None:
    table = ct.conv_algorithms(ct.empty((0, 3, 5, 6)), images(4, 3, 3, 3))
    assert table == ()
    assert "x float32[0, 3, 5, 6]" in str(table)


def test_no_table_is_timed_in_a_capture(fake: FakeCudnn, host: Host) -> None:
    x, w = operands()
    host.capturing.add(0x77)
    with pytest.raises(NotInitializedError, match="cannot be timed on a stream that is being captured"):
        ct.conv_algorithms(x, w, stream=0x77)
    assert ct.conv_algorithms(x, w, stream=0x77, measure=False)


def test_padding_that_differs_between_sides_reaches_no_legacy_call(fake: FakeCudnn) -> None:
    x, w = operands()
    ct.conv(x, w, algo="guess_once", padding=1)  # keeps a legacy algorithm for its kind
    for algo in ("guess_once", "none", TIME):
        fake.calls.clear()
        with pytest.raises(NotSupportedError, match="pad both sides of an axis alike"):
            ct.conv(x, w, algo=algo, padding=((0, 1), (1, 1)))
        assert not algorithms(fake)


@pytest.mark.parametrize(
    ("keywords", "with_bias"), [({"activation": "sigmoid"}, True), ({"activation": "relu"}, False)]
)
def test_a_name_serves_where_the_fused_call_does_not(
    fake: FakeCudnn, keywords: dict[str, Any], with_bias: bool
) -> None:
    x, w = operands()
    b = images(4) if with_bias else None
    plan = ct.conv_bias_activation_plan(x, w, b, algo="large", strict=True, **keywords)
    assert plan.candidate.algorithm == "legacy gemm"
    assert plan.candidate.backend == "unfused"


def test_no_engines_are_timed_where_none_are_wanted(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "autotune_max_engines", 0)
    x, w = operands()
    fake.calls.clear()
    ct.conv_bias_activation(x, w, images(4), activation="sigmoid", algo=TIME)
    assert not any(name.startswith("cudnnBackend") for name in fake.names())


# --- what outlives a thread ---


def test_what_was_captured_outlives_its_thread_and_its_plan(fake: FakeCudnn, host: Host) -> None:
    fake.workspaces = {"GEMM": 512}
    x, w = operands()
    out = ct.full((2, 4, 3, 4), np.nan)

    def capture() -> None:
        with ct.use(stream=0x77):
            plan = ct.conv_plan(x, w)
            plan(x, w, out=out)
            host.capturing.add(0x77)
            plan(x, w, out=out)

    in_thread(capture)
    assert testing.cache_sizes()["captured"].entries == 2  # the workspace and the handle


def test_a_plan_that_is_gone_leaves_nothing_in_threads_that_live(fake: FakeCudnn) -> None:
    x, w = operands()
    plan = ct.conv_plan(x, w)
    ctx = context.current(streams.current_stream())
    assert len(ctx.plans) == 1
    del plan
    assert not ctx.plans


@pytest.mark.parametrize("fused", [False, True])
def test_what_a_guess_prefers_is_in_the_table_and_timed(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch, fused: bool
) -> None:
    """No heuristic need name it with these knobs."""
    mine = Candidate("graph", "engine 70 knobs 2=4", "fma", 0, True)
    monkeypatch.setattr(graph, "preferred", lambda problem, context: [mine])
    monkeypatch.setattr(graph, "candidates", lambda *_: [mine._replace(algorithm="engine 0")])
    here = context.current(streams.default_stream(0))
    x, w = TensorSpec.packed((2, 3, 8, 8), "float32"), TensorSpec.packed((4, 3, 3, 3), "float32")
    conv = conv_problem("forward", x, w)
    problem = FusedConv(conv, activation="relu") if fused else conv
    for rows in (
        candidates.all_candidates(problem, here),
        candidates.autotune_candidates(problem, here, AlgoRequest()),
    ):
        assert any(row.algorithm.endswith("engine 70 knobs 2=4") for row in rows), rows


# --- what a failure leaves behind ---


class Way:
    """A plan that does as the name of its row says, to a result of one element."""

    workspace = 0

    def __init__(self, does: str, result: list[float]) -> None:
        self.does, self.result = does, result

    def describe(self) -> str:
        return self.does

    def run(self, context: Any, pointers: Any, alpha: float, beta: float) -> None:
        if self.does.startswith("refuse"):
            raise NotSupportedError("not this way")
        if self.does.startswith("fault"):
            self.result[0] = -999.0  # a kernel wrote before it failed
            raise ExecutionFailedError("failed", status=5000)
        self.result[0] = alpha * 10 + beta * self.result[0]


class Ways:
    """A family of such ways, for a problem that is nothing but a kind."""

    kind = "of the tests"

    def __init__(self, *names: str) -> None:
        self.result = [1.0]
        self.rows = [Candidate("legacy", name, "any", 0, True) for name in names]

    def heuristics(self, problem: Any) -> list[Any]:
        return [lambda context: self.rows]

    def autotune_candidates(self, *_: Any) -> list[Candidate]:
        return self.rows

    def plan(self, problem: Any, row: Candidate, context: Any) -> Way:
        return Way(row.algorithm, self.result)

    def choose(self, algo: str) -> Any:
        here = context.current(streams.default_stream(0))
        return algo_cache.select(self, self, here, AlgoRequest(algo)), here  # type: ignore[arg-type]


@pytest.mark.parametrize("names", [("fault", "good"), ("refuse", "fault", "good")])
def test_what_beta_multiplies_may_be_gone_whichever_candidate_failed(
    fake: FakeCudnn, names: tuple[str, ...]
) -> None:
    ways = Ways(*names)
    choice, here = ways.choose(GUESS)
    with pytest.raises(ExecutionFailedError):
        choice.run(here, (0,), 1.0, 1.0)
    assert ways.result == [-999.0], "another way ran on what was destroyed"
    without = Ways(*names)
    choice, here = without.choose(GUESS)
    with pytest.warns(ct.CudnnWarning, match="legacy fault .* failed"):
        choice.run(here, (0,), 1.0, 0.0)
    assert without.result == [10.0]


@pytest.mark.parametrize("algo", [GUESS, TIME])
def test_candidates_that_failed_keep_nothing_of_the_caller(fake: FakeCudnn, algo: str) -> None:
    class Array:
        pass

    def caller() -> Any:
        array = Array()
        ways = Ways("refuse", "refuse too", "good")
        choice, here = ways.choose(algo)
        choice.run(here, (0,), 1.0, 0.0)
        assert ways.result == [10.0]
        return weakref.ref(array), choice

    gc.collect()
    gc.disable()
    try:
        array, choice = caller()
        assert array() is None
        assert choice.candidate.algorithm == "good"
    finally:
        gc.enable()


@pytest.mark.parametrize("status", [1001, 1008, 3009])
def test_what_an_installation_lacks_is_not_remembered_on_disk(
    fake: FakeCudnn, on_disk: Path, status: int
) -> None:
    fake.fail["cudnnConvolutionForward"] = status
    with pytest.raises(ct.CudnnError, match=f"({status})"):
        ran(fake, algo=TIME)
    assert not store().export()
    fake.fail.clear()
    forget()
    assert ran(fake, algo=TIME) in ("GEMM", "IMPLICIT_GEMM")
    assert len(store().export()) == 1


@pytest.mark.parametrize(
    ("status", "tries", "kept"), [(3000, 1, 1), (3009, 1, 0), (4000, 1, 0), (4003, 2, 0), (5000, 2, 0)]
)
def test_what_the_making_of_a_plan_says_of_an_engine(
    fake: FakeCudnn, on_disk: Path, monkeypatch: pytest.MonkeyPatch, status: int, tries: int, kept: int
) -> None:
    """What passes is tried again in a guess; a race is kept on disk where an engine was only refused."""
    tried = []

    def execution_plan(*_: Any) -> Any:
        tried.append(status)
        raise error_from_status(status, "cudnnBackendFinalize")

    monkeypatch.setattr(graph, "candidates", lambda *_: [Candidate("graph", "engine 1", "fma", 0, True)])
    monkeypatch.setattr(engine_candidates, "operation_graph", lambda *_: None)
    monkeypatch.setattr(engine_candidates, "execution_plan", execution_plan)
    for _ in range(2):
        ran(fake)
        context.current(streams.current_stream()).calls.clear()  # as in another thread
    assert len(tried) == tries
    ran(fake, algo=TIME)
    assert len(store().export()) == kept


def test_scratch_memory_of_other_streams_makes_room(fake: FakeCudnn, host: Host) -> None:
    host.limit, host.device = host.used() + 2**20, 0
    context.current(streams.default_stream(0)).workspace(700_000)
    with ct.use(stream=0x77) as other:
        assert context.current(other).workspace(600_000)


def test_a_workspace_that_grows_may_take_the_place_of_the_old_one(fake: FakeCudnn, host: Host) -> None:
    here = context.current(streams.default_stream(0))
    host.limit, host.device = host.used() + 2**20, 0
    here.workspace(400_000)
    assert here.workspace(800_000)
    with pytest.raises(AllocationError):
        here.workspace(2**21)
    assert here.workspace(800_000)


def test_compiled_engines_that_are_not_wanted_leave_the_others_in_the_race(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = ("tensor_core", "runtime_compilation")
    rows = [Candidate("graph", f"engine {n}", "tensor_op", 0, True, notes=notes) for n in range(20, 24)]
    monkeypatch.setattr(graph, "candidates", lambda *_: rows)
    here = context.current(streams.default_stream(0))
    x, w = TensorSpec.packed((2, 3, 8, 8), "float16"), TensorSpec.packed((4, 3, 3, 3), "float16")
    problem = conv_problem("forward", x, w)

    for compiled, backend in ((True, "graph"), (False, "legacy")):
        tried = candidates.autotune_candidates(problem, here, AlgoRequest(TIME, compiled=compiled))
        assert {row.backend for row in tried if not row.rejected} == {backend}


@pytest.mark.filterwarnings("ignore::cudnn_ct.errors.CudnnWarning")
@pytest.mark.parametrize("warm", [False, True], ids=["first call", "second call"])
@pytest.mark.parametrize("algo", ["heuristic", TIME, "small"])
@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 0.0), (1.0, 0.5), (-0.5, 2.0)])
@pytest.mark.parametrize("status", [3000, 4003, 5000])
def test_conv_scales_its_result_when_any_c_call_fails(
    fake: FakeCudnn, status: int, alpha: float, beta: float, algo: str, warm: bool
) -> None:
    """An algorithm that takes over gets the same factors; a call that raises leaves ``out`` as it was."""
    x, w = operands()
    product = ct.reference.conv(x.numpy(), w.numpy())
    before = np.arange(product.size, dtype=np.float32).reshape(product.shape)

    def scaled(fail_at: dict[int, int]) -> np.ndarray:
        out = ct.asarray(before)
        fake.calls.clear()
        fake.fail_at = fail_at
        try:
            ct.conv(x, w, algo=algo, alpha=alpha, beta=beta, out=out)
        except ct.CudnnError:
            np.testing.assert_array_equal(out.numpy(), before)
            return alpha * product + beta * before
        finally:
            fake.fail_at = {}
        return out.numpy()

    for k in count(1):
        forget()
        if warm:
            scaled({})
        np.testing.assert_allclose(scaled({k: status}), alpha * product + beta * before, rtol=1e-6)
        np.testing.assert_allclose(scaled({}), alpha * product + beta * before, rtol=1e-6)
        if len(fake.calls) < k:
            break


class FirstRunsRefused(dict[str, int]):
    """Failures of the fake: the first runs of a forward algorithm are refused."""

    def __init__(self, count: int) -> None:
        self.left = count

    def get(self, name: str, default: Any = None) -> Any:
        if name != "cudnnConvolutionForward" or not self.left:
            return default
        self.left -= 1
        return 3000


def scaled_conv(fake: FakeCudnn, algo: str, refused: int) -> None:
    """Check a scaled convolution, of which the first ``refused`` runs of an algorithm are refused."""
    x, w = operands()
    product = ct.reference.conv(x.numpy(), w.numpy())
    out = ct.full(product.shape, 3.0)
    fake.fail = FirstRunsRefused(refused)
    try:
        ct.conv(x, w, algo=algo, alpha=-0.5, beta=2.0, out=out)
    finally:
        fake.fail = {}
    np.testing.assert_allclose(out.numpy(), -0.5 * product + 6.0, rtol=1e-6)


def test_conv_scales_its_result_when_all_was_refused_in_another_thread(fake: FakeCudnn) -> None:
    scaled_conv(fake, GUESS, 0)

    def refused() -> None:
        with pytest.raises(NotSupportedError):
            scaled_conv(fake, GUESS, 100)

    in_thread(refused)
    scaled_conv(fake, GUESS, 1)


def test_conv_scales_its_result_when_all_stored_algorithms_are_refused(
    fake: FakeCudnn, on_disk: Path
) -> None:
    fake.refused = {"IMPLICIT_PRECOMP_GEMM"}
    scaled_conv(fake, TIME, 0)
    forget()
    rows = next(iter(store().export().values()))["rows"]
    scaled_conv(fake, TIME, len(rows))


def test_compiled_engines_are_pruned_as_a_group_of_their_own() -> None:
    row = Candidate("graph", "engine 9 knobs 2=1", "fma", 0, True)
    assert algo_cache._kind(row) == ("graph", "engine 9")
    assert algo_cache._kind(row._replace(notes=("runtime_compilation",))) == ("compiled", "engine 9")
