"""Programs as users write them: processes that import one library and this package, never cuda.core.

Each scenario runs in its own process, checks its results, and prints "done" at the end.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

OPERANDS = """
import ctypes, gc, json, os, sys
import numpy as np

rng = np.random.default_rng(0)
x = rng.integers(-3, 4, (4, 8, 16, 16)).astype(np.float32)
w = rng.integers(-2, 3, (6, 8, 3, 3)).astype(np.float32)
"""

LIBRARIES = {
    "": "",
    "torch": """
import torch
def captured(work, stream, **options):
    "A graph of what `work` enqueues on a stream of torch."
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, **options):
        work()
    return graph

torch.ones(1, device="cuda")
""",
    "cupy": """
import cupy
tx, tw = cupy.asarray(x), cupy.asarray(w)
""",
}

PRELUDE = """
import cudnn_ct as ct
from tests.mixed import in_threads
assert "cuda.core" not in sys.modules

def run(x, w, operations=ct, **where):
    y = operations.conv(x, w, padding=1, **where)
    return y, operations.activation(y, **where), operations.pool(y, window=2, **where)

expected = run(x, w, ct.reference)

def check(got):
    for one, wanted in zip(got, expected):
        np.testing.assert_allclose(one, wanted, atol=0.1)  # of integers

def new_stream():
    "Create a stream by ctypes, as a C extension does."
    stream = ctypes.c_void_p()
    assert ctypes.CDLL("libcuda.so.1").cuStreamCreate(ctypes.byref(stream), 1) == 0
    return stream.value
"""


def run(scenario: str, library: str = "") -> None:
    """Run a scenario in a fresh process."""
    if library and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    source = OPERANDS + LIBRARIES[library] + PRELUDE + textwrap.dedent(scenario) + "\nprint('done')\n"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=300, env=ENVIRONMENT
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    assert done.stdout.endswith("done\n")


# --- one library -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["stream=", "use", "default"])
def test_cupy_program_computes_on_its_streams(place: str) -> None:
    run(
        f"""
        from contextlib import nullcontext

        cupy.cuda.runtime.deviceSynchronize()
        side = cupy.cuda.Stream(non_blocking=True)
        where = dict(stream=side) if {place == "stream="} else {{}}
        for _ in range(3):
            with ct.use(stream=side) if {place == "use"} else nullcontext():
                results = run(tx, tw, **where)
            check([y.numpy() for y in results])
            taken = [cupy.from_dlpack(y) for y in results]
            del results
            check([y.get() for y in taken])
            del taken
        ct.empty_cache()
        """,
        "cupy",
    )


def test_first_calls_are_made_by_many_threads_at_once() -> None:
    run("""
        def work(_):
            check([y.numpy() for y in run(ct.asarray(x), ct.asarray(w))])
            stream = new_stream()
            for _ in range(3):
                check([y.numpy() for y in run(ct.asarray(x), ct.asarray(w), stream=stream)])

        in_threads(16, work)
        work(0)
    """)


# --- other processes ---------------------------------------------------------------------------------------


def test_forked_child_frees_nothing_and_gets_an_error_that_names_spawn() -> None:
    run("""
        import warnings

        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork of a process with threads
        ours, filters = ct.asarray(x), ct.asarray(w)
        plan, out = ct.conv_plan(ours, filters, padding=1), ct.conv(ours, filters, padding=1)
        plan(ours, filters, out=out)
        network = ct.RNN("lstm", 4, 8)
        weights, sequence = ct.full((network.weight_size,), 0.1), ct.full((3, 2, 4), 1.0)
        network.forward(sequence, weights)
        stream = new_stream()
        arrays = [ct.full((2**20,), 1.0), ct.full((2**20,), 1.0, stream=stream), ct.full((3,), 1.0)]
        kept = [array.copy(stream=stream) for array in arrays]
        ct.synchronize()
        attempts = {
            "an operation": lambda: ct.conv(ours, filters, padding=1),
            "a plan": lambda: plan(ours, filters),
            "a network": lambda: network.forward(sequence, weights),
            "to the host": ours.numpy,
            "to the device": lambda: ct.asarray(np.zeros(3)),
            "new memory": lambda: ct.zeros((2, 3)),
            "waiting": ct.synchronize,
            "emptying": ct.empty_cache,
            "a block": lambda: ct.use(device=0).__enter__(),
        }
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            reports = {"available": ct.available().reason}
            for name, attempt in attempts.items():
                try:
                    attempt()
                    reports[name] = "no error"
                except Exception as error:
                    reports[name] = f"{type(error).__name__}: {error}"
            del arrays, kept, out, plan, network, weights
            gc.collect()
            os.write(writing, json.dumps(reports).encode())
            sys.exit(0)
        os.close(writing)
        reports = json.loads(b"".join(iter(lambda: os.read(reading, 65536), b"")))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for name, text in reports.items():
            assert "CUDA does not survive a fork" in text and "spawn" in text, (name, text)
        check([ct.conv(ours, filters, padding=1).numpy()])  # the parent goes on
        assert all((array.numpy() == 1).all() for array in kept)
    """)


SPAWN = """
import multiprocessing
import cudnn_ct as ct

