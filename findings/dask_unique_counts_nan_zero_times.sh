#!/usr/bin/env bash
# Dask's unique counts NaN zero times, and its inverse indices point from NaN to the smallest number.
#
# Expected: NumPy's counts and inverse indices: 3, NaN, 1 and 2 has one NaN, and values[inverse] is the array. Seen with dask 2026.8.0 and NumPy 2.4.6 on
# 2026-11-30: the values are NumPy's, and have NaN once, and the count of NaN is 0 for each number of NaN. The inverse index of a NaN is 0, so a missing value is
# relabelled as the class of the smallest number. return_index raises "zero-size array to reduction operation minimum". The docstring is NumPy's.
# No warning is given. The sum of the counts is smaller than the size of the array.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 'dask[array]==2026.8.0'
WORK="$work" "$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import dask.array
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("dask", "numpy")))
nan = np.nan
same = True
for numbers in ([3.0, 1.0, 2.0, 1.0], [3.0, nan, 1.0, 2.0], [nan, 1.0, nan, 2.0, nan, 1.0], [nan] * 4):
    array = np.array(numbers)
    chunked = dask.array.from_array(array, chunks=2)
    values, inverse, counts = (part.compute() for part in dask.array.unique(chunked, return_inverse=True, return_counts=True))
    expected = np.unique(array, return_inverse=True, return_counts=True)
    print(f"{numbers}: values {values.tolist()}")
    print(f"  counts {counts.tolist()}, inverse {inverse.tolist()}; NumPy: {expected[2].tolist()}, {expected[1].tolist()}")
    missing = np.isnan(array)
    same &= np.array_equal(values, expected[0], equal_nan=True)
    same &= np.array_equal(counts, np.where(np.isnan(values), 0, expected[2]))
    same &= np.array_equal(inverse, np.where(missing, 0, expected[1]))
if not same:
    sys.exit("the behaviour has changed")
print("as described: NaN is a value with the count 0")
PYTHON
