"""The figures of docs/reliability.md, and the commands that write them down."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
if not (ROOT / "tools" / "reliability.py").is_file():
    pytest.skip("the tools are not beside the tests", allow_module_level=True)

sys.path.insert(0, str(ROOT / "tools"))
import reliability  # noqa: E402
import sanitizer  # noqa: E402
import versions  # noqa: E402


def test_the_page_has_the_figures_that_there_are() -> None:
    page = reliability.PAGE.read_text(encoding="utf-8")
    assert reliability.page_with(page, reliability.read()) == page, "python tools/reliability.py writes it"


def test_what_was_not_measured_says_so() -> None:
    page = reliability.PAGE.read_text(encoding="utf-8")
    assert reliability.page_with(page, {}).count("*not run yet*") > 10


def test_a_page_without_a_place_is_an_error() -> None:
    with pytest.raises(SystemExit, match="has no place for threads"):
        reliability.page_with("<!-- end: threads -->", {})


def test_figures_are_put_beside_others(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "figures.json"
    reliability.put(file, "threads", {"threads": 16, "each": 2000, "where": "a device"})
    reliability.put(file, "sanitizer", {"memcheck": "3 passed; 0 errors"})
    reliability.put(file, "threads", {"threads": 8, "each": 1000, "where": "a device"})
    known = json.loads(file.read_text())
    assert known["threads"]["threads"] == 8
    table = reliability.TABLES["threads"](known["threads"])
    assert "| threads, operations of each | 8, 1,000 |" in table
    assert "| seconds | *not run yet* |" in table
    assert table[-1].startswith("| measured on | a device, 20")
    assert "| memcheck | 3 passed; 0 errors |" in reliability.TABLES["sanitizer"](known["sanitizer"])


def test_figures_of_a_soak() -> None:
    known = {"date": "2026-01-02", "where": "a device", "operations": 200_000, "seconds": 199.5, "cycles": []}
    known |= {"laps": [[lap, 9.5, 2**30 + lap * 2**20, 2**29, 0, 0, 1] for lap in range(4)]}
    known |= {"host_growth": 2**20, "device_growth": -(2**20), "python_blocks": 12}
    known |= {"python_growth": -7, "python_watched": 500, "python_lines": ["a.py:1 +2"]}
    known |= {"caches": {"a": [1, 2], "b": [3, 2], "c": [2, 2]}}
    table = "\n".join(reliability.TABLES["soak"](known))
    for word in (
        "200,000 in 200 s",
        "1,024, 1,025, 1,026, 1,027 MiB",
        "+1.0 MiB",
        "-1.0 MiB",
        "-7 bytes, in the last third of 500",
        "1 of 3; full at the end: c",
    ):
        assert word in table
    assert "*not" not in table


def test_what_pytest_counted() -> None:
    output = "...\nSKIPPED [3] x: cuDNN plans for a described device from 9.8 on\n"
    output += "2 failed, 5 passed, 13 skipped in 2s\n"
    counts = {"passed": 5, "failed": 2, "skipped": 13}
    assert versions.counts_of(output) == {**counts, "planning": "none before 9.8"}
    assert versions.counts_of("x\n7 passed, 1 error in 9.1s") == {
        "passed": 7, "failed": 1, "skipped": 0, "planning": "yes",
    }  # fmt: skip
    assert versions.counts_of("")["passed"] == 0


def test_versions_stand_beside_each_other(tmp_path: Path) -> None:
    for version, passed in (("9.10.2", 2), ("9.1.0", 1), ("9.10.2", 3)):
        versions.keep(
            str(tmp_path / "figures.json"),
            version,
            {"passed": passed, "failed": 0, "skipped": 4, "planning": "yes"},
        )
    rows = reliability.TABLES["versions"](reliability.read(tmp_path / "figures.json")["versions"])
    assert rows[2:4] == ["| 9.1.0 | 1 | 4 | 0 | yes |", "| 9.10.2 | 3 | 4 | 0 | yes |"]
    assert rows[4] == "| 9.19.0 |" + " *not run yet* |" * 4


def test_what_the_sanitizer_said() -> None:
    said = "........ [100%]\n========= Invalid __global__ read of size 4 bytes\n"
    said += "=========     at void a::b<int>+0x12\n"
    said += "58 passed, 2 skipped in 12.31s\n========= ERROR SUMMARY: 3 errors\n"
    assert sanitizer.summary(said) == "58 passed, 2 skipped; 3 errors, 1 in `a::b`"
    assert sanitizer.summary("nothing") == "no result: see the log"
