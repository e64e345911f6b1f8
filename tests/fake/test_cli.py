"""Commands on the fakes: the selftest finds wrong results; tables and times are printed."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import cudnn_ct as ct
import cudnn_doctor as doctor
from cudnn_ct import _lib
from cudnn_ct.cli import main, selftest_cases
from cudnn_ct.cli import selftest as selftest_command
from cudnn_ct.cli.selftest_cases import cases
from cudnn_ct.cli.selftest_rows import Case
from cudnn_ct.errors import CudnnError
from cudnn_ct.graph import offline

from .cudnn import FakeCudnn

MonkeyPatch = pytest.MonkeyPatch

SMALL = ["--x", "2,3,5,6", "--w", "4,3,3,3"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def selftest(*arguments: str) -> tuple[int, dict[str, Any]]:
    ran = run("selftest", "--json", *arguments)
    told = json.loads(ran.stdout)
    assert isinstance(told, dict)
    return ran.exit_code, told


@pytest.fixture
def _no_uneven_padding(monkeypatch: MonkeyPatch) -> None:
    """Skip the cases that only engines of the graph API support, which the fake does not have."""
    some = [case for case in cases() if case.variant != "uneven padding"]
    some = [case for case in some if case.dtype != "int8" or case.variant == "to float32"]
    monkeypatch.setattr(selftest_command, "cases", lambda: some)


@pytest.mark.usefixtures("_no_uneven_padding")
def test_selftest_passes_all_cases(fake: FakeCudnn) -> None:
    code, told = selftest()
    assert [row for row in told["rows"] if row["verdict"] != "ok"] == []
    assert code == 0
    assert (told["device"], told["cudnn"], told["reason"]) == ("a device of the tests", "9.19.0", None)
    assert len(told["rows"]) > 400
    names = {row["name"].split(" (")[0] for row in told["rows"]}
    assert names == set(selftest_cases.OPERATIONS)
    assert {name for name in ct.reference.__all__ if "shape" not in name} <= names
    for row in told["rows"]:
        assert row["error"] <= row["tolerance"]
        assert row["algorithm"], row
    assert sum(row["name"].startswith("attention") for row in told["rows"]) == 40


def test_selftest_prints_a_table_of_the_named_operations(fake: FakeCudnn) -> None:
    lines = run("selftest", "--op", "lrn", "--op", "lrn_backward").stdout.splitlines()
    heading, *rows, blank, summary = lines
    assert heading.split() == ["op", "dtype", "layout", "algorithm", "error", "tolerance", "verdict"]
    assert {row.split()[0] for row in rows} == {"lrn", "lrn_backward"}
    assert (blank, summary.partition(", in ")[0]) == ("", f"{len(rows)} ok")


def test_selftest_fails_on_a_wrong_result(fake: FakeCudnn, monkeypatch: MonkeyPatch) -> None:
    right = ct.reference.softmax
    monkeypatch.setattr(
        ct.reference, "softmax", lambda *a, **k: right(*a, **k) + np.float32(0.01).astype(a[0].dtype)
    )
    ran = run("selftest", "--op", "softmax", "--json")
    told = json.loads(ran.stdout)
    assert ran.exit_code == 1
    assert ran.stderr == f"cudnn-ct: {told['failed']} of {len(told['rows'])} failed\n"
    failed = {(row["dtype"], row["detail"]) for row in told["rows"] if row["verdict"] == "failed"}
    assert {(name, "differs from the reference") for name in ("float32", "float64", "float16")} <= failed


def one(operation: str, dtype: str = "float32") -> Case:
    return next(case for case in cases() if (case.operation, case.dtype) == (operation, dtype))


def test_selftest_skips_only_optional_dtypes_when_cudnn_rejects_them(fake: FakeCudnn) -> None:
    fake.fail["cudnnSoftmaxForward"] = 3000
    row = selftest_command.attempt(one("softmax"))
    assert (row.verdict, row.error) == ("failed", None)
    assert "CUDNN_STATUS_NOT_SUPPORTED" in row.detail
    row = selftest_command.attempt(one("softmax", "bfloat16"))  # not supported by all GPUs
    assert row.verdict == "skipped"
    fake.fail["cudnnSoftmaxForward"] = 5000
    assert selftest_command.attempt(one("softmax", "bfloat16")).verdict == "failed"


def failing(x: ct.DeviceArray) -> Any:
    raise RuntimeError("a bug")


def warning(x: ct.DeviceArray) -> ct.DeviceArray:
    warnings.warn("something else ran", ct.CudnnWarning, stacklevel=2)
    return ct.asarray(ct.reference.lrn(x.numpy()))


@pytest.mark.parametrize(
    ("lrn", "verdict", "detail"),
    [
        (lambda x: ct.zeros((2,), "int8"), "failed", "result is int8[2], expected float32[2, 8, 7, 9]"),
        (lambda x: ct.full(x.shape, np.nan), "failed", "differs from the reference"),
        (lambda x: None, "failed", "result is missing"),
        (failing, "failed", "RuntimeError: a bug"),
        (warning, "ok", "something else ran"),
    ],
)
def test_selftest_reports_wrong_results_errors_and_warnings(
    fake: FakeCudnn, monkeypatch: MonkeyPatch, lrn: Any, verdict: str, detail: str
) -> None:
    monkeypatch.setattr(ct, "lrn", lrn)
    row = selftest_command.attempt(one("lrn"))
    assert (row.verdict, row.detail) == (verdict, detail)


def test_selftest_fails_when_dropout_keeps_everything(fake: FakeCudnn, monkeypatch: MonkeyPatch) -> None:
    make = ct.DropoutState
    monkeypatch.setattr(ct, "DropoutState", lambda p, seed: make(0, seed))
    row = selftest_command.attempt(one("dropout"))
    assert row.verdict == "failed"
    assert row.detail == "kept 1.00 of all elements, expected about 0.75"


# --- algorithms and times ----------------------------------------------------------------------------------


def test_algorithms_prints_times_unless_no_timing(fake: FakeCudnn) -> None:
    fake.costs = {"GEMM": 9.0, "IMPLICIT_GEMM": 1.0}
    ran = run("algorithms", *SMALL)
    assert ran.exit_code == 0
    about, _, table = ran.stdout.partition("\n\n")
    assert about.startswith("forward convolution: x float32[2, 3, 5, 6] nchw")
    assert about.endswith("\non a device of the tests")
    heading, first, second, *rejected = table.splitlines()
    assert heading.split()[:6] == ["#", "time", "ratio", "workspace", "algorithm", "math,"]
    assert first.split()[:8] == ["1", "1000.0", "us", "1.00", "0", "B", "legacy", "implicit_gemm"]
    assert second.split()[:4] == ["2", "9000.0", "us", "9.00"]
    places = re.findall(r"^ *\d+ +- ", "\n".join(rejected), re.MULTILINE)
    assert len(places) == " ".join(rejected).count("rejected:")
    assert max(map(len, ran.stdout.splitlines())) <= 80
    (heading, _, last) = run("algorithms", *SMALL, "--no-timing", "--top", "1").stdout.splitlines()[-3:]
    assert not {"time", "ratio"} & set(heading.split())
    assert last.startswith("and ")


@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
def test_algorithms_prints_json(fake: FakeCudnn, direction: str) -> None:
    ran = run("algorithms", *SMALL, "--direction", direction, "--json", "--padding", "1", "--layout", "nhwc")
    told = json.loads(ran.stdout)
    assert told["problem"].startswith(f"{direction} convolution")
    assert told["rows"][0]["backend"] == "legacy"
    assert told["rows"][0]["time_ms"] > 0
    assert "problem" not in told["rows"][0]
    assert (told["planned"], told["skipped"]) == (False, [])


def test_device_prints_the_name_and_exports_a_description(
    fake: FakeCudnn, monkeypatch: MonkeyPatch, tmp_path: Path
) -> None:
    assert run("device").stdout == "a device of the tests, device 0\n"
    ran = run("device", "--export")  # the fake has no graph API
    assert ran.exit_code == 1
    assert ran.stderr.startswith("cudnn-ct: cudnnBackend")
    assert len(ran.stderr.splitlines()) == 1
    monkeypatch.setattr(offline, "describe_device", lambda context: '{"deviceVer": 900}')
    file = tmp_path / "gpu.json"
    assert run("device", "--export").stdout == '{"deviceVer": 900}\n'
    assert run("device", "--export", str(file)).exit_code == 0
    assert json.loads(file.read_text()) == {"deviceVer": 900}
    ran = run("device", "--export", str(tmp_path / "no" / "where.json"))
    assert (ran.exit_code, ran.stderr.startswith("cudnn-ct: [Errno 2]")) == (1, True)


@pytest.mark.parametrize(
    ("function", "status", "carried"),
    [("cudnnCreate", 1001, True), ("cudnnSoftmaxForward", 3009, True), ("cudnnSoftmaxForward", 5000, False)],
)
@pytest.mark.parametrize("fails", [False, True], ids=["", "the doctor fails"])
def test_errors_of_an_installation_have_the_doctors_verdict(
    fake: FakeCudnn, monkeypatch: MonkeyPatch, function: str, status: int, carried: bool, fails: bool
) -> None:
    asked = []

    def verdict_lines(path: str) -> list[str]:
        asked.append(path)
        if fails:
            raise OSError("the doctor fails")
        return [f"doctor: of {path}"]

    monkeypatch.setattr(doctor, "verdict_lines", verdict_lines, raising=False)
    monkeypatch.setattr(_lib.load(), "path", __file__)
    fake.fail[function] = status
    for _ in range(2):
        with pytest.raises(CudnnError, match=function) as caught:
            ct.softmax(ct.asarray(np.zeros((2, 3), np.float32)))
        notes = getattr(caught.value, "__notes__", [])
        assert notes.count(f"doctor: of {__file__}") == (carried and not fails)
    assert asked == [__file__] * carried  # once for a library
