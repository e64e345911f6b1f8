#!/usr/bin/env bash
# In ndonnx, the cumulative product of the integers 2, 3, 5 and 7 is 2, 6, 29 and 209, and a negative number makes it the lowest integer.
#
# Expected: 2, 6, 30 and 210, as in NumPy and in the Python array API standard, which ndonnx implements. Seen with ndonnx 0.23.0, onnxruntime
# 1.32.0 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-29: the function adds logarithms, and truncates the exponential of the sum to an
# integer. A negative factor gives NaN for floats and -2**63 for integers from this factor on. ndonnx.prod of the same arrays is exact.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 ndonnx==0.23.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import ndonnx as ndx
import numpy as np

changed = False
lowest = -(2**63)
cases = [([2, 3, 5, 7], [2, 6, 29, 209]), ([2, -3, 5, 7], [2, lowest, lowest, lowest]), ([2.0, -3.0, 5.0], [2.0, np.nan, np.nan])]
for factors, wrong in cases:
    array = ndx.asarray(np.array(factors))
    seen = ndx.cumulative_prod(array).unwrap_numpy()
    product = ndx.prod(array).unwrap_numpy()
    print(f"{factors}: ndonnx {seen.tolist()}, NumPy {np.cumulative_prod(factors).tolist()}, ndonnx.prod {product}")
    changed |= not np.allclose(seen, wrong, rtol=1e-12, equal_nan=True) or product != np.prod(factors)
if changed:
    sys.exit("the behaviour has changed")
print("as described: cumulative products are sums of logarithms")
PYTHON
