#!/usr/bin/env bash
# ObsPy normalizes a trace that has the lowest integer to enormous numbers: -32768 and 5 become -6553.6 and 1.
#
# Expected: numbers from -1 to 1, as the docstring says, and as for the same trace in float64. Seen with obspy 1.5.1 and NumPy 2.4.6 (x86-64 Linux) on
# 2026-11-30: Trace.max, "the value of the absolute maximum", is 5 for these two samples, because the absolute value of -32768 in int16 is -32768.
# int32 and -2147483648 behave alike. A channel that is clipped at the negative end of its range has this number. Stream.normalize divides
# each trace by it, with global_max=True as well. NumPy gives a RuntimeWarning for the overflow, and no error is raised.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 setuptools==80.9.0 obspy==1.5.1
WORK="$work" "$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from obspy import Stream, Trace

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("obspy", "numpy")))
same = True
for kind, lowest in ((np.int16, -(2**15)), (np.int32, -(2**31))):
    for first, wraps in ((lowest, True), (lowest + 1, False)):
        samples = [first, 5, -3]
        for other in (kind, np.float64):
            trace = Trace(np.array(samples, other))
            largest = float(trace.max())
            result = trace.normalize().data
            print(f"{np.dtype(other)} {samples}: max {largest:g}, normalized {np.round(result, 6).tolist()}")
            wrong = wraps and other is kind
            same &= largest == (5 if wrong else first) and np.allclose(result, np.array(samples) / (5 if wrong else -first))
stream = Stream([Trace(np.array([-32768, 5], np.int16)), Trace(np.array([100, 200], np.int16))]).normalize(global_max=True)
print(f"a stream by its global maximum: {[np.round(trace.data, 6).tolist() for trace in stream]}")
same &= bool(np.isclose(stream[0].data[0], -32768 / 200))
if not same:
    sys.exit("the behaviour has changed")
print("as described: the lowest integer is not counted as the largest number")
PYTHON
