"""Child processes of commands end with their parent."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ANSWER = """
import os, pathlib, time
from cudnn_ct.cli.offline import read_request

def answer():
    file = pathlib.Path(read_request()["file"])
    file.with_suffix(".new").write_text(str(os.getpid()))
    file.with_suffix(".new").rename(file)
    time.sleep(60)
"""
PARENT = """
import os, sys
from cudnn_ct.cli.offline import start

start("sleeper", {"file": sys.argv[1]}, os.environ, [], 60)
"""


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_a_child_ends_with_its_parent(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleeper.py").write_text(ANSWER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    file = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(file)])
    try:
        until(file.exists)
        getattr(parent, end)()
        until(lambda: not running(int(file.read_text())))
    finally:
        parent.kill()
        parent.wait()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def running(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
