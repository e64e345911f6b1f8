"""Kernels that fault, which end the CUDA context: each in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

# An array far from all memory, a call before the one that reads it, and the errors of both and of a third.
CHILD = """
import json, os, sys
sys.path.insert(0, {root!r})
import numpy as np
import cudnn_ct as ct

x, w = ct.asarray(np.ones((2, 8, 9, 10), np.float32)), ct.asarray(np.ones((8, 8, 3, 3), np.float32))
ct.synchronize()
bad = ct.DeviceArray.over(x.spec, x.pointer + 2**44, x, x.writer, x.home)
ct.activation(x)
try:
    {call}
    ct.synchronize()
except ct.CudnnError as error:
    told = dict(kind=type(error).__name__, text=str(error), function=error.function, notes=error.__notes__)
try:
    x.numpy()
    after = "fine"
except ct.ExecutionFailedError as error:
    after = error.__notes__[0]
print(json.dumps(told | dict(after=after)), flush=True)
os._exit(0)
"""


def fault(call: str, **environ: str) -> dict[str, Any]:
    """Return the report of a child about a call whose kernel faults."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(root=str(ROOT), call=call)],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_fault_is_raised_by_the_next_call_that_waits() -> None:
    told = fault("ct.softmax(bad)")
    assert told["kind"] == "ExecutionFailedError"
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in told["text"]
    assert told["text"].startswith("synchronizing Stream(legacy default, device=0) failed")
    assert any("with CUDNN_CT_DEBUG_SYNC=1 each operation is waited for" in note for note in told["notes"])
    assert "CUDNN_CT_DEBUG_SYNC=1" in told["after"]


def test_fault_names_its_call_when_debug_sync_is_on() -> None:
    told = fault("ct.softmax(bad)", CUDNN_CT_DEBUG_SYNC="1")
    assert told["kind"] == "ExecutionFailedError"
    assert told["function"] == "cudnnSoftmaxForward"
    assert told["text"].startswith("cudnnSoftmaxForward(")
    assert "failed on the device" in told["text"]
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in told["text"]
    ring = next(note for note in told["notes"] if note.startswith("launched before on Stream(legacy default"))
    assert "bytes to the device at 0x" in ring
    assert ring.splitlines()[-1].strip().startswith("cudnnSoftmaxForward(")
    assert any(note.startswith("in ") and "float32[2, 8, 9, 10]" in note for note in told["notes"])


def test_fault_of_a_convolution_is_not_attributed_to_a_later_call() -> None:
    told = fault("ct.conv(bad, w, padding=1)", CUDNN_CT_DEBUG_SYNC="1")
    assert told["kind"] == "ExecutionFailedError"
    assert told["function"] in ("cudnnBackendExecute", "cudnnConvolutionForward")
    assert told["text"].startswith(told["function"] + "(")
    assert "float32[2, 8, 9, 10]" in told["text"]
