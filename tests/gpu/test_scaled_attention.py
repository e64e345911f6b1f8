"""Attention of float8 on a GPU against PyTorch in float64, in processes of its own.

Tiles of queries without keys hang a kernel of cuDNN (cudnn-frontend issue 1009). No call that is accepted has
any; if one hangs nevertheless, only its process ends.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cudnn_ct as ct
from tests.scaled_attention_cases import CASES

from .conftest import library

ROOT = Path(__file__).parents[2]
SECONDS = 240  # for the checks of one process

pytestmark = pytest.mark.skipif(not ct.config.replay, reason="first calls run without replays here, too")


@pytest.fixture(autouse=True)
def _has_engines() -> None:
    torch = library("torch")
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("attention of float8 needs a Hopper GPU")
    if ct.version() < 91400:
        pytest.skip("attention of float8 needs cuDNN 9.14")


def failures(names: list[str]) -> dict[str, str]:
    """Make checks in child processes, and return the reasons of those that fail."""
    failed: dict[str, str] = {}
    left = list(names)
    while left:
        command = [sys.executable, "-m", "tests.gpu.scaled_attention_child", *left]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
            output, errors, how = done.stdout, done.stderr, f"exit code {done.returncode}"
        except subprocess.TimeoutExpired as late:
            output = (late.stdout or b"").decode() if isinstance(late.stdout, bytes) else late.stdout or ""
            errors, how = "", f"not done after {SECONDS} s"
        print(output, errors[-2000:], sep="\n")
        ended = 0
        for line in output.splitlines():
            verdict, _, rest = line.partition(" ")
            ended += verdict in ("ok", "wrong")
            if verdict == "wrong":
                name, _, reason = rest.partition(": ")
                failed[name] = reason
        if ended < len(left):  # the process ended during a check
            failed[left[ended]] = f"{how}: {errors[-500:]}"
        left = left[ended + 1 :]
    return failed


def test_scaled_attention_equals_pytorch() -> None:
    assert failures(list(CASES)) == {}


@pytest.mark.parametrize(
    "name",
    ["engines", "autotune", "misaligned", "replays", "captured", "same bits", "torch tensors", "facts"],
)
def test_scaled_attention_in_a_process(name: str) -> None:
    assert failures([name]) == {}
