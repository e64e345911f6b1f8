#!/usr/bin/env bash
# In NumPy with ml_dtypes, sums of bfloat16 stop at 256 ones, and the mean of 1,000 ones is 0.256; products of matrices sum them right.
#
# Expected: about 1,000 and 1, as for float16, whose sums NumPy keeps in float32 and in pairs. Seen with NumPy 2.4.6 and ml_dtypes 0.6.0: `sum`,
# `mean`, `cumsum` and sums along either axis add element by element in bfloat16, where 256 + 1 is 256. `dot`, `@`, `inner`
# and `tensordot` of the same arrays return 1000. `sum(dtype=np.float32)` is right, `einsum` raises. A reference for bfloat16 that is
# written with `sum` is wrong, and the same one with `@` is right.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0
"$work/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
from ml_dtypes import bfloat16

n = 1000
half, brain = np.ones(n, np.float16), np.ones(n, bfloat16)
seen = {
    "float16 sum": float(half.sum()),
    "bfloat16 sum": float(brain.sum()),
    "bfloat16 mean": float(brain.mean()),
    "last of cumsum": float(np.cumsum(brain)[-1]),
    "sums of rows": float(np.ones((4, n), bfloat16).sum(axis=1)[0]),
    "sums of columns": float(np.ones((n, 4), bfloat16).sum(axis=0)[0]),
    "sum in float32": float(brain.sum(dtype=np.float32)),
    "dot": float(np.dot(brain, brain)),
    "@": float((brain[None] @ brain[:, None])[0, 0]),
    "tensordot": float(np.tensordot(brain, brain, 1)),
}
right = {
    "float16 sum": 1000.0, "bfloat16 sum": 256.0, "bfloat16 mean": 0.255859375, "last of cumsum": 256.0, "sums of rows": 256.0,
    "sums of columns": 256.0, "sum in float32": 1000.0, "dot": 1000.0, "@": 1000.0, "tensordot": 1000.0,
}
for name, value in seen.items():
    print(f"{name:16} {value:g}")
sys.exit(0 if seen == right else f"changed: {seen}")
PYTHON
