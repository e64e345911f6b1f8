#!/usr/bin/env bash
# The direction to a source in the south is 360 degrees with xarray-spatial, which its description calls the north; east and west are right.
#
# Expected: 180 degrees, as the description says that 90 is for the east, 180 for the south, 270 for the west and 360 for the north. Seen with
# xarray-spatial 0.5.3, xarray 2026.9.0 and NumPy 2.3.5 (x86-64 Linux) on 2026-12-01: north and south are exchanged whether the coordinates of rows rise
# or fall, so that a source in the south-east is at 45 degrees. Who follows the directions walks away from the source, unless it lies in the same row.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check xarray-spatial==0.5.3 xarray==2026.9.0 numpy==2.3.5 numba==0.68.1
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import math
import sys

import numpy as np
import xarray
from xrspatial import direction

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("xarray-spatial", "xarray", "numpy")))
same = True
for rows in ([20.0, 10.0, 0.0], [0.0, 10.0, 20.0]):
    raster = xarray.DataArray(np.zeros((3, 3)), dims=("y", "x"), coords={"y": rows, "x": [0.0, 10.0, 20.0]})
    raster[1, 1] = 1  # the source
    seen = direction(raster)
    print(f"rows at {rows}:")
    for place in ((0, 1), (2, 1), (1, 0), (1, 2), (0, 0)):
        x, y = float(raster.x[place[1]]), float(raster.y[place[0]])
        right = math.degrees(math.atan2(10 - x, 10 - y)) % 360 or 360.0
        mirrored = math.degrees(math.atan2(10 - x, y - 10)) % 360 or 360.0
        found = float(seen[place])
        print(f"  from ({x:g}, {y:g}) to (10, 10): {found:.0f} degrees, by the compass {right:.0f}")
        same &= abs(found - mirrored) < 0.1
if not same:
    sys.exit("the behaviour has changed")
print("as described: north and south are exchanged")
PYTHON
