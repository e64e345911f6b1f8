"""Decisions about algorithms after failures, and the facts that a plan keeps. On the fakes."""

from __future__ import annotations

import weakref
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import algo_cache, context
from cudnn_ct._config import config
from cudnn_ct.autotune import measurement
from cudnn_ct.autotune.candidates import CandidateSet
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
from cudnn_ct.ops.conv import graph
from cudnn_ct.ops.conv.candidates import CONVOLUTIONS
from cudnn_ct.plans.base import AlgoRequest, Candidate
from cudnn_ct.shapes.conv import conv_problem
from cudnn_ct.shapes.fused import FusedConv
from cudnn_ct.shapes.specs import TensorSpec
from tests.both.replays import configured
from tests.mixed import in_threads, no_collecting

from .conftest import forget
from .cudnn import FakeCudnn
from .host import Host
from .test_algorithms import GUESS, TIME, operands, ran
from .test_conv import algorithms, images

pytestmark = pytest.mark.usefixtures("fake")


# --- failures ---


@pytest.mark.parametrize("status", [1001, 1008, 3009, 4003, 5000])
def test_autotune_stores_nothing_when_all_runs_fail(fake: FakeCudnn, on_disk: Path, status: int) -> None:
    fake.costs = {"GEMM": 9.0}
    fake.fail["cudnnConvolutionForward"] = status
    with pytest.raises(type(error_from_status(status, "")), match=f"({status})"):
        ran(fake, algo=TIME)
    assert not store().export()
    fake.fail.clear()
    assert ran(fake, algo=TIME) == "IMPLICIT_GEMM"
    assert len(store().export()) == 1


@configured(replay=False)  # a run that cannot be captured is timed as it is
def test_autotune_stores_nothing_when_one_run_fails(fake: FakeCudnn, on_disk: Path) -> None:
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


def test_pruned_candidates_come_last() -> None:
    race = CandidateSet(AlgoRequest("autotune"), ())
    untimed, quick = (Candidate("graph", name, "any", 0, True) for name in ("engine 1", "engine 2"))
    race.store_timings([untimed, quick._replace(time_ms=2.0), untimed._replace(rejected="no")], [])
    ctx = context.current(streams.default_stream(0))
    assert [(row.algorithm, row.time_ms) for row in race.viable(ctx, [])] == [
        ("engine 2", 2.0),
        ("engine 1", None),
    ]


def test_candidates_of_several_sources_differ_by_arithmetic_and_copies() -> None:
    row = Candidate("legacy", "gemm", "fma", 0, True)
    rows = [row, row._replace(math="tensor_op"), row._replace(relayout=(("x", "nhwc"),))]
    found = CandidateSet(AlgoRequest(), [lambda _: [row], lambda _: [row._replace(workspace=8), *rows]])
    assert list(found.viable(context.current(streams.default_stream(0)), [])) == rows


@pytest.mark.parametrize("algo", [GUESS, TIME, "large"])
def test_plan_selects_again_when_everything_was_rejected(fake: FakeCudnn, algo: str) -> None:
    x, w = operands()
    expected = ct.reference.conv(x.numpy(), w.numpy())
    plan = ct.conv_plan(x, w, algo=algo, strict=True)
    np.testing.assert_array_equal(plan(x, w).numpy(), expected)
    fake.unrunnable = {"GEMM", "IMPLICIT_GEMM"}
    for _ in range(2):
        with pytest.raises(NotSupportedError, match="does not support"):
            plan(x, w)
    fake.unrunnable = {"GEMM"} if algo != "large" else set()
    np.testing.assert_array_equal(plan(x, w).numpy(), expected)
    assert algorithms(fake)[-1] == ("GEMM" if algo == "large" else "IMPLICIT_GEMM")


def test_autotune_times_when_the_stored_row_is_rejected_at_its_run(fake: FakeCudnn, on_disk: Path) -> None:
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


