"""Programs: which pointers and factors their steps get, and how their workspace is laid out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cudnn_ct.errors import ExecutionFailedError, NotSupportedError
from cudnn_ct.plans.axes import sliced
from cudnn_ct.plans.program import ALPHA, BETA, NO_STEP, Program, Step, Steps, Variants, chained, unscaled
from cudnn_ct.shapes.specs import TensorSpec

BASE = 1 << 20  # the address of the workspace
FLOATS = TensorSpec.packed((3,))  # 12 bytes


class Recorded:
    """A plan that records its runs in a list, or rejects them."""

    def __init__(self, log: list[Any], name: str = "", workspace: int = 0, *, rejects: bool = False) -> None:
        self.log, self.name, self.workspace, self.rejects = log, name, workspace, rejects

    def run(self, context: Any, pointers: Sequence[int], alpha: float, beta: float) -> None:
        if self.rejects:
            raise NotSupportedError("rejected")
        self.log.append((self.name, tuple(pointers), alpha, beta))

    def describe(self) -> str:
        return f"chosen: {self.name}"


class Context:
    """A context that only has a workspace, and records its requests."""

    def __init__(self) -> None:
        self.requested: list[int] = []
        self.stream = object()

    def workspace(self, nbytes: int) -> int:
        self.requested.append(nbytes)
        return BASE


class Numbers:
    """Numbers on the device."""

    pointer = 4096

    def __init__(self) -> None:
        self.kept: list[object] = []

    def on(self, context: Any, owner: object) -> Numbers:
        return self

    def keep_until_done(self, stream: object) -> None:
        self.kept.append(stream)


def test_chained_places_temporaries_behind_the_workspace_of_plans() -> None:
    log: list[Any] = []
    context: Any = Context()
    first, second = Recorded(log, "a", 100), Recorded(log, "b")
    program = chained([FLOATS, FLOATS], [Step(first, (0, 2)), Step(second, (2, 3, 1))])
    program.run(context, (16, 32), 2.0, 3.0)
    assert log == [("a", (16, BASE + 256), 1.0, 0.0), ("b", (BASE + 256, BASE + 512, 32), 2.0, 3.0)]
    assert context.requested == [program.workspace] == [512 + 12]
    assert program.describe() == "chosen: a; then b"


@pytest.mark.parametrize(("scaled", "alphas"), [(None, [5.0, 7.0]), (0, [7.0, 1.0]), (NO_STEP, [5.0, 1.0])])
def test_chained_applies_alpha_in_one_step(scaled: int | None, alphas: list[float]) -> None:
    log: list[Any] = []
    plan: Any = Recorded(log)
    steps = [Step(plan, (0,), 1.0 if scaled == 0 else 5.0), Step(plan, (0,))]
    chained([], steps, scaled).run(Context(), (16,), 7.0, 0.0)  # type: ignore[arg-type]
    assert [alpha for _, _, alpha, _ in log] == alphas


def test_program_without_temporaries_requests_no_workspace() -> None:
    log: list[Any] = []
    context: Any = Context()
    plan: Any = Recorded(log, workspace=100)
    program = chained([], [Step(plan, (1, 0))])
    program.run(context, (16, 32), 1.0, 0.0)
    assert (log, context.requested, program.workspace) == ([("", (32, 16), 1.0, 0.0)], [], 100)


@pytest.mark.parametrize(
    ("alpha", "beta", "name"), [(1, 0, "case"), (1, 2, "other"), (3, 0, "other"), (3, 2, "other")]
)
def test_program_takes_other_steps_in_runs_without_factors(alpha: float, beta: float, name: str) -> None:
    log: list[Any] = []
    case: Any
    case, other = Recorded(log, "case"), Recorded(log, "other")
    steps = Steps((), [Step(other, None, ALPHA, BETA)])
    program = Program(steps, variants=unscaled([Step(case, None)]))
    program.run(Context(), (16, 32), alpha, beta)  # type: ignore[arg-type]
    assert log == [(name, (16, 32), alpha, beta)]


def test_program_makes_the_steps_for_a_key_once_and_when_needed() -> None:
    log: list[Any] = []
    context: Any = Context()
    plan, made = Recorded(log), []

    def misaligned(pointers: Sequence[int], alpha: float, beta: float) -> tuple[int, ...]:
        return tuple(place for place, pointer in enumerate(pointers) if pointer % 16)

    def if_misaligned(places: tuple[int, ...]) -> Steps:
        made.append(places)
        return Steps([4] * len(places), [Step(plan, tuple(range(2, 2 + len(places))))])

    variants = Variants(misaligned, if_misaligned, workspace=260)
    program = Program(Steps((), [Step(plan, None)]), variants=variants)
    for pointers in ((16, 32), (16, 33), (16, 34), (17, 33)):
        program.run(context, pointers, 1.0, 0.0)
    places = [given for _, given, _, _ in log]
    assert places == [(16, 32), (BASE,), (BASE,), (BASE, BASE + 256)]
    assert made == [(1,), (0, 1)]  # each set of operands once
    assert program.workspace == 260


def test_program_keeps_its_constants_until_the_work_is_done() -> None:
    log: list[Any] = []
    context: Any = Context()
    plan: Any = Recorded(log)
    numbers, made = Numbers(), []

    def constant(given: Any) -> Numbers:
        made.append(given)
        return numbers

    program = Program(Steps([FLOATS], [Step(plan, (0, 2, 1))]), constants=[constant])
    for _ in range(2):
        program.run(context, (16,), 1.0, 0.0)
    assert log == [("", (16, 4096, BASE), 1.0, 0.0)] * 2
    assert (made, numbers.kept) == ([context], [context.stream] * 2)


def test_sliced_adds_offsets_and_applies_both_factors_in_each_step() -> None:
    log: list[Any] = []
    plan: Any = Recorded(log, "f")
    program = sliced([(plan, (0, 0)), (plan, (8, 4))])
    program.run(Context(), (16, 32), 2.0, 3.0)  # type: ignore[arg-type]
    assert log == [("f", (16, 32), 2.0, 3.0), ("f", (24, 36), 2.0, 3.0)]
    assert program.describe() == "chosen: f; 2 calls, one for each slice"


@pytest.mark.parametrize(("rejecting", "error"), [(0, NotSupportedError), (1, ExecutionFailedError)])
def test_program_reports_a_rejection_after_results_were_written(
    rejecting: int, error: type[Exception]
) -> None:
    log: list[Any] = []
    plans: Any = [Recorded(log, rejects=place == rejecting) for place in range(2)]
    steps = Steps((), [Step(plan, None) for plan in plans], written=1)
    with pytest.raises(error):
        Program(steps).run(Context(), (16,), 1.0, 0.0)  # type: ignore[arg-type]
