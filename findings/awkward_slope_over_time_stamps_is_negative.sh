#!/usr/bin/env bash
# Awkward Array's linear_fit of y = 2 * x with x from 1.7e9 to 1.7e9 + 9 has the slope -0.05; with x from 1e8 it is 2.15.
#
# Expected: 2, as from np.polyfit and from the same call with x from 0, since its corr and covar do not depend on the offset. Seen with Awkward Array 2.14.0
# and NumPy 2.4.6 on Linux: the sums of squares and of products are computed without subtracting the mean, and all digits cancel. 1.7e9 is a time stamp
# in seconds. The intercept and both errors, by which a user would notice, are as wrong or NaN. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 awkward==2.14.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import awkward as ak
import numpy as np

print(f"Awkward Array {ak.__version__}, NumPy {np.__version__}")
changed = False
for offset, slope in ((0, 2), (1e4, 2), (1e7, 1.9975786924939467), (1e8, 2.1484375), (1.7e9, -0.05035400390625)):
    x, y = offset + np.arange(10), 2.0 * np.arange(10) + 5
    fit = ak.linear_fit(ak.Array(x), ak.Array(y))
    right = np.polyfit(x - x.mean(), y, 1)[0]
    other = float(ak.covar(ak.Array(x), ak.Array(y)) / ak.var(ak.Array(x)))
    print(f"x from {offset:g}: slope {fit.slope:.6f} with error {fit.slope_error:.4f}; np.polyfit {right:.6f}, covar / var {other:.6f}")
    changed |= abs(fit.slope - slope) > 1e-6 or abs(right - 2) > 1e-6 or abs(other - 2) > 1e-6
if changed:
    sys.exit("the behaviour has changed")
print("as described: the slope depends on the offset")
PYTHON
