"""Commands with the real cuDNN and no GPU, and the notes on its errors."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.elf_files import make_cudnn
from tests.nightly import share, some

from .test_info import run
from .wheels import WHEEL, needs_cudnn

DEVICE = Path(__file__).parents[1] / "devices" / "h200-cudnn-9.19.json"
CONV = ("--x", "8,64,28,28", "--w", "64,64,3,3", "--padding", "1")


# --- planning ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", some(["forward", "backward_data", "backward_filter"], 3))
@pytest.mark.usefixtures("can_plan")
def test_algorithms_plans_for_a_described_gpu(direction: str) -> None:
    ran = run(
        "algorithms", *CONV, "--gpu", str(DEVICE), "--dtype", "float16", "--layout", "nhwc",
        "--direction", direction, "--json",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert (told["device"], told["planned"]) == ("NVIDIA H200", True)
    usable = [row for row in told["rows"] if not row["rejected"]]
    assert len(usable) > 4
    assert {row["backend"] for row in usable} == {"graph"}
    assert any("tensor_core" in row["notes"] for row in usable)
    assert all(row["time_ms"] is None and row["workspace"] >= 0 for row in usable)
    assert "need a handle" in told["skipped"][0]


@pytest.mark.usefixtures("can_plan")
def test_algorithms_prints_a_planned_table_without_times() -> None:
    ran = run("algorithms", *CONV, "--padding", "0:1,2:1", "--gpu", str(DEVICE))
    assert ran.returncode == 0, ran.stderr
    about, _, table = ran.stdout.partition("\n\n")
    assert about.endswith("\non NVIDIA H200, planned without a GPU")
    lines = table.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["#", "workspace", "algorithm", "math,", "knobs", "and", "notes"]
    assert lines[-1].startswith("legacy algorithms are skipped: they need a handle")


@pytest.mark.usefixtures("can_plan")
def test_algorithms_explains_why_engines_reject_a_convolution(cudnn: int) -> None:
    arguments = ("algorithms", *CONV, "--dtype", "float64", "--gpu", str(DEVICE), "--explain")
    ran = run(*arguments)
    assert ran.returncode == 0, ran.stderr
    assert max(map(len, ran.stdout.splitlines())) <= 80
    told = " ".join(ran.stdout.split())
    assert "is supported by engines 0, 1, 28" in told
    if cudnn >= 91900:  # 9.10.2 has no sentence about it
        assert "x is float64: x must be float16, bfloat16 or float32 (cuDNN: " in told
    explanation = json.loads(run(*arguments, "--json").stdout)["explanation"]
    assert explanation["supported"] == [0, 1, 28]
    assert cudnn < 91900 or any(reason["must_change"] == "graph" for reason in explanation["reasons"])


@pytest.mark.nightly
@pytest.mark.usefixtures("can_plan")
def test_commands_name_the_description_that_cudnn_rejects(tmp_path: Path) -> None:
    path, calls = tmp_path / "device.json", tmp_path / "calls.json"
    path.write_text('{"deviceVer": 900}')
    calls.write_text('{"calls": []}')
    for command in (
        ("algorithms", *CONV, "--gpu"),
        ("supports", str(calls), "--gpu", "h200", "--gpu"),
        ("compile", str(calls), "-o", str(tmp_path / "plans"), "--gpu"),
    ):
        ran = run(*command, str(path))
        assert ran.returncode == 2, ran.stderr
        assert f"cuDNN rejected {path} as a description of a device" in ran.stderr


# --- without a GPU -----------------------------------------------------------------------------------------


def test_selftest_checks_the_rest_when_there_is_no_gpu(no_gpu: str) -> None:
    ran = run("selftest", "--json")
    assert ran.returncode == 3, ran.stdout
    assert ran.stderr == f"cudnn-ct: no operation was run: {no_gpu}\n"
    told = json.loads(ran.stdout)
    assert (told["reason"], told["device"], told["failed"]) == (no_gpu, None, 0)
    verdicts = {row["name"]: row["verdict"] for row in told["rows"]}
    assert verdicts == dict.fromkeys(("cuDNN loads", "descriptors", "doctor"), "ok")


def test_selftest_fails_when_cudnn_is_broken(tmp_path: Path) -> None:
    shim = make_cudnn(tmp_path / "lib", "9.27.0", without=["cnn"])
    ran = run("selftest", "--json", library=shim)
    assert ran.returncode == 1
    told = json.loads(ran.stdout)
    assert {row["verdict"] for row in told["rows"]} == {"failed"}
    assert "missing-library" in next(row["detail"] for row in told["rows"] if row["name"] == "doctor")
    assert "failed; and no operation was run: " in ran.stderr


NEED_A_GPU = [("algorithms", *CONV), ("device",), ("device", "--export")]


@pytest.mark.parametrize("arguments", NEED_A_GPU)
def test_commands_exit_with_3_when_there_is_no_gpu(no_gpu: str, arguments: tuple[str, ...]) -> None:
    ran = run(*arguments)
    assert (ran.returncode, ran.stdout) == (3, "")
    assert ran.stderr.startswith(f"cudnn-ct: {no_gpu}")
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", NEED_A_GPU)
def test_commands_exit_with_1_when_cudnn_is_incomplete(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    shim = make_cudnn(tmp_path / "lib", "9.27.0", without=["heuristic", "adv"])
    ran = run(*arguments, library=shim)
    assert (ran.returncode, ran.stdout) == (1, "")
    *verdict, last = ran.stderr.splitlines()
    assert "libcudnn_adv.so.9" in last
    assert any(line.startswith("doctor: missing-library: libcudnn_adv.so.9") for line in verdict)


# --- errors carry the verdict ------------------------------------------------------------------------------


@pytest.fixture
def without_engines(tmp_path: Path) -> Iterator[Path]:
    """A cuDNN that can be loaded but not plan: its engines need a symbol that no library defines."""
    assert WHEEL is not None
    try:  # no symbolic links: libcudnn_graph searches for the engines in its real folder
        for file in WHEEL.resolve().parent.glob("libcudnn*.so.9"):
            os.link(file, tmp_path / file.name)
    except OSError as error:
        pytest.skip(f"no hard links from the wheel to the temporary folder: {error}")
    engines = tmp_path / "libcudnn_engines_runtime_compiled.so.9"
    data = engines.read_bytes().replace(b"_ZTVN5cudnn", b"_ZTVX5cudnn")
    engines.unlink()
    engines.write_bytes(data)
    yield tmp_path / "libcudnn.so.9"
    shutil.rmtree(tmp_path, ignore_errors=True)


UNRESOLVED = "doctor: unresolved-symbols: libcudnn_engines_runtime_compiled.so.9 has another version"


@needs_cudnn
@pytest.mark.usefixtures("can_plan")
def test_algorithms_prints_the_doctors_verdict_when_planning_fails(without_engines: Path) -> None:
    ran = run("algorithms", *CONV, "--gpu", str(DEVICE), library=without_engines)
    assert ran.returncode == 1
    *before, last = ran.stderr.splitlines()
    assert last.startswith("cudnn-ct: cudnnBackendFinalize returned CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED")
    assert any(line.startswith(UNRESOLVED) for line in before)


def test_algorithms_prints_one_line_when_no_cudnn_exists(tmp_path: Path) -> None:
    ran = run("algorithms", *CONV, "--gpu", str(DEVICE), library=tmp_path / "nothing.so")
    assert ran.returncode == 1
    assert len(ran.stderr.splitlines()) == 1
    assert str(tmp_path / "nothing.so") in ran.stderr


# --- hostile files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["supports", "compile"])
@pytest.mark.usefixtures("can_plan")
def test_planning_commands_escape_text_of_the_file(command: str, tmp_path: Path) -> None:
    escape, x = "\x1b[31m\x9b", {"shape": [4, 8, 8, 8]}
    rows = {
        "name": {"function": f"relu{escape}"},
        "dtype": {"function": "activation", "arguments": {"x": {**x, "dtype": f"float{escape}"}}},
        "key": {"function": "activation", "arguments": {"x": {**x, escape: 1}}},
        "engine": {"function": "softmax", "arguments": {"x": x, "algo": escape}},
        "program": f"import cudnn_ct as ct\nct.activation(ct.zeros((2, 3)), mode={escape!r})\n",
    }
    output = ("-o", str(tmp_path / "plans")) if command == "compile" else ()
    for name, row in share(rows.items(), 4):
        path = tmp_path / f"{name}.{'py' if name == 'program' else 'json'}"
        path.write_text(row if isinstance(row, str) else json.dumps({"calls": [row]}))
        ran = run(command, str(path), "--gpu", "h200", *output)
        assert ran.returncode in (1, 2)
        assert r"\x1b[31m" in ran.stderr
        assert all(line.isprintable() for line in (ran.stdout + ran.stderr).splitlines()), ran.stderr
