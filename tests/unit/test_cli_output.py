"""The output of commands: tables, progress, JUnit reports, images, errors."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import _lib, context
from cudnn_ct.cli import plot, table
from cudnn_ct.cli.errors import need_gpu, plainly
from cudnn_ct.cli.selftest_cases import OPERATIONS, Case, cases
from cudnn_ct.cli.selftest_report import COLUMNS, FAILED, OK, SKIPPED, Outcome, as_dict, as_junit, cells
from cudnn_ct.errors import CudnnError, LibraryLoadError, LibraryNotFoundError

MonkeyPatch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]

ROWS = [
    Outcome("conv", OK, "float32", "nchw", "graph engine 1", 1e-7, 2e-3, seconds=0.25),
    Outcome("pool", FAILED, "float16", "nhwc", "PoolingForward", float("inf"), 2e-3, "y is <odd> & \x1b[31m"),
    Outcome("lrn", SKIPPED, "bfloat16", detail="not supported"),
]


def raising(words: str) -> Any:
    def fail() -> None:
        raise LibraryLoadError(words)

    return fail


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: MonkeyPatch) -> Terminal:
    """Replace stdout by a terminal of 80 columns."""
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return screen


def test_table_is_aligned_and_has_all_columns_without_rows(capsys: Capture) -> None:
    columns = (("us", True), ("name", False))
    table.show(columns, [["1.0", "a"], ["100.0", "bc"]])
    assert capsys.readouterr().out == "   us  name\n  1.0  a\n100.0  bc\n"
    table.show(columns, [])
    assert capsys.readouterr().out == "us  name\n"


DETAILS = [cells(Outcome("doctor", OK, detail="word " * 9)), cells(Outcome("descriptors", FAILED))]


def test_table_drops_columns_that_are_empty_in_all_rows(capsys: Capture) -> None:
    table.show(COLUMNS, DETAILS)
    heading, *_, second = capsys.readouterr().out.splitlines()
    assert (heading.split(), second.split()) == (["op", "verdict"], ["descriptors", "failed"])


def test_table_of_a_selftest_without_a_gpu_fits_into_a_narrow_terminal(monkeypatch: MonkeyPatch) -> None:
    screen = on_terminal(monkeypatch)
    table.show(COLUMNS, DETAILS)
    assert "word " * 8 in screen.getvalue()
    assert "tolerance" not in screen.getvalue()


@pytest.mark.parametrize("no_color", ["", "1"])
def test_table_has_styles_on_a_terminal_unless_no_color(monkeypatch: MonkeyPatch, no_color: str) -> None:
    screen = on_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", no_color)
    table.show((("verdict", False), ("what", False)), [["failed", "[red]not markup[/red]"]])
    assert ("\x1b[1;31mfailed" in screen.getvalue()) != bool(no_color)
    assert ("\x1b" in screen.getvalue()) == table.styled(screen) == (not no_color)
    assert "[red]not markup[/red]" in screen.getvalue()


def test_progress_is_shown_only_on_a_terminal(monkeypatch: MonkeyPatch) -> None:
    for screen in (io.StringIO(), Terminal()):
        monkeypatch.setattr("sys.stderr", screen)
        monkeypatch.setenv("TERM", "xterm")
        with table.progress("selftest", 2) as tick:
            tick("conv")
            tick("pool")
        assert ("selftest" in screen.getvalue()) == screen.isatty()


def test_selftest_report_formats_rows_for_tables_and_json() -> None:
    assert [len(cells(row)) for row in ROWS] == [len(COLUMNS)] * 3
    told = as_dict(ROWS, device="GPU")
    assert (told["schema"], told["device"]) == (1, "GPU")
    assert (told["ok"], told["failed"], told["skipped"]) == (1, 1, 1)
    assert [row["error"] for row in told["rows"]] == [1e-7, None, None]


def test_selftest_report_formats_junit() -> None:
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


def test_selftest_cases_are_unique_and_name_all_operations() -> None:
    rows = cases()
    assert len({row[:4] for row in rows}) == len(rows)
    assert {row.operation for row in rows} == set(OPERATIONS)
    for backward in (name for name in OPERATIONS if name.endswith("_backward")):
        assert backward.removesuffix("_backward") in {*OPERATIONS, "batch_norm"}


def test_selftest_inputs_are_reproducible() -> None:
    for row in (cases()[0], cases()[-1]):
        one, two = row.inputs(), row.inputs()
        for a, b in zip(one.operands, two.operands, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("case", cases()[::7], ids=lambda case: f"{case.name} {case.dtype} {case.layout}")
def test_reference_accepts_the_selftest_inputs(case: Case) -> None:
    if case.operation not in ("dropout", "RNN"):  # which have no reference of that name
        drawn = case.inputs()
        getattr(ct.reference, case.operation)(*drawn.operands, **drawn.keywords)


def test_plot_draws_an_image(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "times.png"
    assert plot.why_not(str(path)) == ""
    plot.draw(str(path), ["a title " * 40], [(f"engine {n} " * 20, n) for n in range(100)], "us")
    with image.open(path) as drawn:
        assert drawn.size[0] > drawn.size[1] / 4
    with pytest.raises(ValueError, match="got the suffix ''"):
        plot.why_not("times")


def test_plot_names_the_extra_when_pillow_is_missing(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert plot.why_not("times.png").endswith("cudnn-ct[examples]")


def test_commands_print_the_doctors_verdict_before_an_error(capsys: Capture) -> None:
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


class WithoutCublas:
    """A cuDNN without libcublasLt, whose absence is detected at the first function that needs it."""

    @property
    def cudnnCreate(self) -> None:
        raise LibraryNotFoundError("no libcublasLt")


@pytest.mark.parametrize(
    ("version", "library", "code", "words"),
    [
        (lambda: 92700, SimpleNamespace(cudnnCreate=None), 3, "no driver; plan"),
        (lambda: 92700, WithoutCublas(), 1, "no libcublasLt"),
        (raising("no libcudnn_heuristic"), None, 1, "no libcudnn_heuristic"),
    ],
)
def test_need_gpu_distinguishes_a_broken_cudnn_from_a_missing_gpu(
    monkeypatch: MonkeyPatch,
    capsys: Capture,
    version: Any,
    library: Any,
    code: int,
    words: str,
) -> None:
    monkeypatch.setattr(context, "available", lambda: context.Availability("no driver"))
    monkeypatch.setattr(_lib, "version", version)
    monkeypatch.setattr(_lib, "load", lambda: library)
    with pytest.raises(SystemExit) as ended:
        plainly(need_gpu)("plan")
    assert ended.value.code == code
    assert capsys.readouterr().err == f"cudnn-ct: {words}\n"
