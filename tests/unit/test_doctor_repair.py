"""The doctor on environments with small wheels: each defect is named, and the commands repair it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor_breakages import BREAKAGES, SOUND, Breakage, Sound, attempt, wrong
from tests.doctor_environments import CUDA12, LAYOUTS, NEW, Environment, make_wheels
from tests.nightly import some

pytest.importorskip("pip")

RUNS = [(case, layout) for case in BREAKAGES for layout in case.layouts or LAYOUTS]
TRIED: set[tuple[str, ...]] = set()  # forms of commands that this process ran without packages to download
SOUND_RUNS = [(case, layout) for case in SOUND for layout in case.layouts]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheels(tmp_path_factory.mktemp("wheels"))


def sampled(runs: list[tuple[Breakage, str]]) -> list[object]:
    """Mark all runs as nightly, except one of each 15th case, in different layouts."""
    marked = []
    for case, layout in runs:
        layouts = case.layouts or LAYOUTS
        number = BREAKAGES.index(case)
        own = number % 15 == 0 and layout == layouts[number // 15 % len(layouts)]
        marks = [] if own else [pytest.mark.nightly]
        marked.append(pytest.param(case, layout, marks=marks, id=f"{case.name}-{layout}"))
    return marked


@pytest.mark.parametrize(("case", "layout"), sampled(RUNS))
def test_commands_repair_at_once_and_destroy_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, wheels: Path, case: Breakage, layout: str
) -> None:
    tried = None if request.node.get_closest_marker("nightly") else TRIED  # half of the time is pip's start
    outcome = attempt(case, layout, tmp_path / "e", wheels, tried)
    if tried is not None and not outcome.is_right(case):  # perhaps for the process that replaces pip's start
        outcome = attempt(case, layout, tmp_path / "again", wheels)
    assert outcome.is_right(case), outcome


@pytest.mark.parametrize("name", some(["x;touch pwned", "$(touch pwned)", "--index-url=x", "a b", "'"], 3))
def test_commands_contain_no_names_that_a_shell_or_pip_would_run(
    tmp_path: Path, wheels: Path, name: str
) -> None:
    environment = Environment(tmp_path / "e", wheels, [NEW, *CUDA12])
    folder = environment.site / f"{name}-1.dist-info"
    folder.mkdir()
    (folder / "RECORD").write_text(
        "nvidia/cudnn/lib/libcudnn.so.9,,1\nnvidia/cublas/lib/libcublasLt.so.12,,1\n"
    )
    (folder / "METADATA").write_text(
        "Requires-Dist: nvidia-cudnn-cu12==9.1;x\nRequires-Dist: nvidia-cublas-cu12>=1'\n"
    )
    (environment.site / "nvidia/cublas/lib/libcublasLt.so.12").write_bytes(b"")
    (environment.site / "nvidia/cudnn/lib/libcudnn_ops.so.9").unlink()
    commands = environment.diagnose().commands
    assert len(commands) == 2
    assert all(name not in command for command in commands)
    assert environment.run("\n".join(commands)) == 0
    assert wrong(environment.diagnose()) == frozenset()


@pytest.mark.parametrize(
    ("case", "layout"), some(SOUND_RUNS, 5), ids=[f"{case.name}-{each}" for case, each in SOUND_RUNS]
)
def test_doctor_finds_nothing_in_a_sound_environment(
    tmp_path: Path, wheels: Path, case: Sound, layout: str
) -> None:
    environment = Environment(tmp_path / "e", wheels, case.labels, layout)
    assert environment.run(case.script) == 0, environment.output
    found = environment.diagnose(case.asked)
    assert (wrong(found), found.verdict, found.commands) == (frozenset(), "sound", ())
