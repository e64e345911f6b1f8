#!/usr/bin/env bash
# Mahotas' resizing functions return another part of the image: a zoom by 1 loses the first row and column and adds zeros at the end.
#
# Expected: a zoom by 1, a shift by 0 and a resize to the present size return the image, as SciPy does with the same argument names. Seen with
# mahotas 1.4.19, scipy 1.17.1 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-30: each output pixel is read one pixel further along every axis, for all
# orders and modes. A 4 x 4 image of ones zoomed to 8 x 8 has a last row and a last column of zeros, and imresize of 0 to 15 to 2 x 2 is 5, 0, 0
# and 0. A shift by one pixel leaves all pixels but the first where they were. The docstrings describe the functions as SciPy does. No warning is
# given. Masks and images that are resized by different libraries no longer match.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 mahotas==1.4.19
WORK="$work" "$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import mahotas
import mahotas.interpolate
import numpy as np
import scipy.ndimage

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("mahotas", "scipy", "numpy")))
image = np.arange(1.0, 13.0).reshape(3, 4)
moved = np.zeros_like(image)
moved[:-1, :-1] = image[1:, 1:]
same = True
for order in range(6):
    zoomed = mahotas.interpolate.zoom(image, 1.0, order=order)
    shifted = mahotas.interpolate.shift(image, (0, 0), order=order)
    other = scipy.ndimage.zoom(image, 1.0, order=order), scipy.ndimage.shift(image, (0, 0), order=order)
    same &= np.allclose(zoomed, moved) and np.allclose(shifted, moved) and all(np.allclose(result, image) for result in other)
    if order in (1, 3):
        print(f"order {order}: zoom by 1 {zoomed.round(6).tolist()}")
        print(f"         shift by 0 {shifted.round(6).tolist()}; SciPy returns the image")
resized = mahotas.imresize(image, (3, 4))
print(f"imresize to the present size: {resized.round(6).tolist()}")
same &= np.allclose(resized, moved)
small = mahotas.imresize(np.arange(16).reshape(4, 4).astype(np.uint8), (2, 2))
print(f"imresize of 0 to 15 from 4 x 4 to 2 x 2: {small.round(6).tolist()}")
same &= np.allclose(small, [[5, 0], [0, 0]])
ones = mahotas.interpolate.zoom(np.ones((4, 4)), 2)
print(f"ones zoomed to 8 x 8: {int(round(ones.sum()))} of 64, last row {ones[-1].tolist()}")
same &= np.allclose(ones[:-1, :-1], 1) and not ones[-1].any() and not ones[:, -1].any()
line = mahotas.interpolate.shift(np.arange(1.0, 6.0), (1,), order=1)
print(f"1, 2, 3, 4, 5 shifted by 1: {line.tolist()}")
same &= np.allclose(line, [0, 2, 3, 4, 5])
if not same:
    sys.exit("the behaviour has changed")
print("as described: the image moves by one pixel")
PYTHON
