"""How commands write: tables, progress, JUnit, pictures, errors."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cudnn_ct.cli import table
from cudnn_ct.cli.outcome import COLUMNS, FAILED, LEFT_OUT, OK, Outcome, as_dict, as_junit, cells
from cudnn_ct.cli.selftest_cases import OPERATIONS, Case, cases
from cudnn_ct.cli.trouble import plainly
from cudnn_ct.errors import CudnnError

ROWS = [
    Outcome("conv", OK, "float32", "nchw", "graph engine 1", 1e-7, 2e-3, seconds=0.25),
    Outcome("pool", FAILED, "float16", "nhwc", "PoolingForward", float("inf"), 2e-3, "y is <odd> & \x1b[31m"),
    Outcome("lrn", LEFT_OUT, "bfloat16", detail="not supported"),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_plain_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    table.show((("us", True), ("name", False)), [["1.0", "a"], ["100.0", "bc"]])
    assert capsys.readouterr().out == "   us  name\n  1.0  a\n100.0  bc\n"


def test_on_a_terminal_there_are_styles_and_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    table.show((("verdict", False), ("what", False)), [["failed", "[red]not markup[/red]"]])
    assert "\x1b[1;31mfailed" in screen.getvalue()
    assert "[red]not markup[/red]" in screen.getvalue()


def test_progress_is_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for screen in (io.StringIO(), Terminal()):
        monkeypatch.setattr("sys.stderr", screen)
        monkeypatch.setenv("TERM", "xterm")
        with table.progress("selftest", 2) as tick:
            tick("conv")
            tick("pool")
        assert ("selftest" in screen.getvalue()) == screen.isatty()


def test_rows_as_cells_and_as_values() -> None:
    assert [len(cells(row)) for row in ROWS] == [len(COLUMNS)] * 3
    told = as_dict(ROWS, device="GPU")
    assert (told["schema"], told["device"]) == (1, "GPU")
    assert (told["ok"], told["failed"], told["left_out"]) == (1, 1, 1)
    assert [row["error"] for row in told["rows"]] == [1e-7, None, None]


def test_junit_is_what_ci_reads() -> None:
    suite = ElementTree.fromstring(as_junit(ROWS))
    assert suite.attrib == {
        "name": "cudnn-ct selftest", "tests": "3", "failures": "1", "skipped": "1", "errors": "0",
        "time": "0.250",
    }  # fmt: skip
    assert [case.get("name") for case in suite] == ["conv float32 nchw", "pool float16 nhwc", "lrn bfloat16"]
    (failure,) = suite.iter("failure")
    assert failure.get("message") == "y is <odd> &  [31m"
    alone = ElementTree.fromstring(as_junit([], "no driver"))
    assert (alone.get("tests"), alone.get("skipped")) == ("1", "1")
    assert [found.get("message") for found in alone.iter("skipped")] == ["no driver"]


def test_the_table_of_cases_names_each_once() -> None:
    rows = cases()
    assert len({row[:4] for row in rows}) == len(rows)
    assert {row.operation for row in rows} == set(OPERATIONS)
    for backward in (name for name in OPERATIONS if name.endswith("_backward")):
        assert backward.removesuffix("_backward") in {*OPERATIONS, "batch_norm"}


def test_inputs_are_the_same_each_time() -> None:
    import numpy as np

    for row in (cases()[0], cases()[-1]):
        one, two = row.inputs(), row.inputs()
        for a, b in zip(one.operands, two.operands, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("case", cases()[::7], ids=lambda case: f"{case.name} {case.dtype} {case.layout}")
def test_the_reference_takes_the_inputs(case: Case) -> None:
    import cudnn_ct as ct

    if case.operation not in ("dropout", "RNN"):  # which have no reference of that name
        drawn = case.inputs()
        getattr(ct.reference, case.operation)(*drawn.operands, **drawn.keywords)


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    from cudnn_ct.cli import picture

    path = tmp_path / "times.png"
    assert picture.why_not(str(path)) == ""
    picture.draw(str(path), ["a title " * 40], [(f"engine {n} " * 20, n) for n in range(100)], "us")
    with image.open(path) as drawn:
        assert drawn.size[0] > drawn.size[1] / 4
    with pytest.raises(ValueError, match="not ''"):
        picture.why_not("times")


def test_without_pillow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from cudnn_ct.cli import picture

    monkeypatch.setitem(sys.modules, "PIL", None)
    assert picture.why_not("times.png").endswith("cudnn-ct[examples]")


def test_an_error_is_told_with_the_doctors_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    @plainly
    def broken() -> None:
        error = CudnnError("it cannot be loaded\nsecond line")
        error.add_note("in a convolution")
        error.add_note("doctor: missing-library: gone; fix: install it")
        raise error

    with pytest.raises(SystemExit) as ended:
        broken()
    assert ended.value.code == 1
    said = capsys.readouterr().err.splitlines()
    assert said == ["doctor: missing-library: gone; fix: install it", "cudnn-ct: it cannot be loaded"]
