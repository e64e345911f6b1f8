#!/usr/bin/env bash
# python-graphblas' mean of 100, 100 and 100 as int8 is 14.7, and their variance 9785; the variance of ten time stamps in seconds is -512.
#
# Expected: 100 and 0, float64 numbers, as NumPy has and as for int64, and 8.25. Seen with python-graphblas 2025.2.0, SuiteSparse:GraphBLAS 9.4.5 and NumPy
# 2.4.6 on Linux: the mean is the sum in the type of the elements, which wraps around, divided by their number, and the variance is the mean of the squares minus
# the square of that mean, in which all digits cancel if the numbers are large. The standard deviation is NaN then. The results have the type FP64,
# and no warning is given. Adjacency matrices with small integers are the common case.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 python-graphblas==2025.2.0 suitesparse-graphblas==9.4.5.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import graphblas
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("python-graphblas", "suitesparse-graphblas", "numpy")))
rows = {
    "int8, equal": (np.array([100, 100, 100], np.int8), 14.666666666666666, 9784.888888888889),
    "int64, equal": (np.array([100, 100, 100], np.int64), 100, 0),
    "uint8": (np.array([200, 100, 250, 255], np.uint8), 9.25, 44295.6875),
    "int64": (np.array([200, 100, 250, 255], np.int64), 201.25, 3879.6875),
    "float64, time stamps": (1.7e9 + np.arange(10), 1700000004.5, -512),
}
changed = False
for name, (numbers, mean, variance) in rows.items():
    vector = graphblas.Vector.from_coo(np.arange(len(numbers)), numbers)
    seen = {each: vector.reduce(getattr(graphblas.agg, each)).new() for each in ("mean", "varp", "stdp")}
    print(f"{name}: mean {seen['mean'].value} ({numbers.mean()}), variance {seen['varp'].value} ({numbers.var()}), {seen['varp'].dtype}", end="; ")
    print(f"deviation {seen['stdp'].value} ({numbers.std()})")
    changed |= seen["mean"].value != mean or not np.isclose(seen["varp"].value, variance, rtol=1e-9, atol=1e-9)
matrix = graphblas.Matrix.from_dense(np.array([[200, 100], [250, 255]], np.uint8))
means = matrix.reduce_rowwise(graphblas.agg.mean).new().to_dense().tolist()
print(f"means of the rows of [[200, 100], [250, 255]] as uint8: {means}")
if changed or means != [22, 124.5]:
    sys.exit("the behaviour has changed")
print("as described: sums wrap around, and variances cancel")
PYTHON
