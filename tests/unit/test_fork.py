"""A forked child raises an error that explains the fork if its parent used CUDA, and works otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cudnn_ct
from cudnn_ct.cuda import driver
from cudnn_ct.errors import NotInitializedError

# On a driver with one device, which counts its calls.
PROGRAM = """
import json, os, sys
from tests.unit.cuda_driver import install

driver = install()

import cudnn_ct as ct
from cudnn_ct.cuda import device as devices

if sys.argv[1] == "used":
    assert devices.device_count() == 1
reading, writing = os.pipe()
if os.fork() == 0:
    try:
        said = f"{devices.device_count()} device"
    except ct.NotInitializedError as error:
        said = str(error)
    os.write(writing, json.dumps([said, driver.names().count("cuDeviceGetCount")]).encode())
    os._exit(0)
os.wait()
assert devices.device_count() == 1  # the parent goes on
print(os.read(reading, 65536).decode())
"""


def output(program: str, *arguments: str) -> str:
    """Run a program in a process of its own, and return its output."""
    environ = {**os.environ, "PYTHONPATH": str(Path(cudnn_ct.__file__).parents[1])}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_child_of_a_process_that_used_cuda_raises() -> None:
    said, asked = json.loads(output(PROGRAM, "used"))
    assert "CUDA does not survive a fork" in str(said)
    assert "'spawn'" in str(said)
    assert asked == 1  # by the parent: the child touches nothing


def test_child_of_a_process_that_used_no_cuda_works() -> None:
    assert json.loads(output(PROGRAM, "unused")) == ["1 device", 1]


def test_error_explains_a_fork_when_another_library_used_cuda() -> None:
    error = RuntimeError("CUDA_ERROR_NOT_INITIALIZED: This indicates that the CUDA driver has not been ...")
    said = driver.as_cudnn_error(error, "counting the devices")
    assert isinstance(said, NotInitializedError)
    with pytest.raises(NotInitializedError, match=r"if this process was forked .* 'spawn' method"):
        raise said


THREADS = """
import os, sys, threading
from tests.unit.cuda_driver import install

driver = install()

import cudnn_ct as ct
from cudnn_ct.cuda import device as devices

def in_thread(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()

def set_and_count():
    ct.config.deterministic = True
    devices.device_count()

if os.fork() == 0:
    os._exit(0 if in_thread(set_and_count) else 1)
_, status = os.wait()
print(os.waitstatus_to_exitcode(status), in_thread(set_and_count))
"""

HELD = """
import os, threading
import cudnn_ct as ct
from cudnn_ct._config import Config

held, go = threading.Event(), threading.Event()
refresh = Config._refresh_snapshot

def slowly(self):
    held.set()
    go.wait(20)
    refresh(self)

Config._refresh_snapshot = slowly
thread = threading.Thread(target=setattr, args=(ct.config, "deterministic", True))
thread.start()
held.wait(20)
threading.Timer(0.2, go.set).start()
child = os.fork()
Config._refresh_snapshot = refresh
if child == 0:
    done = threading.Thread(target=setattr, args=(ct.config, "allow_tf32", False), daemon=True)
    done.start()
    done.join(20)
    os._exit(int(done.is_alive()))
_, status = os.waitpid(child, 0)
thread.join()
print(os.waitstatus_to_exitcode(status))
"""


def test_fork_holds_no_lock_in_other_threads_of_parent_and_child() -> None:
    assert output(THREADS) == "0 True"


def test_fork_waits_for_a_thread_that_changes_a_setting() -> None:
    assert output(HELD) == "0"
