"""The output of commands: tables, progress, errors, and the rows of the selftest."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct import _lib, context
from cudnn_ct.cli import table
from cudnn_ct.cli.errors import need_gpu, plainly
from cudnn_ct.cli.selftest_cases import OPERATIONS, Case, cases
from cudnn_ct.cli.selftest_report import COLUMNS, FAILED, OK, SKIPPED, Outcome, as_dict, cells
from cudnn_ct.errors import CudnnError, LibraryLoadError, LibraryNotFoundError

MonkeyPatch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_table_is_aligned_and_has_all_columns_without_rows(capsys: Capture) -> None:
    columns = (("us", True), ("name", False))
    table.show(columns, [["1.0", "a"], ["100.0", "bc"]])
    assert capsys.readouterr().out == "   us  name\n  1.0  a\n100.0  bc\n"
    table.show(columns, [])
    assert capsys.readouterr().out == "us  name\n"


@pytest.mark.parametrize("no_color", ["", "1"])
def test_table_has_styles_on_a_terminal_unless_no_color(monkeypatch: MonkeyPatch, no_color: str) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", no_color)
    table.show((("verdict", False), ("what", False)), [["failed", "a row"]])
    assert ("\x1b[31m" in screen.getvalue()) == (not no_color)
    assert ("\x1b" in screen.getvalue()) == (not no_color)
    assert "failed   a row" in screen.getvalue()


def test_progress_is_shown_only_on_a_terminal(monkeypatch: MonkeyPatch) -> None:
    for screen in (io.StringIO(), Terminal()):
        monkeypatch.setattr("sys.stderr", screen)
        monkeypatch.setenv("TERM", "xterm")
        with table.progress("selftest", 2) as tick:
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
    table.show(COLUMNS, [cells(row) for row in rows])
    heading, first, *_ = capsys.readouterr().out.splitlines()
    assert heading.split() == [
        "op",
        "dtype",
        "layout",
        "error",
        "tolerance",
        "verdict",
    ]
    assert first.split() == ["conv", "float32", "nchw", "1.0e-07", "2.0e-03", "ok"]


def test_selftest_cases_are_unique_and_name_all_operations() -> None:
    rows = cases()
    assert len({row[:4] for row in rows}) == len(rows)
    assert {row.operation for row in rows} == set(OPERATIONS)


@pytest.mark.parametrize("case", cases()[::7], ids=lambda case: f"{case.name} {case.dtype} {case.layout}")
def test_reference_accepts_the_selftest_inputs(case: Case) -> None:
    if case.operation not in ("dropout", "RNN"):  # which have no reference of that name
        drawn = case.inputs()
        getattr(ct.reference, case.operation)(*drawn.operands, **drawn.keywords)


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


def no_heuristic() -> int:
    raise LibraryLoadError("no libcudnn_heuristic")


@pytest.mark.parametrize(
    ("version", "library", "code", "words"),
    [
        (lambda: 92700, SimpleNamespace(cudnnCreate=None), 3, "no driver; plan"),
        (lambda: 92700, WithoutCublas(), 1, "no libcublasLt"),
        (no_heuristic, None, 1, "no libcudnn_heuristic"),
    ],
)
def test_need_gpu_distinguishes_a_broken_cudnn_from_a_missing_gpu(
    monkeypatch: MonkeyPatch, capsys: Capture, version: Any, library: Any, code: int, words: str
) -> None:
    monkeypatch.setattr(context, "available", lambda: context.Availability("no driver"))
    monkeypatch.setattr(_lib, "version", version)
    monkeypatch.setattr(_lib, "load", lambda: library)
    with pytest.raises(SystemExit) as ended:
        plainly(need_gpu)("plan")
    assert ended.value.code == code
    assert capsys.readouterr().err == f"cudnn-ct: {words}\n"
