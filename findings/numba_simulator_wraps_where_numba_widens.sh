#!/usr/bin/env bash
# Numba's CUDA simulator computes uint8 numbers in uint8: 100 * 100 is 16 in a simulated kernel, and 10000 in a compiled function.
#
# Expected: the types that Numba infers, in which two small integers have a 64-bit result; the documentation says that the simulator aims to be as
# complete as possible. Seen with numba 0.68.1 and NumPy 2.4.6 (NUMBA_ENABLE_CUDASIM=1): elements of arrays are NumPy scalars, and NumPy's rules
# keep the type of the array and convert a Python number to it. The int32 sum of 2**30 and 2**30 is -2**31, and float32 divided by 3 is rounded to
# float32. njit, which infers types by the rules of the CUDA compiler, returns 10000, 2**31 and 33.333333333333336. A store of the number 300 to
# a uint8 array raises an OverflowError in the simulator, and stores 44 when compiled. A kernel that multiplies pixels, or counts beyond the range
# of its array's type, looks wrong in the simulator, and a kernel that needs float64 looks less precise than it is.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 numba==0.68.1
cat >"$work/kernels.py" <<'PYTHON'
import sys

import numpy as np
from numba import cuda, njit


def product(a, result):
    result[0] = a[0] * a[0]


def difference(a, result):
    result[0] = a[0] - a[1]


def doubled(a, result):
    result[0] = a[0] + a[0]


def third(a, result):
    result[0] = a[0] / 3


def stored(a, result):
    a[0] = 300
    result[0] = a[0]


rows = (
    (product, np.uint8, [100, 0], 16, 10000),
    (product, np.int32, [50000, 0], -1794967296, 2500000000),
    (product, np.float32, [100, 0], 10000, 10000),
    (difference, np.int8, [100, -100], -56, 200),
    (doubled, np.int32, [2**30, 0], -(2**31), 2**31),
    (third, np.float32, [100, 0], float(np.float32(100 / 3)), 100 / 3),
    (stored, np.uint8, [0, 0], "OverflowError", 44),
)
changed = False
for function, dtype, numbers, simulated, compiled in rows:
    result = np.zeros(1)
    try:
        cuda.jit(function)[1, 1](np.array(numbers, dtype), result)
        seen = float(result[0])
    except OverflowError:
        seen = "OverflowError"
    njit(function)(np.array(numbers, dtype), result)
    print(f"{function.__name__} of {np.dtype(dtype).name} {numbers}: simulator {seen}, compiled {float(result[0])}")
    changed |= (seen, result[0]) != (simulated, compiled)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the simulator keeps the types of arrays")
PYTHON
NUMBA_ENABLE_CUDASIM=1 "$work/venv/bin/python" -W ignore "$work/kernels.py"
