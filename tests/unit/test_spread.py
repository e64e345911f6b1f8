"""Processes of the GPU tests begin with different GPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.spread import rotated, use_gpu


def test_processes_have_the_gpus_in_turn() -> None:
    assert [rotated(["0", "1", "2"], process)[0] for process in range(4)] == ["0", "1", "2", "0"]
    assert rotated(["GPU-a", "GPU-b"], 1) == ["GPU-b", "GPU-a"]


@pytest.mark.parametrize(
    ("listed", "given", "expected"),
    [
        ("GPU 0: H200\nGPU 1: H200\n", None, "1,0"),
        ("GPU 0: H200\n", None, None),
        ("", None, None),
        (None, None, None),
        (None, "3,5", "5,3"),
        (None, "3", "3"),
    ],
)
def test_a_process_uses_the_gpus_that_cuda_may_use(
    listed: str | None,
    given: str | None,
    expected: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if listed is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{listed}'\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given or "")  # restored after the test
    if given is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    use_gpu(1)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == expected


def test_a_process_may_see_one_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    use_gpu(4, count=1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"