def test_warm_call_times_when_the_timing_of_its_predecessor_failed(
    fake: FakeCudnn, on_disk: Path, host: Host
) -> None:
    ran(fake, algo=TIME)
    ((key, choice),) = store().export().items()
    store().put(key, {"rows": [row for row in choice["rows"] if row["algorithm"] == "gemm"]})
    forget()
    with ct.use(stream=0x77):
        x, w = operands()
        ct.conv(x, w, algo=TIME)  # the stored row
        fake.unrunnable = {"GEMM"}
        message = "make the same call once before capturing it"
        with host.captured(0x77), pytest.raises(NotInitializedError, match=message):
            ct.conv(x, w, algo=TIME)
        assert ran(fake, algo=TIME) == "IMPLICIT_GEMM"


def test_conv_raises_the_first_failure_of_a_device(fake: FakeCudnn) -> None:
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
def test_transient_failure_replaces_no_algorithm(fake: FakeCudnn, where: str, algo: str) -> None:
    fake.fail[where] = 4000
    with pytest.raises(ct.InternalError):
        ran(fake, algo=algo)
    fake.fail.clear()
    assert ran(fake, algo=algo) == "GEMM"


# --- rows, and arguments as they may be written ---


def test_table_ignores_an_algorithm_named_in_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "algo", "large")  # which the gradient of the data has not
    assert ct.conv_algorithms(images(2, 4, 3, 4), images(4, 3, 3, 3), (2, 3, 5, 6), direction="backward_data")


def test_row_of_the_caller_is_checked_against_all_limits(fake: FakeCudnn) -> None:
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


@pytest.mark.parametrize("algo", [TIME, GUESS])
def test_preparing_writes_no_operand(algo: str) -> None:
    x, w = images(1, 1, 4, 4), images(1, 1, 1, 1)
    before = x.numpy()
    ct.conv_plan(x, w, algo=algo, out=x)
    ct.conv_algorithms(x, w, out=x)
    np.testing.assert_array_equal(x.numpy(), before)


def test_table_of_an_empty_problem_is_empty() -> None:
    table = ct.conv_algorithms(ct.empty((0, 3, 5, 6)), images(4, 3, 3, 3))
    assert table == ()
    assert "x float32[0, 3, 5, 6]" in str(table)


def test_table_is_not_timed_in_a_capture(host: Host) -> None:
    x, w = operands()
    host.capturing.add(0x77)
    with pytest.raises(NotInitializedError, match="cannot be timed on a stream that is being captured"):
        ct.conv_algorithms(x, w, stream=0x77)
    assert ct.conv_algorithms(x, w, stream=0x77, measure=False)


@pytest.mark.parametrize(
    ("keywords", "with_bias"), [({"activation": "sigmoid"}, True), ({"activation": "relu"}, False)]
)
def test_named_algorithm_runs_unfused_when_the_fused_call_does_not_support_it(
    keywords: dict[str, Any], with_bias: bool
) -> None:
    x, w = operands()
    b = images(4) if with_bias else None
    plan = ct.conv_bias_activation_plan(x, w, b, algo="large", strict=True, **keywords)
    assert plan.candidate.algorithm == "legacy gemm"
    assert plan.candidate.backend == "unfused"


def test_autotune_times_no_engine_when_the_setting_is_0(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "autotune_max_engines", 0)
    x, w = operands()
    fake.calls.clear()
    ct.conv_bias_activation(x, w, images(4), activation="sigmoid", algo=TIME)
    assert not any(name.startswith("cudnnBackend") for name in fake.names())


@pytest.mark.parametrize("fused", [False, True])
def test_preferred_engine_is_in_the_table_and_timed(monkeypatch: pytest.MonkeyPatch, fused: bool) -> None:
    mine = Candidate("graph", "engine 70 knobs 2=4", "fma", 0, True)
    monkeypatch.setattr(graph, "preferred", lambda problem, context: [mine])
    monkeypatch.setattr(graph, "candidates", lambda *_: [mine._replace(algorithm="engine 0")])
    here = context.current(streams.default_stream(0))
    x, w = TensorSpec.packed((2, 3, 8, 8), "float32"), TensorSpec.packed((4, 3, 3, 3), "float32")
    conv = conv_problem("forward", x, w)
    problem = FusedConv(conv, activation="relu") if fused else conv
    for rows in (
        CONVOLUTIONS.all_candidates(problem, here),
        CONVOLUTIONS.autotune_candidates(problem, here, AlgoRequest()),
    ):
        assert any(row.algorithm.endswith("engine 70 knobs 2=4") for row in rows), rows


