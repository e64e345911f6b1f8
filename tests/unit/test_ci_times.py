"""Measured times of CI: each is printed with its limit, and a missed one is visible without a failure."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.maintainers import tool
from tests.processes import ROOT

if not (ROOT / ".ci" / "judged").is_file():
    pytest.skip(".ci is not next to these tests", allow_module_level=True)


doctor_time = tool("doctor_time")


@pytest.mark.parametrize(
    ("factor", "word", "status"), [(0.9, "met", 0), (1.2, "MISSED", 0), (1.6, "MISSED", 1)]
)
def test_doctor_time_prints_a_missed_limit_within_the_slack(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    factor: float,
    word: str,
    status: int,
) -> None:
    monkeypatch.setattr(doctor_time, "_run", lambda mode: (doctor_time.LIMITS[mode] * factor, 0.1, 10.0))
    monkeypatch.setattr(sys, "argv", ["doctor_time.py", "--slack", "1.5"])
    assert doctor_time.main() == status
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == [word] * 3


@pytest.mark.parametrize(("seconds", "word"), [(359, "met"), (360, "met"), (361, "MISSED")])
def test_judged_prints_the_time_and_its_limit(seconds: int, word: str) -> None:
    command = [str(ROOT / ".ci" / "judged"), "the tests", str(seconds), "360"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == f"the tests: {seconds} s of 360 s  {word}\n"


@pytest.mark.parametrize("script", ["run", "nightly"])
def test_scripts_print_all_measured_times_at_the_end(script: str) -> None:
    text = (ROOT / ".ci" / script).read_text(encoding="utf-8")
    subprocess.run(["bash", "-n", ROOT / ".ci" / script], check=True)
    for command in (r"\.ci/judged .* 360", r"tools/doctor_time\.py.*"):
        assert re.search(rf'{command} \| tee -a "\$work/times"', text)
    assert text.rindex('cat "$work/times"') > text.rindex("\nstep ")
