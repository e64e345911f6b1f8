#!/usr/bin/env bash
# Mahotas' grayscale dilation adds 1 to an image and its erosion subtracts 1: a constant image of 5 becomes 6 or 4 with the default arguments.
#
# Expected: the maximum and the minimum of the neighbours, as in SciPy with a cross. Seen with mahotas 1.4.19, scipy 1.17.1
# and NumPy 2.4.6 (x86-64 Linux) on 2026-11-30: the elements of the structuring element are added to the pixels, and the default cross is 0 and 1.
# The docstrings only say that the smallest value of the type stands for infinity in the element; a byte of 0 stays 0 too. Each dilation adds 1, so
# ten of them make an image of 5 one of 15; open and close are right, because both errors cancel. An erosion of int16 zeros is -1. For boolean images nothing
# is added. disk() has the same effect. A morphological gradient, dilation minus erosion, is 2 in constant regions.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 mahotas==1.4.19
WORK="$work" "$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import mahotas
import numpy as np
import scipy.ndimage

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("mahotas", "scipy", "numpy")))
cross = scipy.ndimage.generate_binary_structure(2, 1)
same = True
for kind in (np.uint8, np.int16, np.int32):
    for value in (0, 5, 100):
        image = np.full((5, 5), value, kind)
        dilated, eroded = mahotas.dilate(image), mahotas.erode(image)
        other = scipy.ndimage.grey_dilation(image, footprint=cross), scipy.ndimage.grey_erosion(image, footprint=cross)
        print(f"{np.dtype(kind)} of {value}: dilated {dilated[2, 2]}, eroded {eroded[2, 2]}; SciPy {other[0][2, 2]}, {other[1][2, 2]}")
        low = max(value - 1, 0) if kind is np.uint8 else value - 1
        high = value if kind is np.uint8 and value == 0 else value + 1
        same &= bool((dilated == high).all() and (eroded == low).all())
        same &= bool((other[0] == value).all() and (other[1] == value).all())
        same &= bool((mahotas.open(image) == value).all() and (mahotas.close(image) == value).all()) or value == 0
image = np.random.default_rng(0).integers(1, 250, (6, 7)).astype(np.uint8)
difference = mahotas.dilate(image).astype(int) - scipy.ndimage.grey_dilation(image, footprint=cross)
print(f"random bytes: difference from SciPy {sorted(set(difference.ravel().tolist()))}")
same &= bool((difference == 1).all())
image = np.full((5, 5), 5, np.uint8)
for _ in range(10):
    image = mahotas.dilate(image)
disk = mahotas.dilate(np.full((5, 5), 5, np.uint8), mahotas.disk(1))
zero = mahotas.dilate(np.full((5, 5), True))
print(f"ten dilations of 5: {image[2, 2]}; dilation with disk(1): {disk[2, 2]}; boolean image unchanged: {bool(zero.all())}")
same &= int(image[2, 2]) == 15 and int(disk[2, 2]) == 6 and bool(zero.all())
if not same:
    sys.exit("the behaviour has changed")
print("as described: a dilation adds 1, and an erosion subtracts 1")
PYTHON
