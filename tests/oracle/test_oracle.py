"""The oracle on the fakes, and what it must find."""

from __future__ import annotations

import os
import random

import pytest

from tests.fake.installed import cudnn_installed, host_installed

from . import run
from .algorithms import judge_each
from .by_loops import ANSWERS
from .devices import Fakes
from .draw import RECIPES, Call, draw
from .judge import judge
from .run import _batch_size, compare, summary

pytestmark = pytest.mark.filterwarnings("ignore::cudnn_ct.errors.CudnnWarning")
CALLS = 3000
MAX_SECONDS = 240  # for one call: a large convolution on the fakes takes 25 s on an idle core
SEED = 1 if os.environ.get("CI") else random.SystemRandom().randrange(2**31)


def test_oracle_finds_nothing_on_the_fakes() -> None:
    result = compare(SEED, calls=CALLS, fakes=True, jobs=2, seconds=MAX_SECONDS)
    assert not result.findings, summary(result)
    assert result.calls == CALLS
    assert result.outcomes["agrees"] > 0.8 * CALLS
    assert set(result.operations) == set(RECIPES)


@pytest.mark.parametrize("operation", sorted(RECIPES))
def test_draws_are_reproducible(operation: str) -> None:
    for number in range(5):
        assert draw(7, number, "gpu", [operation]) == draw(7, number, "gpu", [operation])


def test_draws_share_a_problem_when_its_kernels_are_compiled() -> None:
    for number in range(0, 60, 3):
        first, *others = (draw(7, number + at, "gpu", ["conv", "matmul"], 3) for at in range(3))
        for at, call in enumerate(others, 1):
            assert call.number == number + at
            assert [one._replace(seed=0) for one in call.operands.values()] == [
                one._replace(seed=0) for one in first.operands.values()
            ]
            assert call.arguments == first.arguments
            assert all(one.seed != first.operands[name].seed for name, one in call.operands.items())
    calls = [draw(7, number, "gpu", ["conv", "scale"], 3) for number in range(60)]
    assert {call.operation for call in calls} == {"conv", "scale"}
    assert len({str(call) for call in calls}) == 60


def test_batches_end_alike_when_many_processes_share_the_calls() -> None:
    assert _batch_size(200_000, 64, fakes=False) == 1563
    assert _batch_size(None, 64, fakes=False) == 2000
    assert _batch_size(1000, 64, fakes=False) == 200


def test_children_get_the_gpus_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(run, "visible", lambda: ["3", "5"])
    run._gpus.cache_clear()
    try:
        assert run._gpus() == {"CUDA_VISIBLE_DEVICES": "3,5"}
    finally:
        run._gpus.cache_clear()


def drawn(operation: str, **wanted: object) -> Call:
    """The first call of an operation without factors whose fields have these values."""
    calls = (draw(3, number, "fakes", [operation]) for number in range(1000))
    return next(
        call
        for call in calls
        if not call.factors and all(getattr(call, name) == value for name, value in wanted.items())
    )


@pytest.mark.parametrize("operation", sorted(RECIPES))
def test_oracle_finds_a_result_that_is_off_by_a_tenth(operation: str) -> None:
    def wrong(values: object, arguments: object) -> dict[str, object]:
        answers = ANSWERS[operation](values, arguments)
        return {
            name: one._replace(value=1.1 * one.value + 0.1 * one.scale, ambiguous=None)
            for name, one in answers.items()
        }

    with host_installed() as host, cudnn_installed(host):
        outcomes = []
        for number in range(12):
            call = draw(5, number, "fakes", [operation])._replace(factors={}, plan="")
            arguments = {k: v for k, v in call.arguments.items() if k not in ("precision", "workspace_limit")}
            outcomes.append(
                judge(call._replace(arguments=arguments), Fakes(host), ANSWERS | {operation: wrong})
            )
    assert "finding" in {one.outcome for one in outcomes}, outcomes


def test_oracle_finds_a_computed_call_that_has_to_be_rejected() -> None:
    with host_installed() as host, cudnn_installed(host):
        call = drawn("scaled_attention", rejected=False)
        assert judge(call, Fakes(host), ANSWERS).outcome == "agrees"
        verdict = judge(call._replace(rejected=True), Fakes(host), ANSWERS)
        assert verdict.outcome == "finding"
        assert "says that it is rejected" in verdict.detail
        rejected = judge(drawn("scaled_attention", rejected=True), Fakes(host), ANSWERS)
    assert rejected.outcome == "not supported"


def test_oracle_finds_memory_around_a_result_that_was_written() -> None:
    with host_installed() as host, cudnn_installed(host):
        device = Fakes(host)
        place = device.place

        def writing(tensor, laid, late=False):
            placed = place(tensor, laid, late)
            read = placed.read

            def changed():
                memory = read().copy()
                memory[0] ^= 1
                return memory

            return placed._replace(read=changed)

        device.place = writing  # type: ignore[method-assign]
        verdict = judge(drawn("activation", alias=""), device, ANSWERS)
    assert verdict.outcome == "finding"
    assert "was written to: 1 bytes" in verdict.detail


def test_each_algorithm_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    with host_installed() as host, cudnn_installed(host) as fake:
        fake.engines = True
        call = drawn("conv", plan="conv_plan")
        runs: list[str] = []
        note = lambda call, algorithm: runs.append(algorithm)  # noqa: E731
        assert judge_each(call, Fakes(host), ANSWERS, note).outcome == "agrees"
        assert any(name.startswith("engine") for name in runs)
        assert "implicit_gemm" in " ".join(runs)
        write = type(fake)._write
        monkeypatch.setattr(fake, "_write", lambda tensor, y, *rest: write(fake, tensor, 2 * y + 1, *rest))
        verdict = judge_each(call, Fakes(host), ANSWERS, note)
    assert verdict.outcome == "finding"
    assert [line[:14] for line in verdict.detail.splitlines()] == ["graph engine 0"]
