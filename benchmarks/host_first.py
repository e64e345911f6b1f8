"""First calls, of a process and of a new shape, compared with the time that CUDA and cuDNN take."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import host_rows
from harness.results import Record

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct.cuda import stream

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 5  # processes of each kind
SHAPES = 40  # new shapes, the first of which are left out
KINDS = {"first call of a process": "process", "new shape": "shape"}
LIMIT_OF_PROCESS, LIMIT_OF_SHAPE = 300_000.0, 1_500.0  # microseconds

# Each prints seconds. The first creates a context of CUDA and a handle of
# cuDNN without this package, as every process that uses cuDNN does. The
# last adds up the time of a first call in the linker, the driver and cuDNN.
ALONE = """
import ctypes, sys
from time import perf_counter
start = perf_counter()
cuda = ctypes.CDLL("libcuda.so.1")
made = ctypes.c_void_p()
assert not cuda.cuInit(0)
assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(made), 0)
assert not cuda.cuCtxSetCurrent(made)
cudnn = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
handle = ctypes.c_void_p()
assert not cudnn.cudnnCreate(ctypes.byref(handle))
print(perf_counter() - start)
"""
OURS = """
import numpy as np
import cudnn_ct as ct
from time import perf_counter
x, w = np.ones((2, 8, 16, 16), "float16"), np.ones((8, 8, 3, 3), "float16")
start = perf_counter()
ct.conv(ct.asarray(x, layout="nhwc"), ct.asarray(w, layout="nhwc"), padding=1)
ct.synchronize()
print(perf_counter() - start)
"""
IN_C = """
import ctypes, cuda.bindings.driver
import numpy as np
from time import perf_counter
import cudnn_ct as ct
from cudnn_ct import _lib
from cudnn_ct.cuda import driver
spent = []
def timed(function):
    def call(*arguments, **keywords):
        start = perf_counter()
        try:
            return function(*arguments, **keywords)
        finally:
            spent.append(perf_counter() - start)
    return call
bound = _lib.Library._bound
_lib.Library._bound = lambda library, name: timed(bound(library, name))
ctypes.CDLL.__init__, driver.call = timed(ctypes.CDLL.__init__), timed(driver.call)
x, w = np.ones((2, 8, 16, 16), "float16"), np.ones((8, 8, 3, 3), "float16")
ct.conv(ct.asarray(x, layout="nhwc"), ct.asarray(w, layout="nhwc"), padding=1)
print(sum(spent))
"""


def first_record(name: str, rounds: int) -> Record:  # noqa: ARG001 - all rows take a number of rounds
    """Measure a first call in microseconds; "limit" is what it may take."""
    record = host_rows.room_of("first", name, "conv")
    record["times"] = process_times() if KINDS[name] == "process" else shape_times()
    return record


def process_times() -> dict[str, float]:
    """Return the time of the first call of a process, of it that in C, and that of a context and a handle."""
    library = str(ct.library_info().path)
    with tempfile.TemporaryDirectory() as folder:
        # Compiled modules, as an installation has them, from the first run, which is left out.
        environment = os.environ | {"PYTHONPYCACHEPREFIX": folder, "PYTHONPATH": str(ROOT)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)

        def seconds(code: str) -> float:
            command = [sys.executable, "-c", code, library]
            return float(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)

        runs = [(seconds(OURS), seconds(IN_C), seconds(ALONE)) for _ in range(ROUNDS + 1)][1:]
    ours, in_c, alone = (1e6 * statistics.median(times) for times in zip(*runs, strict=True))
    return {"ours": ours, "in_c": in_c, "alone": alone, "limit": LIMIT_OF_PROCESS}


def shape_times() -> dict[str, float]:
    """Return the time of the first call with a shape, of it that of cuDNN, and the time of the package."""
    import numpy as np

    w = ct.asarray(np.ones((8, 8, 3, 3), "float16"), layout="nhwc")
    calls = []
    with timed_library() as spent:
        for width in range(16, 16 + SHAPES):
            x = ct.asarray(np.ones((2, 8, width, 16), "float16"), layout="nhwc")
            spent.clear()
            start = perf_counter()
            ct.conv(x, w, padding=1)
            calls.append((perf_counter() - start, sum(spent)))
    whole, cudnn = (1e6 * statistics.median(times) for times in zip(*calls[5:], strict=True))
    return {"whole": whole, "cudnn": cudnn, "ours": whole - cudnn, "limit": LIMIT_OF_SHAPE}


@contextmanager
def timed_library() -> Iterator[list[float]]:
    """Time all functions of the library of this thread within a block; yield the list of their times."""
    ctx = context.current(stream.current_stream())
    library, spent = ctx.library, list[float]()
    bound = {name: function for name, function in vars(library).items() if name.startswith("cudnn")}

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            start = perf_counter()
            try:
                return function(*arguments)
            finally:
                spent.append(perf_counter() - start)

        return call

    for name, function in bound.items():
        setattr(library, name, timed(function))
    try:
        yield spent
    finally:
        for name, function in bound.items():
            setattr(library, name, function)
