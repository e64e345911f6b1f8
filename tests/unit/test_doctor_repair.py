"""The doctor on environments with small wheels: each defect is named, and the commands repair it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudnn_ct import doctor
from tests.doctor_environments import (
    BREAKAGES,
    LAYOUTS,
    NEW,
    OLD,
    SOUND,
    Breakage,
    Environment,
    Sound,
    make_wheels,
)

pytest.importorskip("pip")

RUNS = [(case, layout) for case in BREAKAGES for layout in case.layouts or LAYOUTS]
SOUND_RUNS = [(case, layout) for case in SOUND for layout in case.layouts]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheels(tmp_path_factory.mktemp("wheels"))


def sampled(runs: list[tuple[Breakage, str]]) -> list[object]:
    """Mark all runs as nightly, except one of each case, in different layouts."""
    marked = []
    for case, layout in runs:
        layouts = case.layouts or LAYOUTS
        own = layout == layouts[BREAKAGES.index(case) % len(layouts)]
        marks = [] if own else [pytest.mark.nightly]
        marked.append(pytest.param(case, layout, marks=marks, id=f"{case.name}-{layout}"))
    return marked


def wrong(diagnosis: doctor.Diagnosis) -> set[tuple[str, str]]:
    return {(each.code, each.message) for each in diagnosis.findings if each.severity.word != "note"}


@pytest.mark.parametrize(("case", "layout"), sampled(RUNS))
def test_commands_repair_at_once_and_destroy_nothing(
    tmp_path: Path, wheels: Path, case: Breakage, layout: str
) -> None:
    environment = Environment(tmp_path / "e", wheels, case.labels, layout)
    files = wheels / "files"
    names = f"other={files / OLD}/lib; newer={files / NEW}/lib\n"
    assert environment.run(names + case.damage) == 0, environment.output
    before = environment.diagnose(case.asked)
    assert case.code in {code for code, _ in wrong(before)}, before.findings
    assert case.manual == (not before.commands), before.commands
    installs = any(" pip " in command for command in before.commands)
    if installs and environment.run("\n".join(before.commands), index=False):  # without a network
        assert wrong(environment.diagnose(case.asked)) <= wrong(before)
    if before.commands:
        assert environment.run("\n".join(before.commands)) == 0, environment.output
        after = environment.diagnose(case.asked)
        assert (wrong(after), after.verdict) == (set(), "sound"), environment.output


@pytest.mark.parametrize(
    ("case", "layout"), SOUND_RUNS, ids=[f"{case.name}-{each}" for case, each in SOUND_RUNS]
)
def test_doctor_finds_nothing_in_a_sound_environment(
    tmp_path: Path, wheels: Path, case: Sound, layout: str
) -> None:
    environment = Environment(tmp_path / "e", wheels, case.labels, layout)
    assert environment.run(case.script) == 0, environment.output
    found = environment.diagnose(case.asked)
    assert (wrong(found), found.verdict, found.commands) == (set(), "sound", ())
