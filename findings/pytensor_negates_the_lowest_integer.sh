#!/usr/bin/env bash
# In PyTensor, the int8 number -128 divided by -1 is the float -128.0 in the default mode, and 128.0 in mode FAST_COMPILE.
#
# Expected: 128.0, because the result has a float type; NumPy 2.4.6 returns 128.0. Seen with pytensor 3.0.7 and numba 0.65.1 (CPU, x86-64
# Linux) on 2026-11-29: the optimized graph gives the result of a negation in int8, which wraps around. In mode FAST_COMPILE
# the minimum of -128, 5 and -7 is -7 for the same reason: it is computed as the negated maximum of the negated numbers.
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

x = pt.bvector("x")
numbers = np.array([-128, 5, -7], np.int8)
changed = False
for mode, expected in ((None, ([-128, -5, 7], -128)), ("FAST_COMPILE", ([128, -5, 7], -7))):
    quotient, minimum = pytensor.function([x], [x / -1, pt.min(x)], mode=mode)(numbers)
    print(f"mode {mode}: quotient {quotient.tolist()} ({quotient.dtype}), minimum {minimum}; NumPy: {(numbers / -1).tolist()}, {numbers.min()}")
    changed |= (quotient.tolist(), int(minimum)) != expected or quotient.dtype.kind != "f"
if changed:
    sys.exit("the behaviour has changed")
print("as described: the lowest integer is negated in int8")
PYTHON
