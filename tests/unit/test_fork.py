"""A forked child raises an error that explains the fork if its parent used CUDA, and works otherwise."""

from __future__ import annotations

import ctypes
import json
import os

import pytest

from cudnn_ct._handle import NativeHandle
from cudnn_ct.cuda import driver
from cudnn_ct.errors import NotInitializedError
from tests.processes import run_python

# Parent and child count the devices in a new thread, on a driver of one device.
COUNTS = """
import json, os, sys, threading
from tests.unit.cuda_driver import install

driver = install()

import cudnn_ct as ct
from cudnn_ct.cuda import stream as devices

def count():
    ct.config.deterministic = True
    try:
        answer.append(f"{devices.device_count()} device")
    except ct.NotInitializedError as error:
        answer.append(str(error))
    answer.append(driver.calls.count("cuDeviceGetCount"))

if sys.argv[1] == "used":
    devices.device_count()
answer = []
child = os.fork()
thread = threading.Thread(target=count, daemon=True)
thread.start()
thread.join(20)
if not child:
    print(json.dumps(answer), flush=True)
    os._exit(0)
os.wait()
assert answer == ["1 device", 1], answer
"""


def output(program: str, *arguments: str) -> str:
    """Run a program in a process of its own, and return its output."""
    done = run_python("-c", program, *arguments, timeout=90)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.strip()


def test_child_raises_without_calling_the_driver_when_its_parent_used_cuda() -> None:
    message, calls = json.loads(output(COUNTS, "used"))
    assert "CUDA does not survive a fork" in message
    assert "'spawn'" in message
    assert calls == 1  # by the parent


def test_child_works_when_its_parent_did_not_use_cuda() -> None:
    assert json.loads(output(COUNTS, "unused")) == ["1 device", 1]


def test_error_explains_a_fork_when_another_library_used_cuda() -> None:
    error = RuntimeError("CUDA_ERROR_NOT_INITIALIZED: This indicates that the CUDA driver has not been ...")
    converted = driver.as_cudnn_error(error, "counting the devices")
    with pytest.raises(NotInitializedError, match=r"if this process was forked .* 'spawn' method"):
        raise converted


def test_child_does_not_destroy_a_native_object_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    destroyed: list[object] = []
    handle = NativeHandle(ctypes.c_void_p(5), destroyed.append)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    handle.close()
    assert destroyed == []


# The parent forks within `ct.use`, with a prepared call, while another thread holds a lock of the package.
# The main thread of the child waits for it: a new thread could have the number of that one, and so the lock.
USED = """
import os, signal, sys, threading
from tests.fake.installed import cudnn_installed, host_installed

with host_installed() as host, cudnn_installed(host):
    import cudnn_ct as ct
    from cudnn_ct.cuda import lifetime

    host.devices = 1  # where the current device is not asked for
    with ct.use(stream=0x55):
        x, y = ct.full((2, 3, 4, 5), 1.0), ct.full((2, 3, 4, 5), 1.0)
        ct.activation(x, out=y)
        held, go = threading.Event(), threading.Event()

        def hold():
            with lifetime.noting:
                held.set()
                go.wait(60)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        calls, child = len(host.calls), os.fork()
        if not child:
            signal.alarm(20)
            x.transpose()
            try:
                ct.activation(x, out=y)
            except ct.NotInitializedError as error:
                said = "CUDA does not survive a fork" in str(error)
                os._exit(0 if said and len(host.calls) == calls else 3)
            os._exit(4)
        go.set()
        holder.join()
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_child_may_view_arrays_of_its_parent_and_makes_no_calls() -> None:
    output(USED)


# Memory whose release waits for a kernel when the process ends, of the parent and of its child.
EXIT = """
import os, sys
from tests.unit.cuda_driver import install

install()
import cudnn_ct as ct
from cudnn_ct.cuda.stream import as_stream

arrays = [ct.empty((2, 3), stream=stream) for stream in (0x55, None)]
for array in arrays:
    array.record_use(as_stream(0x66, 0))
child = os.fork()
if not child:
    del array, arrays
    sys.exit()
assert not os.waitpid(child, 0)[1]
"""


def test_process_ends_in_silence_while_memory_is_in_use() -> None:
    output(EXIT)


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


def test_fork_waits_for_a_thread_that_changes_a_setting() -> None:
    assert output(HELD) == "0"


FORK_DURING_IMPORT = """
import faulthandler, os, sys, threading, time
from tests.unit.cuda_driver import install

made = install()
import cudnn_ct as ct
ct.empty  # imports the modules that notice a fork

importing, bindings = threading.Event(), sys.modules["cuda.bindings"]

def slowly(name):
    importing.set()
    time.sleep(1)
    return made

del bindings.driver
bindings.__getattr__ = slowly
thread = threading.Thread(target=ct.zeros, args=(3,))
thread.start()
importing.wait()
child = os.fork()
if not child:
    faulthandler.dump_traceback_later(20, exit=True)
    try:
        ct.zeros(3)
    except ct.NotInitializedError as error:
        os._exit(0 if "CUDA does not survive a fork" in str(error) else 3)
    os._exit(4)
thread.join()
assert os.waitpid(child, 0)[1] == 0
assert ct.zeros(3).numpy().tolist() == [0, 0, 0]  # the parent goes on
"""


def test_child_raises_when_another_thread_imported_cuda_during_the_fork() -> None:
    output(FORK_DURING_IMPORT)
