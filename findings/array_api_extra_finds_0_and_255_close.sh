#!/usr/bin/env bash
# array-api-extra's isclose finds the bytes 0 and 255 equal within 1, and 255 and 0 not, for array libraries without an isclose of their own.
#
# Expected: False for each library and both orders, as it returns for arrays of NumPy and PyTorch, whose isclose it calls. Seen with array-api-extra
# 0.11.5, array-api-strict 2.6.1, sparse 0.19.3 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-30: for other libraries it computes abs(a - b)
# in the type of the arrays, where 0 - 255 is 1, as are the differences of -128 and 127 in int8 in both orders, and of the limits
# of int32 and int64. The latter are close with the default tolerances too, since they grow with the second number. A test suite that
# runs for each array library passes for a wrapped integer in the libraries that take this way, and fails in NumPy.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    numpy==2.4.6 numba==0.68.1 sparse==0.19.3 array-api-extra==0.11.5 array-api-strict==2.6.1
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import array_api_extra
import array_api_strict
import numpy as np
import sparse

names = ("array-api-extra", "array-api-strict", "sparse", "numpy")
print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in names))


def close(library, kind, left, right, **tolerances):
    """Return whether two integers are close as arrays of a library."""
    arrays = [library.asarray(np.array([number], kind)) for number in (left, right)]
    result = array_api_extra.isclose(*arrays, **tolerances)
    return bool(result.todense()[0] if hasattr(result, "todense") else result[0])


cases = {
    ("uint8", 0, 255): True,
    ("uint8", 255, 0): False,
    ("uint16", 0, 65535): True,
    ("int8", -128, 127): True,
    ("int8", 127, -128): True,
    ("int32", -(2**31), 2**31 - 1): True,
    ("int8", 100, -100): False,
    ("uint8", 5, 250): False,
}
same = True
for (kind, left, right), expected in cases.items():
    strict = close(array_api_strict, kind, left, right, rtol=0, atol=1)
    dense = close(np, kind, left, right, rtol=0, atol=1)
    of_sparse = close(sparse, kind, left, right, rtol=0, atol=1)
    print(f"{kind}, {left} and {right}: array-api-strict {strict}, sparse {of_sparse}, NumPy {dense}")
    same &= (strict, of_sparse, dense) == (expected, expected, False)
limits = [close(library, "int32", -(2**31), 2**31 - 1) for library in (array_api_strict, np)]
print(f"limits of int32 with default tolerances: array-api-strict {limits[0]}, NumPy {limits[1]}")
if not same or limits != [True, False]:
    sys.exit("the behaviour has changed")
print("as described: the difference of integers wraps around")
PYTHON
