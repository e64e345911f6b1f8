"""Programs as users write them: processes that import one library and this package, never cuda.core.

Each scenario runs in a process of its own, checks its results against float64, and prints a line at the end.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PRELUDE = """
import ctypes, gc, os, sys, threading
import numpy as np

def operands():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 8, 16, 16)).astype(np.float32)
    w = rng.standard_normal((6, 8, 3, 3)).astype(np.float32)
    return x, w

def conv(x, w):
    "In float64, with a padding of 1."
    x, (h, v) = np.pad(x.astype(float), ((0, 0), (0, 0), (1, 1), (1, 1))), x.shape[2:]
    places = [(i, j) for i in range(3) for j in range(3)]
    w = w.astype(float)
    return sum(np.einsum("nchv,kc->nkhv", x[:, :, i:i + h, j:j + v], w[:, :, i, j]) for i, j in places)

def layers(x, w):
    "The results of `run` in float64."
    y = conv(x, w)
    axes = (0, 2, 3)
    normed = (y - y.mean(axes, keepdims=True)) / np.sqrt(y.var(axes, keepdims=True) + 1e-5)
    pooled = normed.reshape(*normed.shape[:2], 8, 2, 8, 2).max((3, 5))
    return y, np.maximum(y, 0), normed, pooled

def run(x, w, **where):
    y = ct.conv(x, w, padding=1, precision="float32", **where)
    ones, zeros = ct.full((6,), 1.0, **where), ct.zeros((6,), **where)
    normed = ct.batch_norm_training(y, ones, zeros, **where).y
    return y, ct.activation(y, **where), normed, ct.pool(normed, window=2, **where)

def check(got, expected):
    for one, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, wanted, rtol=2e-4, atol=2e-4)

def driver():
    "The driver by ctypes, as a C extension calls it."
    return ctypes.CDLL("libcuda.so.1")

def new_stream():
    stream = ctypes.c_void_p()
    assert driver().cuStreamCreate(ctypes.byref(stream), 1) == 0
    return stream.value

def destroy(stream):
    assert driver().cuStreamSynchronize(ctypes.c_void_p(stream)) == 0
    assert driver().cuStreamDestroy_v2(ctypes.c_void_p(stream)) == 0
"""

TORCH = """
import torch
x, w = operands()
expected = layers(x, w)
tx, tw = torch.tensor(x, device="cuda"), torch.tensor(w, device="cuda")
import cudnn_ct as ct
assert "cuda.core" not in sys.modules

def captured(work, stream, **options):
    "A graph of what `work` enqueues on a stream of torch."
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, **options):
        work()
    return graph
