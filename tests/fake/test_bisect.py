"""tools/bisect_cudnn.py on fakes that have a defect from one version on, each in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest

from cudnn_ct.cli.options import Convolution
from cudnn_ct.typing import Direction
from tests.elf_files import make_cudnn
from tests.maintainers import run_tool, tool

bisect_cudnn, bisect_child = tool("bisect_cudnn"), tool("bisect_child")

ROOT = Path(__file__).parents[2]
VERSIONS = ("9.1.0", "9.8.0", "9.10.2", "9.19.0", "9.28.0")
FIRST_BAD = "9.10.2"

# The child replaces cuDNN and the driver by fakes before it computes.
PROBLEM = """
import os, sys
from contextlib import ExitStack

sys.path.insert(0, {root!r})
import numpy as np
import cudnn_ct as ct
from cudnn_ct._lib import load
from tests.fake.installed import cudnn_installed, host_installed

stack = ExitStack()
host = stack.enter_context(host_installed())
fake = stack.enter_context(cudnn_installed(host))
version = tuple(map(int, os.path.basename(os.path.dirname(os.environ["CUDNN_CT_LIBRARY"])).split(".")))
load().version = version[0] * 10_000 + version[1] * 100 + version[2]
bad = version >= {first_bad}
x, w = ct.asarray(np.ones((1, 4, 8, 8), "float32")), ct.asarray(np.ones((4, 4, 3, 3), "float32"))


def call():
    return ct.conv(x, w)

{defect}
"""

DEFECTS = {
    "does not plan": "fake.fail = {'cudnnConvolutionForward': 3000} if bad else {}",
    "slower": "fake.costs = dict.fromkeys(('GEMM', 'IMPLICIT_GEMM', 'DIRECT'), 3.0) if bad else {}",
    "wrong": """
import tests.fake.cudnn as functions

right = functions.slide


def slide(result, memory, layer):
    right(result, memory, layer)
    memory[result] *= 1.5 if bad else 1


