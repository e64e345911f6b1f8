#!/usr/bin/env bash
# In PyTensor's default mode, max and min skip NaN; argmax of the same array returns the place of the NaN, and maximum returns NaN.
#
# Expected: NaN, as NumPy 2.4.6, and PyTensor in the modes FAST_COMPILE and CVM, return for the same graph. Seen with pytensor 3.0.7 and
# numba 0.65.1 (CPU, x86-64 Linux) on 2026-11-29: the maximum of 1, NaN and 3 is 3, the minimum is 1, and the maximum of three NaN is
# -infinity. The default mode compiles with Numba; its option fastmath does not change this. A check for NaN by the maximum of an array
# finds it in FAST_COMPILE and misses it in the default mode.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 numba==0.65.1 pytensor==3.0.7
cd "$work"  # folders of the caller are no modules
HOME="$work" "$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt

x = pt.dvector("x")
nan, inf = np.nan, np.inf
changed = False
for mode, expected in ((None, [[3, 1, 1, nan], [-inf, inf, 0, nan]]), ("FAST_COMPILE", [[nan, nan, 1, nan], [nan, nan, 0, nan]])):
    function = pytensor.function([x], [pt.max(x), pt.min(x), pt.argmax(x), pt.maximum(x[0], x[1])], mode=mode)
    seen = [[float(y) for y in function(np.array(numbers))] for numbers in ([1, nan, 3], [nan, nan, nan])]
    print(f"mode {mode}: max, min, argmax and maximum of 1, NaN, 3 and of three NaN: {seen}")
    changed |= not np.array_equal(seen, expected, equal_nan=True)
if changed:
    sys.exit("the behaviour has changed")
print("as described: max and min skip NaN in the default mode only")
PYTHON
