#!/usr/bin/env bash
# A slope of 45 degrees towards the sun has a hillshade of 1.00 with xarray-spatial if its cells are a metre wide, and of 0.87 if they are 30 metres wide.
#
# Expected: one value for one slope, as its slope function has 45 degrees for both rasters. Seen with xarray-spatial 0.5.3, xarray 2026.9.0 and
# NumPy 2.3.5 (x86-64 Linux) on 2026-12-01: hillshade takes differences of elevations between neighbours for slopes and leaves out the width of the
# cells, which the coordinates have: 45 degrees become 88. Rasters of elevation with cells of 30 metres look like cliffs, and those in degrees too.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check xarray-spatial==0.5.3 xarray==2026.9.0 numpy==2.3.5 numba==0.68.1
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import xarray
from xrspatial import hillshade, slope

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("xarray-spatial", "xarray", "numpy")))
same = True
for width, expected in ((1.0, 1.0), (10.0, 0.887), (30.0, 0.865)):
    places = np.arange(7) * width
    rising = np.tile(places, (7, 1))  # to the east, a metre for each metre
    raster = xarray.DataArray(rising, dims=("y", "x"), coords={"y": places[::-1], "x": places})
    degrees = float(slope(raster)[3, 3])
    light = float(hillshade(raster, azimuth=270, angle_altitude=45)[3, 3])
    print(f"cells of {width:g} m: slope {degrees:.1f} degrees, hillshade {light:.3f} with the sun in the west")
    same &= bool(np.isclose(degrees, 45, atol=0.1) and np.isclose(light, expected, atol=0.002))
if not same:
    sys.exit("the behaviour has changed")
print("as described: hillshade ignores the width of the cells")
PYTHON
