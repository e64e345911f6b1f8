"""Time the doctor on the cuDNN of this Python: python tools/doctor_time.py [--slack FACTOR].

Prints the medians of the wall time and of the processor's time, and the largest memory, of several runs of
each mode, and whether the limits are met. Exits with 1 if the wall time is more than its limit times the
factor, or the memory is more than its limit. The modes are measured in turns, so that other programs slow
all of them down. A wall time far above the processor's shows that other programs ran. The limits hold for two
idle cores; elsewhere name a factor.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from statistics import median

RUNS = 11
# Seconds. Outside of CI, --shallow is the default.
LIMITS = {"--static": 0.25, "--shallow": 0.5, "--deep": 1.5}
MEMORY = 150  # MB


def main() -> int:
    """Run the command, and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--slack", type=float, default=1.0, help="a factor of the limits (default: 1)")
    slack = parser.parse_args().slack
    late = False
    turns = [{mode: _run(mode) for mode in LIMITS} for _ in range(RUNS + 1)]
    for mode, limit in LIMITS.items():
        runs = [turn[mode] for turn in turns[1:]]  # the first one reads the files, and compiles the modules
        seconds, busy = (median(row[place] for row in runs) for place in (0, 1))
        megabytes = max(row[2] for row in runs)
        late = late or seconds > limit * slack or megabytes > MEMORY
        verdict = "MISSED" if seconds > limit or megabytes > MEMORY else "met"
        time_text = f"{seconds:6.3f} s of {limit:.2f} s (processor {busy:.3f} s)"
        print(f"{mode:10} {time_text}  {megabytes:4.0f} MB of {MEMORY} MB  {verdict}")
    return int(late)


def _run(mode: str) -> tuple[float, float, float]:
    """Return the seconds of a run by the clock and of the processor, and the megabytes of its process."""
    # CI makes every mode read the files in full, as --deep does.
    without = ("PYTHONDONTWRITEBYTECODE", "CI")
    environ = {name: value for name, value in os.environ.items() if name not in without}
    command = [sys.executable, "-m", "cudnn_doctor", mode]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} exits with {process.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
