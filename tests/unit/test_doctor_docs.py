"""docs/doctor.md agrees with the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cudnn_ct.doctor import main, report
from cudnn_ct.doctor.finding import codes

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "doctor.md"
TOOL = ROOT / "tools" / "doctor_docs.py"

if not (PAGE.is_file() and TOOL.is_file()):
    pytest.skip("docs/doctor.md and tools are not next to these tests", allow_module_level=True)


def test_page_has_the_table_of_codes() -> None:
    done = subprocess.run([sys.executable, str(TOOL), "--check"], check=False)
    assert done.returncode == 0, "python tools/doctor_docs.py writes it"


def test_page_describes_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["--help"])
    flags = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert flags == set(re.findall(r"^\| `(--[a-z-]+)", PAGE.read_text(), re.M))


def test_page_describes_the_schema() -> None:
    text = PAGE.read_text()
    assert f'`"schema": {report.SCHEMA}`' in text
    for key in report.as_dict(report.Diagnosis("x", (), ())):
        assert f"`{key}`" in text, key


def test_codes_are_words_with_cause_and_fix() -> None:
    for name, code in codes().items():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
        assert code.cause.endswith(".")
        assert code.fix
