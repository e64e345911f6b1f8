"""Duration of the first convolution of a process with tuned algorithms on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from conv_rows import POLICIES
from harness.results import Record, explain

import cudnn_ct as ct

COMMAND = Path(__file__).with_name("conv.py")  # its --first-call prints the result of `first_call_ever`
PROCESSES = 5


def cache_record() -> Record:
    """Measure first calls of a tuned problem in new processes, in milliseconds, for each policy."""
    record: Record = {"section": "cache", "id": "cache", "times": {}, "errors": {}}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "algo_cache"
        try:
            record["first_ms"] = {"time": in_a_process("time", file, warm=True)}  # fills the file
            for state in ("warm", "cold"):
                times: dict[str, list[float]] = {name: [] for name in POLICIES}
                for name in list(POLICIES) * PROCESSES:
                    times[name].append(in_a_process(name, file, warm=state == "warm"))
                record["times"][state] = times
        except (RuntimeError, OSError) as error:
            record["errors"]["first call"] = explain(error)
    return record


def in_a_process(policy: str, file: Path, *, warm: bool) -> float:
    """Return the milliseconds of the first call in a new process with the algorithm cache in ``file``."""
    package = str(Path(ct.__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"CUDNN_CT_ALGO_CACHE": str(file), "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(COMMAND), "--first-call", policy, *(["--warm"] if warm else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}: {done.stderr[-1500:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["ms"])


def first_call_ever(policy: str, warm: bool) -> float:
    """Return the milliseconds of the first convolution of this process, or with ``warm`` of the second."""
    import numpy as np

    def operands(*shapes: tuple[int, ...]) -> list[Any]:
        return [ct.asarray(np.ones(shape, np.float16), layout="nhwc") for shape in shapes]

    x, w = operands((64, 64, 56, 56), (64, 64, 3, 3))
    if warm:
        ct.conv(*operands((8, 32, 28, 28), (32, 32, 3, 3)), padding=1)
    ct.synchronize()
    start = time.perf_counter()
    ct.conv(x, w, padding=1, algo=POLICIES[policy])
    ct.synchronize()
    return 1000 * (time.perf_counter() - start)
