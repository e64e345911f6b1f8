#!/usr/bin/env bash
# scipy.stats.tmean of a hundred bytes, all of them 100, is 0.16, and the paired t-test of two sets of bytes has the opposite sign.
#
# Expected: 100, as from np.mean and trim_mean, and the statistic of the same numbers as floats. Seen with SciPy 1.17.1 and NumPy 2.4.6 on Linux:
# tmean sums in the type of the array, so that the sum of 10000 is 16 in uint8 and int8; int16 fails from a sum of 32768 on. ttest_rel
# subtracts in uint8, so that each pixel that became brighter counts as much darker: the statistic is -1.46 and becomes 3.02. tvar, tstd,
# ttest_ind, trim_mean and describe convert to float64. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np
import scipy
from scipy import stats

print(f"SciPy {scipy.__version__}, NumPy {np.__version__}")
changed = False
for dtype, number, expected in (("uint8", 100, 0.16), ("int8", 100, 0.16), ("int16", 400, -255.36), ("int32", 400, 400), ("float32", 100, 100)):
    numbers = np.full(100, number, dtype)
    trimmed = float(stats.tmean(numbers))
    limited = float(stats.tmean(numbers, (0, number)))
    others = [float(np.mean(numbers)), float(stats.trim_mean(numbers, 0.1)), float(stats.describe(numbers).mean)]
    print(f"tmean of 100 times {number} in {dtype}: {trimmed:g}, with limits {limited:g}; mean, trim_mean and describe: {others}")
    changed |= not np.isclose(trimmed, expected) or not np.isclose(limited, expected) or others != [number] * 3
before, after = np.array([10, 20, 30, 41], np.uint8), np.array([11, 22, 33, 40], np.uint8)
for name, dtype, expected in (("ttest_rel", "uint8", 3.0157), ("ttest_rel", "float64", -1.4639), ("ttest_ind", "uint8", -0.1359)):
    statistic = float(getattr(stats, name)(before.astype(dtype), after.astype(dtype)).statistic)
    print(f"{name} in {dtype}: {statistic:.4f}")
    changed |= not np.isclose(statistic, expected, atol=1e-3)
if changed:
    sys.exit("the behaviour has changed")
print("as described: sums and differences wrap around")
PYTHON