functions.slide = slide
""",
    "fails": "if bad: os.kill(os.getpid(), 11)",
}


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    for version in VERSIONS:
        make_cudnn(tmp_path / version, version)
    return [str(tmp_path / version) for version in reversed(VERSIONS)]


def problem(tmp_path: Path, defect: str) -> Path:
    first = tuple(map(int, FIRST_BAD.split(".")))
    path = tmp_path / "problem.py"
    path.write_text(PROBLEM.format(root=str(ROOT), first_bad=first, defect=defect))
    return path


def bisect(*arguments: str, check: int = 1) -> Any:
    ran = run_tool("bisect_cudnn", *arguments)
    assert ran.returncode == check, ran.stdout + ran.stderr
    return json.loads(ran.stdout) if "--json" in arguments else ran.stdout + ran.stderr


@pytest.mark.parametrize("status", [pytest.param(one, marks=pytest.mark.nightly) for one in DEFECTS])
def test_bisect_names_the_first_bad_version(status: str, tmp_path: Path, folders: list[str]) -> None:
    told = bisect(*folders, "--file", str(problem(tmp_path, DEFECTS[status])), "--json")
    assert told["first_bad"] == FIRST_BAD
    states = {row["cudnn"]: row["status"] for row in told["versions"]}
    assert list(states) == list(VERSIONS)  # sorted
    # The version after a slow one is as slow, but not slower.
    later = "ok" if status == "slower" else status
    assert states == {
        "9.1.0": "ok", "9.8.0": "ok", "9.10.2": status, "9.19.0": later, "9.28.0": later,
    }  # fmt: skip
    (row,) = (row for row in told["versions"] if row["cudnn"] == FIRST_BAD)
    expected = {
        "does not plan": "cuDNN does not support this forward convolution",
        "slower": "3.0 times as long as cuDNN 9.8.0",
        "wrong": "from cuDNN 9.1.0",
        "fails": "SIGSEGV",
    }
    assert expected[status] in row["reason"]


@pytest.mark.nightly
def test_bisect_compares_with_the_reference_of_a_file(tmp_path: Path, folders: list[str]) -> None:
    file = problem(tmp_path, f"{DEFECTS['wrong']}\nreference = lambda: np.full((1, 4, 6, 6), 36.0)")
    text = bisect(*folders, "--file", str(file))
    assert "first bad version: 9.10.2, wrong: differs by 5.0e-01 from the reference" in text
    assert "; 9.8.0 is ok" in text
    bisect(*folders, "--file", str(file), "--tolerance", "0.6", check=0)


@pytest.mark.nightly
def test_bisect_finds_no_bad_version(tmp_path: Path, folders: list[str]) -> None:
    text = bisect(*folders, "--file", str(problem(tmp_path, "")), check=0)
    assert "no version is bad, of 5" in text


@pytest.mark.nightly
def test_bisect_names_the_last_bad_version_when_later_ones_are_good(
    tmp_path: Path, folders: list[str]
) -> None:
    file = problem(tmp_path, "if not bad: raise OSError('no such data')")
    text = bisect(*folders[1:], "--file", str(file))
    assert "no version is bad after a good one: 9.8.0 is the last bad version; 9.1.0 fails: line " in text


@pytest.mark.nightly
def test_bisect_reports_a_hung_process(tmp_path: Path, folders: list[str]) -> None:
    file = problem(tmp_path, "import time\nif bad: time.sleep(600)")
    told = bisect(*folders[2:], "--file", str(file), "--seconds", "20", "--json")
    assert [row["status"] for row in told["versions"]] == ["ok", "ok", "fails"]
    assert told["versions"][-1]["reason"] == "it takes more than 20 s"


@pytest.mark.nightly
def test_bisect_reports_errors_of_the_file(tmp_path: Path, folders: list[str]) -> None:
    path = problem(tmp_path, "raise OSError('no such data')")
    line = path.read_text().splitlines().index("raise OSError('no such data')") + 1
    file = ("--file", str(path))
    told = bisect(folders[0], *file, "--json")
    reason = f"line {line}: OSError: no such data"
    assert told["versions"][0]["reason"] == reason
    assert told["first_bad"] is None
    text = bisect(*folders[:2], *file)
    assert f"all 2 versions are bad; is the problem itself wrong? 9.19.0 fails: {reason}" in text


def test_bisect_rejects_a_file_without_a_problem(tmp_path: Path, folders: list[str]) -> None:
    text = bisect(folders[0], "--file", str(problem(tmp_path, "del call")), check=2)
    assert "problem.py does not define call, which it must without --gpu" in text


def test_bisect_rejects_wrong_arguments(tmp_path: Path, folders: list[str]) -> None:
    file = ("--file", str(problem(tmp_path, "")))
    assert "name one problem" in bisect(*folders, check=2)
    assert "name one problem" in bisect(*folders, *file, "--x", "1,4,8,8", "--w", "4,4,3,3", check=2)
    assert "neither an existing path nor a version" in bisect("ten", *file, check=2)
    (tmp_path / "empty").mkdir()
    assert "does not contain a readable libcudnn.so.9" in bisect(str(tmp_path / "empty"), *file, check=2)


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
@pytest.mark.parametrize("geometry", [{}, {"padding": (1, 2), "stride": 2}])
def test_child_compares_a_convolution_with_numpy(
    tmp_path: Path, direction: Direction, geometry: dict[str, Any]
) -> None:
    convolution = Convolution((2, 4, 7, 7), (6, 4, 3, 3), direction=direction, **geometry)
    results = tmp_path / "results.npz"
    asked = {"file": None, "convolution": convolution._asdict(), "results": str(results)}
    told = bisect_child._computed(asked)
    assert told["ms"] == 1
    assert told["error"] < 1e-5
    with np.load(results) as stored:
        (array,) = (stored[name] for name in stored.files)
    roles = {"forward": "y", "backward_data": "x", "backward_filter": "w"}
    assert array.shape == convolution.shapes[roles[direction]]


@pytest.mark.parametrize(
    ("result", "want", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0),
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([0.0, 0.1], [0.0, 0.2], 0.1),  # relative to 1
        ([1.0], [1.0, 1.0], float("inf")),
        ([float("nan")], [1.0], float("inf")),
        ([], [], 0),
    ],
)
def test_difference_is_relative_to_the_largest_element(
    result: list[float], want: list[float], expected: float
) -> None:
    assert bisect_child.difference(np.array(result), np.array(want)) == pytest.approx(expected)


PLANNER: Any = SimpleNamespace(library=SimpleNamespace(version=91900, kind="full"))
DEFINITION = """
import cudnn_ct as ct

x = ct.zeros((2, 3))  # on shapes
g = ct.Graph()
a = g.input((64, 64), "float16")
"""


@pytest.mark.parametrize(
    ("definition", "error"),
    [
        ("graph = g.define(g.relu(a @ a))", ""),
        ("def graph():\n    return g.define(g.relu(a @ a))", ""),
        ("graph = g", "graph is not a graph: got Graph, expected the result of ct.Graph.define"),
        ("graph = 3", "graph is not a graph: got int"),
        ("", "does not define graph, which it must with --gpu"),
    ],
)
def test_bisect_takes_the_definition_of_a_graph(tmp_path: Path, definition: str, error: str) -> None:
    file = tmp_path / "problem.py"
    file.write_text(DEFINITION + definition)
    if error:
        with pytest.raises(bisect_child._WrongFileError, match=error):
            bisect_child._graph_of(str(file), PLANNER)
    else:
        assert [one.row for one in bisect_child._graph_of(str(file), PLANNER).nodes] == [
            "matmul",
            "pointwise",
        ]


def test_bisect_reports_a_wrong_file_as_wrong_usage() -> None:
    cudnn: Any = SimpleNamespace(version=(9, 19, 0))
    with pytest.raises(click.UsageError, match="does not define graph"):
        bisect_cudnn._outcome(cudnn, {"wrong_file": "problem.py does not define graph"})
