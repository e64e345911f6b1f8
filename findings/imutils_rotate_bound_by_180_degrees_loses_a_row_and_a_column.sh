#!/usr/bin/env bash
# A turn of an image by 180 degrees with imutils.rotate_bound leaves the first row and column black and loses as many pixels.
#
# Expected: the pixels of numpy.rot90, because rotate_bound exists to keep all of an image, in place of rotate,
# which cuts the corners off. Seen with imutils 0.5.4, OpenCV 5.0.0.93 and NumPy 2.4.1 on Linux: the image is
# turned about the corner at half of its width and height, and not about its middle, which is half a pixel
# before, so that a row or a column is lost at 90 and 270 degrees, and both at 180. The angle has the other sign,
# too: rotate turns anticlockwise, and rotate_bound clockwise. rotate is right at the middle, for odd sizes. Masks
# and boxes that are turned by 90 degrees are off by a pixel. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check \
    numpy==2.4.1 opencv-python-headless==5.0.0.93 imutils==0.5.4
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import imutils
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("imutils", "opencv-python-headless", "numpy")))
changed = False
small = np.arange(1, 10, dtype=np.uint8).reshape(3, 3)
print(f"image {small.tolist()}")
for angle in (90, 180):
    print(f"{angle} degrees: rotate_bound {imutils.rotate_bound(small, angle).tolist()}, rotate {imutils.rotate(small, angle).tolist()}")
changed |= not np.array_equal(imutils.rotate(small, 90), np.rot90(small))
for height, width in ((5, 5), (6, 6), (9, 12)):
    image = np.arange(1, height * width + 1, dtype=np.uint8).reshape(height, width)
    for angle in (0, 90, 180, 270):
        seen = imutils.rotate_bound(image, angle)
        right = np.rot90(image, -angle // 90)
        lost = len(np.setdiff1d(image, seen))
        print(f"{height} x {width}, {angle} degrees: shape {seen.shape}, {lost} pixels lost, equal to rot90: {np.array_equal(seen, right)}")
        changed |= seen.shape != right.shape or np.array_equal(seen, right) != (angle == 0)
        changed |= angle == 0 and lost != 0 or angle == 180 and lost != height + width - 1
        changed |= angle in (90, 270) and lost not in (height, width)
        if angle == 180:
            changed |= seen[0].any() or seen[:, 0].any() or not np.array_equal(seen[1:, 1:], right[:-1, :-1])
if changed:
    sys.exit("the behaviour has changed")
print("as described: a row and a column are lost")
PYTHON
