"""Files that users name, and the output of commands: pipes and huge files are not read, text is escaped."""

from __future__ import annotations

import ast
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import cudnn_ct as ct
from cudnn_ct._cache_files import read_file
from cudnn_ct._config import config
from cudnn_ct.cli import compile_child, main, offline, output
from cudnn_ct.cli.offline import read_description
from cudnn_ct.cli.selftest import COLUMNS, FAILED, OK, SKIPPED, Outcome, as_dict, cells
from cudnn_ct.cli.selftest_cases import OPERATIONS, cases
from cudnn_doctor.read import files as _files

CLI = Path(output.__file__).parent

READERS: dict[str, Callable[[Path], Any]] = {
    "import_algo_cache": ct.import_algo_cache,
    "import_plans": ct.import_plans,
    "read_description": read_description,
    "user_file": offline.user_file,
    "text_of": _files.text_of,
    "read_file": lambda path: read_file(path, 100),
    "program of compile": compile_child._requests,
}


@pytest.fixture(params=["pipe", "device", "folder"])
def odd_file(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path that is not a regular file; commands have a cache next to it."""
    monkeypatch.setattr(config, "algo_cache", str(tmp_path / "cache"))
    path = tmp_path / "file.py"
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    return path


@pytest.mark.parametrize("name", READERS)
def test_reader_rejects_a_file_that_is_not_regular(name: str, odd_file: Path) -> None:
    with pytest.raises(Exception, match=r"not a regular file|Is a directory") as caught:
        READERS[name](odd_file)
    assert isinstance(caught.value, OSError | ValueError)


@pytest.mark.parametrize("name", READERS)
def test_reader_rejects_a_huge_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file.py"
    path.touch(mode=0o600)
    os.truncate(path, 1 << 40)  # sparse
    with pytest.raises(Exception, match=r"has 1,099,511,627,776 bytes, more than the [\d,]+ that are read"):
        READERS[name](path)


@pytest.mark.parametrize(
    "line",
    [
        "cache import FILE",
        "supports FILE --gpu h200",
        "compile FILE --gpu h200 -o OUT",
        "supports /dev/null --gpu FILE",
        "algorithms --x 1,3,8,8 --w 4,3,3,3 --gpu FILE",
    ],
)
def test_command_rejects_a_file_that_is_not_regular(line: str, odd_file: Path, tmp_path: Path) -> None:
    words = line.replace("FILE", str(odd_file)).replace("OUT", str(tmp_path / "out")).split()
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 2, ran.output
    last = ran.stderr.splitlines()[-1]
    assert any(text in last for text in ("not a regular file", "is a directory", "Is a directory"))


@pytest.mark.parametrize(
    "line",
    [
        "cache export FILE",
        "cache export-plans FILE",
        "compile PROGRAM --gpu h200 -o FILE",
        "device --export FILE",
        "report FILE",
    ],
)
def test_command_rejects_an_output_that_is_not_regular_before_it_works(
    line: str, odd_file: Path, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text("raise SystemError")
    words = line.replace("FILE", str(odd_file)).replace("PROGRAM", str(program)).split()
    ran = CliRunner().invoke(main, words)
    assert (ran.exit_code, ran.stdout) == (2, "")
    kind = "a folder" if odd_file.is_dir() else "a pipe or a device"
    assert ran.stderr.splitlines()[-1].endswith(
        f"{str(odd_file)!r} is {kind}: expected a regular file or a new one"
    )
    assert odd_file.is_dir() or not odd_file.is_file()


def test_contents_returns_whole_files_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    assert _files.contents(path, 4) == b"1234"
    with pytest.raises(_files.UnsuitableFileError, match="has 4 bytes, more than the 3 that are read"):
        _files.contents(path, 3)
    assert _files.contents("/proc/self/status", 1 << 20)  # its size is 0
    with pytest.raises(_files.UnsuitableFileError, match="more than the 10 that are read"):
        _files.contents("/proc/self/status", 10)


HOSTILE = "\x1b]0;title\x07\x1b[31m\u202e\x9b1m\n"


def test_say_prints_one_line_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    output.say(HOSTILE)
    output.say(HOSTILE, label="a label", err=True)
    for written in capsys.readouterr():
        (line,) = written.splitlines()
        assert line.isprintable()
        assert r"\x1b[31m" in line


@pytest.mark.parametrize(
    "line", [f"supports {HOSTILE}", f"cache import {HOSTILE}", f"supports /dev/null --gpu {HOSTILE}", HOSTILE]
)
def test_usage_errors_have_no_control_characters(line: str) -> None:
    ran = CliRunner().invoke(main, line.split(" "))
    assert ran.exit_code == 2
    assert all(each.isprintable() for each in ran.output.splitlines())


@pytest.mark.parametrize("path", sorted(CLI.glob("*.py")), ids=lambda path: path.stem)
def test_commands_print_by_the_functions_that_escape_text(path: Path) -> None:
    if path.stem == "output":  # it defines these functions
        return
    calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
    raw = [call for call in calls if ast.unparse(call.func) in ("click.echo", "click.secho", "print")]
    # Child processes write JSON to pipes.
    assert [ast.unparse(call) for call in raw if "json.dumps" not in ast.unparse(call)] == []


# --- tables, progress, and the rows of the selftest --------------------------------------------------------


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
