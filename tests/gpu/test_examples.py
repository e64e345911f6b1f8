"""Every example in full on a GPU: it computes there, and the number that it prints is right."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cudnn_ct as ct
from tests.unit.test_examples import EXAMPLES, run

from .conftest import library

# The arguments of each example, a pattern for a number that it prints, and the range of that number.
TABLE = {
    "01_quickstart": ("--output {}", "largest difference between the GPU and the reference: (.*)", 0, 1e-5),
    "02_train_digits": ("--output {}", r"right: (.*)% of 450 digits", 98, 100),
    "03_language_model": ("", r"to (.*) bits each\n", 0, 1),
    "04_straighten_digits": ("--output {}", r"(\S*)% of 450 .*: straightened", 95, 100),
    "05_theano_rnn": ("", "largest difference of y, hy and all gradients, .*: (.*)", 0, 1e-5),
    "06_time_algorithms": ("--output {}", "([0-9]*) algorithms were timed", 6, 1000),
    "09_gpt": ("--output {}", r"to (.*) bits for each character of unseen text", 0, 3.6),
    "11_mamba_conv": ("", "decoder: largest difference (.*)", 0, 1e-5),  # of the reference, before cuDNN 9.22
    "13_hyena_block": ("", "each channel: largest difference (.*)", 0, 1e-5),  # or of the reference, as above
    "12_cuda_python_memory": ("", "largest difference from the reference (.*)", 0, 1e-5),
}


def number(pattern: str, text: str) -> float:
    """Return the number in the group of a pattern."""
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found[1])


@pytest.mark.parametrize("name", TABLE)
def test_example_computes_on_the_gpu(name: str, tmp_path: Path) -> None:
    arguments, pattern, low, high = TABLE[name]
    picture = tmp_path / "picture.png"
    out = run(name, *arguments.format(picture).split(), cwd=tmp_path, warnings="ignore")
    assert "not on a GPU" not in out
    assert "in NumPy by the reference" not in out
    assert low <= number(pattern, out) <= high
    assert not arguments or picture.stat().st_size > 10_000


@pytest.mark.parametrize("name", ["torch", "cupy", "jax"])
def test_example_07_other_libraries(name: str, tmp_path: Path) -> None:
    library(name)
    out = run("07_other_libraries", name, cwd=tmp_path, warnings="ignore")
    if "jax: " in out and "computes on cpu here" in out:  # asked there, or JAX takes this process's memory
        pytest.skip("jax sees no GPU")
    assert "on the GPU by cuDNN 9" in out
    assert number(f"{name}: largest difference (.*), relative", out) < 1e-5
    if name == "torch":
        assert "tensors on the CPU" not in out
        assert "both gradients are those of finite differences" in out


def test_example_08_cuda_graph(tmp_path: Path) -> None:
    out = run("08_cuda_graph", cwd=tmp_path, warnings="ignore")
    assert "the scores are those of example 2" in out
    assert number(r"as a graph (.*) us", out) < number(r"one by one (.*) us a pass", out)


def test_example_14_distributed_gpt(tmp_path: Path) -> None:
    torch = library("torch")
    alone = run("14_distributed_gpt", "--steps", "15", "--json", "1.json", cwd=tmp_path, warnings="ignore")
    assert "1 GPU: loss" in alone
    if torch.cuda.device_count() < 2 or not ct.config.replay:  # processes of their own take half a minute
        return
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    path = os.pathsep.join([str(EXAMPLES.parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    losses = [json.loads((tmp_path / "1.json").read_text())["losses"]]
    for more in ([], ["--shard"]):
        script = [str(EXAMPLES / "14_distributed_gpt.py"), "--steps", "15", "--json", "2.json", *more]
        subprocess.run([*launch, *script], check=True, capture_output=True, cwd=tmp_path, env=environment)
        losses.append(json.loads((tmp_path / "2.json").read_text())["losses"])
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-3)


def test_example_10_torch_model(tmp_path: Path) -> None:
    library("torch")
    out = run("10_torch_model", cwd=tmp_path, warnings="ignore")
    assert "served  batch_norm: " in out, out
    assert all(float(right) >= 95 for right in re.findall(r"right: (.*)% of", out)), out
    assert number(r"the scores differ by (.*)", out) < 1e-3
