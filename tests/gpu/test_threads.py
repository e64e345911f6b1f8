"""Many threads on a GPU, processes that fork and that spawn, and threads that come and go."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct._config import config
from cudnn_ct.cli.selftest_cases import Case
from cudnn_ct.cuda import memory
from cudnn_ct.cuda import stream as streams
from tests.mixed import MixedCall, in_threads, make_mixed, mixed_calls

THREADS, EACH = 16, 2000
ROOT = Path(__file__).parents[2]


def wanted(case: Case) -> bool:
    """Every operation, in the dtype and the layout that take different ways."""
    plain = (case.dtype, case.layout) in (("float32", "nchw"), ("float16", "nhwc"))
    return plain and case.variant not in ("three axes", "one axis", "IEEE float32", "dilation 2", "algo none")


def sides(count: int) -> list[streams.Stream]:
    """Streams of the current device that live as long as this list does."""
    from cuda.core import Device

    device = Device(streams.current_device())
    device.set_current()
    made = [device.create_stream() for _ in range(count)]
    return [streams.as_stream(stream, device.device_id) for stream in made]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[MixedCall]:
    monkeypatch.setattr(config, "deterministic", True)
    monkeypatch.setattr(config, "allow_runtime_compilation", False)  # each thread would compile its own
    return mixed_calls(wanted)


def test_threads_compute_on_own_and_shared_streams(calls: list[MixedCall]) -> None:
    shared, own = [streams.default_stream(streams.current_device()), *sides(2)], sides(THREADS)
    begin = time.monotonic()
    in_threads(THREADS, lambda number: make_mixed(calls, EACH, number, (*shared, own[number])))
    seconds = round(time.monotonic() - begin, 1)
    ct.synchronize()
    if path := os.environ.get("CUDNN_CT_RELIABILITY"):
        from tools.reliability import put, where

        figures = {"threads": THREADS, "each": EACH, "calls": len(calls), "different": 0, "seconds": seconds}
        put(path, "threads", figures | {"where": where()})


@pytest.mark.alone  # what others take and give back counts too
def test_ended_threads_leave_no_memory(calls: list[MixedCall]) -> None:
    calls = calls[::5]

    def round_of_threads() -> int:
        in_threads(8, lambda number: make_mixed(calls, 20, number, (0,)))
        gc.collect()
        context.empty_cache()
        free, total = memory.memory_info(streams.current_device())
        return total - free

    for _ in range(3):
        before = round_of_threads()
    after = max(round_of_threads() for _ in range(8))
    assert after - before < 64 * 2**20, f"{after - before:,} bytes more after 64 threads"


def run(code: str, *arguments: object, path: Path | None = None) -> str:
    """Run a program in a fresh interpreter; what it printed."""
    command = [sys.executable, *([str(path)] if path else ["-c", code]), *map(str, arguments)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout


FIRST_USE = """
import threading
import numpy as np
import cudnn_ct as ct

rng = np.random.default_rng(0)
x = rng.integers(-3, 4, (2, 8, 12, 12)).astype(np.float32)
w = rng.integers(-2, 3, (8, 8, 3, 3)).astype(np.float32)
begin, results = threading.Barrier(16), []

def work():
    begin.wait()
    results.append(ct.conv(ct.asarray(x), ct.asarray(w), padding=1).numpy())

threads = [threading.Thread(target=work) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
expected = ct.reference.conv(x, w, padding=1)
assert len(results) == 16 and all(np.array_equal(y, expected) for y in results), len(results)
"""


def test_first_call_is_made_by_many_threads_at_once() -> None:
    run(FIRST_USE)


FORK = """
import json, os, sys, warnings
import numpy as np
import cudnn_ct as ct
warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside the driver's threads

x, w = ct.full((2, 4, 9, 9), 1.0), ct.full((3, 4, 3, 3), 1.0)
plan, out = ct.conv_plan(x, w), ct.conv(x, w)
plan(x, w, out=out)
large = ct.zeros((64, 1024, 1024))
network = ct.RNN("lstm", 4, 8)
weights, sequence = ct.full((network.weight_size,), 0.1), ct.full((3, 2, 4), 1.0)
network.forward(sequence, weights)
TRIES = {
    "an operation": lambda: ct.conv(x, w),
    "another operation": lambda: ct.pool(x, window=2),
    "a plan": lambda: plan(x, w),
    "a plan with out": lambda: plan(x, w, out=out),
    "a network": lambda: network.forward(sequence, weights),
    "to the host": x.numpy,
    "to the device": lambda: ct.asarray(np.zeros(3)),
    "new memory": lambda: ct.zeros((2, 3)),
    "waiting": ct.synchronize,
    "emptying": ct.empty_cache,
    "another stream": lambda: ct.conv(x, w, stream=0),
    "a block": lambda: ct.use(device=0).__enter__(),
}
reading, writing = os.pipe()
pid = os.fork()
if pid == 0:
    said = {}
    for name, attempt in TRIES.items():
        try:
            attempt()
            said[name] = "no error"
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
    said["available"] = ct.available().reason
    del large, out, plan, network, weights
    os.write(writing, json.dumps(said).encode())
    sys.exit(0)
os.close(writing)
said = b"".join(iter(lambda: os.read(reading, 65536), b""))
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
again = ct.conv(x, w).numpy()  # the parent goes on
assert (again == 36).all()
print(json.dumps({"status": status, "said": json.loads(said)}))
"""


def test_forked_child_gets_an_error_that_names_spawn() -> None:
    told = json.loads(run(FORK))
    assert told["status"] == 0, told
    for name, text in told["said"].items():
        assert "CUDA does not survive a fork" in text, (name, text)
        assert "spawn" in text, (name, text)


SPAWN = """
import multiprocessing
import numpy as np
import cudnn_ct as ct

def work(value):
    return float(ct.conv(ct.full((1, 2, 5, 5), value), ct.full((1, 2, 3, 3), 1.0)).numpy().max())

if __name__ == "__main__":
    assert work(1.0) == 18
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(work, [1.0, 2.0, 3.0]) == [18, 36, 54]
    print("good")
"""


def test_spawned_children_compute(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SPAWN)
    assert run("", path=program) == "good\n"


def test_dropout_of_a_thread_is_independent_of_other_threads() -> None:
    x = ct.full((64, 500), 1.0)

    def throws(seed: int) -> list[bytes]:
        state = ct.DropoutState(0.5, seed=seed)
        return [ct.dropout(x, state)[0].numpy().tobytes() for _ in range(5)]

    alone, together = [throws(seed) for seed in range(8)], {}
    in_threads(8, lambda seed: together.update({seed: throws(seed)}))
    assert [together[seed] for seed in range(8)] == alone
    assert len({np.frombuffer(rows[0]).tobytes() for rows in alone}) == 8
