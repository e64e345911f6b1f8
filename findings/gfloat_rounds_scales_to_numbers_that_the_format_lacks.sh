#!/usr/bin/env bash
# gfloat rounds 0, -1 and 2**-128 to themselves in E8M0, the unsigned format of MX scales without a zero, and 3 to 2 where ml_dtypes has 4.
#
# Expected: numbers of the format, from 2**-127 to 2**127, or NaN, as ml_dtypes returns for 0 and -1 and PyTorch does by other rules; and the same
# rounding of ties. Seen with gfloat 0.5.2, ml_dtypes 0.6.0 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-30, for round_float and round_ndarray: the
# codes of these results are NaN from encode_float, and from encode_ndarray they are 18446744073709551615, which fits in no byte; for 0 the code is that
# of 2**-127. A tie between two powers of two goes to the one with an even code, up for 6 and down for 3, and always up in ml_dtypes. round_float and
# round_ndarray differ for -inf. The conversions to the formats E4M3, E5M2 and bfloat16 agree with ml_dtypes. A block scaled by 3 / 2 gets half of
# the scale in one of the two libraries, and an array compared after rounding hides the NaN that its codes have.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0 gfloat==0.5.2
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import math
import sys

import gfloat
import ml_dtypes
import numpy as np
from gfloat.formats import format_info_ocp_e8m0 as scales

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("gfloat", "ml_dtypes", "numpy")))
nan, wrapped = math.nan, 2**64 - 1
# number: rounded by gfloat, its code from encode_float and from encode_ndarray, rounded by ml_dtypes
described = {
    1.0: (1.0, 127, 127, 1.0),
    1.25: (1.0, 127, 127, 1.0),
    1.5: (2.0, 128, 128, 2.0),
    3.0: (2.0, 128, 128, 4.0),
    6.0: (8.0, 130, 130, 8.0),
    0.75: (0.5, 126, 126, 1.0),
    0.0: (0.0, 255, 0, nan),
    -1.0: (-1.0, 255, wrapped, nan),
    2.0**-128: (2.0**-128, 255, wrapped, 2.0**-127),
}
same = True
for number, expected in described.items():
    rounded = gfloat.round_float(scales, number)
    array = gfloat.round_ndarray(scales, np.array([number]))
    code, codes = gfloat.encode_float(scales, rounded), gfloat.encode_ndarray(scales, array)
    other = float(np.float32(number).astype(ml_dtypes.float8_e8m0fnu))
    seen = float(rounded), code, int(codes[0]), other
    print(f"{number:g}: rounded to {seen[0]:g}, codes {seen[1]} and {seen[2]}; by ml_dtypes to {seen[3]:g}")
    same &= all(left == right or (left != left and right != right) for left, right in zip(seen, expected)) and array[0] == rounded
infinite = gfloat.round_float(scales, -math.inf), gfloat.round_ndarray(scales, np.array([-math.inf]))[0]
print(f"-inf: rounded to {infinite[0]} by round_float and to {infinite[1]} by round_ndarray")
if not same or not math.isnan(infinite[0]) or infinite[1] != -math.inf:
    sys.exit("the behaviour has changed")
print("as described: the rounded scales include 0 and negative numbers")
PYTHON
