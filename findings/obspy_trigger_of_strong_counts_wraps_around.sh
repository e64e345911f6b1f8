#!/usr/bin/env bash
# ObsPy's delayed_sta_lta of int32 counts has its largest value at another place than that of the same counts in float64, and can be negative.
#
# Expected: the same ratio, as classic_sta_lta and recursive_sta_lta return for both types. Seen with obspy 1.5.1 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-30:
# the samples are squared in their own type, so counts above 46340 wrap around in int32, and counts above 181 in int16; 24-bit digitisers
# have counts up to 8388607, and files are read as int32. classic_sta_lta_py and recursive_sta_lta_py do the same and return negative
# ratios. The docstrings only say "Seismic Trace". NumPy warns about some of the sums, not about the squares. Trace.trigger("delayedstalta")
# passes the counts unchanged, so the ratio of a strong earthquake rises later.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 setuptools==80.9.0 obspy==1.5.1
WORK="$work" "$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from obspy import Trace
from obspy.signal.trigger import classic_sta_lta, classic_sta_lta_py, delayed_sta_lta, recursive_sta_lta, recursive_sta_lta_py

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("obspy", "numpy")))
time = np.arange(600)
quiet = np.round(3000 * np.sin(0.7 * time))
strong = np.where((time >= 300) & (time < 380), np.round(120000 * np.sin(0.3 * time)), quiet)
same = True
for name, counts in (("quiet", quiet), ("with an event", strong)):
    for function in (classic_sta_lta, recursive_sta_lta, classic_sta_lta_py, recursive_sta_lta_py, delayed_sta_lta):
        integers, floats = (function(counts.astype(kind), 10, 50) for kind in (np.int32, np.float64))
        seen = [f"{values.min():.2f} to {values.max():.2f} at {values.argmax()}" for values in (integers, floats)]
        print(f"{name}, {function.__name__}: int32 {seen[0]}, float64 {seen[1]}")
        equal = np.allclose(integers, floats, rtol=1e-5, atol=1e-6)
        same &= bool(equal) == (name == "quiet" or function in (classic_sta_lta, recursive_sta_lta))
        same &= bool(floats.min() >= 0)
trace = Trace(strong.astype(np.int32))
trace.trigger("delayedstalta", sta=10, lta=50)
floats = delayed_sta_lta(strong, 10, 50)
print(f"Trace.trigger: first ratio above 10 at {np.flatnonzero(trace.data > 10)[:1].tolist()}; in float64 at {np.flatnonzero(floats > 10)[:1].tolist()}")
same &= np.array_equal(trace.data, delayed_sta_lta(strong.astype(np.int32), 10, 50))
small = np.round(quiet / 10)
integers, floats = (delayed_sta_lta(small.astype(kind), 10, 50) for kind in (np.int16, np.float64))
print(f"counts up to {int(np.abs(small).max())}: int16 {integers.min():.2f} to {integers.max():.2f}, float64 {floats.min():.2f} to {floats.max():.2f}")
same &= not np.allclose(integers, floats, rtol=1e-3)
if not same:
    sys.exit("the behaviour has changed")
print("as described: squares of counts wrap around")
PYTHON
