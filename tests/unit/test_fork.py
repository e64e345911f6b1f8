"""A forked child of a process that has used CUDA is told so, and what to do; another one may use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cudnn_ct
from cudnn_ct import _cuda
from cudnn_ct.errors import NotInitializedError

# A driver that shows one device, and counts the questions.
PROGRAM = """
import json, os, sys
from tests.unit.cuda_driver import install

driver = install()

import cudnn_ct as ct
from cudnn_ct import stream as streams

if sys.argv[1] == "used":
    assert streams.device_count() == 1
reading, writing = os.pipe()
if os.fork() == 0:
    try:
        said = f"{streams.device_count()} device"
    except ct.NotInitializedError as error:
        said = str(error)
    os.write(writing, json.dumps([said, driver.names().count("cuDeviceGetCount")]).encode())
    os._exit(0)
os.wait()
assert streams.device_count() == 1  # the parent goes on
print(os.read(reading, 65536).decode())
"""


def child(argument: str) -> list[object]:
    environ = {**os.environ, "PYTHONPATH": str(Path(cudnn_ct.__file__).parents[1])}
    command = [sys.executable, "-c", PROGRAM, argument]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60)
    assert done.returncode == 0, done.stderr
    answer: list[object] = json.loads(done.stdout)
    return answer


def test_a_child_of_a_process_that_used_cuda() -> None:
    said, asked = child("used")
    assert "CUDA does not survive a fork" in str(said)
    assert "'spawn'" in str(said)
    assert asked == 1  # by the parent: the child touches nothing


def test_a_child_of_a_process_that_did_not() -> None:
    assert child("unused") == ["1 device", 1]


def test_where_another_library_had_used_cuda() -> None:
    error = RuntimeError("CUDA_ERROR_NOT_INITIALIZED: This indicates that the CUDA driver has not been ...")
    said = _cuda.translated(error, "counting the devices")
    assert isinstance(said, NotInitializedError)
    with pytest.raises(NotInitializedError, match=r"if this process was forked .* 'spawn' method"):
        raise said
