"""Compile graphs for described GPUs without a GPU, and compare the time with that of cuDNN's own calls.

python benchmarks/offline.py                       # 40 graphs of tests/support_graphs.json for five GPUs
python benchmarks/offline.py --graphs 10 --gpu t4

Takes every second graph of the list, which begins with one graph of each kind. Each GPU has a child process.
``ratio`` is the time of compiling, with the heuristics, the checks and the file, divided by the time inside
cudnnBackendFinalize, which compiles, and cudnnBackendGetAttribute, which writes the plan. Exits with 1 if a
process crashes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GRAPHS = ROOT / "tests" / "support_graphs.json"
GPUS = ("a100", "l4", "h200", "b200", "rtx5090")
TIMED = ("cudnnBackendFinalize", "cudnnBackendGetAttribute")
sys.path.insert(0, str(ROOT))


class Timed:
    """A cuDNN that adds up the time inside some of its functions."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        if name not in TIMED:
            return function

        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graphs", type=int, default=40)
    parser.add_argument("--gpu", action="append", help=f"by default {', '.join(GPUS)}")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.gpu[0], options.graphs)
    crashes = 0
    for gpu in options.gpu or GPUS:
        command = [sys.executable, __file__, "--child", "--gpu", gpu, "--graphs", str(options.graphs)]
        done = subprocess.run(command, capture_output=True, text=True)
        crashes += done.returncode != 0
        words = f"crash: exit status {done.returncode}, {done.stderr.strip()[-200:]}"
        print(f"{gpu:8} {done.stdout.strip().splitlines()[-1] if not done.returncode else words}", flush=True)
    return int(crashes > 0)


def child(gpu: str, count: int) -> int:
    """Compile graphs for one GPU, and print the numbers and times."""
    from cudnn_ct.cli.compile_child import compile_request
    from cudnn_ct.errors import CudnnError, format_version
    from cudnn_ct.graph.gpus import description_of
    from cudnn_ct.graph.offline import Planner
    from cudnn_ct.graph.plan_store import encode
    from cudnn_ct.graph.recording import read_requests
    from tests.lib.test_graph import load_stub

    load_stub()
    planner = Planner(description_of(gpu))
    planner.library = library = Timed(planner.library)  # type: ignore[assignment]
    requests = read_requests(json.loads(GRAPHS.read_text(encoding="utf-8")))[: 2 * count : 2]
    compiled, rejected, size, start = 0, 0, 0, time.perf_counter()
    for request in requests:
        try:
            size += len(encode(compile_request(request, planner)))
            compiled += 1
        except CudnnError:
            rejected += 1
    seconds = time.perf_counter() - start
    print(
        f"cuDNN {format_version(library.cudnnGetVersion())}: {compiled} compiled, {rejected} rejected, "
        f"{size:,} bytes, {seconds:.1f} s, {library.seconds:.1f} s inside cuDNN, "
        f"ratio {seconds / library.seconds:.2f}"
    )
    sys.stdout.flush()
    os._exit(0)  # the destructors of the libraries may fail with a stub for a driver


if __name__ == "__main__":
    sys.exit(main())
