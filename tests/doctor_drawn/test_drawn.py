"""The doctor's answers about drawn installations, and the judge's own answers about wrong ones."""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.doctor_drawn import (
    __main__ as command,
)
from tests.doctor_drawn import (
    consumers,
    files,
    judge,
    operations,
    run,
    shell,
    sites,
    wheels,
)

pytestmark = pytest.mark.skipif(
    "nvidia-cudnn-cu12" not in wheels.store(), reason="needs the wheels for CUDA 12"
)

NUMBER = 8  # .ci/nightly draws thousands
SEED = 20


def test_doctor_judges_drawn_installations(tmp_path: Path) -> None:
    labels = [*map(str, range(NUMBER)), *(f"s{number}" for number in range(NUMBER // 4))]
    rows = [command.one(SEED, label, tmp_path) for label in labels]
    wrong = {
        f"--seed {SEED} --only {row.label}": row.verdict.reasons for row in rows if not row.verdict.right
    }
    assert command.missed(rows) == {}, wrong


def test_missed_compares_with_the_required_shares() -> None:
    def rows(right: int, wrong: int, **answer: Any) -> list[command.Row]:
        good = judge.Verdict(noticed=True, cause=True, fix=True)
        bad = judge.Verdict(**{"noticed": True, "cause": True, "fix": True, **answer})
        return [command.Row("", "", [], good)] * right + [command.Row("", "", [], bad)] * wrong

    assert command.missed([]) == command.missed(rows(95, 5, cause=False)) == {}
    assert command.missed(rows(94, 6, cause=False)) == {"cause": 94.0}
    assert command.missed(rows(99, 1, destructive=True)) == {"destructive": 1.0}
    assert command.missed(rows(96, 4, noticed=False)) == {"noticed": 96.0}


@pytest.fixture
def site(tmp_path: Path) -> sites.Site:
    """A virtual environment with the newest cuDNN for CUDA 12 and without consumers."""
    rng = random.Random(1)
    wheel = wheels.store()["nvidia-cudnn-cu12"][0]
    found = sites.pip_site(tmp_path, "venv", wheel, tmp_path / "venv/lib/python3.11/site-packages", rng)
    assert not operations.delete_library(found, "libcudnn_ops.so.9").by_hand
    return found


def answer(
    code: str = "missing-library", name: str = "libcudnn_ops.so.9", *commands: str, exit_code: int = 1
) -> run.Answer:
    finding: dict[str, Any] = {"code": code, "severity": "error", "message": f"{name} is not in the folder"}
    finding.update(fix="install it again", evidence={}, commands=list(commands))
    return run.Answer(exit_code, {"findings": [finding], "commands": list(commands)}, "")


SOUND = run.Answer(0, {"findings": [], "commands": []}, "")


def asked(first: run.Answer) -> Callable[[sites.Site], run.Answer]:
    """A doctor that gives a prepared answer, and afterwards finds the deleted library missing or not."""
    answers = [first]

    def ask(site: sites.Site) -> run.Answer:
        if answers:
            return answers.pop()
        return SOUND if (site.folder / "libcudnn_ops.so.9").exists() else answer()

    return ask


def reinstall(site: sites.Site) -> str:
    python = site.packages and site.packages.parents[2] / "bin/python"
    return f"{python} -m pip install --force-reinstall --no-deps {site.wheel.name}=={site.wheel.version}"


def test_judge_accepts_the_right_answer(site: sites.Site) -> None:
    verdict = judge.judge(site, asked(answer("missing-library", "libcudnn_ops.so.9", reinstall(site))))
    assert verdict.right, verdict.reasons


def test_judge_rejects_an_unnoticed_breakage(site: sites.Site) -> None:
    verdict = judge.judge(site, asked(SOUND))
    assert verdict.noticed is False
    assert not verdict.right


@pytest.mark.parametrize(
    ("code", "name"), [("damaged-library", "libcudnn_ops.so.9"), ("missing-library", "libcudnn_cnn.so.9")]
)
def test_judge_rejects_a_wrong_cause_or_file(site: sites.Site, code: str, name: str) -> None:
    verdict = judge.judge(site, asked(answer(code, name, reinstall(site))))
    assert verdict.cause is False
    assert verdict.fix


def test_judge_rejects_commands_that_repair_nothing(site: sites.Site) -> None:
    assert judge.judge(site, asked(answer())).fix is False


def test_judge_rejects_commands_that_fail(site: sites.Site) -> None:
    files.remove(next(iter((site.packages or site.root).glob("nvidia_cudnn*"))) / "RECORD")
    assert (
        judge.judge(site, asked(answer("missing-library", "libcudnn_ops.so.9", reinstall(site)))).fix is False
    )


def test_judge_sees_that_a_companion_is_deleted(site: sites.Site) -> None:
    damage = f"rm -rf '{site.packages}/nvidia/cublas'"
    verdict = judge.judge(
        site, asked(answer("missing-library", "libcudnn_ops.so.9", damage, reinstall(site)))
    )
    assert verdict.destructive


def test_judge_sees_commands_that_leave_the_site(site: sites.Site) -> None:
    verdict = judge.judge(
        site, asked(answer("missing-library", "libcudnn_ops.so.9", "rm -rf /nonexistent/folder"))
    )
    assert verdict.destructive


def test_judge_sees_a_false_alarm(site: sites.Site) -> None:
    site.truths.clear()
    assert judge.judge(site, asked(answer())).false_alarm
    assert judge.judge(site, asked(SOUND)).right


def test_judge_counts_a_fix_that_it_cannot_carry_out_apart(site: sites.Site) -> None:
    python = reinstall(site).partition(" ")[0]
    unknown = f"{python} -m pip install --force-reinstall --no-deps {site.wheel.name}==9.99.0.1"
    verdict = judge.judge(site, asked(answer("missing-library", "libcudnn_ops.so.9", unknown)))
    assert (verdict.fix, verdict.not_carried_out) == (None, True)
    site.truths["libcudnn_ops.so.9"] = dataclasses.replace(site.truths["libcudnn_ops.so.9"], by_hand=True)
    verdict = judge.judge(site, asked(answer()))
    assert (verdict.fix, verdict.not_carried_out) == (None, True)


def test_judge_accepts_that_a_person_chooses_the_version_although_a_mode_is_changed(site: sites.Site) -> None:
    operations.blame(site, "pin", "pin of torch", {"consumer-mismatch"}, "torch", by_hand=True)
    mode = f"chmod a+rX '{site.folder}'"
    verdict = judge.judge(site, asked(answer("missing-library", "libcudnn_ops.so.9", mode)))
    assert (verdict.fix, verdict.not_carried_out) == (None, True)


def test_report_prints_fixes_that_were_not_carried_out_apart(capsys: pytest.CaptureFixture[str]) -> None:
    done, not_done = (judge.Verdict(noticed=True, cause=True, fix=fix) for fix in (True, None))
    not_done.not_carried_out = True
    command.report([command.Row("", "", [], each) for each in (done, not_done, not_done)], 1, 0)
    printed = capsys.readouterr().out
    assert "fix right        1 of 1" in printed
    assert "not carried out  2 of 3" in printed


def test_judge_sees_commands_that_break_another_package(site: sites.Site) -> None:
    assert site.packages is not None
    torch = next(each for each in consumers.CONSUMERS if each.version == "2.8.0")
    torch.install(site.packages)
    site.consumers = [torch]
    shell.uninstall(site.packages, "nvidia-cublas-cu12")
    sites.relabel(wheels.companion("nvidia-cublas-cu12"), "12.8.4.1").install(site.packages)
    python = reinstall(site).partition(" ")[0]
    newer = f"{python} -m pip install nvidia-cublas-cu12==12.9.1.4"
    verdict = judge.judge(site, asked(answer("missing-library", "libcudnn_ops.so.9", reinstall(site), newer)))
    assert verdict.fix is False
    assert "the commands break" in verdict.reasons[-1]


def draw(operation: operations.Operation, folder: Path) -> sites.Site | None:
    """A site to which an operation applies; None if the wheels and this machine have none."""
    for number in range(200):
        rng = random.Random(number)
        found = sites.draw(rng, folder / f"{number}")
        if operation(rng, found):
            return found
        files.remove(folder / f"{number}")
    return None


@pytest.mark.parametrize(
    "operation",
    [
        operations.driver_missing,
        operations.driver_fails,
        operations.driver_of_wsl,
        operations.relink,
        operations.toolkit_gone,
        operations.unversioned,
        operations.text_links,
        operations.unpacked_over,
        operations.old_wheel,
        operations.interrupted,
        operations.shared_base,
    ],
)
def test_doctor_judges_operations_that_few_draws_have(
    tmp_path: Path, operation: operations.Operation
) -> None:
    found = draw(operation, tmp_path)
    if found is None:
        pytest.skip("needs other wheels, a machine without a driver, or the right to mount")
    verdict = judge.judge(found)
    assert verdict.right, verdict.reasons
    assert verdict.not_carried_out == all(truth.by_hand for truth in found.truths.values())


def test_pins_are_those_of_the_extras_of_cuda_toolkit(tmp_path: Path) -> None:
    (torch,) = (each for each in consumers.CONSUMERS if each.version == "2.11.0")
    assert sites.pinned("nvidia-cublas", [torch]) == "13.1.0.3"
    assert sites.pinned("nvidia-cuda-nvrtc", [torch]) == "13.0.88"
    torch.install(tmp_path)
    shell.install_required(tmp_path, shell.find("cuda-toolkit==13.0.2"), ["cublas"])
    assert shell.version_of(tmp_path, "cuda-toolkit") == "13.0.2"
    assert shell.version_of(tmp_path, "nvidia-cublas") == "13.1.0.3"
    assert shell.version_of(tmp_path, "nvidia-cuda-nvrtc") is None


def test_store_has_each_version_once(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = wheels.cudnns()[0].source("libcudnn.so.9").parent
    monkeypatch.setenv("CUDNN_CT_TEST_CUDNNS", os.pathsep.join([str(folder)] * 2))
    names = [each.info for each in wheels.store.__wrapped__()["nvidia-cudnn-cu12"]]
    assert len(names) == len({*names})


def test_swap_changes_a_file(site: sites.Site, monkeypatch: pytest.MonkeyPatch) -> None:
    same = sites.relabel(site.wheel, "9.99.0.1")
    monkeypatch.setattr(operations, "others", lambda _: [same])
    assert not operations.swap(random.Random(1), site)


def test_skeletons_appear_complete(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before: list[bool] = []

    def write(source: Path, target: Path, _: object) -> None:
        target.write_bytes(b"x")
        before.append((tmp_path / target.name.rpartition(".")[0]).exists())

    monkeypatch.setattr(files, "skeleton", write)
    monkeypatch.setattr(wheels, "scratch", lambda: tmp_path)
    made = wheels.skeleton.__wrapped__(Path("libx.so"), ())
    assert made.read_bytes() == b"x"
    assert (before, list(tmp_path.iterdir())) == ([False], [made])


def test_shell_rejects_unknown_commands(site: sites.Site) -> None:
    with pytest.raises(shell.CommandError, match="unknown command"):
        shell.run(site, "dd if=/dev/zero")


def test_operations_leave_the_installed_wheels_unchanged(tmp_path: Path) -> None:
    sources = {source for wheel in wheels.cudnns() for _, source in wheel.sources}
    before = {path: (path.stat().st_size, path.stat().st_mode, path.stat().st_mtime_ns) for path in sources}
    for number, operation in enumerate(operations.BREAKAGES + operations.HARMLESS):
        rng = random.Random(number)
        operation(rng, sites.draw(rng, tmp_path / f"{number}"))
    assert before == {
        path: (path.stat().st_size, path.stat().st_mode, path.stat().st_mtime_ns) for path in sources
    }
