#!/usr/bin/env bash
# np.sort does not sort arrays of the float types of ml_dtypes that have a NaN.
#
# Expected: NaN goes to the end, and the numbers are in order, as for float16. Seen with NumPy 2.4.6 and ml_dtypes 0.6.0: a NaN of
# bfloat16 or of an eight-bit float ends up inside the array, and only the numbers on each side of it are in order. np.unique then
# returns a number twice, and np.partition puts the wrong number first. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0
"$work/venv/bin/python" -W error - <<'PYTHON'
import sys

import ml_dtypes
import numpy as np


def rows(dtype):
    data = np.array([5, 4, np.nan, 2, 1, 3, 5], np.float32).astype(dtype)
    results = [np.sort(data), np.sort(data, kind="stable"), np.unique(data), np.partition(data, 0)[:1]]
    return [result.astype(float).tolist() for result in results]


sorted_right, split = [1, 2, 3, 4, 5, 5, np.nan], [4, 5, np.nan, 1, 2, 3, 5]
right = [sorted_right, sorted_right, [1, 2, 3, 4, 5, np.nan], [1]]
wrong = [split, split, split, [4]]
changed = False
for dtype in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
    seen = rows(dtype)
    print(np.dtype(dtype).name, *seen)
    changed |= str(seen) != str([[float(x) for x in row] for row in (right if dtype is np.float16 else wrong)])
if changed:
    sys.exit("the behaviour has changed")
print("as described: the numbers on the two sides of a NaN are not merged")
PYTHON
