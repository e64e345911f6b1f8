#!/usr/bin/env bash
# cc3d puts voxels of 127 and -128 into one component of an int8 image for delta=1, and those of 32767 and -32768 of an int16 image.
#
# Expected: two components, because the values differ by 255, as for the same values as floats or shifted to uint8. Seen with
# connected-components-3d 4.1.1 and NumPy 2.4.6 (x86-64 Linux) on 2026-11-29: the difference is computed in the type of the image and
# wraps around, in int32 and int64 too, so that values a long way apart are close: in int8, 50 and -100 are joined for delta=110.
# Unsigned images are right. No warning is given. A quantized feature map that saturates at both ends has one region for both.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 connected-components-3d==4.1.1
cat > "$work/components.py" <<'PYTHON'
import importlib.metadata
import sys

import cc3d
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("connected-components-3d", "numpy")))


def count(low, high, dtype, delta):
    """Return the number of components of an image with two slabs of equal values."""
    image = np.empty((8, 6, 4), dtype)
    image[:4] = low
    image[4:] = high
    return cc3d.connected_components(image, delta=delta, return_N=True)[1]


changed = False
for dtype in (np.int8, np.int16, np.int32, np.int64):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    seen = [count(low, high, dtype, delta) for delta in (1, 2, 10)]
    print(f"{np.dtype(dtype)}, slabs of {low} and {high}: {seen} components for delta 1, 2 and 10")
    changed |= seen != [1, 1, 1]
rows = {
    ("int8", -100, 50, 110): 1,
    ("int16", -100, 50, 110): 2,
    ("float32", -100, 50, 110): 2,
    ("float32", -128, 127, 2): 2,
    ("uint8", 1, 255, 2): 2,
}
for (dtype, low, high, delta), expected in rows.items():
    seen = count(low, high, np.dtype(dtype), delta)
    print(f"{dtype}, slabs of {low} and {high}: {seen} components for delta {delta}")
    changed |= seen != expected
if changed:
    sys.exit("the behaviour has changed")
print("as described: values a long way apart are one component")
PYTHON
"$work/venv/bin/python" "$work/components.py"
