"""Run a part of the GPU tests under compute-sanitizer: memcheck, then initcheck.

python -m pip install --target DIR "nvidia-cuda-sanitizer-api==13.0.*"     # not newer than the driver's CUDA
python tools/sanitizer.py --sanitizer DIR/nvidia/cu13/bin/compute-sanitizer
python tools/sanitizer.py --json benchmarks/results/reliability.json       # and store the figures

The default of ``--sanitizer`` is the compute-sanitizer on PATH. The folder ``--logs`` gets the full logs. The
exit code is 1 if tests fail or memcheck has findings. Findings of initcheck are only printed, since kernels
may load values that they do not use.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("-q", "-p", "no:cacheprovider", "tests/gpu/test_sanitized.py")
TOOLS = {
    # Also detect use of stream-ordered memory before its allocation or after its release.
    "memcheck": ("--padding", "64", "--track-stream-ordered-races", "all"),
    "initcheck": (),
}


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sanitizer", default=shutil.which("compute-sanitizer"))
    parser.add_argument("--logs", default=tempfile.gettempdir(), help="folder of the logs")
    parser.add_argument("--seconds", type=float, default=110, help="time limit of each tool")
    parser.add_argument("--json", help="store the figures in this file")
    options = parser.parse_args()
    if not options.sanitizer:
        print("compute-sanitizer is not on PATH; pass --sanitizer")
        return 2
    results = {}
    for tool in TOOLS:
        log = Path(options.logs, f"sanitizer-{tool}.log")
        results[tool] = run(options.sanitizer, tool, log, options.seconds)
        print(f"{tool}: {results[tool]} ({log})", flush=True)
    if options.json:
        sys.path.insert(0, str(ROOT / "tools"))
        from reliability import put, where

        put(options.json, "sanitizer", results | {"where": where()})
    return 0 if re.search(r"^\d+ passed.*; 0 errors$", results["memcheck"]) else 1


def run(sanitizer: str, tool: str, log: Path, seconds: float) -> str:
    """Run the tests under one tool, and return a summary of its findings."""
    command = [sanitizer, "--tool", tool, "--target-processes", "application-only", *TOOLS[tool]]
    command += ["--report-api-errors", "no", "--launch-timeout", "60", sys.executable, "-m", "pytest", *TESTS]
    with log.open("w", encoding="utf-8") as file:
        child = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            return f"not finished after {seconds:.0f} s"
    return summary(log.read_text(encoding="utf-8", errors="replace"))


def summary(text: str) -> str:
    """Return the counts of tests and errors in a log, and the kernels with the most errors."""
    tests = re.findall(r"^(\d+ (?:passed|failed|skipped|error).*?) in [\d.]+s", text, re.MULTILINE)
    errors = re.findall(r"ERROR SUMMARY: (\d+) error", text)
    if not tests or not errors:
        return "no result: see the log"
    kernels = Counter(re.findall(r"^=+ +at (?:0x\w+ in )?(?:void )?([\w:~]+)", text, re.MULTILINE))
    most = "".join(f", {count} in `{name}`" for name, count in kernels.most_common(3))
    return f"{tests[-1]}; {errors[-1]} errors{most}"


if __name__ == "__main__":
    sys.exit(main())
