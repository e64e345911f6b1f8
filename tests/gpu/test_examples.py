"""Every example in full on a GPU: its own check holds, and what it prints is of the GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import library

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

if not EXAMPLES.is_dir():
    pytest.skip("examples/ is not beside these tests", allow_module_level=True)

for needed in ("sklearn", "PIL", "matplotlib"):
    pytest.importorskip(needed, reason=f"{needed}, of the extra 'examples', is not installed")


def run(name: str, *arguments: str) -> str:
    """Run an example; return what it printed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def number(pattern: str, text: str) -> float:
    """The number that a pattern of a printed line has in its group."""
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found[1])


def test_quickstart(tmp_path: Path) -> None:
    out = run("01_quickstart.py", "--output", str(tmp_path / "q.png"))
    assert number("largest difference between the GPU and the reference: (.*)", out) < 1e-5
    assert (tmp_path / "q.png").stat().st_size > 10_000


def test_train_digits(tmp_path: Path) -> None:
    out = run("02_train_digits.py", "--output", str(tmp_path / "t.png"))
    assert "training on the GPU" in out
    assert number(r"right: (.*)% of 450 digits", out) >= 98
    assert (tmp_path / "t.png").stat().st_size > 10_000


def test_language_model() -> None:
    out = run("03_language_model.py")
    assert "training on the GPU" in out
    assert number(r"to (.*) bits each\n", out) < 1


def test_straighten_digits(tmp_path: Path) -> None:
    out = run("04_straighten_digits.py", "--output", str(tmp_path / "s.png"))
    assert "training on the GPU" in out
    assert number(r"(\S*)% of 450 .*: straightened", out) >= 95
    assert (tmp_path / "s.png").stat().st_size > 10_000


def test_theano_rnn() -> None:
    out = run("05_theano_rnn.py")
    assert number("largest difference of y, hy and all gradients, .*: (.*)", out) < 1e-5


def test_time_algorithms(tmp_path: Path) -> None:
    out = run("06_time_algorithms.py", "--output", str(tmp_path / "a.png"))
    assert number("([0-9]*) algorithms were timed", out) > 5
    assert (tmp_path / "a.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["torch", "cupy", "jax"])
def test_other_libraries(name: str) -> None:
    library(name)
    out = run("07_other_libraries.py", name)
    if "jax: " in out and "computes on cpu here" in out:  # asked there, or JAX takes this process's memory
        pytest.skip("jax sees no GPU")
    assert "on the GPU by cuDNN 9" in out
    assert number(f"{name}: largest difference (.*), beside", out) < 1e-5
    if name == "torch":
        assert "tensors on the CPU" not in out
        assert "both gradients are those of finite differences" in out


def test_cuda_graph() -> None:
    out = run("08_cuda_graph.py")
    assert "the scores are those of example 2" in out
    assert number(r"as a graph (.*) us", out) < number(r"one by one (.*) us a pass", out)
