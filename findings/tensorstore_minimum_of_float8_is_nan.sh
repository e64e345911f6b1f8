#!/usr/bin/env bash
# TensorStore downsamples four of the float8 types to NaN with the methods "min" and "max", and every float8 and float4 type to 0 with "mean".
#
# Expected: the smallest number, the largest number and the mean, as for float16 and bfloat16, or an error. Seen with tensorstore 0.1.86,
# ml_dtypes 0.6.0 and NumPy 2.4.6 on a CPU: ts.downsample of float8_e4m3fn, float8_e4m3fnuz, float8_e4m3b11fnuz and float8_e5m2fnuz is NaN in
# every element with "min" and "max", and the input contains no NaN. These types have no infinity. float8_e5m2, float8_e3m4 and float4_e2m1fn
# are right there. The mean of ones is 0 for all seven types, also for blocks of two numbers. "median" and "mode" are right. A pyramid of
# float8 data is NaN or black at each level above the first.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0 tensorstore==0.1.86
"$work/venv/bin/python" - <<'PYTHON'
import sys

import ml_dtypes
import numpy as np
import tensorstore as ts

numbers = [1, 2, -3, 0.5]
finite_only = {"float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2fnuz"}
narrow = finite_only | {"float8_e5m2", "float8_e3m4", "float4_e2m1fn"}
changed = False
for name in ["float16", "bfloat16", *sorted(narrow)]:
    array = ts.array(np.array(numbers, np.float16 if name == "float16" else getattr(ml_dtypes, name)))
    nothing = [np.nan, np.nan]
    rows = {
        "min": nothing if name in finite_only else [1, -3],
        "max": nothing if name in finite_only else [2, 0.5],
        "mean": [0, 0] if name in narrow else [1.5, -1.25],
        "median": [1, -3],
        "mode": [1, -3],
    }
    seen = {method: np.asarray(ts.downsample(array, [2], method).read().result()).astype(np.float32) for method in rows}
    print(name + ":", ", ".join(f"{method} {result.tolist()}" for method, result in seen.items()))
    changed |= not all(np.array_equal(seen[method], rows[method], equal_nan=True) for method in rows)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the minimum and the maximum are NaN, the mean is 0")
PYTHON
