"""Time the doctor on the cuDNN of this Python: python tools/doctor_time.py [--slack FACTOR].

Prints the median and the shortest wall time and the largest memory of several runs of each mode, and whether
the limits are met. Exits with 1 if the median is more than its limit times the factor, or the memory is more
than its limit. A shortest time far below the median shows that other programs ran. The limits hold for two
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
    for mode, limit in LIMITS.items():
        runs = [_run(mode) for _ in range(RUNS + 1)][1:]  # the first one reads the files from the disk
        times, megabytes = [row[0] for row in runs], max(row[1] for row in runs)
        seconds = median(times)
        late = late or seconds > limit * slack or megabytes > MEMORY
        verdict = "MISSED" if seconds > limit or megabytes > MEMORY else "met"
        time_text = f"{seconds:6.3f} s of {limit:.2f} s (shortest {min(times):.3f} s)"
        print(f"{mode:10} {time_text}  {megabytes:4.0f} MB of {MEMORY} MB  {verdict}")
    return int(late)


def _run(mode: str) -> tuple[float, float]:
    """Return the seconds of a run, and the megabytes of its largest process."""
    command = [sys.executable, "-m", "cudnn_ct.doctor", mode]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} exits with {process.returncode}")
    return seconds, usage.ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
