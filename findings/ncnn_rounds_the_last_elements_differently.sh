#!/usr/bin/env bash
# ncnn's cast to float16 rounds the last elements of an array in another way than the elements before them.
#
# Expected: equal numbers become equal numbers. Seen with ncnn 1.0.20261020 and NumPy 2.4.6 on an x86-64 CPU with F16C: groups of four
# elements are rounded to even, and the one to three elements after the last group are rounded with ties away from zero. So seven times
# 1 + 2**-11 become four times 1 and three times 1.001. In the last elements, subnormal results are flushed to zero. The result of a
# number depends on the length of the array. The cast to bfloat16 rounds ties away from zero everywhere.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 ncnn==1.0.20261020
"$work/venv/bin/python" - <<'PYTHON'
import sys

import ncnn
import numpy as np


def cast(value, function=ncnn.cast_float32_to_float16):
    array = np.full(7, value, np.float32)
    source, target = ncnn.Mat(array), ncnn.Mat()
    function(source, target)
    return np.array(target).copy()


changed = False
for value, first, last in ((1 + 2**-11, 1.0, 1 + 2**-10), (1 + 3 * 2**-11, 1 + 2**-9, 1 + 2**-9), (6e-8, 2**-24, 0.0)):
    seen = cast(value).astype(np.float64)
    print(f"{value:.7g}: {seen.tolist()}; NumPy: {float(np.float16(value))}")
    changed |= seen.tolist() != [first] * 4 + [last] * 3
bfloat16 = cast(1 + 2**-8, ncnn.cast_float32_to_bfloat16).view(np.uint16)
print(f"bits of 1 + 2**-8 in bfloat16: {[hex(bits) for bits in bfloat16]}")
if changed or bfloat16.tolist() != [0x3F81] * 7:
    sys.exit("the behaviour has changed")
print("as described: the last three elements are rounded differently")
PYTHON
