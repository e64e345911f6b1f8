#!/usr/bin/env bash
# The dtypes of ml_dtypes name themselves by NumPy's array interface in two ways, and NumPy cannot read one of them.
#
# Expected: np.dtype(d.str) returns a type of the same size for each, as for the void names of bfloat16 and float8_e4m3fn. Seen with
# NumPy 2.3.5 and ml_dtypes 0.5.4: float8_e5m2 alone has kind "f" and the name "<f1", which np.dtype rejects with a TypeError. An object
# that exports it by __array_interface__ or __cuda_array_interface__ cannot be imported, and its sibling can, as bytes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.3.5 ml_dtypes==0.5.4
"$work/venv/bin/python" - <<'PYTHON'
import sys

import ml_dtypes
import numpy as np

rows = {}
for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
    dtype = np.dtype(getattr(ml_dtypes, name))
    try:
        rows[name] = dtype.kind, dtype.str, np.dtype(dtype.str).itemsize
    except TypeError as error:
        rows[name] = dtype.kind, dtype.str, type(error).__name__
    print(name, *rows[name])
if rows != {
    "bfloat16": ("V", "<V2", 2),
    "float8_e4m3fn": ("V", "<V1", 1),
    "float8_e5m2": ("f", "<f1", "TypeError"),
}:
    sys.exit("the behaviour has changed")
print("as described: NumPy cannot read the name of float8_e5m2")
PYTHON
