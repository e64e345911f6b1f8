#!/usr/bin/env bash
# PyTorch's casts to eight-bit floats hide an infinity in float8_e4m3fn only, and drop the sign in float8_e8m0fnu.
#
# Expected: infinity becomes infinity or NaN in all types, as in ml_dtypes, even if finite numbers saturate; negative numbers, which float8_e8m0fnu
# cannot represent, become NaN. Seen with torch 2.13.0, ml_dtypes 0.6.0 and NumPy 2.4.6 on a CPU: in float8_e4m3fn infinity becomes 448, in
# float8_e4m3fnuz and float8_e5m2fnuz NaN, in float8_e5m2 infinity, and 1e9 becomes the same as infinity in each. In float8_e8m0fnu, -3 becomes
# 4 and 0 becomes 2**-127, where ml_dtypes returns NaN. An overflow before the cast cannot be seen after it, and a block with a
# negative scale changes its sign.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0 torch==2.13.0
"$work/venv/bin/python" - <<'PYTHON'
import sys

import ml_dtypes
import numpy as np
import torch

inf, nan = float("inf"), float("nan")
values = [1e9, inf, -inf]
tiny = 2.0**-127
expected = {
    "float8_e4m3fn": (values, [448.0, 448.0, -448.0], [nan, nan, nan]),
    "float8_e4m3fnuz": (values, [nan, nan, nan], [nan, nan, nan]),
    "float8_e5m2": (values, [inf, inf, -inf], [inf, inf, -inf]),
    "float8_e5m2fnuz": (values, [nan, nan, nan], [nan, nan, nan]),
    "float8_e8m0fnu": ([-3.0, -1.0, 0.0, inf], [4.0, 1.0, tiny, nan], [nan, nan, nan, nan]),
}
changed = False
for name, (inputs, in_torch, in_numpy) in expected.items():
    seen = torch.tensor(inputs).to(getattr(torch, name)).float().tolist()
    with np.errstate(all="ignore"):
        other = np.array(inputs, np.float32).astype(getattr(ml_dtypes, name)).astype(np.float32).tolist()
    print(f"{name} of {inputs}: {seen}; ml_dtypes: {other}")
    changed |= str(seen) != str(in_torch) or str(other) != str(in_numpy)
if changed:
    sys.exit("the behaviour has changed")
print("as described: infinity becomes 448 in one type, and a sign is lost in another")
PYTHON