# --- what a failure leaves behind ---


def selection_among(algo: str, *names: str) -> tuple[Any, context.Context, list[float]]:
    """Return a selection among plans that do as their names say, its context, and their result."""
    result = [1.0]
    rows = [Candidate("legacy", name, "any", 0, True) for name in names]

    def plan(problem: Any, row: Candidate, where: Any) -> Any:
        def run(where: Any, pointers: Any, alpha: float, beta: float) -> None:
            if row.algorithm.startswith("reject"):
                raise NotSupportedError("rejected")
            if row.algorithm == "fault":
                result[0] = -999.0  # a kernel wrote before it failed
                raise ExecutionFailedError("failed", status=5000)
            result[0] = alpha * 10 + beta * result[0]

        return SimpleNamespace(workspace=0, run=run, describe=lambda: row.algorithm)

    source: Any = SimpleNamespace(
        heuristics=lambda problem: [lambda where: rows], autotune_candidates=lambda *_: rows, plan=plan
    )
    here = context.current(streams.default_stream(0))
    problem: Any = object()
    return algo_cache.select(problem, source, here, AlgoRequest(algo)), here, result


@pytest.mark.parametrize("names", [("fault", "good"), ("reject", "fault", "good")])
def test_selection_tries_no_fallback_after_a_fault_when_beta_is_given(names: tuple[str, ...]) -> None:
    choice, here, result = selection_among(GUESS, *names)
    with pytest.raises(ExecutionFailedError):
        choice.run_first(here, (0,), 1.0, 1.0, compare=False)
    assert result == [-999.0], "another plan ran on what was overwritten"
    choice, here, result = selection_among(GUESS, *names)
    with pytest.warns(ct.CudnnWarning, match="legacy fault .* failed"):
        choice.run_first(here, (0,), 1.0, 0.0, compare=False)
    assert result == [10.0]


@pytest.mark.parametrize("algo", [GUESS, TIME])
def test_failed_candidates_keep_nothing_of_the_caller(algo: str) -> None:
    class Array:
        pass

    def caller() -> Any:
        array = Array()
        choice, here, result = selection_among(algo, "reject", "reject too", "good")
        choice.run_first(here, (0,), 1.0, 0.0, compare=False)
        assert result == [10.0]
        return weakref.ref(array), choice

    with no_collecting():
        array, choice = caller()
        assert array() is None
        assert choice.candidate.algorithm == "good"


@pytest.mark.parametrize(
    ("status", "tries", "kept"), [(3000, 1, 1), (3009, 1, 0), (4000, 1, 0), (4003, 2, 0), (5000, 2, 0)]
)
def test_engine_is_tried_again_when_its_plan_failed_for_lack_of_memory(
    fake: FakeCudnn, on_disk: Path, monkeypatch: pytest.MonkeyPatch, status: int, tries: int, kept: int
) -> None:
    tried = []

    def execution_plan(*_: Any) -> Any:
        tried.append(status)
        raise error_from_status(status, "cudnnBackendFinalize")

    row = Candidate("graph", "engine 99", "fma", 0, True)  # of which no fact has costs
    monkeypatch.setattr(graph, "candidates", lambda *_, **__: [row])
    monkeypatch.setattr(engine_candidates, "operation_graph", lambda *_: None)
    monkeypatch.setattr(engine_candidates, "execution_plan", execution_plan)
    for _ in range(2):
        ran(fake)
        context.current(streams.current_stream()).calls.clear()  # as in another thread
    assert len(tried) == tries
    ran(fake, algo=TIME)
    assert len(store().export()) == kept


