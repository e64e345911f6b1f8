#!/usr/bin/env bash
# SimpleITK converts a number to the pixel type: a uint8 image times 0.5 is 0, its square root by ** is 1, and 0 equals 256.
#
# Expected: a float image, as for image / 2, or an error, as for the sum of two images of different types. Seen with simpleitk 2.5.7 and NumPy
# 2.4.6: the constant of an operator is truncated and wrapped to the type of the pixels before the operation, so that image * 1.5 is the image,
# image + 0.7 adds nothing, and image ** 0.5 is image ** 0. Comparisons have the same rule: 0 == 256 is true, 100 < 300 is false and no pixel is
# greater than -1. image / 2 is a float64 image. The functions Multiply and Pow behave like the operators. A scaling between 0 and 1 turns a
# scan of int16 numbers black, and a threshold beyond the range of the type selects other pixels than it names.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 simpleitk==2.5.7
"$work/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import SimpleITK as sitk

pixels = [0, 1, 100, 200, 255]
image = sitk.GetImageFromArray(np.array([pixels], np.uint8))
scan = sitk.GetImageFromArray(np.array([[-1000, 0, 40, 3000]], np.int16))
rows = {
    "image / 2": (image / 2, "float64", [0, 0.5, 50, 100, 127.5]),
    "image * 0.5": (image * 0.5, "uint8", [0] * 5),
    "image * 1.5": (image * 1.5, "uint8", pixels),
    "image + 0.7": (image + 0.7, "uint8", pixels),
    "image ** 0.5": (image**0.5, "uint8", [1] * 5),
    "image == 256": (image == 256, "uint8", [1, 0, 0, 0, 0]),
    "image < 300": (image < 300, "uint8", [1, 1, 0, 0, 0]),
    "image > -1": (image > -1, "uint8", [0] * 5),
    "Multiply(image, 0.5)": (sitk.Multiply(image, 0.5), "uint8", [0] * 5),
    "scan * 0.25": (scan * 0.25, "int16", [0] * 4),
}
changed = False
for name, (result, dtype, values) in rows.items():
    seen = sitk.GetArrayFromImage(result)
    print(f"{name}: {seen.dtype} {seen.ravel().tolist()}")
    changed |= (seen.dtype.name, seen.ravel().tolist()) != (dtype, values)
try:
    print(image + scan)
    changed = True
except RuntimeError as error:
    print("image + scan:", str(error).splitlines()[-1].strip())
if changed:
    sys.exit("the behaviour has changed")
print("as described: constants are converted to the type of the pixels")
PYTHON
