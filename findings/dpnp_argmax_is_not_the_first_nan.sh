#!/usr/bin/env bash
# dpnp's argmax of 3, NaN, 1, 2, NaN is 4 and that of 1, NaN, NaN, NaN, 2 is 3, where NumPy has 1; a complex 0 to the power 0 is NaN.
#
# Expected: the first NaN, as its documentation says that the first occurrence is returned and as ties between numbers are resolved, and 1. Seen with dpnp
# 0.20.0, dpctl 0.22.1 and NumPy 2.4.6 (OpenCL device of the CPU, x86-64 Linux) on 2026-11-30, for float16, float32 and float64 and for argmin: a
# NaN in front is found, and the place of the others depends on the order in which parts of the array are compared; of 100,000
# numbers, the first NaN is found. z ** 0 of a complex zero is NaN for an integer and a float, and z ** 2 is right, so that a polynomial with
# a constant is NaN at 0. To find the first step that diverged, argmax of a history of losses is a common idiom.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 dpnp==0.20.0 dpctl==0.22.1 intel-opencl-rt==2026.2.0
OCL_ICD_FILENAMES="$work/venv/lib/libintelocl.so" "$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import dpnp
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("dpnp", "dpctl", "numpy")))
nan = np.nan
described = {
    (3, nan, 1, 2, nan): (4, 1),
    (1, nan, nan, nan, 2): (3, 1),
    (nan, 1, nan, 2): (0, 0),
    (1, 2, 2, 0, 2): (1, 1),
}
same = True
for numbers, expected in described.items():
    for kind in (np.float16, np.float32, np.float64):
        array = np.array(numbers, kind)
        seen = int(dpnp.argmax(dpnp.asarray(array))), int(np.argmax(array))
        print(f"{list(numbers)}, {kind.__name__}: argmax {seen[0]}, by NumPy {seen[1]}")
        same &= seen == expected
zeros = np.array([0, 2], np.complex64)
powers = {power: ((dpnp.asarray(zeros) ** power).asnumpy(), zeros**power) for power in (0, 0.0, 2)}
for power, (ours, theirs) in powers.items():
    print(f"[0, 2] ** {power}: {ours.tolist()}, by NumPy {theirs.tolist()}")
    same &= bool(np.isnan(ours[0])) == (power == 0) and bool(np.isclose(ours[1], theirs[1])) and not np.isnan(theirs[0])
if not same:
    sys.exit("the behaviour has changed")
print("as described: argmax returns a later NaN")
PYTHON
