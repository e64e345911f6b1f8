#!/usr/bin/env bash
# python-blosc2 divides two integer arrays as C does: 7 / 2 is 3.0, a float; and -7 % 3 is -1.
#
# Expected: 3.5 as in NumPy and for a quotient of an array and a number, and 2, because the documentation calls the remainder equivalent to the
# modulus of Python. Seen with blosc2 4.14.1 and NumPy 2.4.6 (x86-64 Linux): the quotient of two compressed integer arrays is computed in
# integers and converted to float64, for int32 to float32. np.divide, blosc2.divide and (a + b) / b have the same rule, for signed and unsigned
# integers of all sizes. a / 2, 1 / a, a // b and a quotient with a NumPy array are right, and so are quotients of floats. A remainder has the
# sign of the dividend, for floats too. A normalization of uint8 pixels by an array of their maxima returns 0 nearly everywhere.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 blosc2==4.14.1
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import blosc2
import numpy as np

expressions = {
    "a / b": lambda a, b: a / b,
    "np.divide(a, b)": lambda a, b: np.divide(a, b),
    "(a + b) / b": lambda a, b: (a + b) / b,
    "a / 2": lambda a, b: a / 2,
    "1 / b": lambda a, b: 1 / b,
    "a // b": lambda a, b: a // b,
    "a % b": lambda a, b: a % b,
    "a % 3": lambda a, b: a % 3,
}
truncated = {"a / b": [3, 0, 2], "np.divide(a, b)": [3, 0, 2], "(a + b) / b": [4, 1, 3]}
negative = {"a / b": [-3, 3, 0], "np.divide(a, b)": [-3, 3, 0], "(a + b) / b": [-2, 4, 1], "a % b": [-1, 1, 1], "a % 3": [-1, 1, 1]}
floats = {"a % b": [-1, 1, 1], "a % 3": [-1, 1, 1]}
rows = {
    "uint8": ([7, 1, 9], [2, 2, 4], truncated),
    "int64": ([7, 1, 9], [2, 2, 4], truncated),
    "int32": ([-7, 7, 1], [2, 2, 2], negative),
    "float32": ([-7, 7, 1], [2, 2, 2], floats),
}
changed = False
for dtype, (first, second, expected) in rows.items():
    a, b = np.array(first, dtype), np.array(second, dtype)
    packed = blosc2.asarray(a), blosc2.asarray(b)
    for name, expression in expressions.items():
        result, right = expression(*packed)[:], expression(a, b)
        seen = result.tolist()
        if name in expected or name == "a / b":
            print(f"{dtype}, {name}: {seen} {result.dtype}; NumPy {right.tolist()}")
        changed |= seen != expected.get(name, right.tolist())
    if dtype == "int32":
        mixed = (packed[0] / b)[:].tolist()
        print(f"{dtype}, a / NumPy array: {mixed}")
        changed |= mixed != [-3.5, 3.5, 0.5]
if changed:
    sys.exit("the behaviour has changed")
print("as described: quotients of integer arrays are truncated")
PYTHON
