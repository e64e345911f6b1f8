#!/usr/bin/env bash
# Taichi divides two 8-bit integers to 0 or 1: 100 // 3 is 1 in int8 and uint8, and 100 % 3 is 0.
#
# Expected: 33 and 1, as Taichi computes for int16, and for the same bytes after a cast to int32. Seen with taichi 1.7.4 and NumPy 2.4.6 (x86-64
# Linux, arch=ti.cpu) on 2026-11-28: every quotient x // y of positive 8-bit variables is 1 if x >= y, else 0, and every remainder is 0 or 1. The
# settings fast_math and advanced_optimization have no effect. The quotient x / y is right, and so is x // 2 with a constant. No warning is
# given. A kernel that divides the pixels of one uint8 image by those of another returns a black image.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 taichi==1.7.4
cat > "$work/divide.py" <<'PYTHON'
import sys

import numpy as np
import taichi as ti

ti.init(arch=ti.cpu, log_level=ti.ERROR, offline_cache=False)


@ti.kernel
def divide(x: ti.types.ndarray(), y: ti.types.ndarray(), quotient: ti.types.ndarray(), remainder: ti.types.ndarray()):
    for i in range(x.shape[0]):
        quotient[i] = x[i] // y[i]
        remainder[i] = x[i] % y[i]


@ti.kernel
def divide_in_32_bits(x: ti.types.ndarray(), y: ti.types.ndarray(), quotient: ti.types.ndarray()):
    for i in range(x.shape[0]):
        quotient[i] = ti.cast(x[i], ti.i32) // ti.cast(y[i], ti.i32)


@ti.kernel
def divide_by_two(x: ti.types.ndarray(), quotient: ti.types.ndarray()):
    for i in range(x.shape[0]):
        quotient[i] = x[i] // 2


print("taichi", ti.__version__, "NumPy", np.__version__)
changed = False
for dtype in (np.int8, np.uint8, np.int16):
    x = np.array([100, 100, 100, 100, 7, 5], dtype)
    y = np.array([3, 7, 50, 100, 2, 7], dtype)
    quotient, remainder, wide, half = np.empty_like(x), np.empty_like(x), np.empty(6, np.int32), np.empty_like(x)
    divide(x, y, quotient, remainder)
    divide_in_32_bits(x, y, wide)
    divide_by_two(x, half)
    print(f"{x.dtype}: {x.tolist()} // {y.tolist()} is {quotient.tolist()}, in 32 bits {wide.tolist()}")
    print(f"{x.dtype}: {x.tolist()} % {y.tolist()} is {remainder.tolist()}")
    print(f"{x.dtype}: {x.tolist()} // 2 is {half.tolist()}")
    narrow = x.dtype.itemsize == 1
    changed |= quotient.tolist() != ([1, 1, 1, 1, 1, 0] if narrow else [33, 14, 2, 1, 3, 0])
    changed |= remainder.tolist() != ([0, 0, 0, 0, 0, 1] if narrow else [1, 2, 0, 0, 1, 5])
    changed |= wide.tolist() != [33, 14, 2, 1, 3, 0] or half.tolist() != [50, 50, 50, 50, 3, 2]
if changed:
    sys.exit("the behaviour has changed")
print("as described: quotients of 8-bit integers are 0 or 1")
PYTHON
HOME="$work" "$work/venv/bin/python" "$work/divide.py"
