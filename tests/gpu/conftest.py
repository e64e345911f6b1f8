"""What the GPU tests share."""

from __future__ import annotations

import fcntl
import importlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.errors import ExecutionFailedError
from cudnn_ct.shapes.specs import TensorSpec


@pytest.fixture(autouse=True)
def _some_tests_are_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """The processes of a run share the device. A test marked ``alone`` waits for the others, and they for it.

    Each test passes a gate, which a test marked ``alone`` closes: otherwise it would wait as long as other
    tests run.
    """
    if not hasattr(request.config, "workerinput"):
        yield
        return
    alone = request.node.get_closest_marker("alone") is not None
    with lock_file("room") as room:
        with lock_file("gate") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
        if alone:
            ct.empty_cache()


def lock_file(name: str) -> IO[bytes]:
    """A file whose lock ends with it, which all processes of this run open."""
    run = os.environ["PYTEST_XDIST_TESTRUNUID"]
    return (Path(tempfile.gettempdir()) / f"cudnn-ct-{run}-{name}").open("wb")


@pytest.fixture(autouse=True)
def _a_fault_fails_one_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """A kernel that reads what it may not ends the CUDA context, and every later test would fail with it."""
    yield
    try:
        ct.synchronize()
    except ExecutionFailedError as error:
        if hasattr(request.config, "workerinput"):
            os._exit(1)  # xdist says which test ended its process, and starts another
        pytest.exit(f"the CUDA context ended in {request.node.nodeid}: {error}", returncode=1)


def place(array: np.ndarray) -> ct.DeviceArray:
    """Copy a NumPy array and the gaps around its elements to the device: an array with the same strides."""
    memory = array if array.base is None else array.base
    flat = ct.asarray(np.ascontiguousarray(memory).reshape(-1))
    strides = tuple(s // array.itemsize for s in array.strides)
    spec = TensorSpec(array.shape, strides, as_dtype(array.dtype).name)
    low, high = spec.extent
    offset = array.ctypes.data - memory.ctypes.data
    assert offset + low * array.itemsize >= 0
    assert offset + high * array.itemsize <= flat.nbytes
    return ct.DeviceArray(spec, flat.pointer + offset, flat, flat.writer, flat.home)


@pytest.fixture(name="place")
def _place() -> Callable[[np.ndarray], ct.DeviceArray]:
    return place


def own_stream() -> Any:
    """Create a stream of the first device."""
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    return device.create_stream()


def captured(stream: Any, call: Callable[[], object]) -> Any:
    """Return a CUDA graph of the work that a call enqueues on a stream."""
    builder = stream.create_graph_builder().begin_building()
    call()
    return builder.end_building().complete()


def library(name: str):
    """A library that a test passes arrays to, or a skip that says it is not there."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else jax takes most of the memory
    try:
        with warnings.catch_warnings():  # of its own affairs
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{name} is not installed: {error}")
