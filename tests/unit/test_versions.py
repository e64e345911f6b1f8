"""tools/versions.py: the record of another cuDNN on a GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.maintainers import TOOLS, tool

versions = tool("versions")


def test_each_cudnn_has_a_record_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "nvidia" / "cudnn_jit" / "lib" / "libcudnn.so.9"
    library.parent.mkdir(parents=True)
    library.touch()
    commands: list[list[str]] = []

    def run(command: list[str], *, env: dict[str, str], **_: Any) -> SimpleNamespace:
        assert env["CUDNN_CT_LIBRARY"] == str(library)
        commands.append(command[1:])
        return SimpleNamespace(stdout="9.27.0 jit\n", returncode=3 * ("--run" in command))

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(versions, "RECORDS", tmp_path / "records")
    assert versions.on_gpu(tmp_path, 0.5, 8) == 3
    _, record, facts = commands
    assert str(tmp_path / "records" / "9.27.0-jit.json") in record
    more = ["--jobs", "8", "--files", *versions.FILES["jit"], "--oracle-minutes", "0.5", "--shard", "1/1"]
    assert record[-len(more) - 3 :] == [*more, "--run", "tests", "oracle"]
    assert str(tmp_path / "records" / "9.27.0-jit-facts.json") in facts


def test_a_folder_without_cudnn_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"no libcudnn.so.9 below {tmp_path}"):
        versions.on_gpu(tmp_path, 1, 1)


def test_files_of_a_kind_exist() -> None:
    names = {one.stem.removeprefix("test_") for one in (TOOLS.parent / "tests" / "gpu").glob("test_*.py")}
    assert names >= {name for files in versions.FILES.values() for name in files}
