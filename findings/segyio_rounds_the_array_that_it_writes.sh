#!/usr/bin/env bash
# segyio rounds the caller's array while it writes a file: 0.1 becomes 0.09999996 in memory. A float64 array stays as it was.
#
# Expected: from_array2D, from_array and an assignment to a trace only read the array. Seen with segyio 1.9.14 and NumPy 2.4.6 (x86-64 Linux)
# on 2026-11-30: the samples are converted to IBM floats in the memory of the array and converted back, and IBM floats have 21 to 24 bits. The
# format is the default of from_array2D. The docstrings do not mention it. Arrays that segyio copies first (float64, or traces that are not contiguous) are
# unchanged, and so are all arrays if the format is IEEE. No warning is given for float32. A network that trains on the array after it was saved gets
# other numbers than before, and a comparison of the file with the array finds no rounding error.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 segyio==1.9.14 setuptools==80.9.0
WORK="$work" "$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import os
import sys

import numpy as np
import segyio

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("segyio", "numpy")))
path = os.path.join(os.environ["WORK"], "traces.sgy")
numbers = np.array([0.1, 1.1, np.pi, -0.3])
rounded = np.array([0.09999996, 1.0999994, 3.141592, np.float32(-0.3)])


def described(name, array, row, expected):
    seen = array[row]
    print(f"{name}: {seen.tolist()}")
    return np.allclose(seen, expected, rtol=1e-7, atol=0)


same = True
for kind in ("f4", "f8"):
    traces = np.tile(numbers, (3, 1)).astype(kind)
    segyio.tools.from_array2D(path, traces)
    same &= described(f"{traces.dtype} after from_array2D", traces, 1, rounded if kind == "f4" else numbers)
with segyio.open(path, ignore_geometry=True) as file:
    same &= described("  the file", file.trace.raw[:], 1, rounded)
traces = np.tile(numbers, (3, 1)).astype("f4")
segyio.tools.from_array2D(path, traces, format=segyio.SegySampleFormat.IEEE_FLOAT_4_BYTE)
same &= described("float32 after from_array2D, IEEE format", traces, 1, numbers.astype("f4"))
cube = np.tile(numbers, (2, 2, 1)).astype("f4")
segyio.tools.from_array(path, cube)
same &= described("float32 after from_array", cube, (1, 1), rounded)
wider = np.tile(numbers, (6, 1)).astype("f4")
segyio.tools.from_array2D(path, wider[::2])
same &= described("row 0 of six after from_array2D of every second row", wider, 0, rounded)
same &= described("row 1", wider, 1, numbers.astype("f4"))
trace = numbers.astype("f4")
with segyio.open(path, "r+", ignore_geometry=True) as file:
    file.trace[0] = trace
same &= described("float32 after file.trace[0] = it", trace, slice(None), rounded)
if not same:
    sys.exit("the behaviour has changed")
print("as described: writing rounds the array of the caller")
PYTHON
