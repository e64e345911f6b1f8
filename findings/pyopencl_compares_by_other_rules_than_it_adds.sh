#!/usr/bin/env bash
# PyOpenCL arrays add integers of different types as NumPy does and compare them as C does: 1 is less than -2.
#
# Expected: one rule for both, because the type of a sum is chosen by NumPy: uint32 1 + int32 -2 is int64 -1. Seen with pyopencl 2026.1.4,
# pocl-binary-distribution 3.0 and NumPy 2.4.6 on a CPU: a comparison leaves the conversion to the OpenCL compiler, which converts the signed
# operand to an unsigned one. uint32 1 < int32 -2 is true, uint32 1 > int32 -2 is false, and uint64 2**64 - 1 equals int64 -1. 8 and 16 bits
# are right, because C widens them to int. int32 16777217 equals float32 16777216, because C compares both as float, and their difference is 1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 pyopencl==2026.1.4 pocl-binary-distribution==3.0
cat > "$work/comparisons.py" <<'PYTHON'
import sys

import numpy as np
import pyopencl
from pyopencl import array

platform = next(p for p in pyopencl.get_platforms() if "Portable" in p.name)
queue = pyopencl.CommandQueue(pyopencl.Context(platform.get_devices()))
print(f"pyopencl {pyopencl.VERSION_TEXT}, {platform.version.split()[3]}")
rows = [
    (np.uint8(1), np.int8(-2), (False, True, False)),
    (np.uint16(1), np.int16(-2), (False, True, False)),
    (np.uint32(1), np.int32(-2), (True, False, False)),
    (np.uint64(1), np.int64(-2), (True, False, False)),
    (np.uint64(2**64 - 1), np.int64(-1), (False, False, True)),
    (np.int32(2**24 + 1), np.float32(2**24), (False, False, True)),
]
changed = False
for a, b, expected in rows:
    x, y = (array.to_device(queue, np.full(1, number)) for number in (a, b))
    seen = tuple(bool(result.get()[0]) for result in (x < y, x > y, x == y))
    numpy_result = bool(a < b), bool(a > b), bool(a == b)
    total, difference = (x + y).get(), (x - y).get()
    print(f"{a.dtype} {a}, {b.dtype} {b}: <, >, == {seen}, NumPy {numpy_result}, sum {total.dtype} {total[0]}, difference {difference[0]}")
    changed |= seen != expected or total.dtype != np.result_type(a, b)
    changed |= a.dtype != np.uint64 and difference[0] != int(a) - int(b)
if changed:
    sys.exit("the behaviour has changed")
print("as described: comparisons have the rules of C")
PYTHON
HOME="$work" "$work/venv/bin/python" -W ignore "$work/comparisons.py" 2> "$work/errors" || { cat "$work/errors"; exit 1; }