def work(value):
    return float(ct.conv(ct.full((1, 2, 5, 5), value), ct.full((1, 2, 3, 3), 1.0)).numpy().max())

if __name__ == "__main__":
    assert work(1.0) == 18
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(work, [1.0, 2.0, 3.0]) == [18, 36, 54]
"""


def test_spawned_children_compute(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SPAWN)
    subprocess.run([sys.executable, program], env=ENVIRONMENT, check=True, timeout=120)


# --- captures ----------------------------------------------------------------------------------------------


def test_capture_survives_dropped_arrays_that_other_streams_and_torch_used() -> None:
    run(
        """
        from cuda.bindings import driver

        def used():  # by this process; the free memory of the device changes with other processes
            pool = driver.cuDeviceGetDefaultMemPool(0)[1]
            attribute = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
            return int(driver.cuMemPoolGetAttribute(pool, attribute)[1])

        capturing, other = torch.cuda.Stream(), torch.cuda.Stream()
        ours, filters = ct.asarray(x, stream=capturing), ct.asarray(w, stream=capturing)
        y = ct.conv(ours, filters, padding=1, stream=capturing)
        homes = (None, other, capturing)
        ct.empty_cache()
        before = used()
        dropped = [ct.full((2**20,), 1.0, stream=home) for home in homes]
        dropped += [array.copy(stream=stream) for array in dropped for stream in (capturing, other)]
        for consumer in (torch.cuda.default_stream(), other, capturing):
            lent = [ct.full((2**20,), 1.0, stream=home) for home in homes]
            with torch.cuda.stream(consumer):
                dropped += [torch.from_dlpack(array) for array in lent]
                assert sum(tensor.sum().item() for tensor in dropped[-3:]) == 3 * 2**20
        del lent
        ct.synchronize()
        torch.cuda.synchronize()

        def work():
            dropped.clear()
            gc.collect()
            ct.conv(ours, filters, padding=1, out=y, stream=capturing)

        graph = captured(work, capturing)
        y.fill(np.nan, stream=capturing)
        graph.replay()
        torch.cuda.synchronize()
        check([y.numpy()])
        ct.full((2**20,), 1.0).numpy()  # an ordinary call, which frees the memory that waited
        ct.synchronize()
        ct.empty_cache()
        assert used() < before + 2**22  # each of the dropped arrays has as much
        """,
        "torch",
    )


@pytest.mark.parametrize("warm", [False, True], ids=["first call", "second call"])
@pytest.mark.parametrize("place", ["default", "side"])
def test_capture_in_global_mode_survives_calls_of_another_thread(place: str, warm: bool) -> None:
    run(
        f"""
        capturing, side, other = (torch.cuda.Stream() for _ in range(3))
        where = dict(stream=side) if {place == "side"} else {{}}
        a = torch.ones(1000, device="cuda")

        def work(_):
            ours, filters = ct.asarray(x, **where), ct.asarray(w, **where)
            check([y.numpy() for y in run(ours, filters, **where)])
            large = ct.full((2**22,), 0.1, "float64", **where)
            copy = large.copy(stream=other)
            assert (copy.numpy() == 0.1).all()
            del large, copy, ours, filters
            gc.collect()
            ct.synchronize()

        if {warm}:
            in_threads(1, work)
        torch.cuda.synchronize()

        def capture():
            a.add_(1)
            in_threads(1, work)
            a.add_(1)

        graph = captured(capture, capturing, capture_error_mode="global")
        graph.replay()
        torch.cuda.synchronize()
        assert (a == 3).all()
        in_threads(1, work)
        """,
        "torch",
    )