"""

CUPY = """
import cupy
x, w = operands()
expected = layers(x, w)
tx, tw = cupy.asarray(x), cupy.asarray(w)
import cudnn_ct as ct
"""

OURS = """
import cudnn_ct as ct
x, w = operands()
expected = layers(x, w)
"""


def told(scenario: str, library: str = "") -> str:
    """Run a scenario in a fresh process; return the last line that it prints."""
    if library and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    source = PRELUDE + {"torch": TORCH, "cupy": CUPY, "": OURS}[library] + textwrap.dedent(scenario)
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout.splitlines()[-1]


# --- one library -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["stream=", "use", "default"])
def test_torch_program_computes_on_its_streams(place: str) -> None:
    said = told(
        f"""
        from contextlib import nullcontext

        side = torch.cuda.Stream()
        where = dict(stream=side) if {place == "stream="} else {{}}
        for _ in range(3):
            with ct.use(stream=side) if {place == "use"} else nullcontext():
                results = run(tx, tw, **where)
            check([y.numpy() for y in results], expected)
            taken = [torch.from_dlpack(y) for y in results]
            del results
            check([y.cpu().numpy() for y in taken], expected)
            del taken
        out = torch.empty(expected[0].shape, device="cuda")
        got = ct.conv(tx, tw, padding=1, precision="float32", out=out, **where)
        assert got.pointer == ct.asarray(out).pointer
        check([out.cpu().numpy()], expected[:1])
        ct.empty_cache()
        print("torch computes")
        """,
        "torch",
    )
    assert said == "torch computes"


def test_torch_program_computes_in_threads_with_streams_of_their_own() -> None:
    said = told(
        """
        failures = []

        def work():
            side = torch.cuda.Stream()
            with torch.cuda.stream(side), ct.use(stream=side):
                for _ in range(10):
                    check([torch.from_dlpack(y).cpu().numpy() for y in run(tx, tw)], expected)
            done.append(True)

        done = []
        torch.cuda.synchronize()
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(len(done), "threads of torch")
        """,
        "torch",
    )
    assert said == "4 threads of torch"


@pytest.mark.parametrize("place", ["stream=", "use", "default"])
def test_cupy_program_computes_on_its_streams(place: str) -> None:
    said = told(
        f"""
        from contextlib import nullcontext

        cupy.cuda.runtime.deviceSynchronize()
        side = cupy.cuda.Stream(non_blocking=True)
        where = dict(stream=side) if {place == "stream="} else {{}}
        for _ in range(3):
            with ct.use(stream=side) if {place == "use"} else nullcontext():
                results = run(tx, tw, **where)
            check([y.numpy() for y in results], expected)
            taken = [cupy.from_dlpack(y) for y in results]
            del results
            check([y.get() for y in taken], expected)
            del taken
        ct.empty_cache()
        print("cupy computes")
        """,
        "cupy",
    )
    assert said == "cupy computes"


def test_program_without_another_library_computes_in_threads() -> None:
    said = told("""
        done = []

        def work():
            check([y.numpy() for y in run(ct.asarray(x), ct.asarray(w))], expected)
            stream = new_stream()
            for _ in range(3):
                check([y.numpy() for y in run(ct.asarray(x), ct.asarray(w), stream=stream)], expected)
            done.append(True)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        work()
        print(len(done), "threads")
    """)
    assert said == "5 threads"


# --- streams that are gone ---------------------------------------------------------------------------------


def test_plan_reports_facts_and_frees_its_workspace_when_its_stream_is_destroyed() -> None:
    said = told("""
        ours, filters = ct.asarray(x), ct.asarray(w)
        ct.synchronize()
        stream = new_stream()
        plan = ct.conv_plan(ours, filters, padding=1, precision="float32", algo="fft_tiling", stream=stream)
        assert plan.workspace
        y = plan(ours, filters, stream=stream)
        check([y.numpy()], expected[:1])
        del y
        plan(ours, filters)  # on the default stream
        destroy(stream)
        seen = []

        def ask():
            seen.append((plan.describe(), plan.workspace, str(plan.candidate), plan.fallback_reason))

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        ask()
        assert seen[0][1] == seen[1][1] > 0
        check([plan(ours, filters).numpy()], expected[:1])
        ct.empty_cache()
        del plan, ours, filters
        gc.collect()
        ct.empty_cache()
        check([y.numpy() for y in run(ct.asarray(x), ct.asarray(w))], expected)
        print("the stream is gone")
    """)
    assert said == "the stream is gone"


def test_process_forked_from_one_with_device_memory_frees_nothing() -> None:
    said = told("""
        stream = new_stream() if ct.zeros(1).numpy() == 0 else None
        arrays = [ct.full((2**20,), 1.0), ct.full((2**20,), 1.0, stream=stream), ct.full((3,), 1.0)]
        kept = [array.copy(stream=stream) for array in arrays] + list(run(ct.asarray(x), ct.asarray(w)))
        ct.synchronize()
        child = os.fork()
        if not child:
            del arrays, kept
            gc.collect()
            try:
                ct.zeros(3)
            except ct.NotInitializedError as error:
                os._exit(0 if "CUDA does not survive a fork" in str(error) else 3)
            os._exit(4)
        assert os.waitpid(child, 0)[1] == 0
        check([array.numpy() for array in kept[3:]], expected)
        print("the parent goes on")
    """)
    assert said == "the parent goes on"


# --- captures ----------------------------------------------------------------------------------------------


def test_capture_survives_dropped_arrays_that_another_stream_used() -> None:
    said = told(
        """
        from cuda.bindings import driver

        def used():  # by this process; the free memory of the device changes with other processes
            pool = driver.cuDeviceGetDefaultMemPool(0)[1]
            attribute = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
            return int(driver.cuMemPoolGetAttribute(pool, attribute)[1])

        side, other = torch.cuda.Stream(), torch.cuda.Stream()
        ours, filters = ct.asarray(x, stream=side), ct.asarray(w, stream=side)
        y = ct.conv(ours, filters, padding=1, precision="float32", stream=side)
        homes = (None, other, side)
        ct.empty_cache()
        before = used()
        dropped = [ct.full((2**20,), 1.0, stream=home) for home in homes]
        dropped += [array.copy(stream=stream) for array in dropped for stream in (side, other)]
        ct.synchronize()
        torch.cuda.synchronize()

        def work():
            dropped.clear()
            gc.collect()
            ct.conv(ours, filters, padding=1, precision="float32", out=y, stream=side)
            dropped.clear()

        graph = captured(work, side)
        y.fill(np.nan, stream=side)
        graph.replay()
        torch.cuda.synchronize()
        check([y.numpy()], expected[:1])
        ct.full((2**20,), 1.0).numpy()  # an ordinary call, which frees what waited
        ct.empty_cache()
        assert used() < before + 2**22  # each of the nine arrays has as much
        print("dropped in a capture")
        """,
        "torch",
    )
    assert said == "dropped in a capture"


@pytest.mark.parametrize("taken_on", ["default", "side", "capturing"])
def test_capture_survives_a_dropped_tensor_that_torch_took_by_dlpack(taken_on: str) -> None:
    said = told(
        f"""
        capturing, side = torch.cuda.Stream(), torch.cuda.Stream()
        consumer = dict(default=torch.cuda.default_stream(), side=side, capturing=capturing)["{taken_on}"]
        ours, filters = ct.asarray(x, stream=capturing), ct.asarray(w, stream=capturing)
        y = ct.conv(ours, filters, padding=1, precision="float32", stream=capturing)
        made = [ct.full((2**20,), 1.0, stream=home) for home in (None, side, capturing)]
        with torch.cuda.stream(consumer):
            taken = [torch.from_dlpack(array) for array in made]
            total = sum(tensor.sum().item() for tensor in taken)
        assert total == 3 * 2**20
        del made
        torch.cuda.synchronize()

        def work():
            taken.clear()
            gc.collect()
            ct.conv(ours, filters, padding=1, precision="float32", out=y, stream=capturing)

        graph = captured(work, capturing)
        y.fill(np.nan, stream=capturing)
        graph.replay()
        torch.cuda.synchronize()
        check([y.numpy()], expected[:1])
        print("lent and dropped in a capture")
        """,
        "torch",
    )
    assert said == "lent and dropped in a capture"


@pytest.mark.parametrize("warm", [False, True], ids=["first call", "second call"])
@pytest.mark.parametrize("place", ["default", "side"])
def test_capture_in_global_mode_survives_calls_of_another_thread(place: str, warm: bool) -> None:
    said = told(
        f"""
        capturing, side, other = (torch.cuda.Stream() for _ in range(3))
        where = dict(stream=side) if {place == "side"} else {{}}
        a = torch.ones(1000, device="cuda")
        problems = []

        def work():
            try:
                ours, filters = ct.asarray(x, **where), ct.asarray(w, **where)
                check([y.numpy() for y in run(ours, filters, **where)], expected)
                large = ct.full((2**22,), 0.1, "float64", **where)
                copy = large.copy(stream=other)
                assert (copy.numpy() == 0.1).all()
                del large, copy, ours, filters
                gc.collect()
                ct.synchronize()
            except BaseException as error:
                problems.append(error)

        def in_thread():
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

        if {warm}:
            in_thread()
        torch.cuda.synchronize()

        def capture():
            a.add_(1)
            in_thread()
            a.add_(1)

        graph = captured(capture, capturing, capture_error_mode="global")
        assert not problems, problems
        graph.replay()
        torch.cuda.synchronize()
        assert (a == 3).all()
        in_thread()
        assert not problems, problems
        print("captured beside calls")
        """,
        "torch",
    )
    assert said == "captured beside calls"


@pytest.mark.parametrize("size", [1, 3, 1000, 2**20 + 1])
def test_captured_fill_with_eight_bytes_is_replayed(size: int) -> None:
    said = told(
        f"""
        side = torch.cuda.Stream()
        y = ct.zeros({size}, "float64", stream=side)
        torch.cuda.synchronize()
        graph = captured(lambda: y.fill(0.1, stream=side), side)
        gc.collect()
        garbage = [np.full({size}, 7.0) for _ in range(20)]
        for _ in range(3):
            y.fill(0, stream=side)
            torch.cuda.synchronize()
            graph.replay()
            torch.cuda.synchronize()
            assert (y.numpy() == 0.1).all()
        print("filled", len(garbage))
        """,
        "torch",
    )
    assert said == "filled 20"
