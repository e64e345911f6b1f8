#!/usr/bin/env bash
# NumPy's nansum, nanmean, nanstd, nancumsum and nanargmax do not skip NaN in arrays of ml_dtypes; nanmax and nanmin do.
#
# Expected: that all functions named "nan..." ignore NaN, or none. Seen with NumPy 2.4.6 and ml_dtypes 0.6.0, for bfloat16 and three types of float8: the
# sum of [NaN, 1, 3] is NaN without a warning, its maximum is 3, and the place of the maximum is that of the NaN. NaN is replaced only in arrays whose scalar type is a subclass of
# `np.inexact`, and that of ml_dtypes is not.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import ml_dtypes
import numpy as np

SUMS, LIMITS = ("nansum", "nanmean", "nanstd", "nancumsum"), ("nanmax", "nanmin")
changed = []
for dtype in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fnuz):
    x = np.array([np.nan, 1, 3], dtype)
    found = {name: float(np.ravel(getattr(np, name)(x))[-1]) for name in (*SUMS, *LIMITS, "nanargmax")}
    print(f"{np.dtype(dtype).name:16}", " ".join(f"{name} {value:g}" for name, value in found.items()))
    skipped = dtype is np.float16
    if any(np.isnan(found[name]) == skipped for name in SUMS):
        changed.append(f"{np.dtype(dtype).name}: sums")
    if (found["nanmax"], found["nanmin"], found["nanargmax"]) != (3, 1, 2 if skipped else 0):
        changed.append(f"{np.dtype(dtype).name}: limits")
sys.exit(f"changed: {changed}" if changed else 0)
PYTHON
