"""The doctor's SARIF and JUnit with the validators of others, in the folder CUDNN_CT_TEST_VALIDATORS.

The folder has the unpacked npm package ``@microsoft/sarif-multitool-linux`` and the sources of pytest, whose
tests contain the schema of Jenkins' xUnit plugin. ``.ci/nightly`` downloads both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cudnn_doctor as doctor
from cudnn_doctor import report
from cudnn_doctor.finding import Severity
from tests.elf_files import make_cudnn
from tests.unit.test_doctor_formats import ALL

FOLDER = Path(os.environ.get("CUDNN_CT_TEST_VALIDATORS") or "/nonexistent")
REPORTS = ("broken", "sound", "nothing", "every code")


def written(tmp_path: Path, name: str, form: str) -> Path:
    """Write a report of the command, or one with a finding for each code."""
    path = tmp_path / f"report.{form}"
    if name == "every code":
        path.write_text(report.FORMATS[form](doctor.Diagnosis("/x", (), ALL), Severity.WARNING))
        return path
    folder = tmp_path / "a & b ü/lib"
    make_cudnn(folder, without=["adv"] if name == "broken" else [])
    target = folder if name != "nothing" else tmp_path / "gone"
    command = [sys.executable, "-m", "cudnn_doctor", "--static", "--format", form, str(target)]
    path.write_bytes(subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout)
    return path


def sarif_results(path: Path) -> list[str]:
    """Return the rules of the multitool that a file breaks, without its notes."""
    tool, log = next(FOLDER.glob("**/Sarif.Multitool")), path.with_name("log.sarif")
    tool.chmod(0o755)
    levels = ["--rule-kind", "Sarif;Ghas", "--level", "Error;Warning", "--kind", "Fail"]
    command = [str(tool), "validate", str(path), *levels, "--output", str(log), "--log", "ForceOverwrite"]
    environ = {**os.environ, "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert log.exists(), done.stdout + done.stderr
    (run,) = json.loads(log.read_text("utf-8-sig"))["runs"]
    return [row["ruleId"] for row in run["results"]]


@pytest.mark.skipif(not any(FOLDER.glob("**/Sarif.Multitool")), reason="needs Microsoft's SARIF multitool")
@pytest.mark.parametrize("name", REPORTS)
def test_sarif_passes_the_multitool(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name, "sarif")
    assert sarif_results(path) == []
    report = json.loads(path.read_text())
    if rules := report["runs"][0]["tool"]["driver"]["rules"]:
        rules[0]["helpUri"] = "docs/x.md"
        path.write_text(json.dumps(report))
        assert sarif_results(path) == ["SARIF1005"]  # an address that is not absolute


@pytest.mark.skipif(not any(FOLDER.glob("**/junit-10.xsd")), reason="needs the schema of Jenkins")
@pytest.mark.parametrize("name", REPORTS)
def test_junit_has_the_schema_of_jenkins(tmp_path: Path, name: str) -> None:
    xmlschema: Any = pytest.importorskip("xmlschema")
    schema = xmlschema.XMLSchema(str(next(FOLDER.glob("**/junit-10.xsd"))))
    path = written(tmp_path, name, "junit")
    schema.validate(str(path))
    path.write_text(path.read_text().replace("<testcase ", "<case ").replace("</testcase>", "</case>"))
    assert not schema.is_valid(str(path))
