#!/usr/bin/env bash
# MedPy's average filter of 3 x 3 pixels of a byte image of 200s is 0.89 everywhere, and that of 3 x 3 x 3 voxels of 1500 in int16 is -927.
#
# Expected: 200 and 1500: the average of equal numbers is that number, and the result is float64. Seen with MedPy 0.5.2, SciPy 1.17.1 and NumPy 2.4.6 on Linux: the
# sum is formed in the type of the image, where it wraps around, and divided afterwards. Bone in CT images, which are int16, has
# such numbers, and windows of the size 5 fail from 263 on. With output= of a float array it is right. The same filter of SciPy, uniform_filter, is
# right for all types. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 simpleitk==2.5.7 MedPy==0.5.2
"$work/venv/bin/python" -W error - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import scipy.ndimage
from medpy.filter import average_filter

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("MedPy", "scipy", "numpy")))
rows = (
    (200, "uint8", 2, 3, (1800 - 7 * 256) / 9),
    (28, "uint8", 2, 3, 28),
    (200, "int16", 2, 3, 200),
    (1500, "int16", 3, 3, (40500 - 65536) / 27),
    (1213, "int16", 3, 3, 1213),
    (263, "int16", 3, 5, (32875 - 65536) / 125),
    (1500, "float32", 3, 3, 1500),
)
changed = False
for value, dtype, dimensions, size, described in rows:
    image = np.full((6,) * dimensions, value, dtype)
    seen = average_filter(image, size=size)
    exact = average_filter(image, size=size, output=np.empty(image.shape))
    scipys = scipy.ndimage.uniform_filter(image, size)
    print(f"{value} in {dtype}, {dimensions} dimensions, size {size}: {seen.min():.4f} to {seen.max():.4f}, {seen.dtype}", end="; ")
    print(f"with output= {exact.min():.4f}, SciPy {scipys.min()}")
    changed |= not np.allclose(seen, described, rtol=1e-6) or not np.allclose(exact, value) or not np.allclose(scipys, value)
if changed:
    sys.exit("the behaviour has changed")
print("as described: the sums wrap around")
PYTHON
