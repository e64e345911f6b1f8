#!/usr/bin/env bash
# Numba's CUDA simulator counts one bit in the int32 number -1, and its cbrt of -8 is NaN.
#
# Expected: 32 set bits, as CUDA's __popc counts in -1, and the cube root -2. Seen with numba-cuda 0.30.4, numba 0.68.1 and NumPy 2.4.6
# (NUMBA_ENABLE_CUDASIM=1, x86-64 Linux) on 2026-11-29: popc counts the ones of the absolute value. clz and brev take each integer for 32
# bits wide, so that int64 1 has 31 leading zeros in place of 63; brev raises ValueError for each negative number. fma rounds
# the product before it adds, so that (1 + 2**-30)**2 - (1 + 2**-29) is 0 in place of 2**-60. uint32 is right. Masks such as those
# of ballot and packed weights have the highest bit set in half of all cases, and a test in the simulator sees other numbers than a GPU.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numba-cuda==0.30.4 numba==0.68.1 numpy==2.4.6
cat >"$work/bits.py" <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from numba import cuda

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numba-cuda", "numba", "numpy")))


@cuda.jit
def popc(out, x):
    out[0] = cuda.popc(x[0])


@cuda.jit
def clz(out, x):
    out[0] = cuda.clz(x[0])


@cuda.jit
def brev(out, x):
    out[0] = cuda.brev(x[0])


@cuda.jit
def cbrt(out, x):
    out[0] = cuda.cbrt(x[0])


@cuda.jit
def fma(out, x):
    out[0] = cuda.fma(x[0], x[0], x[1])


def simulated(kernel, x):
    out = np.zeros(1, x.dtype)
    try:
        kernel[1, 1](out, x)
    except ValueError:
        return "ValueError"
    return out[0].item()


def integer(number, dtype):
    return np.array([number], dtype)


# name, kernel, operands, the simulator's result, the definition's result
cases = [
    ("popc of int32 -1", popc, integer(-1, np.int32), 1, 32),
    ("popc of int32 -3", popc, integer(-3, np.int32), 2, 31),
    ("popc of int64 -1", popc, integer(-1, np.int64), 1, 64),
    ("popc of uint32 2**32 - 1", popc, integer(2**32 - 1, np.uint32), 32, 32),
    ("clz of int32 1", clz, integer(1, np.int32), 31, 31),
    ("clz of int64 1", clz, integer(1, np.int64), 31, 63),
    ("brev of uint32 1", brev, integer(1, np.uint32), 2**31, 2**31),
    ("brev of uint64 1", brev, integer(1, np.uint64), 2**31, 2**63),
    ("brev of int32 -2", brev, integer(-2, np.int32), "ValueError", 2**31 - 1),
    ("cbrt of 8", cbrt, np.array([8.0]), 2.0, 2.0),
    ("cbrt of -8", cbrt, np.array([-8.0]), "nan", -2.0),
    ("fma", fma, np.array([1 + 2.0**-30, -(1 + 2.0**-29)]), 0.0, 2.0**-60),
]
changed = False
for name, kernel, x, expected, definition in cases:
    seen = simulated(kernel, x)
    print(f"{name}: {seen}, by definition {definition}")
    changed |= str(seen) != str(expected)
if changed:
    sys.exit("the behaviour has changed")
print("as described: negative and 64-bit integers, cube roots of negative numbers and fma differ")
PYTHON
NUMBA_ENABLE_CUDASIM=1 "$work/venv/bin/python" -W ignore "$work/bits.py"
