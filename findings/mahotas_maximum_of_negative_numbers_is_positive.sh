#!/usr/bin/env bash
# Mahotas' labeled_max returns 2.2e-308 for a region of negative numbers, such as air or fat in a CT image in Hounsfield units.
#
# Expected: the largest number of the region; the docstring says np.max(array[labeled == i]), and SciPy's maximum returns it. Seen with mahotas
# 1.4.19, scipy 1.17.1 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-30: the maximum starts with the smallest positive float, so a region of -1000 and -600 has
# the maximum 2.2e-308 in float64 and 1.2e-38 in float32. For integers of the same values, and for labeled_min, the result is right. -infinity also
# becomes 2.2e-308. No warning is given. Conversion of an image to float changes a maximum of -600 to a number that prints as 0.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 mahotas==1.4.19
WORK="$work" "$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import mahotas.labeled
import numpy as np
import scipy.ndimage

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("mahotas", "scipy", "numpy")))
image = np.array([[-1000, -800, -600], [-950, 40, 60]])
labels = np.array([[1, 1, 1], [1, 2, 2]], np.int32)
same = True
for kind in (np.int16, np.int32, np.int64, np.float32, np.float64):
    array = image.astype(kind)
    largest = mahotas.labeled.labeled_max(array, labels)[1:]
    smallest = mahotas.labeled.labeled_min(array, labels)[1:]
    other = scipy.ndimage.maximum(array, labels, [1, 2]).tolist()
    print(f"{np.dtype(kind)}: largest {largest.tolist()}, smallest {smallest.tolist()}; SciPy, largest: {other}")
    first = np.finfo(kind).tiny if np.issubdtype(kind, np.floating) else -600
    same &= largest.tolist() == [first, 60] and smallest.tolist() == [-1000, 40] and other == [-600, 60]
infinite = mahotas.labeled.labeled_max(np.array([-np.inf, -5.0]), np.array([1, 1], np.int32))[1]
print(f"-infinity and -5: {infinite}")
same &= infinite == np.finfo(np.float64).tiny
if not same:
    sys.exit("the behaviour has changed")
print("as described: the maximum of negative floats is the smallest positive float")
PYTHON
