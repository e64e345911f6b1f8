"""tools/bisect_cudnn.py with the real cuDNN and no GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cudnn_ct as ct
from tests.elf_files import make_cudnn
from tests.maintainers import run_tool, tool

from .test_cli import CONV, DEVICE
from .wheels import FOLDERS, WHEEL, needs_cudnn

tool("bisect_cudnn")

# The shape of its result is wrong from a version on.
GRAPH = """
import cudnn_ct as ct
from cudnn_ct.graph.operations import Graph, Tensor, node
from cudnn_ct.shapes.specs import TensorSpec


def graph():
    broken = ct.version() >= {first_bad}
    a, b, c = (Tensor(uid, TensorSpec.packed((1, 64, 64), "float16")) for uid in (1, 2, 3))
    c = Tensor(3, TensorSpec.packed((1, 65, 64), "float16")) if broken else c
    one = node("matmul", comp_type="float32", adesc=a, bdesc=b, cdesc=c)
    return Graph((one,), (a, b, c))
"""


@pytest.mark.nightly
@needs_cudnn
@pytest.mark.usefixtures("can_plan")
def test_bisect_plans_a_graph_of_a_file(cudnn: int, tmp_path: Path) -> None:
    assert WHEEL is not None
    file = tmp_path / "problem.py"
    file.write_text(GRAPH.format(first_bad=cudnn + 1))
    options = ("--gpu", str(DEVICE), "--json", "--file", str(file))
    ran = run_tool("bisect_cudnn", str(WHEEL), *options)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (row,) = json.loads(ran.stdout)["versions"]
    assert (row["status"], row["ms"]) == ("ok", None)
    assert row["engines"]
    file.write_text(GRAPH.format(first_bad=cudnn))
    ran = run_tool("bisect_cudnn", ct.errors.format_version(cudnn), *options)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    (row,) = json.loads(ran.stdout)["versions"]
    assert row["status"] == "does not plan"
    assert row["reason"]


@needs_cudnn
@pytest.mark.usefixtures("can_plan")
@pytest.mark.skipif(not FOLDERS, reason="no other cuDNN 9 at hand (CUDNN_CT_TEST_CUDNNS)")
def test_bisect_names_the_first_version_that_does_not_plan(cudnn: int, tmp_path: Path) -> None:
    file = tmp_path / "problem.py"
    file.write_text(GRAPH.format(first_bad=cudnn))
    ran = run_tool("bisect_cudnn", WHEEL, *FOLDERS, "--gpu", DEVICE, "--file", file, "--json")
    told = json.loads(ran.stdout)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    good = any(row["status"] == "ok" for row in told["versions"])
    assert told["first_bad"] == (ct.errors.format_version(cudnn) if good else None)
    for row in told["versions"]:
        numbers = tuple(map(int, row["cudnn"].split(".")))
        older = {"ok", "skipped"} if numbers >= (9, 8) else {"skipped"}  # its libcublasLt may be missing
        assert row["status"] in (older if numbers < divmod_version(cudnn) else {"does not plan"})


def divmod_version(version: int) -> tuple[int, int, int]:
    return version // 10_000, version // 100 % 100, version % 100


@needs_cudnn
@pytest.mark.usefixtures("can_plan")
def test_bisect_plans_a_convolution() -> None:
    ran = run_tool("bisect_cudnn", str(WHEEL), *CONV, "--dtype", "float16", "--gpu", str(DEVICE))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "no version is bad, of 1" in ran.stdout


@needs_cudnn
def test_bisect_downloads_only_if_asked(tmp_path: Path) -> None:
    ran = run_tool("bisect_cudnn", "9.0.0", *CONV)
    assert ran.returncode == 2
    assert "cuDNN 9.0.0 is not installed" in ran.stderr
    assert "--download DIR" in ran.stderr
    make_cudnn(tmp_path / "nvidia_cudnn_cu12-9.0.0.312" / "nvidia/cudnn/lib", "9.0.0")
    ran = run_tool(
        "bisect_cudnn", "9.0.0", *CONV, "--gpu", str(DEVICE), "--download", str(tmp_path), "--json"
    )
    assert ran.returncode == 3, ran.stdout + ran.stderr  # no version was examined
    (row,) = json.loads(ran.stdout)["versions"]
    assert (row["cudnn"], row["status"]) == ("9.0.0", "skipped")
    assert row["library"].startswith(str(tmp_path.resolve()))


@pytest.mark.nightly
@needs_cudnn
def test_bisect_runs_on_a_gpu_without_a_description(no_gpu: str) -> None:
    ran = run_tool("bisect_cudnn", str(WHEEL), *CONV)
    assert ran.returncode == 3
    assert no_gpu in ran.stderr
    assert "--gpu plans for a described GPU" in ran.stderr
