"""The output of commands: tables, progress, errors, and the rows of the selftest."""

from __future__ import annotations

import io
import re

import pytest

from cudnn_ct.cli import output
from cudnn_ct.cli.selftest import COLUMNS, FAILED, OK, SKIPPED, Outcome, as_dict, cells
from cudnn_ct.cli.selftest_cases import OPERATIONS, cases

MonkeyPatch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_table_is_aligned_and_has_all_columns_without_rows(capsys: Capture) -> None:
    columns = (("us", True), ("name", False))
    output.show(columns, [["1.0", "a"], ["100.0", "bc"]])
    assert capsys.readouterr().out == "   us  name\n  1.0  a\n100.0  bc\n"
    output.show(columns, [])
    assert capsys.readouterr().out == "us  name\n"


@pytest.mark.parametrize("no_color", ["", "1"])
def test_table_has_styles_on_a_terminal_unless_no_color(monkeypatch: MonkeyPatch, no_color: str) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", no_color)
    output.show((("verdict", False), ("what", False)), [["failed", "a row"]])
    assert ("\x1b[31m" in screen.getvalue()) == (not no_color)
    assert ("\x1b" in screen.getvalue()) == (not no_color)
    assert "failed   a row" in re.sub(r"\x1b\[\d*m", "", screen.getvalue())


def test_progress_is_shown_only_on_a_terminal(monkeypatch: MonkeyPatch) -> None:
    for screen in (io.StringIO(), Terminal()):
        monkeypatch.setattr("sys.stderr", screen)
        monkeypatch.setenv("TERM", "xterm")
        with output.progress("selftest", 2) as tick:
            tick("conv")
            tick("pool")
        assert ("selftest" in screen.getvalue()) == screen.isatty()


def test_selftest_report_formats_rows_for_tables_and_json(capsys: Capture) -> None:
    rows = [
        Outcome("conv", OK, "float32", "nchw", "", 1e-7, 2e-3, seconds=0.25),
        Outcome("pool", FAILED, "float16", "nhwc", "", float("inf"), 2e-3, "y is wrong"),
        Outcome("lrn", SKIPPED, "bfloat16", detail="not supported"),
    ]
    told = as_dict(rows, device="GPU")
    assert (told["schema"], told["device"]) == (1, "GPU")
    assert (told["ok"], told["failed"], told["skipped"]) == (1, 1, 1)
    assert [row["error"] for row in told["rows"]] == [1e-7, None, None]
    output.show(COLUMNS, [cells(row) for row in rows])
    heading, first, *_ = capsys.readouterr().out.splitlines()
    assert heading.split() == ["op", "dtype", "layout", "error", "tolerance", "verdict"]
    assert first.split() == ["conv", "float32", "nchw", "1.0e-07", "2.0e-03", "ok"]


def test_selftest_cases_are_unique_and_name_all_operations() -> None:
    rows = cases()
    assert len({row[:4] for row in rows}) == len(rows)
    assert {row.operation for row in rows} == set(OPERATIONS)
