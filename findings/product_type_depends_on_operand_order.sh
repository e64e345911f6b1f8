#!/usr/bin/env bash
# The order of the operands decides the type of a product of two narrow types of ml_dtypes, and with it the values.
#
# Expected: a * b and b * a are equal, in the type that np.promote_types returns. Seen with NumPy 2.4.6 and ml_dtypes 0.6.0: the first
# operand decides. Block-scaled data in float4_e2m1fn times its float8_e4m3fn scales saturates at 6 as float4_e2m1fn, and int4 weights
# times such scales are int4, where 0.5 becomes 0. No warning is given. With the scales first, the products are in float8_e4m3fn.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0
"$work/venv/bin/python" -W error - <<'PYTHON'
import sys

import ml_dtypes
import numpy as np

expected = {
    "float4_e2m1fn": ([6.0, 6.0, 1.5, 6.0], [8.0, 16.0, 1.5, 96.0]),
    "int4": ([0.0, 0.0, 0.0, 0.0], [0.5, 1.0, 1.5, 3.0]),
}
scales = {"float4_e2m1fn": [8, 8, 0.5, 16], "int4": [0.5] * 4}
changed = False
for name, rows in expected.items():
    data = np.array([1, 2, 3, 6], getattr(ml_dtypes, name))
    scale = np.array(scales[name], ml_dtypes.float8_e4m3fn)
    data_first, scale_first = data * scale, scale * data
    promoted = np.promote_types(data.dtype, scale.dtype)
    print(f"{name} * float8_e4m3fn: {data_first.dtype} {data_first}")
    print(f"float8_e4m3fn * {name}: {scale_first.dtype} {scale_first}; np.promote_types: {promoted}")
    changed |= (data_first.dtype, scale_first.dtype, promoted) != (data.dtype, scale.dtype, scale.dtype)
    changed |= (data_first.astype(float).tolist(), scale_first.astype(float).tolist()) != rows
if changed:
    sys.exit("the behaviour has changed")
print("as described: the first operand decides the type")
PYTHON
