"""The outputs of ``cudnn-ct doctor`` for programs, and the flags and settings that control it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest

import cudnn_doctor as doctor
from cudnn_doctor import main, report
from cudnn_doctor.finding import Finding, Severity, codes, finding
from tests.elf_files import make_cudnn

MonkeyPatch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]
NOTE = Severity.NOTE
SCHEMA = Path(__file__).parents[2] / "docs/doctor.schema.json"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    """A broken cuDNN with all severities, below a current folder with an odd name."""
    home = tmp_path / "a & b"
    make_cudnn(home / "lib", "9.27.0", without=["adv", "cnn"], ops="9.10.2")
    (home / "lib/libcudnn_heuristic.so.9").chmod(0o600)
    monkeypatch.chdir(home)
    return home / "lib"


@pytest.fixture
def diagnosis(folder: Path) -> doctor.Diagnosis:
    found = doctor.diagnose(folder, run=False)
    note = finding("no-driver", 'a "note" <\x1b>', advice="x")
    return doctor.Diagnosis(found.subject, found.sets, (*found.findings, note), found.tiers, found.details)


def output(capsys: Capture, *arguments: str) -> tuple[int, str]:
    code = main.main(["--static", *arguments])
    return code, capsys.readouterr().out


# --- outputs -----------------------------------------------------------------------------------------------


def check(schema: dict[str, Any], value: Any, place: str = "") -> None:
    """Assert that a value has a schema, of which only these keywords are known."""
    known = {"type", "properties", "required", "items", "enum", "const", "anyOf", "additionalProperties"}
    assert schema.keys() <= known | {"$schema", "title"}
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "null": type(None)}
    assert isinstance(value, kinds.get(schema.get("type", ""), object)), place
    assert value in schema.get("enum", [value]), place
    assert value == schema.get("const", value), place
    if isinstance(value, dict):
        assert set(schema.get("required", ())) <= value.keys(), place
        for key, inner in value.items():
            own = schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))
            check(own, inner, f"{place}/{key}")
    for number, item in enumerate(value if isinstance(value, list) else ()):
        check(schema.get("items", {}), item, f"{place}/{number}")
    if "anyOf" in schema:
        allowed = {kinds[one["type"]] for one in schema["anyOf"]}
        assert type(value) in allowed, place


@pytest.mark.skipif(not SCHEMA.exists(), reason="docs/ is not next to these tests")
def test_json_has_the_schema(diagnosis: doctor.Diagnosis) -> None:
    schema = json.loads(SCHEMA.read_text())
    for one in (diagnosis, doctor.diagnose("/nowhere"), diagnosis.without(["missing-library"])):
        written = json.loads(report.json_text(one, Severity.ERROR))
        check(schema, written)
        assert written.keys() == schema["properties"].keys()
    with pytest.raises(AssertionError, match="/findings/0/fix"):
        check(schema, {**written, "findings": [{**written["findings"][0], "fix": 1}]})


# A finding for each code, with the words that describe it in general.
ALL = tuple(
    Finding(code.name, code.severity, "x", {}, code.general_fix, code.general_commands)
    for code in codes().values()
)


@pytest.mark.parametrize("form", ["text", "explain", *report.FORMATS])
def test_no_output_has_a_placeholder(form: str) -> None:
    found = doctor.Diagnosis("/x", (), ALL)
    if form == "explain":
        written = "\n".join(map(report.explanation, codes()))
    else:
        written = report.text(found, verbose=True) if form == "text" else report.FORMATS[form](found, NOTE)
    assert re.findall(r"\{\w+\}", written) == []


def test_sarif_passes_the_rules_of_the_multitool(diagnosis: doctor.Diagnosis) -> None:
    (run,) = json.loads(report.sarif(doctor.Diagnosis("/x", (), ALL), NOTE))["runs"]
    driver = run["tool"]["driver"]
    assert driver.keys() >= {"name", "version", "informationUri", "rules"}
    addresses = [driver["informationUri"], *(rule["helpUri"] for rule in driver["rules"])]
    assert {urlsplit(address).scheme for address in addresses} == {"https"}  # SARIF1002: absolute
    for rule, code in zip(driver["rules"], codes(), strict=True):
        assert rule["id"] == code
        assert rule["name"].lower() != code  # SARIF1001
        assert re.fullmatch(r"([A-Z][a-z0-9]+)+", rule["name"])  # GH2012, and the three after it
        for key in ("shortDescription", "fullDescription", "help"):
            assert re.fullmatch(r"[^{}]+\.", rule[key]["text"], re.S), (code, key)
        assert rule["defaultConfiguration"]["level"] in ("error", "warning", "note")
    results = run["results"] + json.loads(report.sarif(diagnosis, NOTE))["runs"][0]["results"]
    for result in results:
        place = result["locations"][0]["physicalLocation"]
        assert re.fullmatch(r"[\w.%~/-]+", place["artifactLocation"]["uri"])  # relative and quoted
        assert not place["artifactLocation"]["uri"].startswith(("/", "."))
        assert place["region"] == {"startLine": 1}
    assert [driver["rules"][each["ruleIndex"]]["id"] for each in run["results"]] == [*codes()]


def test_sarif_has_a_rule_for_each_result(diagnosis: doctor.Diagnosis) -> None:
    written = json.loads(report.sarif(diagnosis, Severity.ERROR))
    assert (written["version"], len(written["runs"])) == ("2.1.0", 1)
    (run,) = written["runs"]
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert (
        {result["ruleId"] for result in run["results"]} == rules == {each.code for each in diagnosis.findings}
    )
    assert {result["level"] for result in run["results"]} == {"error", "warning", "note"}
    (place,) = run["results"][0]["locations"]
    assert "a%20%26%20b/lib" in place["physicalLocation"]["artifactLocation"]["uri"]
    prints = [result["partialFingerprints"]["finding/v1"] for result in run["results"]]
    assert len(set(prints)) == len(diagnosis.findings)


@pytest.mark.parametrize("fail_on", Severity)
def test_junit_fails_for_findings_of_the_severity(diagnosis: doctor.Diagnosis, fail_on: Severity) -> None:
    failures = sum(each.severity <= fail_on for each in diagnosis.findings)
    assert failures >= 3
    suite = ElementTree.fromstring(report.junit(diagnosis, fail_on))
    # What the schemas of Ant and Jenkins require and allow.
    required = {"name", "tests", "failures", "errors", "time", "timestamp", "hostname"}
    assert set(suite.keys()) == required
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp", ""))
    tags = [child.tag for child in suite]
    assert tags == ["properties", *["testcase"] * (len(tags) - 3), "system-out", "system-err"]
    for case in suite.iter("testcase"):
        assert set(case.keys()) == {"classname", "name", "time"}
        assert [(child.tag, set(child.keys())) for child in case] in ([], [("failure", {"type", "message"})])
    tests = 1 + len(diagnosis.findings)  # the first is the verdict
    assert (suite.get("tests"), suite.get("failures")) == (str(tests), str(failures))
    assert len(suite.findall("testcase")) == tests
    assert len(suite.findall("testcase/failure")) == failures
    assert "fix: " in (suite.findall("testcase/failure")[0].text or "")


def test_gitlab_lists_findings_with_unique_fingerprints(diagnosis: doctor.Diagnosis) -> None:
    rows = json.loads(report.gitlab(diagnosis, Severity.ERROR))
    assert [row["check_name"] for row in rows] == [each.code for each in diagnosis.findings]
    assert len({row["fingerprint"] for row in rows}) == len(rows)
    assert {row["severity"] for row in rows} == {"critical", "minor", "info"}  # of its five
    for row in rows:
        assert row.keys() == {"description", "check_name", "fingerprint", "severity", "location"}
        assert not row["location"]["path"].startswith(("/", "./"))
        assert row["location"]["lines"]["begin"] == 1


@pytest.mark.parametrize("form", report.FORMATS)
def test_formats_escape_control_characters(diagnosis: doctor.Diagnosis, form: str) -> None:
    assert "\x1b" not in report.FORMATS[form](diagnosis, Severity.ERROR)
    if form in ("json", "sarif", "gitlab"):
        json.loads(report.FORMATS[form](doctor.Diagnosis("x", (), ()), Severity.ERROR))


def test_text_groups_repeated_findings(diagnosis: doctor.Diagnosis) -> None:
    many = tuple(finding("altered-file", f"file {number}", path="x") for number in range(9))
    found = doctor.Diagnosis("x", diagnosis.sets, many)
    assert "file 4\n         and 4 more, which --verbose lists" in report.text(found)
    assert "file 8\n" in report.text(found, verbose=True)
    assert report.text(found).count("fix: ") == 1


def test_text_says_what_was_verified(tmp_path: Path, capsys: Capture) -> None:
    make_cudnn(tmp_path / "lib", "9.27.0")
    code, written = output(capsys, str(tmp_path))
    assert (code, written.splitlines()[1]) == (0, "verified: 10 libraries read")
    code, written = output(capsys, str(tmp_path), "-v")
    assert "\n    libcudnn_ops.so.9: 9.27.0\n" in written
    assert "\n    GPUs: unknown\n  static: done\n" in written


# --- control -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", codes())
def test_explain_prints_cause_and_fix(code: str, capsys: Capture) -> None:
    assert main.main(["--explain", code]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert words.startswith(f"{code} (")
    assert " ".join(codes()[code].cause.split()) in words
    assert "Fix: " in words


def test_doctor_names_the_code_that_is_meant(capsys: Capture) -> None:
    for flag in ("--explain", "--ignore"):
        with pytest.raises(SystemExit) as caught:
            main.main([flag, "two-owner"])
        assert caught.value.code == main.USAGE
        assert "did you mean two-owners?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", 1),
        ("--ignore missing-library", 1),
        ("--ignore missing-library --ignore mixed-versions", 0),
        ("--ignore missing-library --ignore mixed-versions --fail-on warning", 1),
        ("--ignore missing-library --ignore mixed-versions --strict", 1),
        ("--ignore missing-library --ignore mixed-versions --ignore private-file --strict", 0),
        ("--fail-on note", 1),
    ],
)
def test_ignore_and_fail_on_decide_the_exit_code(
    folder: Path, flags: str, expected: int, capsys: Capture
) -> None:
    code, written = output(capsys, *flags.split(), str(folder))
    assert code == expected
    ignored = flags.split()[1::2] if "--ignore" in flags else []
    assert all(f"error    {each}" not in written for each in ignored)
    assert ("ignored: missing-library" in written) == bool(ignored)


def test_pyproject_gives_the_defaults_of_flags(folder: Path, capsys: Capture) -> None:
    table = '[tool.cudnn-doctor]\nignore = ["missing-library", "mixed-versions"]\nfail-on = "warning"\n'
    table += "gpu = [80, 'H200']\nverbose = false\njson = true\n"
    (folder.parent / "pyproject.toml").write_text(table)
    code, written = output(capsys, str(folder))
    found = json.loads(written)
    assert (code, found["errors"]) == (1, 1)  # no code for these GPUs
    assert found["ignored"] == ["missing-library", "mixed-versions"]
    assert found["details"]["settings"] == str(folder.parent / "pyproject.toml")
    code, _ = output(capsys, str(folder), "--ignore", "no-gpu-code", "--fail-on", "error")
    assert code == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tool.cudnn-doctor]\ncolour = true", "the key 'colour'"),
        ("[tool.cudnn-doctor]\npid = 1", "the key 'pid'"),
        ("[tool.cudnn-doctor]\nmin = 'x'", "'x' is not a version"),
        ("[tool.cudnn-doctor]\nexplain = 'no-gpu'", "the key 'explain'"),
        ("[tool.cudnn-doctor]\nmin = 9.10", 'write the version in quotes, such as min = "9.10"'),
        ("[tool.cudnn-doctor]\nmin = ", "is not valid TOML: Invalid value"),
        ("[tool.cudnn-doctor\nmin = '9.99'", "is not valid TOML: Expected"),
        ("[tool.'cudnn-doctor']\nmin = 'x'", "'x' is not a version"),
        ("tool.cudnn-doctor.min = 'x'", "'x' is not a version"),
        ("[tool.cudnn_doctor]\nmin = '9.99'", "tool.cudnn_doctor is not read; the doctor reads the table"),
        ("[tool.Cudnn-CT-Doctor]\nmin = '9.99'", "tool.Cudnn-CT-Doctor is not read"),
        ("[tool]\ncudnn-doctor = 3", "tool.cudnn-doctor is not read"),
        ("[[tool.cudnn-doctor]]\nmin = '9.99'", "tool.cudnn-doctor is not read"),
    ],
)
def test_doctor_exits_with_2_when_pyproject_is_wrong(
    folder: Path, text: str, words: str, capsys: Capture
) -> None:
    (folder.parent / "pyproject.toml").write_text(f"{text}\n")
    with pytest.raises(SystemExit) as caught:
        main.main([str(folder)])
    assert caught.value.code == main.USAGE
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "# [tool.cudnn-doctor\nmin = 1",
        "tool = 'cudnn-doctor'",
        "needs = ['cudnn-doctor']",
        "= # broken",
    ],
)
def test_doctor_reads_no_defaults_when_pyproject_has_no_table(
    folder: Path, text: str, capsys: Capture
) -> None:
    (folder.parent / "pyproject.toml").write_text(f"{text}\n")
    assert main.main(["--static", str(folder)]) == 1
    assert capsys.readouterr().err == ""


def test_pyproject_is_reported_in_one_line_when_this_python_cannot_read_it(
    folder: Path, monkeypatch: MonkeyPatch, capsys: Capture
) -> None:
    path = folder.parent / "pyproject.toml"
    path.write_text("[tool.cudnn-doctor]\nmin = \n")
    monkeypatch.setitem(sys.modules, "tomllib", None)  # as before Python 3.11
    assert main.main(["--static", str(folder)]) == 1
    assert (
        capsys.readouterr().err == f"cudnn-ct doctor: {path} was not read: that needs Python 3.11 or newer\n"
    )
    path.write_text("[project]\nname = 'x'\n")  # without a table for the doctor
    assert main.main(["--static", str(folder)]) == 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("ci", "flags", "deep"),
    [("", "", 0), ("true", "", 1), ("1", "--shallow", 0), ("false", "", 0), ("", "--deep", 1)],
)
def test_deep_is_the_default_in_ci(monkeypatch: MonkeyPatch, ci: str, flags: str, deep: int) -> None:
    monkeypatch.setenv("CI", ci)
    assert main.parse(flags.split()).deep == deep
    assert main.parse(["--pid", "1"]).deep is False


def test_known_defects_are_counted_and_listed_with_verbose(tmp_path: Path, capsys: Capture) -> None:
    make_cudnn(tmp_path, "9.23.1")
    code, short = output(capsys, str(tmp_path))
    assert code == 0  # they change no verdict
    (line,) = (line for line in short.splitlines() if line.startswith("known defects"))
    assert line.startswith("known defects of cuDNN 9.23.1 in single operations: ")
    assert line.endswith("; --verbose lists them")
    _, long = output(capsys, "--verbose", str(tmp_path))
    assert "  nondeterministic: conv (compute capability from 8.6 before 8.7)\n" in long
    assert "https://github.com/pytorch/pytorch/pull/188318" in long
    _, text = output(capsys, "--json", str(tmp_path))
    (row,) = (row for row in json.loads(text)["cudnn"][0]["known_defects"] if row["name"] == "conv-engine-5")
    assert row["engines"] == [5]