def test_workspace_is_allocated_after_idle_ones_are_freed(host: Host) -> None:
    host.limit, host.device = host.used() + 2**20, 0
    context.current(streams.default_stream(0)).workspace(700_000)
    with ct.use(stream=0x77) as other:
        here = context.current(other)
        assert here.workspace(600_000)
        assert here.workspace(800_000)
        with pytest.raises(AllocationError):
            here.workspace(2**21)


def test_autotune_times_other_candidates_when_compiled_engines_are_excluded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes = ("tensor_core", "runtime_compilation")
    rows = [Candidate("graph", f"engine {n}", "tensor_op", 0, True, notes=notes) for n in range(20, 24)]
    monkeypatch.setattr(graph, "candidates", lambda *_: rows)
    here = context.current(streams.default_stream(0))
    x, w = TensorSpec.packed((2, 3, 8, 8), "float16"), TensorSpec.packed((4, 3, 3, 3), "float16")
    problem = conv_problem("forward", x, w)

    for compiled, backend in ((True, "graph"), (False, "legacy")):
        tried = CONVOLUTIONS.autotune_candidates(problem, here, AlgoRequest(TIME, compiled=compiled))
        assert {row.backend for row in tried if not row.rejected} == {backend}


@pytest.mark.filterwarnings("ignore::cudnn_ct.errors.CudnnWarning")
@pytest.mark.parametrize("warm", [False, True], ids=["first call", "second call"])
@pytest.mark.parametrize("algo", ["heuristic", TIME, "small"])
@pytest.mark.parametrize(
    ("status", "alpha", "beta"),
    [(3000, 2.0, 0.0), (3000, 1.0, 0.5), (3000, -0.5, 2.0), (4003, 1.0, 0.5), (5000, -0.5, 2.0)],
)
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


class FirstRunsRejected(dict[str, int]):
    """Failures of the fake: the first runs of a forward algorithm are rejected."""

    def __init__(self, left: int) -> None:
        self.left = left

    def get(self, name: str, default: Any = None) -> Any:
        self.left -= name == "cudnnConvolutionForward"
        return 3000 if name == "cudnnConvolutionForward" and self.left >= 0 else default


def scaled_conv(fake: FakeCudnn, algo: str, rejected: int) -> None:
    """Check a scaled convolution, of which the first ``rejected`` runs of an algorithm are rejected."""
    x, w = operands()
    product = ct.reference.conv(x.numpy(), w.numpy())
    out = ct.full(product.shape, 3.0)
    fake.fail = FirstRunsRejected(rejected)
    try:
        ct.conv(x, w, algo=algo, alpha=-0.5, beta=2.0, out=out)
    finally:
        fake.fail = {}
    np.testing.assert_allclose(out.numpy(), -0.5 * product + 6.0, rtol=1e-6)


def test_conv_scales_its_result_when_all_was_rejected_in_another_thread(fake: FakeCudnn) -> None:
    scaled_conv(fake, GUESS, 0)

    def refused(_: int) -> None:
        with pytest.raises(NotSupportedError):
            scaled_conv(fake, GUESS, 100)

    in_threads(1, refused)
    scaled_conv(fake, GUESS, 1)


def test_conv_scales_its_result_when_all_stored_algorithms_are_rejected(
    fake: FakeCudnn, on_disk: Path
) -> None:
    fake.refused = {"IMPLICIT_PRECOMP_GEMM"}
    scaled_conv(fake, TIME, 0)
    forget()
    rows = next(iter(store().export().values()))["rows"]
    scaled_conv(fake, TIME, len(rows))


def test_compiled_engines_are_pruned_as_a_group_of_their_own() -> None:
    row = Candidate("graph", "engine 9 knobs 2=1", "fma", 0, True)
    assert measurement.engine_of(row) == ("graph", "graph engine 9")
    compiled = row._replace(notes=("runtime_compilation",))
    assert measurement.engine_of(compiled) == ("compiled", "graph engine 9")
    assert measurement.engine_of(compiled._replace(backend="product")) == ("compiled", "product engine 9")
