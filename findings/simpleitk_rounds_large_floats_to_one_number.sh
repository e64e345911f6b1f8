#!/usr/bin/env bash
# SimpleITK's Round turns float32 numbers from 2**30 on into -1073741824, and float64 numbers from 2**31 on are rounded correctly.
#
# Expected: the numbers themselves, as all float32 numbers above 2**24 are integers, or a limit at the range of int32 for both types. Seen with
# simpleitk 2.5.7 and NumPy 2.4.6 (x86-64 Linux): the float32 numbers 1073741824, 1.5e9 and 1e10, infinity and NaN all become -1073741824, and
# so does -1.5e9. The largest number that survives is 1073741760. The result is a float32 image, so that its type does not ask for a range. The
# same numbers in float64 stay. Numbers halfway between two integers go up in both types, -2.5 to -2, and NumPy rounds them to even. A map
# of counts or of times in nanoseconds gets a negative number in place of the large ones.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 simpleitk==2.5.7
"$work/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import SimpleITK as sitk

lowest = -(2**30)
numbers = [-2.5, 2.5, 1073741760, 2**30, 1.5e9, 1e10, -1.5e9]
expected = {np.float32: [-2, 3, 1073741760] + [lowest] * 4, np.float64: [-2, 3, *numbers[2:]]}
changed = False
for dtype, values in expected.items():
    image = sitk.GetImageFromArray(np.array([numbers], dtype))
    result = sitk.GetArrayFromImage(sitk.Round(image))
    print(f"{result.dtype}: {result.ravel().tolist()}")
    changed |= result.dtype != dtype or result.ravel().tolist() != values
special = sitk.GetArrayFromImage(sitk.Round(sitk.GetImageFromArray(np.array([[np.inf, np.nan]], np.float32))))
print("float32 inf and nan:", special.ravel().tolist())
if changed or special.ravel().tolist() != [lowest] * 2:
    sys.exit("the behaviour has changed")
print("as described: large float32 numbers become -1073741824")
PYTHON
