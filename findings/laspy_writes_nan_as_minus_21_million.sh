#!/usr/bin/env bash
# laspy writes the height NaN to a LAS file as -21474836.48, and the intensities 0.25 and 70000 as 0 and 4464; infinity raises an error.
#
# Expected: an error, which laspy raises for heights that do not fit, infinity among them, and for a class or a return number that does not fit. Seen with
# laspy 2.7.0 and NumPy 2.4.6 on Linux: NaN passes the check of the range and becomes the lowest int32, and fields without a check are truncated and
# wrap around. The lowest height in the header becomes -21474836.48 too, so that viewers and grids are scaled to it. NaN stands for no return in arrays of
# scanners and depth cameras, and intensities are often fractions of 1. No warning is given by laspy.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 laspy==2.7.0
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import laspy
import numpy as np

print(f"laspy {laspy.__version__}, NumPy {np.__version__}")


def stored(name, numbers):
    points = laspy.create(point_format=3, file_version="1.2")
    points.header.scales, points.header.offsets = [0.01] * 3, [0] * 3
    points.x = points.y = points.z = np.array([1.0, 2.0, 3.0])
    try:
        setattr(points, name, np.array(numbers))
    except OverflowError as error:
        return type(error).__name__, None
    points.write("points.las")
    with laspy.open("points.las") as file:
        read = file.read()
        return np.array(getattr(read, name)).tolist(), float(read.header.mins[2])


rows = {
    ("z", (np.nan, 0, 5)): ([-21474836.48, 0, 5], -21474836.48),
    ("z", (np.inf, 0, 5)): ("OverflowError", None),
    ("z", (3e7, 0, 5)): ("OverflowError", None),
    ("intensity", (0.25, 0.5, 1.0)): ([0, 0, 1], 1),
    ("intensity", (70000, -1, 3)): ([4464, 65535, 3], 1),
    ("red", (65536.0, 255.7, 3)): ([0, 255, 3], 1),
    ("scan_angle_rank", (200, -130, 3)): ([-56, 126, 3], 1),
    ("classification", (40, 2, 3)): ("OverflowError", None),
    ("return_number", (9, 1, 2)): ("OverflowError", None),
}
changed = False
for (name, numbers), expected in rows.items():
    seen = stored(name, numbers)
    print(f"{name} {list(numbers)}: {seen[0]}, lowest height in the header {seen[1]}")
    changed |= seen != expected
if changed:
    sys.exit("the behaviour has changed")
print("as described: NaN is the lowest integer, and some fields wrap around")
PYTHON
